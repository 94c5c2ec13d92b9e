//! The event ring of an engine, as balboad reads it.
//!
//! What stands there is told where it is found, by whichever thread looks, whatever others are at: who
//! waits for an event, waits for nobody's command. Kept is only what concerns the engine itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::engine::cqe;
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::window;
use hostmem::{BlockRing, EventFd};

use crate::backend::CardBackend;
use crate::engine::{EngineEvent, Hear};
use crate::error::Error;
use crate::gsi::Gsi;
use crate::lock::lock;

/// log2 of the entries.
pub const LOG2_EVENTS: u8 = 12;
/// Entries.
const ENTRIES: u32 = 1 << LOG2_EVENTS;
/// Entries taken before the engine is told of their space.
const UNTOLD: u32 = ENTRIES / 4;

/// One engine's event ring.
pub struct EventRing {
    name: String,
    backend: Arc<dyn CardBackend>,
    /// Where the engine's registers are in the shell's BAR.
    csr: u64,
    /// Signalled when something is kept.
    news: EventFd,
    reader: Mutex<Reader>,
}

struct Reader {
    ring: BlockRing,
    /// The next entry, and what the engine was told of that.
    index: u32,
    told: u32,
    hear: Option<Hear>,
    /// The driver's own queue pair, whose events are nobody else's.
    arrivals: Option<Arc<Gsi>>,
    kept: Kept,
}

/// What the engine's owner has to hear.
#[derive(Default)]
struct Kept {
    /// The engine had more to say than the ring has entries.
    lost: bool,
    /// It is dead, and nobody was told yet.
    dead: bool,
    /// Why, as the ring says.
    fatal: Option<String>,
}

impl EventRing {
    /// A ring of 2^[`LOG2_EVENTS`] blocks, of the engine whose registers begin at `csr`.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out.
    pub fn new(
        name: String,
        backend: Arc<dyn CardBackend>,
        csr: u64,
        ring: BlockRing,
    ) -> Result<Self, Error> {
        let reader =
            Reader { ring, index: 0, told: 0, hear: None, arrivals: None, kept: Kept::default() };
        Ok(Self { name, backend, csr, news: EventFd::new()?, reader: Mutex::new(reader) })
    }

    /// Begins anew with a ring that `empty` empties, of an engine that is stopped. Nobody reads it
    /// meanwhile: in every second lap an entry of zeros is one that was written.
    ///
    /// # Errors
    /// Those of `empty`.
    pub fn reset(&self, empty: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut reader = lock(&self.reader);
        empty()?;
        (reader.index, reader.told) = (0, 0);
        reader.kept = Kept::default();
        Ok(())
    }

    /// Who is told of the engine's events.
    pub fn listen(&self, hear: Hear) {
        lock(&self.reader).hear = Some(hear);
    }

    /// Tells queue pair 1 of what arrives for it.
    pub fn tell_arrivals(&self, gsi: Option<&Arc<Gsi>>) {
        lock(&self.reader).arrivals = gsi.map(Arc::clone);
    }

    /// What makes [`Self::news`] readable.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out.
    pub fn caller(&self) -> Result<EventFd, Error> {
        Ok(self.news.try_clone()?)
    }

    /// Takes every event that stands in the ring. What stood there when it is called has been told when
    /// it returns.
    pub fn drain(&self) {
        let mut reader = lock(&self.reader);
        let mut taken = 0u32;
        // A full ring ends the pass: the engine writes no more before it is told of the space.
        while taken < ENTRIES {
            let Some(event) = reader.take() else { break };
            if event.kind == EventType::Fatal {
                let why = format!("the engine stopped with code {}", event.code);
                reader.kept.fatal.get_or_insert(why);
                self.signal();
            } else if let Some(gsi) = reader.own(event) {
                gsi.hear();
            } else if let Some(hear) = &reader.hear {
                hear(event);
            }
            taken = taken.saturating_add(1);
        }
        if reader.index.wrapping_sub(reader.told) >= UNTOLD {
            self.tell(&mut reader);
        }
    }

    /// Tells the engine which entries were taken, and hears whether it ran out of them before.
    fn tell(&self, reader: &mut Reader) {
        reader.told = reader.index;
        self.write(window::EVENT_CONSUMER, u64::from(reader.index));
        let status = self.backend.read64(Bar::Shell, self.csr.wrapping_add(window::STATUS));
        if status & window::STATUS_EVENT_OVERFLOW != 0 {
            log::warn!("{}: the event ring overflowed; every queue is looked at", self.name);
            self.write(window::EVENT_OVERFLOW_CLEAR, 1);
            reader.kept.lost = true;
            reader.arrivals.iter().for_each(|gsi| gsi.hear());
            self.signal();
        }
    }

    fn write(&self, register: u64, value: u64) {
        self.backend.write64(Bar::Shell, self.csr.wrapping_add(register), value);
    }

    fn signal(&self) {
        // A counter that is full has been signalled.
        let _ = self.news.signal();
    }

    /// Keeps that the engine is dead, behind what it said itself.
    pub fn die(&self) {
        lock(&self.reader).kept.dead = true;
        self.signal();
    }

    /// Readable when something is kept.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// What is kept, one at a time.
    pub fn next_event(&self) -> Option<EngineEvent> {
        let kept = &mut lock(&self.reader).kept;
        if std::mem::take(&mut kept.lost) {
            return Some(EngineEvent::Lost);
        }
        std::mem::take(&mut kept.dead).then_some(EngineEvent::Dead)
    }

    /// Why the engine is dead, if the ring said so since this was asked last.
    pub fn take_fatal(&self) -> Option<String> {
        lock(&self.reader).kept.fatal.take()
    }
}

impl Reader {
    /// Queue pair 1, if the event is of what arrived for it.
    fn own(&self, event: Event) -> Option<&Gsi> {
        let gsi = self.arrivals.as_deref().filter(|_| event.kind == EventType::Completion)?;
        gsi.is_told_by(event.number).then_some(gsi)
    }

    /// The next event in the ring.
    fn take(&mut self) -> Option<Event> {
        let expected = cqe::expected_phase(self.index, LOG2_EVENTS);
        let entry = self.ring.block(self.index).written(|last| cqe::phase(last) == expected)?;
        self.index = self.index.wrapping_add(1);
        Some(Event::decode(&[entry.load()]))
    }
}
