//! The two faults that change a frame's bytes.

use super::draw::Draw;
use crate::port::MIN_FRAME;

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const VLAN: [u8; 2] = [0x81, 0x00];

/// Congestion Experienced, in the lower two bits of the traffic class (RFC 3168, section 5).
const CE: u8 = 0b11;

/// Flips one bit behind the Ethernet header; `false` when there is none.
pub(super) fn flip_bit(frame: &mut [u8], draw: Draw) -> bool {
    let Some(body) = frame.get_mut(MIN_FRAME..) else { return false };
    let bit = draw.below((body.len() as u64).saturating_mul(8));
    let Some(byte) = usize::try_from(bit / 8).ok().and_then(|at| body.get_mut(at)) else {
        return false;
    };
    *byte ^= 1 << (bit % 8);
    true
}

/// The unmarked packets that get marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// All of them, even those whose senders do not understand marks.
    Any,
    /// Those whose senders understand marks.
    Capable,
}

impl Marked {
    fn has(self, class: u8) -> bool {
        let field = class & CE;
        field != CE && (self == Self::Any || field != 0)
    }
}

/// Marks an IP packet as having met congestion; `false` when it is none, is marked already, or is not to be.
///
/// An IPv4 header checksum stays as right, or as wrong, as it was.
pub(super) fn mark_congestion(frame: &mut [u8], which: Marked) -> bool {
    match frame {
        [_, _, _, _, _, _, _, _, _, _, _, _, a, b, _, _, c, d, packet @ ..] if [*a, *b] == VLAN => {
            mark_packet([*c, *d], packet, which)
        }
        [_, _, _, _, _, _, _, _, _, _, _, _, a, b, packet @ ..] => {
            mark_packet([*a, *b], packet, which)
        }
        _ => false,
    }
}

fn mark_packet(ethertype: [u8; 2], packet: &mut [u8], which: Marked) -> bool {
    match (ethertype, packet) {
        (IPV4, [version, class, _, _, _, _, _, _, _, _, high, low, ..])
            if *version >> 4 == 4 && which.has(*class) =>
        {
            let before = u16::from_be_bytes([*version, *class]);
            *class |= CE;
            let after = u16::from_be_bytes([*version, *class]);
            let checksum = u16::from_be_bytes([*high, *low]);
            [*high, *low] = adjusted(checksum, before, after).to_be_bytes();
            true
        }
        // The class lies across two bytes; its lower half is the upper half of the second.
        (IPV6, [version, class, ..]) if *version >> 4 == 6 && which.has(*class >> 4) => {
            *class |= CE << 4;
            true
        }
        _ => false,
    }
}

/// The checksum of a header in which one word has changed (RFC 1624, equation 3).
fn adjusted(checksum: u16, before: u16, after: u16) -> u16 {
    let words = [!checksum, !before, after];
    let sum = words.into_iter().fold(0, |sum: u32, word| sum.wrapping_add(word.into()));
    // Three words carry at most 2, which may carry once more.
    let folded = (sum & 0xffff).wrapping_add(sum >> 16);
    let folded = (folded & 0xffff).wrapping_add(folded >> 16);
    !(folded as u16)
}

#[cfg(test)]
mod tests {
    use roce::wire::Malformed;
    use roce::wire::ipv4::Repr;

    use super::*;
    use crate::port::Direction;
    use crate::port::fault::draw::{Decisions, FaultSource};

    /// Random words for one test.
    fn draws() -> impl Iterator<Item = Draw> {
        let decisions =
            Decisions::new(FaultSource { seed: 9, card: 0, layer: 0 }, Direction::Outbound);
        let spec = "corrupt=100%".parse().unwrap();
        (0..).map(move |frame| decisions.about(frame, &spec).flip.unwrap())
    }

    #[test]
    fn exactly_one_bit_flips_anywhere_behind_the_ethernet_header() {
        let mut hit = [0_u32; 24];
        for draw in draws().take(2000) {
            let mut frame = [0x5a; MIN_FRAME + 3];
            assert!(flip_bit(&mut frame, draw));
            let changed: Vec<u8> = frame.iter().map(|byte| byte ^ 0x5a).collect();
            assert_eq!(changed.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            let at = changed.iter().position(|byte| *byte != 0).unwrap();
            assert!(at >= MIN_FRAME, "bit in byte {at}");
            hit[(at - MIN_FRAME) * 8 + changed[at].trailing_zeros() as usize] += 1;
        }
        assert!(hit.iter().all(|hit| *hit > 40), "{hit:?}");
    }

    #[test]
    fn a_frame_that_is_nothing_but_a_header_is_not_corrupted() {
        for length in [0, 1, MIN_FRAME - 1, MIN_FRAME] {
            let mut frame = vec![7; length];
            assert!(!flip_bit(&mut frame, draws().next().unwrap()));
            assert!(!mark_congestion(&mut frame, Marked::Any));
            assert_eq!(frame, vec![7; length]);
        }
    }

    /// A header with a right checksum; the length makes it one or another.
    fn ipv4(class: u8, payload_length: u16) -> Vec<u8> {
        let header = Repr {
            type_of_service: class,
            time_to_live: 64,
            protocol: 17,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            payload_length,
        };
        header.to_bytes().to_vec()
    }

    fn framed(ethertype: &[u8], packet: &[u8]) -> Vec<u8> {
        [&[9; 12], ethertype, packet].concat()
    }

    #[test]
    fn a_marked_ipv4_header_has_a_right_checksum_and_is_else_unchanged() {
        for class in 0..=u8::MAX {
            for length in (0..60_000).step_by(251) {
                let mut frame = framed(&IPV4, &ipv4(class, length));
                assert_eq!(mark_congestion(&mut frame, Marked::Any), class & 3 != 3);
                let expected = framed(&IPV4, &ipv4(class | 3, length));
                assert_eq!(frame, expected, "class {class}, length {length}");
            }
        }
    }

    #[test]
    fn a_wrong_checksum_is_not_made_right_by_a_mark() {
        let mut frame = framed(&IPV4, &ipv4(0, 0));
        frame[MIN_FRAME + 4] ^= 0x10;
        assert!(mark_congestion(&mut frame, Marked::Any));
        let parsed = Repr::parse(&frame[MIN_FRAME..]);
        assert!(matches!(parsed, Err(Malformed::Checksum(_))), "{parsed:?}");
    }

    #[test]
    fn ipv6_and_tagged_packets_are_marked_and_others_are_not() {
        let mut ipv6 = framed(&IPV6, &[0x61, 0x0c, 0xab, 0xcd]);
        assert!(mark_congestion(&mut ipv6, Marked::Any));
        assert_eq!(ipv6[MIN_FRAME..], [0x61, 0x3c, 0xab, 0xcd]);
        assert!(!mark_congestion(&mut ipv6, Marked::Any));

        let mut tagged = framed(&[0x81, 0, 0, 5, 8, 0], &ipv4(2, 7));
        assert!(mark_congestion(&mut tagged, Marked::Any));
        assert_eq!(tagged, framed(&[0x81, 0, 0, 5, 8, 0], &ipv4(3, 7)));

        for (class, is_marked) in [(0, false), (1, true), (2, true), (3, false), (0xfc, false)] {
            let mut frame = framed(&IPV4, &ipv4(class, 7));
            assert_eq!(mark_congestion(&mut frame, Marked::Capable), is_marked, "class {class}");
        }

        let packet = ipv4(0, 7);
        for (ethertype, packet) in [
            (&[8, 6][..], &packet[..]),
            (&IPV6, &packet),
            (&IPV4, &packet[..11]),
            (&IPV4, &[0x60; 20]),
            (&VLAN, &packet),
            (&VLAN, &[]),
        ] {
            let frame = framed(ethertype, packet);
            let mut marked = frame.clone();
            assert!(!mark_congestion(&mut marked, Marked::Any));
            assert_eq!(marked, frame);
        }
    }
}
