//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use bitstreams::soft::Logic;
use clap::{Args, Parser, Subcommand};
use vfio::PciAddress;

/// Runs verbs programs on a Balboa card and shows what the card does.
#[derive(Debug, Parser)]
#[command(name = "balboa", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program that finds the cards of a balboad as its RDMA devices
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Show cards, links, GIDs, clients, resources and counters of a balboad
    #[command(after_help = STATUS_HELP)]
    Status(Status),
    /// Take the port of a card off its cable, or put it back
    #[command(after_help = LINK_HELP)]
    Link(Link),
    /// Show, add and delete the addresses of a card, which are its GIDs
    #[command(after_help = ADDR_HELP)]
    Addr(Addr),
    /// Make, look at, check and sign images of cards
    #[command(after_help = IMAGE_HELP, disable_help_subcommand = true)]
    Image {
        /// What to do.
        #[command(subcommand)]
        action: Image,
    },
    /// Give a card to vfio-pci, so that balboad can drive it (as root)
    #[command(after_help = BIND_HELP)]
    Bind {
        /// Where the card is, as lspci -D shows it
        #[arg(value_name = "PCI-ADDRESS")]
        address: PciAddress,
    },
    /// Give a card back to the kernel (as root)
    #[command(after_help = UNBIND_HELP)]
    Unbind {
        /// Where the card is
        #[arg(value_name = "PCI-ADDRESS")]
        address: PciAddress,
    },
}

/// `balboa run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Where balboad keeps its socket [default: $BALBOA_STATE_DIR, else the user's own: /run/balboa
    /// for root, $XDG_RUNTIME_DIR/balboa, or balboa-UID in the temporary folder]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

/// `balboa status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Where balboad keeps its socket [default: as for balboa run]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Print balboad's own JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// `balboa link`.
#[derive(Debug, Args)]
pub struct Link {
    /// Where balboad keeps its socket [default: as for balboa run]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The card, balboaN
    pub card: CardName,
    /// down: as if the cable was pulled; up: as the cable says
    #[arg(value_name = "up|down")]
    pub state: LinkState,
}

/// `balboa addr`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct Addr {
    /// Where balboad keeps its socket [default: as for balboa run]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The card, balboaN
    pub card: CardName,
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// `balboa image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Make the image of a software card
    #[command(after_help = IMAGE_EXIT)]
    Make {
        /// The logic of each vFPGA, the first one first; there is vqe, the queue engine
        #[arg(long, required = true, value_delimiter = ',', value_name = "LOGIC[,LOGIC...]")]
        soft: Vec<Logic>,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Sign it with this secret key, too
        #[arg(long, value_name = "KEY")]
        sign: Option<PathBuf>,
    },
    /// Show what an image is, and for which part
    #[command(after_help = IMAGE_EXIT)]
    Inspect {
        /// The image: .bit, .bin, .pdi, or a software card's
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a manifest (.toml) and those of its files that lie beside it, or an image
    #[command(after_help = IMAGE_EXIT)]
    Lint {
        /// The manifest, or the image
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Sign an image: write FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Sign {
        /// The image
        file: PathBuf,
        /// The secret key, as minisign -G makes it
        #[arg(long, value_name = "KEY")]
        key: PathBuf,
    },
    /// Check an image and its signature, FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Verify {
        /// The image
        file: PathBuf,
        /// A public key that is trusted; may be repeated [default: all of /etc/balboa/keys/*.pub]
        #[arg(long, value_name = "KEY")]
        key: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What is done to addresses.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Action {
    /// List the addresses by their GID index
    Show,
    /// Add an address, at the first index that is free
    Add(Place),
    /// Delete an address; the others keep their index
    Del(Place),
}

/// An address, and the network of the link's that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Place {
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
/// whatever network it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub IpAddr);

impl Address {
    /// It as a GID, network order.
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

/// The number of a card, given by the card's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardName(pub u32);

impl FromStr for CardName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("balboa").and_then(|number| number.parse().ok());
        let card = number.map(Self).filter(|card| card.to_string() == text);
        card.ok_or_else(|| "write the name of a card: balboa0, balboa1, ...".to_owned())
    }
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "balboa{}", self.0)
    }
}

/// Whether a port is to be on its cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// It is.
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

const EXAMPLES: &str = "\
Two software cards, and ib_write_bw between them:
  balboad --soft 2 --state-dir D &
  balboa run --state-dir D -- ib_write_bw -d balboa0 &
  balboa run --state-dir D -- ib_write_bw -d balboa1 127.0.0.1

Exit codes: 2 for wrong arguments; those of the commands are in their own help.";

const RUN_HELP: &str = "\
The program sees the cards as balboa0, balboa1, ... in /sys/class/infiniband, and no other RDMA
device. Nothing outside changes, and no privilege is needed where user namespaces are allowed.
Waits up to 5 s for balboad.

Exit code: the program's own; 125 when balboa itself fails or its arguments are wrong, 126 when the program cannot be
executed, 127 when it is not found.

Examples:
  balboa run -- ibv_devinfo
  balboa run --state-dir D -- ibv_rc_pingpong -d balboa0 -g 1
  balboa run -- bash          # a shell whose programs all see the cards";

const STATUS_HELP: &str = "\
Exit codes: 0 it was shown; 1 no balboad answers as it should; 2 wrong arguments.

Examples:
  balboa status
  balboa status --state-dir D --json";

const LINK_HELP: &str = "\
A port that is down sends nothing and receives nothing. Programs that have the card open get
IBV_EVENT_PORT_ERR, and IBV_EVENT_PORT_ACTIVE when it is up again; what they sent is tried again until
its retries are used up, and so is not lost where the port comes back soon. Only the user who runs balboad
may change it. It lasts until balboad ends.

Exit codes: 0 done; 1 it could not be done, and the reason was told; 2 wrong arguments.

Examples:
  balboa link balboa0 down
  balboa link --state-dir D balboa0 up";

const ADDR_HELP: &str = "\
Index 0 is the link-local address and stays; IPv4 addresses take the first free index from 1 on, others from
2 on. Programs that have the card open get IBV_EVENT_GID_CHANGE. The card answers ARP and neighbour discovery for
all of its addresses. Frames from an address of a VLAN carry its tag, with the service level (ibv_ah_attr.sl) as
priority, and only frames with that tag reach it. Connections on an address that is deleted are left alone: they send on, hear nothing
any more, and fail by their retries. A card that the kernel shows (balboad --shadow) has the addresses that
`ip addr` gives its network device. Only the user who runs balboad may change addresses. They last until balboad
ends.

Exit codes: 0 done; 1 it could not be done, and the reason was told; 2 wrong arguments.

Examples:
  balboa addr balboa0 show
  balboa addr balboa0 add 10.88.0.1/24
  balboa addr --state-dir D balboa0 add 2001:db8::1
  balboa addr balboa0 add 10.5.0.1 vlan 5
  balboa addr balboa0 del 10.88.0.1";

const IMAGE_HELP: &str = "\
Signatures are minisign's, beside the image as FILE.minisig. minisign -G makes a pair of keys; the public ones that
are trusted lie in /etc/balboa/keys, as NAME.pub. No balboad is asked, and no card is touched.

Exit codes: 0 done, or all is right; 1 it is not, or could not be done, and the reason was told; 2 wrong arguments.

Examples:
  balboa image make --soft vqe,vqe -o two.soft --sign minisign.key
  balboa image inspect shell_top.bin --json
  balboa image lint coyote-u55c.toml
  balboa image verify two.soft --key minisign.pub";

const IMAGE_EXIT: &str = "\
Exit codes: 0 done, or all is right; 1 it is not, or could not be done, and the reason was told; 2 wrong arguments.";

const BIND_HELP: &str = "\
The card stays bound until balboa unbind or a reboot. It must be behind an IOMMU.

Exit codes: 0 it is bound; 1 it is not, and the reason was told; 2 wrong arguments.

Examples:
  lspci -D -d 10ee:903f
  balboa bind 0000:3b:00.0";

const UNBIND_HELP: &str = "\
Exit codes: 0 done; 1 it could not be done, and the reason was told; 2 wrong arguments.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_card_is_given_by_its_whole_name() {
        assert_eq!("balboa12".parse(), Ok(CardName(12)));
        for text in ["", "0", "balboa", "balboa01", "balboa+1", "balboa-1", "balboa4294967296"] {
            assert!(text.parse::<CardName>().unwrap_err().contains("balboa0"), "{text:?}");
        }
    }

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

    #[test]
    fn everything_after_the_program_belongs_to_the_program() {
        for separator in [&["--"][..], &[]] {
            let line = ["balboa", "run", "--state-dir", "D"].iter().chain(separator);
            let line = line.chain(&["ib_write_bw", "--state-dir", "E", "--", "-h"]);
            let Command::Run(run) = Arguments::try_parse_from(line).unwrap().command else {
                panic!("not run");
            };
            assert_eq!(run.state_dir, Some(PathBuf::from("D")));
            assert_eq!(run.command, ["ib_write_bw", "--state-dir", "E", "--", "-h"]);
        }
    }
}
