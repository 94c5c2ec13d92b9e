//! Epochs: a sender's key for a while, and the initialization vectors under it.

use std::fmt;
use std::time::Duration;

use crate::param::{EPOCH_BITS, EPOCH_PACKETS, PACKET_BITS};

/// The clock and the random numbers that epochs are made of.
pub trait Source: fmt::Debug {
    /// The time since the beginning of 1970.
    fn time(&mut self) -> Duration;

    /// Fills bytes with random numbers that cannot be guessed.
    fn fill(&mut self, bytes: &mut [u8]);
}

/// One epoch of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// Its number: of 40 bits, and higher than those of all epochs before.
    pub(crate) number: u64,
    /// Its security parameters index, which is random. The highest bit is clear: there is one master key.
    pub(crate) spi: u32,
    /// The initialization vector before its first, whose high bits are random.
    base: u64,
    packets: u32,
    /// Packets that it may have.
    most: u32,
}

impl Epoch {
    /// The initialization vector of its next packet; `None` where it has had as many as it may.
    pub(crate) fn next_iv(&mut self) -> Option<u64> {
        self.packets = self.packets.checked_add(1).filter(|number| *number <= self.most)?;
        Some(self.base | u64::from(self.packets))
    }

    /// Passes over so many packets.
    #[cfg(test)]
    pub(crate) fn skip(&mut self, packets: u32) {
        self.packets += packets;
    }
}

/// Makes the epochs of a host, of all its associations together.
#[derive(Debug)]
pub(crate) struct Epochs {
    source: Box<dyn Source>,
    last: u64,
    /// Packets of each.
    packets: u32,
}

impl Epochs {
    pub(crate) const fn new(source: Box<dyn Source>) -> Self {
        Self { source, last: 0, packets: EPOCH_PACKETS }
    }

    /// Has those that begin from now on end after fewer packets.
    pub(crate) fn shorten(&mut self, packets: u32) {
        self.packets = self.packets.min(packets);
    }

    /// An epoch that was never there before; `None` once there are no more numbers, in 2106.
    pub(crate) fn next(&mut self) -> Option<Epoch> {
        let time = self.source.time();
        // In units of 1/256 s.
        let part = u64::from(time.subsec_nanos()) << 8;
        let part = part.checked_div(1_000_000_000).unwrap_or_default();
        let clock = time.as_secs().checked_mul(256)?.checked_add(part)?;
        let number = clock.max(self.last.saturating_add(1));
        (number >> EPOCH_BITS == 0).then_some(())?;
        self.last = number;
        let mut random = [0; 16];
        self.source.fill(&mut random);
        let random = u128::from_ne_bytes(random);
        let spi = (random >> 64) as u32 & i32::MAX as u32;
        let base = (random as u64) >> PACKET_BITS << PACKET_BITS;
        Some(Epoch { number, spi, base, packets: 0, most: self.packets })
    }

    /// Random bytes.
    pub(crate) fn random<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        self.source.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A clock that stands, and numbers that are always the same.
    #[derive(Debug)]
    struct Broken(u64);

    impl Source for Broken {
        fn time(&mut self) -> Duration {
            Duration::from_millis(self.0)
        }

        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.fill(0xff);
        }
    }

    #[test]
    fn an_epoch_ends_before_half_of_all_psns_have_passed() {
        let mut epoch = Epochs::new(Box::new(Broken(0))).next().unwrap();
        let mut last = 0;
        for _ in 0..EPOCH_PACKETS {
            let iv = epoch.next_iv().unwrap();
            assert!(iv > last);
            last = iv;
        }
        assert_eq!(epoch.next_iv(), None);
        assert_eq!(last >> PACKET_BITS, u64::MAX >> PACKET_BITS, "the high bits are random");
    }

    #[test]
    fn numbers_rise_though_the_clock_stands() {
        let mut epochs = Epochs::new(Box::new(Broken(1_500)));
        let numbers: Vec<u64> = (0..100).map(|_| epochs.next().unwrap().number).collect();
        assert_eq!(numbers[0], 384, "1.5 s in units of 1/256 s");
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 100);
        assert!(numbers.is_sorted());
        assert_eq!(epochs.next().unwrap().spi, 0x7fff_ffff, "the highest bit is clear");
    }

    #[test]
    fn there_are_no_epochs_behind_the_last() {
        let last = ((1_u64 << 32) - 1) * 1_000;
        let mut epochs = Epochs::new(Box::new(Broken(last)));
        for _ in 0..256 {
            assert!(epochs.next().is_some());
        }
        assert_eq!(epochs.next(), None);
        assert_eq!(Epochs::new(Box::new(Broken(u64::MAX))).next(), None);
    }
}
