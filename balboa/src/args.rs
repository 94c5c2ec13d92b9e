//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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
