//! The shell's part of a card's vFPGAs: their MMUs and their interrupts.
//!
//! A vFPGA reports one event at a time on its vector: a page fault, the end of an invalidation, or
//! that its engine has something to say. A fault anywhere may hold up the whole card, so whoever
//! waits for one vFPGA serves the faults of all.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::tlb::Geometry;
use fpga_regs::coyote::vfpga::{self, Bank, EventKind, IsrLen, IsrPid, IsrRead, IsrWrite};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::admin::GONE;
use crate::backend::CardBackend;
use crate::error::Error;
use crate::event_ring::EventRing;
use crate::shadow::{Purpose, Shadow};

/// How long an invalidation may take.
const INVALIDATION_LIMIT: Duration = Duration::from_secs(1);
/// How long no invalidation is waited for after one that was not confirmed: a program that ends has
/// thousands of regions, and others want to be served.
const SILENCE: Duration = Duration::from_secs(10);
/// How often the registers are looked at while an interrupt does not come.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Pages that are taken back at a time, with one confirmation for all of them.
pub const ROW: usize = 16;

/// Events taken from a vFPGA at a time.
const MOST_EVENTS: usize = 64;

/// What balboad did about the faults of a card.
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
    shadow: Shadow,
    /// Its engine said something that nobody has listened to.
    news: bool,
    /// What its engine says it in.
    events: Option<Rc<EventRing>>,
    /// Invalidations that were asked for and whose end was not reported.
    invalidating: u32,
    /// Since when invalidations are not confirmed.
    silent: Option<Instant>,
    /// An invalidation was written to the registers that also describe events, and no event was
    /// taken since: the next one may read wrong.
    overwritten: bool,
}

/// Which vFPGAs had something to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Nothing,
    /// Others than the wanted one.
    Others,
    /// The wanted one, others perhaps.
    Wanted,
}

/// The vFPGAs of a card.
pub struct Shell {
    card: u32,
    backend: Rc<dyn CardBackend>,
    bank: Bank,
    vfpgas: RefCell<Vec<Vfpga>>,
    counts: RefCell<FaultCounts>,
    /// The shells of all cards, once they have joined; this one alone before.
    all: RefCell<Vec<Weak<Self>>>,
}

impl Shell {
    /// The vFPGAs of a card that was probed, with empty TLBs.
    #[must_use]
    pub fn new(
        card: u32,
        backend: Rc<dyn CardBackend>,
        bank: Bank,
        large: Geometry,
        regions: u8,
    ) -> Self {
        let ctid = fpga_regs::engine::window::CTID;
        let hpid = std::process::id();
        let vfpga = |index| Vfpga {
            index,
            shadow: Shadow::new(large, ctid, hpid),
            news: false,
            events: None,
            invalidating: 0,
            silent: None,
            overwritten: false,
        };
        let vfpgas = RefCell::new((0..regions).map(vfpga).collect());
        let (counts, all) = Default::default();
        Self { card, backend, bank, vfpgas, counts, all }
    }

    /// Lets whoever waits for a vFPGA of one card serve those of the others.
    pub fn join<'a>(shells: impl Iterator<Item = &'a Rc<Self>>) {
        let shells: Vec<_> = shells.collect();
        for shell in &shells {
            *shell.all.borrow_mut() = shells.iter().map(|it| Rc::downgrade(it)).collect();
        }
    }

    /// Drains a vFPGA's event ring as soon as its interrupt is seen.
    pub fn hear(&self, index: u8, events: Rc<EventRing>) {
        self.with(index, |vfpga| vfpga.events = Some(events));
    }

    /// The way to the card.
    #[must_use]
    pub fn backend(&self) -> &Rc<dyn CardBackend> {
        &self.backend
    }

    /// What was done about faults so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        *self.counts.borrow()
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

    fn with<T>(&self, index: u8, act: impl FnOnce(&mut Vfpga) -> T) -> Option<T> {
        let mut vfpgas = self.vfpgas.borrow_mut();
        vfpgas.iter_mut().find(|vfpga| vfpga.index == index).map(act)
    }

    /// Writes entries while the TLB is locked.
    fn write_entries(&self, index: u8, entries: &[[u64; 2]]) {
        if entries.is_empty() {
            return;
        }
        let lock = IsrWrite { lock: true, invalidate: true, ..IsrWrite::default() };
        let window = vfpga::large_tlb(index.into());
        self.isr(index, lock);
        for [first, second] in entries {
            self.backend.write64(Bar::Shell, window.wrapping_add(vfpga::TLB_WORD_0), *first);
            self.backend.write64(Bar::Shell, window.wrapping_add(vfpga::TLB_WORD_1), *second);
        }
        self.isr(index, lock);
    }

    /// Notes that a range has memory for a vFPGA, and inserts what its purpose wants inserted ahead.
    pub fn map(&self, index: u8, start: u64, length: u64, purpose: Purpose) {
        let entries = self.with(index, |vfpga| vfpga.shadow.map(start, length, purpose));
        self.write_entries(index, &entries.unwrap_or_default());
    }

    /// Takes ranges, each by its first byte and its bytes, back from a vFPGA: the pages that are left
    /// without memory, a row of them. `true` once its TLB has none left and no transfer to them is
    /// under way; after `false` another call is due. Faults there are refused from the first call on.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm: the memory is not to be used for anything
    /// else.
    pub fn unmap(&self, index: u8, ranges: &[(u64, u64)]) -> Result<bool, Error> {
        let row = self.with(index, |vfpga| {
            let shadow = &mut vfpga.shadow;
            ranges.iter().for_each(|(start, _)| shadow.forget(*start));
            let mut row = Vec::new();
            for &(start, length) in ranges {
                row.extend(shadow.take_gone(start, length, ROW.saturating_sub(row.len())));
            }
            (row, shadow.hpid(), shadow.page_bytes())
        });
        let Some((row, hpid, bytes)) = row.filter(|(row, ..)| !row.is_empty()) else {
            return Ok(true);
        };
        let entries: Vec<[u64; 2]> = row.iter().map(|(_, words)| *words).collect();
        self.write_entries(index, &entries);
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.with(index, |vfpga| vfpga.overwritten = true);
        let mut left = row.len();
        for (page, _) in &row {
            left = left.saturating_sub(1);
            if !self.invalidate(index, hpid, *page, length, left == 0) {
                return Err(Error::Dead {
                    engine: format!("balboa{} window {index}", self.card),
                    why: GONE.to_owned(),
                });
            }
        }
        self.await_invalidation(index)?;
        Ok(row.len() < ROW)
    }

    /// Asks for the invalidation of a page; false where there is no card any more.
    ///
    /// An event that is reported meanwhile overwrites the registers, all at once and with a process
    /// of 0, so that the card may take its values for ours. The register written first, read behind
    /// the order, tells. No other event is reported before that one is taken: the second order is
    /// sound.
    fn invalidate(&self, index: u8, hpid: u32, page: u64, length: u32, last: bool) -> bool {
        for _ in 0..2 {
            let pid = IsrPid { ctid: 0, hpid }.encode();
            self.write(index, vfpga::ISR_PID, pid);
            self.write(index, vfpga::ISR_VADDR, page);
            self.write(index, vfpga::ISR_LEN, IsrLen { length, value: 0 }.encode());
            let order = IsrWrite { invalidate: true, invalidate_last: last, ..IsrWrite::default() };
            self.isr(index, order);
            let ended = u32::from(last);
            self.with(index, |vfpga| vfpga.invalidating = vfpga.invalidating.saturating_add(ended));
            match self.read(index, vfpga::ISR_PID) {
                u64::MAX => return false,
                read if read == pid => break,
                _ => {}
            }
        }
        true
    }

    fn await_invalidation(&self, index: u8) -> Result<(), Error> {
        let begun = Instant::now();
        let unheard = |vfpga: &mut Vfpga| {
            vfpga.silent = vfpga.silent.filter(|since| begun.duration_since(*since) < SILENCE);
            vfpga.silent.is_some()
        };
        if self.with(index, unheard).unwrap_or(false) {
            return Err(self.unconfirmed(index));
        }
        let done = || self.with(index, |vfpga| vfpga.invalidating == 0).unwrap_or(true);
        while !done() {
            let left = INVALIDATION_LIMIT.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.with(index, |vfpga| vfpga.silent = Some(Instant::now()));
                return Err(self.unconfirmed(index));
            }
            if self.wait(index, left.min(LOOK_AGAIN))? {
                self.service(index);
            }
        }
        Ok(())
    }

    /// Gives the invalidations under way up. A confirmation that comes late is nobody's.
    fn unconfirmed(&self, index: u8) -> Error {
        self.with(index, |vfpga| vfpga.invalidating = 0);
        Error::Dead {
            engine: format!("balboa{} window {index}", self.card),
            why: format!(
                "its MMU does not confirm within {INVALIDATION_LIMIT:?} that pages are gone"
            ),
        }
    }

    /// The vector of a vFPGA.
    #[must_use]
    pub fn vector(&self, index: u8) -> Option<BorrowedFd<'_>> {
        self.backend.vector(index.into())
    }

    /// Waits until a vFPGA has something to report, and serves all others of all cards meanwhile;
    /// `false` when the time passed.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not let it wait.
    pub fn wait(&self, index: u8, limit: Duration) -> Result<bool, Error> {
        let begun = Instant::now();
        loop {
            // Rounded up, so that the last wait before a limit does not become a spin.
            let millis = limit.saturating_sub(begun.elapsed()).as_millis().saturating_add(1);
            match self.serve_all(Some(index), millis)? {
                Ready::Wanted => return Ok(true),
                Ready::Others if begun.elapsed() < limit => {}
                Ready::Others | Ready::Nothing => return Ok(false),
            }
        }
    }

    /// Serves every vFPGA of all cards that has something to report.
    ///
    /// To be called ahead of everything that takes a moment: programs wait for nobody's requests.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not let it look.
    pub fn attend(&self) -> Result<(), Error> {
        self.serve_all(None, 0).map(drop)
    }

    /// Waits until any vFPGA has something to report, and serves those but `wanted`.
    fn serve_all(&self, wanted: Option<u8>, millis: u128) -> Result<Ready, Error> {
        let shells: Vec<Rc<Self>> = self.all.borrow().iter().filter_map(Weak::upgrade).collect();
        let shells: Vec<&Self> =
            if shells.is_empty() { vec![self] } else { shells.iter().map(|it| &**it).collect() };
        let (places, mut polled): (Vec<(&Self, u8)>, Vec<PollFd<'_>>) = shells
            .iter()
            .flat_map(|shell| shell.vectors())
            .map(|(place, vector)| (place, PollFd::new(vector, PollFlags::POLLIN)))
            .unzip();
        match poll(&mut polled, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
            Ok(0) | Err(Errno::EINTR) => return Ok(Ready::Nothing),
            Ok(_) => {}
            Err(errno) => return Err(Error::Os { call: "poll of interrupts", errno }),
        }
        let signalled = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let mut ready = Ready::Others;
        for ((shell, index), _) in places.iter().zip(&polled).filter(|(_, fd)| signalled(fd)) {
            if std::ptr::eq(*shell, self) && wanted == Some(*index) {
                ready = Ready::Wanted;
            } else {
                shell.service(*index);
            }
        }
        Ok(ready)
    }

    /// Takes the events that a vFPGA has signalled, each with its answer.
    pub fn service(&self, index: u8) {
        let Some(vector) = self.vector(index) else { return };
        // An event is reported once the one before was taken back, and signalled once. A card that
        // has no end of them is looked at again later.
        for _ in 0..MOST_EVENTS {
            if nix::unistd::read(vector, &mut [0; 8]).is_err() {
                break;
            }
            // Before the registers, whose reads take longer than all else: a program may wait for
            // what stands there. Behind them once more: what came meanwhile waits for the clear to
            // arrive before it is signalled.
            self.drain(index);
            self.take_event(index);
            self.drain(index);
        }
    }

    fn drain(&self, index: u8) {
        let events = self.with(index, |vfpga| vfpga.events.clone()).flatten();
        if let Some(events) = events {
            events.drain();
        }
    }

    /// The vFPGAs and their vectors.
    fn vectors(&self) -> impl Iterator<Item = ((&Self, u8), BorrowedFd<'_>)> {
        let indices: Vec<u8> = self.vfpgas.borrow().iter().map(|vfpga| vfpga.index).collect();
        indices.into_iter().filter_map(move |index| Some(((self, index), self.vector(index)?)))
    }

    fn take_event(&self, index: u8) {
        let event = IsrRead::decode(self.read(index, vfpga::ISR));
        // No offload is ever ordered, so nothing is reported: the interrupt was left over. What is
        // reported by now must stay.
        if event.kind == EventKind::Offload {
            return;
        }
        let clear = IsrWrite { clear_pending: true, ..IsrWrite::default() };
        let overwritten =
            self.with(index, |vfpga| std::mem::take(&mut vfpga.overwritten)).unwrap_or(false);
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
                self.mend(index, event, pid, vaddr, length);
            }
            EventKind::Invalidated => {
                self.isr(index, clear);
                let ended = |vfpga: &mut Vfpga| {
                    vfpga.invalidating = vfpga.invalidating.saturating_sub(1);
                };
                self.with(index, ended);
            }
            kind => {
                if kind != EventKind::Notify {
                    log::debug!("balboa{} window {index}: event {kind:?}", self.card);
                }
                self.isr(index, clear);
                self.with(index, |vfpga| vfpga.news = true);
            }
        }
    }

    /// Answers a page fault: with the entries it needs, or with a refusal.
    fn mend(&self, index: u8, event: IsrRead, pid: IsrPid, vaddr: u64, length: u32) {
        let known = pid.ctid == fpga_regs::engine::window::CTID;
        let refill = |vfpga: &mut Vfpga| vfpga.shadow.refill(vaddr, length);
        let entries = self.with(index, refill).filter(|_| known).unwrap_or_default();
        let success = !entries.is_empty();
        let mut counts = self.counts.borrow_mut();
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
        self.restart(index, event, pid.ctid, success);
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

    /// Whether the engine of a vFPGA has said something since this was asked last.
    pub fn take_news(&self, index: u8) -> bool {
        self.with(index, |vfpga| std::mem::take(&mut vfpga.news)).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests;
