//! Verbs programs that attack, and the one that they are to leave alone.

#![forbid(unsafe_code)]

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use verbs_programs::hostile::{
    self, bystander, cable, control, queues, relay, requests, retries, silence, translations,
    unanswered,
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
    /// Send a message to and fro, and print how long the round trips take, and what balboad works meanwhile
    Bystander {
        /// balboad's process id
        balboad: i32,
    },
    /// Keep threads busy
    Load {
        /// How many
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
        /// QPs, each of which asks for another
        #[arg(long)]
        qps: u32,
        /// The number of the first neighbour
        #[arg(long, default_value_t = 0)]
        first: u32,
    },
    /// Register and deregister a page without end
    Pages {
        /// QPs beside
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
    /// Register as much of nothing as is given
    Void {
        /// Bytes that are asked for at first
        #[arg(long)]
        bytes: usize,
        /// Register and deregister it without end
        #[arg(long)]
        again: bool,
        /// State directory
        directory: PathBuf,
    },
    /// Open the device, register a page, and leave
    Visit,
    /// Send messages that nobody acknowledges
    UnderWay {
        /// QPs
        #[arg(long)]
        qps: usize,
        /// Messages on each
        #[arg(long)]
        messages: usize,
    },
    /// Take places on the first two cards, and keep them
    Hold {
        /// How many
        #[arg(long)]
        places: usize,
        /// State directory
        directory: PathBuf,
    },
    /// Ring without end by a page that is relayed
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
    /// Let completion queues run over without end
    Overruns {
        /// How many at least
        #[arg(long)]
        queues: usize,
    },
    /// Ask for what is refused without end
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
    /// Register memory beside a mapping whose path is no text
    Path {
        /// Directory for the file
        directory: PathBuf,
    },
    /// Let a card use memory that does not answer
    Unanswered {
        /// What for
        by: unanswered::Use,
        /// Whose memory
        #[arg(long = "memory")]
        kind: unanswered::MemoryKind,
        /// Directory to be made for a file system
        #[arg(long)]
        place: PathBuf,
        /// Device node that it is made with
        #[arg(long)]
        node: PathBuf,
    },
    /// Connect by librdmacm and part, again and again
    Connect {
        /// Where the side that is asked listens
        #[arg(long)]
        port: u16,
        /// How often, if not without end
        #[arg(long)]
        times: Option<u64>,
    },
    /// Hold connections of librdmacm's
    HoldConnections {
        /// How many
        #[arg(long)]
        pairs: usize,
        /// Where the side that is asked listens
        #[arg(long)]
        port: u16,
    },
    /// Ask for connections without end, and take up none
    Requests {
        /// State directory
        directory: PathBuf,
        /// Whence
        from: Ipv4Addr,
        /// Where
        to: Ipv4Addr,
    },
    /// Be a card's peer that asks for connections without end
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
    /// Print how many datagrams come to a path
    Listen {
        /// The path
        path: PathBuf,
    },
    /// Be a card's peer, and somebody who speaks in its name
    Forge {
        /// The card's device
        device: String,
        /// The card's end of its cable
        local: PathBuf,
        /// The other end
        remote: PathBuf,
    },
    /// Send to a card from outside in its own name, and in nobody's
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
        Command::Hold { places, directory } => relay::hold(&directory, places),
        Command::Ring { directory } => relay::ring(&directory),
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
