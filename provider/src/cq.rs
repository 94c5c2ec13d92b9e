//! Completion queues: the ring, its consumer, arming.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot, slot_value};
use hostmem::{BlockRing, Record};

use crate::doorbell::CardPath;
use crate::qp::Queues;
use crate::table::{Entry, QpTable};

pub(crate) const CONSUMER: usize = record::CONSUMER / 4;
const ARM: usize = record::ARM / 8;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) cqn: u32,
    pub(crate) log2_entries: u8,
    pub(crate) ring: BlockRing,
    pub(crate) record: Record,
    pub(crate) path: Arc<CardPath>,
    pub(crate) state: Mutex<CqState>,
    /// Send and receive queues that complete here; it cannot be destroyed before them.
    users: AtomicU32,
}

/// What changes while a completion queue is used.
#[derive(Debug)]
pub(crate) struct CqState {
    /// Running index of the next entry.
    pub(crate) consumer: u32,
    /// The QPs that complete here.
    pub(crate) table: QpTable,
    arm_sequence: u32,
}

impl CompletionQueue {
    /// Makes a queue on zeroed ring memory of 2^`log2_entries` entries.
    pub(crate) fn new(
        cqn: u32,
        log2_entries: u8,
        ring: BlockRing,
        record: Record,
        path: Arc<CardPath>,
    ) -> Self {
        let state = CqState { consumer: 0, table: QpTable::new(), arm_sequence: 0 };
        let users = AtomicU32::new(0);
        Self { cqn, log2_entries, ring, record, path, state: Mutex::new(state), users }
    }

    /// Waits for the queue.
    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, CqState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for one event at the next completion, or the next solicited one.
    ///
    /// Fails with EIO when the card is dead and will send none, with EPERM in a forked child.
    pub(crate) fn arm(&self, kind: ArmKind) -> Result<(), i32> {
        if !self.path.is_ours() {
            return Err(libc::EPERM);
        }
        if self.path.is_dead() {
            return Err(libc::EIO);
        }
        let mut state = self.lock();
        let sequence = Arm::next_sequence(state.arm_sequence);
        state.arm_sequence = sequence;
        let arm = Arm { consumer: state.consumer, sequence, kind };
        self.record.store_release_u64(ARM, arm.encode());
        self.path.ring(slot(QueueKind::Completion, self.cqn), slot_value(self.cqn, 0, sequence));
        Ok(())
    }

    /// Whether queues complete here.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }
}

/// Makes a QP known to the completion queues of its two queues.
pub(crate) fn attach(send: &CompletionQueue, receive: &CompletionQueue, queues: &Arc<Queues>) {
    let both = std::ptr::eq(send, receive);
    let entry = |sends, receives| Entry { queues: Arc::clone(queues), sends, receives };
    send.users.fetch_add(1, Ordering::AcqRel);
    receive.users.fetch_add(1, Ordering::AcqRel);
    send.lock().table.insert(entry(true, both));
    if !both {
        receive.lock().table.insert(entry(false, true));
    }
}

/// Takes a destroyed QP from its completion queues; entries of it still in a ring are then skipped.
pub(crate) fn detach(send: &CompletionQueue, receive: &CompletionQueue, qpn: u32) {
    send.lock().table.remove(qpn);
    if !std::ptr::eq(send, receive) {
        receive.lock().table.remove(qpn);
    }
    send.users.fetch_sub(1, Ordering::AcqRel);
    receive.users.fetch_sub(1, Ordering::AcqRel);
}

/// Puts a QP that went to RESET into its new generation, against both pollers.
pub(crate) fn reset(
    send: &CompletionQueue,
    receive: &CompletionQueue,
    queues: &Queues,
    generation: u8,
) {
    {
        let _polling = send.lock();
        queues.set_generation(generation);
        queues.send.reset(generation);
    }
    let _polling = receive.lock();
    queues.receive.reset(generation);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::tests::bench;

    #[test]
    fn each_arming_has_the_next_sequence_and_the_consumer_of_its_time() {
        let bench = bench(4);
        for sequence in 1..=3 {
            bench.cq.lock().consumer = 100 + sequence;
            bench.cq.arm(ArmKind::Solicited).unwrap();
            let arm = Arm::decode(bench.cq.record.load_relaxed_u64(ARM)).unwrap();
            let expected = Arm { consumer: 100 + sequence, sequence, kind: ArmKind::Solicited };
            assert_eq!(arm, expected);
            let rung = bench.page.read(slot(QueueKind::Completion, bench.cq.cqn));
            assert_eq!(rung, slot_value(bench.cq.cqn, 0, sequence));
        }
    }

    #[test]
    fn nobody_can_arm_a_dead_card() {
        let bench = bench(4);
        bench.cq.path.declare_dead();
        assert_eq!(bench.cq.arm(ArmKind::Any), Err(libc::EIO));
    }
}
