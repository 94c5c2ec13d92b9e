//! The question for the presence of a balboad: a service that every balboad offers, without a listener.

use crate::param;
use crate::service::ServiceId;

/// The service. Its first byte is of those that an operating system gives out by itself, one after the other from
/// 0x0200000000000000, and lets nobody choose, as with Linux; ports of RDMA CM begin with zeros.
// CM-52
pub const SERVICE: ServiceId = ServiceId(0x0242_414c_424f_4101);

/// The first bytes of question and answer, with the number of their layout.
const MAGIC: [u8; 5] = *b"BALB\x01";

/// The answer of a balboad that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Its version: at most [`param::VERSION_BYTES`] printable bytes of ASCII.
    pub version: String,
    /// The code of its port's path MTU: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Its further features, a bit each. [`Presence::NUMBERS_SEGMENTS`] is the only one that has a meaning.
    pub flags: u8,
}

impl Presence {
    /// Its port numbers the segments that it sends.
    pub const NUMBERS_SEGMENTS: u8 = 1;

    /// The question for it, as a SIDR_REQ's private data.
    #[must_use]
    pub fn question() -> [u8; 216] {
        crate::wire::padded(&MAGIC).unwrap_or([0; 216])
    }

    /// The answer's private data.
    #[must_use]
    // CM-52
    pub fn to_bytes(&self) -> [u8; 136] {
        let printable = self.version.bytes().filter(u8::is_ascii_graphic);
        let version: Vec<u8> = printable.take(param::VERSION_BYTES).collect();
        let length = u8::try_from(version.len()).unwrap_or(0);
        let all = [&MAGIC[..], &[self.flags, self.mtu, length], &version].concat();
        crate::wire::padded(&all).unwrap_or([0; 136])
    }

    /// The presence that an answer describes; `None` if it is no such answer.
    #[must_use]
    // CM-52
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let ([flags, mtu, length], rest) =
            private_data.strip_prefix(&MAGIC)?.split_first_chunk::<3>()?;
        let length = usize::from(*length);
        let version = rest.get(..length).filter(|_| length <= param::VERSION_BYTES)?;
        let sound = version.iter().all(u8::is_ascii_graphic) && (1..=5).contains(mtu);
        let version = String::from_utf8(version.to_vec()).ok().filter(|_| sound)?;
        Some(Self { version, mtu: *mtu, flags: *flags })
    }
}

/// How often strangers are answered.
#[derive(Debug)]
pub(crate) struct Rate {
    left: u32,
    since: crate::Instant,
}

impl Default for Rate {
    fn default() -> Self {
        Self { left: param::PRESENCES, since: crate::Instant(0) }
    }
}

impl Rate {
    /// Whether one more is answered: so many in a second, from the first of them.
    pub(crate) fn has_room(&mut self, now: crate::Instant) -> bool {
        if now >= self.since.after(core::time::Duration::from_secs(1)) {
            *self = Self { left: param::PRESENCES, since: now };
        }
        let room = self.left.checked_sub(1);
        self.left = room.unwrap_or(0);
        room.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(version: &str) -> Presence {
        Presence { version: version.into(), mtu: 5, flags: Presence::NUMBERS_SEGMENTS }
    }

    /// CM-52.
    #[test]
    fn an_answer_is_taken_as_it_was_said_and_nothing_else_is() {
        let bytes = presence("0.1.0").to_bytes();
        assert_eq!(Presence::parse(&bytes), Some(presence("0.1.0")));
        let long = presence(&"9".repeat(200)).to_bytes();
        assert_eq!(Presence::parse(&long), Some(presence(&"9".repeat(32))));
        assert_eq!(Presence::parse(&presence("a\nb").to_bytes()), Some(presence("ab")));
        assert_eq!(SERVICE.port(), None, "it is no port of RDMA CM");
        for (at, value) in [(0, 0), (4, 2), (6, 0), (6, 6), (7, 33), (7, 255), (8, 0x1b), (9, 0xff)]
        {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(Presence::parse(&bytes), None, "{value} at {at}");
        }
        for length in 0..13 {
            assert_eq!(Presence::parse(&bytes[..length]), None, "{length} bytes");
        }
    }
}
