//! balboad: drives cards from user space and serves verbs programs.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use card_driver::backend::CardBackend;
use card_driver::bringup::bring_up;
use card_driver::soft;
use card_driver::vfio::{Life, VfioBackend};
use host_view::shadow_device::{self, PortAddresses, ShadowDevices};
use kdriver_shim::args::{Args, Cards, exit};
use kdriver_shim::cards::Card;
use kdriver_shim::error::Error;
use kdriver_shim::server::Server;
use kdriver_shim::state_dir::StateDir;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use softcard::Link;
use softcard::port::FRAME_CAPACITY;

// What the kernel sends, with an Ethernet header and a tag, is a frame of the card's.
const _: () = assert!((shadow_device::MTU as usize) + 18 < FRAME_CAPACITY);

fn main() -> ExitCode {
    let args: Args = match terminal::parse("balboad", "command", exit::USAGE) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let _log = terminal::start_log(args.verbose);
    let cards = match args.cards() {
        Ok(cards) => cards,
        Err(sentence) => {
            terminal::complain("balboad", sentence);
            return ExitCode::from(exit::USAGE);
        }
    };
    match run(&args, &cards) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            terminal::complain("balboad", format_args!("{error:#}"));
            let running = matches!(error.downcast_ref(), Some(Error::Running { .. }));
            ExitCode::from(if running { exit::RUNNING } else { exit::FAILURE })
        }
    }
}

fn run(args: &Args, wanted: &Cards) -> anyhow::Result<()> {
    // Before any thread starts: all of them are to leave these signals to the descriptor.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("blocking signals")?;
    let stop = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("signalfd")?;
    raise_descriptor_limit();
    raise_memory_limit();

    let uid = nix::unistd::geteuid().as_raw();
    let dir = shim_abi::state_dir(args.state_dir.as_deref(), uid);
    let mut state = StateDir::claim(&dir, uid)?;
    let shadow = args.shadow.then(|| show(wanted)).transpose()?;
    let taps = shadow.as_ref().map(ShadowDevices::taps).unwrap_or_default();
    let (runtime, backends) =
        soft::start(&wanted.soft, &taps, args.pcap.clone(), args.faults.clone(), args.seed)?;
    let mut backends: Vec<Arc<dyn CardBackend>> =
        backends.into_iter().map(|backend| Arc::new(backend) as Arc<dyn CardBackend>).collect();
    // Held to the end of this thread's work.
    let life = Life::hold()?;
    for address in &wanted.vfio {
        backends.push(Arc::new(VfioBackend::open(*address, &life, shim_abi::DMA_PIECE)?));
    }
    let mut cards = Vec::new();
    for ((number, backend), address) in (0u32..).zip(backends).zip(&wanted.addresses) {
        let manifest = wanted.manifest(number)?;
        let mut card = Card::new(bring_up(number, backend, *address, &manifest)?);
        card.device.serve_interrupts()?;
        cards.push(card);
    }
    let listener = state.listen()?;
    let mut server = Server::new(cards, listener, uid, &state)?;
    if let Some(shadow) = shadow {
        server.follow_addresses_of(shadow)?;
    }
    let mut out = std::io::stdout();
    // Who started us may not care, and may have closed the other end.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());

    let outcome = server.run(stop.as_fd());
    if let Ok(Some(signal)) = stop.read_signal() {
        log::info!("signal {}: balboad stops", signal.ssi_signo);
    }
    // The back-ends go with the server; the card thread ends when the last of them has gone.
    drop(server);
    runtime.shutdown();
    outcome.context("the control thread failed")
}

/// Lets the kernel show the software cards.
fn show(wanted: &Cards) -> Result<ShadowDevices, host_view::Error> {
    let addresses = wanted.addresses.iter().take(wanted.soft.len());
    let addresses: Vec<_> =
        addresses.map(|it| PortAddresses { mac: it.mac(), ip: it.ip, prefix: it.prefix }).collect();
    let shadow = ShadowDevices::create(&addresses)?;
    shadow_device::keep_apart(wanted.soft.iter().filter_map(|card| match &card.link {
        Link::Packet { device } => Some(device.as_str()),
        Link::Switch | Link::Unix { .. } => None,
    }));
    Ok(shadow)
}

/// The rings of cards behind an IOMMU are locked in memory; the soft limit is often 8 MiB.
fn raise_memory_limit() {
    let raised = getrlimit(Resource::RLIMIT_MEMLOCK)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard));
    if let Err(errno) = raised {
        log::debug!("the limit of locked memory stays as it is: {errno}");
    }
}

/// A client costs up to a dozen descriptors; the soft limit is often 1,024.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = raised {
        log::debug!("the limit of descriptors stays as it is: {errno}");
    }
}
