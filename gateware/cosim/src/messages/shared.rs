//! Two queue pairs of a host that receive from one queue.

use fpga_regs::engine::admin::{AdminStatus, Opcode};
use fpga_regs::engine::cqe::{Cqe, Flags, Opcode as Completed, Status};
use fpga_regs::engine::event::EventType;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge};

use super::{
    LOG2_RECEIVES, MessageError, Side, Test, answer, answer_as, connect_qp, elements, send_entry,
    settle, until, wrong,
};
use crate::coverage::Ended;
use crate::host::Qp;

/// Entries of the queue.
const ENTRIES: u32 = 1 << LOG2_RECEIVES;
/// Bytes that each receive holds.
const CAPACITY: u32 = 700;
/// Bytes of a message that is still under way when a command has come.
const LONG: u32 = 100_000;

/// One of the two queue pairs of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    First,
    Second,
}

impl Side {
    fn qp_mut(&mut self, which: Which) -> Option<&mut Qp> {
        match which {
            Which::First => Some(&mut self.qp),
            Which::Second => self.second.as_mut(),
        }
    }

    fn second_qpn(&self) -> u32 {
        self.second.as_ref().map_or(0, |qp| qp.qpn)
    }
}

impl Test {
    /// Both queue pairs of a side receive from its queue, where that is shared; a private one has no limit.
    pub(super) fn share(&mut self) -> Result<(), MessageError> {
        if !self.sides[0].rq.is_shared() {
            return self.set_limit(0, 1, AdminStatus::Invalid);
        }
        let to = self.random.below(2) as usize;
        self.connect_seconds()?;
        self.take_by_turns(to)?;
        self.give_up(to)
    }

    fn connect_seconds(&mut self) -> Result<(), MessageError> {
        let [one, other] = [0, 1].map(|side| self.sides[side].second_qpn());
        connect_qp(&mut self.pair, 0, one, other)?;
        connect_qp(&mut self.pair, 1, other, one)
    }

    fn set_limit(
        &mut self,
        side: usize,
        limit: u32,
        status: AdminStatus,
    ) -> Result<(), MessageError> {
        self.pair.hosts[side].limit_rq(self.sides[side].rq.rqn, limit);
        answer_as(&mut self.pair, side, Opcode::ModifyRq, status).map(|_| ())
    }

    /// The queue of a side has fewer entries than its limit, of which the driver hears.
    fn fell_below_limit(&mut self, side: usize) -> Result<(), MessageError> {
        let event = until(&mut self.pair, "an event", |pair| pair.hosts[side].event())?;
        match (event.kind, event.number) == (EventType::ReceiveLimit, self.sides[side].rq.rqn) {
            true => Ok(()),
            false => wrong("the event of a receive queue below its limit", event),
        }
    }

    /// Posts a receive into which all of some memory of a side's region goes.
    fn post_shared(&mut self, side: usize, tag: u32, at: u64, capacity: u32) {
        let Side { rq, region, .. } = &self.sides[side];
        let (address, key, most) = (region.address + at, region.key, rq.most_elements());
        let elements = elements(&mut self.random, address, key, capacity, most);
        self.post_receive(side, tag, elements.len() as u8, &elements);
    }

    /// Posts a message of random bytes, and gives them.
    fn send_by(&mut self, from: usize, which: Which, number: u32, length: u32) -> Vec<u8> {
        let bytes: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
        let region = self.sides[from].region;
        let address = region.address + u64::from(number) * u64::from(CAPACITY);
        self.pair.hosts[from].memory.store(address, &bytes);
        let (opcode, flags, immediate) = (SendOpcode::SendImm, SendFlags::SIGNALED, number);
        let header = SendHeader { opcode, flags, immediate, ..SendHeader::default() };
        let entry = send_entry(header, &[Sge { address, length, lkey: region.key }]);
        if let Some(qp) = self.sides[from].qp_mut(which) {
            self.pair.hosts[from].post(qp, &entry);
        }
        bytes
    }

    /// Messages to both queue pairs take the entries of the ring, and the limit is told of once.
    fn take_by_turns(&mut self, to: usize) -> Result<(), MessageError> {
        let limit = 1 + self.random.below(u64::from(ENTRIES) - 1) as u32;
        let first_tag = self.random.next_u64() as u32;
        for number in 0..ENTRIES {
            let at = u64::from(number * CAPACITY);
            self.post_shared(to, first_tag.wrapping_add(number), at, CAPACITY);
        }
        self.set_limit(to, ENTRIES + 1, AdminStatus::Invalid)?;
        self.set_limit(to, limit, AdminStatus::Success)?;
        let mut sent = Vec::new();
        for number in 0..ENTRIES {
            let falls = number == ENTRIES - limit;
            if falls {
                settle(&mut self.pair, "the end of the messages above the limit")?;
                if let Some(event) = self.pair.hosts[to].unread_event() {
                    return wrong("an event of a receive queue at its limit", event);
                }
            }
            let which = if self.random.chance(128) { Which::First } else { Which::Second };
            let length = self.random.below(u64::from(CAPACITY) + 1) as u32;
            sent.push((which, self.send_by(1 - to, which, number, length)));
            if falls {
                self.fell_below_limit(to)?;
            }
        }
        self.compare_taken(to, first_tag, &sent)?;
        for _ in 0..ENTRIES {
            let entry = self.completion(1 - to)?;
            if (entry.status, entry.opcode) != (Status::Success, Completed::Send) {
                return wrong("the completion of a SEND to a shared queue", entry);
            }
        }
        // Of one that is empty it is told at once.
        self.set_limit(to, 1, AdminStatus::Success)?;
        self.fell_below_limit(to)
    }

    /// Each receive completes once, at the queue pair of its message, and each queue pair's in the order of its messages.
    fn compare_taken(
        &mut self,
        to: usize,
        first_tag: u32,
        sent: &[(Which, Vec<u8>)],
    ) -> Result<(), MessageError> {
        let mut slots = vec![false; sent.len()];
        let mut last = [None; 2];
        for _ in sent {
            let entry = self.completion(to)?;
            let slot = entry.wqe_index.wrapping_sub(first_tag) as usize;
            let message = sent.get(entry.immediate as usize);
            let (Some((which, bytes)), Some(is_taken @ false)) = (message, slots.get_mut(slot))
            else {
                return wrong("the completion of a shared receive", entry);
            };
            *is_taken = true;
            let last = &mut last[*which as usize];
            let is_next = *last < Some(entry.immediate);
            *last = Some(entry.immediate);
            let side = &mut self.sides[to];
            let qp = side.qp_mut(*which).map_or((0, 0), |qp| (qp.qpn, qp.generation()));
            let wanted = Cqe {
                qpn: qp.0,
                generation: qp.1,
                byte_count: bytes.len() as u32,
                opcode: Completed::Receive,
                status: Status::Success,
                flags: Flags::RECEIVE | Flags::IMMEDIATE,
                ..entry
            };
            let mut is = vec![0; bytes.len()];
            let at = side.region.address + slot as u64 * u64::from(CAPACITY);
            self.pair.hosts[to].memory.load(at, &mut is);
            if entry != wanted || !is_next || is != *bytes {
                return wrong("a shared receive", (entry, wanted, is_next, is == *bytes));
            }
            self.note(Ended::Taken(SendOpcode::SendImm.0), Status::Success);
        }
        Ok(())
    }

    /// A queue pair that ends while a message is coming completes the receive that the message took, before the command is
    /// answered; what is posted stays for the other one.
    fn give_up(&mut self, to: usize) -> Result<(), MessageError> {
        let (taken, left) = (11, 12);
        self.post_shared(to, taken, 0, LONG);
        self.send_by(1 - to, Which::Second, 0, LONG);
        until(&mut self.pair, "a claim", |pair| pair.has_claimed().then_some(()))?;
        let at = u64::from(LONG);
        self.post_shared(to, left, at, CAPACITY);
        let (qpn, resets) = (self.sides[to].second_qpn(), self.random.chance(128));
        if resets {
            self.pair.hosts[to].modify_qp(qpn, QpState::Reset, (0, [0; 16]), 1);
            answer(&mut self.pair, to, Opcode::ModifyQp)?;
        } else {
            self.pair.hosts[to].name(Opcode::DestroyQp, qpn);
            answer(&mut self.pair, to, Opcode::DestroyQp)?;
        }
        let generation = self.sides[to].second.as_ref().map(Qp::generation);
        let entry = self.pair.hosts[to].poll(&mut self.sides[to].cq);
        let seen = entry.map(|it| (it.qpn, it.wqe_index, it.status, it.flags));
        if seen != Some((qpn, taken, Status::Flushed, Flags::RECEIVE))
            || entry.map(|it| it.generation) != generation
        {
            return wrong("the receive of a queue pair that ended", (entry, generation, resets));
        }
        self.note(Ended::Unfilled, Status::Flushed);
        if resets {
            self.pair.hosts[to].name(Opcode::DestroyQp, qpn);
            answer(&mut self.pair, to, Opcode::DestroyQp)?;
        }
        let qpn = self.sides[1 - to].second_qpn();
        self.pair.hosts[1 - to].name(Opcode::DestroyQp, qpn);
        answer(&mut self.pair, 1 - to, Opcode::DestroyQp)?;
        self.pair.hosts[to].name(Opcode::DestroyRq, self.sides[to].rq.rqn);
        answer_as(&mut self.pair, to, Opcode::DestroyRq, AdminStatus::Busy)?;
        let bytes = self.send_by(1 - to, Which::First, 0, CAPACITY);
        let (entry, sent) = (self.completion(to)?, self.completion(1 - to)?);
        let mut is = vec![0; bytes.len()];
        self.pair.hosts[to].memory.load(self.sides[to].region.address + at, &mut is);
        let ends = (entry.wqe_index, entry.status, sent.status);
        match ends == (left, Status::Success, Status::Success) && is == bytes {
            true => Ok(()),
            false => wrong("the receive that was left to another queue pair", (entry, sent)),
        }
    }
}
