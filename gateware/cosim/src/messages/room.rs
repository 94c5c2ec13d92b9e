//! Room in a completion queue for the receives that messages fill: none is taken for received whose completion is lost.

use fpga_regs::engine::admin::{Opcode, RqKind};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{
    RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SendFlags, SendHeader, SendOpcode, Sge,
};

use super::{
    MessageError, Test, answer, blocks_of, bytes_of, connect_qp, create_cq, create_qp, create_rq,
    send_entry, settle, until, wrong,
};
use crate::host::{Cq, Qp, Rq};

/// Bytes of a message that is still under way when something else has come.
const LONG: u32 = 40_000;
/// Bytes of the others.
const SHORT: u32 = 9;
/// The host that sends, and the one whose queue has little room.
pub(super) const FROM: usize = 0;
pub(super) const TO: usize = 1;

/// A queue pair that sends to one with a small completion queue, and another one of that queue.
pub(super) struct Small {
    pub(super) sender: Qp,
    sender_rq: Rq,
    pub(super) receiver: Qp,
    rq: Rq,
    bystander: Qp,
    pub(super) cq: Cq,
    entries: u32,
}

impl Test {
    /// Fills a small queue by messages that come, or that go, or by another queue pair while a message comes.
    pub(super) fn room(&mut self) -> Result<(), MessageError> {
        let log2_entries = self.random.below(3) as u8;
        let mut small = self.small(log2_entries)?;
        for _ in 0..small.entries {
            self.comes_to_nothing(&mut small)?;
        }
        self.moves_amid(&mut small)?;
        match self.random.below(3) {
            0 => self.overrun(&mut small)?,
            1 => self.overrun_by_another(&mut small)?,
            _ => self.overrun_by_sends(&mut small)?,
        }
        self.end_small(&small)
    }

    /// Ends the queue pairs.
    pub(super) fn end_small(&mut self, small: &Small) -> Result<(), MessageError> {
        for qpn in [small.receiver.qpn, small.bystander.qpn] {
            self.pair.hosts[TO].name(Opcode::DestroyQp, qpn);
            answer(&mut self.pair, TO, Opcode::DestroyQp)?;
        }
        self.pair.hosts[FROM].name(Opcode::DestroyQp, small.sender.qpn);
        answer(&mut self.pair, FROM, Opcode::DestroyQp)?;
        settle(&mut self.pair, "the end of what a small queue had")
    }

    /// Makes queue pairs, and their small queue.
    pub(super) fn small(&mut self, log2_entries: u8) -> Result<Small, MessageError> {
        let pair = &mut self.pair;
        let cq = create_cq(pair, TO, log2_entries)?;
        let [sender_rq, rq] =
            [create_rq(pair, FROM, 0, RqKind::Private)?, create_rq(pair, TO, 0, RqKind::Private)?];
        let sender = create_qp(pair, FROM, self.sides[FROM].cq.cqn, sender_rq.rqn)?;
        let receiver = create_qp(pair, TO, cq.cqn, rq.rqn)?;
        let other = create_rq(pair, TO, 0, RqKind::Private)?;
        let bystander = create_qp(pair, TO, cq.cqn, other.rqn)?;
        for (side, qpn, peer) in [
            (FROM, sender.qpn, receiver.qpn),
            (TO, receiver.qpn, sender.qpn),
            (TO, bystander.qpn, sender.qpn),
        ] {
            connect_qp(pair, side, qpn, peer)?;
        }
        let entries = 1 << log2_entries;
        Ok(Small { sender, sender_rq, receiver, rq, bystander, cq, entries })
    }

    /// Posts a receive of the queue pair with the small queue.
    pub(super) fn receive_small(&mut self, small: &mut Small, tag: u32, capacity: u32) {
        let region = self.sides[TO].region;
        let sge = Sge { address: region.address, length: capacity, lkey: region.key };
        let header = ReceiveHeader { num_sge: 1, tag }.encode();
        let entry = blocks_of(&header, RECEIVE_PAYLOAD_OFFSET, &bytes_of(&[sge]));
        self.pair.hosts[TO].post_receive(&mut small.rq, &small.receiver, &entry);
    }

    /// Posts a message to it.
    pub(super) fn send_small(&mut self, small: &mut Small, length: u32) {
        let region = self.sides[FROM].region;
        let sge = Sge { address: region.address, length, lkey: region.key };
        let (opcode, flags) = (SendOpcode::Send, SendFlags::SIGNALED);
        let entry = send_entry(SendHeader { opcode, flags, ..SendHeader::default() }, &[sge]);
        self.pair.hosts[FROM].post(&mut small.sender, &entry);
    }

    /// A queue pair is reset while a message comes: the room that was kept for its completion is for others again.
    fn comes_to_nothing(&mut self, small: &mut Small) -> Result<(), MessageError> {
        settle(&mut self.pair, "the end of what was before")?;
        self.receive_small(small, 1, LONG);
        self.send_small(small, LONG);
        until(&mut self.pair, "a claim", |pair| pair.has_claimed().then_some(()))?;
        let Small { sender, sender_rq, receiver, rq, .. } = small;
        let qpns = [sender.qpn, receiver.qpn];
        for (side, qp, rq) in [(TO, receiver, rq), (FROM, sender, sender_rq)] {
            self.pair.hosts[side].modify_qp(qp.qpn, QpState::Reset, (0, [0; 16]), 1);
            let completion = answer(&mut self.pair, side, Opcode::ModifyQp)?;
            self.pair.hosts[side].renew(qp, rq, &completion);
        }
        connect_qp(&mut self.pair, FROM, qpns[FROM], qpns[TO])?;
        connect_qp(&mut self.pair, TO, qpns[TO], qpns[FROM])
    }

    /// The queue moves to another ring while a message comes, for whose completion that has room, too.
    fn moves_amid(&mut self, small: &mut Small) -> Result<(), MessageError> {
        self.receive_small(small, 2, LONG);
        self.send_small(small, LONG);
        until(&mut self.pair, "a claim", |pair| pair.has_claimed().then_some(()))?;
        let log2_entries = small.cq.entries().ilog2() as u8;
        self.pair.hosts[TO].resize_cq(&mut small.cq, log2_entries);
        let end = answer(&mut self.pair, TO, Opcode::ResizeCq)?.result;
        self.pair.hosts[TO].moved(&mut small.cq, end, false);
        let sent = self.completion(FROM)?;
        settle(&mut self.pair, "the end of a message amid which a queue moved")?;
        let entry = self.pair.hosts[TO].poll(&mut small.cq);
        let seen = (end, sent.status, entry.map(|it| (it.wqe_index, it.status)));
        match seen == (0, Status::Success, Some((2, Status::Success))) {
            true => Ok(()),
            false => wrong("a message amid which a queue moved", seen),
        }
    }

    /// Two messages more than the queue has entries: the first that it has no room for fails, and so do both queue pairs.
    fn overrun(&mut self, small: &mut Small) -> Result<(), MessageError> {
        let entries = small.entries;
        for tag in 0..entries + 2 {
            self.receive_small(small, tag, SHORT);
        }
        for _ in 0..entries + 2 {
            self.send_small(small, SHORT);
        }
        for number in 0..entries + 2 {
            let wanted = match number {
                _ if number < entries => Status::Success,
                _ if number == entries => Status::RemoteOperation,
                _ => Status::Flushed,
            };
            let entry = self.completion(FROM)?;
            if entry.status != wanted {
                return wrong("a message to a queue with little room", (number, entries, entry));
            }
        }
        let lost = (EventType::Qp, QpEvent::Fatal.0, small.receiver.qpn);
        self.has_overrun(small, &[lost])
    }

    /// Another queue pair overruns the queue while a message comes for whose completion room is kept.
    fn overrun_by_another(&mut self, small: &mut Small) -> Result<(), MessageError> {
        for number in 1..=small.entries {
            let length = if number == small.entries { LONG } else { SHORT };
            self.receive_small(small, number - 1, length);
            self.send_small(small, length);
            if number < small.entries {
                settle(&mut self.pair, "the end of a short message")?;
            }
        }
        until(&mut self.pair, "a claim", |pair| pair.has_claimed().then_some(()))?;
        let (opcode, flags) = (SendOpcode::Write, SendFlags::SIGNALED);
        let header = SendHeader { opcode, flags, ..SendHeader::default() };
        let no_key = Sge { address: 0, length: SHORT, lkey: 0 };
        self.pair.hosts[TO].post(&mut small.bystander, &send_entry(header, &[no_key]));
        for _ in 0..small.entries {
            let entry = self.completion(FROM)?;
            if entry.status != Status::Success {
                return wrong("a message for which room is kept", entry);
            }
        }
        // It had failed before.
        self.has_overrun(small, &[])
    }

    /// A queue pair's own messages end well, one more than the queue has entries: it fails, and the driver hears of that.
    fn overrun_by_sends(&mut self, small: &mut Small) -> Result<(), MessageError> {
        let (own, peer) = (self.sides[TO].region, self.sides[FROM].region);
        let header = SendHeader {
            opcode: SendOpcode::Write,
            flags: SendFlags::SIGNALED,
            remote_address: peer.address,
            rkey: peer.key,
            ..SendHeader::default()
        };
        let entry =
            send_entry(header, &[Sge { address: own.address, length: SHORT, lkey: own.key }]);
        for _ in 0..=small.entries {
            self.pair.hosts[TO].post(&mut small.bystander, &entry);
        }
        let lost = (EventType::Qp, QpEvent::Fatal.0, small.bystander.qpn);
        self.has_overrun(small, &[lost])
    }

    /// The driver hears of the queue, and of queue pairs that failed for it; each entry that it has room for is there.
    fn has_overrun(
        &mut self,
        small: &mut Small,
        lost: &[(EventType, u8, u32)],
    ) -> Result<(), MessageError> {
        settle(&mut self.pair, "the end of an overrun")?;
        for wanted in [(EventType::CqError, 0, small.cq.cqn)].iter().chain(lost) {
            let event = self.pair.hosts[TO].event().map(|it| (it.kind, it.code, it.number));
            if event != Some(*wanted) {
                return wrong("an event of an overrun", (event, wanted));
            }
        }
        for tag in 0..small.entries {
            let entry = self.pair.hosts[TO].poll(&mut small.cq);
            if entry.map(|it| (it.wqe_index, it.status)) != Some((tag, Status::Success)) {
                return wrong("a completion before an overrun", (tag, entry));
            }
        }
        match self.pair.hosts[TO].poll(&mut small.cq) {
            None => Ok(()),
            entry => wrong("a completion behind an overrun", entry),
        }
    }
}
