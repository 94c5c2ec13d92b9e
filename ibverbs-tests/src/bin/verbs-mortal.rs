//! A verbs program that dies, or sees others die.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use verbs_programs::mortal::{attack, channels, copies, death, fork, hand, pair, work};

/// Dies, or sees others die, and checks that all goes by the book.
///
/// Exit codes: 0 all was well, or it was asked to stop; 1 something was not by the book; 2 wrong
/// arguments; 3 the card died, by the book; 4 the peer is gone, by the book.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Survive balboad's death in a call, and use the next balboad
    Survive {
        /// The call
        doing: death::Doing,
        /// Expect that only the cards die, and balboad goes on
        #[arg(long)]
        card: bool,
    },
    /// Wait for reading and writing at once on channels of every kind, before and after balboad's end
    Channels,
    /// Make control calls while balboad is stopped
    Stopped,
    /// Fork while threads are in calls, and try every call in the children
    Children,
    /// Move messages while children live, execute and work
    Family,
    /// Transfer memory that children share and write
    Copies,
    /// End, and leave the descriptors to a child
    Heir,
    /// Become another program
    Execute,
    /// Reserve memory regions by hand, and never commit them
    Reserve {
        /// State directory
        directory: PathBuf,
    },
    /// Send messages to and fro with another process
    Pair {
        /// The socket by which the processes meet
        path: PathBuf,
        /// Stop once this file exists
        stop: PathBuf,
        /// Begin the exchange
        #[arg(long)]
        lead: bool,
    },
    /// Move messages between two QPs
    Transfers {
        /// Stop once this file exists
        stop: PathBuf,
    },
    /// Make and destroy objects of all kinds
    Churn {
        /// Stop once this file exists
        stop: PathBuf,
    },
    /// Throw garbage, connections and descriptors at the sockets in a directory
    Attack {
        /// The directory
        directory: PathBuf,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let done = |outcome: anyhow::Result<()>| outcome.map(|()| 0);
    let code = match Arguments::parse().command {
        Command::Survive { doing, card } => done(death::survive(doing, card)),
        Command::Channels => done(channels::channels()),
        Command::Stopped => done(death::stopped()),
        Command::Children => done(fork::children()),
        Command::Family => done(fork::family()),
        Command::Copies => done(copies::copies()),
        Command::Heir => done(fork::heir()),
        Command::Execute => done(fork::execute()),
        Command::Reserve { directory } => done(hand::reserve(&directory)),
        Command::Pair { path, stop, lead } => pair::run(&path, lead, &stop),
        Command::Transfers { stop } => work::transfers(&stop),
        Command::Churn { stop } => work::churn(&stop),
        Command::Attack { directory } => done(attack::attack(&directory)),
    };
    code.map(ExitCode::from)
}
