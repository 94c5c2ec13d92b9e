//! The event rings of an engine, as balboad reads them.
//!
//! The thread that looks reports the events that it finds, at once: an event waits for no command. It takes some of
//! each ring in turn, so that an event waits for all events before it in its own ring, and for a bounded number of
//! each other. It keeps only events that concern the engine itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fpga_regs::coyote::pci::Bar;
use fpga_regs::engine::cqe;
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::window::{self, EventConsumer, EventOverflowClear, Status};
use hostmem::{BlockRing, EventFd};

use crate::backend::CardBackend;
use crate::engine::{EngineEvent, Hear};
use crate::error::Error;
use crate::gsi::Gsi;
use crate::lock::lock;

/// log2 of the entries of each.
pub const LOG2_EVENTS: u8 = 12;
/// Entries.
const ENTRIES: u32 = 1 << LOG2_EVENTS;
/// Entries taken before the engine is told of their space, while there are others.
const UNTOLD: u32 = ENTRIES / 4;
/// Unread events in a ring up to which the engine, if it knows the limit, tells a completion in it: others' completions
/// may have to wait for so many, hence a few turns.
pub const COMPLETIONS: u32 = 4 * TURN;
/// Entries taken of a ring before the others have a turn.
const TURN: u32 = 16;

/// Entries that the card's own thread takes of a ring at a time: the work of others waits behind it.
const AT_ONCE: u32 = 4;

/// One engine's event rings.
pub struct EventRings {
    name: String,
    backend: Arc<dyn CardBackend>,
    /// Where the engine's registers are in the shell's BAR.
    csr: u64,
    /// Signalled when an event is kept.
    news: EventFd,
    /// Whether one is kept: most who ask find none, and need no lock for that.
    keeps: AtomicBool,
    reader: Mutex<Reader>,
}

struct Reader {
    /// The rings, by number.
    rings: Vec<Ring>,
    hear: Option<Hear>,
    /// The driver's own queue pair, whose events concern no client.
    arrivals: Option<Arc<Gsi>>,
    kept: Kept,
}

struct Ring {
    number: u8,
    entries: BlockRing,
    /// The next entry, the one that the engine was told last, and the one at which it was asked last whether events
    /// were lost.
    index: u32,
    told: u32,
    asked: u32,
    /// Entries that may still be taken in this pass.
    left: u32,
}

/// Events that the engine's owner must hear.
#[derive(Default)]
struct Kept {
    /// The engine had more to say than these rings have entries: bit n for ring n.
    lost: u8,
    /// Whether it is dead, and its death not told yet.
    dead: bool,
    /// Why, as the ring says.
    fatal: Option<String>,
}

impl EventRings {
    /// Rings of 2^[`LOG2_EVENTS`] blocks each, by number, of the engine whose registers begin at `csr`.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out.
    pub fn new(
        name: String,
        backend: Arc<dyn CardBackend>,
        csr: u64,
        rings: Vec<BlockRing>,
    ) -> Result<Self, Error> {
        let ring =
            |(number, entries)| Ring { number, entries, index: 0, told: 0, asked: 0, left: 0 };
        let rings = (0..).zip(rings).map(ring).collect();
        let reader = Reader { rings, hear: None, arrivals: None, kept: Kept::default() };
        let (news, keeps, reader) = (EventFd::new()?, AtomicBool::new(false), Mutex::new(reader));
        Ok(Self { name, backend, csr, news, keeps, reader })
    }

    /// Begins anew with rings that `empty` empties, of an engine that is stopped. Nobody reads them
    /// meanwhile: in every second lap an entry of zeros is one that was written.
    ///
    /// # Errors
    /// Those of `empty`.
    pub fn reset(&self, empty: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut reader = lock(&self.reader);
        empty()?;
        for ring in &mut reader.rings {
            (ring.index, ring.told, ring.asked) = (0, 0, 0);
        }
        reader.kept = Kept::default();
        self.keeps.store(false, Ordering::Release);
        Ok(())
    }

    /// Sets the receiver of the engine's events.
    pub fn listen(&self, hear: Hear) {
        lock(&self.reader).hear = Some(hear);
    }

    /// Sets the queue pair 1 that hears of arriving datagrams.
    pub fn tell_arrivals(&self, gsi: Option<&Arc<Gsi>>) {
        lock(&self.reader).arrivals = gsi.map(Arc::clone);
    }

    /// The counter that makes [`Self::news`] readable.
    ///
    /// # Errors
    /// [`Error::Memory`] when descriptors run out.
    pub fn caller(&self) -> Result<EventFd, Error> {
        Ok(self.news.try_clone()?)
    }

    /// Takes every event that stands in the rings. Events that stood there at the call have been reported
    /// when it returns.
    pub fn drain(&self) {
        let reader = &mut *lock(&self.reader);
        if reader.rings.iter().all(|ring| ring.next().is_none()) {
            return;
        }
        // The pass ends after as many events as a ring has, even if the engine writes into freed space meanwhile.
        reader.rings.iter_mut().for_each(|ring| ring.left = ENTRIES);
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            for at in 0..reader.rings.len() {
                goes_on |= self.take_turn(reader, at);
                // At once: other rings' floods in a pass would let this ring fill meanwhile.
                self.tell(reader, at, UNTOLD);
            }
        }
        // Not before: completions that find room now belong to the next pass, behind those of other engines.
        for at in 0..reader.rings.len() {
            self.tell(reader, at, TURN);
        }
    }

    /// Takes the completions that stand in the rings, a few of each, on the thread that runs the card: waits neither for the
    /// thread that reads the rings nor for the card. `false` where there is more to do, which is [`Self::drain`]'s.
    pub fn drain_completions(&self) -> bool {
        let Ok(mut reader) = self.reader.try_lock() else { return false };
        for ring in &mut reader.rings {
            // So few that the card need not be asked whether any were lost.
            let unasked = ring.index.wrapping_sub(ring.asked);
            ring.left = AT_ONCE.min((UNTOLD - 1).saturating_sub(unasked));
        }
        for at in 0..reader.rings.len() {
            while let Some(event) = reader.rings.get(at).and_then(Ring::next) {
                let is_usual = event.kind == EventType::Completion;
                if !is_usual || !reader.rings.get_mut(at).is_some_and(Ring::pass) {
                    return false;
                }
                reader.report(event);
            }
            self.tell(&mut reader, at, TURN);
        }
        true
    }

    /// Takes some events of a ring; `true` where there may be more.
    fn take_turn(&self, reader: &mut Reader, at: usize) -> bool {
        for _ in 0..TURN {
            let Some(event) = reader.rings.get_mut(at).and_then(Ring::take) else { return false };
            if event.kind == EventType::Fatal {
                let why = format!("the engine stopped with code {}", event.code);
                reader.kept.fatal.get_or_insert(why);
                self.keep();
            } else {
                reader.report(event);
            }
        }
        true
    }

    /// Tells the engine the entries taken of a ring, if they are so many, and asks now and then whether it ran out of
    /// them before.
    fn tell(&self, reader: &mut Reader, at: usize, many: u32) {
        let untold = |ring: &&mut Ring| ring.index.wrapping_sub(ring.told) >= many;
        let Some(ring) = reader.rings.get_mut(at).filter(untold) else { return };
        ring.told = ring.index;
        let (number, consumer) = (ring.number, ring.index);
        let read = EventConsumer { consumer, ring: number };
        self.write(window::EVENT_CONSUMER, read.encode());
        if consumer.wrapping_sub(ring.asked) < UNTOLD {
            return;
        }
        ring.asked = consumer;
        let status = self.backend.read64(Bar::Shell, self.csr.wrapping_add(window::STATUS));
        let bit = 1u8.wrapping_shl(number.into());
        if Status::decode(status).overflows() & bit != 0 {
            let name = &self.name;
            log::warn!("{name}: event ring {number} overflowed; every queue of it is looked at");
            self.write(window::EVENT_OVERFLOW_CLEAR, EventOverflowClear { ring: number }.encode());
            reader.kept.lost |= bit;
            if number == 0 {
                reader.arrivals.iter().for_each(|gsi| gsi.hear());
            }
            self.keep();
        }
    }

    fn write(&self, register: u64, value: u64) {
        self.backend.write64(Bar::Shell, self.csr.wrapping_add(register), value);
    }

    /// Makes [`Self::news`] readable: an event is kept, or another state has changed that its owner looks at.
    pub fn call(&self) {
        // A counter that is full has been signalled.
        let _ = self.news.signal();
    }

    /// Tells that an event is kept; the reader is held.
    fn keep(&self) {
        self.keeps.store(true, Ordering::Release);
        self.call();
    }

    /// Reports the engine dead, after its own events.
    pub fn die(&self) {
        let mut reader = lock(&self.reader);
        reader.kept.dead = true;
        self.keep();
    }

    /// A descriptor that is readable while events wait, or after a call.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// The next event that waits.
    pub fn next_event(&self) -> Option<EngineEvent> {
        self.take_kept(|kept| {
            let rings = std::mem::take(&mut kept.lost);
            if rings != 0 {
                return Some(EngineEvent::Lost { rings });
            }
            std::mem::take(&mut kept.dead).then_some(EngineEvent::Dead)
        })
    }

    /// Why the engine is dead, if the ring said so since this was asked last.
    pub fn take_fatal(&self) -> Option<String> {
        self.take_kept(|kept| kept.fatal.take())
    }

    fn take_kept<T>(&self, take: impl FnOnce(&mut Kept) -> Option<T>) -> Option<T> {
        if !self.keeps.load(Ordering::Acquire) {
            return None;
        }
        let kept = &mut lock(&self.reader).kept;
        let taken = take(kept);
        let Kept { lost, dead, fatal } = kept;
        self.keeps.store(*lost != 0 || *dead || fatal.is_some(), Ordering::Release);
        taken
    }
}

impl Reader {
    /// Reports an event of an object.
    fn report(&self, event: Event) {
        if let Some(gsi) = self.own(event) {
            gsi.hear();
        } else if let Some(hear) = &self.hear {
            hear(event);
        }
    }

    /// Queue pair 1, if the event is of an arrival for it.
    fn own(&self, event: Event) -> Option<&Gsi> {
        let gsi = self.arrivals.as_deref().filter(|_| event.kind == EventType::Completion)?;
        gsi.is_told_by(event.number).then_some(gsi)
    }
}

impl Ring {
    /// The next event in the ring.
    fn next(&self) -> Option<Event> {
        let expected = cqe::expected_phase(self.index, LOG2_EVENTS);
        let entry = self.entries.block(self.index);
        let entry = entry.written(|last| cqe::phase(last) == expected)?;
        Some(Event::decode(&[entry.load()]))
    }

    /// Passes over the next event; `false` where no more may be taken.
    fn pass(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        (self.left, self.index) = (left, self.index.wrapping_add(1));
        true
    }

    /// Takes the next event, of those that may be taken.
    fn take(&mut self) -> Option<Event> {
        let event = self.next()?;
        self.pass().then_some(event)
    }
}
