//! balboad: drives cards from user space and serves verbs programs.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bitstreams::Manifest;
use card_driver::address::PortAddress;
use card_driver::backend::CardBackend;
use card_driver::hosted::{HostedOptions, Meetings};
use card_driver::soft::{self, SoftCard};
use card_driver::vfio::{Life, VfioBackend};
use host_view::shadow_device::{self, PortAddresses, ShadowDevices};
use kdriver_shim::args::{Args, Seed, WantedCards, exit};
use kdriver_shim::cards::Card;
use kdriver_shim::error::Error;
use kdriver_shim::images::store::Store;
use kdriver_shim::images::{self, Known};
use kdriver_shim::lease::Lease;
use kdriver_shim::machine::OnMachine;
use kdriver_shim::protection::{self, ProtectionError};
use kdriver_shim::server::Server;
use kdriver_shim::service::{self, Watchdog};
use kdriver_shim::state_dir::StateDir;
use kdriver_shim::tunnel;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use softcard::Link;
use softcard::port::FRAME_CAPACITY;
use terminal::Log;

// The kernel's largest packet, with an Ethernet header and a tag, fits into a frame of the card's.
const _: () = assert!((shadow_device::MTU as usize) + 18 < FRAME_CAPACITY);

fn main() -> ExitCode {
    // The command line and files name images.
    if let Err(error) = cosim::rtl::offer() {
        terminal::complain("balboad", error);
        return ExitCode::from(exit::FAILURE);
    }
    let given: Args = match terminal::parse("balboad", "command", exit::USAGE) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let refused = |sentence: &dyn Display| {
        terminal::complain("balboad", sentence);
        ExitCode::from(exit::USAGE)
    };
    if let Some(outcome) = describe(&given) {
        return match outcome {
            Ok(()) => ExitCode::from(exit::OK),
            Err(error) => {
                terminal::complain("balboad", error);
                ExitCode::from(exit::FAILURE)
            }
        };
    }
    let args = match given.clone().with_file() {
        Ok(args) => args,
        Err(error) => return refused(&error),
    };
    let cards = match args.cards() {
        Ok(cards) => cards,
        Err(sentence) => return refused(&sentence),
    };
    if let Err(error) = load_rtl(&cards) {
        return refused(&format_args!("--soft-image {}: {error}", cosim::rtl::NAME));
    }
    if let Err(error) =
        (0u32..).zip(&cards.addresses).try_for_each(|(it, _)| cards.manifest(it).map(drop))
    {
        return refused(&format_args!("{error:#}"));
    }
    if args.check_config {
        return match say_well(&args, &cards) {
            Ok(()) => ExitCode::from(exit::OK),
            Err(error) => refused(&error),
        };
    }
    let log = terminal::start_log(args.verbose);
    match run(Configuration { given, now: args }, &cards, &log) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            terminal::complain("balboad", format_args!("{error:#}"));
            ExitCode::from(match error.downcast_ref() {
                Some(Error::Running { .. }) => exit::RUNNING,
                _ if error.is::<tunnel::TunnelError>() => exit::USAGE,
                _ if error.is::<ProtectionError>() => exit::USAGE,
                _ => exit::FAILURE,
            })
        }
    }
}

/// Loads the queue engine in RTL, where a card is to have it.
fn load_rtl(cards: &WantedCards) -> Result<(), cosim::ffi::LoadError> {
    let mut logic = cards
        .soft
        .iter()
        .flat_map(|card| (0..softcard::WINDOWS).filter_map(|vfpga| card.image.logic(vfpga)));
    match logic.any(|logic| logic.name() == cosim::rtl::NAME) {
        true => cosim::rtl::load().map(drop),
        false => Ok(()),
    }
}

/// Tells a shell or `man` of the command line, if that was asked for.
fn describe(given: &Args) -> Option<std::io::Result<()>> {
    let completions = given.completions.map(terminal::completions::<Args>);
    completions.or_else(|| given.manual.as_deref().map(terminal::manual::<Args>))
}

/// Says that the configuration is well, as far as that can be known without cards.
fn say_well(args: &Args, cards: &WantedCards) -> std::io::Result<()> {
    let soft = cards.soft.len();
    let file = args.config.as_deref().unwrap_or(Path::new(""));
    let vfio = cards.vfio.len();
    terminal::say(format_args!(
        "{}: well; {soft} software cards, {vfio} behind VFIO\n",
        file.display()
    ))
}

/// The options of the command line, and those in force.
struct Configuration {
    given: Args,
    now: Args,
}

impl Configuration {
    /// Reads the file again, and applies the changes that are possible while programs are served.
    fn reload(&mut self, server: &mut Server, log: &Log) -> anyhow::Result<()> {
        let new = self.given.clone().with_file()?;
        new.cards().map_err(anyhow::Error::msg)?;
        if new.metrics != self.now.metrics {
            server.show_metrics(new.metrics.as_ref())?;
        }
        log.set_verbosity(new.verbose);
        let fixed = self.now.fixed_that_differ(&new);
        // Options that need a new start are reported again each time.
        self.now.metrics = new.metrics;
        self.now.verbose = new.verbose;
        log::info!("the configuration was read again");
        if !fixed.is_empty() {
            log::warn!(
                "{}: balboad has to be started again for what the configuration says of it now",
                fixed.join(", ")
            );
        }
        Ok(())
    }
}

/// Blocks the signals that balboad handles, in this thread and those that it starts, and gives their descriptor.
fn take_signals() -> anyhow::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("blocking signals")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("signalfd")
}

fn run(mut configuration: Configuration, wanted: &WantedCards, log: &Log) -> anyhow::Result<()> {
    // Before any thread starts: it is taken out of the environment.
    let handed = service::handed_socket()?;
    // Likewise.
    let signals = take_signals()?;
    raise_descriptor_limit();
    raise_memory_limit();

    let args = &configuration.now;
    let uid = nix::unistd::geteuid().as_raw();
    let dir = shim_abi::state_dir(args.state_dir.as_deref(), uid);
    let mut state = StateDir::claim(&dir, uid)?;
    // Before a program can connect, which looks for it.
    let lease = Lease::wanted(state.directory())?;
    let shadow = args.shadow.then(|| show(wanted)).transpose()?;
    let machine = OnMachine::find(&wanted.soft).map_err(anyhow::Error::msg)?;
    let taps = shadow.as_ref().map(ShadowDevices::taps).unwrap_or_default();
    let store = Store::new(state.directory()).context("the state directory")?;
    let (mut soft_cards, mut restored) = restore(wanted, &store)?;
    protection::protect(args, &mut soft_cards)?;
    let seed = args.seed.map_or(0, Seed::number);
    let (runtime, backends) =
        soft::start(&soft_cards, &taps, args.pcap.clone(), args.faults.clone(), seed)?;
    let mut backends: Vec<Arc<dyn CardBackend>> =
        backends.into_iter().map(|backend| Arc::new(backend) as Arc<dyn CardBackend>).collect();
    // Held to the end of this thread's work.
    let life = Life::hold()?;
    open_functions(wanted, &life, &store, &mut backends, &mut restored)?;
    let watchdog = Duration::from_millis(args.watchdog());
    let flashed = |card| restored.get(&card).map(|it| it.manifest.engine);
    let peers = tunnel::peers(args, wanted, flashed)?;
    let rnics = tunnel::rnics(args, wanted, flashed)?;
    let (lossy, meetings) = (args.lossy, Meetings::default());
    let options = HostedOptions { watchdog, peers, rnics, lossy, meetings };
    let addresses = addresses(wanted, machine.as_ref());
    let cards = start(wanted, &addresses, backends, restored, options)?;
    let count = cards.len();
    let listener = match handed {
        Some(socket) => state.adopt(socket)?,
        None => state.listen()?,
    };
    let mut server = Server::new(cards, listener, uid, &state)?;
    if let Some(shadow) = shadow {
        server.follow_addresses_of(shadow)?;
    }
    if let Some(machine) = machine {
        server.follow_machine_of(machine)?;
    }
    server.show_metrics(args.metrics.as_ref())?;
    server.feed(Watchdog::wanted());
    server.end_with(lease);
    server.was_told(std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()));
    let status = format!("{count} cards in {}", dir.display());
    service::ready(&status);
    let mut out = std::io::stdout();
    // The starter may have closed the other end.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());

    let outcome = server
        .run(signals.as_fd(), |server| heed(&signals, server, &mut configuration, log, &status));
    // The back-ends go with the server; the card thread ends when the last of them has gone.
    drop(server);
    runtime.shutdown();
    outcome.context("the control thread failed")
}

/// Obeys a signal, if there is one: SIGHUP has the configuration read again, and any other ends the work.
fn heed(
    signals: &SignalFd,
    server: &mut Server,
    configuration: &mut Configuration,
    log: &Log,
    status: &str,
) -> ControlFlow<()> {
    let signal = signals.read_signal().ok().flatten().map(|signal| signal.ssi_signo);
    match signal {
        Some(number) if number == SIGHUP && configuration.given.config.is_some() => {
            service::reloading();
            if let Err(error) = configuration.reload(server, log) {
                log::error!("the configuration stays as it was: {error:#}");
            }
            service::ready(status);
            return ControlFlow::Continue(());
        }
        Some(number) => log::info!("signal {number}: balboad stops"),
        // No other code has read it, so there is one; or none is needed.
        None => return ControlFlow::Continue(()),
    }
    service::stopping();
    ControlFlow::Break(())
}

/// Opens the PCIe functions behind the software cards, and finds out which were flashed.
fn open_functions(
    wanted: &WantedCards,
    life: &Life,
    store: &Store,
    backends: &mut Vec<Arc<dyn CardBackend>>,
    restored: &mut Restored,
) -> anyhow::Result<()> {
    for (address, number) in wanted.vfio.iter().zip(u32::try_from(backends.len())?..) {
        let backend = VfioBackend::open(*address, life, shim_abi::DMA_PIECE)?;
        restored.extend(recall(&backend, &wanted.manifest(number)?, store).map(|it| (number, it)));
        backends.push(Arc::new(backend));
    }
    Ok(())
}

/// The state of flashed cards, by number.
type Restored = BTreeMap<u32, Known>;

/// The software cards as they were flashed, where they were.
fn restore(wanted: &WantedCards, store: &Store) -> anyhow::Result<(Vec<SoftCard>, Restored)> {
    let mut cards = wanted.soft.clone();
    let mut restored = BTreeMap::new();
    for ((number, card), at) in (0u32..).zip(&mut cards).zip(0..) {
        let like = wanted.manifest(number)?;
        if let Some(known) = images::restored(store, &soft::location(at), &like, card.takes()) {
            *card = known.card(card);
            restored.insert(number, known);
        }
    }
    Ok((cards, restored))
}

/// The recorded state of a card behind VFIO. A record of a card of the other kind, in its slot before, says nothing of
/// it.
fn recall(backend: &VfioBackend, like: &Manifest, store: &Store) -> Option<Known> {
    images::restored(store, &backend.identity().location, like, backend.takes())
}

/// The addresses that the cards come up with.
fn addresses(wanted: &WantedCards, machine: Option<&OnMachine>) -> Vec<PortAddress> {
    let of = |(number, given): (u32, &PortAddress)| {
        machine.and_then(|machine| machine.address(number)).unwrap_or(*given)
    };
    (0u32..).zip(&wanted.addresses).map(of).collect()
}

/// Brings the cards up, in the order of their numbers.
fn start(
    wanted: &WantedCards,
    addresses: &[PortAddress],
    backends: Vec<Arc<dyn CardBackend>>,
    mut restored: Restored,
    options: HostedOptions,
) -> anyhow::Result<Vec<Card>> {
    let mut cards = Vec::new();
    for ((number, backend), address) in (0u32..).zip(backends).zip(addresses) {
        let (manifest, record) = match restored.remove(&number) {
            Some(Known { manifest, record, .. }) => (manifest, Some(record)),
            None => (wanted.manifest(number)?, None),
        };
        cards.push(Card::start(number, backend, *address, manifest, record, options.clone())?);
    }
    Ok(cards)
}

/// The signal's number as a signal descriptor tells it.
const SIGHUP: u32 = Signal::SIGHUP as u32;

/// Lets the kernel show the software cards.
fn show(wanted: &WantedCards) -> Result<ShadowDevices, host_view::Error> {
    let addresses = wanted.addresses.iter().take(wanted.soft.len());
    let addresses: Vec<_> =
        addresses.map(|it| PortAddresses { mac: it.mac(), ip: it.ip, prefix: it.prefix }).collect();
    let shadow = ShadowDevices::create(&addresses)?;
    shadow_device::keep_apart(wanted.soft.iter().filter_map(|card| match &card.link {
        Link::Packet { device } => Some(device.as_str()),
        Link::Switch | Link::Unix { .. } | Link::Udp(..) => None,
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
