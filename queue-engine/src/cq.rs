//! Completion queues: writing entries, telling a full ring, firing armed ones.

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::cqe::{self, Cqe, Flags, Status};
use fpga_regs::engine::doorbell::{Arm, ArmKind, record};
use fpga_regs::engine::event::{Event, EventType};

use crate::events::EventRing;
use crate::memory::{QueueMemory, Record, Ring, Rings};
use crate::numbers::ByNumber;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq<M: Rings> {
    memory: QueueMemory<M>,
    log2_entries: u8,
    /// Doorbell page its slot is in.
    pub(crate) page: u8,
    producer: u32,
    /// The consumer index when it was last looked at; the truth may be further.
    consumer: u32,
    armed: Option<ArmKind>,
    arm_sequence: u32,
    /// The producer index behind the newest entry that fires a solicited arming.
    solicited_end: Option<u32>,
    overrun: bool,
    /// QPs that complete here.
    pub(crate) users: u32,
}

/// What writing an entry came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pushed {
    /// The arm sequence that fired.
    fired: Option<u32>,
    /// The ring was full for the first time.
    overran: bool,
}

impl<M: Rings> Cq<M> {
    pub(crate) fn new(memory: QueueMemory<M>, log2_entries: u8, page: u8) -> Self {
        Self {
            memory,
            log2_entries,
            page,
            producer: 0,
            consumer: 0,
            armed: None,
            arm_sequence: 0,
            solicited_end: None,
            overrun: false,
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

    fn push(&mut self, mut entry: Cqe) -> Pushed {
        let solicited = entry.flags.contains(Flags::SOLICITED) || entry.status != Status::Success;
        if self.overrun || self.is_full() {
            let overran = !self.overrun;
            self.overrun = true;
            return Pushed { fired: None, overran };
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
        if fires {
            self.armed = None;
        }
        Pushed { fired: fires.then_some(self.arm_sequence), overran: false }
    }

    /// Looks at the arm word; answers with its sequence when it fires at once.
    fn arm(&mut self) -> Option<u32> {
        let arm = Arm::decode(self.memory.record.load_u64(record::ARM))?;
        if arm.sequence == self.arm_sequence {
            return None;
        }
        self.arm_sequence = arm.sequence;
        let beyond = match arm.kind {
            ArmKind::Any => self.producer != arm.consumer,
            ArmKind::Solicited => {
                self.solicited_end.is_some_and(|end| (end.wrapping_sub(arm.consumer) as i32) > 0)
            }
        };
        self.armed = (!beyond).then_some(arm.kind);
        beyond.then_some(arm.sequence)
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
        // What a later arming compares it with is counted from there, too.
        self.solicited_end = self.solicited_end.map(|solicited| solicited.wrapping_sub(end));
        end
    }
}

/// The completion queues of an engine together with the ring their events go to.
pub(crate) struct Completions<'a, M: Rings> {
    pub(crate) cqs: &'a mut ByNumber<Cq<M>>,
    pub(crate) events: &'a mut EventRing<M>,
    pub(crate) now: u64,
}

impl<M: Rings> Completions<'_, M> {
    /// Writes an entry to a completion queue and raises the events that follow from it.
    pub(crate) fn push(&mut self, cqn: u32, entry: Cqe) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        let pushed = cq.push(Cqe { timestamp: self.now, ..entry });
        if pushed.overran {
            let event = Event { kind: EventType::CqError, number: cqn, ..Event::default() };
            self.events.push(event, self.now);
        }
        if let Some(sequence) = pushed.fired {
            self.fire(cqn, sequence);
        }
    }

    /// Answers the doorbell of a completion queue, which means it was armed.
    pub(crate) fn arm(&mut self, cqn: u32) {
        if let Some(sequence) = self.cqs.get_mut(&cqn).and_then(Cq::arm) {
            self.fire(cqn, sequence);
        }
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
        // What was armed before is, whether its doorbell was seen or not.
        self.arm(cqn);
        let cq = self.cqs.get_mut(&cqn).ok_or(AdminStatus::NotFound)?;
        Ok(cq.go_on_in(memory, log2_entries))
    }

    fn fire(&mut self, cqn: u32, sequence: u32) {
        let event = Event {
            kind: EventType::Completion,
            number: cqn,
            data: u64::from(sequence),
            ..Event::default()
        };
        self.events.push(event, self.now);
    }
}
