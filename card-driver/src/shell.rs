//! The shell's part of a card's vFPGAs: their MMUs and their interrupts.
//!
//! A vFPGA reports one event at a time on its vector: a page fault, the end of an invalidation, or
//! that its engine has something to say. The thread that [`crate::interrupts`] starts serves the
//! vectors; a thread that waits for a vFPGA takes its vector over meanwhile, so that the event wakes one
//! thread and not two, and serves those of all if there is no such thread. A card that runs in this process serves the
//! interrupts of completions itself, and wakes no thread for them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::{self, Bank, EventKind, IsrLen, IsrPid, IsrRead, IsrWrite};
use fpga_regs::engine::window::{FAULT_REFUSED, FaultNotes, FaultRefused};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::backend::CardBackend;
use crate::error::{Error, GONE};
use crate::event_rings::EventRings;
use crate::limit::{CONFIRM_LIMIT, LOOK_AGAIN, TimeLeft};
use crate::lock::lock;
use crate::spaces::Gone;
use crate::translations::Purpose;
use crate::vectors::Vectors;

mod queue_pairs;
mod translator;
mod windows;

pub use queue_pairs::SpacesOfQps;
pub use translator::Translator;
pub use windows::SpacesOfWindows;

/// How long no invalidation is waited for after one that was not confirmed: a program that ends has
/// thousands of regions, and others want to be served, most of the time.
const SILENCE: Duration = CONFIRM_LIMIT.saturating_mul(10);

/// How often an invalidation is waited for in vain, before none is any more.
const MOST_VAIN: u8 = 2;

/// Pages that are taken back at a time, with one confirmation for all of them.
pub const ROW: usize = 16;

/// Bytes of a page of the small-page TLB.
const SMALL_PAGE: u32 = 4096;

/// Events that a vFPGA may report by the last end of an invalidation that it owes, where two threads have ordered a row
/// each, with its end twice, and one that stood before them.
const MOST_OWED: usize = 5;

/// Counts of a card's faults, by balboad's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Faults mended by inserting an entry again.
    pub refilled: u64,
    /// Faults at addresses without memory.
    pub refused: u64,
}

/// One vFPGA.
struct Vfpga {
    index: u8,
    /// Held, too, from the first to the last access to registers that belong together.
    state: Mutex<State>,
    /// The rings in which its engine tells events.
    events: OnceLock<Arc<EventRings>>,
    /// Held by the thread that serves its vector.
    serving: Mutex<()>,
    /// The count of its signals, modulo 2^64; each is counted once it was served.
    signals: AtomicU64,
    /// Its engine does not see by itself that a fault is refused.
    is_told_faults: AtomicBool,
}

/// Pages of an address space, one behind the other, that were led away.
#[derive(Clone, Copy, Debug)]
struct Untold {
    pid: IsrPid,
    vaddr: u64,
    pages: u32,
}

impl Untold {
    const fn bytes(&self) -> u32 {
        self.pages.saturating_mul(SMALL_PAGE)
    }

    const fn end(&self) -> u64 {
        self.vaddr.saturating_add(self.bytes() as u64)
    }
}

#[derive(Debug)]
struct State {
    /// Ends of invalidations that are to be reported, modulo 2^64, and those that were. They come in order and say not of
    /// which one, so that a late one is told from the next one's by its place alone.
    ordered: u64,
    confirmed: u64,
    /// Since when invalidations are not confirmed.
    silent: Option<Instant>,
    /// Whether a wait for a confirmation was given up.
    late: bool,
    /// How often one was waited for in vain since all were confirmed.
    vain: u8,
    /// Pages that were led away and of which the card is still to be told, because it owes confirmations. The card asked
    /// for each of them.
    untold: Vec<Untold>,
    /// An invalidation was written to the registers that also describe events, and no event was
    /// taken since: the next one may read wrong.
    overwritten: bool,
}

impl State {
    /// Whether as many ends of invalidations were reported.
    const fn has_confirmed(&self, wanted: u64) -> bool {
        self.ordered.wrapping_sub(self.confirmed) <= self.ordered.wrapping_sub(wanted)
    }

    /// Whether transfers may be on their way to pages that are gone.
    fn is_in_doubt(&self) -> bool {
        self.ordered != self.confirmed || !self.untold.is_empty()
    }

    /// Whether ends of invalidations are not waited for any more.
    const fn is_given_up(&self) -> bool {
        self.ordered != self.confirmed && self.vain >= MOST_VAIN
    }
}

/// The vFPGAs of a card.
pub struct Shell {
    card: u32,
    backend: Arc<dyn CardBackend>,
    bank: Bank,
    vfpgas: Vec<Vfpga>,
    /// The translator, which knows where memory is.
    translator: Arc<dyn Translator>,
    /// The translator that a test has put in its place.
    #[cfg(any(test, feature = "fake"))]
    replaced: OnceLock<Arc<dyn Translator>>,
    counts: Mutex<FaultCounts>,
    /// The set that the thread waits for which serves the vectors, while there is one.
    apart: Mutex<Option<Arc<Vectors>>>,
}

impl Shell {
    /// The vFPGAs of a card that was probed, with empty TLBs.
    #[must_use]
    pub fn new(
        card: u32,
        backend: Arc<dyn CardBackend>,
        bank: Bank,
        regions: u8,
        translator: Arc<dyn Translator>,
    ) -> Self {
        let vfpga = |index| Vfpga {
            index,
            state: Mutex::new(State {
                ordered: 0,
                confirmed: 0,
                silent: None,
                late: false,
                vain: 0,
                untold: Vec::new(),
                overwritten: false,
            }),
            events: OnceLock::new(),
            serving: Mutex::default(),
            signals: AtomicU64::default(),
            is_told_faults: AtomicBool::default(),
        };
        let vfpgas = (0..regions).map(vfpga).collect();
        Self::of(card, backend, bank, vfpgas, translator)
    }

    /// The vFPGAs of a card without any.
    #[must_use]
    pub fn without_vfpgas(card: u32, backend: Arc<dyn CardBackend>) -> Self {
        let translator = Arc::new(SpacesOfWindows::none());
        Self::of(card, backend, Bank::default(), Vec::new(), translator)
    }

    fn of(
        card: u32,
        backend: Arc<dyn CardBackend>,
        bank: Bank,
        vfpgas: Vec<Vfpga>,
        translator: Arc<dyn Translator>,
    ) -> Self {
        Self {
            card,
            backend,
            bank,
            vfpgas,
            translator,
            #[cfg(any(test, feature = "fake"))]
            replaced: OnceLock::new(),
            counts: Mutex::default(),
            apart: Mutex::default(),
        }
    }

    /// Drains a vFPGA's event rings as soon as its interrupt is seen, from now on.
    pub fn hear(&self, index: u8, events: Arc<EventRings>) {
        if let Some(vfpga) = self.vfpga(index) {
            // An engine starts once.
            let _ = vfpga.events.set(events);
        }
    }

    /// Tells the engine in a vFPGA of each fault that is refused, from now on.
    pub(crate) fn tell_faults(&self, index: u8) {
        if let Some(vfpga) = self.vfpga(index) {
            vfpga.is_told_faults.store(true, Ordering::Release);
        }
    }

    /// The way to the card.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn CardBackend> {
        &self.backend
    }

    /// The translator, which knows the places of memory.
    #[must_use]
    pub fn translator(&self) -> &dyn Translator {
        #[cfg(any(test, feature = "fake"))]
        if let Some(translator) = self.replaced.get() {
            return &**translator;
        }
        &*self.translator
    }

    /// Sets another translator from now on.
    #[cfg(any(test, feature = "fake"))]
    pub fn translate_by(&self, translator: Arc<dyn Translator>) {
        assert!(self.replaced.set(translator).is_ok(), "once");
    }

    /// The counts of faults so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        *lock(&self.counts)
    }

    fn vfpga(&self, index: u8) -> Option<&Vfpga> {
        self.vfpgas.get(usize::from(index))
    }

    fn cnfg(&self, index: u8, register: u64) -> u64 {
        self.bank.cnfg(index.into()).wrapping_add(register)
    }

    fn read(&self, index: u8, register: u64) -> u64 {
        self.backend.read64(Bar::Shell, self.cnfg(index, register))
    }

    fn write(&self, index: u8, register: u64, value: u64) {
        self.backend.write64(Bar::Shell, self.cnfg(index, register), value);
    }

    fn isr(&self, index: u8, isr: IsrWrite) {
        self.write(index, vfpga::ISR, isr.encode());
    }

    /// Writes entries while the TLBs are locked; the vFPGA's state is held.
    fn write_entries(&self, index: u8, entries: &[[u64; 2]]) {
        if entries.is_empty() {
            return;
        }
        let lock = IsrWrite { lock: true, invalidate: true, ..IsrWrite::default() };
        let window = self.translator().tlb(index);
        self.isr(index, lock);
        for [first, second] in entries {
            self.backend.write64(Bar::Shell, window.wrapping_add(vfpga::TLB_WORD_0), *first);
            self.backend.write64(Bar::Shell, window.wrapping_add(vfpga::TLB_WORD_1), *second);
        }
        self.isr(index, lock);
    }

    /// Records that a range has memory for a vFPGA, and inserts the first entries as its purpose demands.
    pub fn map(&self, index: u8, start: u64, length: u64, purpose: Purpose) {
        self.translator().map(self, index, start, length, purpose);
    }

    /// Takes ranges back from a vFPGA, as [`Translator::unmap`].
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm: the memory is not to be used for anything
    /// else.
    pub fn unmap(&self, index: u8, ranges: &[(u64, u64)]) -> Result<bool, Error> {
        self.translator().unmap(self, index, ranges)
    }

    /// Puts other pages in the place of some, and waits for transfers on their way to those, and to any that were led
    /// away before; whether there may be more. Where it waits in vain the card is told of them as soon as it has
    /// confirmed the ones before.
    fn redirect(
        &self,
        index: u8,
        most: usize,
        pages: impl FnOnce() -> Vec<Gone>,
    ) -> Result<bool, Error> {
        let Some(vfpga) = self.vfpga(index) else { return Ok(false) };
        let mut state = lock(&vfpga.state);
        let row = pages();
        let entries: Vec<[u64; 2]> = row.iter().map(|gone| gone.words).collect();
        self.write_entries(index, &entries);
        for &Gone { ctid, hpid, vaddr, .. } in &row {
            let pid = IsrPid { ctid, hpid };
            let follows = |last: &&mut Untold| last.pid == pid && last.end() == vaddr;
            match state.untold.last_mut().filter(follows) {
                Some(last) => last.pages = last.pages.saturating_add(1),
                None => state.untold.push(Untold { pid, vaddr, pages: 1 }),
            }
        }
        self.tell(vfpga, &mut state)?;
        drop(state);
        self.await_invalidation(vfpga)?;
        Ok(row.len() == most)
    }

    /// Tells a card that owes nothing of a row of the pages that were led away.
    fn tell(&self, vfpga: &Vfpga, state: &mut State) -> Result<(), Error> {
        if state.ordered != state.confirmed {
            return Ok(());
        }
        let first = state.untold.len().saturating_sub(ROW);
        let row = state.untold.get(first..).unwrap_or_default().to_vec();
        let row = row.iter().map(|it| (it.pid, it.vaddr, it.bytes()));
        self.order(vfpga, state, row)?;
        state.untold.truncate(first);
        Ok(())
    }

    /// Invalidates pages, and waits until the card says that nothing is on its way to them. One that owes an earlier
    /// confirmation is asked for nothing more before it has come.
    fn invalidate_row(
        &self,
        vfpga: &Vfpga,
        pages: impl ExactSizeIterator<Item = (IsrPid, u64, u32)>,
    ) -> Result<(), Error> {
        self.await_invalidation(vfpga)?;
        self.order(vfpga, &mut lock(&vfpga.state), pages)?;
        self.await_invalidation(vfpga)
    }

    /// Asks for the invalidation of pages, by their bytes, of which one end is reported.
    fn order(
        &self,
        vfpga: &Vfpga,
        state: &mut State,
        pages: impl ExactSizeIterator<Item = (IsrPid, u64, u32)>,
    ) -> Result<(), Error> {
        let mut left = pages.len();
        for (pid, page, length) in pages {
            left = left.saturating_sub(1);
            self.invalidate(vfpga, state, pid, page, length, left == 0)?;
        }
        Ok(())
    }

    /// Asks for the invalidation of a page.
    ///
    /// # Errors
    /// [`Error::Dead`] where there is no card any more.
    ///
    /// An event that is reported meanwhile overwrites the registers, all at once and with a process
    /// of 0, so that the card may take its values for ours. The register written first, read behind
    /// the order, tells. No other event is reported before that one is taken, for which the state is
    /// needed: the second order is sound.
    fn invalidate(
        &self,
        vfpga: &Vfpga,
        state: &mut State,
        pid: IsrPid,
        page: u64,
        length: u32,
        last: bool,
    ) -> Result<(), Error> {
        let index = vfpga.index;
        state.overwritten = true;
        for _ in 0..2 {
            let pid = pid.encode();
            self.write(index, vfpga::ISR_PID, pid);
            self.write(index, vfpga::ISR_VADDR, page);
            self.write(index, vfpga::ISR_LEN, IsrLen { length, value: 0 }.encode());
            let order = IsrWrite { invalidate: true, invalidate_last: last, ..IsrWrite::default() };
            self.isr(index, order);
            let read = self.read(index, vfpga::ISR_PID);
            // A card that is gone has not heard it, and confirms nothing.
            let heard = last && read != u64::MAX;
            state.ordered = state.ordered.wrapping_add(u64::from(heard));
            match read {
                u64::MAX => {
                    return Err(Error::Dead {
                        engine: format!("balboa{} window {index}", self.card),
                        why: GONE.to_owned(),
                    });
                }
                read if read == pid => break,
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until the invalidations are confirmed that were ordered by now, and those of the pages of which the card is
    /// still to be told: for these as long as for those.
    fn await_invalidation(&self, vfpga: &Vfpga) -> Result<(), Error> {
        let (mut wanted, mut confirmed, mut is_told) = {
            let mut state = lock(&vfpga.state);
            if !state.is_in_doubt() {
                return Ok(());
            }
            state.silent = state.silent.filter(|since| since.elapsed() < SILENCE);
            if state.silent.is_some() || state.is_given_up() {
                return Err(self.unconfirmed(vfpga));
            }
            (state.ordered, state.confirmed, state.untold.is_empty())
        };
        let mut time_left = TimeLeft::new(CONFIRM_LIMIT, Instant::now());
        loop {
            let left = time_left.left(Instant::now());
            let seen = self.signals(vfpga.index);
            let mut state = lock(&vfpga.state);
            if !is_told && state.untold.is_empty() {
                time_left = TimeLeft::new(CONFIRM_LIMIT, Instant::now());
                (wanted, confirmed, is_told) = (state.ordered, state.confirmed, true);
                continue;
            }
            if is_told && state.has_confirmed(wanted) {
                return Ok(());
            }
            if left.is_zero() {
                // Two may have waited for the same; and a card that is slow confirms something.
                let in_vain = state.silent.is_none() && state.confirmed == confirmed;
                state.vain = state.vain.saturating_add(in_vain.into());
                (state.silent, state.late) = (Some(Instant::now()), true);
                return Err(self.unconfirmed(vfpga));
            }
            drop(state);
            self.wait(vfpga.index, seen, left.min(LOOK_AGAIN))?;
        }
    }

    /// Takes the reports of a vFPGA whose engine was reset to start anew, and expects no confirmation any more that was
    /// owed: reports that have not come by now were lost, by a vFPGA that was off the datapath.
    pub(crate) fn begin_anew(&self, index: u8) {
        let Some(vfpga) = self.vfpga(index) else { return };
        let serving = lock(&vfpga.serving);
        // Ends of invalidations are reported ahead of all that waits with them, and as many are owed as two rows have.
        for _ in 0..MOST_OWED {
            self.service_one(vfpga);
        }
        drop(serving);
        let mut state = lock(&vfpga.state);
        (state.confirmed, state.silent) = (state.ordered, None);
        (state.vain, state.late) = (0, false);
    }

    /// Whether a transfer may be on its way to pages of a vFPGA that are gone.
    #[must_use]
    pub fn is_in_doubt(&self, index: u8) -> bool {
        self.vfpga(index).is_some_and(|vfpga| lock(&vfpga.state).is_in_doubt())
    }

    /// Whether a vFPGA was waited for in vain, and may confirm all the same before it is waited for again.
    pub(crate) fn is_put_off(&self, index: u8) -> bool {
        self.vfpga(index).is_some_and(|vfpga| {
            let state = lock(&vfpga.state);
            let is_silent = state.silent.is_some_and(|since| since.elapsed() < SILENCE);
            is_silent && !state.is_given_up()
        })
    }

    /// The reason why the engine in a vFPGA is to be given up: its MMU's confirmations are not waited for any more.
    pub(crate) fn failure(&self, index: u8) -> Option<&'static str> {
        let is_given_up = lock(&self.vfpga(index)?.state).is_given_up();
        is_given_up.then_some("its MMU does not confirm that pages are gone")
    }

    fn unconfirmed(&self, vfpga: &Vfpga) -> Error {
        Error::Dead {
            engine: format!("balboa{} window {}", self.card, vfpga.index),
            why: format!("its MMU does not confirm within {CONFIRM_LIMIT:?} that pages are gone"),
        }
    }

    /// The number of a vFPGA's signals so far, for [`Self::wait`].
    #[must_use]
    pub fn signals(&self, index: u8) -> u64 {
        self.vfpga(index).map_or(0, |vfpga| vfpga.signals.load(Ordering::Acquire))
    }

    /// Waits until a vFPGA has signalled more often than `seen`; `false` when the time passed. Serves
    /// its vector meanwhile, and where no thread does, those of all vFPGAs; so there one thread is to
    /// wait at a time.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not let it wait.
    pub fn wait(&self, index: u8, seen: u64, limit: Duration) -> Result<bool, Error> {
        let Some(vfpga) = self.vfpga(index) else { return Ok(false) };
        let begun = Instant::now();
        while self.signals(index) == seen {
            let left = limit.saturating_sub(begun.elapsed());
            let apart = lock(&self.apart).clone();
            match apart {
                Some(vectors) => self.serve_taken(&vectors, vfpga, seen, left)?,
                None => self.serve_all(left)?,
            }
            if begun.elapsed() >= limit {
                return Ok(self.signals(index) != seen);
            }
        }
        Ok(true)
    }

    /// Expects a vFPGA's answer at once, as of a software card that sleeps: the answer's interrupt is served when this
    /// is dropped, and wakes no other thread. Later interrupts are served as usual. The caller must not wait for
    /// anything meanwhile. `None` if the card cannot.
    #[must_use]
    pub fn expect(&self, index: u8) -> Option<Expected<'_>> {
        let vfpga = self.vfpga(index)?;
        let serving = lock(&vfpga.serving);
        let is_held = self.backend.hold_vector(index.into());
        is_held.then(|| Expected { shell: self, vfpga, _serving: serving })
    }

    /// Serves the signals that have come, unless a thread does.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not let it look.
    pub fn attend(&self) -> Result<(), Error> {
        let apart = lock(&self.apart).is_some();
        if apart { Ok(()) } else { self.serve_all(Duration::ZERO) }
    }

    /// Lets a thread serve the vectors, by [`Self::serve`], until `stop` is readable.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel has no room for it.
    pub fn serve_apart(&self, stop: BorrowedFd<'_>) -> Result<(), Error> {
        let regions = u8::try_from(self.vfpgas.len()).unwrap_or(u8::MAX);
        let vectors = Vectors::new(&*self.backend, regions, stop)?;
        *lock(&self.apart) = Some(Arc::new(vectors));
        Ok(())
    }

    /// Lets waiting threads serve the vectors from now on.
    pub fn serve_apart_no_more(&self) {
        *lock(&self.apart) = None;
    }

    /// Serves the vectors until it is to stop.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not let it wait.
    pub fn serve(&self) -> Result<(), Error> {
        let Some(vectors) = lock(&self.apart).clone() else { return Ok(()) };
        while let Some(signalled) = vectors.wait()? {
            for vfpga in signalled.into_iter().filter_map(|index| self.vfpga(index)) {
                let serving = vfpga.serving.try_lock();
                // The thread that waits for it serves it, and may wait for another vFPGA's event.
                if matches!(serving, Err(TryLockError::WouldBlock)) {
                    continue;
                }
                self.service(vfpga);
            }
        }
        Ok(())
    }

    /// Takes a vFPGA's vector over from the thread that serves, until it is signalled or the time has
    /// passed.
    fn serve_taken(
        &self,
        vectors: &Vectors,
        vfpga: &Vfpga,
        seen: u64,
        limit: Duration,
    ) -> Result<(), Error> {
        let Some(vector) = self.vector(vfpga.index) else {
            return await_any(&mut [], limit).map(drop);
        };
        let _serving = lock(&vfpga.serving);
        if self.signals(vfpga.index) != seen {
            return Ok(());
        }
        let _taken = vectors.take(vector, vfpga.index);
        if await_any(&mut [PollFd::new(vector, PollFlags::POLLIN)], limit)? {
            self.service(vfpga);
        }
        Ok(())
    }

    /// Waits until a vector is signalled, and serves those that are.
    fn serve_all(&self, limit: Duration) -> Result<(), Error> {
        let with_vectors = || self.vfpgas.iter().filter(|it| self.vector(it.index).is_some());
        let vectors = with_vectors().filter_map(|vfpga| self.vector(vfpga.index));
        let mut polled: Vec<_> = vectors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        await_any(&mut polled, limit)?;
        let signalled = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        for (vfpga, _) in with_vectors().zip(&polled).filter(|(_, fd)| signalled(fd)) {
            let _serving = lock(&vfpga.serving);
            self.service(vfpga);
        }
        Ok(())
    }

    /// The vector of a vFPGA.
    fn vector(&self, index: u8) -> Option<BorrowedFd<'_>> {
        self.backend.vector(index.into())
    }

    /// Takes the events that a vFPGA has signalled, each with its answer; the caller holds its vector.
    fn service(&self, vfpga: &Vfpga) {
        let Some(vector) = self.vector(vfpga.index) else { return };
        // An event is reported once the one before was taken back, and signalled once. One at a time: the next one is
        // signalled anew, and other vFPGAs come between.
        if nix::unistd::read(vector, &mut [0; 8]).is_ok() {
            self.service_one(vfpga);
        }
    }

    /// Takes the event that a vFPGA has signalled.
    fn service_one(&self, vfpga: &Vfpga) {
        // Events ahead of the registers, whose reads take longer than all else, and behind them
        // once more: an event that came meanwhile waits for the clear to arrive before it is signalled.
        vfpga.drain();
        self.take_event(vfpga);
        vfpga.drain();
        // Last: the waiting thread goes on to write registers, and a card answers reads behind writes.
        vfpga.signals.fetch_add(1, Ordering::Release);
    }

    /// Serves the interrupt of a vFPGA on the thread that runs the card, with what its interrupt register reads; `false`
    /// where that is left to a thread that may wait: for a lock, for the card, or longer than completions take.
    pub(crate) fn serve_at_once(&self, vector: u16, isr: u64) -> bool {
        let vfpga = u8::try_from(vector).ok().and_then(|index| self.vfpga(index));
        let Some((vfpga, events)) = vfpga.and_then(|it| Some((it, it.events.get()?))) else {
            return false;
        };
        let Ok(_serving) = vfpga.serving.try_lock() else { return false };
        let is_of_engine = IsrRead::decode(isr).kind == EventKind::Notify;
        if !is_of_engine || !events.drain_completions() {
            return false;
        }
        let Ok(mut state) = vfpga.state.try_lock() else { return false };
        state.overwritten = false;
        // An event that comes meanwhile waits for the clear to arrive before it is signalled.
        self.isr(vfpga.index, IsrWrite { clear_pending: true, ..IsrWrite::default() });
        vfpga.signals.fetch_add(1, Ordering::Release);
        true
    }

    fn take_event(&self, vfpga: &Vfpga) {
        let index = vfpga.index;
        let mut state = lock(&vfpga.state);
        let state = &mut *state;
        let event = IsrRead::decode(self.read(index, vfpga::ISR));
        // No offload is ever ordered, so nothing is reported: the interrupt was left over. Events
        // that are reported by now must stay.
        if event.kind == EventKind::Offload {
            return;
        }
        let clear = IsrWrite { clear_pending: true, ..IsrWrite::default() };
        let overwritten = std::mem::take(&mut state.overwritten);
        match event.kind {
            EventKind::PageFault if overwritten => {
                self.isr(index, clear);
                // Where it was is not known. The transfer tries again and faults again.
                self.restart(index, event, fpga_regs::engine::window::CTID, true);
            }
            EventKind::PageFault => {
                let vaddr = self.read(index, vfpga::ISR_VADDR);
                let length = IsrLen::decode(self.read(index, vfpga::ISR_LEN)).length;
                let pid = IsrPid::decode(self.read(index, vfpga::ISR_PID));
                self.isr(index, clear);
                self.mend(vfpga, event, pid, vaddr, length);
            }
            EventKind::Invalidated => {
                self.isr(index, clear);
                if state.confirmed != state.ordered {
                    state.confirmed = state.confirmed.wrapping_add(1);
                }
                if state.confirmed == state.ordered {
                    (state.silent, state.vain) = (None, 0);
                    if let Err(error) = self.tell(vfpga, state) {
                        log::error!("{error}");
                    }
                    if !state.is_in_doubt() && std::mem::take(&mut state.late) {
                        vfpga.events.get().into_iter().for_each(|events| events.call());
                    }
                }
            }
            kind => {
                if kind != EventKind::Notify {
                    log::debug!("balboa{} window {index}: event {kind:?}", self.card);
                }
                self.isr(index, clear);
            }
        }
    }

    /// Answers a page fault: with the entries it needs, or with a refusal.
    fn mend(&self, vfpga: &Vfpga, event: IsrRead, pid: IsrPid, vaddr: u64, length: u32) {
        let index = vfpga.index;
        let entries = self.translator().mend(index, pid.ctid, vaddr, length);
        let success = !entries.is_empty();
        let mut counts = lock(&self.counts);
        if success {
            counts.refilled = counts.refilled.saturating_add(1);
            log::trace!("balboa{} window {index}: page {vaddr:#x} inserted again", self.card);
        } else {
            counts.refused = counts.refused.saturating_add(1);
            log::warn!(
                "balboa{} window {index}: a {} of {length} bytes at {vaddr:#x} of address space {} met no memory and was refused",
                self.card,
                if event.write { "write" } else { "read" },
                pid.ctid,
            );
        }
        drop(counts);
        self.write_entries(index, &entries);
        if !success && vfpga.is_told_faults.load(Ordering::Acquire) {
            self.tell_refused(index, event.write, vaddr);
        }
        self.restart(index, event, pid.ctid, success);
    }

    /// Tells an engine of a fault that is about to be refused. The shell keeps the requests behind it back until it has the
    /// answer, so the engine knows of it before any of them ends.
    fn tell_refused(&self, index: u8, is_write: bool, address: u64) {
        let register = vfpga::user_csr(index.into()).wrapping_add(FAULT_REFUSED);
        let read = || self.backend.read64(Bar::Shell, register);
        let mut time_left = TimeLeft::new(CONFIRM_LIMIT, Instant::now());
        // It keeps one note of each direction. One that is of no request is never used.
        loop {
            let notes = read();
            if notes == u64::MAX {
                return;
            }
            if !FaultNotes::decode(notes).has(is_write) || time_left.left(Instant::now()).is_zero()
            {
                break;
            }
        }
        let note = FaultRefused { address, is_write };
        self.backend.write64(Bar::Shell, register, note.encode());
        // The note is there before the answer.
        let _ = read();
    }

    /// Lets the transfer go on that met a fault, or drops it.
    fn restart(&self, index: u8, event: IsrRead, ctid: u8, success: bool) {
        self.write(index, vfpga::ISR_PID, IsrPid { ctid, hpid: 0 }.encode());
        let restart = IsrWrite {
            restart_read: !event.write,
            restart_write: event.write,
            success,
            ..IsrWrite::default()
        };
        self.isr(index, restart);
    }
}

/// A vFPGA whose vector the caller serves: [`Shell::expect`].
pub struct Expected<'a> {
    shell: &'a Shell,
    vfpga: &'a Vfpga,
    _serving: MutexGuard<'a, ()>,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if self.shell.backend.release_vector(self.vfpga.index.into()) {
            self.shell.service_one(self.vfpga);
        }
    }
}

impl Vfpga {
    fn drain(&self) {
        if let Some(events) = self.events.get() {
            events.drain();
        }
    }
}

/// Waits until one of the descriptors is readable, at most that long; whether one is.
fn await_any(polled: &mut [PollFd<'_>], limit: Duration) -> Result<bool, Error> {
    // Rounded up, so that the last wait before a limit does not become a spin.
    let millis = limit.as_micros().div_ceil(1000);
    match poll(polled, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
        Ok(0) | Err(Errno::EINTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(errno) => Err(Error::Os { call: "poll of interrupts", errno }),
    }
}

#[cfg(test)]
mod tests;
