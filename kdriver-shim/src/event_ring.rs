//! The event ring of an engine, as balboad reads it.
//!
//! A completion event is told where it is found, whatever balboad is at: who waits for one, waits for
//! nobody's command. All other events are kept until they are asked for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::engine::cqe;
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::window;
use hostmem::BlockRing;

use crate::backend::CardBackend;
use crate::engine::{EngineEvent, Hear};

/// log2 of the entries.
pub const LOG2_EVENTS: u8 = 12;
/// Entries.
const ENTRIES: u32 = 1 << LOG2_EVENTS;
/// Entries taken before the engine is told of their space.
const UNTOLD: u32 = ENTRIES / 4;

/// Events kept for who asks for them; some laps of the ring.
pub const MOST_EVENTS: usize = 1 << 16;

/// One engine's event ring.
pub struct EventRing {
    name: String,
    backend: Rc<dyn CardBackend>,
    /// Where the engine's registers are in the shell's BAR.
    csr: u64,
    ring: BlockRing,
    /// The next entry, and what the engine was told of that.
    index: Cell<u32>,
    told: Cell<u32>,
    kept: RefCell<VecDeque<EngineEvent>>,
    hear: RefCell<Option<Hear>>,
    /// Why the engine is dead, as the ring says.
    fatal: RefCell<Option<String>>,
}

impl EventRing {
    /// A ring of 2^[`LOG2_EVENTS`] blocks, of the engine whose registers begin at `csr`.
    #[must_use]
    pub fn new(name: String, backend: Rc<dyn CardBackend>, csr: u64, ring: BlockRing) -> Self {
        Self {
            name,
            backend,
            csr,
            ring,
            index: Cell::new(0),
            told: Cell::new(0),
            kept: RefCell::default(),
            hear: RefCell::default(),
            fatal: RefCell::default(),
        }
    }

    /// Begins anew with an empty ring.
    pub fn reset(&self) {
        self.index.set(0);
        self.told.set(0);
        self.kept.borrow_mut().clear();
        self.fatal.take();
    }

    /// Who is told of completion queues that fire.
    pub fn listen(&self, hear: Hear) {
        self.hear.replace(Some(hear));
    }

    /// Takes every event that stands in the ring.
    pub fn drain(&self) {
        let mut taken = 0u32;
        // A full ring ends the pass: the engine writes no more before it is told of the space.
        while taken < ENTRIES {
            let Some(event) = self.take() else { break };
            self.keep(event);
            taken = taken.saturating_add(1);
        }
        if self.index.get().wrapping_sub(self.told.get()) >= UNTOLD {
            self.tell();
        }
    }

    /// Tells the engine which entries were taken, and hears whether it ran out of them before.
    fn tell(&self) {
        self.told.set(self.index.get());
        self.write(window::EVENT_CONSUMER, u64::from(self.index.get()));
        let status = self.backend.read64(Bar::Shell, self.csr.wrapping_add(window::STATUS));
        if status & window::STATUS_EVENT_OVERFLOW != 0 {
            log::warn!("{}: the event ring overflowed; every queue is looked at", self.name);
            self.write(window::EVENT_OVERFLOW_CLEAR, 1);
            self.push(EngineEvent::Lost);
        }
    }

    /// The next event in the ring.
    fn take(&self) -> Option<Event> {
        let index = self.index.get();
        let expected = cqe::expected_phase(index, LOG2_EVENTS);
        let entry = self.ring.block(index).written(|last| cqe::phase(last) == expected)?;
        self.index.set(index.wrapping_add(1));
        Some(Event::decode(&[entry.load()]))
    }

    fn write(&self, register: u64, value: u64) {
        self.backend.write64(Bar::Shell, self.csr.wrapping_add(register), value);
    }

    /// Tells of an event, or keeps it until it is asked for. An engine that raises more than anybody
    /// takes has lost count of them, as with a ring that is full.
    fn keep(&self, event: Event) {
        if event.kind == EventType::Completion {
            // In hand, so that who is told may say who is told next.
            let hear = self.hear.borrow().clone();
            if let Some(hear) = hear {
                return hear(event.number);
            }
        }
        if event.kind == EventType::Fatal {
            let why = format!("the engine stopped with code {}", event.code);
            self.fatal.borrow_mut().get_or_insert(why);
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() < MOST_EVENTS {
            kept.push_back(EngineEvent::Card(event));
            return;
        }
        log::warn!("{}: events pile up; every queue is looked at", self.name);
        kept.retain(|event| *event == EngineEvent::Dead);
        kept.push_back(EngineEvent::Lost);
    }

    /// Keeps what is said of the engine, behind what it said itself.
    pub fn push(&self, event: EngineEvent) {
        self.kept.borrow_mut().push_back(event);
    }

    /// The event kept longest.
    pub fn pop(&self) -> Option<EngineEvent> {
        self.kept.borrow_mut().pop_front()
    }

    /// Drops the events of an object that is gone.
    pub fn forget(&self, number: u32, kinds: &[EventType]) {
        self.kept.borrow_mut().retain(|event| match event {
            EngineEvent::Card(event) => event.number != number || !kinds.contains(&event.kind),
            EngineEvent::Lost | EngineEvent::Dead => true,
        });
    }

    /// Why the engine is dead, if the ring said so since this was asked last.
    pub fn take_fatal(&self) -> Option<String> {
        self.fatal.take()
    }
}
