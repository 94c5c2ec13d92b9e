//! Completion events, from a queue that fired to the channel of who waits for it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use fpga_regs::engine::doorbell::record;
use hostmem::SharedMapping;

use crate::channels::{Key, RecordSocket, Sent, completion_record};
use crate::poller::Poller;
use crate::spans::Span;

/// balboad's end of a completion channel, which its completion queues share.
pub type Records = Rc<RefCell<RecordSocket<8>>>;

/// A completion queue that has a channel.
#[derive(Debug)]
pub struct Notifier {
    /// Its number.
    pub cqn: u32,
    /// What its records carry.
    pub cookie: u64,
    /// Where they go.
    pub records: Records,
    /// The epoll set of that.
    pub poller: Rc<Poller>,
    /// The client's ring memory, and the queue's ring in it.
    pub memory: Arc<SharedMapping>,
    /// The queue's ring, which begins with its record.
    pub ring: Span,
    /// Records sent on the channel, or kept for it, modulo 2^32.
    pub sent: Cell<u32>,
    /// When its client was last told of a completion.
    pub told: Rc<Cell<Option<Instant>>>,
}

impl Notifier {
    /// The queue fired: at most one unread record of it is ever in its channel.
    pub fn fire(&self) {
        let ring = usize::try_from(self.ring.start).unwrap_or(usize::MAX);
        let word = ring.saturating_add(record::EVENTS_READ);
        let Ok(read) = self.memory.load_acquire_u32(word) else { return };
        let sent = self.sent.get();
        // A client that counts wrongly gets too few records, and is the only one to suffer.
        if sent != read {
            log::trace!("CQ {:#x}: fired with {read} of {sent} records read", self.cqn);
            return;
        }
        let mut records = self.records.borrow_mut();
        let record = completion_record(self.cookie);
        if records.send(&self.poller, Key::Cq(self.cqn), record) == Sent::Yes {
            self.sent.set(sent.wrapping_add(1));
            self.told.set(Some(Instant::now()));
        }
    }

    /// The queue is gone: drops its records that are not in the channel yet, and says how many are.
    pub fn end(&self) -> u32 {
        let forgotten = self.records.borrow_mut().forget(Key::Cq(self.cqn));
        self.sent.get().wrapping_sub(forgotten)
    }
}

/// The completion queues of a window that have a channel, by number.
#[derive(Debug, Default)]
pub struct Completions(RefCell<HashMap<u32, Rc<Notifier>>>);

impl Completions {
    /// From now on a queue that fires is told of.
    pub fn insert(&self, notifier: Rc<Notifier>) {
        self.0.borrow_mut().insert(notifier.cqn, notifier);
    }

    /// No more.
    pub fn remove(&self, cqn: u32) {
        self.0.borrow_mut().remove(&cqn);
    }

    /// Nothing of any queue any more.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// A queue fired.
    pub fn fire(&self, cqn: u32) {
        let found = self.0.borrow().get(&cqn).cloned();
        if let Some(notifier) = found {
            notifier.fire();
        }
    }

    /// The numbers of all.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        self.0.borrow().keys().copied().collect()
    }

    /// All may have fired.
    pub fn fire_all(&self) {
        for notifier in self.0.borrow().values() {
            notifier.fire();
        }
    }
}
