//! The side that is asked: requests are checked, executed and answered in their order.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::Attributes;
use fpga_regs::engine::tunnel::{GRANT_PARTS, SLOT_PAYLOAD, SlotFlags, SlotHeader, SlotOperation};
use fpga_regs::engine::wqe::{ATOMIC_BYTES, AtomicOperation};
use queue_engine::{
    Payload, ReceiveError, ReceiveKind, ReceivedMessage, RemoteAccess, RemoteRange,
};

use crate::grant::{Landings, Next, Sendings, Turn};
use crate::host::Host;
use crate::param::READS;

/// A SEND or WRITE of which some has come.
#[derive(Debug)]
struct Incoming {
    first: SlotHeader,
    got: u32,
    /// The receive that it has taken.
    receive: Option<u64>,
    /// The part of it that comes by grants.
    landings: Landings,
}

impl Incoming {
    /// How far it has come when all that was granted has landed.
    fn reach(&self) -> u32 {
        self.got.saturating_add(self.landings.bytes())
    }

    /// Where the bytes that come next belong, and from which on.
    fn target(&self) -> (Payload, u64) {
        let SlotHeader { operation, key: rkey, address, .. } = self.first;
        let at = self.reach();
        if operation == SlotOperation::Write {
            let address = address.wrapping_add(at.into());
            return (Payload::Remote { rkey, address, access: RemoteAccess::Write }, 0);
        }
        (Payload::Receive { id: self.receive.unwrap_or_default() }, at.into())
    }

    /// The reason to end when its bytes cannot be placed.
    fn gone(&self) -> Stop {
        match self.first.operation {
            SlotOperation::Write => GONE,
            _ => Stop {
                receive: Some(Status::LocalProtection),
                event: None,
                status: Status::RemoteOperation,
            },
        }
    }
}

/// An answer to the peer.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// All up to the last message ended well, of which no other reply says so from the first on. Of those that have filled
    /// receives the program is told first.
    Done {
        first: u32,
        last: u32,
    },
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

impl Reply {
    /// The last message of which it is.
    fn last(&self) -> u32 {
        let (Self::Done { last: message, .. }
        | Self::NotReady(message)
        | Self::Refused(message, _)
        | Self::Data { message, .. }
        | Self::Value(message, _)) = *self;
        message
    }
}

/// Whether a message comes before another one, of those that are under way at a time.
fn is_before(message: u32, other: u32) -> bool {
    (message.wrapping_sub(other) as i32) < 0
}

/// Why a QP ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// How the receive fails that the message has taken.
    pub(crate) receive: Option<Status>,
    /// The event for the driver.
    pub(crate) event: Option<QpEvent>,
    /// The status for the peer.
    status: Status,
}

const INVALID: Stop = refused(Status::RemoteInvalidRequest, QpEvent::RequestError);
const DENIED: Stop = refused(Status::RemoteAccess, QpEvent::AccessError);
const GONE: Stop = refused(Status::RemoteOperation, QpEvent::Fatal);

const fn refused(status: Status, event: QpEvent) -> Stop {
    Stop { receive: None, event: Some(event), status }
}

/// How the taking of a request went.
enum Taking {
    /// More of it is to come.
    More,
    /// It is done, and this filled a receive, if anything did.
    Complete(Option<ReceivedMessage>),
    NotReady,
}

/// The peer's requests to a QP.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The number of the message that is next, or under way.
    expected: u32,
    current: Option<Incoming>,
    /// There was no receive; nothing counts until the message begins anew.
    dropping: bool,
    replies: VecDeque<Reply>,
    /// Messages that have filled receives and of which the program was not told yet, oldest first: so the peer is not told
    /// of them either.
    untold: VecDeque<u32>,
    timer: u8,
    /// The accesses that the QP grants to peers.
    access: Access,
    /// Bytes of the grant of which was just said that it was used.
    used: u32,
    /// Whether it grants the destinations of SENDs and WRITEs.
    grants: bool,
    /// Answers to requests for those, and their outcomes.
    answers: VecDeque<SlotHeader>,
    /// The part of the oldest READ that goes by grants.
    sendings: Sendings,
    /// Some of it went away meanwhile, of which the peer was told as of the rest.
    lost: bool,
}

impl Responder {
    /// A responder without requests, which grants the destinations of SENDs and WRITEs, or does not.
    pub(crate) fn new(grants: bool) -> Self {
        Self { grants, ..Self::default() }
    }

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

    /// The part of the oldest READ that goes by grants.
    pub(crate) fn sendings(&self) -> &Sendings {
        &self.sendings
    }

    /// Bytes of the grant of which was just said that it was used.
    pub(crate) fn take_used(&mut self) -> u32 {
        std::mem::take(&mut self.used)
    }

    /// Whether a grant was used that has not ended.
    pub(crate) fn is_closing(&self) -> bool {
        self.current.as_ref().is_some_and(|incoming| incoming.landings.is_closing())
    }

    /// Whether a request has to wait until grants have ended that were used.
    pub(crate) fn holds_up(&self, header: &SlotHeader) -> bool {
        let waits = header.operation != SlotOperation::Written;
        waits && !header.flags.contains(SlotFlags::ASKS) && self.holds_all_up()
    }

    fn holds_all_up(&self) -> bool {
        self.current.as_ref().is_some_and(|incoming| incoming.landings.hold_up())
    }

    /// Takes a request's slot; the message that filled a receive.
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
        self.took(taken)
    }

    /// The program was told of the oldest message that has filled a receive, and of which it was not.
    pub(crate) fn told(&mut self) {
        self.untold.pop_front();
    }

    /// Whether there are messages that have filled receives and of which the program was not told.
    pub(crate) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Refuses executed requests that were not answered, for the program cannot be told of them: from the oldest on
    /// that has filled a receive, if there is one; the reason why the QP ends.
    pub(crate) fn disown(&mut self) -> Stop {
        let (at, message) = match self.untold.front() {
            Some(&lost) => (self.cut(lost), lost),
            None => self.oldest_unsaid(),
        };
        self.untold.clear();
        self.replies.truncate(at);
        self.replies.push_back(Reply::Refused(message, GONE.status));
        self.current = None;
        GONE
    }

    /// The first reply that says of a request that it was executed, and of which one.
    fn oldest_unsaid(&self) -> (usize, u32) {
        let unsaid = |reply: &Reply| match *reply {
            Reply::Done { first, .. } => Some(first),
            Reply::Value(message, _) => Some(message),
            _ => None,
        };
        let found = self.replies.iter().enumerate().find_map(|(at, it)| Some((at, unsaid(it)?)));
        found.unwrap_or((self.replies.len(), self.expected))
    }

    /// Where the replies begin that are of a message or of later ones, behind one that ends before it.
    fn cut(&mut self, message: u32) -> usize {
        let is_behind = |reply: &Reply| !is_before(reply.last(), message);
        let at = self.replies.iter().position(is_behind).unwrap_or(self.replies.len());
        match self.replies.get_mut(at) {
            Some(Reply::Done { first, last }) if is_before(*first, message) => {
                *last = message.wrapping_sub(1);
                at.saturating_add(1)
            }
            _ => at,
        }
    }

    /// Takes note of the outcome of a request.
    fn took(&mut self, taken: Result<Taking, Stop>) -> Result<Option<ReceivedMessage>, Stop> {
        match taken {
            Ok(Taking::More) => Ok(None),
            Ok(Taking::Complete(received)) => {
                if received.is_some() {
                    self.untold.push_back(self.expected);
                }
                self.expected = self.expected.wrapping_add(1);
                Ok(received)
            }
            Ok(Taking::NotReady) => {
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

    /// Goes on with grants, as [`crate::requester::Requester::settle`].
    pub(crate) fn settle(&mut self, now: u64, after: u64, qpn: u32, host: &mut impl Host) -> bool {
        self.sendings.lapse(now, after, qpn, host);
        let Some(incoming) = &mut self.current else { return false };
        incoming.landings.lapse(now, after, qpn, host);
        let (operation, message) = (SlotOperation::Landed, incoming.first.message);
        let mut answer = SlotHeader { operation, message, ..SlotHeader::default() };
        let Some(bytes) = incoming.landings.ended(qpn, &mut answer, host) else { return false };
        incoming.got = incoming.got.saturating_add(bytes);
        self.answers.push_back(answer);
        true
    }

    fn execute(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Taking, Stop> {
        match header.operation {
            SlotOperation::Send | SlotOperation::Write => {
                self.take_part(qpn, header, payload, host)
            }
            SlotOperation::Written => self.written(qpn, header, host),
            _ if self.current.is_some() || header.offset != 0 => Err(INVALID),
            SlotOperation::Read => self.read(qpn, header, host),
            _ => self.atomic(qpn, header, payload, host),
        }
    }

    /// A part of a SEND or WRITE.
    fn take_part(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Taking, Stop> {
        let mut incoming = match self.current.take() {
            Some(incoming) => incoming,
            None => match self.begin(qpn, header, host)? {
                Some(receive) => {
                    let (first, landings) = (*header, Landings::default());
                    Incoming { first, got: 0, receive, landings }
                }
                None => return Ok(Taking::NotReady),
            },
        };
        let Incoming { first, got, .. } = incoming;
        let asks = header.flags.contains(SlotFlags::ASKS);
        let is_part = header.operation == first.operation
            && header.length == first.length
            && (header.address, header.key) == (first.address, first.key);
        if is_part && !asks && incoming.landings.passes_over(header.offset, got) {
            self.current = Some(incoming);
            return Ok(Taking::More);
        }
        if !is_part {
            return Err(INVALID);
        }
        if asks {
            return self.grant(qpn, incoming, header, host);
        }
        if header.offset != got || !incoming.landings.is_empty() {
            return Err(INVALID);
        }
        // A part without bytes would go on for ever.
        if payload.is_empty() && header.length > 0 {
            return Err(INVALID);
        }
        let (target, at) = incoming.target();
        if !payload.is_empty() && host.write(qpn, target, at, payload).is_err() {
            return Err(incoming.gone());
        }
        Ok(self.got(qpn, incoming, header.bytes.into()))
    }

    /// Answers the request for a grant of the rest of a SEND or WRITE.
    fn grant(
        &mut self,
        qpn: u32,
        mut incoming: Incoming,
        header: &SlotHeader,
        host: &mut impl Host,
    ) -> Result<Taking, Stop> {
        // A sane peer that has not heard so many answers does not ask again.
        let is_too_much = self.answers.len() >= GRANT_PARTS;
        // Nothing is granted behind bytes that have not landed.
        let follows = header.offset == incoming.reach() || incoming.landings.is_over();
        if !self.grants || header.bytes > 0 || !follows || is_too_much {
            return Err(INVALID);
        }
        let target = incoming.target();
        let answer = incoming.landings.grant(qpn, target, header, SlotOperation::Grant, host);
        self.answers.push_back(answer.ok_or(INVALID)?);
        self.current = Some(incoming);
        Ok(Taking::More)
    }

    /// The peer says that it has used a grant.
    fn written(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        host: &mut impl Host,
    ) -> Result<Taking, Stop> {
        let incoming = self.current.as_mut();
        let bytes = incoming.and_then(|incoming| incoming.landings.written(qpn, header, host));
        match bytes {
            Some(bytes) => {
                self.used = bytes;
                Ok(Taking::More)
            }
            None => Err(INVALID),
        }
    }

    /// Takes note that bytes of a SEND or WRITE are where they belong.
    fn got(&mut self, qpn: u32, mut incoming: Incoming, bytes: u32) -> Taking {
        let Incoming { first, receive, .. } = incoming;
        incoming.got = incoming.got.saturating_add(bytes);
        if incoming.got < first.length {
            self.current = Some(incoming);
            return Taking::More;
        }
        self.done(first.message);
        Taking::Complete(receive.map(|_| received(qpn, &first)))
    }

    /// Checks the memory that a SEND or WRITE names, and takes the receive that it needs; `None` if there is none.
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
        let memory = RemoteRange { rkey: key, va: address, length: length.into() };
        if is_write && !host.allows(qpn, memory, RemoteAccess::Write) {
            return Err(DENIED);
        }
        let takes_back = flags.contains(SlotFlags::INVALIDATE);
        let taken_back = RemoteRange { rkey: immediate, va: 0, length: 0 };
        if takes_back && !host.allows(qpn, taken_back, RemoteAccess::Invalidate) {
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

    fn read(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        host: &mut impl Host,
    ) -> Result<Taking, Stop> {
        let SlotHeader { message, address, key, length, .. } = *header;
        self.admit(Access::REMOTE_READ)?;
        let memory = RemoteRange { rkey: key, va: address, length: length.into() };
        if !host.allows(qpn, memory, RemoteAccess::Read) {
            return Err(DENIED);
        }
        self.replies.push_back(Reply::Data { message, address, key, length, sent: 0 });
        Ok(Taking::Complete(None))
    }

    fn atomic(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<Taking, Stop> {
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
        let memory = RemoteRange { rkey: key, va: address, length: ATOMIC_BYTES as u64 };
        if !host.allows(qpn, memory, RemoteAccess::Atomic) {
            return Err(DENIED);
        }
        let before = host.atomic(qpn, key, address, operation).map_err(|_| GONE)?;
        self.replies.push_back(Reply::Value(message, before));
        Ok(Taking::Complete(None))
    }

    /// Refuses accesses that the QP does not grant, and requests beyond a peer's limit.
    fn admit(&self, right: Access) -> Result<(), Stop> {
        let asked = |reply: &&Reply| matches!(reply, Reply::Data { .. } | Reply::Value(..));
        let count = self.replies.iter().filter(asked).count();
        if count >= READS.into() || !self.access.contains(right) { Err(INVALID) } else { Ok(()) }
    }

    /// Takes note that all up to a message ended well.
    fn done(&mut self, message: u32) {
        match self.replies.back_mut() {
            Some(Reply::Done { last, .. }) => *last = message,
            _ => self.replies.push_back(Reply::Done { first: message, last: message }),
        }
    }

    /// Takes the answer to a request for a grant; `false` where it makes no sense.
    pub(crate) fn granted(&mut self, qpn: u32, header: &SlotHeader, host: &mut impl Host) -> bool {
        let Some(Reply::Data { message, .. }) = self.replies.front() else { return false };
        *message == header.message && self.sendings.granted(qpn, header, host)
    }

    /// Takes the peer's report whether a granted part of a READ has landed; `false` if the report makes no sense.
    pub(crate) fn landed(&mut self, qpn: u32, header: &SlotHeader, host: &mut impl Host) -> bool {
        let Some(Reply::Data { message, .. }) = self.replies.front() else { return false };
        if *message != header.message {
            return false;
        }
        let landed = self.sendings.landed(qpn, header, host);
        landed.map(|bytes| self.sent(bytes)).is_some()
    }

    /// The next answer; the payload of its slot is put into `payload`.
    ///
    /// # Errors
    /// The reason why the QP ends: the memory of a READ went away. The peer will be told.
    pub(crate) fn next(
        &mut self,
        qpn: u32,
        long: Option<u32>,
        host: &mut impl Host,
        payload: &mut Vec<u8>,
    ) -> Result<Option<Next>, Stop> {
        payload.clear();
        if let Some(answer) = self.answers.pop_front() {
            return Ok(Some(Next::Slot(answer)));
        }
        if let Some(said) = self.hold_back() {
            return Ok(said.map(Next::Slot));
        }
        let Some(reply) = self.replies.front() else { return Ok(None) };
        let mut header = SlotHeader { operation: SlotOperation::Answer, ..SlotHeader::default() };
        match reply {
            Reply::Data { .. } => return self.next_data(qpn, long, host, payload),
            Reply::Done { last, .. } => header.message = *last,
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
        }
        header.bytes = payload.len() as u16;
        self.replies.pop_front();
        Ok(Some(Next::Slot(header)))
    }

    /// If the next reply also covers messages of which the program was not told: the reply for those before, if there
    /// is one.
    fn hold_back(&mut self) -> Option<Option<SlotHeader>> {
        let untold = *self.untold.front()?;
        let Some(Reply::Done { first, last }) = self.replies.front_mut() else { return None };
        if is_before(*last, untold) {
            return None;
        }
        let says = is_before(*first, untold);
        *first = untold;
        let (operation, message) = (SlotOperation::Answer, untold.wrapping_sub(1));
        Some(says.then(|| SlotHeader { operation, message, ..SlotHeader::default() }))
    }

    /// The next slot of the oldest READ's data: a part of it, or the request for a grant.
    fn next_data(
        &mut self,
        qpn: u32,
        long: Option<u32>,
        host: &mut impl Host,
        payload: &mut Vec<u8>,
    ) -> Result<Option<Next>, Stop> {
        let Some((mut header, source)) = self.data() else { return Ok(None) };
        if self.lost {
            return Err(self.lose(header.message));
        }
        let left = header.length.saturating_sub(header.offset);
        let suits = self.sendings.suits(long, left);
        if suits && self.sendings.ask(qpn, (source, 0), &mut header, host) {
            return Ok(Some(Next::Slot(header)));
        }
        if !self.sendings.is_empty() {
            let next = self.next_of_grant(qpn, host);
            if next.is_some() || left == 0 || self.sendings.suits(long, left) {
                return Ok(next);
            }
        }
        if !self.sendings.lets_slots() {
            return Ok(None);
        }
        let bytes = left.min(SLOT_PAYLOAD as u32);
        payload.resize(bytes as usize, 0);
        if bytes > 0 && host.read(qpn, source, 0, payload).is_err() {
            return Err(self.lose(header.message));
        }
        header.bytes = payload.len() as u16;
        let bytes = self.sendings.add_slot(bytes);
        self.sent(bytes);
        Ok(Some(Next::Slot(header)))
    }

    /// The next slot of the parts of a READ for which grants were asked.
    pub(crate) fn next_of_grant(&mut self, qpn: u32, host: &mut impl Host) -> Option<Next> {
        let turn = self.sendings.turn(qpn, host);
        let (mut header, _) = self.data()?;
        match turn {
            Turn::Wait => None,
            Turn::Use(it) => Some(Next::Write(it)),
            Turn::Written { offset, sum } => {
                self.lost |= sum.is_none();
                (header.operation, header.offset) = (SlotOperation::DataWritten, offset);
                header.sum = sum.unwrap_or_default();
                Some(Next::Slot(header))
            }
        }
    }

    /// The header of the oldest READ's next part, and where that lies.
    fn data(&self) -> Option<(SlotHeader, Payload)> {
        let Reply::Data { message, address, key: rkey, length, sent } = *self.replies.front()?
        else {
            return None;
        };
        let operation = SlotOperation::Data;
        let offset = sent.saturating_add(self.sendings.bytes());
        let header = SlotHeader { operation, message, offset, length, ..SlotHeader::default() };
        let address = address.wrapping_add(offset.into());
        Some((header, Payload::Remote { rkey, address, access: RemoteAccess::Read }))
    }

    /// Takes note that bytes of the oldest READ's are sent.
    fn sent(&mut self, bytes: u32) {
        let Some(Reply::Data { length, sent, .. }) = self.replies.front_mut() else { return };
        *sent = sent.saturating_add(bytes);
        if *sent >= *length && self.sendings.is_empty() {
            self.replies.pop_front();
            self.sendings = Sendings::default();
        }
    }

    /// Ends the QP, because the memory of the oldest READ went away.
    fn lose(&mut self, message: u32) -> Stop {
        self.replies.clear();
        self.replies.push_back(Reply::Refused(message, GONE.status));
        self.sendings = Sendings::default();
        GONE
    }
}

/// The description of a message for the completion of its receive.
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
