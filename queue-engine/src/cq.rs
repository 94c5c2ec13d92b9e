//! Completion queues: writing entries, telling a full ring, firing armed ones.

use fpga_regs::engine::admin::{AdminStatus, CreateCq};
use fpga_regs::engine::cqe::{self, Cqe, Flags, Status};
use fpga_regs::engine::doorbell::{Arm, ArmKind, record};
use fpga_regs::engine::event::{Event, EventType};

use crate::events::{EventRings, Fired, PlaceInLine};
use crate::memory::{QueueMemory, Record, Ring, Rings};
use crate::numbers::{ByNumber, take};

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq<M: Rings> {
    memory: QueueMemory<M>,
    log2_entries: u8,
    /// Doorbell page its slot is in.
    pub(crate) page: u8,
    /// Event ring that its completions are told in.
    vector: u8,
    producer: u32,
    /// The consumer index when it was last looked at; the truth may be further.
    consumer: u32,
    armed: Option<ArmKind>,
    arm_sequence: u32,
    /// The producer index behind the newest entry that fires a solicited arming.
    solicited_end: Option<u32>,
    overrun: bool,
    moderation: Option<Moderation>,
    /// Completions that the arming has waited for so far.
    held: u32,
    /// When it is told of them, however few they are.
    due: Option<u64>,
    /// Where it waits for room in its event ring, while it does.
    waits: Option<PlaceInLine>,
    /// QPs that complete here.
    pub(crate) users: u32,
}

/// How many completions are told of together.
#[derive(Clone, Copy, Debug)]
struct Moderation {
    count: u32,
    /// Nanoseconds.
    period: u64,
}

/// Whether an arming fires after completions for which it waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Firing {
    /// Nothing, or nothing new.
    #[default]
    Nothing,
    /// The arming of this sequence fires.
    Now(u32),
    /// It does at this time.
    By(u64),
}

/// The outcome of writing an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pushed {
    told: Firing,
    /// The entry is lost, for the ring is full, or was.
    lost: bool,
    /// It is the first one.
    overran: bool,
}

impl<M: Rings> Cq<M> {
    /// As the command says, in ring memory that was found.
    pub(crate) fn new(memory: QueueMemory<M>, command: &CreateCq) -> Self {
        let &CreateCq { log2_entries, page, vector, .. } = command;
        Self {
            memory,
            log2_entries,
            page,
            vector,
            producer: 0,
            consumer: 0,
            armed: None,
            arm_sequence: 0,
            solicited_end: None,
            overrun: false,
            moderation: None,
            held: 0,
            due: None,
            waits: None,
            users: 0,
        }
    }

    fn is_full(&mut self) -> bool {
        let entries = 1u32.wrapping_shl(u32::from(self.log2_entries));
        if self.producer.wrapping_sub(self.consumer) < entries {
            return false;
        }
        self.consumer = self.memory.record.load_u32(record::CONSUMER);
        self.producer.wrapping_sub(self.consumer) >= entries
    }

    fn push(&mut self, mut entry: Cqe, now: u64) -> Pushed {
        let solicited = entry.flags.contains(Flags::SOLICITED) || entry.status != Status::Success;
        if self.overrun || self.is_full() {
            let overran = !self.overrun;
            self.overrun = true;
            return Pushed { told: Firing::Nothing, lost: true, overran };
        }
        entry.phase = u8::from(cqe::expected_phase(self.producer, self.log2_entries));
        let [encoded] = entry.encode();
        self.memory.ring.publish(self.producer, &encoded);
        self.producer = self.producer.wrapping_add(1);
        if solicited {
            self.solicited_end = Some(self.producer);
        }
        let fires = match self.armed {
            Some(ArmKind::Any) => true,
            Some(ArmKind::Solicited) => solicited,
            None => false,
        };
        let told = if fires { self.tell(1, now) } else { Firing::Nothing };
        Pushed { told, ..Pushed::default() }
    }

    /// Takes note of so many completions that the arming waits for.
    fn tell(&mut self, completions: u32, now: u64) -> Firing {
        self.held = self.held.saturating_add(completions);
        match self.moderation {
            Some(Moderation { count, period }) if self.held < count => {
                if self.due.is_some() {
                    return Firing::Nothing;
                }
                let due = now.saturating_add(period);
                self.due = Some(due);
                Firing::By(due)
            }
            _ => {
                self.armed = None;
                Firing::Now(self.arm_sequence)
            }
        }
    }

    /// Ends the arming's wait for more completions; answers when it was due.
    fn take_due(&mut self) -> Option<u64> {
        self.held = 0;
        self.due.take()
    }

    /// The arm word where it is a new one.
    fn new_arming(&self) -> Option<Arm> {
        let arm = Arm::decode(self.memory.record.load_u64(record::ARM))?;
        (arm.sequence != self.arm_sequence).then_some(arm)
    }

    /// Waits as an arm word says, of which nothing was waited for yet: for any completion, where one of the armings that
    /// did not fire, seen or not, is for any.
    fn arm(&mut self, arm: Arm, now: u64) -> Firing {
        // Behind the word: so it is of that arming, or of a later one.
        let any = || self.memory.record.load_u32(record::ARMED_FOR_ANY);
        let is_for_any = arm.kind == ArmKind::Any
            || self.armed == Some(ArmKind::Any)
            || arm.covers(any(), self.arm_sequence);
        let kind = if is_for_any { ArmKind::Any } else { ArmKind::Solicited };
        self.arm_sequence = arm.sequence;
        self.armed = Some(kind);
        let beyond = match kind {
            ArmKind::Any => self.producer.wrapping_sub(arm.consumer),
            ArmKind::Solicited => {
                let is_beyond = |end: u32| (end.wrapping_sub(arm.consumer) as i32) > 0;
                u32::from(self.solicited_end.is_some_and(is_beyond))
            }
        };
        if beyond == 0 { Firing::Nothing } else { self.tell(beyond, now) }
    }
}

impl<M: Rings> Cq<M> {
    /// Entries of its ring that were not consumed; it may be more than the ring has where the consumer
    /// index is none.
    fn outstanding(&mut self) -> u32 {
        self.consumer = self.memory.record.load_u32(record::CONSUMER);
        self.producer.wrapping_sub(self.consumer)
    }

    /// Goes on in another ring, from index 0; answers with the index behind the last entry of the old one.
    fn go_on_in(&mut self, memory: QueueMemory<M>, log2_entries: u8) -> u32 {
        let end = self.producer;
        (self.memory, self.log2_entries) = (memory, log2_entries);
        (self.producer, self.consumer) = (0, 0);
        // A later arming compares it with an index that is counted from there, too.
        self.solicited_end = self.solicited_end.map(|solicited| solicited.wrapping_sub(end));
        end
    }
}

/// The completion queues of an engine together with the rings their events go to.
pub(crate) struct Completions<'a, M: Rings> {
    pub(crate) cqs: &'a mut ByNumber<Cq<M>>,
    pub(crate) events: &'a mut EventRings<M>,
    /// QPs of which an entry was lost, until they have failed for it.
    pub(crate) lost: &'a mut Vec<u32>,
    pub(crate) now: u64,
}

impl<M: Rings> Completions<'_, M> {
    /// Writes an entry to a completion queue and raises the events that follow from it. Where it is lost, its QP is to
    /// fail ([`crate::Engine::fail_lost`]).
    pub(crate) fn push(&mut self, cqn: u32, entry: Cqe) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        let pushed = cq.push(Cqe { timestamp: self.now, ..entry }, self.now);
        if pushed.lost && self.lost.last() != Some(&entry.qpn) {
            self.lost.push(entry.qpn);
        }
        if pushed.overran {
            let event = Event { kind: EventType::CqError, number: cqn, ..Event::default() };
            self.events.push(event, self.now);
        }
        self.follow(cqn, pushed.told);
    }

    /// Updates the events after a completion.
    fn follow(&mut self, cqn: u32, told: Firing) {
        match told {
            Firing::Nothing => {}
            Firing::By(due) => self.events.hold(due, cqn),
            Firing::Now(sequence) => {
                self.forget_held(cqn);
                self.fire(cqn, sequence);
            }
        }
    }

    /// Ends a completion queue's wait for more completions.
    fn forget_held(&mut self, cqn: u32) {
        let due = self.cqs.get_mut(&cqn).and_then(Cq::take_due);
        self.events.release(due, cqn);
    }

    /// Raises the event of a queue that waits for more completions, if it does.
    pub(crate) fn tell_held(&mut self, cqn: u32) {
        let Some(cq) = self.cqs.get_mut(&cqn).filter(|cq| cq.held > 0) else { return };
        cq.armed = None;
        let sequence = cq.arm_sequence;
        self.follow(cqn, Firing::Now(sequence));
    }

    /// Makes a completion queue raise an event after `count` completions, or `period` microseconds after the
    /// first of them; if either is 0, after each completion.
    pub(crate) fn moderate(
        &mut self,
        cqn: u32,
        count: u16,
        period: u16,
    ) -> Result<(), AdminStatus> {
        self.tell_held(cqn);
        let cq = self.cqs.get_mut(&cqn).ok_or(AdminStatus::NotFound)?;
        let moderation =
            Moderation { count: count.into(), period: u64::from(period).saturating_mul(1000) };
        cq.moderation = (count > 0 && period > 0).then_some(moderation);
        Ok(())
    }

    /// Takes a completion queue out that nobody uses.
    pub(crate) fn remove(&mut self, cqn: u32) {
        self.forget_held(cqn);
        let gone = take(self.cqs, cqn);
        self.events.forget(gone.and_then(|cq| cq.waits));
    }

    /// Answers the doorbell of a completion queue, which means it was armed.
    pub(crate) fn arm(&mut self, cqn: u32) {
        let Some(arm) = self.cqs.get(&cqn).and_then(Cq::new_arming) else { return };
        self.forget_held(cqn);
        let told = self.cqs.get_mut(&cqn).map(|cq| cq.arm(arm, self.now));
        self.follow(cqn, told.unwrap_or_default());
    }

    /// Moves a completion queue to other memory of 2^`log2_entries` entries; answers with the index behind
    /// the last entry in the old one.
    pub(crate) fn resize(
        &mut self,
        cqn: u32,
        memory: QueueMemory<M>,
        log2_entries: u8,
    ) -> Result<u32, AdminStatus> {
        let cq = self.cqs.get_mut(&cqn).ok_or(AdminStatus::NotFound)?;
        if cq.outstanding() > 1u32.wrapping_shl(u32::from(log2_entries)) {
            return Err(AdminStatus::Invalid);
        }
        // A queue that was armed before stays armed, whether its doorbell was seen or not.
        self.arm(cqn);
        let cq = self.cqs.get_mut(&cqn).ok_or(AdminStatus::NotFound)?;
        Ok(cq.go_on_in(memory, log2_entries))
    }

    fn fire(&mut self, cqn: u32, sequence: u32) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        match cq.waits {
            Some(place) => self.events.complete_again(place, sequence),
            None => {
                let fired = Fired { cqn, sequence };
                cq.waits = self.events.complete(cq.vector, cq.page, fired, self.now);
            }
        }
    }

    /// Tells of the queues that waited for room in their event rings, as far as there is some; whether it told of any.
    pub(crate) fn tell_waiting(&mut self) -> bool {
        let mut told = false;
        while let Some(cqn) = self.events.tell_waiting(self.now) {
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.waits = None;
            }
            told = true;
        }
        told
    }
}
