//! The messages between the ports of two balboads, beside RoCE and on a port of their own: RNICs and FPGA cards never
//! get a packet that they do not know.
//!
//! A word is 44 bytes, all numbers big-endian: `balboa`, the version, the kind, the session that speaks, the session that
//! it is about, a mark, a count of bytes (all of 8 bytes), and a window (4 bytes). A port that is asked says in its
//! answer how much it has received of the asker's session, how much of it may be under way, and whether all that had come
//! is in that count; it says so unasked after each quarter of the window.

/// Bytes of a word.
pub(super) const LENGTH: usize = 44;

const NAME: &[u8; 6] = b"balboa";
const VERSION: u8 = 1;

/// The kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordKind {
    /// The question for a balboad.
    Ask,
    /// A balboad, of this session. All that had come before it was asked is counted.
    Answer,
    /// A statement like an answer, unasked.
    Tell,
    /// An answer while datagrams still stand in line and are not counted.
    Busy,
}

/// A word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) kind: WordKind,
    /// A number that a port draws when it is opened: a host that knows it has heard from the port.
    pub(super) session: u64,
    /// The session that the count is of, and the window for; 0 where it is not known.
    pub(super) of: u64,
    /// A number that the asking host draws, and the answer repeats.
    pub(super) mark: u64,
    /// Costs received of that session: bytes, and the addition for each datagram.
    pub(super) received: u64,
    /// Bytes of it that may be under way.
    pub(super) window: u32,
}

impl Word {
    /// The word in a datagram; `None` for anything else.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk::<6>()?;
        let (&[version, kind], rest) = rest.split_first_chunk::<2>()?;
        let kind = match kind {
            1 => WordKind::Ask,
            2 => WordKind::Answer,
            3 => WordKind::Tell,
            4 => WordKind::Busy,
            _ => return None,
        };
        if name != NAME || version != VERSION || bytes.len() != LENGTH {
            return None;
        }
        let (session, rest) = rest.split_first_chunk()?;
        let (of, rest) = rest.split_first_chunk()?;
        let (mark, rest) = rest.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let window = rest.first_chunk()?;
        let [session, of, mark, received] =
            [session, of, mark, received].map(|it| u64::from_be_bytes(*it));
        Some(Self { kind, session, of, mark, received, window: u32::from_be_bytes(*window) })
    }

    /// The bytes of a datagram.
    pub(super) fn to_bytes(self) -> [u8; LENGTH] {
        let kind = match self.kind {
            WordKind::Ask => 1,
            WordKind::Answer => 2,
            WordKind::Tell => 3,
            WordKind::Busy => 4,
        };
        let numbers = [self.session, self.of, self.mark, self.received].map(u64::to_be_bytes);
        let all = NAME.iter().copied().chain([VERSION, kind]).chain(numbers.into_iter().flatten());
        let mut bytes = [0; LENGTH];
        for (place, byte) in bytes.iter_mut().zip(all.chain(self.window.to_be_bytes())) {
            *place = byte;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_round_trips_and_nothing_else_is_one() {
        let word = Word {
            kind: WordKind::Answer,
            session: 1,
            of: u64::MAX,
            mark: 3,
            received: 4 << 40,
            window: 5,
        };
        let bytes = word.to_bytes();
        assert_eq!(Word::parse(&bytes), Some(word));
        for at in 0..8 {
            let mut other = bytes;
            other[at] ^= 0x40;
            assert_eq!(Word::parse(&other), None, "byte {at}");
        }
        for length in 0..LENGTH {
            assert_eq!(Word::parse(&bytes[..length]), None);
        }
        assert_eq!(Word::parse(&[&bytes[..], &[0]].concat()), None);
    }
}
