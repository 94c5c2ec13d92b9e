//! A completion queue that moves to another ring, with entries that were not polled, and armed.

use fpga_regs::engine::admin::{AdminStatus, Opcode};
use fpga_regs::engine::event::EventType;

use super::{BATCH, LOG2_COMPLETIONS, MessageError, Test, answer, answer_as, settle, until, wrong};

/// log2 of the entries that it has meanwhile, at most.
const MOST: u64 = 6;
/// Messages that complete in the new ring.
const MESSAGES: u64 = 3;

impl Test {
    /// The first side's queue gets another size, and its old one again.
    pub(super) fn resized(&mut self) -> Result<(), MessageError> {
        let log2_entries = self.random.below(MOST) as u8;
        self.resize(log2_entries)?;
        self.resize(LOG2_COMPLETIONS)
    }

    /// Entries that were not polled stay in the old ring, and all later ones come in the new one. The queue fires once for
    /// its arming, whether the engine finds that before it moves or behind.
    fn resize(&mut self, log2_entries: u8) -> Result<(), MessageError> {
        settle(&mut self.pair, "the end of what was before")?;
        // As many as both rings have room for.
        let left = self.random.below(BATCH).min(1 << log2_entries).min(self.sides[0].cq.entries());
        let all: Vec<_> = (0..left).map(|number| self.post(0, number, true)).collect();
        settle(&mut self.pair, "the completions in a ring")?;
        all.iter().try_for_each(|posted| self.arrived(0, posted))?;
        let (host, cq) = (&mut self.pair.hosts[0], &mut self.sides[0].cq);
        let sequence = match self.random.below(3) {
            0 => None,
            1 => Some(host.arm(cq)),
            _ => Some(host.arm_silently(cq)),
        };
        for _ in 0..self.random.below(600) {
            self.pair.cycle()?;
        }
        if left > 1 {
            self.pair.hosts[0].resize_cq(&mut self.sides[0].cq, 0);
            answer_as(&mut self.pair, 0, Opcode::ResizeCq, AdminStatus::Invalid)?;
        }
        self.pair.hosts[0].resize_cq(&mut self.sides[0].cq, log2_entries);
        let end = answer(&mut self.pair, 0, Opcode::ResizeCq)?.result;
        for posted in &all {
            match self.pair.hosts[0].poll(&mut self.sides[0].cq) {
                Some(entry) => self.compare(0, posted, &entry)?,
                None => return wrong("the entries of an old ring", (end, all.len())),
            }
        }
        if self.pair.hosts[0].poll(&mut self.sides[0].cq).is_some()
            || self.sides[0].cq.consumer() != end
        {
            return wrong("the end of an old ring", (end, self.sides[0].cq.consumer()));
        }
        let tells = self.random.chance(128);
        self.pair.hosts[0].moved(&mut self.sides[0].cq, end, tells);
        for number in left..left + MESSAGES {
            let posted = self.post(0, number % BATCH, true);
            let entry = self.completion(0)?;
            self.compare(0, &posted, &entry)?;
            self.arrived(0, &posted)?;
        }
        if let Some(sequence) = sequence {
            let event = until(&mut self.pair, "an event", |pair| pair.hosts[0].event())?;
            let is = (event.kind, event.number, event.data);
            if is != (EventType::Completion, self.sides[0].cq.cqn, sequence.into()) {
                return wrong("the event of a queue that moved", (event, sequence));
            }
        }
        self.ends()
    }
}
