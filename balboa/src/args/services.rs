//! The command lines about services: `balboa service`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::port::number;
use super::{Address, CardName, Show, StateDir};

/// `balboa service`.
#[derive(Debug, Subcommand)]
pub enum Service {
    /// List the services that balboad knows, and those that are attached
    List(Show),
    /// Show the counts of the attached services, in all and for each queue pair
    Stats(Show),
    /// Attach services to queue pairs: all of the services, or none
    Attach {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The services, in the order in which incoming packets pass them
        #[arg(required = true, value_name = "SERVICE")]
        services: Vec<String>,
        /// The settings of the services.
        #[command(flatten)]
        settings: Settings,
        /// The queue pairs.
        #[command(flatten)]
        users: Users,
        /// Attach the services at one end of messages alone: requester for the data of this end's READs, responder for
        /// the peer's WRITEs and SENDs [default: both]
        #[arg(long, value_enum)]
        side: Option<Side>,
        /// Replace the services that are attached there: messages that have begun keep those, and all later ones have
        /// these
        #[arg(long)]
        replace: bool,
    },
    /// Load a service of yours, a signed WebAssembly module, into a card, so that it can be attached
    Load {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The module, signed by FILE.minisig beside it
        file: PathBuf,
        /// Trust the public keys (NAME.pub) in this directory [default: /etc/balboa/keys]
        #[arg(long, value_name = "DIR")]
        keys: Option<PathBuf>,
        /// Accept a module without a signature
        #[arg(long)]
        allow_unsigned: bool,
    },
    /// Unload a service of yours from a card
    Unload {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The service, by its name
        service: String,
        /// Unload it while it is attached, too; there it stays until it is detached
        #[arg(long)]
        now: bool,
    },
    /// Show what a service of yours does with the packets of a capture; asks no balboad
    Test {
        /// The module
        file: PathBuf,
        /// The capture, pcap or pcapng, as balboa capture and tcpdump write them
        #[arg(long, value_name = "FILE")]
        pcap: PathBuf,
    },
    /// Detach services from queue pairs
    Detach {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The queue pairs, as they were named to attach the services.
        #[command(flatten)]
        users: Users,
        /// Detach while messages are under way, too; those keep their services to their end
        #[arg(long)]
        now: bool,
    },
}

/// The settings of services, which they get when they are attached.
#[derive(Debug, Args)]
pub struct Settings {
    /// Have inspect look for the patterns in this file, one on a line: a text, or hexadecimal digits behind 0x
    #[arg(long, value_name = "FILE")]
    pub patterns: Option<PathBuf>,
    /// Have inspect refuse or count packets with a pattern [default: refuse]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Have classifier refuse N words in a row that look like machine code [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub words: Option<u16>,
}

/// The fate of a packet with a pattern.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Mode {
    /// End the connection before a byte of the packet is placed
    Refuse,
    /// Let the packet pass, and count its patterns
    Count,
}

/// The end of messages at which services stand.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Side {
    /// The end that asks
    Requester,
    /// The end that is asked
    Responder,
}

/// The queue pairs that services are for.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Users {
    /// Take the queue pair of this number, which must exist
    #[arg(long, value_name = "N", value_parser = number)]
    pub qp: Option<u32>,
    /// Take all reliable connections of this process, present and future; it must have opened the card
    #[arg(long, value_name = "PID")]
    pub process: Option<u32>,
    /// Take all reliable connections of the card with the peer of this address, present and future
    #[arg(long, value_name = "ADDRESS")]
    pub peer: Option<Address>,
    /// Take all reliable connections of the card that send with this DSCP, the upper six bits of their traffic class,
    /// present and future
    #[arg(long, value_name = "0..63", value_parser = clap::value_parser!(u8).range(..=63))]
    pub dscp: Option<u8>,
}

pub(super) const SERVICE_HELP: &str = "\
Services see the payload that arrives along reliable connections: the peer's WRITEs and SENDs, and the data of this
end's READs. The services of a queue pair end with it, those of a process with the process; those of a peer or a DSCP
stay until they are detached, the card is reset or balboad ends. A queue pair has one chain: its own, else its
process's, else its peer's, else its DSCP's. A message that is under way when services are attached goes on without
them. Only the user who runs balboad may attach services, and only to software cards.

inspect looks for the patterns in a file. Each line is a pattern: a text as it stands, or bytes as hexadecimal digits
behind 0x. inspect skips lines that are empty or begin with #. A file has at most 256 patterns, each of at most 128
bytes, of 4096 bytes together.

load makes a module of WebAssembly a service of the card, for all who may attach services there; balboa image sign
signs it. It stays until it is unloaded or balboad ends.

classifier looks for x86-64 machine code in words of 64 bytes. A network decides, and it errs: see its page before you
attach it.

Exit codes: 0 done; 1 failed without any change, for the reason that was printed; 2 wrong arguments.

Examples:
  balboa service list balboa1
  balboa service attach balboa1 preprocess --peer 10.77.0.1
  balboa service attach balboa1 preprocess --qp 0x000017
  balboa service attach balboa1 preprocess --process 4711 --side requester
  balboa service attach balboa1 inspect --patterns FILE --dscp 26
  balboa service attach balboa1 inspect --patterns FILE --peer 10.77.0.1
  balboa service attach balboa1 inspect preprocess --patterns FILE --mode count --qp 0x000017
  balboa service attach balboa1 inspect --patterns OTHER --peer 10.77.0.1 --replace
  balboa service attach balboa1 classifier --words 8 --peer 10.77.0.1
  balboa service stats balboa1 --json
  balboa service load balboa1 rows.wasm --keys ~/keys
  balboa service attach balboa1 rows --peer 10.77.0.1
  balboa service test rows.wasm --pcap frames.pcapng
  balboa service detach balboa1 --peer 10.77.0.1 --now";
