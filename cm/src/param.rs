//! Every limit and constant of the connection manager, in one place.

use core::ops::RangeInclusive;
use core::time::Duration;

/// The queue pair of the general services, on which all messages come and go.
pub const QPN: u32 = 1;

/// The Q_Key of that queue pair.
// CM-3
pub const QKEY: u32 = 0x8001_0000;

/// The Q_Key of datagram queue pairs that were found by resolution and asked for no other.
pub const UDP_QKEY: u32 = 0x0123_4567;

/// The one partition key of a RoCE port.
pub const PKEY: u16 = 0xffff;

/// The bits of a partition key that name the partition; the other marks a full member.
pub const PARTITION: u16 = 0x7fff;

/// Hop limit of routes that ask for no other.
pub const HOP_LIMIT: u8 = 64;

/// The default lifetime of a packet: 0.27 s, as with Linux.
pub const PACKET_LIFETIME: u8 = 16;

/// The default time in which either side answers: 4.3 s, as with Linux' RDMA CM.
pub const RESPONSE_TIMEOUT: u8 = 20;

/// The default number of repetitions of a message, as with Linux' RDMA CM.
pub const MAX_CM_RETRIES: u8 = 15;

/// Retries after RNR NAKs that never end.
pub const ENDLESS_RNR_RETRIES: u8 = 7;

/// The code of the time that a peer waits after an RNR NAK: 655 ms, as with Linux.
pub const RNR_TIMER: u8 = 0;

/// The same of a peer that tries for ever: 0.64 ms.
pub const SHORT_RNR_TIMER: u8 = 12;

/// The time for which an MRA of ours asks: 69 s, as with Linux' RDMA CM.
pub const SERVICE_TIMEOUT: u8 = 24;

/// The longest time that is waited because the peer says that it takes so long to answer: 8.6 s.
///
/// With as many repetitions as there are, an unanswered reply ends after three minutes at most.
// CM-51
pub const LONGEST_RESPONSE_TIMEOUT: u8 = 21;

/// The longest time that is waited because the peer says that the way there and back takes it: 2.1 s.
pub const LONGEST_ROUND_TRIP: u8 = 19;

/// The longest time that is waited because of an MRA: 69 s.
pub const LONGEST_SERVICE_TIMEOUT: u8 = 24;

/// The longest time-wait: 17 s.
pub const LONGEST_TIME_WAIT: u8 = 22;

/// The time for which the last answer is kept for a peer that asks again: longer than two repetitions take with
/// the times that Linux has.
pub const LAST_WORD: Duration = Duration::from_secs(15);

/// Timers that are looked at before others have their turn.
pub const TIMER_TURN: usize = 256;

/// Bindings of one port number, by different addresses or because all of them allow it.
pub const BINDINGS_OF_PORT: usize = 1024;

/// Numbers drawn for an identifier, or a port, before it counts as not available.
pub const DRAWS: usize = 64;

/// Questions for presence that are answered in a second, from all askers together.
// CM-53
pub const PRESENCES: u32 = 100;

/// Bytes of a version in the answer.
pub const VERSION_BYTES: usize = 32;

/// The limits of each kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections and resolutions of one owner.
    pub ids_per_owner: usize,
    /// Connections and resolutions of all owners together, of which none has more than it leaves for all others.
    pub ids: usize,
    /// Bound ports of one owner.
    pub bindings_per_owner: usize,
    /// Requests of a listener about which it has not decided.
    pub backlog: usize,
    /// Connections without an owner that are being ended, or whose last word is kept.
    pub lingering: usize,
    /// The ports from which the manager chooses one for a caller that asks for any.
    pub ephemeral_ports: RangeInclusive<u16>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ids_per_owner: 16_384,
            ids: 65_536,
            bindings_per_owner: 16_384,
            backlog: 1024,
            lingering: 16_384,
            ephemeral_ports: 32_768..=60_999,
        }
    }
}

/// The longest time that a code of 5 bits stands for is 4.096 µs times two to the power of this.
const LARGEST_CODE: u8 = 31;

/// The time that a code stands for: 4.096 µs · 2^code.
#[must_use]
pub const fn time(code: u8) -> Duration {
    let code = if code > LARGEST_CODE { LARGEST_CODE } else { code };
    Duration::from_nanos(4096 << code)
}

/// The acknowledgement timeout's code for a path and a peer: an acknowledgement takes two packet
/// lifetimes and the time that the peer needs.
///
/// A code is doubled by adding one, so the larger of the two is taken, and one more where the other
/// comes near it.
// CM-48
#[must_use]
pub const fn ack_timeout(ack_delay: u8, packet_lifetime: u8) -> u8 {
    let way = packet_lifetime.saturating_add(1);
    let (larger, smaller) = if way >= ack_delay { (way, ack_delay) } else { (ack_delay, way) };
    let code = if smaller.saturating_add(1) >= larger { larger.saturating_add(1) } else { larger };
    if code > LARGEST_CODE { LARGEST_CODE } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CM-48.
    #[test]
    fn an_acknowledgement_may_take_the_way_there_and_back_and_the_peers_time() {
        assert_eq!(ack_timeout(0, 16), 17);
        assert_eq!(ack_timeout(15, 16), 17);
        assert_eq!(ack_timeout(16, 16), 18);
        assert_eq!(ack_timeout(17, 16), 18);
        assert_eq!(ack_timeout(18, 16), 19);
        assert_eq!(ack_timeout(25, 16), 25);
        assert_eq!(ack_timeout(31, 31), 31);
        for delay in 0..=31 {
            for lifetime in 0..=29 {
                let least = time(delay).max(time(lifetime) * 2);
                let sum = time(delay) + time(lifetime) * 2;
                let code = ack_timeout(delay, lifetime);
                assert!(time(code) >= least && time(code) * 2 > sum, "{delay} {lifetime}");
            }
        }
    }

    #[test]
    fn codes_stand_for_times() {
        assert_eq!(time(0), Duration::from_nanos(4096));
        assert_eq!(time(20).as_millis(), 4294);
        assert_eq!(time(31), time(255));
    }
}
