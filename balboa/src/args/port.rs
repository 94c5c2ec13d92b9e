//! The command lines about a card's port: `balboa link`, `addr` and `capture`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::{CardName, StateDir};

/// `balboa link`.
#[derive(Debug, Args)]
pub struct Link {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// Unplug the cable (down), or plug it in (up)
    #[arg(value_name = "up|down")]
    pub state: LinkState,
}

/// `balboa addr`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct Addr {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// The change.
    #[command(subcommand)]
    pub action: Action,
}

/// `balboa capture`.
#[derive(Debug, Args)]
pub struct Capture {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// Write to this file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Capture only frames for this QP, of the card or of a peer; may be repeated
    #[arg(long, value_name = "N", value_parser = number)]
    pub qp: Vec<u32>,
    /// Capture only frames from or to this address
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// Keep the first BYTES bytes of each frame; 0 keeps all
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub snap: u32,
    /// Let MIB MiB of frames wait in balboad for the file; it drops and counts frames beyond
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ring: u32,
    /// End after N seconds
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// End after N frames, or a few more
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// A number of a QP, as programs print it: decimal, or hexadecimal behind 0x.
pub(super) fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "write the number of a QP, 0x123456 or 1193046".to_owned())
}

/// The subcommands of `balboa addr`.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Action {
    /// List the addresses by their GID index
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add an address, at the first index that is free
    Add(AddressInVlan),
    /// Delete an address; the others keep their index
    Del(AddressInVlan),
}

/// An address, and the VLAN of the link that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct AddressInVlan {
    /// IPv4 or IPv6; the prefix may be left out
    #[arg(value_name = "ADDRESS[/PREFIX]")]
    pub address: Address,
    /// The word vlan, for an address in a VLAN
    #[arg(value_name = "vlan", requires = "vlan")]
    pub word: Option<VlanWord>,
    /// The VLAN's number, 1 to 4094
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
}

/// The word that stands before the number of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanWord;

impl FromStr for VlanWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let told = "write vlan and a number behind the address, or nothing".to_owned();
        if text == "vlan" { Ok(Self) } else { Err(told) }
    }
}

/// An address of a port. A prefix is checked and not kept: a card asks on its link for every peer,
/// of any network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub IpAddr);

impl Address {
    /// The address as a GID, in network order.
    pub fn gid(self) -> [u8; 16] {
        match self.0 {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| "write an address of IPv4 (A.B.C.D) or IPv6 (2001:db8::1)".to_owned())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        match prefix.map(str::parse) {
            None => Ok(Self(address)),
            Some(Ok(bits)) if (1..=longest).contains(&bits) => Ok(Self(address)),
            Some(_) => Err(format!("write a prefix length from 1 to {longest}, or none")),
        }
    }
}

/// The state that a port gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Whether the port is on its cable.
    pub up: bool,
}

impl FromStr for LinkState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "up" => Ok(Self { up: true }),
            "down" => Ok(Self { up: false }),
            _ => Err("write up or down".to_owned()),
        }
    }
}

pub(super) const LINK_HELP: &str = "\
A port that is down sends nothing and receives nothing. Programs that have the card open get
IBV_EVENT_PORT_ERR, and IBV_EVENT_PORT_ACTIVE when the port is up again. The card repeats their messages until the
retries are used up, so that a port which comes back soon loses none. Only the user who runs balboad may change the
port. The state lasts until balboad ends.

Exit codes: 0 done; 1 failed, for the reason that was printed; 2 wrong arguments.

Examples:
  balboa link balboa0 down
  balboa link --state-dir D balboa0 up";

pub(super) const ADDR_HELP: &str = "\
Index 0 is the link-local address and stays; IPv4 addresses take the first free index from 1 on, others from
2 on. Programs that have the card open get IBV_EVENT_GID_CHANGE. The card answers ARP and neighbour discovery for
all of its addresses. Frames from an address of a VLAN carry its tag, with the service level (ibv_ah_attr.sl) as
priority, and only frames with that tag reach it. Connections of a deleted address go on sending, receive no answer,
and fail when their retries are used up. A card that the kernel shows (balboad --shadow) has the addresses that
`ip addr` gives its network device. Only the user who runs balboad may change addresses. They last until balboad
ends.

Exit codes: 0 done; 1 failed, for the reason that was printed; 2 wrong arguments.

Examples:
  balboa addr balboa0 show
  balboa addr balboa0 add 10.88.0.1/24
  balboa addr --state-dir D balboa0 add 2001:db8::1
  balboa addr balboa0 add 10.5.0.1 vlan 5
  balboa addr balboa0 del 10.88.0.1";

pub(super) const CAPTURE_HELP: &str = "\
The capture ends at Ctrl-C, and prints the numbers of captured and of lost frames. Neither the card nor balboad waits for
the file. Only software cards can be captured: the frames of a card behind VFIO do not pass balboad. One capture of a
card runs at a time. The file has two interfaces: one of frames that the card has sent, one of frames delivered to it.

Exit codes: 0 captured; 1 failed or interrupted, for the reason that was printed; 2 wrong arguments.

Examples:
  balboa capture balboa0 -o frames.pcapng
  balboa capture balboa0 -o - --qp 0x000005 --qp 0x000017 | wireshark -k -i -
  balboa capture balboa0 -o head.pcapng --address 10.77.0.2 --snap 128 --seconds 10";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_prefix_that_fits_it_or_none() {
        for text in ["10.0.0.1", "10.0.0.1/8", "2001:db8::1", "2001:db8::1/128"] {
            let address = text.split('/').next().unwrap().parse().unwrap();
            assert_eq!(text.parse(), Ok(Address(address)), "{text}");
        }
        for text in ["", "10.0.0", "10.0.0.1/33", "10.0.0.1/0", "10.0.0.1/", "::1/129", "x", "1/2"]
        {
            assert!(text.parse::<Address>().unwrap_err().starts_with("write "), "{text}");
        }
        let mapped: Address = "10.1.2.3".parse().unwrap();
        assert_eq!(mapped.gid()[10..], [0xff, 0xff, 10, 1, 2, 3]);
    }
}
