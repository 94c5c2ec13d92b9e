//! Verbs programs that attack, and the one that they are to leave alone.

#![forbid(unsafe_code)]

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use verbs_programs::hostile::{
    self, bystander, cable, control, queues, relayed_doorbells, requests, retries, silence,
    translations, unanswered,
};

/// Attacks, says "attacking", and goes on until it is killed.
///
/// Exit codes: 1 something failed; 2 wrong arguments.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send a message to and fro, and print the duration of the round trips and balboad's processor time
    Bystander {
        /// balboad's process id
        balboad: i32,
    },
    /// Keep threads busy
    Load {
        /// Number of threads
        threads: usize,
    },
    /// Send to receivers that are never ready
    NeverReady {
        /// Pairs of QPs
        #[arg(long)]
        pairs: usize,
    },
    /// Ask for neighbours that do not answer
    Silent {
        /// Number of QPs, each of which asks for another neighbour
        #[arg(long)]
        qps: u32,
        /// The number of the first neighbour
        #[arg(long, default_value_t = 0)]
        first: u32,
    },
    /// Register and deregister a page without end
    Pages {
        /// Number of other QPs
        #[arg(long)]
        qps: usize,
    },
    /// Hold QPs and regions
    Regions {
        /// QPs
        #[arg(long)]
        qps: usize,
        /// Regions of a page each
        #[arg(long)]
        regions: usize,
    },
    /// Register as many bytes without memory as balboad grants
    Void {
        /// Bytes of the first request
        #[arg(long)]
        bytes: usize,
        /// Register and deregister them without end
        #[arg(long)]
        again: bool,
        /// State directory
        directory: PathBuf,
    },
    /// Open the device, register a page, and leave
    Visit,
    /// Send messages that stay unacknowledged
    UnderWay {
        /// QPs
        #[arg(long)]
        qps: usize,
        /// Messages on each
        #[arg(long)]
        messages: usize,
    },
    /// Take places on the first two cards, by connections that stay
    Hold {
        /// Number of connections
        #[arg(long)]
        places: usize,
        /// State directory
        directory: PathBuf,
    },
    /// Ring doorbells without end by a page that balboad relays
    Ring {
        /// State directory
        directory: PathBuf,
    },
    /// Arm completion queues without end, and read no event
    Unread {
        /// Completion queues
        #[arg(long)]
        queues: usize,
    },
    /// Overrun completion queues without end
    Overruns {
        /// Least number of completion queues
        #[arg(long)]
        queues: usize,
    },
    /// Send requests that balboad refuses, without end
    Refusals {
        /// Connections at least
        #[arg(long)]
        connections: usize,
        /// State directory
        directory: PathBuf,
    },
    /// Ask for the status without end
    Ask {
        /// Connections
        #[arg(long)]
        connections: usize,
        /// State directory
        directory: PathBuf,
    },
    /// Register memory beside a mapping whose path is not UTF-8
    Path {
        /// Directory for the file
        directory: PathBuf,
    },
    /// Let a card use memory whose page faults stay unanswered
    Unanswered {
        /// Use of the memory
        by: unanswered::Use,
        /// Kind of the memory
        #[arg(long = "memory")]
        kind: unanswered::MemoryKind,
        /// Directory to make for a file system
        #[arg(long)]
        place: PathBuf,
        /// Device node that provides the memory
        #[arg(long)]
        node: PathBuf,
    },
    /// Connect and disconnect by librdmacm, again and again
    Connect {
        /// Port of the side that listens
        #[arg(long)]
        port: u16,
        /// Number of connections [default: without end]
        #[arg(long)]
        times: Option<u64>,
    },
    /// Hold connections of librdmacm's
    HoldConnections {
        /// Number of connections
        #[arg(long)]
        pairs: usize,
        /// Port of the side that listens
        #[arg(long)]
        port: u16,
    },
    /// Ask for connections without end, and complete none
    Requests {
        /// State directory
        directory: PathBuf,
        /// Own address
        from: Ipv4Addr,
        /// Address of the listener
        to: Ipv4Addr,
    },
    /// Play a card's peer that asks for connections without end
    RequestsByCable {
        /// State directory
        directory: PathBuf,
        /// The card's address
        card: Ipv4Addr,
        /// The card's end of its cable
        local: PathBuf,
        /// The other end
        remote: PathBuf,
    },
    /// Print the number of datagrams that arrive at a path
    Listen {
        /// The path
        path: PathBuf,
    },
    /// Play a card's peer, and an impostor with the peer's address
    Forge {
        /// The card's device
        device: String,
        /// The card's end of its cable
        local: PathBuf,
        /// The other end
        remote: PathBuf,
    },
    /// Send to a card from outside with its own address, and with an unknown one
    Impersonate {
        /// The card's device
        device: String,
        /// The card's end of its cable
        local: PathBuf,
        /// The other end
        remote: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Bystander { balboad } => bystander::run(balboad),
        Command::Load { threads } => hostile::load(threads),
        Command::NeverReady { pairs } => retries::never_ready(pairs),
        Command::Silent { qps, first } => silence::silent(qps, first),
        Command::Pages { qps } => translations::pages(qps),
        Command::Regions { qps, regions } => translations::regions(qps, regions),
        Command::Void { bytes, again, directory } => translations::empty(&directory, bytes, again),
        Command::Visit => translations::visit(),
        Command::UnderWay { qps, messages } => queues::under_way(qps, messages),
        Command::Hold { places, directory } => relayed_doorbells::hold(&directory, places),
        Command::Ring { directory } => relayed_doorbells::ring(&directory),
        Command::Unread { queues } => queues::unread(queues),
        Command::Overruns { queues } => queues::overruns(queues),
        Command::Ask { connections, directory } => control::ask(&directory, connections),
        Command::Refusals { connections, directory } => control::refusals(&directory, connections),
        Command::Path { directory } => control::path(&directory),
        Command::Unanswered { by, kind, place, node } => unanswered::used(kind, by, &place, &node),
        Command::Connect { port, times } => requests::connect(port, times),
        Command::HoldConnections { pairs, port } => requests::hold(pairs, port),
        Command::Requests { directory, from, to } => requests::by_client(&directory, from, to),
        Command::RequestsByCable { directory, card, local, remote } => {
            requests::by_cable(&directory, card, &local, &remote)
        }
        Command::Listen { path } => cable::listen(&path),
        Command::Forge { device, local, remote } => cable::forge(&device, &local, &remote),
        Command::Impersonate { device, local, remote } => {
            cable::impersonate(&device, &local, &remote)
        }
    }
}
