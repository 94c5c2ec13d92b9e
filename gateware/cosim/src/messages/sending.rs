//! Commands that stop the sending of a queue pair: SQD, and those that end it.

use fpga_regs::engine::admin::{Opcode, RqKind};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::qp::{AttributeMask as Mask, Attributes, QpState};
use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge};

use super::{
    BATCH, MessageError, Test, answer, connect_qp, create_qp, create_rq, send_entry, settle, wrong,
};
use crate::host::Qp;

/// Requests that are posted before the end of a queue pair's sending: fewer than the transport has room for.
const POSTED: u32 = 4;
/// Queue pairs that send beside it: more than the engine reads entries for at a time.
const CROWD: usize = 12;
/// Cycles behind them at most at which the command comes.
const SOON: u64 = 300;

impl Test {
    /// In SQD nothing new is sent; the driver hears, if it asked, that what was sent has ended, and in RTS it goes on.
    pub(super) fn drained(&mut self) -> Result<(), MessageError> {
        let notifies = self.random.chance(128);
        let before = 1 + self.random.below(BATCH - 1);
        let mut all: Vec<_> = (0..before).map(|number| self.post(0, number, true)).collect();
        for _ in 0..self.random.below(4 * SOON) {
            self.pair.cycle()?;
        }
        let (mask, state) = (Mask::STATE | Mask::EN_SQD_ASYNC_NOTIFY, QpState::Sqd);
        let asked =
            Attributes { mask, state, sqd_notify: notifies.into(), ..Attributes::default() };
        let qpn = self.sides[0].qp.qpn;
        self.pair.hosts[0].change_qp(qpn, &asked);
        answer(&mut self.pair, 0, Opcode::ModifyQp)?;
        all.extend((before..BATCH).map(|number| self.post(0, number, true)));
        settle(&mut self.pair, "the end of what was sent before SQD")?;
        let event = self.pair.hosts[0].event().map(|it| (it.kind, it.code, it.number));
        let drained = (EventType::Qp, QpEvent::SqDrained.0, qpn);
        if event != notifies.then_some(drained) {
            return wrong("the event of a send queue that drained", (event, notifies));
        }
        let mut ended = 0;
        while let Some(entry) = self.pair.hosts[0].poll(&mut self.sides[0].cq) {
            match all.get(ended).filter(|_| (ended as u64) < before) {
                Some(posted) => self.compare(0, posted, &entry)?,
                None => return wrong("a completion in SQD of what was posted there", entry),
            }
            ended += 1;
        }
        let goes_on =
            Attributes { mask: Mask::STATE, state: QpState::Rts, ..Attributes::default() };
        self.pair.hosts[0].change_qp(qpn, &goes_on);
        answer(&mut self.pair, 0, Opcode::ModifyQp)?;
        for posted in &all[ended..] {
            let entry = self.completion(0)?;
            self.compare(0, posted, &entry)?;
        }
        all.iter().try_for_each(|posted| self.arrived(0, posted))
    }

    /// What was posted before a command that ends the sending goes first, and behind the command's answer nothing comes
    /// but the flush of ERR.
    pub(super) fn stopped(&mut self) -> Result<(), MessageError> {
        let (own, peer) = (self.sides[0].region, self.sides[1].region);
        let element = Sge { address: own.address, length: 64, lkey: own.key };
        let header = SendHeader {
            opcode: SendOpcode::Write,
            remote_address: peer.address,
            rkey: peer.key,
            ..SendHeader::default()
        };
        let (qpn, posted) = (self.sides[0].qp.qpn, self.pair.given(0, self.sides[0].qp.qpn));
        let mut crowd = if self.random.chance(64) { self.crowd()? } else { Vec::new() };
        let unsignaled = send_entry(header, &[element]);
        for qp in &mut crowd {
            (0..POSTED).for_each(|_| self.pair.hosts[0].put(qp, &unsignaled));
            self.pair.hosts[0].ring_send(qp);
        }
        let entry = send_entry(SendHeader { flags: SendFlags::SIGNALED, ..header }, &[element]);
        (0..POSTED).for_each(|_| self.pair.hosts[0].put(&mut self.sides[0].qp, &entry));
        self.pair.hosts[0].ring_send(&self.sides[0].qp);
        for _ in 0..self.random.below(SOON) {
            self.pair.cycle()?;
        }
        let end = self.random.one_of(&[None, Some(QpState::Err), Some(QpState::Reset)]);
        match end {
            None => {
                self.pair.hosts[0].name(Opcode::DestroyQp, qpn);
                answer(&mut self.pair, 0, Opcode::DestroyQp)?;
            }
            Some(state) => {
                let end = Attributes { mask: Mask::STATE, state, ..Attributes::default() };
                self.pair.hosts[0].change_qp(qpn, &end);
                answer(&mut self.pair, 0, Opcode::ModifyQp)?;
            }
        }
        if self.pair.begun != posted + POSTED {
            return wrong("the messages before an end", (self.pair.begun, posted, end));
        }
        let mut ended = 0;
        let mut statuses = [Status::Success, Status::Flushed].into_iter().peekable();
        if end == Some(QpState::Err) {
            settle(&mut self.pair, "the flush of a queue pair in ERR")?;
        }
        while let Some(entry) = self.pair.hosts[0].poll(&mut self.sides[0].cq) {
            statuses.next_if(|status| *status != entry.status);
            if statuses.peek() != Some(&entry.status) {
                return wrong("a request before an end", (entry, end));
            }
            ended += 1;
        }
        let has_all = ended == POSTED || end != Some(QpState::Err) && ended < POSTED;
        if !has_all {
            return wrong("the completions of requests before an end", (ended, end));
        }
        if end == Some(QpState::Err) && self.sides[0].rq.is_shared() {
            self.reached_last(0)?;
        }
        Ok(())
    }

    /// More queue pairs, which send to the first one's peer.
    fn crowd(&mut self) -> Result<Vec<Qp>, MessageError> {
        let (cqn, peer) = (self.sides[0].cq.cqn, self.sides[1].qp.qpn);
        let mut crowd = Vec::new();
        for _ in 0..CROWD {
            let pair = &mut self.pair;
            let rqn = create_rq(pair, 0, 0, RqKind::Private)?.rqn;
            let qp = create_qp(pair, 0, cqn, rqn)?;
            connect_qp(pair, 0, qp.qpn, peer)?;
            crowd.push(qp);
        }
        Ok(crowd)
    }
}
