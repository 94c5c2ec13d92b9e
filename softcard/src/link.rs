//! The other end of a port, as command lines spell it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use roce::IcrcPolicy;

/// The other end of a port.
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
    /// The machine's own network, by UDP sockets of an ordinary user's.
    Udp(UdpLink, UdpOptions),
}

/// The machine's address of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UdpLink {
    /// The addresses of the device with the default route.
    DefaultRoute,
    /// The addresses of a device.
    Device(String),
    /// One address.
    Address(IpAddr),
}

/// The options of a port on the machine's own network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpOptions {
    /// IPv4 identifications that are believed are 0 and balboads' numbers of segments alone, and not those of hosts that
    /// count their datagrams.
    pub is_strict: bool,
    /// Bytes of receive buffer that are asked for at most, for each address.
    pub room: Option<usize>,
    /// The UDP port by which datagrams come and go, if that is not RoCE's: the port of sealed datagrams.
    pub port: Option<u16>,
}

impl fmt::Display for UdpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultRoute => f.write_str("udp"),
            Self::Device(name) => write!(f, "udp:{name}"),
            Self::Address(ip) => write!(f, "udp:{ip}"),
        }
    }
}

impl UdpLink {
    fn parse(text: &str) -> Result<Self, String> {
        let ip = text.parse::<IpAddr>();
        match ip {
            _ if text.is_empty() => Err("write udp:DEVICE or udp:ADDRESS, or udp alone".into()),
            Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
                Err(format!("{ip} is an IPv4 address in IPv6; write {}", ip.to_canonical()))
            }
            Ok(ip) if ip.is_unspecified() || ip.is_multicast() => {
                Err(format!("{ip} is no address that a port can have"))
            }
            Ok(ip) => Ok(Self::Address(ip)),
            Err(_) => Ok(Self::Device(text.into())),
        }
    }
}

impl Link {
    /// The frames whose ICRC a card behind such a link checks: a cable may damage them, while the switch hands them
    /// over as they were sealed, unless a fault has touched them.
    #[must_use]
    pub fn icrc_policy(&self) -> IcrcPolicy {
        match self {
            // This port checks them itself, for it has to find the identification that the ICRC covers.
            Self::Switch | Self::Udp(..) => IcrcPolicy::TrustVouchedFor,
            Self::Unix { .. } | Self::Packet { .. } => IcrcPolicy::CheckAll,
        }
    }
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("udp") {
            match rest.strip_prefix(':') {
                Some(what) => {
                    return UdpLink::parse(what).map(|it| Self::Udp(it, UdpOptions::default()));
                }
                None if rest.is_empty() => {
                    return Ok(Self::Udp(UdpLink::DefaultRoute, UdpOptions::default()));
                }
                None => {}
            }
        }
        let paths = text.strip_prefix("unix:").and_then(|paths| paths.split_once(','));
        match (paths, text.strip_prefix("packet:")) {
            (Some((local, remote)), _) if !local.is_empty() && !remote.is_empty() => {
                Ok(Self::Unix { local: local.into(), remote: remote.into() })
            }
            (_, Some(device)) if !device.is_empty() => Ok(Self::Packet { device: device.into() }),
            _ => Err("write unix:LOCAL,REMOTE, the paths of two sockets, packet:DEVICE, a network device, or udp[:DEVICE|ADDRESS], the machine's own network".into()),
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
            Self::Udp(link, _) => link.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_switch_and_a_port_that_checks_are_trusted() {
        assert_eq!(Link::Switch.icrc_policy(), IcrcPolicy::TrustVouchedFor);
        for text in ["unix:/tmp/a,/tmp/b", "packet:eth1"] {
            assert_eq!(text.parse::<Link>().unwrap().icrc_policy(), IcrcPolicy::CheckAll, "{text}");
        }
    }

    #[test]
    fn links_are_spelled_as_they_are_read() {
        for text in [
            "unix:/tmp/a,/tmp/b=c",
            "packet:eth1",
            "udp",
            "udp:eth1",
            "udp:10.0.0.1",
            "udp:fe80::1",
        ] {
            assert_eq!(text.parse::<Link>().unwrap().to_string(), text);
        }
        for text in ["udp:", "udp:::ffff:10.0.0.1", "udp:0.0.0.0", "udp:ff02::1", "udpx"] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
        for text in ["unix:/tmp/a", "unix:,b", "packet:", "switch", "tap:x"] {
            assert!(text.parse::<Link>().unwrap_err().contains("unix:LOCAL,REMOTE"), "{text}");
        }
    }
}
