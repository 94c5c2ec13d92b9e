//! A switch's shared buffer: admission, pauses of peers, and marks.
//!
//! Bytes are charged to the port by which they came, and to their priority: first to a reserve, then to the pool that
//! all share, and of priorities with flow control at last to headroom, for frames under way before the pause was
//! heard. A threshold that shrinks with the rest of the pool keeps one port from taking all of it.

use trial::rng::Rng;

use crate::config::Red;
use crate::frame::PRIORITIES;
use crate::time::Time;

/// A port is let go on when so many bytes less than the threshold are its share.
const RESUME_BELOW: u64 = 3 * 1024;

/// Bytes that come after a pause, beside those on the cable: a frame in each direction that was begun, and some.
const HEADROOM_FRAMES: u64 = 2 * 4_300;

/// The shift of a port's limit before it is paused: one part in 2^3 of the rest of the pool.
const LOSSLESS_SHIFT: u32 = 3;

/// The configuration of a switch's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferConfig {
    /// All its bytes.
    pub total: u64,
    /// Bytes that each port has for each priority, however full the pool is.
    pub reserve: u64,
    /// Priorities with flow control, a bit each.
    pub lossless: u8,
    /// The queue lengths at which packets are marked, if any are.
    pub red: Option<Red>,
}

impl Red {
    /// Whether a packet is marked that leaves a queue of so many bytes.
    pub fn marks(&self, bytes: u64, rng: &mut Rng) -> bool {
        if bytes <= self.kmin {
            return false;
        }
        if bytes > self.kmax {
            return true;
        }
        let span = self.kmax - self.kmin;
        rng.below(span * 1_000_000) < (bytes - self.kmin) * u64::from(self.pmax_millionths)
    }
}

/// The bytes charged to a port and a priority.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Bytes of reserve and pool.
    bytes: u64,
    /// Bytes of headroom.
    headroom: u64,
    /// The peer was told to pause.
    paused: bool,
    /// It is told again then.
    refresh_at: Time,
}

/// A switch's buffer.
#[derive(Debug)]
pub struct Buffer {
    config: BufferConfig,
    shares: Vec<[Share; PRIORITIES]>,
    /// Bytes of headroom that each port has for each lossless priority.
    headroom: Vec<u64>,
    /// Bytes that are neither reserve nor headroom.
    pool: u64,
    /// The part of them in use.
    used: u64,
}

impl Buffer {
    /// An empty buffer; `on_the_cable` says how many bytes each port's cable holds. None if reserves and headroom
    /// alone take all of it.
    #[must_use]
    pub fn new(config: BufferConfig, on_the_cable: &[u64]) -> Option<Self> {
        let headroom: Vec<u64> =
            on_the_cable.iter().map(|bytes| 3 * bytes + HEADROOM_FRAMES).collect();
        let lossless = u64::from(config.lossless.count_ones());
        let reserves = config.reserve * (PRIORITIES * headroom.len()) as u64;
        let taken = headroom.iter().sum::<u64>() * lossless + reserves;
        let pool = config.total.checked_sub(taken).filter(|pool| *pool != 0)?;
        let shares = vec![<[Share; PRIORITIES]>::default(); headroom.len()];
        Some(Self { config, shares, headroom, pool, used: 0 })
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &BufferConfig {
        &self.config
    }

    /// Whether a priority has flow control.
    #[must_use]
    pub const fn is_lossless(&self, priority: usize) -> bool {
        self.config.lossless >> priority & 1 == 1
    }

    /// Bytes of the pool that one port and priority may have before it is paused.
    fn threshold(&self) -> u64 {
        (self.pool - self.used) >> LOSSLESS_SHIFT
    }

    fn pooled(&self, share: &Share) -> u64 {
        share.bytes.saturating_sub(self.config.reserve)
    }

    /// Admits a frame that came by `port` and is to wait in an egress queue of `waiting` bytes, or says that it is
    /// dropped.
    pub fn admit(&mut self, port: usize, priority: usize, size: u32, waiting: u64) -> bool {
        let size = u64::from(size);
        let share = self.shares[port][priority];
        let before = self.pooled(&share);
        let more = (share.bytes + size).saturating_sub(self.config.reserve) - before;
        let left = self.pool - self.used;
        if self.is_lossless(priority) {
            if more != 0 && (before + more > self.threshold() || share.headroom != 0) {
                if share.headroom + size > self.headroom[port] {
                    return false;
                }
                self.shares[port][priority].headroom += size;
                return true;
            }
        } else if more != 0 && (more > left || waiting + size > left) {
            return false;
        }
        self.shares[port][priority].bytes += size;
        self.used += more;
        true
    }

    /// A frame that came by `port` has left.
    pub fn release(&mut self, port: usize, priority: usize, size: u32) {
        let size = u64::from(size);
        let share = &mut self.shares[port][priority];
        let from_headroom = share.headroom.min(size);
        share.headroom -= from_headroom;
        let before = share.bytes.saturating_sub(self.config.reserve);
        share.bytes -= size - from_headroom;
        self.used -= before - share.bytes.saturating_sub(self.config.reserve);
    }

    /// Whether the peer of a port is to be paused now, and was not.
    pub fn pauses(&mut self, port: usize, priority: usize) -> bool {
        if !self.is_lossless(priority) {
            return false;
        }
        let share = self.shares[port][priority];
        let over = self.pooled(&share);
        let pauses =
            !share.paused && (share.headroom != 0 || over != 0 && over >= self.threshold());
        self.shares[port][priority].paused |= pauses;
        pauses
    }

    /// Whether the peer of a port may go on now, and was paused.
    pub fn resumes(&mut self, port: usize, priority: usize) -> bool {
        let share = self.shares[port][priority];
        let over = self.pooled(&share);
        let resumes = share.paused
            && share.headroom == 0
            && (over == 0 || over + RESUME_BELOW <= self.threshold());
        self.shares[port][priority].paused &= !resumes;
        resumes
    }

    /// The pause of a port is to be said again then.
    pub fn refresh_at(&mut self, port: usize, priority: usize, at: Time) {
        self.shares[port][priority].refresh_at = at;
    }

    /// Whether now is the time to say the pause of a port again.
    #[must_use]
    pub fn is_to_refresh(&self, port: usize, priority: usize, now: Time) -> bool {
        let share = &self.shares[port][priority];
        share.paused && share.refresh_at == now
    }

    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shares.iter().flatten().map(|share| share.bytes + share.headroom).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(lossless: u8) -> Buffer {
        let config = BufferConfig { total: 1 << 20, reserve: 4096, lossless, red: None };
        Buffer::new(config, &[10_000; 4]).unwrap()
    }

    #[test]
    fn marks_lie_between_the_thresholds() {
        let red = Red { kmin: 100_000, kmax: 200_000, pmax_millionths: 200_000 };
        let mut rng = Rng::new(1);
        let mut share = |bytes| (0..10_000).filter(|_| red.marks(bytes, &mut rng)).count();
        assert_eq!(share(100_000), 0);
        assert_eq!(share(200_001), 10_000);
        assert!((900..1_100).contains(&share(150_000)));
        assert!((1_850..2_150).contains(&share(200_000)));
    }

    #[test]
    fn a_lossless_port_pauses_then_uses_headroom_then_drops_and_goes_on_when_empty() {
        let mut buffer = buffer(1 << 3);
        let mut admitted = 0_u64;
        let mut paused_at = None;
        while buffer.admit(0, 3, 1_000, 0) {
            admitted += 1_000;
            if buffer.pauses(0, 3) {
                paused_at = Some(admitted);
            }
        }
        let paused_at = paused_at.unwrap();
        assert!(
            admitted - paused_at >= 30_000,
            "headroom follows the pause: {admitted} {paused_at}"
        );
        assert_eq!(buffer.bytes(), admitted);
        assert!(!buffer.resumes(0, 3));
        let mut left = admitted;
        while left != 0 && !buffer.resumes(0, 3) {
            buffer.release(0, 3, 1_000);
            left -= 1_000;
        }
        assert!(left != 0 && left < paused_at);
    }

    #[test]
    fn what_is_charged_is_released() {
        let mut buffer = buffer(1 << 3);
        let mut rng = Rng::new(7);
        let mut held = Vec::new();
        for _ in 0..20_000 {
            let (port, priority) = (rng.below(4) as usize, rng.below(8) as usize);
            let size = rng.between(64, 4_200) as u32;
            if rng.chance(6_000) && buffer.admit(port, priority, size, 0) {
                held.push((port, priority, size));
            } else if !held.is_empty() {
                let (port, priority, size) =
                    held.swap_remove(rng.below(held.len() as u64) as usize);
                buffer.release(port, priority, size);
            }
            let sum: u64 = held.iter().map(|(_, _, size)| u64::from(*size)).sum();
            assert_eq!(buffer.bytes(), sum);
            assert!(sum <= 1 << 20);
        }
        for (port, priority, size) in held {
            buffer.release(port, priority, size);
        }
        assert_eq!((buffer.bytes(), buffer.used), (0, 0));
    }

    #[test]
    fn a_lossy_queue_drops_when_it_is_as_long_as_what_is_left() {
        let mut buffer = buffer(0);
        let mut waiting = 0;
        while buffer.admit(1, 0, 1_000, waiting) {
            waiting += 1_000;
        }
        let half = buffer.pool / 2;
        assert!(waiting.abs_diff(half) < 5_000, "{waiting} of {half}");
    }

    #[test]
    fn a_buffer_that_headroom_fills_is_none() {
        let config = BufferConfig { total: 100_000, reserve: 4096, lossless: 8, red: None };
        assert!(Buffer::new(config, &[10_000; 4]).is_none());
    }
}
