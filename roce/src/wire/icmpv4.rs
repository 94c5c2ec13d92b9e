//! ICMP echo (RFC 792): how `ping` asks whether the port is there.

use super::{Field, Malformed, checksum_add, checksum_finish, split};

/// The length of an echo header.
pub const LENGTH: usize = 8;

const TYPE_ECHO_REPLY: u8 = 0;
const TYPE_ECHO_REQUEST: u8 = 8;

/// Where the fields lie.
mod field {
    use super::Field;

    pub const TYPE: usize = 0;
    pub const CODE: usize = 1;
    pub const CHECKSUM: Field<2, 2> = Field;
    pub const IDENTIFIER: Field<4, 2> = Field;
    pub const SEQUENCE_NUMBER: Field<6, 2> = Field;
}

/// A view of an echo header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LENGTH]);

impl<'a> Header<'a> {
    /// Splits the header off the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (header, rest) = split(bytes, "ICMP")?;
        Ok((Self(header), rest))
    }

    /// The message type.
    #[must_use]
    pub fn message_type(&self) -> u8 {
        self.0[field::TYPE]
    }

    /// The code, by which a type has several messages.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.0[field::CODE]
    }

    /// The identifier that the sender chose.
    #[must_use]
    pub fn identifier(&self) -> u16 {
        u16::from_be_bytes(*field::IDENTIFIER.of(self.0))
    }

    /// The sequence number that the sender chose.
    #[must_use]
    pub fn sequence(&self) -> u16 {
        u16::from_be_bytes(*field::SEQUENCE_NUMBER.of(self.0))
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
    /// The data that the reply returns.
    pub data: &'a [u8],
}

impl<'a> Repr<'a> {
    /// The echo message that fills `packet`, checksum checked.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        let (header, data) = Header::new(packet)?;
        let reply = match (header.message_type(), header.code()) {
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
        let mut bytes = [0; LENGTH];
        bytes[field::TYPE] = if self.reply { TYPE_ECHO_REPLY } else { TYPE_ECHO_REQUEST };
        field::IDENTIFIER.put(&mut bytes, self.identifier.to_be_bytes());
        field::SEQUENCE_NUMBER.put(&mut bytes, self.sequence.to_be_bytes());
        let sum = checksum_add(checksum_add(0, &bytes), self.data);
        field::CHECKSUM.put(&mut bytes, checksum_finish(sum).to_be_bytes());
        bytes
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
