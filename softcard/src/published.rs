//! The part of a card that a driver's thread reads without the card thread: interrupts, and their register.
//!
//! A read is answered by the card thread, which has to wake up for it, as the reader has to for the
//! answer. The interrupt register is read for every interrupt, so the card thread keeps a copy of it
//! where others see it. The copy equals the register as long as no write is under way, for which
//! a read would wait.
//!
//! The write that takes an event back changes nothing that the card does while it sleeps, unless
//! another event waits behind that one. So it wakes no card: it is executed ahead of all else when the
//! card is awake, or at the next read.
//!
//! A driver's thread that is about to give the card work, and will look for the outcome itself, holds the vector
//! meanwhile: the card's signals are noted, and wake no thread.
//!
//! Otherwise the driver may serve an interrupt at once on the thread that runs the card ([`Published::serve_by`]), as
//! the handler of an interrupt interrupts a processor. Only one that is not served so signals its vector, and wakes a
//! thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fpga_regs::coyote::pci::{Bar, MSIX_TABLE_ENTRIES};
use fpga_regs::coyote::vfpga::{Bank, IsrWrite};
use hostmem::EventFd;

use crate::address_map;
use crate::interrupts::Interrupts;
use crate::{Error, WINDOWS};

/// The interrupt register of a vFPGA, as others see it.
#[derive(Debug, Default)]
pub(crate) struct IsrCopy {
    /// The value that it reads.
    pub(crate) register: AtomicU64,
    /// Whether an event waits behind the reported one.
    pub(crate) more: AtomicBool,
}

/// A driver's handler of interrupts: gets a vector, and the value that the interrupt register of the vFPGA of that number
/// reads. It says whether it has served the interrupt; it must not wait for the card, and must not wait long for anything.
pub type InterruptHandler = Box<dyn Fn(u16, u64) -> bool + Send + Sync>;

/// The handler, if there is one.
#[derive(Default)]
struct Handler(Mutex<Option<InterruptHandler>>);

impl Handler {
    fn lock(&self) -> MutexGuard<'_, Option<InterruptHandler>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").finish_non_exhaustive()
    }
}

/// Bits of a vector's hold: a thread looks for itself, and it was signalled.
const HELD: u32 = 1;
const SIGNALLED: u32 = 1 << 1;

/// The state of one card that its thread publishes.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// The interrupt registers are in the AVX bank.
    avx: AtomicBool,
    /// The MSI-X vectors.
    pub(crate) vectors: Vec<EventFd>,
    /// The hold on each of them: whether a thread holds it, and whether it was signalled meanwhile.
    holds: Vec<AtomicU32>,
    /// The handler of interrupts that wake no thread.
    handler: Handler,
    /// Posted writes that are not executed yet.
    writes_under_way: AtomicUsize,
    /// The shell is decoupled, or there is none: its registers read otherwise.
    cut_off: AtomicBool,
    /// Counts the rounds in which the card moved frames or payload, or a timer ran.
    pub(crate) activity: AtomicU64,
    /// The interrupt registers, by vFPGA.
    pub(crate) isrs: [Arc<IsrCopy>; WINDOWS as usize],
}

impl Published {
    /// The state of a card that is to be programmed.
    ///
    /// # Errors
    /// [`Error::Host`] when descriptors run out.
    pub(crate) fn new() -> Result<Self, Error> {
        let vectors: Result<_, _> = (0..MSIX_TABLE_ENTRIES).map(|_| EventFd::new()).collect();
        let holds = (0..MSIX_TABLE_ENTRIES).map(|_| AtomicU32::default()).collect();
        Ok(Self { vectors: vectors?, holds, ..Self::default() })
    }

    /// Notes the vector's signals, in the place of signalling; `false` where there is none.
    pub(crate) fn hold(&self, vector: u16) -> bool {
        let hold = self.holds.get(usize::from(vector));
        hold.map(|hold| hold.swap(HELD, Ordering::AcqRel)).is_some()
    }

    /// Signals the vector again from now on; whether it was to be signalled meanwhile.
    pub(crate) fn release(&self, vector: u16) -> bool {
        let hold = self.holds.get(usize::from(vector));
        hold.is_some_and(|hold| hold.swap(0, Ordering::AcqRel) & SIGNALLED != 0)
    }

    /// Has interrupts served at once from now on, or none of them any more: on return no handler runs that was there.
    pub(crate) fn serve_by(&self, serve: Option<InterruptHandler>) {
        *self.handler.lock() = serve;
    }

    /// Has an interrupt served at once; whether it was.
    fn serve(&self, vector: usize) -> bool {
        let handler = self.handler.lock();
        let (Some(serve), Ok(number)) = (&*handler, u16::try_from(vector)) else { return false };
        // A shell that is cut off reads otherwise.
        let isr = self.isrs.get(vector).filter(|_| !self.cut_off.load(Ordering::Relaxed));
        isr.is_some_and(|isr| serve(number, isr.register.load(Ordering::Relaxed)))
    }

    /// The card gets an image with such a bank: nothing is reported yet.
    pub(crate) fn program(&self, bank: Bank) {
        self.avx.store(bank == Bank::Avx, Ordering::Relaxed);
        for isr in &self.isrs {
            isr.register.store(0, Ordering::Release);
            isr.more.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the shell is cut off.
    pub(crate) fn cut_off(&self, cut_off: bool) {
        self.cut_off.store(cut_off, Ordering::Relaxed);
    }

    fn bank(&self) -> Bank {
        if self.avx.load(Ordering::Relaxed) { Bank::Avx } else { Bank::Plain }
    }

    /// A write is about to be posted.
    pub(crate) fn write_sent(&self) {
        self.writes_under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// A write was executed, after which the shell is cut off or not.
    pub(crate) fn write_executed(&self, cut_off: bool) {
        self.cut_off(cut_off);
        self.writes_under_way.fetch_sub(1, Ordering::Release);
    }

    /// The value of a read of 8 bytes now; `None` where the card thread has to tell.
    pub(crate) fn read(&self, bar: Bar, offset: u64) -> Option<u64> {
        let isr = self.isrs.get(address_map::isr_at(self.bank(), bar, offset)?)?;
        let settled = self.writes_under_way.load(Ordering::Acquire) == 0;
        let known = settled && !self.cut_off.load(Ordering::Relaxed);
        known.then(|| isr.register.load(Ordering::Acquire))
    }

    /// Whether a sleeping card need not be woken for a write of 8 bytes: it takes the last event back
    /// that there is. To be asked behind a full fence, once the write is on its way.
    pub(crate) fn may_wait(&self, bar: Bar, offset: u64, value: u64) -> bool {
        let clear = IsrWrite { clear_pending: true, ..IsrWrite::default() };
        let isr =
            address_map::isr_at(self.bank(), bar, offset).and_then(|index| self.isrs.get(index));
        isr.is_some_and(|isr| value == clear.encode() && !isr.more.load(Ordering::Relaxed))
    }
}

impl Interrupts for Arc<Published> {
    fn signal(&self, vector: usize) {
        let hold = self.holds.get(vector);
        if hold.is_some_and(|hold| hold.fetch_or(SIGNALLED, Ordering::AcqRel) & HELD != 0) {
            return;
        }
        if self.serve(vector) {
            return;
        }
        if let Some(vector) = self.vectors.get(vector) {
            // A counter that is full has been signalled.
            let _ = vector.signal();
        }
    }
}

#[cfg(test)]
mod tests {
    use fpga_regs::coyote::vfpga;

    use super::*;

    #[test]
    fn only_the_last_event_is_taken_back_without_the_card() {
        let published = Published::default();
        let isr = |index: u64| {
            let bank =
                vfpga::CONTROL_WINDOW_BASE.wrapping_add(vfpga::CONTROL_WINDOW_STRIDE * index);
            bank + vfpga::CNFG_OFFSET + vfpga::ISR
        };
        published.isrs[1].more.store(true, Ordering::Relaxed);
        assert!(published.may_wait(Bar::Shell, isr(0), 1));
        assert!(!published.may_wait(Bar::Shell, isr(1), 1), "another event waits");
        assert!(!published.may_wait(Bar::Shell, isr(0), 3), "a transfer waits for its restart");
        assert!(!published.may_wait(Bar::Shell, isr(0) + 8, 1), "another register");
        assert!(!published.may_wait(Bar::Xdma, isr(0), 1), "another BAR");
    }

    #[test]
    fn a_vector_that_is_held_notes_what_it_would_signal() {
        let published = Arc::new(Published::new().unwrap());
        let was_signalled = || published.vectors[3].drain().is_ok_and(|count| count > 0);
        published.signal(3);
        assert!(was_signalled());
        assert!(published.hold(3));
        assert!(!published.release(3), "what was signalled before is no business of the holder's");
        assert!(published.hold(3));
        published.signal(3);
        published.signal(2);
        assert!(!was_signalled());
        assert!(published.release(3) && !published.release(3));
        published.signal(3);
        assert!(was_signalled());
        assert!(!published.hold(MSIX_TABLE_ENTRIES) && !published.release(MSIX_TABLE_ENTRIES));
    }

    #[test]
    fn an_interrupt_that_the_handler_serves_signals_no_vector() {
        let published = Arc::new(Published::new().unwrap());
        let was_signalled = || published.vectors[1].drain().is_ok_and(|count| count > 0);
        published.isrs[1].register.store(7, Ordering::Relaxed);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (served, told) = (Arc::new(AtomicBool::new(true)), Arc::clone(&seen));
        let serves = Arc::clone(&served);
        published.serve_by(Some(Box::new(move |vector, isr| {
            told.lock().unwrap().push((vector, isr));
            serves.load(Ordering::Relaxed)
        })));
        published.signal(1);
        assert!(!was_signalled());
        served.store(false, Ordering::Relaxed);
        published.signal(1);
        assert!(was_signalled(), "it was not served");
        assert!(published.hold(1));
        published.signal(1);
        assert!(!was_signalled() && published.release(1), "its holder looks for itself");
        published.cut_off(true);
        published.signal(1);
        assert!(was_signalled(), "the register is not to be read");
        published.cut_off(false);
        published.serve_by(None);
        published.signal(1);
        assert!(was_signalled(), "there is no handler any more");
        assert_eq!(*seen.lock().unwrap(), [(1, 7); 2]);
    }

    #[test]
    fn the_copy_is_read_only_while_it_is_what_the_register_reads() {
        let published = Published::default();
        published.isrs[2].register.store(7, Ordering::Relaxed);
        let bank = vfpga::CONTROL_WINDOW_BASE + 2 * vfpga::CONTROL_WINDOW_STRIDE;
        let isr = bank + vfpga::CNFG_OFFSET + vfpga::ISR;
        assert_eq!(published.read(Bar::Shell, isr), Some(7));
        assert_eq!(published.read(Bar::Shell, isr + 8), None, "another register");
        assert_eq!(published.read(Bar::Xdma, isr), None, "another BAR");
        published.write_sent();
        assert_eq!(published.read(Bar::Shell, isr), None, "a write is under way");
        published.write_executed(true);
        assert_eq!(published.read(Bar::Shell, isr), None, "the shell is decoupled");
        published.write_sent();
        published.write_executed(false);
        assert_eq!(published.read(Bar::Shell, isr), Some(7));
    }
}
