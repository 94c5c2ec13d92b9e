//! The versions of PSP's header, each of which stands for an algorithm.

use std::fmt;
use std::str::FromStr;

/// A version, by the name that Linux' family `psp` of netlink has for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// AES-GCM with keys of 128 bits.
    #[default]
    AesGcm128,
    /// AES-GCM with keys of 256 bits.
    AesGcm256,
    /// GMAC with keys of 128 bits: packets are authenticated, and not encrypted.
    AesGmac128,
    /// GMAC with keys of 256 bits.
    AesGmac256,
}

impl Version {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] =
        [Self::AesGcm128, Self::AesGcm256, Self::AesGmac128, Self::AesGmac256];

    /// Its number in the header.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether it encrypts.
    #[must_use]
    pub const fn encrypts(self) -> bool {
        matches!(self, Self::AesGcm128 | Self::AesGcm256)
    }

    /// Bits of its keys.
    #[must_use]
    pub const fn key_bits(self) -> u16 {
        match self {
            Self::AesGcm128 | Self::AesGmac128 => 128,
            Self::AesGcm256 | Self::AesGmac256 => 256,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::AesGcm128 => "hdr0-aes-gcm-128",
            Self::AesGcm256 => "hdr0-aes-gcm-256",
            Self::AesGmac128 => "hdr0-aes-gmac-128",
            Self::AesGmac256 => "hdr0-aes-gmac-256",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::ALL;
        all.into_iter().find(|version| version.name() == text).ok_or_else(|| {
            let [first, second, third, fourth] = all.map(Self::name);
            format!("write {first}, {second}, {third} or {fourth}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (number, version) in (0..).zip(Version::ALL) {
            assert_eq!(version.to_string().parse(), Ok(version));
            assert_eq!(version.number(), number);
        }
        let refusal = "aes-gcm-128".parse::<Version>().unwrap_err();
        assert!(refusal.starts_with("write hdr0-aes-gcm-128, hdr0-aes-gcm-256, "), "{refusal}");
    }
}
