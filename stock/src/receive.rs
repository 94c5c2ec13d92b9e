//! Reception, in two stages: the first looks at sequence numbers, the second carries a packet's request out.

use std::collections::VecDeque;

use crate::host::Space;
use crate::opcode;
use crate::param::{ASTRAY, BEHIND, INPUT, LANDING, PMTU, READ_ANSWERS, READ_JOBS};
use crate::retransmit::{Init, Retransmitter};
use crate::tables::{State, Tables, advance};
use crate::tally::{CardTally, Parked};
use crate::timer::Timers;
use crate::transmit::{Ack, Answer, Sender};
use crate::wire::{Extension, Packet};

/// Payload on its way to host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    pub(crate) space: Space,
    pub(crate) vaddr: u64,
    pub(crate) bytes: Vec<u8>,
    /// Its end is counted.
    pub(crate) last: bool,
    /// It ends a READ piece.
    pub(crate) ends_read: bool,
}

/// Payload that is to land, once its bytes come.
#[derive(Clone, Copy, Debug)]
struct Due {
    space: Space,
    vaddr: u64,
    /// Bytes of header in front of it, by its packet's opcode.
    skips: usize,
    length: usize,
    last: bool,
    ends_read: bool,
}

/// A request is answered, as the windows and the counters hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) qpn: u32,
    pub(crate) opcode: u8,
    pub(crate) local: u64,
    pub(crate) last: bool,
}

/// A READ request of a peer's that is being answered.
#[derive(Clone, Copy, Debug)]
struct Job {
    qpn: u32,
    psn: u32,
    vaddr: u64,
    length: u32,
    begun: bool,
}

/// Reception.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    input: VecDeque<Packet>,
    between: VecDeque<Packet>,
    /// The request data of the last response, of any QP.
    init: Init,
    parked: Option<Parked>,
    jobs: VecDeque<Job>,
    /// The bytes behind the headers, which go apart from these: received ones, for each packet whether it is dropped,
    /// the kept ones, and their destinations.
    came: VecDeque<Vec<u8>>,
    drops: VecDeque<bool>,
    kept: VecDeque<Vec<u8>>,
    due: VecDeque<Due>,
    pub(crate) landings: VecDeque<Landing>,
    /// Reception has stood in front of frames.
    pub(crate) stood: bool,
}

/// The parts of the card that the stages use.
pub(crate) struct Receiving<'a> {
    pub(crate) now: u64,
    pub(crate) tables: &'a mut Tables,
    pub(crate) timers: &'a mut Timers,
    pub(crate) retransmitter: &'a mut Retransmitter,
    pub(crate) sender: &'a mut Sender,
    pub(crate) tally: &'a mut CardTally,
}

impl Receiver {
    /// Packets that [`Self::push`] takes now.
    pub(crate) fn room(&self) -> usize {
        INPUT.saturating_sub(self.input.len())
    }

    /// Takes a packet; it is lost where reception stands.
    pub(crate) fn push(&mut self, packet: Packet, tally: &mut CardTally) {
        if self.input.len() < INPUT {
            self.input.push_back(packet);
        } else {
            self.stood = true;
            tally.lost_frames = tally.lost_frames.wrapping_add(1);
        }
    }

    /// Why the second stage stands.
    pub(crate) fn parked(&self, retransmitter: &Retransmitter) -> Option<Parked> {
        let wants = self.between.front().is_some_and(wants_element);
        self.parked.or((wants && retransmitter.inits.is_empty()).then_some(Parked::WantsElement))
    }

    /// Looks at the sequence number of the next packet; `true` if there was one, and it could go on.
    pub(crate) fn first_stage(&mut self, with: &mut Receiving<'_>) -> bool {
        let Some(packet) = self.input.front() else { return false };
        let is_response = opcode::is_response(packet.opcode);
        let State { expected, first_expected, unanswered, first, .. } =
            with.tables.of(packet.qpn).state;
        let (expected, oldest) =
            if is_response { (unanswered, first) } else { (expected, first_expected) };
        let accepted = packet.psn == expected || packet.opcode == opcode::ACK;
        let is_old = State::is_old(packet.psn, oldest, expected);
        // STOCK-15
        let is_forwarded = accepted || is_old && packet.opcode == opcode::READ_REQUEST;
        if is_forwarded && self.between.len() > BEHIND {
            self.stood = true;
            return false;
        }
        let Some(mut packet) = self.input.pop_front() else { return false };
        with.tally.received = with.tally.received.wrapping_add(1);
        // STOCK-39
        let is_bare = opcode::is_bare(packet.opcode);
        if !is_bare || !is_forwarded && self.drops.len() < ASTRAY {
            self.drops.push_back(!is_forwarded);
        }
        let rest = std::mem::take(&mut packet.rest);
        if !is_bare {
            self.came.push_back(rest);
        }
        if accepted {
            accept(&packet, is_response, with);
        } else if is_old {
            if opcode::is_write(packet.opcode) {
                let ack = Ack { qpn: packet.qpn, psn: packet.psn, refuses: false };
                with.sender.acks.push_back(ack);
                with.tally.psn_drops = with.tally.psn_drops.wrapping_add(1);
            }
        } else {
            refuse(&packet, is_response, with);
        }
        if is_forwarded {
            self.between.push_back(packet);
        }
        self.sort();
        true
    }

    /// Drops payload that is to be dropped, and joins the rest with its destinations, each in its order.
    fn sort(&mut self) {
        while let (Some(drops), Some(_)) = (self.drops.front().copied(), self.came.front()) {
            self.drops.pop_front();
            self.kept.extend(self.came.pop_front().filter(|_| !drops));
        }
        while let (Some(due), Some(_)) = (self.due.front().copied(), self.kept.front()) {
            self.due.pop_front();
            let Due { space, vaddr, skips, length, last, ends_read } = due;
            let bytes = self.kept.pop_front().unwrap_or_default();
            let bytes = bytes.into_iter().skip(skips).take(length).collect();
            self.landings.push_back(Landing { space, vaddr, bytes, last, ends_read });
        }
    }

    /// Executes the next packet; `None` if there is none, or it has to wait.
    pub(crate) fn second_stage(&mut self, with: &mut Receiving<'_>) -> Option<Option<Completion>> {
        let packet = self.between.front()?;
        let landing: usize = self.landings.iter().map(|landing| landing.bytes.len()).sum();
        let waits = landing > LANDING || self.due.len() >= ASTRAY;
        if self.parked.is_some() || waits || self.jobs.len() >= READ_JOBS {
            return None;
        }
        // STOCK-10
        if wants_element(packet) {
            self.init = with.retransmitter.inits.pop_front()?;
        }
        self.parked = parks(packet, self.init);
        if self.parked.is_some() {
            return None;
        }
        let packet = self.between.pop_front()?;
        Some(match packet.opcode {
            opcode::ACK => Some(self.acknowledged(&packet, with)),
            opcode::READ_REQUEST => {
                self.read_requested(&packet, with);
                None
            }
            code if opcode::is_read_response(code) => self.read_answered(&packet, with),
            _ => {
                self.received(&packet, with);
                None
            }
        })
    }

    /// Plans packets of READ responses; `true` if there were any to plan.
    pub(crate) fn plan_answers(&mut self, sender: &mut Sender) -> bool {
        let mut planned = false;
        while sender.answers.len() < READ_ANSWERS {
            let Some(job) = self.jobs.front_mut() else { break };
            let length = job.length.min(PMTU);
            let ends = job.length == length;
            let opcode = match (job.begun, ends) {
                (false, true) => opcode::RESPONSE_ONLY,
                (false, false) => opcode::RESPONSE_FIRST,
                (true, false) => opcode::RESPONSE_MIDDLE,
                (true, true) => opcode::RESPONSE_LAST,
            };
            let Job { qpn, psn, vaddr, .. } = *job;
            sender.answers.push_back(Answer { qpn, psn, opcode, vaddr, length });
            (job.psn, job.begun) = (advance(psn, 1), true);
            job.vaddr = vaddr.wrapping_add(length.into());
            job.length = job.length.wrapping_sub(length);
            if ends {
                self.jobs.pop_front();
            }
            planned = true;
        }
        planned
    }

    /// An ACK, or a NAK that has got another QP's element: both complete that element, and a NAK makes its QP's
    /// requests repeat.
    // STOCK-13
    fn acknowledged(&mut self, packet: &Packet, with: &mut Receiving<'_>) -> Completion {
        repeat_if_nak(packet, with);
        let Init { local, last } = self.init;
        Completion { qpn: packet.qpn, opcode: packet.opcode, local, last }
    }

    fn read_requested(&mut self, packet: &Packet, with: &mut Receiving<'_>) {
        let Extension::Reth { vaddr, length, .. } = packet.extension else { return };
        if length == 0 {
            return;
        }
        let Packet { qpn, psn, .. } = *packet;
        self.jobs.push_back(Job { qpn, psn, vaddr, length, begun: false });
        // The cursor goes with it.
        let message = &mut with.tables.of(qpn).message;
        (message.msn, message.vaddr, message.last) = (advance(message.msn, 1), 0, false);
    }

    /// The data of an own READ: the first packet sets the cursor that the QP's incoming WRITEs use, too.
    // STOCK-21
    fn read_answered(&mut self, packet: &Packet, with: &mut Receiving<'_>) -> Option<Completion> {
        let Packet { qpn, opcode, length, .. } = *packet;
        let ends = matches!(opcode, opcode::RESPONSE_LAST | opcode::RESPONSE_ONLY);
        let Init { local, last } = self.init;
        let completion = ends.then_some(Completion { qpn, opcode, local, last });
        repeat_if_nak(packet, with);
        let message = &mut with.tables.of(qpn).message;
        let vaddr = match opcode {
            opcode::RESPONSE_FIRST | opcode::RESPONSE_ONLY => {
                message.last = last;
                local
            }
            _ => message.vaddr,
        };
        let last = ends && message.last;
        if opcode != opcode::RESPONSE_LAST {
            message.vaddr = vaddr.wrapping_add(length as u64);
        }
        self.land(packet, vaddr, last, ends);
        completion
    }

    /// A WRITE's packet, or a SEND's, which goes to address 0: it is acknowledged before it has landed.
    // STOCK-21 STOCK-30 STOCK-31
    fn received(&mut self, packet: &Packet, with: &mut Receiving<'_>) {
        let Packet { qpn, psn, opcode, extension, length, .. } = *packet;
        let message = &mut with.tables.of(qpn).message;
        // STOCK-12
        message.msn = advance(message.msn, 1);
        let vaddr = match extension {
            Extension::Reth { vaddr, .. } => vaddr,
            _ if opcode::is_write(opcode) => message.vaddr,
            _ => 0,
        };
        if opcode::is_write(opcode) {
            (message.vaddr, message.last) = (vaddr.wrapping_add(length as u64), true);
        } else {
            (message.vaddr, message.last) = (0, false);
        }
        let last = matches!(
            opcode,
            opcode::WRITE_LAST | opcode::WRITE_ONLY | opcode::SEND_LAST | opcode::SEND_ONLY
        );
        with.sender.acks.push_back(Ack { qpn, psn, refuses: false });
        self.land(packet, vaddr, last, false);
    }

    fn land(&mut self, packet: &Packet, vaddr: u64, last: bool, ends_read: bool) {
        let (space, vaddr) = (Space::of_qp(packet.qpn), vaddr & crate::post::VADDR);
        let (skips, length) = (opcode::extension(packet.opcode), packet.length);
        self.due.push_back(Due { space, vaddr, skips, length, last, ends_read });
        self.sort();
    }
}

/// Whether a packet has to learn of the request that it answers before it goes on, NAKs too.
fn wants_element(packet: &Packet) -> bool {
    matches!(packet.opcode, opcode::ACK | opcode::RESPONSE_FIRST | opcode::RESPONSE_ONLY)
}

/// Whether the second stage stands for ever before a packet.
// STOCK-32 STOCK-33
fn parks(packet: &Packet, init: Init) -> Option<Parked> {
    let stream = |vaddr: u64| (vaddr >> 48 & 0xf != 0).then_some(Parked::Stream);
    match (packet.opcode, packet.extension) {
        (opcode::WRITE_FIRST | opcode::WRITE_ONLY, Extension::Reth { vaddr, length, .. }) => {
            match length {
                0 => Some(Parked::EmptyWrite),
                _ => stream(vaddr),
            }
        }
        (opcode::RESPONSE_FIRST | opcode::RESPONSE_ONLY, _) => stream(init.local),
        (opcode::READ_REQUEST | opcode::ACK, _) => None,
        (code, _) if opcode::is_sent_with_payload(code) || opcode::is_read_response(code) => None,
        (code, _) => Some(Parked::Opcode(code)),
    }
}

/// Takes note of a packet that is expected, or of any ACK.
fn accept(packet: &Packet, is_response: bool, with: &mut Receiving<'_>) {
    let Packet { qpn, psn, opcode, extension, .. } = *packet;
    let state = &mut with.tables.of(qpn).state;
    let newest = state.newest();
    let packets = match extension {
        Extension::Reth { length, .. } if opcode == opcode::READ_REQUEST => length.div_ceil(PMTU),
        _ => 1,
    };
    let is_nak = packet.is_nak();
    if !is_nak && (opcode != opcode::ACK || state.is_out(psn)) {
        let next = advance(psn, packets);
        match is_response {
            true => state.unanswered = next,
            false => (state.expected, state.may_refuse) = (next, true),
        }
    }
    if is_response && !is_nak {
        with.retransmitter.answered(qpn, opcode);
    }
    if is_response && opcode != opcode::RESPONSE_MIDDLE {
        with.timers.answered(with.now, qpn, psn == newest);
    }
}

/// Drops a packet that comes too early, and says so once; never for responses.
// STOCK-14
fn refuse(packet: &Packet, is_response: bool, with: &mut Receiving<'_>) {
    with.tally.psn_drops = with.tally.psn_drops.wrapping_add(1);
    let state = &mut with.tables.of(packet.qpn).state;
    if !is_response && std::mem::take(&mut state.may_refuse) {
        let psn = state.expected;
        with.sender.acks.push_back(Ack { qpn: packet.qpn, psn, refuses: true });
    }
}

fn repeat_if_nak(packet: &Packet, with: &mut Receiving<'_>) {
    if packet.is_nak() {
        let elements = with.retransmitter.from(packet.qpn, packet.psn);
        with.sender.repeats.extend(elements.into_iter().map(|element| (packet.qpn, element)));
    }
}
