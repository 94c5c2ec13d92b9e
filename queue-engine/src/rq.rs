//! Receive queues: taking entries in order.

use std::collections::BTreeMap;

use fpga_regs::engine::admin::{CreateRq, RqKind};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::wqe::{MAX_SGE, RECEIVE_PAYLOAD_OFFSET, ReceiveHeader, SGE_BYTES, Sge};
use fpga_regs::{BLOCK_BYTES, Block};
use smallvec::SmallVec;

use crate::memory::{QueueMemory, Record, Ring, Rings};

/// Scatter/gather elements of one entry; most have few.
pub(crate) type Sges = SmallVec<[Sge; 2]>;

/// A receive queue.
#[derive(Debug)]
pub(crate) struct Rq<M: Rings> {
    memory: QueueMemory<M>,
    log2_entries: u8,
    log2_stride: u8,
    /// Doorbell page its slot is in.
    pub(crate) page: u8,
    /// Protection domain of its SGEs.
    pub(crate) pdn: u32,
    consumer: u32,
    producer: u32,
    pub(crate) users: Users,
    /// The properties of a queue of an XRC domain.
    pub(crate) xrc: Option<XrcQueue>,
}

/// The QPs that a receive queue serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// One, once it is there: in ERR it drains the queue, in RESET it empties it.
    One(Option<u32>),
    /// Several, none of which ends the receives of the others.
    Many {
        /// How many.
        count: u32,
        /// Entries below which one event is raised; 0 for none.
        limit: u32,
    },
}

/// A receive WQE as copied from the ring.
#[derive(Debug)]
pub(crate) struct ReceiveWqe {
    pub(crate) tag: u32,
    /// `None` where the entry cannot be: more elements than fit its stride, or more entries
    /// posted than the ring has.
    pub(crate) sges: Option<Sges>,
}

/// A receive WQE that was taken for a message.
#[derive(Debug)]
pub(crate) struct TakenWqe {
    pub(crate) id: u64,
    pub(crate) tag: u32,
    pub(crate) sges: Sges,
    /// It cannot be filled, for this reason.
    pub(crate) failed: Option<Status>,
}

/// A receive that a shared receive queue of an XRC domain gave to a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    /// The queue.
    pub(crate) srqn: u32,
    /// The receive.
    pub(crate) id: u64,
    /// The target, which may be another engine's.
    pub(crate) qpn: u32,
}

/// The properties of a shared receive queue of an XRC domain beside its entries.
#[derive(Debug)]
pub(crate) struct XrcQueue {
    pub(crate) cqn: u32,
    pub(crate) xrcdn: u32,
    /// Receives taken and not complete, by their names.
    pub(crate) taken: BTreeMap<u64, TakenWqe>,
}

impl XrcQueue {
    pub(crate) fn new(cqn: u32, xrcdn: u32) -> Self {
        Self { cqn, xrcdn, taken: BTreeMap::new() }
    }
}

impl<M: Rings> Rq<M> {
    /// A queue without QPs, as `command` describes it.
    pub(crate) fn new(memory: QueueMemory<M>, command: &CreateRq) -> Self {
        let CreateRq { log2_entries, log2_stride, page, pdn, kind, cqn, xrcdn, .. } = *command;
        let users = match kind {
            RqKind::Private => Users::One(None),
            _ => Users::Many { count: 0, limit: 0 },
        };
        let xrc = (kind == RqKind::Xrc).then(|| XrcQueue::new(cqn, xrcdn));
        let (consumer, producer) = (0, 0);
        Self { memory, log2_entries, log2_stride, page, pdn, consumer, producer, users, xrc }
    }

    /// Whether no QP uses it.
    pub(crate) fn is_unused(&self) -> bool {
        matches!(self.users, Users::One(None) | Users::Many { count: 0, .. })
    }

    /// Whether another QP may use it.
    pub(crate) fn takes_users(&self) -> bool {
        matches!(self.users, Users::One(None) | Users::Many { .. })
    }

    /// Serves a QP from now on.
    pub(crate) fn attach(&mut self, qpn: u32) {
        match &mut self.users {
            Users::One(user) => *user = Some(qpn),
            Users::Many { count, .. } => *count = count.saturating_add(1),
        }
    }

    /// Stops serving a QP that was destroyed.
    pub(crate) fn detach(&mut self) {
        self.reset();
        match &mut self.users {
            Users::One(user) => *user = None,
            Users::Many { count, .. } => *count = count.saturating_sub(1),
        }
    }

    /// Forgets everything posted, as RESET of its QP does, unless others have posts there.
    pub(crate) fn reset(&mut self) {
        if self.private_qpn().is_some() {
            self.consumer = 0;
            self.producer = 0;
        }
    }

    /// The QP that has it for its own.
    pub(crate) fn private_qpn(&self) -> Option<u32> {
        match self.users {
            Users::One(qpn) => qpn,
            Users::Many { .. } => None,
        }
    }

    /// Sets the limit, unless it cannot have one, or that one.
    pub(crate) fn set_limit(&mut self, wanted: u32) -> Option<()> {
        let entries = 1u32.wrapping_shl(u32::from(self.log2_entries));
        match &mut self.users {
            Users::Many { limit, .. } if wanted <= entries => *limit = wanted,
            _ => return None,
        }
        Some(())
    }

    /// Whether fewer entries than the limit are left; asking clears it then.
    pub(crate) fn fell_below_limit(&mut self) -> bool {
        let Users::Many { limit: wanted @ 1.., .. } = self.users else { return false };
        let falls = self.left_if_below(wanted) < wanted;
        if let (true, Users::Many { limit, .. }) = (falls, &mut self.users) {
            *limit = 0;
        }
        falls
    }

    /// Takes the next entry, if one is posted.
    ///
    /// A producer index that cannot be is taken once, as one entry that cannot be.
    pub(crate) fn take(&mut self) -> Option<ReceiveWqe> {
        if self.consumer == self.producer {
            self.producer = self.memory.record.load_u32(record::PRODUCER);
            if self.consumer == self.producer {
                return None;
            }
        }
        let first = self.consumer.wrapping_shl(u32::from(self.log2_stride));
        let posted = self.producer.wrapping_sub(self.consumer);
        if posted > 1u32.wrapping_shl(u32::from(self.log2_entries)) {
            self.consumer = self.producer;
            return Some(ReceiveWqe { sges: None, ..self.copy_entry(first) });
        }
        self.consumer = self.consumer.wrapping_add(1);
        Some(self.copy_entry(first))
    }

    /// Entries posted and not taken.
    ///
    /// The record, which the program writes, is read again only while fewer than half a ring are known.
    pub(crate) fn left(&mut self) -> u32 {
        self.left_if_below(1u32.wrapping_shl(u32::from(self.log2_entries)) / 2)
    }

    /// Entries posted and not taken, if those are fewer than so many; otherwise at least so many.
    fn left_if_below(&mut self, enough: u32) -> u32 {
        let known = self.producer.wrapping_sub(self.consumer);
        if known >= enough {
            return known;
        }
        self.producer = self.memory.record.load_u32(record::PRODUCER);
        let entries = 1u32.wrapping_shl(u32::from(self.log2_entries));
        self.producer.wrapping_sub(self.consumer).min(entries)
    }

    fn copy_entry(&self, first: u32) -> ReceiveWqe {
        let stride = 1usize.wrapping_shl(u32::from(self.log2_stride));
        let head = self.memory.ring.read(first);
        let header = ReceiveHeader::decode(&[head]);
        let num_sge = usize::from(header.num_sge);
        let room = stride
            .wrapping_mul(BLOCK_BYTES)
            .saturating_sub(RECEIVE_PAYLOAD_OFFSET)
            .wrapping_div(SGE_BYTES);
        if num_sge > room.min(MAX_SGE) {
            return ReceiveWqe { tag: header.tag, sges: None };
        }
        let mut sges = Sges::new();
        let mut block: Block = head;
        let mut loaded = 0;
        for element in 0..num_sge {
            let offset = RECEIVE_PAYLOAD_OFFSET.wrapping_add(element.wrapping_mul(SGE_BYTES));
            let wanted = offset.wrapping_div(BLOCK_BYTES);
            if wanted != loaded {
                block = self.memory.ring.read(first.wrapping_add(wanted as u32));
                loaded = wanted;
            }
            let within = offset.wrapping_rem(BLOCK_BYTES);
            sges.extend(fpga_regs::engine::wqe::sge_at(&[block], within));
        }
        ReceiveWqe { tag: header.tag, sges: Some(sges) }
    }
}
