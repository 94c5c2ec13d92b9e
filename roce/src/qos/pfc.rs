//! Priority flow control: the frames by which a port has its peer stop (IEEE 802.1Q, clause 36; 802.3, annex 31D).

use crate::priority::{PRIORITIES, bit};
use crate::types::MacAddr;

/// The address of the port at the other end of a cable, to which no switch forwards.
pub const DESTINATION: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x01]);

/// MAC control, and the operation "PFC pause".
const KIND: [u8; 4] = [0x88, 0x08, 0x01, 0x01];

/// Bytes without check sequence.
pub const LENGTH: usize = 60;

/// Bits of a quantum, the unit of pauses.
const QUANTUM_BITS: u64 = 512;

/// The longest pause that can be said, in quanta.
pub const LONGEST: u16 = 0xffff;

/// The pause that a frame says for each priority, in quanta; 0 lets it go on.
pub type Said = [Option<u16>; PRIORITIES];

/// A frame that pauses one priority for so many quanta; 0 lets it go on.
#[must_use]
pub fn frame(source: MacAddr, priority: u8, quanta: u16) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let pair = usize::from(priority).saturating_mul(2);
    let fields: [(usize, &[u8]); 5] = [
        (0, &DESTINATION.0),
        (6, &source.0),
        (12, &KIND),
        // The lower byte of the vector of priorities.
        (17, &[bit(priority)]),
        (18_usize.saturating_add(pair), &quanta.to_be_bytes()),
    ];
    for (at, field) in fields {
        let place = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..field.len()));
        place.into_iter().for_each(|place| place.copy_from_slice(field));
    }
    bytes
}

/// The pauses that a frame says; `None` if it is no pause frame.
#[must_use]
pub fn parse(frame: &[u8]) -> Option<Said> {
    let (destination, rest) = frame.split_first_chunk::<6>()?;
    if *destination != DESTINATION.0 || frame.len() < LENGTH {
        return None;
    }
    let (_source, rest) = rest.split_first_chunk::<6>()?;
    let (kind, rest) = rest.split_first_chunk::<4>()?;
    let ([_, vector], rest) = rest.split_first_chunk::<2>()?;
    let mut times = rest.chunks_exact(2);
    let mut said = [None; PRIORITIES];
    for (priority, said) in (0..).zip(&mut said) {
        let [high, low] = *times.next()?.first_chunk::<2>()?;
        *said = (vector & bit(priority) != 0).then(|| u16::from_be_bytes([high, low]));
    }
    (*kind == KIND).then_some(said)
}

/// How long so many quanta are at a rate in bits per second, in a clock's units, of which a second has so many.
#[must_use]
pub fn duration(quanta: u16, rate: u64, second: u64) -> u64 {
    let bits = u128::from(u64::from(quanta).saturating_mul(QUANTUM_BITS));
    let time = bits.saturating_mul(second.into()).checked_div(rate.into());
    u64::try_from(time.unwrap_or_default()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: MacAddr = MacAddr([2, 1, 0, 0, 0, 0]);

    #[test]
    fn a_pause_says_priority_and_quanta_and_is_as_long_as_the_shortest_frame() {
        let pause = frame(SOURCE, 3, 0x1234);
        assert_eq!(
            pause[..26],
            *b"\x01\x80\xc2\0\0\x01\x02\x01\0\0\0\0\x88\x08\x01\x01\0\x08\0\0\0\0\0\0\x12\x34"
        );
        assert!(pause[26..].iter().all(|byte| *byte == 0));
        let mut said = [None; 8];
        said[3] = Some(0x1234);
        assert_eq!(parse(&pause), Some(said));
    }

    #[test]
    fn a_frame_may_say_it_of_all_priorities() {
        let mut bytes = frame(SOURCE, 0, 0);
        bytes[17] = 0xff;
        (0..8).for_each(|priority| bytes[19 + 2 * priority] = priority as u8);
        let said = parse(&bytes).unwrap();
        assert!(said.iter().zip(0..).all(|(said, quanta)| *said == Some(quanta)));
    }

    #[test]
    fn what_is_no_pause_is_none() {
        let pause = frame(SOURCE, 3, 1);
        assert!(parse(&pause[..59]).is_none() && parse(&[]).is_none());
        for at in [0, 5, 12, 15] {
            let mut other = pause;
            other[at] ^= 1;
            assert_eq!(parse(&other), None, "byte {at}");
        }
        // The pause of a whole port, of which no priority is told.
        let mut whole = pause;
        whole[15] = 0;
        assert_eq!(parse(&whole), None);
    }

    #[test]
    fn a_quantum_is_512_bit_times() {
        let second = 1_000_000_000_000;
        assert_eq!(duration(1, 100_000_000_000, second), 5_120);
        assert_eq!(duration(LONGEST, 100_000_000_000, second), 335_539_200);
        assert_eq!(duration(LONGEST, 0, second), 0);
    }
}
