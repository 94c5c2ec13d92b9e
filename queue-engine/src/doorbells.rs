//! Doorbell pages: which queues to look at again.

use fpga_regs::engine::doorbell::{self, QueueKind};
use fpga_regs::engine::window::DOORBELL_PAGES;
use smallvec::SmallVec;

/// A doorbell page, written by the process it was granted to.
pub trait DoorbellPage {
    /// The value of slot number `slot`, below [`doorbell::SLOTS`].
    fn load(&self, slot: usize) -> u64;
}

/// A queue that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) kind: QueueKind,
    pub(crate) number: u32,
}

/// A slot with queues behind it.
#[derive(Debug)]
struct Slot {
    index: usize,
    /// The value when it was last looked at.
    seen: u64,
    queues: SmallVec<[Queue; 2]>,
}

#[derive(Debug)]
struct Page<D> {
    memory: D,
    /// In the order of their indices: a scan walks the page once.
    slots: Vec<Slot>,
}

/// The doorbell pages of an engine.
#[derive(Debug)]
pub(crate) struct Doorbells<D> {
    pages: [Option<Page<D>>; DOORBELL_PAGES as usize],
}

impl<D: DoorbellPage> Doorbells<D> {
    pub(crate) fn new() -> Self {
        Self { pages: [const { None }; DOORBELL_PAGES as usize] }
    }

    fn page(&mut self, page: u8) -> Option<&mut Option<Page<D>>> {
        self.pages.get_mut(usize::from(page).checked_sub(1)?)
    }

    /// Puts a page in place; `false` where there is no such page or it is in use.
    pub(crate) fn open(&mut self, page: u8, memory: D) -> bool {
        match self.page(page) {
            Some(place @ None) => {
                *place = Some(Page { memory, slots: Vec::new() });
                true
            }
            _ => false,
        }
    }

    /// Takes a page away, with whatever still looked at it.
    pub(crate) fn close(&mut self, page: u8) {
        if let Some(place) = self.page(page) {
            *place = None;
        }
    }

    /// Stops looking at any slot; the pages stay in place.
    pub(crate) fn clear(&mut self) {
        for page in self.pages.iter_mut().flatten() {
            page.slots.clear();
        }
    }

    pub(crate) fn is_open(&self, page: u8) -> bool {
        usize::from(page)
            .checked_sub(1)
            .and_then(|i| self.pages.get(i))
            .is_some_and(Option::is_some)
    }

    /// Begins to look at a queue's slot.
    pub(crate) fn add(&mut self, page: u8, queue: Queue) {
        let Some(Some(page)) = self.page(page) else { return };
        let index = doorbell::slot(queue.kind, queue.number);
        match page.slots.binary_search_by_key(&index, |slot| slot.index) {
            Ok(found) => {
                if let Some(slot) = page.slots.get_mut(found) {
                    slot.queues.push(queue);
                }
            }
            Err(place) => {
                let seen = page.memory.load(index);
                let queues = SmallVec::from_elem(queue, 1);
                page.slots.insert(place, Slot { index, seen, queues });
            }
        }
    }

    /// Stops looking at a queue's slot.
    pub(crate) fn remove(&mut self, page: u8, queue: Queue) {
        let Some(Some(page)) = self.page(page) else { return };
        for slot in &mut page.slots {
            slot.queues.retain(|q| *q != queue);
        }
        page.slots.retain(|slot| !slot.queues.is_empty());
    }

    /// Adds to `rung` every queue behind a slot that changed since it was last looked at.
    pub(crate) fn scan(&mut self, rung: &mut Vec<Queue>) {
        for page in self.pages.iter_mut().flatten() {
            for slot in &mut page.slots {
                let value = page.memory.load(slot.index);
                if value != slot.seen {
                    slot.seen = value;
                    rung.extend_from_slice(&slot.queues);
                }
            }
        }
    }
}
