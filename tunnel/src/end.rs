//! One QP's end: its ring and credits, whose turn it is, and how it ends.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::event::QpEvent;
use fpga_regs::engine::qp::Attributes;
use fpga_regs::engine::tunnel::{
    RESERVED_SLOTS, SLOT_BYTES, SLOTS, SlotFlags, SlotHeader, SlotOperation, place_of,
};
use queue_engine::{Message, TransportError, TransportEvent};

use crate::grant::{Next, Sendings};
use crate::host::Host;
use crate::mac::{Direction, Key};
use crate::param::{GAP, LAPSE};
use crate::requester::{Answered, Requester};
use crate::responder::{Responder, Stop};
use crate::slot;
use crate::turnover::{Due, Turnover};

/// The names of both ends, and the key that they share.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// From here to the peer.
    pub direction: Direction,
    /// The key that both have.
    pub key: Key,
}

impl Names {
    /// The card's first sequence numbers: from the peer, and to it.
    #[must_use]
    pub fn first_psns(&self) -> [u32; 2] {
        [self.direction.back(), self.direction].map(Direction::first_psn)
    }
}

/// The times by which an end goes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Nanoseconds that the peer may be silent.
    pub watchdog: u64,
    /// Packets between two turnovers.
    pub between: u32,
    /// Nanoseconds between a turnover's last packet of the peer's and the new context: for so long the peer's card may
    /// repeat it, where acknowledgements get lost, and with the new context it would be refused.
    pub rest: u64,
    /// Bytes from which on the rest of a message goes by a grant; `None` if all goes in slots, without grants.
    pub long: Option<u32>,
}

/// The next work for an end, which its caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// To write the bytes that were made to this place of the peer's ring.
    Slot(usize),
    /// To have the card WRITE so many bytes, that a window of the QP's address space leads to, to an address of the peer's.
    Write {
        /// The window's first address.
        window: u64,
        /// The peer's address.
        remote: u64,
        /// A multiple of 4.
        bytes: u32,
    },
    /// To rewrite the QP's context, so many packets after the first ones each way: first those sent, then those taken.
    Rewrite(u64, u64),
    /// Nothing now.
    Nothing,
}

/// The keys of slots: with the number of the sender's program, and with that of the receiver's.
#[derive(Debug)]
struct Keys {
    to_peer_own: Option<Key>,
    to_peer: Key,
    from_peer_own: Key,
    from_peer: Option<Key>,
}

/// How far an end is.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Live,
    /// The peer is to be told why; then these are told here.
    Parting(Vec<TransportEvent>),
    Ended,
}

/// One QP's end of the tunnel.
#[derive(Debug)]
pub struct End {
    qpn: u32,
    names: Names,
    state: State,
    requester: Requester,
    responder: Responder,
    keys: Keys,
    /// The number of the last slot that was made, and of the last one that was taken.
    sent: u64,
    taken: u64,
    /// Packets that were no slots, each way.
    written: u64,
    landed: u64,
    /// Received slots wait for the end of a grant.
    blocked: bool,
    /// The peer answers requests for grants.
    peer_grants: bool,
    /// Parts whose sum differed at the peer.
    astray: u64,
    /// How many the peer has said to have taken, and how many it was told.
    peer_took: u32,
    told: u32,
    turnover: Turnover,
    /// Both numbers at the last one.
    turned: (u64, u64),
    /// Answers were last, so requests come next.
    answered: bool,
    /// It is in SQD, and that all messages are complete that were begun is to be told.
    draining: bool,
    tells_drained: bool,
    /// When the peer was heard, and when its ring was looked at.
    heard: u64,
    looked: u64,
    pace: Pace,
    events: VecDeque<TransportEvent>,
    payload: Vec<u8>,
}

impl End {
    /// The end of a QP that goes to RTR, with the attributes that its program has named.
    #[must_use]
    pub fn new(now: u64, qpn: u32, names: Names, attributes: &Attributes, pace: Pace) -> Self {
        let Names { direction, key } = names;
        let number = attributes.rq_psn;
        let grants = pace.long.is_some();
        Self {
            qpn,
            names,
            state: State::Live,
            requester: Requester::new(grants),
            responder: Responder::new(grants),
            keys: Keys {
                to_peer_own: None,
                to_peer: key.of_slots(direction, number),
                from_peer_own: key.of_slots(direction.back(), number),
                from_peer: None,
            },
            sent: 0,
            taken: 0,
            written: 0,
            landed: 0,
            blocked: false,
            peer_grants: false,
            astray: 0,
            peer_took: 0,
            told: 0,
            turnover: Turnover::None,
            turned: (0, 0),
            answered: false,
            draining: false,
            tells_drained: false,
            heard: now,
            looked: now,
            pace,
            events: VecDeque::new(),
            payload: Vec::new(),
        }
    }

    /// Lets the QP send: RTS.
    pub fn let_send(&mut self, attributes: &Attributes) {
        let Names { direction, key } = self.names;
        let number = attributes.sq_psn;
        self.keys.to_peer_own = Some(key.of_slots(direction, number));
        self.keys.from_peer = Some(key.of_slots(direction.back(), number));
        self.requester.begin(attributes.rnr_retry, attributes.max_rd_atomic);
    }

    /// Begins no message and says when all are complete that were begun (SQD), or goes on.
    pub fn drain(&mut self, now: u64, drains: bool) {
        if drains != self.draining {
            (self.draining, self.tells_drained, self.heard) = (drains, drains, now);
            self.requester.hold(drains);
        }
    }

    /// Whether messages that were begun are not complete, in SQD.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining && !self.requester.is_settled()
    }

    /// Takes note of the rights that its program grants to the peer, and of the RNR timer.
    pub fn set(&mut self, attributes: &Attributes) {
        self.responder.set(attributes);
    }

    /// Ends without a word: the program has asked for it.
    pub fn end(&mut self) {
        self.state = State::Ended;
        self.events.clear();
    }

    /// The same for the engine, which is told when nothing is on its way through windows of the QP: at once where it has none.
    pub fn stop(&mut self) {
        self.end();
        if self.pace.long.is_some() {
            self.events.push_back(TransportEvent::Error { qpn: self.qpn });
        }
    }

    /// The program was told of the message that was the oldest to come by [`Self::take_event`] and of which it was not: now the
    /// peer may hear that it has arrived.
    pub fn told(&mut self) {
        self.responder.told();
    }

    /// Ends the QP, of which a completion was lost: executed requests without an answer are refused, from the message
    /// on of which the program was not [told](Self::told), if there is one; `false` where it has ended already.
    pub fn refuse(&mut self, now: u64) -> bool {
        let fatal = TransportEvent::Async { qpn: self.qpn, event: QpEvent::Fatal };
        match &mut self.state {
            State::Ended => return false,
            State::Live => {
                let stop = self.responder.disown();
                self.part(now, stop);
            }
            State::Parting(events) => {
                if self.responder.has_untold() {
                    self.responder.disown();
                }
                if !events.contains(&fatal) {
                    events.insert(0, fatal);
                }
            }
        }
        true
    }

    /// The number of parts that did not arrive at the peer as they were sent, since the last call.
    pub fn take_astray(&mut self) -> u64 {
        std::mem::take(&mut self.astray)
    }

    /// Whether it has events that were not taken yet.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether it has anything to hear or to say.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state != State::Ended
    }

    /// Whether its program can use it.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// The peer's QPN.
    #[must_use]
    pub fn peer(&self) -> u32 {
        self.names.direction.to.1
    }

    /// Whether the next answer is one without a READ's data.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.responder.owes()
    }

    /// Whether the peer waits for answers that are not in slots yet.
    #[must_use]
    pub fn has_replies(&self) -> bool {
        self.responder.has_replies()
    }

    /// Messages that it takes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.requester.room()
    }

    /// Takes a message.
    ///
    /// # Errors
    /// [`TransportError`]; nothing was taken.
    pub fn submit(&mut self, now: u64, message: &Message) -> Result<u64, TransportError> {
        if self.state != State::Live || self.keys.to_peer_own.is_none() {
            return Err(TransportError::WrongState);
        }
        if self.requester.is_empty() {
            self.heard = now;
        }
        self.requester.submit(message)
    }

    /// Takes an event of a message. The caller confirms by [`Self::told`] that the program knows of a received one.
    pub fn take_event(&mut self) -> Option<TransportEvent> {
        self.events.pop_front()
    }

    /// The number of the slot that comes next, and its place in the ring.
    #[must_use]
    pub fn expected(&self) -> Option<(u64, usize)> {
        let next = self.taken.wrapping_add(1);
        let hears = match self.state {
            // Slots behind a grant's use wait until that has ended.
            State::Live => !self.blocked,
            // A READ before the refused request is answered.
            State::Parting(_) => !self.responder.sendings().is_empty(),
            State::Ended => false,
        };
        hears.then(|| (next, place_of(next)))
    }

    /// Takes the slot that comes next, if a copy of its place has it; `true` if so.
    pub fn receive(&mut self, now: u64, copy: &[u8], host: &mut impl Host) -> bool {
        let Some((next, _)) = self.expected() else { return false };
        let Keys { from_peer_own, from_peer, .. } = self.keys;
        let key_of = |flags: SlotFlags| match flags.contains(SlotFlags::OWN_NUMBER) {
            true => Some(from_peer_own),
            false => from_peer,
        };
        let Some((header, payload)) = slot::read(copy, next, key_of) else { return false };
        if self.has_to_wait(&header) {
            self.blocked = true;
            return false;
        }
        self.taken = next;
        self.heard = now;
        if next == 1 && self.keys.to_peer_own.is_none() {
            let (qpn, event) = (self.qpn, QpEvent::CommunicationEstablished);
            self.events.push_back(TransportEvent::Async { qpn, event });
        }
        let sent = self.sent as u32;
        // One for which the peer had no credit would have this end keep answers without end.
        let is_beyond = (next as u32).wrapping_sub(self.told) > SLOTS;
        if is_beyond || sent.wrapping_sub(header.consumed) > sent.wrapping_sub(self.peer_took) {
            self.fail(Status::BadResponse);
            return true;
        }
        self.peer_took = header.consumed;
        self.peer_grants |= header.flags.contains(SlotFlags::GRANTS);
        let of_read = match header.operation {
            SlotOperation::GrantData => self.responder.granted(self.qpn, &header, host),
            SlotOperation::DataLanded => self.responder.landed(self.qpn, &header, host),
            _ => true,
        };
        if !of_read {
            self.fail(Status::BadResponse);
        }
        let said = matches!(header.operation, SlotOperation::Landed | SlotOperation::DataLanded);
        if said && header.length == 0 {
            self.astray = self.astray.wrapping_add(1);
        }
        if self.state != State::Live {
            return true;
        }
        match header.operation {
            SlotOperation::GrantData | SlotOperation::DataLanded | SlotOperation::Credit => {}
            SlotOperation::Answer
            | SlotOperation::Data
            | SlotOperation::Value
            | SlotOperation::Grant
            | SlotOperation::Landed
            | SlotOperation::DataWritten => {
                let answered = self.requester.answer(now, self.qpn, &header, payload, host);
                self.tell(answered);
            }
            SlotOperation::Pause
            | SlotOperation::Paused
            | SlotOperation::Rewritten
            | SlotOperation::Resume => {
                let leads = self.leads();
                if !self.turnover.hear(header.operation, leads) {
                    self.fail(Status::BadResponse);
                } else if self.turnover == Turnover::None {
                    self.turned = self.packets();
                }
            }
            _ => match self.responder.request(self.qpn, &header, payload, host) {
                Ok(None) => {}
                Ok(Some(received)) => self.events.push_back(TransportEvent::Received(received)),
                Err(stop) => self.part(now, stop),
            },
        }
        let used = match header.operation {
            SlotOperation::Written => self.responder.take_used(),
            SlotOperation::DataWritten => self.requester.take_used(),
            _ => 0,
        };
        self.landed = self.landed.wrapping_add(packets_of(used));
        true
    }

    /// Whether a received slot waits for the end of used grants, behind which it comes.
    fn has_to_wait(&self, header: &SlotHeader) -> bool {
        match header.operation {
            SlotOperation::Answer | SlotOperation::Data | SlotOperation::Value => {
                self.requester.holds_up(header)
            }
            SlotOperation::Pause
            | SlotOperation::Paused
            | SlotOperation::Rewritten
            | SlotOperation::Resume => self.is_closing(),
            SlotOperation::Grant
            | SlotOperation::GrantData
            | SlotOperation::Landed
            | SlotOperation::DataLanded
            | SlotOperation::DataWritten
            | SlotOperation::Credit => false,
            _ => self.responder.holds_up(header),
        }
    }

    /// Packets each way so far.
    fn packets(&self) -> (u64, u64) {
        (self.sent.wrapping_add(self.written), self.taken.wrapping_add(self.landed))
    }

    /// Goes on with messages that waited for a grant to end; `true` if there was anything.
    pub fn settle(&mut self, now: u64, host: &mut impl Host) -> bool {
        let after = self.pace.watchdog.saturating_mul(LAPSE);
        let mut did = self.requester.settle(now, after, self.qpn, host);
        did |= self.responder.settle(now, after, self.qpn, host);
        if did {
            self.blocked = false;
            // The peer's slots meanwhile were not heard.
            self.heard = now;
        }
        did
    }

    /// Whether a grant was used that has not ended.
    fn is_closing(&self) -> bool {
        self.requester.is_closing() || self.responder.is_closing()
    }

    /// The parts that go to the peer by grants, of requests and of answers.
    fn sendings(&self) -> [&Sendings; 2] {
        [self.requester.sendings(), self.responder.sendings()]
    }

    /// Whether its card was told to WRITE a granted part, and the peer not yet that it has.
    fn is_writing(&self) -> bool {
        self.sendings().into_iter().any(Sendings::is_posted)
    }

    /// Reports the outcome of an answer.
    fn tell(&mut self, answered: Answered) {
        let qpn = self.qpn;
        let (Answered::Complete(count) | Answered::Failed(count, _)) = answered;
        if count > 0 {
            self.events.push_back(TransportEvent::Completed { qpn, count });
        }
        if let Answered::Failed(_, status) = answered {
            self.fail(status);
        }
    }

    /// Ends the QP: the oldest message with a status, if there is one.
    pub fn fail(&mut self, status: Status) {
        if self.state == State::Ended {
            return;
        }
        let qpn = self.qpn;
        if status == Status::BadResponse {
            let slot = self.taken;
            log::warn!(
                "QP {qpn}: slot {slot} of its peer's does not follow from what was said before it"
            );
        }
        // Requests behind a refused one were not executed.
        let refused = !matches!(status, Status::RetryExceeded | Status::BadResponse);
        let unknown = if refused { 0 } else { self.requester.unknown() };
        if unknown > 0 {
            log::warn!(
                "QP {qpn}: {unknown} atomics were not answered, and may have been executed or not"
            );
        }
        let parting = std::mem::replace(&mut self.state, State::Ended);
        if let State::Parting(events) = parting {
            self.events.extend(events);
            return;
        }
        self.events.push_back(match self.requester.is_empty() {
            true => TransportEvent::Error { qpn },
            false => TransportEvent::Failed { qpn, status },
        });
    }

    /// Ends the QP for a bad request of its peer, as soon as the refusal has been sent.
    fn part(&mut self, now: u64, stop: Stop) {
        let qpn = self.qpn;
        let mut events = Vec::new();
        if let Some(event) = stop.event {
            events.push(TransportEvent::Async { qpn, event });
        }
        events.push(match stop.receive {
            Some(status) => TransportEvent::ReceiveFailed { qpn, status },
            None => TransportEvent::Error { qpn },
        });
        self.heard = now;
        self.state = State::Parting(events);
    }

    /// Which of the two asks for a turnover.
    fn leads(&self) -> bool {
        let Direction { from, to } = self.names.direction;
        from < to
    }

    /// Handles the passing of time. Time in which this end did not look does not count as the peer's silence: this
    /// process may have been stopped, and the peer with it.
    pub fn advance(&mut self, now: u64, quiet: bool) {
        let missed = now.saturating_sub(self.looked).saturating_sub(GAP);
        self.looked = now;
        self.heard = self.heard.saturating_add(missed).min(now);
        if !quiet && self.sendings().into_iter().any(Sendings::is_out) {
            // It is not the peer's turn, and an end without a peer gets no acknowledgements.
            self.heard = now;
        }
        if self.state == State::Live {
            if let Some(status) = self.requester.failed() {
                self.fail(status);
            } else if self.tells_drained && self.requester.is_settled() {
                self.tells_drained = false;
                let (qpn, event) = (self.qpn, QpEvent::SqDrained);
                self.events.push_back(TransportEvent::Async { qpn, event });
            }
        }
        let since = self.heard.max(self.requester.not_before());
        let rests = if self.turnover == Turnover::None { 0 } else { self.pace.rest };
        let silent = now.saturating_sub(since) >= self.pace.watchdog.saturating_add(rests);
        let waits = !self.requester.is_settled() || self.turnover != Turnover::None;
        match &self.state {
            State::Parting(_) if silent || quiet && !self.responder.has_replies() => {
                self.fail(Status::Flushed);
            }
            State::Live if silent && waits => {
                log::warn!(
                    "QP {}: its peer's end of the tunnel has answered nothing for {} ms",
                    self.qpn,
                    self.pace.watchdog.wrapping_div(1_000_000)
                );
                self.fail(Status::RetryExceeded);
            }
            _ => {}
        }
        let ((sent, taken), before) = (self.packets(), self.turned);
        let between = u64::from(self.pace.between);
        let due = |now: u64, before: u64| now.saturating_sub(before) >= between;
        let is_due = due(sent, before.0) || due(taken, before.1);
        let may = self.state == State::Live && self.turnover == Turnover::None && self.leads();
        // Both count the packets of a grant by the time that it has been used.
        if may && is_due && !self.is_writing() {
            self.turnover = Turnover::Pause;
        }
    }

    /// Slots that may be made.
    fn credits(&self) -> u32 {
        SLOTS.saturating_sub((self.sent as u32).wrapping_sub(self.peer_took))
    }

    /// The next work; the bytes of a slot go into `slot`.
    pub fn next(
        &mut self,
        now: u64,
        quiet: bool,
        host: &mut impl Host,
        slot: &mut Vec<u8>,
    ) -> Work {
        if self.state == State::Ended {
            return Work::Nothing;
        }
        let turns = self.turnover != Turnover::None;
        if turns && self.is_writing() {
            return self.finish(host, slot);
        }
        let rested = now.saturating_sub(self.heard) >= self.pace.rest;
        match self.turnover.due(quiet, rested) {
            Some(Due::Rewrite) => {
                self.turnover.done();
                // The rest was this end's; the peer's turn comes now, which may be as long.
                self.heard = now;
                let (sent, taken) = self.packets();
                return Work::Rewrite(sent, taken);
            }
            Some(Due::Slot(operation)) if self.credits() > 0 => {
                self.turnover.done();
                if self.turnover == Turnover::None {
                    let (sent, taken) = self.packets();
                    self.turned = (sent.wrapping_add(1), taken);
                }
                return self.control(operation, slot);
            }
            _ if turns => return Work::Nothing,
            _ => {}
        }
        if self.credits() > RESERVED_SLOTS {
            let mut payload = std::mem::take(&mut self.payload);
            let step = match self.message_step(now, host, &mut payload) {
                Some(Next::Slot(header)) => self.emit(&header, &payload, slot),
                Some(Next::Write(it)) => {
                    self.written = self.written.wrapping_add(packets_of(it.bytes));
                    Work::Write { window: it.window, remote: it.remote, bytes: it.bytes }
                }
                None => Work::Nothing,
            };
            self.payload = payload;
            if step != Work::Nothing {
                return step;
            }
        }
        let untold = (self.taken as u32).wrapping_sub(self.told);
        if untold >= SLOTS / 2 && self.credits() > 0 {
            return self.control(SlotOperation::Credit, slot);
        }
        Work::Nothing
    }

    /// Reports that the granted part has been written, before a turnover goes on: both count its packets by that.
    fn finish(&mut self, host: &mut impl Host, slot: &mut Vec<u8>) -> Work {
        // The peer takes nothing else, so no further slots can be sent to it.
        if self.credits() == 0 {
            return Work::Nothing;
        }
        let mut next = None;
        if self.requester.sendings().is_posted() {
            next = self.requester.next_of_grant(self.qpn, host);
            if let Some(Next::Slot(header)) = &mut next {
                header.flags |= SlotFlags::OWN_NUMBER;
            }
        }
        if next.is_none() && self.responder.sendings().is_posted() {
            next = self.responder.next_of_grant(self.qpn, host);
        }
        match next {
            Some(Next::Slot(header)) => self.emit(&header, &[], slot),
            _ => Work::Nothing,
        }
    }

    /// The next slot of answers or requests, by turns.
    fn message_step(
        &mut self,
        now: u64,
        host: &mut impl Host,
        payload: &mut Vec<u8>,
    ) -> Option<Next> {
        let asks_first = self.answered && self.state == State::Live;
        for asks in [asks_first, !asks_first] {
            let live = self.state == State::Live;
            let long = self.pace.long.filter(|_| self.peer_grants && live);
            if asks {
                if !live {
                    continue;
                }
                let mut next = self.requester.next(now, self.qpn, long, host, payload);
                if let Some(Next::Slot(header)) = &mut next {
                    header.flags |= SlotFlags::OWN_NUMBER;
                }
                if next.is_some() {
                    self.answered = false;
                    return next;
                }
                continue;
            }
            let mut answer = self.responder.next(self.qpn, long, host, payload);
            if let Err(stop) = answer {
                if live {
                    self.part(now, stop);
                }
                answer = self.responder.next(self.qpn, None, host, payload);
            }
            if let Ok(Some(next)) = answer {
                self.answered = true;
                return Some(next);
            }
        }
        None
    }

    /// A slot without payload.
    fn control(&mut self, operation: SlotOperation, slot: &mut Vec<u8>) -> Work {
        let knows = self.keys.to_peer_own.is_some();
        let flags = if knows { SlotFlags::OWN_NUMBER } else { SlotFlags::empty() };
        self.emit(&SlotHeader { operation, flags, ..SlotHeader::default() }, &[], slot)
    }

    fn emit(&mut self, header: &SlotHeader, payload: &[u8], slot: &mut Vec<u8>) -> Work {
        self.sent = self.sent.wrapping_add(1);
        self.told = self.taken as u32;
        let mut header = SlotHeader { number: self.sent, consumed: self.told, ..*header };
        if self.pace.long.is_some() {
            header.flags |= SlotFlags::GRANTS;
        }
        let Keys { to_peer_own, to_peer, .. } = self.keys;
        let own = to_peer_own.filter(|_| header.flags.contains(SlotFlags::OWN_NUMBER));
        slot::write(&header, payload, &own.unwrap_or(to_peer), slot);
        Work::Slot(place_of(self.sent))
    }
}

/// Packets by which a card WRITEs so many bytes.
fn packets_of(bytes: u32) -> u64 {
    u64::from(bytes).div_ceil(SLOT_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Traffic;

    const DIRECTION: Direction = Direction { from: (1, 5), to: (2, 6) };
    const KEY: Key = Key::new([9; 16]);

    fn end() -> End {
        let names = Names { direction: DIRECTION, key: KEY };
        let pace = Pace { watchdog: 1_000_000, between: 1 << 22, rest: 0, long: None };
        End::new(0, 5, names, &Attributes::default(), pace)
    }

    /// A message's slot of the peer's.
    fn slot_of(number: u64, consumed: u32) -> Vec<u8> {
        let header = SlotHeader {
            operation: SlotOperation::Send,
            flags: SlotFlags::OWN_NUMBER,
            message: (number as u32).wrapping_sub(1),
            number,
            consumed,
            ..SlotHeader::default()
        };
        let mut slot = Vec::new();
        slot::write(&header, &[], &KEY.of_slots(DIRECTION.back(), 0), &mut slot);
        slot
    }

    /// An end's events about a peer's first slots, all of which are good, when it has acknowledged `told` of them.
    fn said(slots: u64, told: u64) -> Vec<TransportEvent> {
        let (mut end, mut host, mut slot) = (end(), Traffic::default(), Vec::new());
        for number in 1..=slots {
            assert!(end.receive(0, &slot_of(number, 0), &mut host), "slot {number}");
            if number == told {
                // As the program was before.
                (0..told).for_each(|_| end.told());
                assert!(matches!(end.next(0, true, &mut host, &mut slot), Work::Slot(_)));
            }
        }
        std::iter::from_fn(|| end.take_event()).collect()
    }

    #[test]
    fn a_peer_that_has_taken_what_was_not_sent_ends_the_queue_pair() {
        let (mut end, mut host) = (end(), Traffic::default());
        assert!(end.receive(0, &slot_of(1, 1), &mut host));
        let last = std::iter::from_fn(|| end.take_event()).last();
        assert_eq!(last, Some(TransportEvent::Error { qpn: 5 }));
    }

    #[test]
    fn a_peer_that_sends_without_credit_ends_the_queue_pair() {
        let is_end = |event: &TransportEvent| *event == TransportEvent::Error { qpn: 5 };
        let ring = u64::from(SLOTS);
        assert!(!said(ring, 0).iter().any(is_end));
        assert_eq!(said(ring + 1, 0).last(), Some(&TransportEvent::Error { qpn: 5 }));
        assert!(!said(ring + 7, 7).iter().any(is_end));
        assert_eq!(said(ring + 8, 7).last(), Some(&TransportEvent::Error { qpn: 5 }));
    }
}
