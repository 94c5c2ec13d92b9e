//! softcard: the software card as a program of its own.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{ArgAction, Args, Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use softcard::serve::{ServeConfig, Server};
use softcard::{Congestion, FaultSpec, Image, Link};

const AFTER_HELP: &str = "\
softcard prints one line, `ready`, to standard output once clients can connect; its log goes to
standard error. SIGUSR1 logs the client's resources and the counters. SIGTERM, SIGINT and SIGHUP end
softcard.

softcard serves one client at a time. When the client leaves, softcard unmaps its memory, resets the
card, and lets the next client connect. For QEMU, 10.1 or newer:

  -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem
  -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"PATH\"}}'

Exit codes: 0 ended by a signal; 1 a socket, the port or the kernel failed; 2 wrong arguments.";

/// The software card outside of balboad.
#[derive(Debug, Parser)]
#[command(name = "softcard", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve one card as a PCIe device, over vfio-user
    #[command(after_help = AFTER_HELP)]
    Serve(Box<Serve>),
    /// Print the script that completes this command line in a shell
    Completions {
        /// The shell
        shell: terminal::Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Manual {
        /// The directory for the pages, which must exist
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Serve {
    /// Listen for clients at this path; only this user can connect
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Connect the card's port to a pair of Unix datagram sockets that carry one Ethernet frame in a datagram (LOCAL,
    /// to which only this user can send, and REMOTE, which must be this user's, too), or to a network device
    #[arg(long, value_name = "unix:LOCAL,REMOTE|packet:DEVICE")]
    port: Link,
    /// Program the card with a verbs queue engine, or with the pass-through logic as published, over a model of
    /// the published stack
    #[arg(long, value_name = "vqe|stock|stock-old", default_value_t)]
    image: Image,
    /// Play an FPGA, which does not call itself a software card, and takes bitstreams of shells (balboa image make
    /// --bitstream) in place of software cards' images
    #[arg(long)]
    play_fpga: bool,
    /// Join the parts of a split store of 32 bytes, as no real card does: for drivers of a published image behind an
    /// emulator that splits such stores, which a real card counts as sent and does not send
    #[arg(long)]
    join_split_stores: bool,
    /// Notify peers of congestion (off), or also slow down when notified, as balboad --congestion
    #[arg(long, value_name = "off|dcqcn-paper|dcqcn-mlx5[,NAME=VALUE...]", default_value_t)]
    congestion: Congestion,
    /// Add faults to the cable, as balboad --fault; may be given several times
    #[arg(long = "fault", value_name = "FAULT[,FAULT...]")]
    faults: Vec<FaultSpec>,
    /// Derive the faults of the n-th frame each way from this seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write every frame to a pcapng file: a new one, one of your own, which is replaced, or a FIFO
    /// of your own that is read; no link is followed
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Log more, and repeated messages each time; twice: everything
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
}

fn main() -> ExitCode {
    let cli: Cli = match terminal::parse("softcard", "command", terminal::USAGE) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let outcome = match cli.command {
        Command::Serve(serve) => {
            if let Err(error) = serve.check() {
                terminal::complain("softcard", error);
                return ExitCode::from(terminal::USAGE);
            }
            let _log = terminal::start_log(serve.verbose);
            run(*serve)
        }
        Command::Completions { shell } => terminal::completions::<Cli>(shell).map_err(Into::into),
        Command::Manual { directory } => terminal::manual::<Cli>(&directory).map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain("softcard", error);
            ExitCode::FAILURE
        }
    }
}

impl Serve {
    /// Checks that the options fit together.
    fn check(&self) -> Result<(), softcard::Error> {
        self.faults.iter().try_for_each(|fault| fault.check_links([&self.port]))?;
        match self.image.is_published() && self.congestion != Congestion::default() {
            true => Err(softcard::Error::BadCongestion {
                item: self.congestion.to_string(),
                mend: "the published image does nothing about congestion; leave it out".into(),
            }),
            false => Ok(()),
        }
    }
}

fn run(serve: Serve) -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1] {
        signals.add(signal);
    }
    signals.thread_block().map_err(|errno| anyhow!("blocking signals: {errno}"))?;
    let signalled = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(|errno| anyhow!("signalfd: {errno}"))?;
    let Serve { socket, port, image, play_fpga, congestion, faults, seed, pcap, .. } = serve;
    let join_split_stores = serve.join_split_stores;
    let config = ServeConfig {
        socket,
        link: port,
        image,
        plays_fpga: play_fpga,
        congestion,
        faults,
        seed,
        capture: pcap,
        patience: ServeConfig::PATIENCE,
        join_split_stores,
    };
    if join_split_stores {
        log::warn!("the parts of a store of 32 bytes are taken for one store: no card does that");
    }
    let mut server = Server::new(config)?;
    let mut out = std::io::stdout();
    // The starter may have closed the other end.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
    loop {
        server.run(signalled.as_fd())?;
        let Ok(Some(signal)) = signalled.read_signal() else { continue };
        if signal.ssi_signo == Signal::SIGUSR1 as u32 {
            let counters = server.counters();
            let counters: Vec<_> = counters.iter().map(|(name, n)| format!("{name}={n}")).collect();
            log::info!("{}", counters.join(" "));
            continue;
        }
        log::info!("signal {}: softcard stops", signal.ssi_signo);
        return Ok(());
    }
}
