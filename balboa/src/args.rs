//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bitstreams::soft::Logic;
use clap::{Args, Parser, Subcommand};
use terminal::Shell;
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
    /// List the cards, a line each
    #[command(after_help = LIST_HELP)]
    List(List),
    /// Show all of a card, and who uses it
    #[command(after_help = SHOW_HELP)]
    Show(Show),
    /// Show the counters of a card
    #[command(after_help = COUNTERS_HELP)]
    Counters(Counters),
    /// Show what cards, programs and QPs do, as it changes
    #[command(after_help = TOP_HELP)]
    Top(Top),
    /// Measure how fast two cards move messages, and look at the bytes
    #[command(after_help = PERF_HELP)]
    Perf(Perf),
    /// Look for what is wrong on this machine, and tell what to do about it
    #[command(after_help = DOCTOR_HELP)]
    Doctor(Doctor),
    /// Show a balboad as a whole: its cards, connections and clients
    #[command(after_help = STATUS_HELP)]
    Status(Status),
    /// Take the port of a card off its cable, or put it back
    #[command(after_help = LINK_HELP)]
    Link(Link),
    /// Show, add and delete the addresses of a card, which are its GIDs
    #[command(after_help = ADDR_HELP)]
    Addr(Addr),
    /// Capture what passes the port of a card that runs, as a pcapng file
    #[command(after_help = CAPTURE_HELP)]
    Capture(Capture),
    /// Reset a card: it begins anew, and its programs lose it
    #[command(after_help = RESET_HELP)]
    Reset(Reset),
    /// Load images into cards that run, and put back what they had
    #[command(after_help = FLASH_HELP, disable_help_subcommand = true)]
    Flash {
        /// What to do.
        #[command(subcommand)]
        action: Flash,
    },
    /// Make, look at, check and sign images of cards
    #[command(after_help = IMAGE_HELP, disable_help_subcommand = true)]
    Image {
        /// What to do.
        #[command(subcommand)]
        action: Image,
    },
    /// Let containers have the cards, by the Container Device Interface
    #[command(after_help = CDI_HELP, disable_help_subcommand = true)]
    Cdi {
        /// What to do.
        #[command(subcommand)]
        action: Cdi,
    },
    /// Print what completes this command line in a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Manual {
        /// The directory to write them to, which is there
        directory: PathBuf,
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

/// Which balboad is asked.
#[derive(Clone, Debug, Default, Args)]
pub struct StateDir {
    /// Where balboad keeps its socket [default: $BALBOA_STATE_DIR, else the user's own: /run/balboa
    /// for root, $XDG_RUNTIME_DIR/balboa, or balboa-UID in the temporary folder]
    // Global, so that it may stand behind a command of a command.
    #[arg(long = "state-dir", value_name = "DIR", global = true)]
    directory: Option<PathBuf>,
}

impl StateDir {
    /// The directory, where one is given.
    pub fn path(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}

/// `balboa cdi`.
#[derive(Debug, Subcommand)]
pub enum Cdi {
    /// Write the file by which container runtimes give the cards of a balboad to containers
    #[command(after_help = CDI_HELP)]
    Generate {
        /// Which balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// Write to this file [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// `balboa run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

/// `balboa list`.
#[derive(Debug, Args)]
pub struct List {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa counters`.
#[derive(Debug, Args)]
pub struct Counters {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// Look again every so many seconds, and show what has changed [default: 1]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=86400)
    )]
    pub watch: Option<u32>,
    /// With --watch: end after so many times
    #[arg(long, value_name = "N", requires = "watch")]
    pub count: Option<u64>,
    /// Print JSON; with --watch a document in each line
    #[arg(long)]
    pub json: bool,
}

/// `balboa top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Look again every so many seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
    /// End after so many times
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print JSON, a document in each line
    #[arg(long)]
    pub json: bool,
}

/// `balboa perf`.
#[derive(Debug, Args)]
pub struct Perf {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card that posts
    #[arg(long, value_name = "CARD", default_value = "balboa0")]
    pub from: CardName,
    /// Its peer, which may be the same
    #[arg(long, value_name = "CARD", default_value = "balboa1")]
    pub to: CardName,
    /// Index of the GIDs [default: the first that is an IPv4 address on both, else 0]
    #[arg(long, value_name = "INDEX")]
    pub gid: Option<u8>,
    /// How long each of the nine figures is measured, 0.05 to 3600
    #[arg(long, value_name = "N", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa link`.
#[derive(Debug, Args)]
pub struct Link {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
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
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// `balboa reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `balboa capture`.
#[derive(Debug, Args)]
pub struct Capture {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// The file to write, - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Only frames for this QP, the card's or a peer's; may be repeated
    #[arg(long, value_name = "N", value_parser = number)]
    pub qp: Vec<u32>,
    /// Only frames from or to this address
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<Address>,
    /// Bytes of each frame that are kept; 0 for all
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub snap: u32,
    /// MiB that may wait in balboad for the file; frames that come beyond them are lost, and counted
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ring: u32,
    /// End after so many seconds
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// End after so many frames, or a few more
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// `balboa flash`.
#[derive(Debug, Subcommand)]
pub enum Flash {
    /// List the cards with the images that they have and had
    #[command(after_help = FLASH_EXIT)]
    List {
        /// Which balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what an image is, for which part, who signed it, and how one of a whole device is loaded
    #[command(after_help = FLASH_EXIT)]
    Inspect {
        /// The image
        file: PathBuf,
        /// Where the public keys (NAME.pub) are that are trusted [default: /etc/balboa/keys]
        #[arg(long, value_name = "DIR")]
        keys: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what apply would do, and do nothing
    #[command(after_help = FLASH_EXIT)]
    Plan(Plan),
    /// Load an image into a card, once that was answered with yes
    #[command(after_help = FLASH_EXIT)]
    Apply {
        /// What, and into which card.
        #[command(flatten)]
        plan: Plan,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Ask a card anew whether it is what its record says, and whether that is an image
    #[command(after_help = FLASH_EXIT)]
    Verify {
        /// Which balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The image that it is to have
        file: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Load the image again that a card had before
    #[command(after_help = FLASH_EXIT)]
    Rollback {
        /// Which balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Load it though nobody will see whether the card takes it, for it says the same of itself with another
        #[arg(long)]
        allow_unseen: bool,
        /// Disconnect the programs that have it open; they are told first that it is gone
        #[arg(long)]
        force_disconnect: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what was flashed into a card, and how that ended
    #[command(after_help = FLASH_EXIT)]
    History {
        /// Which balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// An image, and the card that is to have it.
#[derive(Debug, Args)]
pub struct Plan {
    /// Which balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// The image, with its signature beside it (FILE.minisig), or a manifest's that has its SHA-256
    pub file: PathBuf,
    /// Where the public keys (NAME.pub) are that are trusted [default: /etc/balboa/keys]
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Take an image, and a manifest, that has no signature
    #[arg(long)]
    pub allow_unsigned: bool,
    /// The manifest (.toml) of a bitstream, with its signature beside it: what the shell is, and for which part
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Take a bitstream whose manifest says verified = false: that nobody has seen it work on a card
    #[arg(long)]
    pub allow_unverified: bool,
    /// Load it though nobody will see whether the card takes it, for it says the same of itself with another
    #[arg(long)]
    pub allow_unseen: bool,
    /// Disconnect the programs that have the card open; they are told first that it is gone
    #[arg(long)]
    pub force_disconnect: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A number of a QP, as programs print it: decimal, or hexadecimal behind 0x.
fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "write the number of a QP, 0x123456 or 1193046".to_owned())
}

/// A number of seconds, with a fraction or without.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "write seconds from 0.05 to 3600".to_owned())
}

/// `balboa image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Make the image of a software card
    #[command(after_help = IMAGE_EXIT)]
    Make {
        /// The logic of each vFPGA, the first one first; vqe, the queue engine, or stock, as published
        #[arg(long, required = true, value_delimiter = ',', value_name = "LOGIC[,LOGIC...]")]
        soft: Vec<Logic>,
        /// Make it of this vFPGA alone, for a card that has others beside it
        #[arg(long, value_name = "N")]
        vfpga: Option<u8>,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Make the bitstream of a shell that stands for it, for a software card that plays an FPGA (part balboa), and for no device
        #[arg(long, conflicts_with = "vfpga")]
        bitstream: bool,
        /// Fill it up to so many bytes, so that it is as long as one of a real card
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 30))]
        bytes: Option<u32>,
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
    /// Sign an image or a manifest: write FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Sign {
        /// The image, or the manifest (.toml)
        file: PathBuf,
        /// The secret key, as minisign -G makes it
        #[arg(long, value_name = "KEY")]
        key: PathBuf,
    },
    /// Check an image or a manifest, and its signature, FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Verify {
        /// The image, or the manifest (.toml)
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
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
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

const LIST_HELP: &str = "\
The name is what verbs programs call the card. The address is where it is on the PCI bus; software cards have one in
the shape of those. What has no name is on the bus, but no balboad drives it: give it to one (balboa bind, balboad
--vfio).

Exit codes: 0 they were listed; 1 no balboad answers as it should, and no card is on the bus; 2 wrong arguments.

Examples:
  balboa list
  balboa list --state-dir D --json";

const SHOW_HELP: &str = "\
Exit codes: 0 it was shown; 1 no balboad answers as it should, or it has no such card; 2 wrong arguments.

Examples:
  balboa show balboa0
  balboa show --state-dir D balboa0 --json";

const COUNTERS_HELP: &str = "\
Counters have the names that rdma, ethtool and node_exporter know from other cards, where they count the same. They
begin at 0 when the card comes up. With --watch only those are shown that have changed, each with its rate.

Exit codes: 0 they were shown; 1 no balboad answers as it should, or it has no such card; 2 wrong arguments.

Examples:
  balboa counters balboa0
  balboa counters balboa0 --watch=5 --json";

const TOP_HELP: &str = "\
Keys: q ends it, s sorts by another column. TX and RX of a card are payload; packets of programs and QPs are told by how
far their PSNs have come. Where standard output is no terminal there is a line for each card each time.

Exit codes: 0 it was shown; 1 no balboad answers as it should; 2 wrong arguments.

Examples:
  balboa top
  balboa top --state-dir D --seconds 5
  balboa top --count 1 --json";

const PERF_HELP: &str = "\
WRITE, READ and SEND by one QP of a verbs program, as balboa run runs them: the latency of 8 bytes from the call that
posts them to the completion, one message at a time; bytes a second in messages of 64 KiB, and messages of 64 bytes a
second, 32 at a time. The program polls, so that it takes a core. What has arrived is looked at behind each. Other
programs on the cards go on, and share them. Figures of software cards tell of this machine, not of a card.

Exit codes: 0 measured; 1 a message failed or had wrong bytes, or a device refused, and the reason was told; 2 wrong
arguments; 125 it could not be run, as with balboa run.

Examples:
  balboa perf
  balboa perf --state-dir D --from balboa0 --to balboa0 --seconds 5 --json";

const COMPLETIONS_HELP: &str = "\
Exit codes: 0 it was printed; 1 it could not be; 2 wrong arguments.

Examples:
  balboa completions bash > /etc/bash_completion.d/balboa
  balboa completions zsh > ~/.zfunc/_balboa";

const DOCTOR_HELP: &str = "\
Each check is a line: ok, - (there is nothing to look at), note (it works, but something is lost by it, or was), or
WRONG (programs fail by it), then what was found, and behind a colon what to do. Run it as the user whose programs are
to work.

Exit codes: 0 nothing is wrong; 1 something is, or it could not be looked at; 2 wrong arguments.

Examples:
  balboa doctor
  balboa doctor --state-dir D --json";

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

const CAPTURE_HELP: &str = "\
Ends at Ctrl-C, and then tells how many frames there are and how many were lost. Nothing waits for the file: neither the
card nor balboad gets slower because it is written slowly. Only software cards can be captured: the frames of a card
behind VFIO do not pass balboad. One capture of a card runs at a time. The file has two interfaces, of what the card has
sent and of what was delivered to it.

Exit codes: 0 captured; 1 it could not be, or came to an end by itself, and the reason was told; 2 wrong arguments.

Examples:
  balboa capture balboa0 -o frames.pcapng
  balboa capture balboa0 -o - --qp 0x000005 --qp 0x000017 | wireshark -k -i -
  balboa capture balboa0 -o head.pcapng --address 10.77.0.2 --snap 128 --seconds 10";

const RESET_HELP: &str = "\
Its programs get IBV_EVENT_DEVICE_FATAL first, and what they have under way is flushed. When the last of them has
closed the card, or ended, it comes up anew, with the addresses that it had. The others on balboad are left alone.

Exit codes: 0 it was reset; 1 it could not be, and the reason was told; 2 wrong arguments; 3 the answer was no.

Examples:
  balboa reset balboa0
  balboa reset --state-dir D balboa0 --yes";

const FLASH_HELP: &str = "\
An image is checked before the card is touched, and the card behind it: where it does not come up as what the image is,
it is said that it needs to be flashed again, and never that it was. Programs that have it open are why it is refused;
with --force-disconnect they get IBV_EVENT_DEVICE_FATAL first, and those that keep it open for 5 s more are ended.
Its addresses stay. Once it has begun it goes on whatever becomes of this program. Images are signed as balboa image
tells. Only the user who runs balboad may flash. Software cards take the images of balboa image make, also those behind
VFIO; FPGAs take bitstreams of shells, by a manifest. An image of one vFPGA alone concerns the programs of that; the others go on.

Exit codes: 0 done, or all is right; 1 it could not be done, and the reason was told; 2 wrong arguments; 3 the answer
was no; 4 the file is truncated, or not what it was made as; 5 it is for another part or shell, or another image;
6 a signature is missing, or nobody's who is trusted; 7 programs have the card open, or another is flashed;
8 the card needs to be flashed again; 9 its manifest says that nobody has seen it work; 10 whether an FPGA takes it
nobody sees, for it says the same of itself with another: nothing was done, or it was loaded, as the sentence tells.

Examples:
  balboa flash list
  balboa flash plan balboa0 two.soft
  balboa flash apply balboa0 two.soft --keys ./keys --yes
  balboa flash verify balboa0 two.soft
  balboa flash rollback balboa0";

const FLASH_EXIT: &str = "\
Exit codes: 0 done, or all is right; 1 it could not be done, and the reason was told; 2 wrong arguments; 3 the answer
was no; 4 the file is truncated, or not what it was made as; 5 it is for another part or shell, or another image;
6 a signature is missing, or nobody's who is trusted; 7 programs have the card open, or another is flashed;
8 the card needs to be flashed again; 9 its manifest says that nobody has seen it work; 10 whether an FPGA takes it
nobody sees, for it says the same of itself with another: nothing was done, or it was loaded, as the sentence tells.";

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

const CDI_HELP: &str = "\
Each card is a device balboa/card=balboaN, and all of them are balboa/card=all. A container that has one is given
balboad's state directory, this tool and the providers; in it, `balboa run` starts programs.

Exit codes: 0 done; 1 it could not be done, and the reason was told; 2 wrong arguments.

Examples:
  balboa cdi generate -o /etc/cdi/balboa.json
  podman run --device balboa/card=balboa0 IMAGE balboa run -- ibv_devinfo";

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
    fn the_state_directory_may_stand_before_the_card_and_behind_what_is_done_with_it() {
        for line in [
            "--state-dir D balboa0 show",
            "balboa0 --state-dir D show --json",
            "balboa0 show --state-dir D",
            "balboa0 add 10.0.0.1 vlan 5 --state-dir=D",
        ] {
            let line = ["balboa", "addr"].into_iter().chain(line.split(' '));
            let Command::Addr(addr) = Arguments::try_parse_from(line).unwrap().command else {
                panic!("not addr");
            };
            assert_eq!(addr.state_dir.path(), Some(Path::new("D")));
        }
    }

    #[test]
    fn everything_after_the_program_belongs_to_the_program() {
        for separator in [&["--"][..], &[]] {
            let line = ["balboa", "run", "--state-dir", "D"].iter().chain(separator);
            let line = line.chain(&["ib_write_bw", "--state-dir", "E", "--", "-h"]);
            let Command::Run(run) = Arguments::try_parse_from(line).unwrap().command else {
                panic!("not run");
            };
            assert_eq!(run.state_dir.path(), Some(Path::new("D")));
            assert_eq!(run.command, ["ib_write_bw", "--state-dir", "E", "--", "-h"]);
        }
    }
}
