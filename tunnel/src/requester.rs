//! The side that asks: messages become slots in their order, and end by the peer's answers alone.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::rnr_timeout_micros;
use fpga_regs::engine::tunnel::{GRANT_PARTS, SLOT_PAYLOAD, SlotFlags, SlotHeader, SlotOperation};
use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{Message, Payload, TransportError, WqeOperation};

use crate::grant::{Landings, Next, Sendings, Turn};
use crate::host::Host;
use crate::param::{MESSAGES, RNR_RETRY_INFINITE};

/// A message that is not complete.
#[derive(Clone, Copy, Debug)]
struct Request {
    message: Message,
    /// A slot of it was made.
    begun: bool,
    /// Bytes of it that are in slots.
    sent: u32,
    /// Bytes that a READ has got.
    got: u32,
    /// It goes no further, for this reason.
    failed: Option<Status>,
}

impl Request {
    /// Whether it is answered by more than a status.
    fn asks(&self) -> bool {
        matches!(self.message.operation, WqeOperation::Read { .. } | WqeOperation::Atomic { .. })
    }
}

/// The outcome of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// So many of the oldest messages are complete.
    Complete(u64),
    /// And the next one failed.
    Failed(u64, Status),
}

/// The messages of a QP.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Oldest first.
    requests: VecDeque<Request>,
    /// The number of the oldest.
    first: u64,
    /// How many of them are in slots whole.
    whole: usize,
    /// The number behind the last message of which a slot was made.
    reached: u64,
    /// In SQD: the first message that is not begun.
    held: Option<u64>,
    /// Nothing is sent before this time.
    not_before: u64,
    rnr_retry: u8,
    rnr_left: u8,
    max_rd_atomic: u8,
    /// Bytes of the grant of which was just said that it was used.
    used: u32,
    /// Whether it grants the destinations of its READs.
    grants: bool,
    /// The part of the message to send next that goes by grants.
    sendings: Sendings,
    /// The part of the oldest message, a READ, that comes by grants.
    landings: Landings,
    /// Answers to requests for those, and their outcomes.
    answers: VecDeque<SlotHeader>,
}

impl Requester {
    /// A requester without messages, which grants the destinations of its READs, or does not.
    pub(crate) fn new(grants: bool) -> Self {
        Self { grants, ..Self::default() }
    }

    /// Bytes of the grant of which was just said that it was used.
    pub(crate) fn take_used(&mut self) -> u32 {
        std::mem::take(&mut self.used)
    }

    /// Takes note of the attributes of RTS.
    pub(crate) fn begin(&mut self, rnr_retry: u8, max_rd_atomic: u8) {
        (self.rnr_retry, self.rnr_left) = (rnr_retry, rnr_retry);
        self.max_rd_atomic = max_rd_atomic;
    }

    /// Begins no message that was not begun before (SQD), or goes on.
    pub(crate) fn hold(&mut self, holds: bool) {
        self.held = holds.then_some(self.reached);
    }

    /// Whether all is complete that may be begun.
    pub(crate) fn is_settled(&self) -> bool {
        self.requests.is_empty() || self.held.is_some_and(|held| self.first >= held)
    }

    pub(crate) fn room(&self) -> usize {
        MESSAGES.saturating_sub(self.requests.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Since when the peer may be silent at the earliest.
    pub(crate) fn not_before(&self) -> u64 {
        self.not_before
    }

    /// Atomics of which it is unknown whether they were executed.
    pub(crate) fn unknown(&self) -> usize {
        let begun = self.requests.iter().filter(|request| request.begun);
        let atomic = |it: &&Request| matches!(it.message.operation, WqeOperation::Atomic { .. });
        begun.filter(atomic).count()
    }

    pub(crate) fn submit(&mut self, message: &Message) -> Result<u64, TransportError> {
        if self.room() == 0 {
            return Err(TransportError::Full);
        }
        if message.srqn.is_some() || matches!(message.operation, WqeOperation::Datagram { .. }) {
            return Err(TransportError::Unsupported);
        }
        let number = self.first.wrapping_add(self.requests.len() as u64);
        let (begun, sent, got, failed) = (false, 0, 0, None);
        self.requests.push_back(Request { message: *message, begun, sent, got, failed });
        Ok(number)
    }

    /// Whether the next message has to wait for answers of those before.
    fn waits(&self, request: &Request) -> bool {
        let mut asked = self.requests.iter().take(self.whole).filter(|before| before.asks());
        let most = usize::from(self.max_rd_atomic.max(1));
        match request.message.fence {
            true => asked.next().is_some(),
            false => request.asks() && asked.count() >= most,
        }
    }

    /// The part of the message to send next that goes by grants.
    pub(crate) fn sendings(&self) -> &Sendings {
        &self.sendings
    }

    /// Whether a grant was used that has not ended.
    pub(crate) fn is_closing(&self) -> bool {
        self.landings.is_closing()
    }

    /// Whether an answer has to wait until grants have ended that were used.
    pub(crate) fn holds_up(&self, header: &SlotHeader) -> bool {
        self.landings.hold_up() && !header.flags.contains(SlotFlags::ASKS)
    }

    /// The next slot, whose payload is put into `payload`.
    pub(crate) fn next(
        &mut self,
        now: u64,
        qpn: u32,
        long: Option<u32>,
        host: &mut impl Host,
        payload: &mut Vec<u8>,
    ) -> Option<Next> {
        payload.clear();
        if let Some(answer) = self.answers.pop_front() {
            return Some(Next::Slot(answer));
        }
        let request = *self.requests.get(self.whole)?;
        let starts = !request.begun;
        if now < self.not_before || request.failed.is_some() || starts && self.waits(&request) {
            return None;
        }
        let number = self.first.wrapping_add(self.whole as u64);
        if self.held.is_some_and(|held| number >= held) {
            return None;
        }
        let mut header = header_of(&request.message, payload);
        let at = request.sent.saturating_add(self.sendings.bytes());
        (header.message, header.offset) = (number as u32, at);
        let left = request.message.length.saturating_sub(at);
        let carries = !request.asks();
        let source = Payload::Message { number };
        let suits = carries && self.sendings.suits(long, left);
        if suits && self.sendings.ask(qpn, (source, at.into()), &mut header, host) {
            self.reach(number);
            return Some(Next::Slot(header));
        }
        if !self.sendings.is_empty() {
            let next = self.next_of_grant(qpn, host);
            // Granted parts, and requests for grants, go first, and slots behind them.
            let waits = left == 0 || self.sendings.suits(long, left);
            if next.is_some() || waits || self.failed_at(self.whole) {
                return next;
            }
        }
        if !self.sendings.lets_slots() {
            return None;
        }
        let bytes = if carries { left.min(SLOT_PAYLOAD as u32) } else { 0 };
        if carries {
            payload.clear();
            payload.resize(bytes as usize, 0);
            if bytes > 0 && host.read(qpn, source, at.into(), payload).is_err() {
                self.requests.get_mut(self.whole)?.failed = Some(Status::LocalProtection);
                return None;
            }
        }
        header.bytes = payload.len() as u16;
        self.reach(number);
        let bytes = self.sendings.add_slot(bytes);
        self.count(bytes);
        Some(Next::Slot(header))
    }

    /// Takes note that the message to send next is begun.
    fn reach(&mut self, number: u64) {
        if let Some(request) = self.requests.get_mut(self.whole) {
            request.begun = true;
        }
        self.reached = self.reached.max(number.wrapping_add(1));
    }

    fn failed_at(&self, index: usize) -> bool {
        self.requests.get(index).is_some_and(|request| request.failed.is_some())
    }

    /// Takes note that bytes of the message to send next are sent.
    fn count(&mut self, bytes: u32) {
        let Some(request) = self.requests.get_mut(self.whole) else { return };
        request.sent = request.sent.saturating_add(bytes);
        let is_whole = request.sent >= request.message.length && self.sendings.is_empty();
        if request.asks() || is_whole {
            self.whole = self.whole.saturating_add(1);
            self.sendings = Sendings::default();
        }
    }

    /// The next slot of the parts for which grants were asked.
    pub(crate) fn next_of_grant(&mut self, qpn: u32, host: &mut impl Host) -> Option<Next> {
        let (offset, sum) = match self.sendings.turn(qpn, host) {
            Turn::Wait => return None,
            Turn::Use(it) => return Some(Next::Write(it)),
            Turn::Written { offset, sum } => (offset, sum),
        };
        if sum.is_none() {
            self.requests.get_mut(self.whole)?.failed = Some(Status::LocalProtection);
        }
        let number = self.first.wrapping_add(self.whole as u64);
        let request = self.requests.get(self.whole)?;
        let mut header = header_of(&request.message, &mut Vec::new());
        (header.message, header.offset) = (number as u32, offset);
        (header.operation, header.sum) = (SlotOperation::Written, sum.unwrap_or_default());
        Some(Next::Slot(header))
    }

    /// Takes the peer's report whether a granted part has landed; `false` if the report makes no sense.
    fn landed(&mut self, qpn: u32, header: &SlotHeader, host: &mut impl Host) -> bool {
        let landed = self.sendings.landed(qpn, header, host);
        landed.map(|bytes| self.count(bytes)).is_some()
    }

    /// Answers the request for a grant of the destination of the oldest message, a READ; `false` if none is due.
    fn grant(&mut self, qpn: u32, header: &SlotHeader, host: &mut impl Host) -> bool {
        let Some(request) = self.requests.front() else { return false };
        let is_read = matches!(request.message.operation, WqeOperation::Read { .. });
        let at = request.got.saturating_add(self.landings.bytes());
        let place = (at, request.message.length);
        let follows = (header.offset, header.length) == place || self.landings.is_over();
        let fits = is_read && follows && header.bytes == 0;
        if !self.grants || !fits || self.answers.len() >= GRANT_PARTS {
            return false;
        }
        let target = (Payload::Message { number: self.first }, at.into());
        let answer = self.landings.grant(qpn, target, header, SlotOperation::GrantData, host);
        answer.map(|answer| self.answers.push_back(answer)).is_some()
    }

    /// The peer says that it has used a grant; `false` where it makes no sense.
    fn written(&mut self, qpn: u32, header: &SlotHeader, host: &mut impl Host) -> bool {
        let used = self.landings.written(qpn, header, host);
        used.map(|bytes| self.used = bytes).is_some()
    }

    /// Goes on with grants: those that were used have ended once nothing is on its way by them, and the peer may have `after`
    /// nanoseconds for any. Whether one has ended.
    pub(crate) fn settle(&mut self, now: u64, after: u64, qpn: u32, host: &mut impl Host) -> bool {
        self.sendings.lapse(now, after, qpn, host);
        self.landings.lapse(now, after, qpn, host);
        let (operation, message) = (SlotOperation::DataLanded, self.first as u32);
        let mut answer = SlotHeader { operation, message, ..SlotHeader::default() };
        let Some(bytes) = self.landings.ended(qpn, &mut answer, host) else { return false };
        self.answers.push_back(answer);
        if let Some(request) = self.requests.front_mut() {
            request.got = request.got.saturating_add(bytes);
        }
        true
    }

    /// Takes note that bytes have come that the oldest message asks for.
    fn got(&mut self, bytes: u32) -> Answered {
        let Some(request) = self.requests.front_mut() else { return Answered::Complete(0) };
        request.got = request.got.saturating_add(bytes);
        if request.got < request.message.length {
            return Answered::Complete(0);
        }
        self.pop();
        Answered::Complete(1)
    }

    /// Why the oldest message failed here, if it did.
    pub(crate) fn failed(&self) -> Option<Status> {
        self.requests.front().and_then(|request| request.failed)
    }

    /// Takes an answer of the peer's.
    pub(crate) fn answer(
        &mut self,
        now: u64,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Answered {
        let bad = Answered::Failed(0, Status::BadResponse);
        let index = header.message.wrapping_sub(self.first as u32) as usize;
        if !self.requests.get(index).is_some_and(|request| request.begun) {
            return bad;
        }
        let asks = header.flags.contains(SlotFlags::ASKS);
        let heard = |makes_sense| if makes_sense { Answered::Complete(0) } else { bad };
        match header.operation {
            SlotOperation::Grant | SlotOperation::Landed if index != self.whole => bad,
            SlotOperation::Grant => heard(self.sendings.granted(qpn, header, host)),
            SlotOperation::Landed => heard(self.landed(qpn, header, host)),
            SlotOperation::Data if asks && index == 0 => heard(self.grant(qpn, header, host)),
            SlotOperation::DataWritten if index == 0 => heard(self.written(qpn, header, host)),
            SlotOperation::Data | SlotOperation::Value
                if index == 0 && self.landings.is_empty() =>
            {
                self.take(qpn, header, payload, host)
            }
            SlotOperation::Answer if header.flags.contains(SlotFlags::NOT_READY) => {
                // Of a message that was granted, nothing can be said to have no receive.
                if !self.sendings.begin_anew(qpn, host) {
                    return bad;
                }
                match self.complete(index) {
                    Answered::Complete(count) => self.put_off(now, count, header.timer),
                    failed @ Answered::Failed(..) => failed,
                }
            }
            SlotOperation::Answer if header.status == Status::Success.0 => {
                if index >= self.whole {
                    return bad;
                }
                self.complete(index.saturating_add(1))
            }
            SlotOperation::Answer => match self.complete(index) {
                Answered::Complete(count) => Answered::Failed(count, refusal(header.status)),
                failed @ Answered::Failed(..) => failed,
            },
            _ => bad,
        }
    }

    /// Completes the oldest messages, none of which a status alone may answer that asks for more.
    fn complete(&mut self, count: usize) -> Answered {
        for done in 0..count {
            match self.requests.front() {
                Some(request) if !request.asks() => self.pop(),
                _ => return Answered::Failed(done as u64, Status::BadResponse),
            }
        }
        Answered::Complete(count as u64)
    }

    fn pop(&mut self) {
        self.requests.pop_front();
        self.landings = Landings::default();
        self.first = self.first.wrapping_add(1);
        self.whole = self.whole.saturating_sub(1);
        self.rnr_left = self.rnr_retry;
    }

    /// Begins anew with the oldest message after some time, unless that was done too often.
    fn put_off(&mut self, now: u64, count: u64, timer: u8) -> Answered {
        if self.rnr_retry != RNR_RETRY_INFINITE {
            match self.rnr_left.checked_sub(1) {
                Some(left) => self.rnr_left = left,
                None => return Answered::Failed(count, Status::RnrRetryExceeded),
            }
        }
        self.not_before = now.saturating_add(rnr_timeout_micros(timer).saturating_mul(1000));
        self.whole = 0;
        for request in &mut self.requests {
            (request.begun, request.sent) = (false, 0);
        }
        Answered::Complete(count)
    }

    /// Takes the data that the oldest message has asked for, or a part of it.
    fn take(
        &mut self,
        qpn: u32,
        header: &SlotHeader,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Answered {
        let bad = Answered::Failed(0, Status::BadResponse);
        let number = self.first;
        let Some(request) = self.requests.front_mut() else { return bad };
        let length = request.message.length;
        if self.landings.passes_over(header.offset, request.got) {
            return Answered::Complete(0);
        }
        let fits = match request.message.operation {
            WqeOperation::Read { .. } => {
                let more = if length == 0 { payload.is_empty() } else { !payload.is_empty() };
                header.operation == SlotOperation::Data
                    && (header.offset, header.length) == (request.got, length)
                    && more
            }
            WqeOperation::Atomic { .. } => {
                header.operation == SlotOperation::Value && payload.len() == 8 && length == 8
            }
            _ => false,
        };
        if !fits {
            return bad;
        }
        let into = Payload::Message { number };
        if !payload.is_empty() && host.write(qpn, into, request.got.into(), payload).is_err() {
            return Answered::Failed(0, Status::LocalProtection);
        }
        self.got(header.bytes.into())
    }
}

/// The header of a message's slots, without their place in it; operands of atomics are put into `payload`.
fn header_of(message: &Message, payload: &mut Vec<u8>) -> SlotHeader {
    payload.clear();
    let mut header = SlotHeader { length: message.length, ..SlotHeader::default() };
    let with = |header: &mut SlotHeader, immediate: Option<u32>, flag| {
        if let Some(immediate) = immediate {
            header.immediate = immediate;
            header.flags |= flag;
        }
    };
    if message.solicited {
        header.flags |= SlotFlags::SOLICITED;
    }
    match message.operation {
        WqeOperation::Send { immediate } | WqeOperation::Datagram { immediate, .. } => {
            header.operation = SlotOperation::Send;
            with(&mut header, immediate, SlotFlags::IMMEDIATE);
        }
        WqeOperation::SendInvalidate { rkey } => {
            header.operation = SlotOperation::Send;
            with(&mut header, Some(rkey), SlotFlags::INVALIDATE);
        }
        WqeOperation::Write { remote_address, rkey, immediate } => {
            header.operation = SlotOperation::Write;
            (header.address, header.key) = (remote_address, rkey);
            with(&mut header, immediate, SlotFlags::IMMEDIATE);
        }
        WqeOperation::Read { remote_address, rkey } => {
            header.operation = SlotOperation::Read;
            (header.address, header.key) = (remote_address, rkey);
        }
        WqeOperation::Atomic { remote_address, rkey, operation } => {
            (header.address, header.key) = (remote_address, rkey);
            match operation {
                AtomicOperation::CompareSwap { compare, swap } => {
                    header.operation = SlotOperation::CompareSwap;
                    payload.extend(compare.to_le_bytes());
                    payload.extend(swap.to_le_bytes());
                }
                AtomicOperation::FetchAdd { add } => {
                    header.operation = SlotOperation::FetchAdd;
                    payload.extend(add.to_le_bytes());
                }
            }
        }
    }
    header
}

/// The status of a request that the peer refused: it may give only those of a responder.
fn refusal(status: u8) -> Status {
    match Status(status) {
        said @ (Status::RemoteInvalidRequest | Status::RemoteAccess | Status::RemoteOperation) => {
            said
        }
        _ => Status::BadResponse,
    }
}
