//! A queue pair as the engine keeps it: its send ring, requests under way, requests taken.

use std::collections::VecDeque;

use fpga_regs::engine::admin::CreateQp;
use fpga_regs::engine::cqe::{self, Cqe, Flags, Status};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{QpState, QpType};

use crate::memory::{QueueMemory, Rings};
use crate::rq::TakenWqe;
use crate::under_way::{Share, UnderWay};

/// Receives that a QP keeps room for, once it had it.
pub(crate) const KEPT_RECEIVES: usize = 16;

/// Address handles that a QP holds at most after their end: a power of two, as queues grow.
pub(crate) const MOST_HELD: usize = 128;

/// A QP.
#[derive(Debug)]
pub(crate) struct Qp<M: Rings> {
    pub(crate) qpn: u32,
    pub(crate) kind: QpType,
    pub(crate) generation: u8,
    pub(crate) pdn: u32,
    pub(crate) page: u8,
    pub(crate) send_cqn: u32,
    pub(crate) receive_cqn: u32,
    pub(crate) rqn: u32,
    pub(crate) state: QpState,
    /// The accesses of remote peers through this QP.
    pub(crate) access: Access,
    /// Whether the command that drains it asked for an event when it is drained.
    pub(crate) tells_drained: bool,
    /// Whether it has reported that it takes no further receives of its shared queue.
    pub(crate) reached_last: bool,
    /// It failed here, the oldest message with this status if any, and nothing is flushed before no memory of its is reached.
    pub(crate) failing: Option<Option<Status>>,
    pub(crate) sq: SendRing<M>,
    pub(crate) under_way: UnderWay,
    /// Receives taken and not complete, oldest first.
    pub(crate) receives: VecDeque<TakenWqe>,
    /// Identity of the next receive taken.
    pub(crate) next_receive: u64,
    /// Address handles that are to stay until everything before a place in the send ring is sent, by those places.
    pub(crate) held: VecDeque<(u32, u32)>,
    /// Its turn to be looked at is noted already.
    pub(crate) queued: bool,
    /// It is noted already as one that has work the transport had no room for.
    pub(crate) starved: bool,
}

/// The send ring of a QP.
#[derive(Debug)]
pub(crate) struct SendRing<M: Rings> {
    pub(crate) memory: QueueMemory<M>,
    /// IOVA of the first entry.
    pub(crate) entries: u64,
    pub(crate) log2_blocks: u8,
    /// Next block to fetch.
    pub(crate) fetch: u32,
    /// The producer index when it was last looked at.
    pub(crate) producer: u32,
    /// A fetched entry cannot be executed; nothing behind it is fetched.
    pub(crate) stopped: bool,
}

/// A QP of XRC that receives: a target, which has no queues.
#[derive(Debug)]
pub(crate) struct XrcTarget {
    pub(crate) command: CreateQp,
    pub(crate) generation: u8,
    pub(crate) state: QpState,
    pub(crate) access: Access,
    /// Whether the command that drains it asked for an event when it is drained.
    pub(crate) tells_drained: bool,
    /// Whether it has reported that it takes no further receives.
    pub(crate) reached_last: bool,
}

impl<M: Rings> Qp<M> {
    /// The completion of a send WQE.
    pub(crate) fn send_cqe(&self, wqe_index: u32, opcode: cqe::Opcode, status: Status) -> Cqe {
        Cqe {
            qpn: self.qpn,
            wqe_index,
            opcode,
            status,
            generation: self.generation,
            ..Cqe::default()
        }
    }

    /// The completion of a receive WQE.
    pub(crate) fn receive_cqe(&self, tag: u32, status: Status) -> Cqe {
        let opcode = cqe::Opcode::Receive;
        Cqe { flags: Flags::RECEIVE, ..self.send_cqe(tag, opcode, status) }
    }

    /// Forgets everything under way, as RESET does; entries of before are stale from now on.
    pub(crate) fn reset(&mut self, share: &mut Share) {
        self.generation = self.generation.wrapping_add(1);
        self.access = Access::empty();
        self.reached_last = false;
        self.failing = None;
        self.sq.fetch = 0;
        self.sq.producer = 0;
        self.sq.stopped = false;
        self.under_way.reset(share);
        self.receives = VecDeque::new();
        self.next_receive = 0;
    }

    /// The receive with identity `id`.
    pub(crate) fn receive(&self, id: u64) -> Option<&TakenWqe> {
        let oldest = self.receives.front()?.id;
        let index = usize::try_from(id.checked_sub(oldest)?).ok()?;
        self.receives.get(index)
    }
}

/// How a QP's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits for nothing but its doorbell, or stands in line again.
    Over,
    /// It has work that the transport had no room for.
    Starved,
}
