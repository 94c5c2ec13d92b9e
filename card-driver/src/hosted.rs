//! An engine for cards that have none: queue engines on a thread of balboad's, over the published command registers.
//!
//! It is a back-end over a card's. In each vFPGA's pages of user registers it shows the window of a verbs queue
//! engine, which the card itself does not have, so that all above drives it as any engine. Doorbell pages are memory of
//! this process's; a ring wakes the thread. The engine's work becomes posts to the card (`stock_engine`), whose ends no
//! interrupt reports: while there are some, the thread looks at the card's counters, at once and then less and less
//! often.

mod core;
mod layout;
mod memory;
mod porter;
mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::{self, StreamDown};
use fpga_regs::coyote::static_layer;
use fpga_regs::coyote::tlb::Geometry;
use fpga_regs::coyote::vfpga::{self, CONTROL_WINDOW_BASE, CONTROL_WINDOW_STRIDE, USER_CSR_OFFSET};
use fpga_regs::engine::window;
use fpga_regs::port::WatchFilter;
use hostmem::fdpass::duplicate;
use hostmem::{
    Access, AsleepWord, DmaMemory, DoorbellPage, EventFd, PAGE_BYTES, SharedMapping, Waker, memfd,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use roce::qos::Qos;
pub use stock_engine::Meetings;
use stock_engine::{Budget, Carrier, Exchange, Faults, Gone, Key, Local, Pages, Posts, Settings};

use self::core::{Bank, Core, UNDER_WAY_BYTES};
use self::layout::Layout;
use self::memory::{HostMemory, Slots};
use self::porter::Porter;
use crate::address::PortAddress;
use crate::backend::{CardBackend, DoorbellGrant, GrantKind, Identity, Takes, WakeGrant};
use crate::error::Error;
use crate::limit::CONFIRM_LIMIT;
use crate::lock::lock;
use crate::shell::Shell;
use crate::spaces::{Recall, Spaces};

/// The options of an engine on a thread of balboad's.
#[derive(Clone, Debug)]
pub struct HostedOptions {
    /// Without an answer for so long a queue pair fails.
    pub watchdog: Duration,
    /// The peers at the other end of the tunnel, by IPv4 address, and the 16 bytes shared with each.
    pub peers: BTreeMap<Ipv4Addr, [u8; 16]>,
    /// The peers that are RNICs, and no published cards.
    pub rnics: BTreeSet<Ipv4Addr>,
    /// Cables lose packets: a queue pair has one of them out.
    pub lossy: bool,
    /// The registry in which this process's cards find each other.
    pub meetings: Meetings,
}

impl Default for HostedOptions {
    fn default() -> Self {
        let watchdog = Duration::from_nanos(stock_engine::param::WATCHDOG);
        let (peers, rnics, meetings) = Default::default();
        Self { watchdog, peers, rnics, lossy: false, meetings }
    }
}

/// How long a queue pair that ends is waited for, until its peer has its answers, and how long between two looks. With less
/// a busy machine would tell the peer of no answer at all.
const ANSWERED: Duration = Duration::from_millis(100);
/// The time for which an engine that is to begin anew takes arrivals, where its answers need that.
const OWED: Duration = Duration::from_millis(50);
const STEP: Duration = Duration::from_micros(50);
/// Byte offset of the asleep word in the thread's page.
const ASLEEP: u32 = hostmem::thread_page::ASLEEP_OFFSET;
/// Byte offset of the lock that dies with the thread.
const LIVENESS: u32 = hostmem::thread_page::LIVENESS_OFFSET;
/// Byte offset of the u32 that counts the microseconds in which the thread worked.
const WORKED: u32 = hostmem::thread_page::WORKED_OFFSET;

/// The state that the thread shares with others.
struct Shared {
    card: u32,
    below: Arc<dyn CardBackend>,
    cores: Vec<Mutex<Core>>,
    memory: HostMemory,
    clock: Instant,
    /// The thread's page, which others can only read, and its mapping.
    words: OwnedFd,
    page: Arc<SharedMapping>,
    waker: Waker,
    epoll: Epoll,
    /// Eventfds of granted pages.
    wakes: Mutex<BTreeMap<(u8, u8), EventFd>>,
    shell: OnceLock<Weak<Shell>>,
    /// Held while the thread has the card forget an address space, and while the card is reset, for which the thread does
    /// not wait: behind the reset it would wait for a confirmation that never comes, and take the interrupts of the card that
    /// is brought up anew.
    forgetting: Mutex<()>,
    end: AtomicBool,
}

/// A card without an engine, with engines over it.
pub(crate) struct Hosted {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The shell of a published card, as far as its engines need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedShell {
    pub(crate) regions: u8,
    pub(crate) small: Geometry,
    /// The faults of the card that its manifest does not declare mended.
    pub(crate) faults: Faults,
}

impl Hosted {
    /// Engines for the vFPGAs of a card that has come out of its reset.
    ///
    /// # Errors
    /// [`Error::BringUp`] with the feature that the card lacks; memory's and the back-end's.
    pub(crate) fn new(
        card: u32,
        below: Arc<dyn CardBackend>,
        PublishedShell { regions, small, faults }: PublishedShell,
        address: PortAddress,
        options: &HostedOptions,
    ) -> Result<Self, Error> {
        let failed = |why: &str| Error::BringUp { card, why: why.into() };
        let start = Layout::start(&below.iova_ranges()?);
        let start = start.ok_or_else(|| failed("its bus has no room for 9 GiB of addresses"))?;
        let HostedOptions { watchdog, peers, rnics, lossy, meetings } = options;
        let rnics = Arc::new(rnics.iter().copied().map(u32::from).collect());
        let own = address.ip;
        // The one card of a tunnel carries through it between its own queue pairs.
        let has_tunnel = !peers.is_empty();
        let peers = peers.iter().filter(|(peer, _)| **peer != own);
        let peers = peers.map(|(peer, key)| (u32::from(*peer), Key::new(*key)));
        let peers: Arc<BTreeMap<_, _>> = Arc::new(peers.collect());
        let layout = Arc::new(Layout::map(start, regions, &*below)?);
        let local = Local::new(Key::new(random(card)?));
        let number = u32::from_ne_bytes(random(card)?);
        let past_lives = meetings.join(own.into());
        let datagrams =
            has_tunnel.then(|| Exchange::new(own.into(), regions, number, meetings.clone()));
        let memory = HostMemory::new(Porter::new(card, Arc::clone(&below)));
        let (budget, atomics) = (Budget::default(), Arc::default());
        let mut cores = Vec::new();
        for vfpga in 0..regions {
            let mut bank = Bank { card: Arc::clone(&below), vfpga };
            stock_engine::Registers::store(&mut bank, vfpga::WBACK.offset, layout.copies(vfpga));
            let settings = Settings {
                vfpga,
                ipv4: address.ip.into(),
                mac: address.mac(),
                watchdog: u64::try_from(watchdog.as_nanos()).unwrap_or(u64::MAX),
                peers: Arc::clone(&peers),
                rnics: Arc::clone(&rnics),
                lossy: *lossy,
                faults,
                local: Some(local.clone()),
                meetings: meetings.clone(),
                past_lives,
                datagrams: datagrams.clone(),
                ..Settings::default()
            };
            let posts = Posts::new(bank, settings, budget.clone());
            let hpid = std::process::id().wrapping_shl(6);
            let pages = Pages::new(small, hpid, layout.sinks(vfpga));
            let pages = pages.ok_or_else(|| failed("its small pages are not of 4 KiB"))?;
            let (carrier, layout) = (Carrier::new(posts), Arc::clone(&layout));
            let atomics = Arc::clone(&atomics);
            let core = Core::new(vfpga, carrier, pages, memory.clone(), layout, atomics);
            cores.push(Mutex::new(core));
        }
        let (words, page) = memfd::create_read_only_for_others("balboa-engine", PAGE_BYTES)?;
        let page = Arc::new(page);
        let kick = EventFd::new()?;
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(Error::os("epoll_create1"))?;
        listen(&epoll, &kick)?;
        let asleep = AsleepWord::new(Arc::clone(&page), ASLEEP as usize)?;
        let waker = Waker::new(asleep, kick);
        let shared = Shared {
            card,
            below,
            cores,
            memory,
            clock: Instant::now(),
            words,
            page,
            waker,
            epoll,
            wakes: Mutex::default(),
            shell: OnceLock::new(),
            forgetting: Mutex::default(),
            end: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// Begins to work, with the shell by which the TLBs are reached.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Os`] when there is no thread to be had.
    pub(crate) fn serve(&self, shell: Weak<Shell>) -> Result<(), Error> {
        // Once for each card that is brought up.
        let _ = self.shared.shell.set(shell);
        *lock(&self.thread) = Some(thread::start(&self.shared)?);
        Ok(())
    }

    fn leave(&self) {
        self.shared.cores.iter().for_each(|core| lock(core).carrier.leave());
    }

    /// Ends the thread, which may be waiting for the card, by which it is not to be found any more.
    fn stop(&self) {
        self.shared.end.store(true, Ordering::Release);
        let _ = self.shared.waker.signal();
        let thread = lock(&self.thread).take();
        // It may be the thread itself that lets go last.
        let others = thread.filter(|it| it.thread().id() != std::thread::current().id());
        if let Some(thread) = others {
            let _ = thread.join();
        }
    }
}

/// Bytes that cannot be guessed.
fn random<const BYTES: usize>(card: u32) -> Result<[u8; BYTES], Error> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::BringUp { card, why: format!("no random number: {error}") })?;
    Ok(bytes)
}

/// Wakes once for each time that a counter was signalled.
fn listen(epoll: &Epoll, fd: &EventFd) -> Result<(), Error> {
    let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
    epoll.add(fd, event).map_err(Error::os("epoll_ctl"))
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where an offset of the shell's BAR lies in a window: the vFPGA, and the offset there.
fn window_at(offset: u64) -> Option<(usize, u64)> {
    let into = offset.checked_sub(CONTROL_WINDOW_BASE)?;
    let (vfpga, at) = (into / CONTROL_WINDOW_STRIDE, into % CONTROL_WINDOW_STRIDE);
    let register = at.checked_sub(USER_CSR_OFFSET)?;
    (register < window::WINDOW_BYTES && vfpga < vfpga::MAX_VFPGAS)
        .then_some((usize::try_from(vfpga).ok()?, register))
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The engine in a window at an offset of a BAR, and the offset there.
    fn core_at(&self, bar: Bar, offset: u64) -> Option<(u8, &Mutex<Core>, u64)> {
        let (vfpga, register) = window_at(offset).filter(|_| bar == Bar::Shell)?;
        let core = self.cores.get(vfpga)?;
        Some((u8::try_from(vfpga).ok()?, core, register))
    }

    fn core(&self, vfpga: u8) -> Option<&Mutex<Core>> {
        self.cores.get(usize::from(vfpga))
    }

    /// Whether the card says that its reception has stood in front of frames since its reset. A page that was waited for
    /// may be why, and if a queue pair has failed, too, something that ends with the next reset alone.
    fn reception_stood(&self) -> bool {
        StreamDown::decode(self.below.read64(Bar::Shell, shell::STAT_STREAM_DOWN)).down
    }

    /// Tells the driver, on the vFPGA's vector, that its engine has news.
    fn interrupt(&self, vfpga: u8) {
        if let Some(vector) = self.below.vector(vfpga.into()) {
            // A counter that is full has been signalled.
            let _ = nix::unistd::write(vector, &1u64.to_ne_bytes());
        }
    }

    /// Executes the order of a write to a window's register, at once.
    fn write_window(&self, vfpga: u8, core: &Mutex<Core>, register: u64, value: u64) {
        let now = self.now();
        let interrupt = {
            let mut core = lock(core);
            core.write_register(register, value);
            core.turn(now);
            core.engine.take_interrupt()
        };
        if interrupt {
            self.interrupt(vfpga);
        }
        let _ = self.waker.wake_if_asleep();
    }
}

impl CardBackend for Hosted {
    fn read32(&self, bar: Bar, offset: u64) -> u32 {
        self.shared.below.read32(bar, offset)
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) {
        self.shared.below.write32(bar, offset, value);
    }

    fn read64(&self, bar: Bar, offset: u64) -> u64 {
        let Some((_, core, register)) = self.shared.core_at(bar, offset) else {
            return self.shared.below.read64(bar, offset);
        };
        // An engine is there as long as its card is.
        let gone = || self.shared.below.read32(Bar::Static, static_layer::PROBE) == u32::MAX;
        if register == window::STATUS && gone() {
            return u64::MAX;
        }
        lock(core).engine.read_register(self.shared.now(), register)
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) {
        match self.shared.core_at(bar, offset) {
            Some((vfpga, core, register)) => {
                self.shared.write_window(vfpga, core, register, value);
            }
            None => self.shared.below.write64(bar, offset, value),
        }
    }

    fn write_wide(&self, offset: u64, words: [u64; 4]) {
        self.shared.below.write_wide(offset, words);
    }

    fn read_config(&self, offset: u16) -> u16 {
        self.shared.below.read_config(offset)
    }

    fn write_config(&self, offset: u16, value: u16) {
        self.shared.below.write_config(offset, value);
    }

    fn vector(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.shared.below.vector(vector)
    }

    fn wanted_back(&self) -> Option<BorrowedFd<'_>> {
        self.shared.below.wanted_back()
    }

    fn given_up(&self) -> Option<BorrowedFd<'_>> {
        self.shared.below.given_up()
    }

    fn dma_map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.shared.below.dma_map(iova, length, memory.clone())?;
        self.shared.memory.map(iova, length, &memory);
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, length: u64) -> Result<(), Error> {
        self.shared.memory.unmap(iova, length);
        self.shared.below.dma_unmap(iova, length)
    }

    fn dma_map_ahead(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        self.shared.memory.map(iova, length, &memory);
        self.shared.below.dma_map_ahead(iova, length, memory)
    }

    fn dma_unmap_unused(&self, iova: u64, length: u64) -> Result<(), Error> {
        self.shared.memory.unmap(iova, length);
        self.shared.below.dma_unmap_unused(iova, length)
    }

    fn dma_piece(&self) -> u64 {
        self.shared.below.dma_piece()
    }

    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error> {
        let ranges = self.shared.below.iova_ranges()?;
        let end = Layout::start(&ranges).unwrap_or(0);
        let below = ranges.into_iter().filter(|(first, _)| *first < end);
        Ok(below.map(|(first, last)| (first, last.min(end.saturating_sub(1)))).collect())
    }

    fn grant_kind(&self) -> GrantKind {
        self.shared.below.grant_kind()
    }

    fn grant_page(&self, window: u8, page: u8) -> Result<DoorbellGrant, Error> {
        let none =
            || Error::Backend(format!("there is no doorbell page {page} of window {window}"));
        let core = self.shared.core(window).ok_or_else(none)?;
        let file = memfd::create("balboa-doorbells", PAGE_BYTES)?;
        let mapping = SharedMapping::new(file.as_fd(), 0, PAGE_BYTES, Access::ReadWrite)?;
        let slots = Slots(DoorbellPage::new(Arc::new(mapping), 0)?);
        if !lock(core).engine.open_page(page, slots) {
            return Err(none());
        }
        let granted = self.grant_opened(window, page, file);
        if granted.is_err() {
            self.revoke_page(window, page);
        }
        granted
    }

    fn revoke_page(&self, window: u8, page: u8) {
        if let Some(core) = self.shared.core(window) {
            lock(core).engine.close_page(page);
        }
        if let Some(wake) = lock(&self.shared.wakes).remove(&(window, page)) {
            // It was added before; a set that has lost it has forgotten it.
            let _ = self.shared.epoll.delete(&wake);
        }
    }

    fn under_way(&self, window: u8, page: u8) -> Option<u64> {
        let core = self.shared.core(window)?;
        Some(lock(core).engine.under_way_bytes(page) as u64)
    }

    fn under_way_limit(&self) -> Option<u64> {
        Some(UNDER_WAY_BYTES as u64)
    }

    fn takes(&self) -> Takes {
        self.shared.below.takes()
    }

    fn reset(&self) -> Result<(), Error> {
        // The card would refuse a peer that still sends, which stops the peer's card.
        self.leave();
        let _forgetting = lock(&self.shared.forgetting);
        // All in one, lest the thread answer a peer, whose acknowledgement would come behind the reset, or find queue pairs
        // of datagrams in one vFPGA, and offer their datagrams in another.
        let mut cores = self.drain();
        let outcome = self.shared.below.reset();
        cores.iter_mut().for_each(|core| core.reset());
        outcome
    }

    fn record(&self, filter: WatchFilter, reader: UnixStream) -> Result<(), Error> {
        self.shared.below.record(filter, reader)
    }

    fn end_record(&self) {
        self.shared.below.end_record();
    }

    fn identity(&self) -> Identity {
        // The stack checks no ICRC, whichever checks its port offers.
        Identity { icrc_policy: None, congestion: None, ..self.shared.below.identity() }
    }

    fn qos(&self) -> Result<Qos, Error> {
        self.shared.below.qos()
    }

    fn set_qos(&self, qos: Qos) -> Result<(), Error> {
        self.shared.below.set_qos(qos)
    }

    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.shared.below.port_counters();
        let mut sums = [0u64; 19];
        let (mut stuck, mut unanswered, mut answered) = (0u64, 0, 0);
        for core in &self.shared.cores {
            let core = lock(core);
            let (tally, (conflicts, sinkings)) = (core.carrier.posts.tally(), core.pages.counts());
            let (tunnel, datagrams) = (core.carrier.tally(), core.carrier.datagrams());
            let (windows, refused) = core.windows.counts();
            let values = [
                tally.posts,
                tally.refused,
                tally.quarantined,
                tally.lost_reads,
                conflicts,
                sinkings,
                tunnel.sent,
                tunnel.taken,
                tunnel.turnovers,
                tunnel.granted,
                tunnel.astray,
                windows,
                refused,
                datagrams.sent,
                datagrams.received,
                datagrams.refused,
                datagrams.unreceived,
                datagrams.failed,
                datagrams.undelivered,
            ];
            stuck = stuck.saturating_add(tally.stuck);
            unanswered = tally.unanswered.max(unanswered);
            answered = tally.answered.max(answered);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
        }
        let names = [
            "engine_posts",
            "engine_refused",
            "engine_quarantined_qps",
            "engine_lost_reads",
            "engine_page_conflicts",
            "engine_pages_of_nobody",
            "tunnel_slots_sent",
            "tunnel_slots_taken",
            "tunnel_turnovers",
            "tunnel_granted_bytes_sent",
            "tunnel_grants_astray",
            "tunnel_windows",
            "tunnel_windows_refused",
            "tunnel_datagrams_sent",
            "tunnel_datagrams_received",
            "tunnel_datagrams_refused",
            "tunnel_datagrams_unreceived",
            "tunnel_datagrams_failed",
            "tunnel_datagrams_undelivered",
        ];
        counters.extend(names.into_iter().zip(sums));
        let [_, _, quarantined, ..] = sums;
        let stood = quarantined > 0 && self.shared.reception_stood();
        let shell = self.shared.shell.get().and_then(Weak::upgrade);
        let fails = |shell: Arc<Shell>| {
            (0u8..).zip(&self.shared.cores).any(|(vfpga, _)| shell.failure(vfpga).is_some())
        };
        // Where peers are gone and the card does not stand, its next answer takes the second one back.
        let reasons = [stuck > 0, unanswered > answered, stood, shell.is_some_and(fails)];
        counters.push(("engine_wants_reset", reasons.contains(&true).into()));
        counters
    }
}

impl Hosted {
    /// Begins nothing more, and waits for the answers to requests under way, at which the card would stop behind its
    /// reset, and then for transfers to it from other cards of this process, whose refusal would stop them: for as long
    /// as a peer may be silent, and no longer than others are to wait. Nothing begins behind that while the cores are
    /// held.
    fn drain(&self) -> Vec<MutexGuard<'_, Core>> {
        let (mut limit, now) = (CONFIRM_LIMIT, self.shared.now());
        for core in &self.shared.cores {
            let carrier = &mut lock(core).carrier;
            carrier.halt(now);
            limit = limit.min(carrier.posts.watchdog());
        }
        let begun = Instant::now();
        let mut parted = None;
        loop {
            let cores: Vec<_> = self.shared.cores.iter().map(lock).collect();
            let is_quiet = cores.iter().all(|core| core.carrier.is_quiet());
            let is_over = begun.elapsed() >= limit;
            if parted.is_none() && (is_quiet || is_over) {
                cores.iter().for_each(|core| core.carrier.part());
                parted = Some(Instant::now());
            }
            let is_sent_to = cores.iter().any(|core| core.carrier.is_sent_to());
            let waited = parted.is_some_and(|since| since.elapsed() >= ANSWERED);
            if parted.is_some() && is_quiet && !is_sent_to || is_over && waited {
                return cores;
            }
            drop(cores);
            // The thread is there, or the card is gone.
            let _ = self.shared.waker.wake_if_asleep();
            std::thread::sleep(STEP);
        }
    }

    /// The grant of a page that the engine looks at.
    fn grant_opened(&self, window: u8, page: u8, file: OwnedFd) -> Result<DoorbellGrant, Error> {
        if self.grant_kind() == GrantKind::Device {
            // The client maps its memory by itself. The page is not the function's, and needs no wake-up: the thread
            // looks.
            let granted = self.shared.below.grant_page(window, page)?;
            let DoorbellGrant::Device { iommu, ioas, life, .. } = granted else {
                return Err(Error::Backend("a card behind VFIO grants itself".into()));
            };
            // Without clients the thread may sleep for good, so it is woken.
            let _ = self.shared.waker.wake_if_asleep();
            return Ok(DoorbellGrant::Device { function: file, offset: 0, iommu, ioas, life });
        }
        let wake = EventFd::new()?;
        listen(&self.shared.epoll, &wake)?;
        let eventfd = wake.try_clone()?.into_fd();
        lock(&self.shared.wakes).insert((window, page), wake);
        let thread_page = duplicate(self.shared.words.as_fd());
        let thread_page = thread_page.map_err(Error::os("dup of a descriptor"))?;
        let wake =
            WakeGrant { eventfd, thread_page, asleep: ASLEEP, liveness: LIVENESS, worked: WORKED };
        Ok(DoorbellGrant::Page { page: file, wake })
    }
}

impl Spaces for Hosted {
    fn mend(&self, vfpga: u8, ctid: u8, vaddr: u64) -> Vec<[u64; 2]> {
        self.shared.core(vfpga).map(|core| lock(core).mend(ctid, vaddr)).unwrap_or_default()
    }

    fn replace(&self, vfpga: u8, ranges: &[(u64, u64)], most: usize) -> Vec<Gone> {
        let core = self.shared.core(vfpga);
        core.map(|core| lock(core).replace(ranges, most)).unwrap_or_default()
    }

    fn settle(&self, vfpga: u8, qpn: u32, anew: bool) {
        let Some(core) = self.shared.core(vfpga) else { return };
        let begun = Instant::now();
        let mut parted = !anew;
        loop {
            let waited = begun.elapsed();
            let core = lock(core);
            let Core { carrier, .. } = &*core;
            let owes = carrier.owes(qpn);
            if !parted && (!owes || waited >= OWED) {
                // The card would refuse later packets, which stops the peer's card.
                carrier.posts.part(qpn);
                parted = true;
            }
            let is_out = || carrier.is_out(qpn) || carrier.posts.is_sent_to(qpn);
            let waits = owes || anew && (!parted || is_out());
            if !waits || waited >= ANSWERED {
                return;
            }
            drop(core);
            // The thread is there, or the card is gone.
            let _ = self.shared.waker.wake_if_asleep();
            std::thread::sleep(STEP);
        }
    }

    fn close(&self, vfpga: u8, qpn: u32, most: usize) -> Vec<Gone> {
        self.shared.core(vfpga).map(|core| lock(core).close(qpn, most)).unwrap_or_default()
    }

    fn reason(&self, vfpga: u8) -> Option<String> {
        lock(self.shared.core(vfpga)?).carrier.posts.take_reason()
    }

    fn closed(&self, vfpga: u8, qpn: u32) {
        if let Some(core) = self.shared.core(vfpga) {
            lock(core).closed(qpn);
        }
    }

    fn fill(&self, vfpga: u8) -> Option<Vec<[u64; 2]>> {
        lock(self.shared.core(vfpga)?).fill()
    }

    fn shut(&self, vfpga: u8, most: usize) -> Vec<Gone> {
        self.shared.core(vfpga).map(|core| lock(core).leave(most)).unwrap_or_default()
    }

    fn is_shut(&self, vfpga: u8) {
        if let Some(core) = self.shared.core(vfpga) {
            let Core { windows, pages, .. } = &mut *lock(core);
            windows.left(|ctid, start, end| pages.holds(ctid, start, end));
        }
    }

    fn lapse(&self, vfpga: u8) {
        if let Some(core) = self.shared.core(vfpga) {
            lock(core).lapse();
        }
    }

    fn recall(&self, vfpga: u8, of: Recall, from: &mut (u8, u64), most: usize) -> Vec<Gone> {
        let core = self.shared.core(vfpga);
        core.map(|core| lock(core).recall(of, from, most)).unwrap_or_default()
    }

    fn end(&self) {
        self.leave();
        self.shared.cores.iter().for_each(|core| lock(core).carrier.part());
        self.stop();
        self.shared.cores.iter().for_each(|core| lock(core).carrier.retire());
    }

    fn surface(&self, vfpga: u8) -> Vec<[u64; 2]> {
        self.shared.core(vfpga).map(|core| lock(core).surface()).unwrap_or_default()
    }

    fn surfaced(&self, vfpga: u8) {
        if let Some(core) = self.shared.core(vfpga) {
            lock(core).carrier.posts.surfaced();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail")]
mod tests {
    use fpga_regs::coyote::shell::CTRL_CNFG_DEFAULT;
    use hostmem::{PidFd, RemoteProcess};

    use super::*;
    use crate::fake::FakeCard;

    /// Engines over a card, which do not run.
    pub(super) fn engines_over(card: &Arc<FakeCard>) -> Hosted {
        let options = HostedOptions {
            peers: BTreeMap::from([(Ipv4Addr::new(10, 0, 0, 2), [7; 16])]),
            ..HostedOptions::default()
        };
        let (small, faults) = (Geometry::small(CTRL_CNFG_DEFAULT).unwrap(), Faults::default());
        let found = PublishedShell { regions: 1, small, faults };
        let below = Arc::<FakeCard>::clone(card);
        Hosted::new(0, below, found, PortAddress::default_of(0), &options).unwrap()
    }

    #[test]
    fn memory_that_a_program_maps_itself_is_copied_until_it_is_unmapped() {
        const IOVA: u64 = 1 << 33;
        let card = Arc::new(FakeCard::new(1));
        card.set_piece(1 << 20);
        let hosted = engines_over(&card);
        let mut theirs = [5u8; 64];
        let own = nix::unistd::getpid();
        let process = Arc::new(RemoteProcess::new(own, PidFd::open(own).unwrap()));
        let address = theirs.as_mut_ptr() as u64;
        let before = card.mapped();
        hosted.dma_map(IOVA, 64, DmaMemory::Process { process, address }).unwrap();
        assert_eq!(card.mapped(), before, "whoever has the memory maps it");
        let mut bytes = [0; 16];
        let memory = &hosted.shared.memory;
        assert_eq!(memory.copy_from(IOVA + 48, &mut bytes), Some(()));
        assert_eq!((bytes, memory.copy_from(IOVA + 49, &mut bytes)), ([5; 16], None));
        assert_eq!(memory.copy_to(IOVA + 8, &[9; 8]), Some(()));
        assert!(memory.find(IOVA, 8).is_none(), "it is no memory of this process's to the engine");
        hosted.dma_unmap(IOVA, 64).unwrap();
        assert_eq!(memory.copy_from(IOVA, &mut bytes), None);
        theirs.rotate_left(4);
        assert_eq!(theirs[4..13], [9, 9, 9, 9, 9, 9, 9, 9, 5]);
    }
}
