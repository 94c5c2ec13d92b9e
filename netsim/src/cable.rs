//! Faults of a cable beside its delay, each direction for itself.

use trial::rng::Rng;

use crate::config::Faults;
use crate::frame::Frame;
use crate::time::Time;

/// The fate of a frame on its way.
#[derive(Debug)]
pub struct Carried {
    /// When it arrives, if it does.
    pub arrives: Option<Time>,
    /// A second one, and when that arrives.
    pub copy: Option<(Time, Frame)>,
}

/// Counts of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// Frames that did not arrive.
    pub lost: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that came later than those behind them.
    pub reordered: u64,
    /// Frames that arrived with another bit.
    pub corrupted: u64,
    /// Frames marked "congestion experienced".
    pub marked: u64,
}

impl Faults {
    /// Decides the fate of a frame that would arrive at `at`. `last` is when the one in order before it does.
    pub fn carry(
        &self,
        rng: &mut Rng,
        at: Time,
        last: &mut Time,
        frame: &mut Frame,
        tally: &mut FaultTally,
    ) -> Carried {
        if rng.chance(self.loss) {
            tally.lost += 1;
            return Carried { arrives: None, copy: None };
        }
        // A mark makes a new header checksum, which must not cover up earlier damage.
        if frame.flipped.is_none() && rng.chance(self.marking) && frame.mark() {
            tally.marked += 1;
        }
        let jitter = if self.jitter == 0 { 0 } else { rng.below(self.jitter + 1) };
        let mut arrives = at.after(jitter).max(*last);
        if rng.chance(self.reordering) {
            tally.reordered += 1;
            arrives = arrives.after(1 + rng.below(self.reorder_delay.max(1)));
        } else {
            *last = arrives;
        }
        let mut copy = rng.chance(self.duplication).then(|| {
            tally.duplicated += 1;
            (arrives.after(rng.below(self.reorder_delay + 1)), frame.clone())
        });
        let mut arrives = Some(arrives);
        if !self.leave_whole(rng, frame, tally) {
            arrives = None;
        }
        if let Some((_, second)) = &mut copy {
            if !self.leave_whole(rng, second, tally) {
                copy = None;
            }
        }
        Carried { arrives, copy }
    }

    /// Flips a bit of some frames. Says whether the frame arrives.
    ///
    /// Ethernet's own check would have caught damage on the cable; undetected damage happens inside a switch, to
    /// frames that the invariant CRC protects. ARP has no such protection. No frame is damaged twice, so that its
    /// fate can be predicted.
    fn leave_whole(&self, rng: &mut Rng, frame: &mut Frame, tally: &mut FaultTally) -> bool {
        if frame.is_arp() || frame.flipped.is_some() || !rng.chance(self.corruption) {
            return true;
        }
        if !frame.is_whole() {
            tally.lost += 1;
            return false;
        }
        tally.corrupted += 1;
        frame.flip(rng.below(u64::from(frame.length) * 8) as u16);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of IPv4 that may be marked, of so many bytes that are all there.
    fn frame(length: usize) -> Frame {
        let mut bytes = vec![2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 2];
        bytes.resize(length, 0);
        Frame::new(&bytes, length)
    }

    /// The arrivals of 10,000 frames, sent one each 100 ps, in the order of their sending.
    fn arrivals(faults: &Faults, frame: &Frame) -> (Vec<Option<Time>>, FaultTally) {
        let (mut rng, mut last, mut tally) = (Rng::new(1), Time(0), FaultTally::default());
        let arrivals = (0..10_000).map(|number| {
            let at = Time(number * 100);
            faults.carry(&mut rng, at, &mut last, &mut frame.clone(), &mut tally).arrives
        });
        (arrivals.collect(), tally)
    }

    fn in_order(arrivals: &[Option<Time>]) -> bool {
        arrivals.iter().flatten().is_sorted()
    }

    #[test]
    fn each_fault_is_as_frequent_as_it_is_to_be_and_nothing_else_happens() {
        let about_300 = |count: u64| (200..400).contains(&count);
        let loss = Faults { loss: 300, ..Faults::NONE };
        let (times, tally) = arrivals(&loss, &frame(100));
        assert!(about_300(tally.lost) && in_order(&times));
        assert_eq!(times.iter().filter(|time| time.is_none()).count() as u64, tally.lost);
        assert_eq!(FaultTally { lost: 0, ..tally }, FaultTally::default());
        let reordering = Faults { reordering: 300, ..Faults::NONE };
        let (times, tally) = arrivals(&reordering, &frame(100));
        assert!(about_300(tally.reordered) && !in_order(&times));
        assert_eq!(FaultTally { reordered: 0, ..tally }, FaultTally::default());
        let duplication = Faults { duplication: 300, ..Faults::NONE };
        let (times, tally) = arrivals(&duplication, &frame(100));
        assert!(about_300(tally.duplicated) && in_order(&times));
        let marking = Faults { marking: 300, ..Faults::NONE };
        assert!(about_300(arrivals(&marking, &frame(100)).1.marked));
        let jitter = Faults { jitter: 5_000, ..Faults::NONE };
        let (times, tally) = arrivals(&jitter, &frame(100));
        assert!(in_order(&times) && tally == FaultTally::default());
        assert!(times[9_000].unwrap() > Time(9_000 * 100));
        assert!(!Faults::NONE.are_some() && jitter.are_some());
    }

    #[test]
    fn a_bit_of_a_frame_flips_once_and_one_without_bytes_is_lost() {
        let faults = Faults { corruption: 10_000, ..Faults::NONE };
        let (mut rng, mut last, mut tally) = (Rng::new(1), Time(0), FaultTally::default());
        let (whole, mut buffer) = (frame(200), Vec::new());
        let before = whole.write(&mut buffer).to_vec();
        for _ in 0..100 {
            let mut spoilt = whole.clone();
            for _ in 0..2 {
                faults.carry(&mut rng, Time(0), &mut last, &mut spoilt, &mut tally);
            }
            let bit = usize::from(spoilt.flipped.unwrap());
            let mut after = spoilt.write(&mut buffer).to_vec();
            assert_ne!(before, after);
            after[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(before, after);
        }
        assert_eq!(tally, FaultTally { corrupted: 100, ..FaultTally::default() });
        let headers = Frame::new(&before[..60], 1_000);
        assert!(arrivals(&faults, &headers).0.iter().all(Option::is_none));
    }
}
