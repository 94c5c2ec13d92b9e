//! The other end of a port, as command lines spell it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
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
    /// Bytes of receive buffer that are asked for at most, for each address: one of [`UdpOptions::ROOMS`].
    pub room: Option<usize>,
    /// The UDP port by which datagrams come and go, if that is not RoCE's: the port of sealed datagrams.
    pub port: Option<u16>,
}

impl UdpOptions {
    /// Bytes of receive buffer that may be asked for: at least as many as a host sends unasked, at most as many as are
    /// asked for without the option.
    pub const ROOMS: RangeInclusive<usize> = 16 << 10..=8 << 20;
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
            Ok(ip) if ip.is_unspecified() || ip.is_multicast() => Err(format!(
                "{ip} is no address that a port can have; write one of this machine's, which `ip -br addr` lists"
            )),
            Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)) => Err(
                "::1 is no address that a port can have, because no GID may be ::1; write udp:127.0.0.1"
                    .into(),
            ),
            Ok(ip) => Ok(Self::Address(ip)),
            Err(_) => match within(text) {
                Some(ip) => Self::parse(&ip.to_string()).and_then(|link| {
                    Err(format!(
                        "{text} is more than an address, and the rest of it is the machine's; write {link}"
                    ))
                }),
                None => Ok(Self::Device(text.into())),
            },
        }
    }
}

/// The address that is written with brackets, a prefix length, a zone or a port.
fn within(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').unwrap_or(text);
    // There are colons in addresses, too.
    let mut ends = bare.rmatch_indices(['/', '%', ']', ':']);
    ends.find_map(|(end, _)| bare.get(..end)?.parse().ok())
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
            (Some((local, remote)), _) if local == remote && !local.is_empty() => Err(format!(
                "the port would be at both ends of its cable; write unix:{local},REMOTE with the path of another socket"
            )),
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
        for text in ["udp:", "udp:0.0.0.0", "udp:ff02::1", "udpx"] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
        for (text, mend) in [
            ("udp:::ffff:10.0.0.1", "write 10.0.0.1"),
            ("udp:::1", "write udp:127.0.0.1"),
            ("udp:10.0.0.1/24", "write udp:10.0.0.1"),
            ("udp:10.0.0.1:4791", "write udp:10.0.0.1"),
            ("udp:2001:db8::1/64", "write udp:2001:db8::1"),
            ("udp:[2001:db8::1]", "write udp:2001:db8::1"),
            ("udp:[2001:db8::1]:4791", "write udp:2001:db8::1"),
            ("udp:fe80::1:2%eth1", "write udp:fe80::1:2"),
            ("udp:::1/128", "write udp:127.0.0.1"),
            ("unix:/tmp/a,/tmp/a", "write unix:/tmp/a,REMOTE with the path of another socket"),
        ] {
            let refusal = text.parse::<Link>().unwrap_err();
            assert!(refusal.ends_with(mend), "{text}: {refusal}");
        }
        // The names that the kernel gives to an address beside its device's.
        assert!("udp:eth1:1".parse::<Link>().is_ok());
        for text in ["unix:/tmp/a", "unix:,b", "packet:", "switch", "tap:x"] {
            assert!(text.parse::<Link>().unwrap_err().contains("unix:LOCAL,REMOTE"), "{text}");
        }
    }
}
