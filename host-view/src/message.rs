//! Netlink messages: made, and taken apart without trusting a length.
//!
//! All numbers are in host order. A message is a header of 16 bytes, a body of a shape that its kind
//! gives, and attributes: length (u16, with its own four bytes), kind (u16), value, padded to four
//! bytes. (Linux, `include/uapi/linux/netlink.h`.)

/// Bytes of a message's header.
const HEADER: usize = 16;
/// Bytes of an attribute's header.
const ATTRIBUTE: usize = 4;
/// The bits of an attribute's kind that say how its value is to be taken.
const KIND_FLAGS: u16 = 0xc000;

/// A message that is being made.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of a kind, with a body of the shape that the kind wants.
    #[must_use]
    pub fn new(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Self {
        // To the kernel, which numbers us itself.
        Self::make(kind, flags, [sequence, 0], body)
    }

    /// A message that answers one: it has its number and its sender's port.
    #[must_use]
    pub fn answering(asked: &ReceivedNews<'_>, kind: u16, flags: u16, body: &[u8]) -> Self {
        Self::make(kind, flags, [asked.sequence, asked.port], body)
    }

    fn make(kind: u16, flags: u16, [sequence, port]: [u32; 2], body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(port.to_ne_bytes());
        bytes.extend(body);
        Self { bytes }.padded()
    }

    /// Adds an attribute; one that is longer than any can be is left out.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.bytes.extend(attribute(kind, value));
        self
    }

    /// Adds an attribute that is a text.
    #[must_use]
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        self.with(kind, &bytes)
    }

    fn padded(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// The message as it is sent.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        for (place, byte) in self.bytes.iter_mut().zip(length.to_ne_bytes()) {
            *place = byte;
        }
        self.bytes
    }
}

/// An attribute by itself, for the value of another; nothing where it is longer than any can be.
#[must_use]
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let Ok(length) = u16::try_from(value.len().saturating_add(ATTRIBUTE)) else {
        return Vec::new();
    };
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedNews<'a> {
    /// Its kind.
    pub kind: u16,
    /// How it is to be taken (`NLM_F_…`).
    pub flags: u16,
    /// The number of the request that it is, or answers.
    pub sequence: u32,
    /// The port of the sender; 0 for the kernel, and if it is not known.
    pub port: u32,
    /// The bytes behind the header.
    pub body: &'a [u8],
}

/// The messages in a datagram, up to the first that does not fit into it.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = ReceivedNews<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(datagram, 0)?).ok()?;
        let whole = datagram.get(..length)?;
        let body = whole.get(HEADER..)?;
        let (kind, flags) = (u16_at(whole, 4)?, u16_at(whole, 6)?);
        let (sequence, port) = (u32_at(whole, 8)?, u32_at(whole, 12)?);
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(ReceivedNews { kind, flags, sequence, port, body })
    })
}

/// The attributes in a body behind its first `fixed` bytes, kind and value, up to the first that
/// does not fit.
pub fn attributes(body: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut left = body.get(fixed..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(left, 0)?);
        let kind = u16_at(left, 2)? & !KIND_FLAGS;
        let value = left.get(ATTRIBUTE..length)?;
        left = left.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The text in an attribute, without its end.
#[must_use]
pub fn text(value: &[u8]) -> Option<&str> {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    std::str::from_utf8(value.get(..end)?).ok()
}

/// A u16 at a place, if it is there.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A u32 at a place, if it is there.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Vec<u8> {
        let message =
            Message::new(20, 5, 7, &[1, 2, 3, 4, 5]).with(9, &[6]).with_text(11, "balboa0");
        message.finish()
    }

    #[test]
    fn a_message_has_its_length_and_every_attribute_begins_at_four_bytes() {
        let bytes = whole();
        assert_eq!(bytes.len(), 16 + 8 + 8 + 12);
        assert_eq!(u32_at(&bytes, 0), Some(44));
        assert_eq!(
            &bytes[24..29],
            [5u16.to_ne_bytes(), 9u16.to_ne_bytes()]
                .concat()
                .iter()
                .chain(&[6])
                .copied()
                .collect::<Vec<_>>()
        );
        assert_eq!(
            (u16_at(&bytes, 4), u16_at(&bytes, 6), u32_at(&bytes, 8)),
            (Some(20), Some(5), Some(7))
        );
    }

    #[test]
    fn what_was_made_can_be_taken_apart() {
        let two = [whole(), whole()].concat();
        let all: Vec<_> = messages(&two).collect();
        assert_eq!(all.len(), 2);
        let ReceivedNews { kind, sequence, body, .. } = all[1];
        assert_eq!((kind, sequence), (20, 7));
        let found: Vec<_> = attributes(body, 8).collect();
        assert_eq!(found[0], (9, &[6][..]));
        assert_eq!((found[1].0, text(found[1].1)), (11, Some("balboa0")));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        let mut bytes = whole();
        for length in [0u32, 15, 45, u32::MAX] {
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{length}");
        }
        let bytes = whole();
        let body = messages(&bytes).next().unwrap().body;
        for length in [0u16, 3, 100, u16::MAX] {
            let mut body = body.to_vec();
            body[8..10].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&body, 8).count(), 0, "{length}");
        }
        assert_eq!(attributes(body, 100).count(), 0);
        assert_eq!(text(&[0xff, 0]), None);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_survived() {
        let bytes = whole();
        for length in 0..bytes.len() {
            assert_eq!(messages(&bytes[..length]).count(), 0);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 3, 4, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let found =
                    messages(&changed).map(|it| attributes(it.body, 8).count()).sum::<usize>();
                assert!(found < 16);
            }
        }
    }
}
