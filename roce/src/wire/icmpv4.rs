//! ICMP echo (RFC 792): how `ping` asks whether the port is there.

use super::{Malformed, checksum_add, checksum_finish, split};

/// The length of an echo header.
pub const LENGTH: usize = 8;

const TYPE_ECHO_REPLY: u8 = 0;
const TYPE_ECHO_REQUEST: u8 = 8;

/// A view of an echo header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// The header at the start of `bytes`, and what follows it.
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "ICMP")?;
        Ok((Self(header), rest))
    }

    /// The message type and code.
    #[must_use]
    pub fn message(&self) -> (u8, u8) {
        (self.0[0], self.0[1])
    }

    /// The identifier that the sender chose.
    #[must_use]
    pub fn identifier(&self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// The sequence number that the sender chose.
    #[must_use]
    pub fn sequence(&self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }
}

/// An echo message taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Whether this is the reply.
    pub reply: bool,
    /// The identifier that the sender chose.
    pub identifier: u16,
    /// The sequence number that the sender chose.
    pub sequence: u16,
    /// What shall come back.
    pub data: &'a [u8],
}

impl<'a> Repr<'a> {
    /// The echo message that fills `packet`, checksum checked.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        let (header, data) = Header::new(packet)?;
        let reply = match header.message() {
            (TYPE_ECHO_REPLY, 0) => true,
            (TYPE_ECHO_REQUEST, 0) => false,
            _ => return Err(Malformed::Version("ICMP")),
        };
        if checksum_finish(checksum_add(0, packet)) != 0 {
            return Err(Malformed::Checksum("ICMP"));
        }
        Ok(Self { reply, identifier: header.identifier(), sequence: header.sequence(), data })
    }

    /// The bytes of the header, with the checksum over header and data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let kind = if self.reply { TYPE_ECHO_REPLY } else { TYPE_ECHO_REQUEST };
        let [i0, i1] = self.identifier.to_be_bytes();
        let [s0, s1] = self.sequence.to_be_bytes();
        let plain = [kind, 0, 0, 0, i0, i1, s0, s1];
        let sum = checksum_add(checksum_add(0, &plain), self.data);
        let [c0, c1] = checksum_finish(sum).to_be_bytes();
        [kind, 0, c0, c1, i0, i1, s0, s1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_round_trips() {
        let repr = Repr { reply: false, identifier: 0x1234, sequence: 7, data: b"odd" };
        let mut bytes = repr.to_bytes().to_vec();
        bytes.extend(repr.data);
        assert_eq!(Repr::parse(&bytes), Ok(repr));
        bytes[9] ^= 1;
        assert_eq!(Repr::parse(&bytes), Err(Malformed::Checksum("ICMP")));
        bytes[0] = 3;
        assert_eq!(Repr::parse(&bytes), Err(Malformed::Version("ICMP")));
    }
}
