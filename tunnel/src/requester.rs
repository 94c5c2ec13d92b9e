//! The side that asks: messages become slots in their order, and end by the peer's answers alone.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::rnr_timeout_micros;
use fpga_regs::engine::tunnel::{SLOT_PAYLOAD, SlotFlags, SlotHeader, SlotOperation};
use fpga_regs::engine::wqe::AtomicOperation;
use queue_engine::{Message, Operation, Payload, TransportError};

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
        matches!(self.message.operation, Operation::Read { .. } | Operation::Atomic { .. })
    }
}

/// What an answer came to.
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
}

impl Requester {
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

    /// Atomics of which nobody knows whether they were executed.
    pub(crate) fn unknown(&self) -> usize {
        let begun = self.requests.iter().filter(|request| request.begun);
        let atomic = |it: &&Request| matches!(it.message.operation, Operation::Atomic { .. });
        begun.filter(atomic).count()
    }

    pub(crate) fn submit(&mut self, message: &Message) -> Result<u64, TransportError> {
        if self.room() == 0 {
            return Err(TransportError::Full);
        }
        if message.srqn.is_some() || matches!(message.operation, Operation::Datagram { .. }) {
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

    /// The next slot, whose payload is put into `payload`.
    pub(crate) fn next_slot(
        &mut self,
        now: u64,
        qpn: u32,
        host: &mut impl Host,
        payload: &mut Vec<u8>,
    ) -> Option<SlotHeader> {
        let request = *self.requests.get(self.whole)?;
        let starts = !request.begun;
        if now < self.not_before || request.failed.is_some() || starts && self.waits(&request) {
            return None;
        }
        let number = self.first.wrapping_add(self.whole as u64);
        if self.held.is_some_and(|held| number >= held) {
            return None;
        }
        let left = request.message.length.saturating_sub(request.sent);
        let carries = !request.asks();
        let bytes = if carries { left.min(SLOT_PAYLOAD as u32) } else { 0 };
        let mut header = header_of(&request.message, payload);
        (header.message, header.offset) = (number as u32, request.sent);
        let mut failed = None;
        if carries {
            payload.clear();
            payload.resize(bytes as usize, 0);
            let source = Payload::Message { number };
            if bytes > 0 && host.read(qpn, source, request.sent.into(), payload).is_err() {
                failed = Some(Status::LocalProtection);
            }
        }
        header.bytes = payload.len() as u16;
        let request = self.requests.get_mut(self.whole)?;
        if failed.is_some() {
            request.failed = failed;
            return None;
        }
        request.begun = true;
        self.reached = self.reached.max(number.wrapping_add(1));
        request.sent = request.sent.saturating_add(bytes);
        if !carries || request.sent >= request.message.length {
            self.whole = self.whole.saturating_add(1);
        }
        Some(header)
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
        match header.operation {
            SlotOperation::Data | SlotOperation::Value if index == 0 => {
                self.take(qpn, header, payload, host)
            }
            SlotOperation::Answer if header.flags.contains(SlotFlags::NOT_READY) => {
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

    /// Takes what the oldest message has asked for, or a part of it.
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
        let fits = match request.message.operation {
            Operation::Read { .. } => {
                let more = if length == 0 { payload.is_empty() } else { !payload.is_empty() };
                header.operation == SlotOperation::Data
                    && (header.offset, header.length) == (request.got, length)
                    && more
            }
            Operation::Atomic { .. } => {
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
        request.got = request.got.saturating_add(u32::from(header.bytes));
        if request.got < length {
            return Answered::Complete(0);
        }
        self.pop();
        Answered::Complete(1)
    }
}

/// What a message's slots say, but for their place in it; operands of atomics are put into `payload`.
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
        Operation::Send { immediate } | Operation::Datagram { immediate, .. } => {
            header.operation = SlotOperation::Send;
            with(&mut header, immediate, SlotFlags::IMMEDIATE);
        }
        Operation::SendInvalidate { rkey } => {
            header.operation = SlotOperation::Send;
            with(&mut header, Some(rkey), SlotFlags::INVALIDATE);
        }
        Operation::Write { remote_address, rkey, immediate } => {
            header.operation = SlotOperation::Write;
            (header.address, header.key) = (remote_address, rkey);
            with(&mut header, immediate, SlotFlags::IMMEDIATE);
        }
        Operation::Read { remote_address, rkey } => {
            header.operation = SlotOperation::Read;
            (header.address, header.key) = (remote_address, rkey);
        }
        Operation::Atomic { remote_address, rkey, operation } => {
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

/// The status of a request that the peer refused: what it may say is a responder's.
fn refusal(status: u8) -> Status {
    match Status(status) {
        said @ (Status::RemoteInvalidRequest | Status::RemoteAccess | Status::RemoteOperation) => {
            said
        }
        _ => Status::BadResponse,
    }
}
