//! Completion queues: the ring, its consumer, arming.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fpga_regs::engine::cqe::{Cqe, Flags, phase};
use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot, slot_value};
use hostmem::{BlockRing, DoorbellSlot, ForkCanary, FutexGuard, FutexMutex, Record, WrittenBlock};

use crate::doorbell::CardPath;
use crate::qp::Queues;
use crate::table::QpTable;

pub(crate) const CONSUMER: usize = record::CONSUMER / 4;
const ARM: usize = record::ARM / 8;

/// A completion queue.
#[derive(Debug)]
// The lock first: then its address is the queue's, and a poll needs only one.
#[repr(C)]
pub(crate) struct CompletionQueue {
    pub(crate) state: FutexMutex<CqState>,
    pub(crate) ring: BlockRing,
    pub(crate) record: Record,
    /// The path's.
    pub(crate) canary: ForkCanary,
    /// The bit of a running index that changes with each lap.
    lap: u32,
    pub(crate) cqn: u32,
    pub(crate) log2_entries: u8,
    slot: DoorbellSlot,
    arming: FutexMutex<Arming>,
    pub(crate) path: Arc<CardPath>,
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
    /// Polls that found nothing.
    pub(crate) empty_polls: u32,
}

/// What arming changes. It has a lock of its own: who takes completions one by one may arm the queue
/// meanwhile.
#[derive(Debug, Default)]
struct Arming {
    /// Running index behind the entries that were there at the last arming.
    seen: u32,
    sequence: u32,
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
        let state = CqState { consumer: 0, table: QpTable::new(), empty_polls: 0 };
        let arming = FutexMutex::default();
        let (lap, users) = (ring.blocks(), AtomicU32::new(0));
        let slot = path.slot(slot(QueueKind::Completion, cqn));
        let (canary, state) = (path.canary().clone(), FutexMutex::new(state));
        Self { state, ring, record, canary, lap, cqn, log2_entries, slot, arming, path, users }
    }

    /// Waits for the queue.
    #[inline(always)]
    pub(crate) fn lock(&self) -> FutexGuard<'_, CqState> {
        self.state.lock()
    }

    /// Asks for one event at the next completion, or the next solicited one.
    ///
    /// The next one is the next to be added: entries that are there already cause no event, as the
    /// program will find them when it polls. The card is told the index behind them, and fires at
    /// once if it has added more by the time it sees that. (A program that polls just once for each
    /// event, as some do, would otherwise get one event too many and then poll in vain.) Fails with EIO when the card is dead and will send none, with EPERM in a forked child.
    pub(crate) fn arm(&self, kind: ArmKind) -> Result<(), i32> {
        if !self.path.is_ours() {
            return Err(libc::EPERM);
        }
        if self.path.is_dead() {
            return Err(libc::EIO);
        }
        let mut arming = self.arming.lock();
        let sequence = Arm::next_sequence(arming.sequence);
        arming.sequence = sequence;
        arming.seen = self.behind_written(arming.seen);
        let arm = Arm { consumer: arming.seen, sequence, kind };
        self.record.store_release_u64(ARM, arm.encode());
        self.slot.ring(slot_value(self.cqn, 0, sequence));
        drop(arming);
        self.path.wake_if_asleep();
        Ok(())
    }

    /// The running index behind the entries that are there, of which those before `seen` were there the
    /// last time.
    fn behind_written(&self, mut seen: u32) -> u32 {
        loop {
            let consumer = self.record.load_acquire_u32(CONSUMER);
            // What was seen at the last arming and not polled since need not be looked at again.
            if seen.wrapping_sub(consumer) > self.ring.blocks() {
                seen = consumer;
            }
            while self.written(seen).is_some() {
                seen = seen.wrapping_add(1);
            }
            // Where others polled meanwhile, the card may have written over what was looked at.
            if self.record.load_acquire_u32(CONSUMER) == consumer {
                return seen;
            }
        }
    }

    /// The entry with a running index, if the card has written it on this lap.
    #[inline(always)]
    pub(crate) fn written(&self, index: u32) -> Option<WrittenBlock<'_>> {
        self.ring.block(index).written(|last| self.is_of_lap(index, last))
    }

    /// Whether an entry's last word has the phase that the card writes at a running index.
    #[inline(always)]
    fn is_of_lap(&self, index: u32, last_word: u64) -> bool {
        phase(last_word) == (index & self.lap == 0)
    }

    /// Gives back what a QP took from its shared receive queue and has completed here: as it is about to
    /// be reset or to go, nobody will poll that.
    fn give_back_shared(&self, state: &CqState, queues: &Queues) {
        let Some(shared) = &queues.shared else { return };
        let entries = (0..self.ring.blocks())
            .map_while(|ahead| self.written(state.consumer.wrapping_add(ahead)));
        for cqe in entries.map(|block| Cqe::decode(&[block.load()])) {
            let is_its = cqe.qpn == queues.qpn() && cqe.generation == queues.generation();
            if is_its && cqe.flags.contains(Flags::RECEIVE) {
                shared.retire(cqe.wqe_index);
            }
        }
    }

    /// Whether queues complete here.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }
}

/// Makes a QP known to the completion queues of its two queues.
pub(crate) fn attach(send: &CompletionQueue, receive: &CompletionQueue, queues: &Arc<Queues>) {
    send.users.fetch_add(1, Ordering::AcqRel);
    receive.users.fetch_add(1, Ordering::AcqRel);
    send.lock().table.insert(Arc::clone(queues));
    if !std::ptr::eq(send, receive) {
        receive.lock().table.insert(Arc::clone(queues));
    }
}

/// Takes a destroyed QP from its completion queues; entries of it still in a ring are then skipped.
pub(crate) fn detach(send: &CompletionQueue, receive: &CompletionQueue, queues: &Queues) {
    {
        let mut state = receive.lock();
        receive.give_back_shared(&state, queues);
        state.table.remove(queues.qpn());
    }
    if !std::ptr::eq(send, receive) {
        send.lock().table.remove(queues.qpn());
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
        let state = receive.lock();
        receive.give_back_shared(&state, queues);
        queues.reset_receives(generation);
    }
    let _polling = send.lock();
    queues.send.reset(generation);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::tests::bench;

    #[test]
    fn each_arming_has_the_next_sequence_and_the_consumer_of_its_time() {
        let bench = bench(4);
        for sequence in 1..=3 {
            bench.cq.record.store_release_u32(CONSUMER, 128 + sequence);
            bench.cq.arm(ArmKind::Solicited).unwrap();
            let arm = Arm::decode(bench.cq.record.load_relaxed_u64(ARM)).unwrap();
            let expected = Arm { consumer: 128 + sequence, sequence, kind: ArmKind::Solicited };
            assert_eq!(arm, expected);
            let rung = bench.page.read(slot(QueueKind::Completion, bench.cq.cqn));
            assert_eq!(rung, slot_value(bench.cq.cqn, 0, sequence));
        }
    }

    #[test]
    fn the_phase_is_looked_for_as_the_contract_has_it() {
        use fpga_regs::engine::cqe::expected_phase;
        for log2_entries in [0, 1, 3] {
            let cq = bench(log2_entries).cq;
            for index in (0..40).chain(u32::MAX - 40..=u32::MAX) {
                let expected = expected_phase(index, log2_entries);
                assert_eq!(cq.is_of_lap(index, 1 << 56), expected, "{index} of {log2_entries}");
                assert_eq!(cq.is_of_lap(index, 0), !expected);
            }
        }
    }

    #[test]
    fn arming_waits_for_entries_that_are_not_there_yet() {
        let mut bench = bench(2);
        let armed = |bench: &crate::poll::tests::Bench| {
            bench.cq.arm(ArmKind::Any).unwrap();
            Arm::decode(bench.cq.record.load_relaxed_u64(ARM)).unwrap().consumer
        };
        assert_eq!(armed(&bench), 0);
        bench.post_and_complete(3);
        assert_eq!(armed(&bench), 3, "three entries are there, and polled by nobody");
        bench.post_and_complete(1);
        assert_eq!(armed(&bench), 4, "the ring is full");
        assert_eq!(bench.cq.poll(4, |_, _| {}), 4);
        assert_eq!(armed(&bench), 4);
        for lap in 1..10 {
            bench.post_and_complete(4);
            assert_eq!(bench.cq.poll(3, |_, _| {}), 3);
            assert_eq!(armed(&bench), 4 + lap * 4);
            assert_eq!(bench.cq.poll(1, |_, _| {}), 1);
        }
    }

    #[test]
    fn nobody_can_arm_a_dead_card() {
        let bench = bench(4);
        bench.cq.path.declare_dead();
        assert_eq!(bench.cq.arm(ArmKind::Any), Err(libc::EIO));
    }
}
