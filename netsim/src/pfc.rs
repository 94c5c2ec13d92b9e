//! Priority flow control: the frames by which a port has its peer stop (IEEE 802.1Q, clause 36; 802.3, annex 31D).

use crate::frame::{Frame, PRIORITIES};

/// The address of the port at the other end of a cable, to which no switch forwards.
const DESTINATION: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x01];

/// MAC control, and the operation "PFC pause".
const KIND: [u8; 4] = [0x88, 0x08, 0x01, 0x01];

/// Bytes without check sequence.
const LENGTH: usize = 60;

/// Bits of a quantum, the unit of pauses.
const QUANTUM_BITS: u64 = 512;

/// Picoseconds in a second.
const SECOND: u64 = 1_000_000_000_000;

/// The longest pause that can be said, in quanta.
pub const LONGEST: u16 = 0xffff;

/// A frame that pauses one priority for so many quanta; 0 lets it go on.
#[must_use]
pub fn frame(priority: u8, quanta: u16) -> Frame {
    let mut bytes = [0; LENGTH];
    bytes[..6].copy_from_slice(&DESTINATION);
    bytes[6..12].copy_from_slice(&[2, 1, 0, 0, 0, 0]);
    bytes[12..16].copy_from_slice(&KIND);
    bytes[17] = 1 << priority;
    let at = 18 + 2 * usize::from(priority);
    bytes[at..at + 2].copy_from_slice(&quanta.to_be_bytes());
    Frame::new(&bytes, LENGTH)
}

/// The quanta for which a pause frame stops each priority; `None` if the frame is none.
#[must_use]
pub fn parse(frame: &Frame) -> Option<[Option<u16>; PRIORITIES]> {
    let bytes = frame.header();
    if bytes.len() < LENGTH || bytes[..6] != DESTINATION || bytes[12..16] != KIND {
        return None;
    }
    Some(std::array::from_fn(|priority| {
        let at = 18 + 2 * priority;
        (bytes[17] >> priority & 1 == 1).then(|| u16::from_be_bytes([bytes[at], bytes[at + 1]]))
    }))
}

/// The picoseconds of so many quanta at a rate in bits per second.
#[must_use]
pub fn duration(quanta: u16, rate: u64) -> u64 {
    (u128::from(quanta) * u128::from(QUANTUM_BITS) * u128::from(SECOND) / u128::from(rate)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_64_bytes_and_says_priority_and_quanta() {
        let pause = frame(3, 0x1234);
        assert_eq!(pause.size(), 64);
        assert_eq!(
            pause.header()[..20],
            *b"\x01\x80\xc2\0\0\x01\x02\x01\0\0\0\0\x88\x08\x01\x01\0\x08\0\0"
        );
        let mut said = [None; 8];
        said[3] = Some(0x1234);
        assert_eq!(parse(&pause), Some(said));
        assert_eq!(pause.destination, Frame::NOWHERE);
        assert_eq!(parse(&Frame::new(&[0; 60], 60)), None);
    }

    #[test]
    fn a_quantum_is_512_bit_times() {
        assert_eq!(duration(1, 100_000_000_000), 5_120);
        assert_eq!(duration(LONGEST, 100_000_000_000), 335_539_200);
    }
}
