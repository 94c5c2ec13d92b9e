//! Every limit, in one place.

/// Posts that may wait in a vFPGA's command queue; it loses those beyond 32 in silence, and others may be about to post.
pub const QUEUED: u64 = 22;
/// WRITE packets of a QP that may be out: the card's window. One more would stop the posts of all QPs.
pub const WINDOW: u8 = 16;
/// Bytes of a full packet.
pub const PACKET: u32 = 4096;
/// Bytes of a WRITE's post: a quarter of the window, so that the next one is on its way while one is acknowledged.
pub const WRITE_POST: u32 = 4 * PACKET;
/// Bytes of a READ's post: one request of the card's.
pub const READ_POST: u32 = 32 << 10;
/// READ requests of a vFPGA that may be out.
pub const READS: u8 = 8;
/// Those of them that one QP may have: a dead peer keeps as many for good.
pub const READS_OF_QP: u8 = 2;
/// Packets of a card that may be on their way, READ responses too: a card loses frames where 64 wait, as they do behind a
/// page that is not there, and its peer may send it as many as it sends that.
pub const ON_THE_WAY: u32 = 32;
/// The same of a card that may lose the selection of a WRITE's payload: as many wait for theirs (STOCK-42).
pub const SELECTED: u32 = 8;
/// Those of them that a QP may have in any case.
pub const SHARE: u32 = 8;
/// Those of them that a QP which takes more leaves to others.
pub const LEFT_TO_OTHERS: u32 = 8;
/// Packets of dead peers' that a card may come to keep: its lists have 2,000 elements.
pub const KEPT: u32 = 1_900;
/// Address spaces, and so QPs, of a vFPGA.
pub const CTIDS: u8 = 64;
/// By so many address spaces further the first queue pair has its own behind each reset.
pub(crate) const FURTHER: u32 = 11;
/// Nanoseconds without progress after which a peer counts as dead: the card repeats for 362 ms, and then never again.
pub const WATCHDOG: u64 = 500_000_000;
/// Nanoseconds after which a card no longer repeats unacknowledged packets.
pub const REPEATS: u64 = 400_000_000;
/// Nanoseconds between two looks at the counters that count as silence at most.
pub const GAP: u64 = 10_000_000;
/// Nanoseconds between the question for a peer's Ethernet address and the first post: nothing tells of the answer.
pub const SETTLE: u64 = 10_000_000;
/// Messages of a QP that are taken.
pub const MESSAGES: usize = 64;
/// The distances from the address set for the copies of its network's counters to the addresses where a card writes
/// them: after a READ's last response, or its only one, and after a WRITE's acknowledgement (STOCK-20).
pub const ASTRAY: [u64; 3] = [0x1_ee00_0000, 0x2_0e00_0000, 0x2_2e00_0000];
/// Bytes from there on that they go to, for all address spaces of all vFPGAs.
pub const ASTRAY_BYTES: u64 = 2 << 20;
/// Set in the addresses by which posts name local memory.
pub const LOCAL: u64 = 1 << 47;
/// Inline payloads of a QP that are kept until they are sent: as many as it has posts out.
pub const BOUNCES: u8 = WINDOW;
/// Slots of the tunnel that a QP has ready to be posted, or out.
pub const STAGED: u8 = WINDOW;
/// Slots that are taken from a ring before others have their turn.
pub const TURN: usize = 16;
/// Queue pairs of datagrams of a vFPGA: they take no address space.
pub const DATAGRAM_QPS: usize = 62;
/// Address handles of a vFPGA.
pub const AHS: u16 = 1024;
/// Datagrams that wait on one way through a card: from one sender's vFPGA, or one card, to the next stop.
pub const WAITING: usize = TURN;
/// Datagrams that a vFPGA sends before others have their turn.
pub const DATAGRAM_TURN: usize = 64;
/// Where windows on programs' memory begin, those of the first address space.
pub(crate) const WINDOWS: u64 = 0x1000_0000_0000;
/// Bytes of an address space's, which are used one behind the other: a late packet does not meet a later window.
pub(crate) const WINDOWS_OF_SPACE: u64 = 1 << 38;
/// Pages that windows of a vFPGA may have: half of a TLB of 2,048 entries.
pub const WINDOW_PAGES: u64 = 1024;
/// Those of them that are left to QPs without a window.
pub const WINDOW_PAGES_LEFT: u64 = WINDOW_PAGES / 2;
