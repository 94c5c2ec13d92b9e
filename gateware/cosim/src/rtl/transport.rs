//! Port N of the engine before a card's RoCE stack: commands, messages and room one way, questions and reports the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Poll;

use fpga_regs::engine::admin::AdminStatus;
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::wqe::SendOpcode;
use fpga_regs::{BLOCK_BYTES, Block};
use roce::{
    AccessDenied, Address, Event, Gid, Operation, QpAttributes, Qpn, ReceiveError, ReceiveKind,
    RemoteAccess, SendRequest, Service, TakenReceive,
};
use softcard::logic::{Access, Answer, Payload, Ports, Tag, Unreachable, Wanted};

use crate::bus::Counts;
use crate::memory::block_of;
use crate::port::{
    ATTRIBUTES, Check, Command, Operation as Order, Payload as Bytes, Port, Report, Submitted,
    Transfer, Verdict,
};

/// Questions of a kind at which no more are taken: as many again may come by a burst, and tags have 8 bits.
const MOST: usize = 128;
/// Rounds of the card in which a command that ends a queue pair's sending waits for its turn to send.
const BEGINNING: u8 = 4;

/// Questions of one kind that the engine has, by their tags at the port.
#[derive(Debug, Default)]
struct Questions {
    open: BTreeMap<u8, Tag>,
    next: u8,
}

impl Questions {
    /// A tag for a question; `None` where all are in use.
    fn open(&mut self, tag: Tag) -> Option<u8> {
        let mut all = (0..=u8::MAX).map(|step| self.next.wrapping_add(step));
        let free = all.find(|it| !self.open.contains_key(it))?;
        self.open.insert(free, tag);
        self.next = free.wrapping_add(1);
        Some(free)
    }

    fn close(&mut self, tag: u8) -> Option<Tag> {
        self.open.remove(&tag)
    }
}

/// A queue pair, as both sides count its messages.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Places that the engine was given, and those that it used.
    given: u64,
    used: u64,
    /// Messages of which it was told that they ended.
    ended: u64,
}

/// What is known at port N.
#[derive(Debug, Default)]
pub(super) struct Transport {
    qps: BTreeMap<u32, Known>,
    /// Entries of the GID table.
    gids: BTreeSet<u8>,
    checks: Questions,
    claims: Questions,
    fetches: Questions,
    places: Questions,
    answers: VecDeque<(Tag, Answer)>,
    /// Answers about bytes that were placed, each with the packets that arrive at the host before them.
    landing: VecDeque<(u64, Tag, Answer)>,
    /// Rounds that the next command has waited.
    waited: u8,
}

impl Transport {
    /// Whether a burst of questions has room.
    pub(super) fn is_ready(&self) -> bool {
        let all = [&self.checks, &self.claims, &self.fetches, &self.places];
        all.iter().all(|questions| questions.open.len() < MOST)
    }

    /// Whether something is to be told that is no cycle's work.
    pub(super) fn has_work(&self) -> bool {
        !self.answers.is_empty() || !self.landing.is_empty()
    }

    /// A round of the card begins.
    pub(super) fn begin(&mut self) {
        self.waited = self.waited.saturating_add(1);
    }

    /// Gives the engine the room that the stack has.
    pub(super) fn give_room(&mut self, ports: &Ports<'_>, port: &mut Port) {
        for (number, known) in &mut self.qps {
            let Some(qpn) = Qpn::new(*number) else { continue };
            let open = known.given.saturating_sub(known.used);
            let more = (ports.send_room(qpn) as u64).saturating_sub(open).min(u16::MAX.into());
            if more > 0 {
                known.given = known.given.saturating_add(more);
                port.give_room(*number, more as u16);
            }
        }
    }

    /// Forgets all, for the engine stops. Questions that it has are answered, of which the card knows nothing any more.
    fn stop(&mut self, ports: &mut Ports<'_>, port: &mut Port) {
        let known = std::mem::take(&mut self.qps);
        known.into_keys().filter_map(Qpn::new).for_each(|qpn| ports.destroy_qp(qpn));
        std::mem::take(&mut self.gids).into_iter().for_each(|index| ports.set_gid(index, None));
        // A command under way has no effect any more.
        while let Some(command) = port.commands.pop_front() {
            port.end(command.tag, AdminStatus::NotFound.0, [0; ATTRIBUTES]);
        }
        port.submitted.clear();
        port.end_stop();
    }

    /// Executes the engine's commands, and takes its messages and answers; `true` if there were any.
    pub(super) fn obey(&mut self, now: u64, ports: &mut Ports<'_>, port: &mut Port) -> bool {
        let mut worked = port.stops();
        if worked {
            self.stop(ports, port);
        }
        while let Some(command) = port.commands.front() {
            if self.waited < BEGINNING && ends(command) && stands_in_line(command, ports) {
                break;
            }
            let Some(command) = port.commands.pop_front() else { break };
            self.waited = 0;
            worked = true;
            if command.operation == Order::QueryCounters {
                let counters = ports.counters().iter().map(|(_, value)| value);
                port.end_counters(&command, &counters.collect::<Vec<_>>());
                continue;
            }
            let mut attributes = [0; ATTRIBUTES];
            let status = match self.execute(now, &command, ports, &mut attributes) {
                Ok(()) => AdminStatus::Success,
                Err(status) => status,
            };
            port.end(command.tag, status.0, attributes);
            self.give_room(ports, port);
        }
        if port.commands.is_empty() {
            self.waited = 0;
        }
        while let Some(message) = port.submitted.pop_front() {
            worked = true;
            self.submit(now, &message, ports);
        }
        worked
    }

    fn execute(
        &mut self,
        now: u64,
        command: &Command,
        ports: &mut Ports<'_>,
        attributes: &mut [u8; ATTRIBUTES],
    ) -> Result<(), AdminStatus> {
        let given = Attributes::decode(&blocks_of(&command.attributes));
        let qpn = Qpn::new(command.qpn).ok_or(AdminStatus::NotFound);
        match command.operation {
            Order::Create => {
                let service = Service::from_contract(QpType(command.kind), 0);
                let service = service.ok_or(AdminStatus::Unsupported)?;
                ports.create_qp(qpn?, service, command.page).map_err(AdminStatus::from)?;
                self.qps.insert(command.qpn, Known::default());
            }
            Order::Modify => {
                let change = QpAttributes::from_contract(&given).ok_or(AdminStatus::Invalid)?;
                ports.modify_qp(now, qpn?, &change).map_err(AdminStatus::from)?;
                if change.state == Some(QpState::Reset) {
                    self.qps.insert(command.qpn, Known::default());
                }
            }
            Order::Query => {
                let found = ports.query_qp(qpn?).ok_or(AdminStatus::NotFound)?;
                put_blocks(attributes, &Attributes::from(found).encode());
            }
            Order::Destroy => {
                ports.destroy_qp(qpn?);
                self.qps.remove(&command.qpn);
            }
            Order::SetGid => {
                let gid = Gid::from_bytes(given.dgid);
                let address = Address { gid, vlan: command.number };
                ports.set_gid(given.sgid_index, Some(address));
                self.gids.insert(given.sgid_index);
            }
            Order::ClearGid => {
                ports.set_gid(given.sgid_index, None);
                self.gids.remove(&given.sgid_index);
            }
            Order::QueryPort => put_blocks(attributes, &ports.attributes().encode()),
            Order::SetLink => ports.set_link(command.number != 0),
            Order::QueryCounters | Order::Unknown => return Err(AdminStatus::Unsupported),
        }
        Ok(())
    }

    /// Gives the stack a message. One that it refuses fails the queue pair, which tells the engine; so does one that comes
    /// when it has failed already.
    fn submit(&mut self, now: u64, message: &Submitted, ports: &mut Ports<'_>) {
        let Some(known) = self.qps.get_mut(&message.qpn) else { return };
        known.used = known.used.saturating_add(1);
        let Some(qpn) = Qpn::new(message.qpn) else { return };
        let posted = request(message).map(|request| ports.post_send(now, qpn, None, request));
        if !matches!(posted, Some(Ok(_))) {
            log::debug!("image=rtl: queue pair {:#x}: {message:?}: {posted:?}", message.qpn);
            let mask = AttributeMask::STATE;
            let failed = Attributes { mask, state: QpState::Err, ..Attributes::default() };
            if let Some(change) = QpAttributes::from_contract(&failed) {
                // It has failed before, else.
                let _ = ports.modify_qp(now, qpn, &change);
            }
        }
    }

    pub(super) fn check(&mut self, tag: Tag, access: &Access, port: &mut Port) {
        let Some(own) = self.checks.open(tag) else { return };
        port.check(Check {
            tag: own,
            qpn: access.target.qpn.value(),
            is_read: access.access == RemoteAccess::Read,
            rkey: access.memory.rkey,
            address: access.memory.va,
            length: u32::try_from(access.memory.length).unwrap_or(u32::MAX),
        });
    }

    pub(super) fn claim(&mut self, tag: Tag, qpn: Qpn, port: &mut Port) {
        if let Some(own) = self.claims.open(tag) {
            port.claim(own, qpn.value());
        }
    }

    pub(super) fn fetch(
        &mut self,
        tag: Tag,
        wanted: &Wanted,
        port: &mut Port,
    ) -> Poll<Result<(), Unreachable>> {
        match transfer(wanted).and_then(|it| Some((self.fetches.open(tag)?, it))) {
            Some((own, transfer)) => {
                port.fetch(Transfer { tag: own, ..transfer });
                Poll::Pending
            }
            None => Poll::Ready(Err(Unreachable)),
        }
    }

    pub(super) fn place(
        &mut self,
        tag: Tag,
        wanted: &Wanted,
        bytes: &[u8],
        port: &mut Port,
    ) -> Poll<Result<(), Unreachable>> {
        match transfer(wanted).and_then(|it| Some((self.places.open(tag)?, it))) {
            Some((own, transfer)) => {
                port.place(Transfer { tag: own, ..transfer }, bytes);
                Poll::Pending
            }
            None => Poll::Ready(Err(Unreachable)),
        }
    }

    /// The next answer of the engine's to a question of the card's, with the packets that left for the host, and those that
    /// arrived there.
    ///
    /// A peer may be a card without such a bus, whose program looks at once: it hears of bytes that are there.
    pub(super) fn answer(&mut self, port: &mut Port, counts: Counts) -> Option<(Tag, Answer)> {
        let Self { checks, claims, fetches, places, answers, landing, .. } = self;
        let mut say = |tag: Option<Tag>, answer| answers.extend(tag.map(|tag| (tag, answer)));
        for (tag, verdict) in port.checked.drain(..) {
            let allowed = done(verdict).map_err(|_| AccessDenied::Memory);
            say(checks.close(tag), Answer::Access(allowed));
        }
        for claimed in port.claimed.drain(..) {
            let taken = match claimed.verdict {
                Verdict::Done => Ok(TakenReceive {
                    id: claimed.receive.into(),
                    capacity: claimed.capacity.into(),
                    left: None,
                }),
                Verdict::Empty => Err(ReceiveError::Empty),
                _ => Err(ReceiveError::Invalid),
            };
            say(claims.close(claimed.tag), Answer::Receive(taken));
        }
        while let Some((tag, verdict, bytes)) = port.take_fetched() {
            say(fetches.close(tag), Answer::Fetched(done(verdict).map(|()| bytes)));
        }
        for (tag, verdict) in port.placed.drain(..) {
            let answer = |tag| (counts.packets_left, tag, Answer::Placed(done(verdict)));
            landing.extend(places.close(tag).map(answer));
        }
        let landed =
            landing.iter().take_while(|(left, ..)| *left <= counts.packets_arrived).count();
        answers.extend(landing.drain(..landed).map(|(_, tag, answer)| (tag, answer)));
        answers.pop_front()
    }

    /// Tells the engine of an event of the stack.
    pub(super) fn tell(&mut self, event: Event, port: &mut Port) {
        let Some(known) = self.qps.get_mut(&event.qpn().value()) else { return };
        let qpn = event.qpn().value();
        let report = match event {
            Event::SendsCompleted { through, .. } => {
                let ended = through.saturating_add(1);
                let count = ended.saturating_sub(known.ended);
                known.ended = ended;
                Report::Ended { qpn, count: u32::try_from(count).unwrap_or(u32::MAX) }
            }
            Event::SendFailed { status, .. } => {
                Report::Failed { qpn, status: Status::from(status).0 }
            }
            Event::EnteredError { .. } => Report::Error { qpn },
            Event::ReceiveCompleted { length, kind, imm, solicited, .. } => Report::Commit {
                qpn,
                length,
                is_write: kind == ReceiveKind::Write,
                immediate: imm.map(u32::swap_bytes),
                solicited,
            },
            Event::ReceiveFailed { status, .. } => {
                Report::ReceiveFailed { qpn, status: Status::from(status).0 }
            }
            Event::Async { kind, .. } => Report::Event { qpn, event: kind.0 },
        };
        port.report(report);
    }
}

/// Whether a command ends the sending of a queue pair.
fn ends(command: &Command) -> bool {
    let attributes = Attributes::decode(&blocks_of(&command.attributes));
    match command.operation {
        Order::Destroy => true,
        Order::Modify => matches!(attributes.state, QpState::Reset | QpState::Err),
        _ => false,
    }
}

/// Whether the queue pair of a command has begun no message of those that it has.
fn stands_in_line(command: &Command, ports: &Ports<'_>) -> bool {
    Qpn::new(command.qpn).is_some_and(|qpn| ports.stands_in_line(qpn))
}

/// A verdict on bytes.
fn done(verdict: Verdict) -> Result<(), Unreachable> {
    match verdict {
        Verdict::Done => Ok(()),
        _ => Err(Unreachable),
    }
}

/// The words of port N for payload; `None` where it has none.
fn transfer(wanted: &Wanted) -> Option<Transfer> {
    let payload = match wanted.payload {
        // Numbers at the port have 32 bits.
        Payload::Message { number } => Bytes::Message(number as u32),
        Payload::Receive { id } => Bytes::Receive(id as u32),
        Payload::Remote { rkey, address, access } => {
            Bytes::Remote { rkey, address, is_read: access == RemoteAccess::Read }
        }
        Payload::XrcReceive { .. } | Payload::XrcRemote { .. } => return None,
    };
    Some(Transfer {
        tag: 0,
        qpn: wanted.qpn.value(),
        payload,
        offset: u32::try_from(wanted.offset).ok()?,
        length: u16::try_from(wanted.length).ok()?,
    })
}

/// A message in the words of the stack; `None` where it has none such.
fn request(message: &Submitted) -> Option<SendRequest> {
    let operation = match SendOpcode(message.opcode) {
        SendOpcode::Send => Operation::Send,
        SendOpcode::SendImm => Operation::SendImm,
        SendOpcode::Write => Operation::Write,
        SendOpcode::WriteImm => Operation::WriteImm,
        SendOpcode::Read => Operation::Read,
        _ => return None,
    };
    Some(SendRequest {
        operation,
        length: message.length,
        remote_va: message.remote_address,
        rkey: message.rkey,
        imm: message.immediate.swap_bytes(),
        solicited: message.solicited,
        fence: message.fence,
    })
}

/// The blocks of attributes.
fn blocks_of(bytes: &[u8; ATTRIBUTES]) -> [Block; ATTRIBUTES / BLOCK_BYTES] {
    std::array::from_fn(|block| block_of(&bytes[BLOCK_BYTES * block..]))
}

/// The bytes of blocks.
fn put_blocks(bytes: &mut [u8; ATTRIBUTES], blocks: &[Block]) {
    for (place, word) in bytes.chunks_exact_mut(8).zip(blocks.iter().flatten()) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_used_again_once_its_question_is_answered() {
        let mut questions = Questions::default();
        let all: Vec<u8> = (0..256).filter_map(|_| questions.open(Tag::default())).collect();
        assert_eq!(all, (0..=255).collect::<Vec<u8>>());
        assert_eq!(questions.open(Tag::default()), None);
        assert!(questions.close(7).is_some() && questions.close(7).is_none());
        assert_eq!(questions.open(Tag::default()), Some(7));
    }

    #[test]
    fn commands_that_end_the_sending_of_a_queue_pair_are_told_from_others() {
        let command = |operation, state| {
            let mut attributes = [0; ATTRIBUTES];
            put_blocks(&mut attributes, &Attributes { state, ..Attributes::default() }.encode());
            Command { tag: 0, operation, qpn: 2, page: 1, kind: 2, number: 0, attributes }
        };
        let all = [Order::Create, Order::Query, Order::Modify, Order::Destroy];
        for state in [QpState::Reset, QpState::Rts, QpState::Sqd, QpState::Err] {
            let is_end = matches!(state, QpState::Reset | QpState::Err);
            let seen = all.map(|operation| ends(&command(operation, state)));
            assert_eq!(seen, [false, false, is_end, true], "{state:?}");
        }
    }

    #[test]
    fn attributes_are_the_same_in_blocks_and_in_bytes() {
        let attributes = Attributes { dest_qpn: 0x12_3456, dgid: [9; 16], ..Attributes::default() };
        let mut bytes = [0; ATTRIBUTES];
        put_blocks(&mut bytes, &attributes.encode());
        assert_eq!(bytes[16..19], [0x56, 0x34, 0x12]);
        assert_eq!(Attributes::decode(&blocks_of(&bytes)), attributes);
    }

    #[test]
    fn a_message_that_the_stack_has_no_word_for_is_none() {
        let message = Submitted {
            qpn: 1,
            opcode: SendOpcode::WriteImm.0,
            solicited: true,
            fence: false,
            length: 5,
            immediate: 0x0403_0201,
            remote_address: 3,
            rkey: 4,
        };
        let posted = request(&message).unwrap();
        assert_eq!((posted.operation, posted.imm), (Operation::WriteImm, 0x0102_0304));
        assert_eq!(request(&Submitted { opcode: 200, ..message }), None);
    }
}
