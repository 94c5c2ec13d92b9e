//! SHA-256 digests, as files and manifests have them.

use std::fmt;
use std::str::FromStr;

use sha2::Digest as _;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// The digest of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }
}

/// The digest of bytes that come in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hasher(sha2::Sha256);

impl Hasher {
    /// Takes the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all of them.
    #[must_use]
    pub(crate) fn finish(self) -> Sha256 {
        Sha256(self.0.finalize().into())
    }
}

impl FromStr for Sha256 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a SHA-256 has 64 hexadecimal digits, as sha256sum prints them".to_owned();
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
        let digits: Option<Vec<u8>> = text.as_bytes().iter().map(digit).collect();
        let digits = digits.ok_or_else(wrong)?;
        let pairs = digits.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit));
        let bytes: Vec<u8> = pairs.collect();
        // Digits that are no pair are 31 bytes and a half, or longer.
        match bytes.try_into() {
            Ok(bytes) if digits.len() == 64 => Ok(Self(bytes)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_as_it_is_printed() {
        // FIPS 180-4's example.
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256::of(b"abc").to_string(), text);
        assert_eq!(text.parse(), Ok(Sha256::of(b"abc")));
        assert_eq!(text.to_uppercase().parse(), Ok(Sha256::of(b"abc")));
        for wrong in ["", "0", &text[1..], &format!("{text}0"), &text.replace('b', "g")] {
            assert!(wrong.parse::<Sha256>().unwrap_err().contains("64 hexadecimal"), "{wrong}");
        }
    }
}
