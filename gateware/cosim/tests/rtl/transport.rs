//! A test's transport behind port N, whose rules it need not know: what the port forbids is not told there.

use std::collections::{BTreeMap, BTreeSet};

use cosim::memory::block_of;
use cosim::port::{ATTRIBUTES, Command, Operation, Report, Submitted};
use fpga_regs::BLOCK_BYTES;
use fpga_regs::engine::admin::{AdminStatus, CreateQp};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use queue_engine::{LocalGid, ReceiveKind, ReceivedMessage, Transport, TransportEvent};

use super::card::Card;

/// Places for messages that a queue pair has at most.
const MOST_PLACES: u64 = 64;

/// A queue pair, as both sides count.
#[derive(Debug, Default)]
struct Known {
    /// Places that the engine was given.
    given: u64,
    /// Its messages since RESET, and how many of them ended.
    messages: Vec<Submitted>,
    ended: u64,
    /// Receives that were claimed, and those of them that were told of.
    claimed: u64,
    told: u64,
    /// A claim was refused to the peer behind so many receives.
    refused: Option<u64>,
}

/// The adaptor.
#[derive(Debug, Default)]
pub struct Adaptor {
    qps: BTreeMap<u32, Known>,
    gids: BTreeSet<u8>,
}

impl Adaptor {
    /// Everything ends: with the logic, or where the engine stops.
    pub fn reset(&mut self, port: &mut impl Transport) {
        std::mem::take(&mut self.qps).into_keys().for_each(|qpn| port.destroy_qp(qpn));
        for index in std::mem::take(&mut self.gids) {
            // A transport that keeps the entry cannot use it: no QP is left.
            let _ = port.set_gid(index, None);
        }
    }

    /// A message of a queue pair.
    pub fn message(&self, qpn: u32, number: u32) -> Option<&Submitted> {
        self.qps.get(&qpn)?.messages.get(number as usize)
    }

    /// The engine gave a receive to a message that comes.
    pub fn claimed(&mut self, qpn: u32) {
        if let Some(known) = self.qps.get_mut(&qpn) {
            known.claimed += 1;
        }
    }

    /// Executes the engine's commands, takes its messages, and gives it room; `true` if there was anything.
    pub fn obey(&mut self, card: &mut Card, port: &mut impl Transport) -> bool {
        let mut worked = card.vfpga.port().stops();
        if worked {
            self.reset(port);
            let port = card.vfpga.port();
            while let Some(command) = port.commands.pop_front() {
                port.end(command.tag, AdminStatus::NotFound.0, [0; ATTRIBUTES]);
            }
            port.submitted.clear();
            port.end_stop();
        }
        while let Some(command) = card.vfpga.port().commands.pop_front() {
            worked = true;
            if command.operation == Operation::QueryCounters {
                card.vfpga.port().end_counters(&command, &port.counters());
                continue;
            }
            let mut attributes = [0; ATTRIBUTES];
            let done = self.execute(&command, port, &mut attributes);
            let status = done.map_or_else(|status| status, |()| AdminStatus::Success);
            card.vfpga.port().end(command.tag, status.0, attributes);
        }
        while let Some(message) = card.vfpga.port().submitted.pop_front() {
            worked = true;
            let Some(known) = self.qps.get_mut(&message.qpn) else { continue };
            known.messages.push(message);
            let Some(whole) = message.message() else { panic!("no message: {message:?}") };
            // One that it does not take comes to a queue pair that has failed, of which it tells by itself.
            let _ = port.submit(0, message.qpn, &whole);
        }
        for (qpn, known) in &mut self.qps {
            let open = known.given - known.messages.len() as u64;
            let more = (port.room(*qpn) as u64).min(MOST_PLACES).saturating_sub(open);
            if more > 0 {
                worked = true;
                known.given += more;
                card.vfpga.port().give_room(*qpn, more as u16);
            }
        }
        worked
    }

    fn execute(
        &mut self,
        command: &Command,
        port: &mut impl Transport,
        attributes: &mut [u8; ATTRIBUTES],
    ) -> Result<(), AdminStatus> {
        let Command { qpn, page, number, .. } = *command;
        let given = Attributes::decode(&std::array::from_fn(|block| {
            block_of(&command.attributes[BLOCK_BYTES * block..])
        }));
        match command.operation {
            Operation::Create => {
                let kind = QpType(command.kind);
                port.create_qp(qpn, &CreateQp { page, kind, ..CreateQp::default() })?;
                self.qps.insert(qpn, Known::default());
            }
            Operation::Modify => {
                port.modify_qp(0, qpn, &given)?;
                if given.mask.contains(AttributeMask::STATE) && given.state == QpState::Reset {
                    self.qps.insert(qpn, Known::default());
                }
            }
            Operation::Query => {
                let found = port.query_qp(qpn).ok_or(AdminStatus::NotFound)?;
                put(attributes, found.encode().as_flattened());
            }
            Operation::Destroy => {
                port.destroy_qp(qpn);
                self.qps.remove(&qpn);
            }
            Operation::SetGid => {
                let gid = LocalGid { gid: given.dgid, vlan: number };
                port.set_gid(given.sgid_index, Some(gid))?;
                self.gids.insert(given.sgid_index);
            }
            Operation::ClearGid => {
                port.set_gid(given.sgid_index, None)?;
                self.gids.remove(&given.sgid_index);
            }
            Operation::QueryPort => {
                let found = port.port().ok_or(AdminStatus::Unsupported)?;
                put(attributes, found.encode().as_flattened());
            }
            Operation::SetLink => port.set_link(number != 0)?,
            Operation::QueryCounters | Operation::Unknown => return Err(AdminStatus::Unsupported),
        }
        Ok(())
    }

    /// Tells the engine of an event. Behind RESET and the end of a queue pair nothing is told of it, and no more messages
    /// end than there are.
    pub fn report(&mut self, event: TransportEvent, card: &mut Card, port: &mut impl Transport) {
        let qpn = event.qpn();
        let is_there = port.query_qp(qpn).is_some_and(|it| it.state != QpState::Reset);
        let Some(known) = self.qps.get_mut(&qpn).filter(|_| is_there) else { return };
        let report = match event {
            TransportEvent::Completed { count, .. } => {
                let count = count.min(known.messages.len() as u64 - known.ended);
                known.ended += count;
                Report::Ended { qpn, count: count as u32 }
            }
            TransportEvent::Failed { status, .. } => Report::Failed { qpn, status: status.0 },
            TransportEvent::Received(received) => {
                known.told += 1;
                let ReceivedMessage { length, kind, immediate, solicited, .. } = received;
                let is_write = kind == ReceiveKind::Write;
                Report::Commit { qpn, length, is_write, immediate, solicited }
            }
            TransportEvent::ReceiveFailed { status, .. } => {
                known.told += 1;
                Report::ReceiveFailed { qpn, status: status.0 }
            }
            TransportEvent::Error { .. } => Report::Error { qpn },
            TransportEvent::Async { event, .. } => Report::Event { qpn, event: event.0 },
            TransportEvent::XrcReceived { .. } | TransportEvent::XrcReceiveFailed { .. } => return,
        };
        card.vfpga.port().report(report);
        self.fail_refused(qpn, card, port);
    }

    /// A claim was refused to the peer, by which the connection fails, behind the receives before it.
    pub fn refuse_receive(&mut self, qpn: u32, card: &mut Card, port: &mut impl Transport) {
        if let Some(known) = self.qps.get_mut(&qpn) {
            known.refused = Some(known.claimed);
        }
        self.fail_refused(qpn, card, port);
    }

    fn fail_refused(&mut self, qpn: u32, card: &mut Card, port: &mut impl Transport) {
        let Some(known) = self.qps.get_mut(&qpn) else { return };
        if known.refused.is_none_or(|behind| known.told < behind) {
            return;
        }
        known.refused = None;
        if port.query_qp(qpn).is_some_and(|it| it.state != QpState::Err) {
            let (mask, state) = (AttributeMask::STATE, QpState::Err);
            let failed = Attributes { mask, state, ..Attributes::default() };
            port.modify_qp(0, qpn, &failed).unwrap();
            card.vfpga.port().report(Report::Error { qpn });
        }
    }
}

/// Puts words into an answer, as many as there is room for.
fn put(attributes: &mut [u8; ATTRIBUTES], words: &[u64]) {
    for (place, word) in attributes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}
