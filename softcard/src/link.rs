//! What a port is plugged into, as command lines spell it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use roce::IcrcPolicy;

/// What a port is plugged into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// A switch inside the process that joins all cards plugged into it.
    #[default]
    Switch,
    /// A Unix datagram socket that carries raw Ethernet frames.
    Unix {
        /// Path to bind.
        local: PathBuf,
        /// Path to send to.
        remote: PathBuf,
    },
    /// A network device of the kernel's, whose frames are taken and sent as they are.
    Packet {
        /// Its name.
        device: String,
    },
}

impl Link {
    /// Of which frames a card behind such a link checks the ICRC: a cable may damage them, while the
    /// switch hands them over as they were sealed, unless a fault has touched them.
    #[must_use]
    pub fn icrc_policy(&self) -> IcrcPolicy {
        match self {
            Self::Switch => IcrcPolicy::TrustVouchedFor,
            Self::Unix { .. } | Self::Packet { .. } => IcrcPolicy::CheckAll,
        }
    }
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let paths = text.strip_prefix("unix:").and_then(|paths| paths.split_once(','));
        match (paths, text.strip_prefix("packet:")) {
            (Some((local, remote)), _) if !local.is_empty() && !remote.is_empty() => {
                Ok(Self::Unix { local: local.into(), remote: remote.into() })
            }
            (_, Some(device)) if !device.is_empty() => Ok(Self::Packet { device: device.into() }),
            _ => Err("write unix:LOCAL,REMOTE, the paths of two sockets, or packet:DEVICE, a network device".into()),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch => f.write_str("switch"),
            Self::Unix { local, remote } => {
                write!(f, "unix:{},{}", local.display(), remote.display())
            }
            Self::Packet { device } => write!(f, "packet:{device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_switch_is_trusted() {
        assert_eq!(Link::Switch.icrc_policy(), IcrcPolicy::TrustVouchedFor);
        for text in ["unix:/tmp/a,/tmp/b", "packet:eth1"] {
            assert_eq!(text.parse::<Link>().unwrap().icrc_policy(), IcrcPolicy::CheckAll, "{text}");
        }
    }

    #[test]
    fn links_are_spelled_as_they_are_read() {
        for text in ["unix:/tmp/a,/tmp/b=c", "packet:eth1"] {
            assert_eq!(text.parse::<Link>().unwrap().to_string(), text);
        }
        for text in ["unix:/tmp/a", "unix:,b", "packet:", "switch", "tap:x"] {
            assert!(text.parse::<Link>().unwrap_err().contains("unix:LOCAL,REMOTE"), "{text}");
        }
    }
}
