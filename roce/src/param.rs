//! Every limit and constant of the transport, in one place.

use core::time::Duration;

/// The UDP destination port of RoCE v2.
pub const ROCE_UDP_PORT: u16 = 4791;

/// The first UDP source port used; the flow hash of a QP is added (annex A17 wants the dynamic
/// port range).
pub const UDP_SOURCE_PORT_BASE: u16 = 0xc000;

/// The one partition key of the port: full member of the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The number of partition keys in the port's table.
pub const PKEY_TABLE_LENGTH: u16 = 1;

/// The number of source GIDs that a port can have.
pub const GID_TABLE_LENGTH: usize = 16;

/// The largest message, in bytes.
// RC-23
pub const MAX_MESSAGE_LENGTH: u32 = 1 << 31;

/// The number of messages that one QP's send ring holds.
pub const SEND_RING: usize = 1024;

/// Messages that a send ring keeps room for, once it had it (see [`crate::Stack::narrow`]).
pub const KEPT_MESSAGES: usize = 32;

/// Packets of SEND and WRITE that may be unacknowledged at a time, per QP; a READ counts as one.
///
/// Far below 2^22, so that old and new PSNs are never confused; large enough to cover a burst
/// between two rounds of a busy caller.
pub const WINDOW_PACKETS: u64 = 1024;

/// Packets that may be unacknowledged at first; as many more as are acknowledged from then on, up to
/// [`WINDOW_PACKETS`].
///
/// If the first of them is lost, no round trip is measured before all of them were sent again, and
/// without one nothing but the acknowledgement timeout helps.
pub const FIRST_WINDOW_PACKETS: u64 = 128;

/// Packets that may be unacknowledged after a loss, at most; then as [`FIRST_WINDOW_PACKETS`].
///
/// Packets behind a lost one are sent in vain (go-back-N), and a path that lost one will lose more. While a
/// lost NAK, or a packet lost again, goes unnoticed, the whole window is sent in vain.
pub const LOSS_WINDOW_PACKETS: u64 = 32;

/// Packets that may be unacknowledged behind an RNR NAK until they grow by one for each window that was
/// acknowledged, at least; before they double.
///
/// Packets behind one that found no receive request are sent in vain, and without credits more will find none. As
/// many in one go as keep the cost of a turn small.
pub const RNR_WINDOW_PACKETS: u64 = 16;

/// The largest distance between the oldest unacknowledged and the next PSN, READ responses
/// included (specification: fewer than 2^23).
pub const MAX_PSN_SPAN: u64 = 1 << 22;

/// The largest number of packets that one READ request asks for; a longer READ is split into
/// several requests at multiples of this number.
pub const READ_REQUEST_PACKETS: u64 = 1 << 20;

/// A SEND or WRITE packet asks for an acknowledgement at least this often, in packets.
pub const ACK_INTERVAL_PACKETS: u32 = 64;

/// The same in time, where the congestion window lets packets go one after another: far below acknowledgement timeouts.
pub const PACED_ACK_INTERVAL: Duration = Duration::from_micros(100);

/// Runs of acknowledgements that one QP may owe at a time (`owed.rs`).
///
/// A run is two acknowledgements at least, or the last one. So all packets of a window of
/// [`WINDOW_PACKETS`] find room, in any pattern of requests for acknowledgements.
pub const OWED_RUNS: usize = WINDOW_PACKETS as usize / 2;

/// Runs whose memory a QP keeps when it owes nothing.
pub const OWED_RUNS_KEPT: usize = 8;

/// Round-trip times without progress after which the requester asks how far the peer has come.
pub const PROBE_ROUND_TRIPS: u64 = 4;

/// The shortest time without progress after which the requester asks.
pub const PROBE_FLOOR: Duration = Duration::from_micros(100);

/// A packet whose time the congestion window has said may leave so much later, without the next ones being any later.
pub const PACED_LATENESS: Duration = Duration::from_micros(20);

/// The lowest rate that a queue pair can be held to, in kb/s: a packet of 4096 bytes takes 33 ms, a half of the usual
/// acknowledgement timeout.
pub const LEAST_RATE: u32 = 1_000;

/// The highest, which is the port's, in kb/s.
pub const MOST_RATE: u32 = 100_000_000;

/// A notification of congestion may be heard so much later than it came.
pub const CNP_LATENESS: Duration = Duration::from_micros(100);

/// A timer that fires so much after its time was kept from firing: its card did not run.
pub const LATE_TIMER: Duration = Duration::from_micros(200);

/// Outstanding READs that a QP may start (`max_rd_atomic`) and serve (`max_dest_rd_atomic`).
pub const MAX_RD_ATOMIC: u8 = 16;

/// Frames that one QP may emit before the next ready QP has its turn.
pub const TRANSMIT_QUANTUM: u32 = 16;

/// Timers of QPs that are looked at before others have their turn.
pub const TIMER_TURN: usize = 256;

/// Places that a table has at most for each of the entries that it grew with: meanwhile it has those that it
/// leaves, too. Of many that end, those that stay behind share the places until the table shrinks.
pub const TABLE_PLACES: usize = 4;

/// Queue pairs per port.
pub const MAX_QPS: usize = 1 << 20;

/// Address handles per port.
pub const MAX_AHS: usize = 1 << 20;

/// Multicast groups per port that queue pairs are in.
pub const MAX_GROUPS: usize = 4096;

/// Queue pairs of a port in one multicast group: so often is a datagram copied at most.
pub const MAX_GROUP_MEMBERS: usize = 64;

/// Reports that tell of the first member of a group, or of its last: one may be lost.
pub const REPORTS_OF_CHANGE: u8 = 2;

/// The time between them.
pub const REPEAT_INTERVAL: Duration = Duration::from_millis(500);

/// The shortest time between two reports of members of groups, each of many groups.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(10);

/// ARP and ICMP frames waiting for transmission; more answers are dropped and counted, more requests
/// wait.
pub const CONTROL_QUEUE: usize = 64;

/// The largest ICMP message that is answered, in bytes.
pub const MAX_ICMP_LENGTH: usize = 4096;

/// The time to the second ARP request; it doubles with each request.
pub const ARP_FIRST_INTERVAL: Duration = Duration::from_millis(1);

/// ARP requests without answer after which a neighbour counts as silent. Until then the QPs that
/// wait for it use up no retries, for a lost ARP frame is no fault of theirs.
pub const ARP_PATIENCE: u32 = 6;

/// The longest time between two ARP requests for an address that QPs wait for.
pub const ARP_LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// The mean time between two ARP requests of one client's that are not answered.
pub const ARP_REQUEST_INTERVAL: Duration = Duration::from_millis(1);

/// ARP requests that a client may have unanswered before that time tells.
pub const ARP_REQUEST_BURST: u32 = 64;

/// The shortest time that a QP with a packet to send waits for a neighbour before it looks again, until the neighbour
/// counts as silent.
pub const ARP_WAIT: Duration = Duration::from_millis(100);

/// The shortest time between two ARP requests that check a known neighbour again, after a QP's
/// acknowledgement timeout.
pub const ARP_PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How long datagrams wait for the Ethernet address of an address handle that was just made.
pub const DATAGRAM_PATIENCE: Duration = Duration::from_millis(100);

/// The shortest time between two ARP requests that check the neighbour of an address handle in use: no
/// acknowledgement tells that it has moved.
pub const DATAGRAM_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The hop limit for paths that name none (0).
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// The largest value of the `timeout` attribute.
pub const MAX_TIMEOUT: u8 = 31;

/// The largest value of `retry_cnt` and `rnr_retry`.
pub const MAX_RETRY: u8 = 7;

/// The value of `rnr_retry` that means "for ever".
pub const RNR_RETRY_INFINITE: u8 = 7;

/// The largest RNR timer code.
pub const MAX_RNR_TIMER: u8 = 31;

/// The transport timer's unit: 4.096 µs.
const ACK_TIMEOUT_UNIT_NANOS: u64 = 4096;

/// The acknowledgement timeout of a `timeout` attribute: 4.096 µs · 2^code, `None` for code 0.
#[must_use]
pub const fn ack_timeout(code: u8) -> Option<Duration> {
    match code {
        // RC-73
        0 => None,
        code => {
            let code = if code > MAX_TIMEOUT { MAX_TIMEOUT } else { code };
            Some(Duration::from_nanos(ACK_TIMEOUT_UNIT_NANOS << code))
        }
    }
}

/// The waiting time of an RNR NAK timer code (the low five bits of `code`).
#[must_use]
pub fn rnr_timeout(code: u8) -> Duration {
    // RC-63
    Duration::from_micros(fpga_regs::engine::qp::rnr_timeout_micros(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-73.
    #[test]
    fn ack_timeouts_follow_the_specification() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }

    /// RC-63.
    #[test]
    fn rnr_timeouts_follow_the_specification() {
        assert_eq!(rnr_timeout(0), Duration::from_micros(655_360));
        assert_eq!(rnr_timeout(1), Duration::from_micros(10));
        assert_eq!(rnr_timeout(12), Duration::from_micros(640));
        assert_eq!(rnr_timeout(31), Duration::from_micros(491_520));
        for code in 2..=31 {
            assert!(rnr_timeout(code) > rnr_timeout(code - 1));
        }
    }
}
