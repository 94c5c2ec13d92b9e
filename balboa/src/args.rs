//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use terminal::Shell;
use vfio::PciAddress;

mod images;
mod port;
mod services;

pub use images::{Flash, Image, Plan};
pub use port::{Action, Addr, Address, AddressInVlan, Capture, Link};
pub use services::{Mode, Service, Settings, Users};

use images::{FLASH_HELP, IMAGE_HELP};
use port::{ADDR_HELP, CAPTURE_HELP, LINK_HELP};
use services::SERVICE_HELP;

/// Runs verbs programs on a Balboa card and shows what the card does.
#[derive(Debug, Parser)]
#[command(name = "balboa", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// The subcommand.
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
    /// Ask who is at an address of RoCE: a balboad, another connection manager, or nobody
    #[command(after_help = PING_HELP)]
    Ping(Ping),
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
    /// Show, attach and detach services, which see the packets of queue pairs
    #[command(after_help = SERVICE_HELP, disable_help_subcommand = true)]
    Service {
        /// What to do.
        #[command(subcommand)]
        action: Service,
    },
    /// Reset a card: it begins anew, and its programs lose it
    #[command(after_help = RESET_HELP)]
    Reset(Reset),
    /// Load images into cards that run, and put back what they had
    #[command(after_help = FLASH_HELP, disable_help_subcommand = true)]
    Flash {
        /// The subcommand.
        #[command(subcommand)]
        action: Flash,
    },
    /// Make, look at, check and sign images of cards
    #[command(after_help = IMAGE_HELP, disable_help_subcommand = true)]
    Image {
        /// The subcommand.
        #[command(subcommand)]
        action: Image,
    },
    /// Let containers have the cards, by the Container Device Interface
    #[command(after_help = CDI_HELP, disable_help_subcommand = true)]
    Cdi {
        /// The subcommand.
        #[command(subcommand)]
        action: Cdi,
    },
    /// Print what completes this command line in a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Start a balboad that ends with its last program, which balboa run --start does
    #[command(hide = true)]
    StartBalboad(StartBalboad),
    /// Answer the RDMA netlink sockets of a program, which balboa run has it do
    #[command(hide = true)]
    AnswerNetlink(AnswerNetlink),
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
        /// The state directory of balboad.
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
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Show the cards in /dev/infiniband to this whole container, instead of to the program alone in a namespace; for
    /// containers that may make none
    #[arg(long)]
    pub in_place: bool,
    /// Where no balboad serves, start one, which ends with its last program; what stands from here to -- are balboad's
    /// options (see balboad --help), and without any there are two software cards
    #[arg(
        long,
        num_args = 0..,
        allow_hyphen_values = true,
        value_terminator = "--",
        value_name = "OPTION OF BALBOAD"
    )]
    pub start: Option<Vec<OsString>>,
    /// The program and its arguments
    #[arg(
        required_unless_present = "start",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

/// What answers RDMA netlink is asked.
#[derive(Debug, Args)]
pub struct AnswerNetlink {
    /// The first number of a descriptor that is such a socket
    pub first: u32,
    /// The first number above those
    pub end: u32,
    /// What the program has for /sys/class
    pub class: PathBuf,
    /// Have a process do so whose parent has ended
    #[arg(long)]
    pub detach: bool,
}

/// What `balboa run --start` runs.
#[derive(Debug, Args)]
pub struct StartBalboad {
    /// Where it is to serve.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Its options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<OsString>,
}

/// `balboa list`.
#[derive(Debug, Args)]
pub struct List {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa show`, and all else that shows one card.
#[derive(Debug, Args)]
pub struct Show {
    /// The state directory of balboad.
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
    /// The state directory of balboad.
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
    /// The state directory of balboad.
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
    /// The state directory of balboad.
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

/// `balboa ping`.
#[derive(Debug, Args)]
pub struct Ping {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The address of a card: of IPv4, or of IPv6
    pub address: Peer,
    /// The card that asks [default: that in whose network the address is]
    #[arg(short = 'd', long, value_name = "CARD")]
    pub card: Option<CardName>,
    /// How often, a second apart
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub count: u32,
    /// Print JSON, a document in each line
    #[arg(long)]
    pub json: bool,
}

/// The address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub std::net::IpAddr);

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse().map(Self);
        address.map_err(|_| "write an address of IPv4 (A.B.C.D) or IPv6 (2001:db8::1)".to_owned())
    }
}

/// `balboa doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa status`.
#[derive(Debug, Args)]
pub struct Status {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// A number of seconds, with a fraction or without.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "write seconds from 0.05 to 3600".to_owned())
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

const EXAMPLES: &str = "\
Two software cards, and ib_write_bw between them:
  balboa run --start -- ib_write_bw -d balboa0 &
  balboa run --start -- ib_write_bw -d balboa1 127.0.0.1

The same with a balboad that stays:
  balboad --soft 2 --state-dir D &
  balboa run --state-dir D -- ib_write_bw -d balboa0 &
  balboa run --state-dir D -- ib_write_bw -d balboa1 127.0.0.1

Exit codes: 2 for wrong arguments; those of the commands are in their own help.";

const RUN_HELP: &str = "\
The program sees the cards as balboa0, balboa1, ... in /sys/class/infiniband, and no other RDMA
device. Nothing outside changes, and no privilege is needed where user namespaces are allowed.
Waits up to 5 s for balboad.

With --start a balboad is started where none serves the state directory; of programs that come at once one starts it.
What it logs is in balboad.log there. It ends 5 s after the last program that balboa run has run with it, and all their
children, have ended or closed the descriptor that they were given, unless one is still connected. A balboad that serves
there already is used; where it was started with other options than those asked for, or serves another network
namespace, that is told. In another network namespace than the balboad of the user's own directory serves, that is
net-NUMBER in it.

Exit code: the program's own; 125 when balboa itself fails, its arguments are wrong, or balboad cannot be started or was
started with other options; 126 when the program cannot be executed, 127 when it is not found.

Examples:
  balboa run -- ibv_devinfo
  balboa run --state-dir D -- ibv_rc_pingpong -d balboa0 -g 1
  balboa run --start -- ibv_devinfo
  balboa run --start --soft 1 --ip 10.0.0.1 -- ib_write_bw -d balboa0
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

const PING_HELP: &str = "\
A card of this machine's looks for the address on its link (ARP, neighbour discovery) and asks the connection manager
there, from queue pair 1 to queue pair 1, for a service that every balboad has. Another one (a kernel with an RNIC or
rxe) says that it does not know the service. Silence proves nothing about an RNIC: a kernel that has not loaded ib_cm
does not answer, and what filters UDP port 4791 keeps question and answer out.

Exit codes: 0 a balboad answered; 1 no balboad here could ask; 2 wrong arguments; 3 another connection manager answered;
4 nobody did. Of several answers the best counts.

Examples:
  balboa ping 10.77.0.2
  balboa ping -d balboa1 --count 1 --json 2001:db8::7";

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

const RESET_HELP: &str = "\
Its programs get IBV_EVENT_DEVICE_FATAL first, and what they have under way is flushed. When the last of them has
closed the card, or ended, it comes up anew, with the addresses that it had. The others on balboad are left alone.

Exit codes: 0 it was reset; 1 it could not be, and the reason was told; 2 wrong arguments; 3 the answer was no.

Examples:
  balboa reset balboa0
  balboa reset --state-dir D balboa0 --yes";

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
