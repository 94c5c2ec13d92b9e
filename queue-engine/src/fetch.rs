//! Fetching send WQEs and handing them to the transport.

use fpga_regs::Block;
use fpga_regs::engine::admin::{Destroy, Header, MAX_BLOCKS, ModifyQp, Opcode as Command};
use fpga_regs::engine::cqe::{Opcode, Status};
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::wqe::{
    ATOMIC_BYTES, ATOMIC_PAYLOAD_OFFSET, Atomic, AtomicOperation, Bind, Datagram, MAX_INLINE,
    MAX_SGE, SEND_MAX_BLOCKS, SEND_PAYLOAD_OFFSET, SGE_BYTES, SendFlags, SendHeader, SendOpcode,
    send_blocks_for_inline, send_blocks_for_sges, sge_at,
};

use crate::cq::Completions;
use crate::doorbells::DoorbellPage;
use crate::engine::Engine;
use crate::handles::Handles;
use crate::keys::{Binding, Keys, Peer};
use crate::memory::{Record, Ring, Rings};
use crate::numbers::Random;
use crate::qp::{Qp, SendRing, Turn};
use crate::resolve::is_within_reach;
use crate::transport::{Message, Transport, TransportError, WqeOperation};
use crate::under_way::{InFlight, LocalPayload, Share, UnderWay};

/// Entries of one queue fetched, or flushed, before others have their turn.
pub(crate) const QUANTUM: usize = 64;

/// Calls of [`Engine::execute`] that a command waits at most for a QP to begin: between two of them the transport sends a
/// burst.
const BEGINNING: u32 = 4;

/// The outcome of one attempt to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchOutcome {
    /// A message went to the transport.
    Submitted,
    /// The entry was executed here, and is complete.
    Done,
    /// Nothing to fetch.
    Idle,
    /// The transport has no room for the next request.
    NoRoom,
    /// There is no room for more messages under way: the QP goes on when one of its messages is complete.
    Full,
    /// The entry cannot be executed; the QP fails when its turn to complete comes.
    Stopped,
}

/// The engine's tables that fetching needs beside the QP.
struct Tables<'a, M: Rings> {
    keys: &'a mut Keys,
    completions: Completions<'a, M>,
    ahs: &'a Handles,
    max_message: u32,
    share: &'a mut Share,
}

/// The entry at a send ring's fetch index, of which only the first block was read.
pub(crate) struct Peeked {
    pub(crate) first: Block,
    pub(crate) header: Option<SendHeader>,
    /// Blocks that it takes.
    pub(crate) blocks: u32,
}

impl<M: Rings> SendRing<M> {
    /// Blocks posted and not fetched, as the producer says; more than the ring has is nonsense.
    pub(crate) fn posted(&mut self) -> u32 {
        if self.fetch == self.producer {
            self.look();
        }
        self.producer.wrapping_sub(self.fetch)
    }

    /// Looks at the producer index.
    pub(crate) fn look(&mut self) {
        self.producer = self.memory.record.load_u32(record::PRODUCER);
    }

    fn read(&self, index: u32) -> Block {
        self.memory.ring.read(index)
    }

    /// Reads the header of the entry at the fetch index.
    ///
    /// An invalid entry has no header, and takes all `posted` blocks: the place of the next one is unknown.
    pub(crate) fn peek(&self, posted: u32) -> Peeked {
        let first = self.read(self.fetch);
        let header = SendHeader::decode(&[first]);
        let blocks = u32::from(header.blocks);
        let sound = (1..=SEND_MAX_BLOCKS as u32).contains(&blocks)
            && blocks <= posted
            && posted <= 1u32.wrapping_shl(u32::from(self.log2_blocks));
        let (header, blocks) = if sound { (Some(header), blocks) } else { (None, posted) };
        Peeked { first, header, blocks }
    }

    /// Copies the rest of the entry at the fetch index.
    fn copy(&self, first: Block, header: &SendHeader) -> [Block; SEND_MAX_BLOCKS] {
        let mut blocks = [[0; 8]; SEND_MAX_BLOCKS];
        for (step, block) in (0..header.blocks).zip(&mut blocks) {
            let index = self.fetch.wrapping_add(u32::from(step));
            *block = if step == 0 { first } else { self.read(index) };
        }
        blocks
    }
}

/// Scatter/gather elements that an entry may have, by its header.
fn elements_of(header: &SendHeader) -> usize {
    let inline = header.flags.contains(SendFlags::INLINE);
    if inline { 0 } else { usize::from(header.num_sge).min(MAX_SGE) }
}

/// Makes every check of an entry that needs no table, and sets the message's length and payload. Its
/// elements stand behind all others then, also where it fails.
fn check_wqe(
    kind: QpType,
    header: &SendHeader,
    blocks: &[Block; SEND_MAX_BLOCKS],
    message: &mut InFlight,
    under_way: &mut UnderWay,
) -> Result<WqeOperation, Status> {
    let operation = match kind {
        _ if kind.is_datagram() => datagram(header, blocks),
        QpType::Uc => operation(header, blocks).filter(WqeOperation::is_unanswered),
        _ => operation(header, blocks),
    };
    let operation = operation.ok_or(Status::LocalQpOperation)?;
    let is_atomic = matches!(operation, WqeOperation::Atomic { .. });
    let count = usize::from(header.blocks);
    if header.flags.contains(SendFlags::INLINE) {
        let length = header.inline_length;
        let fits =
            length as usize <= MAX_INLINE && send_blocks_for_inline(length as usize) <= count;
        let is_written = is_atomic || header.opcode == SendOpcode::Read;
        if !fits || header.num_sge != 0 || is_written {
            return Err(Status::LocalQpOperation);
        }
        message.length = length;
        return Ok(operation);
    }
    let num_sge = usize::from(header.num_sge);
    if num_sge > MAX_SGE || send_blocks_for_sges(num_sge) > count || (is_atomic && num_sge != 1) {
        return Err(Status::LocalQpOperation);
    }
    let start = if is_atomic { ATOMIC_PAYLOAD_OFFSET } else { SEND_PAYLOAD_OFFSET };
    message.payload =
        LocalPayload::Gather { first: under_way.next_element(), count: header.num_sge };
    let mut length = 0u64;
    for element in 0..num_sge {
        let offset = start.wrapping_add(element.wrapping_mul(SGE_BYTES));
        let sge = sge_at(blocks, offset).unwrap_or_default();
        length = length.saturating_add(u64::from(sge.length));
        under_way.add_element(sge);
    }
    message.length = match is_atomic {
        true if length < ATOMIC_BYTES as u64 => return Err(Status::LocalLength),
        true => ATOMIC_BYTES as u32,
        false => u32::try_from(length).map_err(|_| Status::LocalLength)?,
    };
    Ok(operation)
}

/// The operation of an entry; `None` if the engine does not offer it.
fn operation(header: &SendHeader, blocks: &[Block; SEND_MAX_BLOCKS]) -> Option<WqeOperation> {
    let SendHeader { immediate, remote_address, rkey, .. } = *header;
    let write = |immediate| WqeOperation::Write { remote_address, rkey, immediate };
    Some(match header.opcode {
        SendOpcode::Send => WqeOperation::Send { immediate: None },
        SendOpcode::SendImm => WqeOperation::Send { immediate: Some(immediate) },
        SendOpcode::SendInvalidate => WqeOperation::SendInvalidate { rkey: immediate },
        SendOpcode::Write => write(None),
        SendOpcode::WriteImm => write(Some(immediate)),
        SendOpcode::Read => WqeOperation::Read { remote_address, rkey },
        SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
            let [first, ..] = *blocks;
            let Atomic { swap_add, compare } = Atomic::decode(&[first]);
            let operation = match header.opcode {
                SendOpcode::CompareSwap => AtomicOperation::CompareSwap { compare, swap: swap_add },
                _ => AtomicOperation::FetchAdd { add: swap_add },
            };
            WqeOperation::Atomic { remote_address, rkey, operation }
        }
        _ => return None,
    })
}

/// The operation of an entry of a QP of datagrams; `None` for all but SEND.
fn datagram(header: &SendHeader, blocks: &[Block; SEND_MAX_BLOCKS]) -> Option<WqeOperation> {
    let [first, ..] = *blocks;
    let immediate = match header.opcode {
        SendOpcode::Send => None,
        SendOpcode::SendImm => Some(header.immediate),
        _ => return None,
    };
    Some(WqeOperation::Datagram { datagram: Datagram::decode(&[first]), immediate })
}

/// The opcode a completion of the entry carries.
pub(crate) fn completed_as(opcode: SendOpcode) -> Opcode {
    match opcode {
        SendOpcode::Write | SendOpcode::WriteImm => Opcode::Write,
        SendOpcode::Read => Opcode::Read,
        SendOpcode::CompareSwap => Opcode::CompareSwap,
        SendOpcode::FetchAdd => Opcode::FetchAdd,
        SendOpcode::LocalInvalidate => Opcode::LocalInvalidate,
        SendOpcode::BindWindow => Opcode::BindWindow,
        _ => Opcode::Send,
    }
}

impl<M: Rings, D: DoorbellPage, N: Random> Engine<M, D, N> {
    /// Lets a QP begin with requests that were posted before a command that ends its sending, as a NIC would have by
    /// then: the program may know that a message is on its way, and leave. Lets QPs keep an ending address handle for
    /// requests that were posted before. `true` while the command must be tried again for that, a bounded number of
    /// times.
    pub(crate) fn begins_first(
        &mut self,
        now: u64,
        header: &Header,
        blocks: &[Block; MAX_BLOCKS],
        transport: &mut impl Transport,
    ) -> bool {
        let [first, second, third, ..] = blocks;
        let qpn = match header.opcode {
            Command::DestroyQp => Destroy::decode(&[*first]).number,
            Command::ModifyQp => {
                let asked = Attributes::decode(&[*second, *third]);
                let ends = matches!(asked.state, QpState::Err | QpState::Reset);
                if !asked.mask.contains(AttributeMask::STATE) || !ends {
                    return false;
                }
                ModifyQp::decode(&[*first]).qpn
            }
            Command::DestroyAh => {
                return self.ahs.hold(Destroy::decode(&[*first]).number, &mut self.qps);
            }
            _ => return false,
        };
        let sends = self.qps.get(&qpn).is_some_and(|qp| qp.state == QpState::Rts);
        if sends && self.command_waited < BEGINNING {
            if self.pump(now, qpn, transport) == Turn::Starved {
                self.starve(qpn);
            }
            if transport.stands_in_line(qpn) {
                self.command_waited = self.command_waited.saturating_add(1);
                return true;
            }
        }
        self.command_waited = 0;
        false
    }

    /// Fetches a QP's posted requests, as far as the transport takes them.
    pub(crate) fn pump(&mut self, now: u64, qpn: u32, transport: &mut impl Transport) -> Turn {
        let Some(qp) = self.qps.get(&qpn) else { return Turn::Over };
        if qp.kind.is_datagram() {
            self.fail_receive_if_due(now, qpn, transport);
        }
        let Some(qp) = self.qps.get_mut(&qpn) else { return Turn::Over };
        match qp.state {
            QpState::Rts => {}
            QpState::Err => {
                self.flush(now, qpn, None);
                return Turn::Over;
            }
            QpState::Sqe => {
                self.flush_send_queue(now, qpn, None);
                return Turn::Over;
            }
            _ => return Turn::Over,
        }
        let max_message = self.config.max_message;
        let share = self.shares.of(qp.page);
        let completions =
            Completions { cqs: &mut self.cqs, events: &mut self.events, lost: &mut self.lost, now };
        let (keys, ahs) = (&mut self.keys, &self.ahs);
        let mut tables = Tables { keys, completions, ahs, max_message, share };
        for _ in 0..QUANTUM {
            match step(now, qp, &mut tables, transport) {
                FetchOutcome::Submitted | FetchOutcome::Done => {}
                FetchOutcome::Idle | FetchOutcome::Full => return Turn::Over,
                FetchOutcome::NoRoom => return Turn::Starved,
                FetchOutcome::Stopped => {
                    self.fail_if_due(now, qpn, transport);
                    self.let_handles_go(qpn, transport);
                    return Turn::Over;
                }
            }
        }
        self.look_at(qpn);
        Turn::Over
    }
}

/// Fetches one entry and submits it.
fn step<M: Rings>(
    now: u64,
    qp: &mut Qp<M>,
    tables: &mut Tables<'_, M>,
    transport: &mut impl Transport,
) -> FetchOutcome {
    if qp.sq.stopped {
        return FetchOutcome::Idle;
    }
    let posted = qp.sq.posted();
    if posted == 0 {
        return FetchOutcome::Idle;
    }
    if transport.room(qp.qpn) == 0 {
        return FetchOutcome::NoRoom;
    }
    let Peeked { first, header, blocks } = qp.sq.peek(posted);
    let elements = header.as_ref().map_or(0, elements_of);
    if !qp.under_way.has_room(elements, tables.share) {
        return FetchOutcome::Full;
    }
    let mut message = InFlight {
        wqe_index: qp.sq.fetch,
        length: 0,
        payload: LocalPayload::Inline,
        opcode: header.map_or(Opcode::Send, |header| completed_as(header.opcode)),
        signaled: true,
        failed: None,
    };
    if let Some(header) = header.filter(|header| is_local(header.opcode, qp.kind)) {
        return execute(qp, &header, first, tables);
    }
    let submitted = match header {
        None => Err(Status::LocalQpOperation),
        Some(header) => {
            let blocks = qp.sq.copy(first, &header);
            let checked = check_wqe(qp.kind, &header, &blocks, &mut message, &mut qp.under_way);
            checked.and_then(|operation| {
                message.signaled = header.flags.contains(SendFlags::SIGNALED);
                submit(now, qp, &message, operation, &header, tables, transport)
            })
        }
    };
    match submitted {
        Ok(true) => {}
        Ok(false) => {
            qp.under_way.drop_elements(&message);
            return FetchOutcome::NoRoom;
        }
        Err(status) => message.failed = Some(status),
    }
    qp.sq.fetch = qp.sq.fetch.wrapping_add(blocks);
    qp.sq.stopped = message.failed.is_some();
    qp.under_way.push(message);
    if qp.sq.stopped { FetchOutcome::Stopped } else { FetchOutcome::Submitted }
}

/// Whether the engine alone executes an entry.
fn is_local(opcode: SendOpcode, kind: QpType) -> bool {
    !kind.is_datagram() && matches!(opcode, SendOpcode::BindWindow | SendOpcode::LocalInvalidate)
}

/// Executes an entry here once all before it are complete, so that nothing of them goes by a key that it
/// changes, and it is complete at once.
fn execute<M: Rings>(
    qp: &mut Qp<M>,
    header: &SendHeader,
    first: Block,
    tables: &mut Tables<'_, M>,
) -> FetchOutcome {
    if qp.under_way.front().is_some() {
        return FetchOutcome::Full;
    }
    let by = Peer { qpn: qp.qpn, pdn: qp.pdn };
    let done = match header.opcode {
        _ if header.num_sge != 0 || header.flags.contains(SendFlags::INLINE) => {
            Err(Status::LocalQpOperation)
        }
        SendOpcode::LocalInvalidate => {
            tables.keys.invalidate(by, header.immediate).map_err(|_| Status::WindowBind)
        }
        _ => {
            let Bind { length, lkey, access } = Bind::decode(&[first]);
            let (rkey, va) = (header.rkey, header.remote_address);
            let access = Access::from_bits_retain(access);
            let binding = Binding { rkey, lkey, va, length, access };
            tables.keys.bind(by, &binding).map_err(|_| Status::WindowBind)
        }
    };
    let (wqe_index, opcode) = (qp.sq.fetch, completed_as(header.opcode));
    qp.sq.fetch = wqe_index.wrapping_add(u32::from(header.blocks));
    let signaled = header.flags.contains(SendFlags::SIGNALED);
    if done.is_err() {
        qp.sq.stopped = true;
        let (length, payload, failed) = (0, LocalPayload::Inline, done.err());
        qp.under_way.push(InFlight { wqe_index, length, payload, opcode, signaled, failed });
        return FetchOutcome::Stopped;
    }
    if signaled {
        let entry = qp.send_cqe(wqe_index, opcode, Status::Success);
        tables.completions.push(qp.send_cqn, entry);
    }
    FetchOutcome::Done
}

/// Submits a message; `false` when the transport has no room after all.
fn submit<M: Rings>(
    now: u64,
    qp: &Qp<M>,
    message: &InFlight,
    operation: WqeOperation,
    header: &SendHeader,
    tables: &Tables<'_, M>,
    transport: &mut impl Transport,
) -> Result<bool, Status> {
    let length = message.length;
    if length > tables.max_message {
        return Err(Status::LocalLength);
    }
    if !is_within_reach(tables.keys, qp, message) {
        return Err(Status::LocalProtection);
    }
    if let WqeOperation::Datagram { datagram, .. } = operation {
        if !tables.ahs.serves(datagram.ah, qp) {
            return Err(Status::LocalQpOperation);
        }
    }
    let request = Message {
        operation,
        length,
        solicited: header.flags.contains(SendFlags::SOLICITED),
        fence: header.flags.contains(SendFlags::FENCE),
        srqn: (qp.kind == QpType::XrcSend).then_some(header.remote_srqn),
    };
    match transport.submit(now, qp.qpn, &request) {
        Ok(number) => {
            debug_assert_eq!(number, qp.under_way.next(), "messages are numbered one by one");
            Ok(true)
        }
        Err(TransportError::Full) => Ok(false),
        Err(TransportError::Unsupported) => Err(Status::LocalQpOperation),
        Err(TransportError::TooLong) => Err(Status::LocalLength),
        Err(TransportError::WrongState) => Err(Status::Flushed),
    }
}
