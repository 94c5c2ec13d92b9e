//! The source of the keys of a card's peers, and the UDP port of sealed datagrams.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use softcard::Protection;

use crate::shared_keys::{read_guarded, read_own};

/// Where systemd says in which directory a service finds its credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
/// What stands before a credential's name.
const CREDENTIAL: &str = "credential:";

/// Where a card's keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In a file, which is this user's alone.
    File(PathBuf),
    /// In a credential that systemd gives the service, by its name.
    Credential(String),
}

impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(name) = text.strip_prefix(CREDENTIAL) else {
            return match text.is_empty() {
                true => Err("a file is wanted, and the name is empty".into()),
                false => Ok(Self::File(text.into())),
            };
        };
        if name.is_empty() || name.contains('/') || [".", ".."].contains(&name) {
            return Err(format!("{name:?} is no name of a credential"));
        }
        Ok(Self::Credential(name.into()))
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Credential(name) => write!(f, "{CREDENTIAL}{name}"),
        }
    }
}

impl KeySource {
    /// The text with the keys.
    ///
    /// # Errors
    /// A sentence: it is not there, or others may read it.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Self::File(path) => read_own(path),
            Self::Credential(name) => match std::env::var_os(CREDENTIALS) {
                Some(directory) => read_guarded(&Path::new(&directory).join(name)),
                None => Err(format!(
                    "systemd has given no credentials; write LoadCredential={name}:FILE in the unit's section [Service]"
                )),
            },
        }
    }
}

/// A UDP port for sealed datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "u16")]
pub struct PspPort(u16);

impl Default for PspPort {
    fn default() -> Self {
        Self(psp::param::UDP_PORT)
    }
}

impl PspPort {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

const WRONG_PORT: &str = "write a UDP port from 1 to 65535 that is none of 4791, which is RoCE's, and 14791, by which balboads know each other";

impl TryFrom<u16> for PspPort {
    type Error = &'static str;

    fn try_from(port: u16) -> Result<Self, Self::Error> {
        let is_free = port != 0 && !Protection::OTHER_PORTS.contains(&port);
        is_free.then_some(Self(port)).ok_or(WRONG_PORT)
    }
}

impl FromStr for PspPort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<u16>().map_err(|_| WRONG_PORT)?.try_into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_a_file_or_in_a_credential() {
        assert_eq!("/a".parse(), Ok(KeySource::File("/a".into())));
        assert_eq!("credential:psp".parse(), Ok(KeySource::Credential("psp".into())));
        for text in ["", "credential:", "credential:..", "credential:a/b"] {
            assert!(text.parse::<KeySource>().is_err(), "{text}");
        }
        for port in ["0", "4791", "14791", "65536", "x"] {
            assert!(port.parse::<PspPort>().unwrap_err().starts_with("write a UDP port"));
        }
        assert_eq!("1000".parse(), Ok(PspPort(1000)));
    }
}
