//! A switch's shared buffer: admission, and pauses of peers.
//!
//! Bytes are charged to the port by which they came, and to their priority: first to a reserve, then to the pool that
//! all share, and of priorities with flow control at last to headroom, for frames under way before the pause was
//! heard. A threshold that shrinks with the rest of the pool keeps one port from taking all of it.

use crate::priority::{PRIORITIES, bit};

/// A port is let go on when so many bytes less than the threshold are its share.
const RESUME_BELOW: u64 = 3 * 1024;

/// Bytes that come after a pause, beside those on the cable: a frame in each direction that was begun, and some.
const HEADROOM_FRAMES: u64 = 2 * 4_300;

/// The shift of a port's limit before it is paused: one part in 2^3 of the rest of the pool.
const LOSSLESS_SHIFT: u32 = 3;

/// The configuration of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferConfig {
    /// All its bytes.
    pub total: u64,
    /// Bytes that each port has for each priority, however full the pool is.
    pub reserve: u64,
    /// Priorities with flow control, a bit each.
    pub lossless: u8,
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
    /// The peer is told again then.
    refresh_at: u64,
}

/// A buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    config: BufferConfig,
    shares: Vec<[Share; PRIORITIES]>,
    /// Bytes of headroom that each port has for each lossless priority.
    headroom: Vec<u64>,
    /// Bytes that are neither reserve nor headroom.
    pool: u64,
    /// The part of them in use.
    used: u64,
    /// Ports and priorities that were told to pause.
    paused: usize,
}

impl Buffer {
    /// An empty buffer; `on_the_cable` says how many bytes each port's cable holds. None if reserves and headroom
    /// alone take all of it.
    #[must_use]
    pub fn new(config: BufferConfig, on_the_cable: &[u64]) -> Option<Self> {
        let room = |bytes: &u64| bytes.saturating_mul(3).saturating_add(HEADROOM_FRAMES);
        let headroom: Vec<u64> = on_the_cable.iter().map(room).collect();
        let lossless = u64::from(config.lossless.count_ones());
        let shares = PRIORITIES.saturating_mul(headroom.len()) as u64;
        let reserves = config.reserve.saturating_mul(shares);
        let all = headroom.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let taken = all.saturating_mul(lossless).saturating_add(reserves);
        let pool = config.total.checked_sub(taken).filter(|pool| *pool != 0)?;
        let shares = vec![<[Share; PRIORITIES]>::default(); headroom.len()];
        Some(Self { config, shares, headroom, pool, used: 0, paused: 0 })
    }

    /// Whether a priority has flow control.
    #[must_use]
    pub const fn is_lossless(&self, priority: u8) -> bool {
        self.config.lossless & bit(priority) != 0
    }

    fn share(&self, port: usize, priority: u8) -> Share {
        let share = self.shares.get(port).and_then(|port| port.get(usize::from(priority)));
        share.copied().unwrap_or_default()
    }

    /// Changes a share, if it is one.
    fn put(&mut self, port: usize, priority: u8, share: Share) {
        let place = self.shares.get_mut(port).and_then(|it| it.get_mut(usize::from(priority)));
        place.into_iter().for_each(|place| *place = share);
    }

    /// Bytes of the pool that one port and priority may have before it is paused.
    const fn threshold(&self) -> u64 {
        self.left() >> LOSSLESS_SHIFT
    }

    /// Free bytes of the pool.
    const fn left(&self) -> u64 {
        self.pool.saturating_sub(self.used)
    }

    const fn pooled(&self, share: &Share) -> u64 {
        share.bytes.saturating_sub(self.config.reserve)
    }

    /// Admits a frame that came by `port` and is to wait in an egress queue of `waiting` bytes, or says that it is
    /// dropped.
    pub fn admit(&mut self, port: usize, priority: u8, size: u32, waiting: u64) -> bool {
        let size = u64::from(size);
        let mut share = self.share(port, priority);
        let before = self.pooled(&share);
        let bytes = share.bytes.saturating_add(size);
        let after = bytes.saturating_sub(self.config.reserve);
        let more = after.saturating_sub(before);
        if more == 0 {
        } else if self.is_lossless(priority) {
            if after > self.threshold() || share.headroom != 0 {
                share.headroom = share.headroom.saturating_add(size);
                let fits = self.headroom.get(port).is_some_and(|most| share.headroom <= *most);
                if fits {
                    self.put(port, priority, share);
                }
                return fits;
            }
        } else if more > self.left() || waiting.saturating_add(size) > self.left() {
            return false;
        }
        share.bytes = bytes;
        self.used = self.used.saturating_add(more);
        self.put(port, priority, share);
        true
    }

    /// A frame that came by `port` has left.
    pub fn release(&mut self, port: usize, priority: u8, size: u32) {
        let size = u64::from(size);
        let mut share = self.share(port, priority);
        let from_headroom = share.headroom.min(size);
        share.headroom = share.headroom.saturating_sub(from_headroom);
        let before = self.pooled(&share);
        share.bytes = share.bytes.saturating_sub(size.saturating_sub(from_headroom));
        let less = before.saturating_sub(self.pooled(&share));
        self.used = self.used.saturating_sub(less);
        self.put(port, priority, share);
    }

    /// Whether the peer of a port is to be paused now, and was not.
    pub fn pauses(&mut self, port: usize, priority: u8) -> bool {
        if !self.is_lossless(priority) {
            return false;
        }
        let mut share = self.share(port, priority);
        let over = self.pooled(&share);
        let pauses =
            !share.paused && (share.headroom != 0 || over != 0 && over >= self.threshold());
        if pauses {
            share.paused = true;
            self.paused = self.paused.saturating_add(1);
            self.put(port, priority, share);
        }
        pauses
    }

    /// Whether the peer of a port may go on now, and was paused.
    pub fn resumes(&mut self, port: usize, priority: u8) -> bool {
        if self.paused == 0 {
            return false;
        }
        let mut share = self.share(port, priority);
        let over = self.pooled(&share);
        let resumes = share.paused
            && share.headroom == 0
            && (over == 0 || over.saturating_add(RESUME_BELOW) <= self.threshold());
        if resumes {
            share.paused = false;
            self.paused = self.paused.saturating_sub(1);
            self.put(port, priority, share);
        }
        resumes
    }

    /// The pause of a port is to be said again then.
    pub fn refresh_at(&mut self, port: usize, priority: u8, at: u64) {
        let share = Share { refresh_at: at, ..self.share(port, priority) };
        self.put(port, priority, share);
    }

    /// Whether now is the time to say the pause of a port again.
    #[must_use]
    pub fn is_to_refresh(&self, port: usize, priority: u8, now: u64) -> bool {
        let share = self.share(port, priority);
        share.paused && share.refresh_at == now
    }

    /// The ports and priorities that were told to pause, each with the time when it is to be said again.
    pub fn paused(&self) -> impl Iterator<Item = (usize, u8, u64)> + '_ {
        // Hardly ever any.
        let ports = self.shares.iter().filter(|_| self.paused != 0).enumerate();
        let all = ports.flat_map(|(port, shares)| (0..).zip(shares).map(move |it| (port, it)));
        all.filter(|(_, (_, share))| share.paused)
            .map(|(port, (priority, share))| (port, priority, share.refresh_at))
    }

    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = |share: &Share| share.bytes.saturating_add(share.headroom);
        self.shares.iter().flatten().map(bytes).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use trial::rng::Rng;

    use super::*;

    fn buffer(lossless: u8) -> Buffer {
        let config = BufferConfig { total: 1 << 20, reserve: 4096, lossless };
        Buffer::new(config, &[10_000; 4]).unwrap()
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
                buffer.refresh_at(0, 3, 77);
            }
        }
        let paused_at = paused_at.unwrap();
        assert!(
            admitted - paused_at >= 30_000,
            "headroom follows the pause: {admitted} {paused_at}"
        );
        assert_eq!(buffer.bytes(), admitted);
        assert!(!buffer.resumes(0, 3));
        assert_eq!(buffer.paused().collect::<Vec<_>>(), [(0, 3, 77)]);
        assert!(buffer.is_to_refresh(0, 3, 77) && !buffer.is_to_refresh(0, 3, 78));
        let mut left = admitted;
        while left != 0 && !buffer.resumes(0, 3) {
            buffer.release(0, 3, 1_000);
            left -= 1_000;
        }
        assert!(left != 0 && left < paused_at);
        assert_eq!(buffer.paused().count(), 0);
    }

    #[test]
    fn what_is_charged_is_released() {
        let mut buffer = buffer(1 << 3);
        let mut rng = Rng::new(7);
        let mut held = Vec::new();
        for _ in 0..20_000 {
            let (port, priority) = (rng.below(4) as usize, rng.below(8) as u8);
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
        let config = BufferConfig { total: 100_000, reserve: 4096, lossless: 8 };
        assert!(Buffer::new(config, &[10_000; 4]).is_none());
    }

    #[test]
    fn a_port_that_is_none_gets_nothing_of_what_has_flow_control() {
        let mut buffer = buffer(1 << 3);
        assert!(!buffer.admit(9, 3, 1 << 19, 0));
        buffer.release(9, 3, 1_000);
        assert_eq!((buffer.bytes(), buffer.used), (0, 0));
    }
}
