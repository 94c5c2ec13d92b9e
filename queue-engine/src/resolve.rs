//! The places of payload: from messages, receives and remote addresses to runs of card addresses.

use fpga_regs::engine::cqe::Opcode;
use fpga_regs::engine::key::Access;
pub use fpga_regs::engine::message::{Payload, Unreachable};
use fpga_regs::engine::message::{RemoteAccess, RemoteRange};
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{SEND_PAYLOAD_OFFSET, Sge};

use crate::doorbells::DoorbellPage;
use crate::engine::Engine;
use crate::keys::{Keys, PAGE, Peer};
use crate::memory::{Piece, Rings};
use crate::numbers::Random;
use crate::qp::{Qp, SendRing};
use crate::under_way::{InFlight, LocalPayload};

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// The number of the oldest message of a QP that is with the transport.
    #[must_use]
    pub fn oldest_message(&self, qpn: u32) -> Option<u64> {
        let under_way = &self.qps.get(&qpn)?.under_way;
        under_way.front().filter(|oldest| oldest.failed.is_none()).map(|_| under_way.oldest())
    }

    /// Adds to `pieces` where `length` bytes from `offset` of a payload lie.
    ///
    /// Keys, rights and bounds are looked up at this moment, so that memory whose key was destroyed
    /// is out of reach at once. For [`Payload::Remote`] the address moves and the offset is not used.
    ///
    /// # Errors
    /// [`Unreachable`]; `pieces` is then as it was.
    pub fn resolve(
        &self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        length: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable> {
        let before = pieces.len();
        let resolved = self.resolve_payload(qpn, payload, offset, length, pieces);
        if resolved.is_err() {
            pieces.truncate(before);
        }
        resolved
    }

    /// The page on the bus of the page at `va`, if a peer of the QP may reach memory in it: such of its domain as is open
    /// to peers for anything. For hardware that looks at no key. In SQD peers reach it as ever.
    #[must_use]
    pub fn remote_page(&self, qpn: u32, va: u64) -> Option<u64> {
        let qp = self.qps.get(&qpn)?;
        let receives = qp.state.serves_requests();
        let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ];
        let mut rights = rights.into_iter().filter(|right| receives && qp.access.contains(*right));
        rights.find_map(|right| self.keys.page_of(qp.pdn, va, right))
    }

    /// Whether memory of messages that the QP has under way lies in the page at `iova` on the bus: a page that a
    /// program has named by none of them has no owner, for a peer may name it, too. In SQD, messages that have begun go
    /// on.
    #[must_use]
    pub fn is_local_page(&self, qpn: u32, iova: u64) -> bool {
        let sends = |qp: &&Qp<M>| qp.state.sends_requests();
        let Some(qp) = self.qps.get(&qpn).filter(sends) else { return false };
        let end = iova.saturating_add(PAGE);
        qp.under_way.all_elements().filter(|sge| sge.length > 0).any(|sge| {
            let length = u64::from(sge.length);
            let start = self.keys.translate(sge.lkey, qp.pdn, sge.address, length, Access::empty());
            start.is_ok_and(|start| start < end && iova < start.saturating_add(length))
        })
    }

    fn resolve_payload(
        &self,
        qpn: u32,
        payload: Payload,
        offset: u64,
        length: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable> {
        if let Payload::XrcReceive { srqn, id } = payload {
            let (receive, pdn) = self.xrc_receive(srqn, id).ok_or(Unreachable)?;
            let (elements, right) = (receive.sges.iter().copied(), Access::LOCAL_WRITE);
            return gather(&self.keys, pdn, elements, right, offset, length, pieces);
        }
        if let Payload::XrcRemote { srqn, rkey, address, access } = payload {
            let peer = self.xrc_peer(srqn, qpn).ok_or(Unreachable)?;
            let memory = RemoteRange { rkey, va: address, length: length.into() };
            return self.resolve_remote(peer, memory, access, pieces);
        }
        let qp = self.qps.get(&qpn).ok_or(Unreachable)?;
        match payload {
            Payload::Message { number } => {
                let message = qp.under_way.message(number).ok_or(Unreachable)?;
                resolve_message(&self.keys, qp, message, offset, length, pieces)
            }
            Payload::Receive { id } => {
                let receive = qp.receive(id).ok_or(Unreachable)?;
                let pdn = self.rqs.get(&qp.rqn).map_or(qp.pdn, |rq| rq.pdn);
                let right = Access::LOCAL_WRITE;
                let elements = receive.sges.iter().copied();
                gather(&self.keys, pdn, elements, right, offset, length, pieces)
            }
            // It has no peer.
            Payload::Remote { .. } if qp.state == QpState::Reset => Err(Unreachable),
            Payload::Remote { rkey, address, access } => {
                let peer = Peer { qpn, pdn: qp.pdn };
                let memory = RemoteRange { rkey, va: address, length: length.into() };
                self.resolve_remote(peer, memory, access, pieces)
            }
            Payload::XrcReceive { .. } | Payload::XrcRemote { .. } => Err(Unreachable),
        }
    }

    /// Adds where memory lies that a peer named.
    pub(crate) fn resolve_remote(
        &self,
        peer: Peer,
        memory: RemoteRange,
        access: RemoteAccess,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Unreachable> {
        if memory.length == 0 {
            return Ok(());
        }
        // That moves no bytes.
        if access == RemoteAccess::Invalidate {
            return Err(Unreachable);
        }
        let length = u32::try_from(memory.length).map_err(|_| Unreachable)?;
        let iova = self.keys.translate_remote(peer, memory, right_of(access));
        pieces.push(Piece { iova: iova.map_err(|_| Unreachable)?, length });
        Ok(())
    }
}

/// The right that a peer's access to bytes wants.
pub(crate) fn right_of(access: RemoteAccess) -> Access {
    match access {
        RemoteAccess::Write => Access::REMOTE_WRITE,
        RemoteAccess::Read => Access::REMOTE_READ,
        RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        RemoteAccess::Invalidate => Access::empty(),
    }
}

/// Whether a message's local memory is within reach now.
pub(crate) fn is_within_reach<M: Rings>(keys: &Keys, qp: &Qp<M>, message: &InFlight) -> bool {
    let LocalPayload::Gather { first, count } = message.payload else { return true };
    let right = local_right(message.opcode);
    qp.under_way
        .elements(first, count)
        .filter(|sge| sge.length > 0)
        .all(|sge| keys.translate(sge.lkey, qp.pdn, sge.address, sge.length.into(), right).is_ok())
}

/// Where a part of a message's local memory lies.
fn resolve_message<M: Rings>(
    keys: &Keys,
    qp: &Qp<M>,
    message: &InFlight,
    offset: u64,
    length: u32,
    pieces: &mut Vec<Piece>,
) -> Result<(), Unreachable> {
    let end = offset.checked_add(u64::from(length)).ok_or(Unreachable)?;
    if end > u64::from(message.length) {
        return Err(Unreachable);
    }
    match message.payload {
        LocalPayload::Inline => inline(&qp.sq, message.wqe_index, offset, length, pieces),
        LocalPayload::Gather { first, count } => {
            let elements = qp.under_way.elements(first, count);
            let right = local_right(message.opcode);
            gather(keys, qp.pdn, elements, right, offset, length, pieces)
        }
    }
}

/// The local right an operation wants.
pub(crate) fn local_right(opcode: Opcode) -> Access {
    match opcode {
        Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => Access::LOCAL_WRITE,
        _ => Access::empty(),
    }
}

/// Inline data lies in the ring itself, which its owner keeps until the completion.
fn inline<M: Rings>(
    sq: &SendRing<M>,
    wqe_index: u32,
    offset: u64,
    length: u32,
    pieces: &mut Vec<Piece>,
) -> Result<(), Unreachable> {
    let ring_bytes = 64u64.wrapping_shl(u32::from(sq.log2_blocks));
    let start = u64::from(wqe_index)
        .wrapping_mul(64)
        .wrapping_add(SEND_PAYLOAD_OFFSET as u64)
        .wrapping_add(offset)
        & ring_bytes.wrapping_sub(1);
    let to_end = u32::try_from(ring_bytes.wrapping_sub(start)).unwrap_or(u32::MAX);
    let first = length.min(to_end);
    let iova = sq.entries.checked_add(start).ok_or(Unreachable)?;
    if first > 0 {
        pieces.push(Piece { iova, length: first });
    }
    if length > first {
        pieces.push(Piece { iova: sq.entries, length: length.wrapping_sub(first) });
    }
    Ok(())
}

/// Walks scatter/gather elements to the part that is asked for.
pub(crate) fn gather(
    keys: &Keys,
    pdn: u32,
    sges: impl Iterator<Item = Sge>,
    right: Access,
    offset: u64,
    length: u32,
    pieces: &mut Vec<Piece>,
) -> Result<(), Unreachable> {
    let mut skip = offset;
    let mut left = length;
    for sge in sges {
        if left == 0 {
            break;
        }
        let held = u64::from(sge.length);
        if skip >= held {
            skip = skip.wrapping_sub(held);
            continue;
        }
        let here = u32::try_from(held.wrapping_sub(skip)).unwrap_or(u32::MAX).min(left);
        let va = sge.address.checked_add(skip).ok_or(Unreachable)?;
        let iova =
            keys.translate(sge.lkey, pdn, va, u64::from(here), right).map_err(|_| Unreachable)?;
        pieces.push(Piece { iova, length: here });
        skip = 0;
        left = left.wrapping_sub(here);
    }
    if left == 0 { Ok(()) } else { Err(Unreachable) }
}
