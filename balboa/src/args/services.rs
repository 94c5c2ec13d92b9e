//! The command lines about services: `balboa service`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::port::number;
use super::{Address, CardName, Show, StateDir};

/// `balboa service`.
#[derive(Debug, Subcommand)]
pub enum Service {
    /// List the services that there are, and those that are attached
    List(Show),
    /// Show what the attached services did, of all their queue pairs and of each
    Stats(Show),
    /// Attach services to queue pairs, all of them or none
    Attach {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The services, in the order in which packets that come meet them
        #[arg(required = true, value_name = "SERVICE")]
        services: Vec<String>,
        /// What the services are told.
        #[command(flatten)]
        settings: Settings,
        /// To which queue pairs.
        #[command(flatten)]
        users: Users,
    },
    /// Detach them
    Detach {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// From which queue pairs, as they were attached.
        #[command(flatten)]
        users: Users,
        /// Also while messages are under way: those that have begun keep their services to their end
        #[arg(long)]
        now: bool,
    },
}

/// What services are told when they are attached.
#[derive(Debug, Args)]
pub struct Settings {
    /// inspect: the patterns to look for, one a line, as text or as hexadecimal digits behind 0x
    #[arg(long, value_name = "FILE")]
    pub patterns: Option<PathBuf>,
    /// inspect: what becomes of a packet with a pattern [default: refuse]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
}

/// What becomes of a packet with a pattern.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Mode {
    /// It ends its connection, before a byte of it is placed
    Refuse,
    /// It goes on, and its patterns are counted
    Count,
}

/// The queue pairs that services are for.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Users {
    /// The queue pair of that number, which is there
    #[arg(long, value_name = "N", value_parser = number)]
    pub qp: Option<u32>,
    /// All reliable connections of the card with the peer of that address, those to come too
    #[arg(long, value_name = "ADDRESS")]
    pub peer: Option<Address>,
}

pub(super) const SERVICE_HELP: &str = "\
Services see payload that comes along reliable connections: WRITEs and SENDs of the peer's, and what this end READs.
Those of a queue pair end with it; those of a peer stay until they are detached, the card is reset or balboad ends.
Messages that had begun when services were attached go on without them. Only the user who runs balboad may attach
services, and only to software cards.

inspect looks for the patterns of a file. Each line is one, a text as it stands or bytes as hexadecimal digits behind
0x; lines that are empty or begin with # are none. At most 256, each of 128 bytes, together of 4096.

Exit codes: 0 done; 1 it could not be done, nothing has changed, and the reason was told; 2 wrong arguments.

Examples:
  balboa service list balboa1
  balboa service attach balboa1 preprocess --peer 10.77.0.1
  balboa service attach balboa1 preprocess --qp 0x000017
  balboa service attach balboa1 inspect --patterns FILE --peer 10.77.0.1
  balboa service attach balboa1 inspect preprocess --patterns FILE --mode count --qp 0x000017
  balboa service stats balboa1 --json
  balboa service detach balboa1 --peer 10.77.0.1 --now";
