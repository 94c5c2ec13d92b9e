//! Completion queues: the ring, its consumer, arming.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fpga_regs::engine::cqe::{Cqe, Flags, phase};
use fpga_regs::engine::doorbell::{Arm, ArmKind, QueueKind, record, slot, slot_value};
use fpga_regs::{BLOCK_BYTES, Block};
use hostmem::{
    Access, BlockRing, Change, DoorbellSlot, ForkCanary, FutexMutex, PAGE_BYTES, Record,
    SharedMapping, Turn, TurnGuard, WrittenBlock, memfd,
};

use crate::doorbell::CardPath;
use crate::error::{Error, Result, invalid};
use crate::qp::Queues;
use crate::srq::SharedReceiveQueue;
use crate::table::QpTable;

pub(crate) const CONSUMER: usize = record::CONSUMER / 4;
const ENTRIES: usize = record::ENTRIES as usize;
const ARM: usize = record::ARM / 8;
const ARMED_FOR_ANY: usize = record::ARMED_FOR_ANY / 4;

/// A completion queue.
#[derive(Debug)]
// The lock first: then its address is the queue's, and a poll needs only one.
#[repr(C)]
pub(crate) struct CompletionQueue {
    /// A thread that polls has the turn, from the first completion to the last where it takes them one by one. A thread
    /// that changes anything waits for calls alone.
    pub(crate) state: Turn<CqState>,
    /// The path's.
    pub(crate) canary: ForkCanary,
    pub(crate) cqn: u32,
    slot: DoorbellSlot,
    arming: FutexMutex<Arming>,
    /// Held by the thread that resizes it, from before it asks the card until all is as the card then says.
    resizing: FutexMutex<()>,
    pub(crate) path: Arc<CardPath>,
    /// Send and receive queues that complete here; it cannot be destroyed before them.
    users: AtomicU32,
}

/// A ring of completion entries with its record.
#[derive(Clone, Debug)]
pub(crate) struct EntryRing {
    ring: BlockRing,
    pub(crate) record: Record,
    /// The bit of a running index that changes with each lap.
    lap: u32,
}

/// The part of a completion queue that changes while it is used.
#[derive(Debug)]
pub(crate) struct CqState {
    /// The ring that is polled.
    pub(crate) ring: EntryRing,
    /// Running index of the next entry.
    pub(crate) consumer: u32,
    /// The ring that is polled once `ring` is empty: the queue was resized, and `ring`, which is not the card's, has the
    /// entries that were left then.
    next: Option<EntryRing>,
    /// The QPs that complete here.
    pub(crate) table: QpTable,
    /// The shared receive queues of XRC domains that complete here.
    pub(crate) srqs: Vec<Arc<SharedReceiveQueue>>,
    /// Polls that found nothing.
    pub(crate) empty_polls: u32,
}

/// The part that arming changes. It has a lock of its own: a thread that takes completions one by one may arm the queue
/// meanwhile.
#[derive(Debug)]
struct Arming {
    /// The ring that the card writes to.
    ring: EntryRing,
    /// Running index behind the entries that were there when the program took its last event.
    told: u32,
    /// Entries that were left when the queue was resized, and of which the program was not told, at most: they count as behind
    /// index 0 until it takes an event or an entry of the new ring is polled.
    left: u32,
    sequence: u32,
    kind: ArmKind,
    /// The sequence of the last arming for any completion, which one for solicited ones alone does not undo.
    any: u32,
    /// How often the queue was resized: by that the doorbell of an arming that is told again is another.
    resized: u8,
}

impl EntryRing {
    /// A ring of zeroed entries that were never written, or were written by the card.
    pub(crate) fn new(ring: BlockRing, record: Record) -> Self {
        let lap = ring.blocks();
        Self { ring, record, lap }
    }

    /// A ring of this process alone, with room for so many entries.
    fn private(entries: u32) -> Result<Self> {
        let host = || Error::host("make room for the entries of a CQ");
        let blocks = entries.checked_next_power_of_two().unwrap_or(entries);
        let bytes = (blocks as usize).saturating_mul(BLOCK_BYTES).saturating_add(ENTRIES);
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let fd = memfd::create("balboa-entries", bytes).map_err(host())?;
        let mapping = SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite).map_err(host())?;
        let mapping = Arc::new(mapping);
        let ring = BlockRing::new(Arc::clone(&mapping), ENTRIES, blocks).map_err(host())?;
        Ok(Self::new(ring, Record::new(mapping, 0).map_err(host())?))
    }

    /// The entry with a running index, if it was written on this lap.
    #[inline(always)]
    pub(crate) fn written(&self, index: u32) -> Option<WrittenBlock<'_>> {
        self.ring.block(index).written(|last| self.is_of_lap(index, last))
    }

    /// Whether an entry's last word has the phase that the card writes at a running index.
    #[inline(always)]
    fn is_of_lap(&self, index: u32, last_word: u64) -> bool {
        phase(last_word) == (index & self.lap == 0)
    }

    /// The entries that are there, from a running index on.
    fn written_from(&self, index: u32) -> impl Iterator<Item = Block> {
        let ahead = 0..self.ring.blocks();
        ahead.map_while(move |ahead| Some(self.written(index.wrapping_add(ahead))?.load()))
    }
}

/// The entry behind those that were left when a queue was resized. It belongs to no queue pair, so a poll that comes
/// there looks further, as it would not at an unwritten entry.
fn behind_left() -> Block {
    let [entry] = Cqe { qpn: u32::MAX, phase: 1, ..Cqe::default() }.encode();
    entry
}

impl CqState {
    /// The entries that are there and were not polled.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = Block> {
        let next = self.next.as_ref().into_iter().flat_map(|next| next.written_from(0));
        let entries = self.ring.written_from(self.consumer).chain(next);
        entries.filter(|entry| *entry != behind_left())
    }

    /// Goes on to the ring behind this one, of which nothing is left; whether there is one.
    pub(crate) fn go_on(&mut self) -> bool {
        let Some(next) = self.next.take() else { return false };
        (self.ring, self.consumer) = (next, 0);
        true
    }

    /// Moves the entries that were not polled to `left`, a ring of this process, which is polled before the card's `ring`.
    fn move_to(&mut self, left: EntryRing, ring: EntryRing) {
        let mut count = 0u32;
        for (index, entry) in (0..left.ring.blocks()).zip(self.outstanding()) {
            // All are of the first lap.
            let [entry] = Cqe { phase: 1, ..Cqe::decode(&[entry]) }.encode();
            left.ring.write_published(index, &entry);
            count = index.wrapping_add(1);
        }
        left.ring.write_published(count, &behind_left());
        self.consumer = 0;
        (self.ring, self.next) = if count == 0 { (ring, None) } else { (left, Some(ring)) };
    }
}

impl CompletionQueue {
    /// Makes a queue on zeroed ring memory.
    pub(crate) fn new(cqn: u32, ring: EntryRing, path: Arc<CardPath>) -> Self {
        let kind = ArmKind::Any;
        let (sequence, any, resized) = (0, 0, 0);
        let arming = Arming { ring: ring.clone(), told: 0, left: 0, sequence, kind, any, resized };
        let state = CqState {
            ring,
            consumer: 0,
            next: None,
            table: QpTable::new(),
            srqs: Vec::new(),
            empty_polls: 0,
        };
        let slot = path.slot(slot(QueueKind::Completion, cqn));
        let (canary, users) = (path.canary().clone(), AtomicU32::new(0));
        let (state, arming) = (Turn::new(state), FutexMutex::new(arming));
        let resizing = FutexMutex::default();
        Self { state, canary, cqn, slot, arming, resizing, path, users }
    }

    /// Waits for others that poll.
    #[inline(always)]
    pub(crate) fn lock(&self) -> TurnGuard<'_, CqState> {
        self.state.lock()
    }

    /// Waits for calls that poll or change the queue, but not for a thread that takes completions one by one, which may be
    /// the very thread that asks.
    fn change(&self) -> Change<'_, CqState> {
        self.state.change()
    }

    /// log2 of its entries.
    pub(crate) fn log2_entries(&self) -> u8 {
        self.arming.lock().ring.ring.blocks().ilog2() as u8
    }

    /// Where the card looks for its indices.
    pub(crate) fn record(&self) -> Record {
        self.arming.lock().ring.record.clone()
    }

    /// Resizes the queue to 2^`log2_entries` entries. `ask` has the card go on in another ring, and answers
    /// with that and with the index behind the last entry of the old one; `release` gives the old one back,
    /// and is told the record of the new one.
    ///
    /// Polls go on meanwhile, and deliver the entries that are left before those that come. EINVAL where more are left than
    /// the queue is to have, or, where it is made smaller, still to come of sends that were posted.
    pub(crate) fn resize(
        &self,
        log2_entries: u8,
        ask: impl FnOnce() -> Result<(EntryRing, u32)>,
        release: impl FnOnce(Record) -> Result<()>,
    ) -> Result<()> {
        if !self.path.is_ours() {
            return Err(Error::Forked);
        }
        let _resizing = self.resizing.lock();
        if log2_entries == self.log2_entries() {
            return Ok(());
        }
        let left = self.room_for_left(1u32.checked_shl(log2_entries.into()).unwrap_or(u32::MAX))?;
        let (ring, end) = ask()?;
        let record = ring.record.clone();
        self.go_on_in(left, ring, end);
        release(record)
    }

    /// Room for all that may be left when the queue is to have so many entries.
    fn room_for_left(&self, entries: u32) -> Result<EntryRing> {
        let state = self.change();
        let present = state.next.as_ref().unwrap_or(&state.ring).ring.blocks();
        let (left, to_come) = self.due(&state);
        // In one that grows fewer are lost than would have been.
        let due = if entries < present { left.max(to_come) } else { left };
        if due > entries as usize {
            return Err(invalid!(
                "CQ {:#x} cannot have {entries} entries: {due} completions were not polled, or are to come",
                self.cqn
            ));
        }
        let more = state.next.as_ref().map_or(0, |next| next.ring.blocks());
        // And the one behind them.
        let most = state.ring.ring.blocks().saturating_add(more).saturating_add(1);
        drop(state);
        EntryRing::private(most)
    }

    /// Completions that are there and were not polled, and how many there will be with those that sends will have which
    /// were posted: were the queue too small for them, it would depend on the card's turn whether they come to be lost.
    ///
    /// The second is no bound: of the entries that are there it counts receives and sends that are outstanding, but not
    /// those of a QP that was destroyed, and not the errors of sends that are not signalled.
    fn due(&self, state: &CqState) -> (usize, usize) {
        let (mut left, mut received) = (0usize, 0usize);
        for entry in state.outstanding() {
            left = left.saturating_add(1);
            let is_received = Cqe::decode(&[entry]).flags.contains(Flags::RECEIVE);
            received = received.saturating_add(usize::from(is_received));
        }
        let senders = state.table.iter().filter(|queues| queues.send_cqn == self.cqn);
        let sent: usize = senders.map(|queues| queues.send.signalled()).sum();
        (left, received.saturating_add(sent))
    }

    /// Goes on in the ring that the card goes on in, behind the entries that are `left`; `end` is where the card ended.
    fn go_on_in(&self, left: EntryRing, ring: EntryRing, end: u32) {
        let mut state = self.change();
        let mut arming = self.arming.lock();
        state.move_to(left, ring.clone());
        arming.left = end.wrapping_sub(arming.behind_told());
        (arming.ring, arming.told) = (ring, 0);
        arming.resized = arming.resized.wrapping_add(1);
        // The card may have moved before it saw the last arming, which it then finds here; it knows one
        // that it saw.
        if arming.sequence != 0 {
            self.tell_armed(&arming);
        }
        drop((state, arming));
        self.path.wake_if_asleep();
    }

    /// Takes note that the program has taken an event: it finds the entries that are there by now when it polls.
    pub(crate) fn take_event(&self) {
        let mut arming = self.arming.lock();
        arming.told = arming.behind_written();
        arming.left = 0;
    }

    /// Asks for one event at the next completion, or the next solicited one, that the program neither polled nor was told of.
    ///
    /// The card is told the index behind those, and fires at once if it has added more by the time it sees that: a program
    /// that polls until nothing is there, arms, and sleeps misses nothing that came in between, as with other NICs. Entries
    /// that were there when the program took its last event cause none: one that acknowledges, arms, and then polls just once
    /// for each event would get one event too many for them, and poll in vain. Fails with EIO when the card is dead and will
    /// send none, with EPERM in a forked child.
    pub(crate) fn arm(&self, kind: ArmKind) -> Result<(), i32> {
        if !self.path.is_ours() {
            return Err(libc::EPERM);
        }
        if self.path.is_dead() {
            return Err(libc::EIO);
        }
        let mut arming = self.arming.lock();
        arming.sequence = Arm::next_sequence(arming.sequence);
        arming.kind = kind;
        if kind == ArmKind::Any {
            arming.any = arming.sequence;
        }
        if arming.left == 0 {
            // Entries that were polled long ago would look like those to come.
            arming.told = arming.behind_told();
        }
        self.tell_armed(&arming);
        drop(arming);
        self.path.wake_if_asleep();
        Ok(())
    }

    /// Tells the card how the queue is armed.
    fn tell_armed(&self, arming: &Arming) {
        let &Arming { sequence, kind, any, resized, .. } = arming;
        let arm = Arm { consumer: arming.behind_told(), sequence, kind };
        arming.ring.record.store_release_u32(ARMED_FOR_ANY, any);
        arming.ring.record.store_release_u64(ARM, arm.encode());
        self.slot.ring(slot_value(self.cqn, resized, sequence));
    }

    /// Gives back the receives that a QP took from its shared receive queue and has completed here: it is about to be
    /// reset or to go, so no poll will return them.
    fn give_back_shared(&self, state: &CqState, queues: &Queues) {
        let Some(shared) = &queues.shared else { return };
        for cqe in state.outstanding().map(|block| Cqe::decode(&[block])) {
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

impl Arming {
    /// The running index behind the entries that were polled, or that the program was told of.
    fn behind_told(&self) -> u32 {
        match self.ring.record.load_acquire_u32(CONSUMER) {
            0 if self.left > 0 => 0u32.wrapping_sub(self.left),
            consumer => self.behind_told_in_ring(consumer),
        }
    }

    /// The same of the ring's own entries, of which those before `consumer` were polled.
    fn behind_told_in_ring(&self, consumer: u32) -> u32 {
        let is_ahead = self.told.wrapping_sub(consumer) <= self.ring.ring.blocks();
        if is_ahead { self.told } else { consumer }
    }

    /// The running index behind the entries that are there.
    ///
    /// Where others poll meanwhile, the card may have written over the entry that is looked at: the look then ends early, at
    /// an entry that was polled, which counts for nothing.
    fn behind_written(&self) -> u32 {
        // Entries that the program was told of the last time and has not polled since need not be looked at again.
        let from = self.behind_told_in_ring(self.ring.record.load_acquire_u32(CONSUMER));
        let ahead = 0..self.ring.ring.blocks();
        let is_written = |ahead: &u32| self.ring.written(from.wrapping_add(*ahead)).is_some();
        from.wrapping_add(ahead.take_while(is_written).count() as u32)
    }
}

/// Makes a QP known to the completion queues of its two queues.
pub(crate) fn attach(send: &CompletionQueue, receive: &CompletionQueue, queues: &Arc<Queues>) {
    send.users.fetch_add(1, Ordering::AcqRel);
    receive.users.fetch_add(1, Ordering::AcqRel);
    send.change().table.insert(Arc::clone(queues));
    if !std::ptr::eq(send, receive) {
        receive.change().table.insert(Arc::clone(queues));
    }
}

/// Makes a shared receive queue of an XRC domain known to its completion queue.
pub(crate) fn attach_srq(cq: &CompletionQueue, srq: &Arc<SharedReceiveQueue>) {
    cq.users.fetch_add(1, Ordering::AcqRel);
    cq.change().srqs.push(Arc::clone(srq));
}

/// Takes a destroyed one from it; entries of it still in the ring are then skipped.
pub(crate) fn detach_srq(cq: &CompletionQueue, srq: &SharedReceiveQueue) {
    cq.change().srqs.retain(|known| known.srqn != srq.srqn);
    cq.users.fetch_sub(1, Ordering::AcqRel);
}

/// Takes a destroyed QP from its completion queues; entries of it still in a ring are then skipped.
pub(crate) fn detach(send: &CompletionQueue, receive: &CompletionQueue, queues: &Queues) {
    {
        let mut state = receive.change();
        receive.give_back_shared(&state, queues);
        state.table.remove(queues.qpn());
    }
    if !std::ptr::eq(send, receive) {
        send.change().table.remove(queues.qpn());
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
        let state = receive.change();
        receive.give_back_shared(&state, queues);
        queues.reset_receives(generation);
    }
    let _polling = send.change();
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
            bench.cq.record().store_release_u32(CONSUMER, 128 + sequence);
            bench.cq.arm(ArmKind::Solicited).unwrap();
            let arm = Arm::decode(bench.cq.record().load_relaxed_u64(ARM)).unwrap();
            let expected = Arm { consumer: 128 + sequence, sequence, kind: ArmKind::Solicited };
            assert_eq!(arm, expected);
            let rung = bench.page.read(slot(QueueKind::Completion, bench.cq.cqn));
            assert_eq!(rung, slot_value(bench.cq.cqn, 0, sequence));
        }
    }

    #[test]
    fn the_card_is_told_of_the_last_arming_for_any_beside_later_ones_for_solicited_ones() {
        let bench = bench(4);
        let told = || {
            let record = bench.cq.record();
            let arm = Arm::decode(record.load_relaxed_u64(ARM)).unwrap();
            (arm.sequence, arm.kind, record.load_acquire_u32(ARMED_FOR_ANY))
        };
        use ArmKind::{Any, Solicited};
        for (sequence, kind, any) in
            [(1, Solicited, 0), (2, Any, 2), (3, Solicited, 2), (4, Any, 4)]
        {
            bench.cq.arm(kind).unwrap();
            assert_eq!(told(), (sequence, kind, any));
        }
    }

    #[test]
    fn the_phase_is_looked_for_as_the_contract_has_it() {
        use fpga_regs::engine::cqe::expected_phase;
        for log2_entries in [0, 1, 3] {
            let cq = bench(log2_entries).cq;
            let ring = cq.lock().ring.clone();
            for index in (0..40).chain(u32::MAX - 40..=u32::MAX) {
                let expected = expected_phase(index, log2_entries);
                assert_eq!(ring.is_of_lap(index, 1 << 56), expected, "{index} of {log2_entries}");
                assert_eq!(ring.is_of_lap(index, 0), !expected);
            }
        }
    }

    #[test]
    fn arming_waits_for_entries_that_were_neither_polled_nor_told_of() {
        let mut bench = bench(2);
        let armed = |bench: &crate::poll::tests::Bench| {
            bench.cq.arm(ArmKind::Any).unwrap();
            Arm::decode(bench.cq.record().load_relaxed_u64(ARM)).unwrap().consumer
        };
        assert_eq!(armed(&bench), 0);
        bench.post_and_complete(3);
        assert_eq!(armed(&bench), 0, "three entries are there, and nobody was told of them");
        bench.cq.take_event();
        assert_eq!(armed(&bench), 3, "whoever takes an event polls what is there");
        bench.post_and_complete(1);
        assert_eq!(armed(&bench), 3, "one has come since");
        bench.cq.take_event();
        assert_eq!(armed(&bench), 4, "the ring is full");
        assert_eq!(bench.cq.poll(4, |_, _| {}), 4);
        assert_eq!(armed(&bench), 4);
        for lap in 1..10 {
            bench.post_and_complete(4);
            assert_eq!(bench.cq.poll(3, |_, _| {}), 3);
            assert_eq!(armed(&bench), 3 + lap * 4);
            bench.cq.take_event();
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
