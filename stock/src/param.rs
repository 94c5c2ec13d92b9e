//! Every limit of the published card, in one place.

/// Posts that the command queue of a vFPGA holds.
pub const QUEUE: usize = 32;
/// WRITE and SEND packets of a QP that may be out, and READ requests.
pub const WINDOW: u8 = 16;
/// READ pieces of a vFPGA that may be out.
pub const READ_PIECES: u8 = 8;
/// Bytes of a full packet; a build constant.
pub const PMTU: u32 = 4096;
/// Bytes of a READ request at most.
pub const READ_PIECE: u32 = 32 * 1024;
/// Entries of the tables of QPs, as far as their addresses reach: the build asks for 500.
pub const QPS: u32 = 512;
/// Elements of all retransmission lists together.
pub const ELEMENTS: usize = 2000;
/// Nanoseconds in which the timers of all QPs are looked at once: 500 cycles of 250 MHz.
pub const ROUND: u64 = 500 * 4;
/// Nanoseconds after which a request is repeated for the first [`SHORT_RETRIES`] times.
pub const SHORT_TIMEOUT: u64 = 314 * ROUND;
/// Nanoseconds after which it is repeated later.
pub const LONG_TIMEOUT: u64 = 20_002 * ROUND;
/// Repetitions after the short time.
pub const SHORT_RETRIES: u8 = 3;
/// Repetitions; then there is silence.
pub const RETRIES: u8 = 12;
/// Packets that the first stage of reception lets through while the second one stands.
pub const BEHIND: usize = 2;
/// READ requests of peers that wait for their turn.
pub const READ_JOBS: usize = 8;
/// READ responses that are planned.
pub const READ_ANSWERS: usize = 512;
/// Bytes received that wait for host memory; more of them stop reception.
pub const LANDING: usize = 256 * 64;
/// Payloads that refused READ requests may have taken, or are yet to take; the card's own queues of that are shorter.
pub const ASTRAY: usize = 64;
/// Received frames that wait for the first stage; further ones are lost.
pub const INPUT: usize = 64;
/// Requests that have passed the windows and wait to be sent.
pub const SEND_QUEUE: usize = 16;
/// Selections of payload that wait until it has left, as builds have it by default: where a card loses one that finds no
/// room (STOCK-42).
pub const SELECTIONS: usize = 8;
/// Packets that still leave once the retransmission lists are full.
pub const UNLISTED: usize = 2;
/// Frames that wait until the driver of the model takes them.
pub const OUTPUT: usize = 128;
/// Address spaces, and so QPs, of a vFPGA.
pub const CTIDS: u8 = 64;
