//! The algorithms, under one key.

use std::fmt;

use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};

use crate::header::Header;
use crate::param::{HEADER, ICV, SECRET};
use crate::version::Version;

/// A version's algorithm with a key.
pub struct Cipher {
    version: Version,
    algorithm: Algorithm,
}

enum Algorithm {
    Aes128(Box<Aes128Gcm>),
    Aes256(Box<Aes256Gcm>),
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cipher({})", self.version)
    }
}

impl Cipher {
    /// The algorithm of a version with a key, of which one of 128 bits takes the first half.
    #[must_use]
    pub fn new(version: Version, key: &[u8; SECRET]) -> Self {
        let (half, _) = key.split_at(SECRET / 2);
        let algorithm = match version.key_bits() {
            128 => Algorithm::Aes128(Box::new(Aes128Gcm::new(half.into()))),
            _ => Algorithm::Aes256(Box::new(Aes256Gcm::new(key.into()))),
        };
        Self { version, algorithm }
    }

    /// Seals the bytes between the room for a header and the room for an integrity check value, and fills both;
    /// `false`, and no change, if there is no such room.
    pub fn seal(&self, header: &Header, packet: &mut [u8]) -> bool {
        let Some((packet, icv)) = packet.split_last_chunk_mut::<ICV>() else { return false };
        let Some(place) = packet.first_chunk_mut::<HEADER>() else { return false };
        *place = header.to_bytes();
        let nonce = header.nonce();
        let Some((clear, text)) = self.split(packet) else { return false };
        let nonce = (&nonce).into();
        let sealed = match &self.algorithm {
            Algorithm::Aes128(key) => key.encrypt_in_place_detached(nonce, clear, text),
            Algorithm::Aes256(key) => key.encrypt_in_place_detached(nonce, clear, text),
        };
        // It fails for packets of gigabytes alone.
        sealed.map(|tag| *icv = tag.into()).is_ok()
    }

    /// Opens a packet with that header; `false`, and nothing is changed, where it is not as it was sealed.
    pub fn open(&self, header: &Header, packet: &mut [u8]) -> bool {
        let Some((packet, icv)) = packet.split_last_chunk_mut::<ICV>() else { return false };
        let nonce = header.nonce();
        let Some((clear, text)) = self.split(packet) else { return false };
        let (nonce, icv) = ((&nonce).into(), (&*icv).into());
        match &self.algorithm {
            Algorithm::Aes128(key) => key.decrypt_in_place_detached(nonce, clear, text, icv),
            Algorithm::Aes256(key) => key.decrypt_in_place_detached(nonce, clear, text, icv),
        }
        .is_ok()
    }

    /// The bytes that are only authenticated, and those that are encrypted as well.
    fn split<'a>(&self, packet: &'a mut [u8]) -> Option<(&'a [u8], &'a mut [u8])> {
        let clear = if self.version.encrypts() { HEADER } else { packet.len() };
        let (clear, text) = packet.split_at_mut_checked(clear)?;
        Some((clear, text))
    }
}
