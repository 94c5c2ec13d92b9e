//! Fetching send WQEs and handing them to the transport.

use fpga_regs::Block;
use fpga_regs::engine::cqe::{Opcode, Status};
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::qp::QpState;
use fpga_regs::engine::wqe::{
    MAX_INLINE, MAX_SGE, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET, SGE_BYTES, SendFlags, SendHeader,
    SendOpcode, send_blocks_for_inline, send_blocks_for_sges, sge_at,
};

use crate::doorbells::DoorbellPage;
use crate::engine::Engine;
use crate::memory::{Record, Ring, Rings};
use crate::numbers::Random;
use crate::qp::{InFlight, LocalPayload, SendRing};
use crate::resolve::resolve_message;
use crate::rq::Sges;
use crate::transport::{Message, Operation, Transport, TransportError};

/// Send WQEs of one QP fetched before others have their turn.
const FETCH_QUANTUM: usize = 64;

/// A send WQE that passed every check that needs no table.
#[derive(Debug)]
struct SendWqe {
    header: SendHeader,
    opcode: Opcode,
    operation: Operation,
    length: u32,
    payload: LocalPayload,
}

/// What became of one attempt to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A message went to the transport.
    Submitted,
    /// Nothing to fetch, or no room for it.
    Idle,
    /// The entry cannot be executed; the QP fails when its turn to complete comes.
    Stopped,
}

impl<M: Rings> SendRing<M> {
    /// Blocks posted and not fetched; a producer index that cannot be counts as a full ring.
    pub(crate) fn posted(&mut self) -> u32 {
        if self.fetch == self.producer {
            self.producer = self.memory.record.load_u32(record::PRODUCER);
        }
        let blocks = 1u32.wrapping_shl(u32::from(self.log2_blocks));
        self.producer.wrapping_sub(self.fetch).min(blocks)
    }

    fn read(&self, index: u32) -> Block {
        self.memory.ring.read(index)
    }

    /// The header of the entry at the fetch index.
    pub(crate) fn header(&self) -> SendHeader {
        SendHeader::decode(&[self.read(self.fetch)])
    }

    /// Copies the entry at the fetch index and checks it; `posted` blocks are there.
    fn copy_wqe(&self, posted: u32) -> Result<SendWqe, Status> {
        let mut blocks = [[0; 8]; SEND_MAX_BLOCKS];
        let first = self.read(self.fetch);
        let header = SendHeader::decode(&[first]);
        let count = usize::from(header.blocks);
        if count == 0 || count > SEND_MAX_BLOCKS || count > posted as usize {
            return Err(Status::LocalQpOperation);
        }
        for (step, block) in (0..header.blocks).zip(&mut blocks) {
            let index = self.fetch.wrapping_add(u32::from(step));
            *block = if step == 0 { first } else { self.read(index) };
        }
        check_wqe(header, &blocks)
    }
}

fn check_wqe(header: SendHeader, blocks: &[Block; SEND_MAX_BLOCKS]) -> Result<SendWqe, Status> {
    let (opcode, operation) = operation(&header).ok_or(Status::LocalQpOperation)?;
    let count = usize::from(header.blocks);
    if header.flags.contains(SendFlags::INLINE) {
        let length = header.inline_length;
        let fits =
            length as usize <= MAX_INLINE && send_blocks_for_inline(length as usize) <= count;
        if !fits || header.num_sge != 0 || opcode == Opcode::Read {
            return Err(Status::LocalQpOperation);
        }
        return Ok(SendWqe { header, opcode, operation, length, payload: LocalPayload::Inline });
    }
    let num_sge = usize::from(header.num_sge);
    if num_sge > MAX_SGE || send_blocks_for_sges(num_sge) > count {
        return Err(Status::LocalQpOperation);
    }
    let mut sges = Sges::new();
    let mut length = 0u64;
    for element in 0..num_sge {
        let offset = SEND_PAYLOAD_OFFSET.wrapping_add(element.wrapping_mul(SGE_BYTES));
        let sge = sge_at(blocks, offset).ok_or(Status::LocalQpOperation)?;
        length = length.saturating_add(u64::from(sge.length));
        sges.push(sge);
    }
    let length = u32::try_from(length).map_err(|_| Status::LocalLength)?;
    Ok(SendWqe { header, opcode, operation, length, payload: LocalPayload::Gather(sges) })
}

/// What a header asks for; `None` for operations the engine does not offer.
fn operation(header: &SendHeader) -> Option<(Opcode, Operation)> {
    let immediate = header.immediate;
    let write = |immediate| Operation::Write {
        remote_address: header.remote_address,
        rkey: header.rkey,
        immediate,
    };
    Some(match header.opcode {
        SendOpcode::Send => (Opcode::Send, Operation::Send { immediate: None }),
        SendOpcode::SendImm => (Opcode::Send, Operation::Send { immediate: Some(immediate) }),
        SendOpcode::Write => (Opcode::Write, write(None)),
        SendOpcode::WriteImm => (Opcode::Write, write(Some(immediate))),
        SendOpcode::Read => (
            Opcode::Read,
            Operation::Read { remote_address: header.remote_address, rkey: header.rkey },
        ),
        _ => return None,
    })
}

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Fetches what a QP has posted, as far as the transport takes it.
    pub(crate) fn pump(&mut self, now: u64, qpn: u32, transport: &mut impl Transport) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        match qp.state {
            QpState::Rts => {}
            QpState::Err => return self.flush(now, qpn, None),
            _ => return,
        }
        for _ in 0..FETCH_QUANTUM {
            match self.step(now, qpn, transport) {
                Step::Submitted => {}
                Step::Idle => return,
                Step::Stopped => return self.fail_if_due(now, qpn, transport),
            }
        }
        self.look_at(qpn);
    }

    fn step(&mut self, now: u64, qpn: u32, transport: &mut impl Transport) -> Step {
        let max_message = self.config.max_message;
        let Some(qp) = self.qps.get_mut(&qpn) else { return Step::Idle };
        if qp.sq.stopped || transport.room(qpn) == 0 {
            return Step::Idle;
        }
        let posted = qp.sq.posted();
        if posted == 0 {
            return Step::Idle;
        }
        let wqe_index = qp.sq.fetch;
        let (blocks, outcome) = match qp.sq.copy_wqe(posted) {
            Ok(wqe) => {
                let blocks = u32::from(wqe.header.blocks);
                self.pieces.clear();
                let message = in_flight(wqe_index, &wqe);
                let (operation, flags) = (wqe.operation, wqe.header.flags);
                let mut message = InFlight { payload: wqe.payload, ..message };
                let resolved = if message.length > max_message {
                    Err(Status::LocalLength)
                } else {
                    let length = message.length;
                    resolve_message(&self.keys, qp, &message, 0, length, &mut self.pieces)
                        .map_err(|_| Status::LocalProtection)
                };
                let submitted = resolved.and_then(|()| {
                    let request = Message {
                        operation,
                        length: message.length,
                        solicited: flags.contains(SendFlags::SOLICITED),
                        fence: flags.contains(SendFlags::FENCE),
                        pieces: &self.pieces,
                    };
                    submit(now, qpn, &request, transport)
                });
                match submitted {
                    Ok(Some(number)) => message.number = number,
                    Ok(None) => return Step::Idle,
                    Err(status) => message.failed = Some(status),
                }
                (blocks, message)
            }
            Err(status) => (posted, failed(wqe_index, status)),
        };
        qp.sq.fetch = qp.sq.fetch.wrapping_add(blocks);
        qp.sq.stopped = outcome.failed.is_some();
        qp.in_flight.push_back(outcome);
        if qp.sq.stopped { Step::Stopped } else { Step::Submitted }
    }
}

/// Submits a message; `None` when the transport has no room after all.
fn submit(
    now: u64,
    qpn: u32,
    message: &Message<'_>,
    transport: &mut impl Transport,
) -> Result<Option<u64>, Status> {
    match transport.submit(now, qpn, message) {
        Ok(number) => Ok(Some(number)),
        Err(TransportError::Full) => Ok(None),
        Err(TransportError::Unsupported | TransportError::WrongState) => {
            Err(Status::LocalQpOperation)
        }
    }
}

fn in_flight(wqe_index: u32, wqe: &SendWqe) -> InFlight {
    InFlight {
        number: 0,
        wqe_index,
        opcode: wqe.opcode,
        signaled: wqe.header.flags.contains(SendFlags::SIGNALED),
        length: wqe.length,
        payload: LocalPayload::Inline,
        failed: None,
    }
}

/// An entry that makes no sense: nobody can tell where the next one begins, so it ends the ring.
fn failed(wqe_index: u32, status: Status) -> InFlight {
    InFlight {
        number: 0,
        wqe_index,
        opcode: Opcode::Send,
        signaled: true,
        length: 0,
        payload: LocalPayload::Inline,
        failed: Some(status),
    }
}
