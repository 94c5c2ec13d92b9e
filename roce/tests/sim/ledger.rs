//! The witness of acknowledgements: each packet that was accepted and asked for one gets one of its
//! own, in order, with the number of messages as of its PSN, and nothing else gets one.

use std::collections::{BTreeMap, VecDeque};

use roce::opcode::{Class, Opcode};
use roce::wire::aeth::{self, Syndrome};
use roce::wire::{bth, ethernet, frame, ipv4, ipv6, udp};
use roce::{Gid, Psn, QpSnapshot, Qpn, Stack};

/// The peer that an answer goes to: its address and queue pair.
type Peer = ([u8; 16], u32);

/// The answers that a node owes to its peers.
#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<Peer, Account>);

/// The answers that a queue pair owes to its peer.
#[derive(Debug, Default)]
struct Account {
    /// PSN and message number of each acknowledgement that is due.
    owed: VecDeque<(Psn, u32)>,
    /// The last response of each READ that is not answered to its end.
    reads: VecDeque<Psn>,
    /// Messages executed.
    messages: u32,
    /// Acknowledgements of packets when they were accepted.
    acknowledged: u64,
    /// Repetitions of SENDs and WRITEs that asked.
    asked_again: u64,
    /// Acknowledgements of repetitions.
    answered_again: u64,
}

/// A request on its way into a stack.
pub struct Asked {
    qpn: Qpn,
    opcode: &'static Opcode,
    transport: bth::Repr,
    before: QpSnapshot,
    repetitions: u64,
}

/// Addresses of source and destination, and the transport headers of a frame.
fn parse(bytes: &[u8]) -> Option<(Gid, frame::Repr)> {
    let (header, packet) = ethernet::Repr::parse(bytes).ok()?;
    let (destination, datagram) = match header.ethertype {
        ethernet::EtherType::IPV4 => {
            let (ip, datagram) = ipv4::Repr::parse(packet).ok()?;
            (Gid::from_ipv4(ip.destination), datagram)
        }
        ethernet::EtherType::IPV6 => {
            let (ip, datagram) = ipv6::Repr::parse(packet).ok()?;
            (Gid::from_ipv6(ip.destination), datagram)
        }
        _ => return None,
    };
    let (_, body) = udp::Repr::parse(datagram).ok()?;
    Some((destination, frame::Repr::parse(body).ok()?))
}

fn repetitions(stack: &Stack, qpn: Qpn) -> u64 {
    stack.qp_counters(qpn).unwrap().duplicate_request
}

impl Asked {
    /// The request in a frame that `stack` is about to receive.
    pub fn of(stack: &Stack, bytes: &[u8]) -> Option<Self> {
        let (_, packet) = parse(bytes)?;
        let qpn = Qpn::new(packet.bth.dest_qpn)?;
        let before = stack.query_qp(qpn)?;
        let repetitions = repetitions(stack, qpn);
        let is_request = !packet.opcode.class.is_response();
        is_request.then_some(Self {
            qpn,
            opcode: packet.opcode,
            transport: packet.bth,
            before,
            repetitions,
        })
    }
}

impl Ledger {
    /// Notes the fate of a request.
    pub fn hear(&mut self, stack: &Stack, asked: &Asked) {
        let Asked { qpn, opcode, transport, before, repetitions: seen } = asked;
        let (Some(path), Some(peer)) = (before.path, before.dest_qpn) else { return };
        let account = self.0.entry((path.dgid.to_bytes(), peer.value())).or_default();
        let is_answered = opcode.class.is_answered();
        let next = stack.query_qp(*qpn).unwrap().rq_psn;
        if next != before.rq_psn {
            account.messages += u32::from(opcode.position.is_end());
            if is_answered {
                account.reads.push_back(Psn::new(next.value().wrapping_sub(1)));
            } else if transport.ack_request {
                account.owed.push_back((transport.psn, account.messages & Psn::MASK));
            }
        } else if repetitions(stack, *qpn) != *seen && !is_answered && transport.ack_request {
            account.asked_again += 1;
        }
    }

    /// Compares a frame that leaves with the answers owed.
    pub fn speak(&mut self, bytes: &[u8]) {
        let Some((destination, packet)) = parse(bytes) else { return };
        let key = (destination.to_bytes(), packet.bth.dest_qpn);
        let Some(account) = self.0.get_mut(&key) else { return };
        let psn = packet.bth.psn;
        match (packet.opcode.class, packet.aeth) {
            (Class::Acknowledge, Some(header)) => account.acknowledge(psn, &header),
            (Class::ReadResponse | Class::AtomicAcknowledge, _) => {
                if let Some((first, _)) = account.owed.front() {
                    assert!(psn.distance(*first) < 0, "response {psn} before the ACK of {first}");
                }
                if account.reads.front() == Some(&psn) {
                    account.reads.pop_front();
                }
            }
            _ => {}
        }
    }

    /// Says how many packets were acknowledged when they were accepted. Nothing is owed any more.
    pub fn settle(&self) -> u64 {
        for (peer, account) in &self.0 {
            assert_eq!(account.owed, [], "acknowledgements owed to {peer:?}");
            assert_eq!(account.reads, [], "READs not answered to {peer:?}");
            assert_eq!(account.answered_again, account.asked_again, "repetitions answered");
        }
        self.0.values().map(|account| account.acknowledged).sum()
    }
}

impl Account {
    fn acknowledge(&mut self, psn: Psn, header: &aeth::Repr) {
        let Syndrome::Ack { .. } = header.syndrome else {
            assert_eq!(self.owed, [], "a NAK of {psn} before what is owed");
            return;
        };
        if let Some(read) = self.reads.front() {
            assert!(psn.distance(*read) < 0, "the ACK of {psn} before response {read}");
        }
        if self.owed.front().is_some_and(|(first, _)| *first == psn) {
            let (_, messages) = self.owed.pop_front().unwrap();
            assert_eq!(header.msn, messages, "messages executed as of {psn}");
            self.acknowledged += 1;
            return;
        }
        self.answered_again += 1;
        assert!(self.answered_again <= self.asked_again, "nobody asked for the ACK of {psn}");
    }
}
