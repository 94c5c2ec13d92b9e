//! PSP's header, with a virtualization cookie.

use crate::param::{EPOCH_BITS, HEADER};
use crate::version::Version;

/// The protocol of the enclosed bytes: UDP, because PSP stands between an IP header and that of UDP (transport mode).
const NEXT_HEADER: u8 = 17;
/// Units of 8 bytes behind the first 8.
const EXTENSION_LENGTH: u8 = 2;
/// Units of 4 bytes behind the fixed header that are not encrypted: the cookie.
const CRYPT_OFFSET: u8 = 2;
/// The bit that says that there is a cookie, and the one that is always set.
const COOKIE_FLAGS: u8 = 0b11;
/// The place of the version.
const VERSION_SHIFT: u32 = 2;
/// Bits of a queue pair's number.
const QPN_BITS: u32 = 24;

const _: () = assert!(EPOCH_BITS + QPN_BITS == 64);

/// A header taken apart. All of it is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version.
    pub version: Version,
    /// The security parameters index, of which the key is derived.
    pub spi: u32,
    /// The explicit initialization vector, which is never the same for one key.
    pub iv: u64,
    /// The sender's epoch, in the first 40 bits of the cookie.
    pub epoch: u64,
    /// The number of the queue pair that sends, in the last 24 bits of the cookie.
    pub qpn: u32,
}

impl Header {
    /// The header of a packet.
    ///
    /// `None` where it is cut short, or is none that a Balboa card sends: one without a cookie, with another offset of what
    /// is encrypted, or with the bits for sampling and dropping.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = packet.first_chunk()?;
        let (fixed, bytes) = bytes.split_first_chunk::<4>()?;
        let (spi, bytes) = bytes.split_first_chunk::<4>()?;
        let (iv, cookie) = bytes.split_first_chunk::<8>()?;
        let cookie = u64::from_be_bytes(*cookie.first_chunk()?);
        let version = Version::ALL.into_iter().find(|version| *fixed == start(*version))?;
        Some(Self {
            version,
            spi: u32::from_be_bytes(*spi),
            iv: u64::from_be_bytes(*iv),
            epoch: cookie >> QPN_BITS,
            qpn: (cookie & ((1 << QPN_BITS) - 1)) as u32,
        })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER] {
        let cookie = self.epoch << QPN_BITS | u64::from(self.qpn & ((1 << QPN_BITS) - 1));
        let mut bytes = [0; HEADER];
        let parts: [&[u8]; 4] = [
            &start(self.version),
            &self.spi.to_be_bytes(),
            &self.iv.to_be_bytes(),
            &cookie.to_be_bytes(),
        ];
        for (place, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        bytes
    }

    /// What the algorithm takes as its nonce.
    pub(crate) fn nonce(&self) -> [u8; 12] {
        let nonce = u128::from(self.spi) << 64 | u128::from(self.iv);
        let [_, _, _, _, nonce @ ..] = nonce.to_be_bytes();
        nonce
    }
}

/// The first four bytes, which a version decides.
const fn start(version: Version) -> [u8; 4] {
    let flags = version.number() << VERSION_SHIFT | COOKIE_FLAGS;
    [NEXT_HEADER, EXTENSION_LENGTH, CRYPT_OFFSET, flags]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        for version in Version::ALL {
            let header = Header {
                version,
                spi: 0x1234_5678,
                iv: 0x0102_0304_0506_0708,
                epoch: 0xfe_dcba_9876,
                qpn: 0xab_cdef,
            };
            let bytes = header.to_bytes();
            assert_eq!(bytes[..4], [17, 2, 2, version.number() << 2 | 3]);
            assert_eq!(bytes[16..], [0xfe, 0xdc, 0xba, 0x98, 0x76, 0xab, 0xcd, 0xef]);
            assert_eq!(Header::parse(&[&bytes[..], &[9; 40]].concat()), Some(header));
            assert_eq!(header.nonce(), *[&bytes[4..16]].concat());
        }
    }

    #[test]
    fn headers_that_no_card_sends_are_refused() {
        let header =
            Header { version: Version::AesGcm256, spi: 1, iv: 2, epoch: 3, qpn: 4 }.to_bytes();
        assert_eq!(Header::parse(&header[..23]), None);
        for bit in 0..32 {
            let mut other = header;
            other[bit / 8] ^= 0x80 >> (bit % 8);
            let taken = Header::parse(&other);
            // Two bits tell the version among the four.
            assert_eq!(taken.is_some(), [28, 29].contains(&bit), "bit {bit}: {taken:?}");
        }
    }
}
