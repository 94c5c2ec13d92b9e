//! Filled receives of which the transport tells behind the answer to the command that takes their queue pair to ERR: each
//! report ends its receive, or none, because all are flushed.

use fpga_regs::engine::admin::Opcode;
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::QpState;

use super::room::{FROM, TO};
use super::{MessageError, Test, answer, settle, until, wrong};

/// Receives that are posted, and messages: more than are claimed at a time.
const POSTED: u32 = 6;
/// Receives that are filled before the command comes, at most: the engine claims no more.
const FILLED: u64 = 4;
/// Bytes of a receive.
const CAPACITY: u32 = 4000;
/// Cycles from the last of them to the command, and from one report to the next, at most.
const SOON: u64 = 300;

/// Bytes of a message.
fn length_of(number: u32) -> u32 {
    1 + number * 700
}

impl Test {
    /// A command takes a queue pair to ERR, and then the transport tells of what came before it.
    pub(super) fn told_late(&mut self) -> Result<(), MessageError> {
        let mut small = self.small(3)?;
        let pace = 1 + self.random.below(SOON);
        self.pair.keep_back(TO, pace);
        (0..POSTED).for_each(|tag| self.receive_small(&mut small, tag, CAPACITY));
        (0..POSTED).for_each(|number| self.send_small(&mut small, length_of(number)));
        let wanted = 1 + self.random.below(FILLED) as usize;
        until(&mut self.pair, "filled receives", |pair| {
            (pair.kept_back() >= wanted).then_some(())
        })?;
        for _ in 0..self.random.below(SOON) {
            self.pair.cycle()?;
        }
        for (side, qpn, state) in
            [(TO, small.receiver.qpn, QpState::Err), (FROM, small.sender.qpn, QpState::Reset)]
        {
            self.pair.hosts[side].modify_qp(qpn, state, (0, [0; 16]), 1);
            answer(&mut self.pair, side, Opcode::ModifyQp)?;
        }
        settle(&mut self.pair, "the flush behind filled receives")?;
        let mut is_flushed = false;
        for number in 0..POSTED {
            let entry = self.pair.hosts[TO].poll(&mut small.cq);
            is_flushed |= entry.is_some_and(|it| it.status == Status::Flushed);
            let status = if is_flushed { Status::Flushed } else { Status::Success };
            let is_its_own = |length| is_flushed || length == length_of(number);
            let is_right = entry.is_some_and(|it| {
                (it.wqe_index, it.status) == (number, status) && is_its_own(it.byte_count)
            });
            if !is_right {
                return wrong("a receive of a queue pair in ERR", (number, wanted, pace, entry));
            }
        }
        if let Some(entry) = self.pair.hosts[TO].poll(&mut small.cq) {
            return wrong("a completion behind the flush", entry);
        }
        while let Some(entry) = self.pair.hosts[FROM].poll(&mut self.sides[FROM].cq) {
            if (entry.qpn, entry.status) != (small.sender.qpn, Status::Success) {
                return wrong("a message before the end of its queue pair", entry);
            }
        }
        self.end_small(&small)
    }
}
