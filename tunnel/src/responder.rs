//! The side that is asked: requests are checked, executed and answered in their order.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::Attributes;
use fpga_regs::engine::tunnel::{SLOT_PAYLOAD, SlotFlags, SlotHeader, SlotOperation};
use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{Payload, ReceiveError, ReceiveKind, ReceivedMessage, RemoteAccess};

use crate::host::Host;
use crate::param::READS;

/// A SEND or WRITE of which some has come.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    first: SlotHeader,
    got: u32,
    /// The receive that it has taken.
    receive: Option<u64>,
}

/// What is to be said to the peer.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// All up to this message ended well.
    Done(u32),
    NotReady(u32),
    Refused(u32, Status),
    Data {
        message: u32,
        address: u64,
        key: u32,
        length: u32,
        sent: u32,
    },
    Value(u32, u64),
}

/// Why a QP ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// How the receive fails that the message has taken.
    pub(crate) receive: Option<Status>,
    /// What the driver is told.
    pub(crate) event: Option<QpEvent>,
    /// What the peer is told.
    status: Status,
}

const INVALID: Stop = refused(Status::RemoteInvalidRequest, QpEvent::RequestError);
const DENIED: Stop = refused(Status::RemoteAccess, QpEvent::AccessError);
const GONE: Stop = refused(Status::RemoteOperation, QpEvent::Fatal);

const fn refused(status: Status, event: QpEvent) -> Stop {
    Stop { receive: None, event: Some(event), status }
}

/// What becomes of a request.
enum Taken {
    /// More of it is to come.
    More,
    /// It is done, and this filled a receive, if anything did.
    Done(Option<ReceivedMessage>),
    NotReady,
}

/// What a QP was asked.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The number of the message that is next, or under way.
    expected: u32,
    current: Option<Incoming>,
    /// There was no receive; nothing counts until the message begins anew.
    dropping: bool,
    replies: VecDeque<Reply>,
    timer: u8,
    /// What the QP grants to peers.
    access: Access,
}

impl Responder {
    /// Takes note of the QP's attributes.
    pub(crate) fn set(&mut self, attributes: &Attributes) {
        self.timer = attributes.min_rnr_timer;
        self.access = Access::from_bits_truncate(attributes.access);
    }

    pub(crate) fn owes(&self) -> bool {
        self.replies.front().is_some_and(|reply| !matches!(reply, Reply::Data { .. }))
    }

    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Takes a request's slot; what filled a receive.
    ///
    /// # Errors
    /// Why the QP ends; the peer will be told.
    pub(crate) fn request(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Option<ReceivedMessage>, Stop> {
        let begins = header.message == self.expected && header.offset == 0;
        if self.dropping && !begins {
            return Ok(None);
        }
        self.dropping = false;
        let taken = match header.message == self.expected {
            true => self.execute(qpn, header, payload, host),
            false => Err(INVALID),
        };
        match taken {
            Ok(Taken::More) => Ok(None),
            Ok(Taken::Done(received)) => {
                self.expected = self.expected.wrapping_add(1);
                Ok(received)
            }
            Ok(Taken::NotReady) => {
                self.dropping = true;
                self.replies.push_back(Reply::NotReady(self.expected));
                Ok(None)
            }
            Err(stop) => {
                self.replies.push_back(Reply::Refused(self.expected, stop.status));
                self.current = None;
                Err(stop)
            }
        }
    }

    fn execute(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Taken, Stop> {
        match header.operation {
            SlotOperation::Send | SlotOperation::Write => self.part(qpn, header, payload, host),
            _ if self.current.is_some() || header.offset != 0 => Err(INVALID),
            SlotOperation::Read => self.read(qpn, header, host),
            _ => self.atomic(qpn, header, payload, host),
        }
    }

    /// A part of a SEND or WRITE.
    fn part(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Taken, Stop> {
        let mut incoming = match self.current.take() {
            Some(incoming) => incoming,
            None => match self.begin(qpn, header, host)? {
                Some(receive) => Incoming { first: *header, got: 0, receive },
                None => return Ok(Taken::NotReady),
            },
        };
        let Incoming { first, got, receive } = incoming;
        let follows = header.operation == first.operation
            && (header.offset, header.length) == (got, first.length)
            && (header.address, header.key) == (first.address, first.key);
        // A part without bytes would go on for ever.
        if !follows || payload.is_empty() && header.length > 0 {
            return Err(INVALID);
        }
        if !payload.is_empty() {
            place(qpn, header, payload, receive, host)?;
        }
        incoming.got = got.saturating_add(u32::from(header.bytes));
        if incoming.got < first.length {
            self.current = Some(incoming);
            return Ok(Taken::More);
        }
        self.done(header.message);
        Ok(Taken::Done(receive.map(|_| received(qpn, &first))))
    }

    /// Checks what a SEND or WRITE names, and takes the receive that it wants; `None` where there is none.
    fn begin(
        &self,
        qpn: u32,
        header: &SlotHeader,
        host: &mut impl Host,
    ) -> Result<Option<Option<u64>>, Stop> {
        let SlotHeader { operation, flags, key, address, length, immediate, .. } = *header;
        let is_write = operation == SlotOperation::Write;
        if header.offset != 0 || is_write && flags.contains(SlotFlags::INVALIDATE) {
            return Err(INVALID);
        }
        if is_write && !self.access.contains(Access::REMOTE_WRITE) {
            return Err(INVALID);
        }
        if is_write && !host.allows(qpn, key, address, length.into(), RemoteAccess::Write) {
            return Err(DENIED);
        }
        let takes_back = flags.contains(SlotFlags::INVALIDATE);
        if takes_back && !host.allows(qpn, immediate, 0, 0, RemoteAccess::Invalidate) {
            return Err(DENIED);
        }
        if is_write && !flags.contains(SlotFlags::IMMEDIATE) {
            return Ok(Some(None));
        }
        match host.take_receive(qpn) {
            Ok(receive) if !is_write && u64::from(length) > receive.capacity => {
                let receive = Some(Status::LocalLength);
                Err(Stop { receive, event: None, status: Status::RemoteInvalidRequest })
            }
            Ok(receive) => Ok(Some(Some(receive.id))),
            Err(ReceiveError::Empty) => Ok(None),
            Err(ReceiveError::Invalid) => {
                let receive = Some(Status::LocalProtection);
                Err(Stop { receive, event: None, status: Status::RemoteOperation })
            }
            Err(ReceiveError::NoSrq) => Err(INVALID),
        }
    }

    fn read(&mut self, qpn: u32, header: &SlotHeader, host: &mut impl Host) -> Result<Taken, Stop> {
        let SlotHeader { message, address, key, length, .. } = *header;
        self.admit(Access::REMOTE_READ)?;
        if !host.allows(qpn, key, address, length.into(), RemoteAccess::Read) {
            return Err(DENIED);
        }
        self.replies.push_back(Reply::Data { message, address, key, length, sent: 0 });
        Ok(Taken::Done(None))
    }

    fn atomic(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Taken, Stop> {
        let SlotHeader { message, address, key, .. } = *header;
        self.admit(Access::REMOTE_ATOMIC)?;
        let mut words = payload.chunks_exact(8).map(|chunk| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(chunk);
            u64::from_le_bytes(bytes)
        });
        let operation = match (header.operation, words.next(), words.next(), payload.len()) {
            (SlotOperation::CompareSwap, Some(compare), Some(swap), 16) => {
                AtomicOperation::CompareSwap { compare, swap }
            }
            (SlotOperation::FetchAdd, Some(add), None, 8) => AtomicOperation::FetchAdd { add },
            _ => return Err(INVALID),
        };
        if address % 8 != 0 {
            return Err(INVALID);
        }
        if !host.allows(qpn, key, address, 8, RemoteAccess::Atomic) {
            return Err(DENIED);
        }
        let before = host.atomic(qpn, key, address, operation).map_err(|_| GONE)?;
        self.replies.push_back(Reply::Value(message, before));
        Ok(Taken::Done(None))
    }

    /// Refuses what the QP does not grant, and what asks for more than a peer may have asked for.
    fn admit(&self, right: Access) -> Result<(), Stop> {
        let asked = |reply: &&Reply| matches!(reply, Reply::Data { .. } | Reply::Value(..));
        let count = self.replies.iter().filter(asked).count();
        if count >= READS.into() || !self.access.contains(right) { Err(INVALID) } else { Ok(()) }
    }

    /// Takes note that all up to a message ended well.
    fn done(&mut self, message: u32) {
        match self.replies.back_mut() {
            Some(Reply::Done(last)) => *last = message,
            _ => self.replies.push_back(Reply::Done(message)),
        }
    }

    /// The next slot of answers, whose payload is put into `payload`.
    ///
    /// # Errors
    /// Why the QP ends: what a READ asks for went away. The peer will be told.
    pub(crate) fn next_slot(
        &mut self,
        qpn: u32,
        host: &mut impl Host,
        payload: &mut Vec<u8>,
    ) -> Result<Option<SlotHeader>, Stop> {
        payload.clear();
        let Some(reply) = self.replies.front_mut() else { return Ok(None) };
        let mut header = SlotHeader { operation: SlotOperation::Answer, ..SlotHeader::default() };
        match reply {
            Reply::Done(message) => header.message = *message,
            Reply::NotReady(message) => {
                (header.message, header.timer) = (*message, self.timer);
                header.flags |= SlotFlags::NOT_READY;
            }
            Reply::Refused(message, status) => {
                (header.message, header.status) = (*message, status.0);
            }
            Reply::Value(message, value) => {
                (header.operation, header.message) = (SlotOperation::Value, *message);
                payload.extend(value.to_le_bytes());
            }
            Reply::Data { message, address, key, length, sent } => {
                (header.operation, header.message) = (SlotOperation::Data, *message);
                (header.offset, header.length) = (*sent, *length);
                let bytes = length.saturating_sub(*sent).min(SLOT_PAYLOAD as u32);
                payload.resize(bytes as usize, 0);
                let address = address.wrapping_add((*sent).into());
                let source = Payload::Remote { rkey: *key, address, access: RemoteAccess::Read };
                if bytes > 0 && host.read(qpn, source, 0, payload).is_err() {
                    *reply = Reply::Refused(*message, GONE.status);
                    self.replies.truncate(1);
                    return Err(GONE);
                }
                *sent = sent.saturating_add(bytes);
                if *sent < *length {
                    header.bytes = payload.len() as u16;
                    return Ok(Some(header));
                }
            }
        }
        header.bytes = payload.len() as u16;
        self.replies.pop_front();
        Ok(Some(header))
    }
}

/// Puts a part of a SEND or WRITE where it belongs.
fn place(
    qpn: u32,
    header: &SlotHeader,
    payload: &[u8],
    receive: Option<u64>,
    host: &mut impl Host,
) -> Result<(), Stop> {
    if header.operation == SlotOperation::Write {
        let address = header.address.wrapping_add(header.offset.into());
        let into = Payload::Remote { rkey: header.key, address, access: RemoteAccess::Write };
        return host.write(qpn, into, 0, payload).map_err(|_| GONE);
    }
    let into = Payload::Receive { id: receive.unwrap_or_default() };
    host.write(qpn, into, header.offset.into(), payload).map_err(|_| Stop {
        receive: Some(Status::LocalProtection),
        event: None,
        status: Status::RemoteOperation,
    })
}

/// What a message says in the completion of its receive.
fn received(qpn: u32, first: &SlotHeader) -> ReceivedMessage {
    let SlotHeader { operation, flags, length, immediate, .. } = *first;
    let kind = match operation {
        SlotOperation::Write => ReceiveKind::Write,
        _ if flags.contains(SlotFlags::INVALIDATE) => {
            ReceiveKind::SendInvalidate { rkey: immediate }
        }
        _ => ReceiveKind::Send,
    };
    let immediate = flags.contains(SlotFlags::IMMEDIATE).then_some(immediate);
    let solicited = flags.contains(SlotFlags::SOLICITED);
    ReceivedMessage { qpn, length, kind, immediate, solicited, source_qpn: None }
}
