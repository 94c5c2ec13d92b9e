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
mod qos;
mod services;

pub use images::{Flash, Image, Plan};
pub use port::{Action, Addr, Address, AddressInVlan, Capture, Link};
pub use qos::{Qos, QosAction};
pub use services::{Mode, Service, Settings, Side, Users};

use images::{FLASH_HELP, IMAGE_HELP};
use port::{ADDR_HELP, CAPTURE_HELP, LINK_HELP};
use qos::QOS_HELP;
use services::SERVICE_HELP;

/// Run verbs programs on Balboa cards, and watch and manage the cards
#[derive(Debug, Parser)]
#[command(name = "balboa", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program that finds the cards of a balboad as its RDMA devices
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// List the cards, a line each
    #[command(after_help = LIST_HELP)]
    List(List),
    /// Show the properties of a card, and the programs that use it
    #[command(after_help = SHOW_HELP)]
    Show(Show),
    /// Show the counters of a card
    #[command(after_help = COUNTERS_HELP)]
    Counters(Counters),
    /// Show the traffic of cards, programs and QPs, and refresh it
    #[command(after_help = TOP_HELP)]
    Top(Top),
    /// Measure the speed of messages between two cards, and check their bytes
    #[command(after_help = PERF_HELP)]
    Perf(Perf),
    /// Find out whether a balboad, another connection manager or nothing answers at an address
    #[command(after_help = PING_HELP)]
    Ping(Ping),
    /// Find faults of this machine that keep programs from the cards, and tell how to mend each
    #[command(after_help = DOCTOR_HELP)]
    Doctor(Doctor),
    /// Show the cards, connections and clients of a balboad
    #[command(after_help = STATUS_HELP)]
    Status(Status),
    /// Take the port of a card off its cable, or put it back
    #[command(after_help = LINK_HELP)]
    Link(Link),
    /// Show, add and delete the addresses of a card, which are its GIDs
    #[command(after_help = ADDR_HELP)]
    Addr(Addr),
    /// Show and set which priorities of a card go first, and which have flow control
    #[command(after_help = QOS_HELP)]
    Qos(Qos),
    /// Capture the frames at the port of a running card in a pcapng file
    #[command(after_help = CAPTURE_HELP)]
    Capture(Capture),
    /// Show, attach and detach services, which see the packets of queue pairs
    #[command(after_help = SERVICE_HELP, disable_help_subcommand = true)]
    Service {
        /// The subcommand.
        #[command(subcommand)]
        action: Service,
    },
    /// Reset a card, which disconnects its programs
    #[command(after_help = RESET_HELP)]
    Reset(Reset),
    /// Load images into running cards, and restore earlier ones
    #[command(after_help = FLASH_HELP, disable_help_subcommand = true)]
    Flash {
        /// The subcommand.
        #[command(subcommand)]
        action: Flash,
    },
    /// Make, inspect, check and sign images of cards
    #[command(after_help = IMAGE_HELP, disable_help_subcommand = true)]
    Image {
        /// The subcommand.
        #[command(subcommand)]
        action: Image,
    },
    /// Give the cards to containers by the Container Device Interface
    #[command(after_help = CDI_HELP, disable_help_subcommand = true)]
    Cdi {
        /// The subcommand.
        #[command(subcommand)]
        action: Cdi,
    },
    /// Print the script that completes this command line in a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Start a balboad that ends with its last program, for balboa run --start
    #[command(hide = true)]
    StartBalboad(StartBalboad),
    /// Answer the RDMA netlink sockets of a program, for balboa run
    #[command(hide = true)]
    AnswerNetlink(AnswerNetlink),
    /// Write the manual pages
    #[command(hide = true)]
    Manual {
        /// The directory for the pages, which must exist
        directory: PathBuf,
    },
    /// Give a card to vfio-pci, so that balboad can drive it (as root)
    #[command(after_help = BIND_HELP)]
    Bind {
        /// The card's PCI address, as lspci -D prints it
        #[arg(value_name = "PCI-ADDRESS")]
        address: PciAddress,
    },
    /// Give a card back to the kernel (as root)
    #[command(after_help = UNBIND_HELP)]
    Unbind {
        /// The card's PCI address
        #[arg(value_name = "PCI-ADDRESS")]
        address: PciAddress,
    },
}

/// The balboad that serves the command.
#[derive(Clone, Debug, Default, Args)]
pub struct StateDir {
    /// Use the balboad that serves this directory [default: $BALBOA_STATE_DIR, else the user's own: /run/balboa
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
    /// Write the specification by which container runtimes give the cards of a balboad to containers
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
    /// Put the cards into /dev/infiniband of this whole container, in place of a namespace of the program alone; for
    /// containers that may make no namespaces
    #[arg(long)]
    pub in_place: bool,
    /// Start a balboad if none serves, which ends with its last program; the words up to -- are its options (see
    /// balboad --help), and without options it runs two software cards
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

/// `balboa answer-netlink`.
#[derive(Debug, Args)]
pub struct AnswerNetlink {
    /// The first descriptor of the sockets
    pub first: u32,
    /// The number behind the sockets' last descriptor
    pub end: u32,
    /// The directory that the program sees as /sys/class
    pub class: PathBuf,
    /// Answer in a process whose parent has ended
    #[arg(long)]
    pub detach: bool,
}

/// `balboa start-balboad`, which `balboa run --start` runs.
#[derive(Debug, Args)]
pub struct StartBalboad {
    /// The directory that balboad serves.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The options of balboad
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
    /// Read the counters every SECONDS seconds, and show those that have changed [default: 1]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=86400)
    )]
    pub watch: Option<u32>,
    /// End after N rounds of --watch
    #[arg(long, value_name = "N", requires = "watch")]
    pub count: Option<u64>,
    /// Print JSON; with --watch, a document on each line
    #[arg(long)]
    pub json: bool,
}

/// `balboa top`.
#[derive(Debug, Args)]
pub struct Top {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Refresh every N seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
    /// End after N rounds
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print JSON, a document on each line
    #[arg(long)]
    pub json: bool,
}

/// `balboa perf`.
#[derive(Debug, Args)]
pub struct Perf {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// Post the messages from this card
    #[arg(long, value_name = "CARD", default_value = "balboa0")]
    pub from: CardName,
    /// Post them to this card, which may be the same one
    #[arg(long, value_name = "CARD", default_value = "balboa1")]
    pub to: CardName,
    /// Use the GIDs of this index [default: the first that is an IPv4 address on both cards, else 0]
    #[arg(long, value_name = "INDEX")]
    pub gid: Option<u8>,
    /// Measure each of the nine figures for N seconds, from 0.05 to 3600
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
    /// The IPv4 or IPv6 address
    pub address: Peer,
    /// Ask from this card [default: the card whose network has the address]
    #[arg(short = 'd', long, value_name = "CARD")]
    pub card: Option<CardName>,
    /// Ask N times, a second apart
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub count: u32,
    /// Print JSON, a document on each line
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
    /// Reset without asking for confirmation
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

Exit codes: 2 for wrong arguments; the help of each command lists its own.";

const RUN_HELP: &str = "\
The program sees the cards as balboa0, balboa1, ... in /sys/class/infiniband, and no other RDMA
device. Nothing outside changes, and no privilege is needed where user namespaces are allowed.
balboa waits up to 5 s for balboad.

With --start, balboa starts a balboad if none serves the state directory; of programs that begin at once, one starts it.
Its log is balboad.log in that directory. It ends 5 s after the last program that balboa run has run with it, and all
their children, have ended or closed the descriptor that they were given, unless one is still connected. If a balboad
serves the directory already, balboa uses it, and warns when it was started with other options or serves another network
namespace. If the balboad of the user's own directory serves another network namespace than the program's, balboa uses
the directory net-NUMBER in it.

Exit code: the program's own; 125 if balboa itself fails, its arguments are wrong, or balboad cannot be started or was
started with other options; 126 if the program cannot be executed, 127 if it is not found.

Examples:
  balboa run -- ibv_devinfo
  balboa run --state-dir D -- ibv_rc_pingpong -d balboa0 -g 1
  balboa run --start -- ibv_devinfo
  balboa run --start --soft 1 --ip 10.0.0.1 -- ib_write_bw -d balboa0
  balboa run -- bash          # a shell whose programs all see the cards";

const LIST_HELP: &str = "\
Verbs programs know a card by its name. Its address is that on the PCI bus; software cards have an address of the same
form. A card without a name is on the bus, but no balboad drives it: give it to one (balboa bind, balboad --vfio).

Exit codes: 0 the cards were listed; 1 no balboad answers as it should, and no card is on the bus; 2 wrong arguments.

Examples:
  balboa list
  balboa list --state-dir D --json";

const SHOW_HELP: &str = "\
Exit codes: 0 the card was shown; 1 no balboad answers as it should, or it has no such card; 2 wrong arguments.

Examples:
  balboa show balboa0
  balboa show --state-dir D balboa0 --json";

const COUNTERS_HELP: &str = "\
Counters have the names that rdma, ethtool and node_exporter know from other cards, where they count the same. They
begin at 0 when the card comes up. With --watch, balboa shows those that have changed, each with its rate.

Exit codes: 0 the counters were shown; 1 no balboad answers as it should, or it has no such card; 2 wrong arguments.

Examples:
  balboa counters balboa0
  balboa counters balboa0 --watch=5 --json";

const TOP_HELP: &str = "\
Keys: q quits, s sorts by another column. TX and RX of a card count payload; the packets of programs and QPs are counted
by their PSNs. If standard output is no terminal, balboa prints a line for each card in each round.

Exit codes: 0 the traffic was shown; 1 no balboad answers as it should; 2 wrong arguments.

Examples:
  balboa top
  balboa top --state-dir D --seconds 5
  balboa top --count 1 --json";

const PERF_HELP: &str = "\
A verbs program, which balboa runs as balboa run does, measures WRITE, READ and SEND by one QP: the latency of 8 bytes
from the call that posts them to the completion, one message at a time; bytes a second in messages of 64 KiB, and
messages of 64 bytes a second, 32 at a time. The program polls, so that it takes a core. It checks the bytes that have
arrived after each figure. Other programs on the cards go on, and share them. Figures of software cards describe this
machine, not a card.

Exit codes: 0 measured; 1 a message failed or had wrong bytes, or a device refused a call; 2 wrong arguments; 125 the
program could not be run, as with balboa run.

Examples:
  balboa perf
  balboa perf --state-dir D --from balboa0 --to balboa0 --seconds 5 --json";

const COMPLETIONS_HELP: &str = "\
Exit codes: 0 the script was printed; 1 it could not be; 2 wrong arguments.

Examples:
  balboa completions bash > /etc/bash_completion.d/balboa
  balboa completions zsh > ~/.zfunc/_balboa";

const PING_HELP: &str = "\
A card of this machine resolves the address on its link (ARP, neighbour discovery) and asks the connection manager
there, from queue pair 1 to queue pair 1, for a service that every balboad has. Another connection manager (of a kernel
with an RNIC or rxe) answers that it does not know the service. Silence proves nothing about an RNIC: a kernel that has
not loaded ib_cm does not answer, and a filter of UDP port 4791 drops question and answer.

Exit codes: 0 a balboad answered; 1 no balboad here could ask; 2 wrong arguments; 3 another connection manager answered;
4 nothing answered. Of several answers the best counts.

Examples:
  balboa ping 10.77.0.2
  balboa ping -d balboa1 --count 1 --json 2001:db8::7";

const DOCTOR_HELP: &str = "\
Each check prints a line: ok, - (there is nothing to check), note (programs work, but something is or was lost), or
WRONG (programs fail), then the finding and, behind a colon, the mend. Run doctor as the user whose programs use the
cards.

Exit codes: 0 no check found a fault; 1 one did, or could not be made; 2 wrong arguments.

Examples:
  balboa doctor
  balboa doctor --state-dir D --json";

const STATUS_HELP: &str = "\
Exit codes: 0 the status was shown; 1 no balboad answers as it should; 2 wrong arguments.

Examples:
  balboa status
  balboa status --state-dir D --json";

const RESET_HELP: &str = "\
The programs of the card get IBV_EVENT_DEVICE_FATAL first, and their outstanding requests are flushed. When the last of
them has closed the card, or ended, the card comes up anew, with the addresses that it had. Programs on other cards go on.

Exit codes: 0 the card was reset; 1 it could not be, for the reason that was printed; 2 wrong arguments; 3 you declined.

Examples:
  balboa reset balboa0
  balboa reset --state-dir D balboa0 --yes";

const CDI_HELP: &str = "\
Each card is a device balboa/card=balboaN, and balboa/card=all is all of them. A container with such a device also gets
balboad's state directory, this tool and the providers; in it, `balboa run` starts programs.

Exit codes: 0 done; 1 failed, for the reason that was printed; 2 wrong arguments.

Examples:
  balboa cdi generate -o /etc/cdi/balboa.json
  podman run --device balboa/card=balboa0 IMAGE balboa run -- ibv_devinfo";

const BIND_HELP: &str = "\
The card stays bound until balboa unbind or a reboot. It must be behind an IOMMU.

Exit codes: 0 the card is bound; 1 it is not, for the reason that was printed; 2 wrong arguments.

Examples:
  lspci -D -d 10ee:903f
  balboa bind 0000:3b:00.0";

const UNBIND_HELP: &str = "\
Exit codes: 0 done; 1 failed, for the reason that was printed; 2 wrong arguments.";

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
