//! A peer made of hand-written frames, for rules that a whole peer would never break.

use netsim::frame::Received;
use roce::opcode::{Class, code};
use roce::window::AnyWindow;
use roce::wire::aeth::{self, Syndrome};
use roce::wire::extension::{atomicacketh, atomiceth, immdt, xrceth};
use roce::wire::{arp, bth, ethernet, frame, icrc, ipv4, reth, udp};
use roce::{
    Event, Gid, Instant, MacAddr, Operation, Psn, QpAttributes, QpState, Qpn, SendRequest, Service,
};

use crate::connection::{Options, Side, to_init, to_rtr, to_rts};
use crate::memory::{Local, Region};
use crate::network::{Node, card, round};

pub const SQ_PSN: u32 = 1000;
pub const RQ_PSN: u32 = 2000;
pub const RKEY: u32 = 0x77;
pub const VA: u64 = 0x5000;

const OWN_QPN: u32 = 0x11;
pub const PEER_QPN: u32 = 0x22;
const PEER_MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x99]);
pub const PEER_IP: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 7, 0, 99);

/// A frame that the stack emitted, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub opcode: u8,
    pub psn: u32,
    pub ack_request: bool,
    pub becn: bool,
    pub syndrome: Option<Syndrome>,
    pub msn: u32,
    pub reth: Option<reth::Repr>,
    pub atomic: Option<atomiceth::Repr>,
    pub invalidate: Option<u32>,
    pub srqn: Option<u32>,
    /// The value of an atomic acknowledgement.
    pub value: Option<u64>,
    pub payload: Vec<u8>,
}

/// A stack with one QP, and everything its peer says.
pub struct Puppet {
    pub node: Node,
    pub qpn: Qpn,
    pub now: u64,
}

/// A request or response of the puppet.
#[derive(Clone, Debug, Default)]
pub struct Say {
    pub opcode: u8,
    pub psn: u32,
    pub ack_request: bool,
    pub srqn: Option<u32>,
    pub reth: Option<reth::Repr>,
    pub atomic: Option<atomiceth::Repr>,
    pub aeth: Option<aeth::Repr>,
    pub imm: Option<u32>,
    pub payload: Vec<u8>,
    pub pkey: Option<u16>,
    pub source: Option<std::net::Ipv4Addr>,
    pub dest_qpn: Option<u32>,
    /// Marked "congestion experienced" on the way.
    pub marked: bool,
}

impl Puppet {
    /// A puppet that asks for no limit on messages that take a receive request.
    pub fn new(options: &Options) -> Self {
        let mut puppet = Self::without_credits(options);
        assert!(puppet.say(&[ack(SQ_PSN - 1)]).is_empty());
        puppet
    }

    /// A puppet that has not yet told of any receive request.
    pub fn without_credits(options: &Options) -> Self {
        Self::of(card(0), options)
    }

    fn of(node: Node, options: &Options) -> Self {
        let qpn = Qpn::new(OWN_QPN).unwrap();
        let mut puppet = Self { node, qpn, now: 1_000_000 };
        puppet.node.stack.create_qp(qpn, Service::Rc, 0).unwrap();
        puppet.bring_up(Side::Both, options);
        puppet
    }

    /// A puppet that is the peer of a queue pair with a window of our own; otherwise as [`Puppet::new`].
    pub fn with_windows(
        options: &Options,
        windows: impl Fn(Qpn, Service) -> AnyWindow + Send + 'static,
    ) -> Self {
        let mut node = card(0);
        node.stack.set_windows(windows);
        let mut puppet = Self::of(node, options);
        assert!(puppet.say(&[ack(SQ_PSN - 1)]).is_empty());
        puppet
    }

    /// The puppet of an XRC queue pair: with a domain the side that receives, else the side that sends.
    pub fn of_xrc(domain: Option<u32>, options: &Options) -> Self {
        let qpn = Qpn::new(OWN_QPN).unwrap();
        let mut puppet = Self { node: card(0), qpn, now: 1_000_000 };
        let receives = |domain| Service::XrcReceive { domain };
        let service = domain.map_or(Service::XrcSend, receives);
        puppet.node.stack.create_qp(qpn, service, 0).unwrap();
        let side = if domain.is_some() { Side::Receives } else { Side::Sends };
        puppet.bring_up(side, options);
        puppet
    }

    fn bring_up(&mut self, side: Side, options: &Options) {
        let puppet = self;
        puppet.modify(&to_init(options));
        let dest = Qpn::new(PEER_QPN).unwrap();
        puppet.modify(&side.of(&to_rtr(options, Gid::from_ipv4(PEER_IP), dest, RQ_PSN)));
        puppet.modify(&side.of(&to_rts(options, SQ_PSN)));
        let region = Region { va: VA, bytes: vec![0; 65_536], writable: true };
        puppet.node.memory.regions.insert(RKEY, region);
        puppet.learn();
    }

    /// Hears where its peer is.
    pub fn learn(&mut self) {
        let reply = arp::Repr {
            operation: arp::Operation::Reply,
            sender_mac: PEER_MAC,
            sender_ip: PEER_IP,
            target_mac: self.node.mac,
            target_ip: self.node.ipv4,
        };
        let header = ethernet::Repr {
            destination: self.node.mac,
            source: PEER_MAC,
            tag: None,
            ethertype: ethernet::EtherType::ARP,
        };
        let frame = [&header.to_bytes()[..], &reply.to_bytes()].concat();
        assert!(self.feed(&[frame]).is_empty());
    }

    pub fn modify(&mut self, change: &QpAttributes) {
        self.node.stack.modify_qp(Instant(self.now), self.qpn, change).unwrap();
    }

    pub fn state(&self) -> QpState {
        self.node.stack.query_qp(self.qpn).unwrap().state
    }

    /// Posts a message whose bytes are the pattern `number`, or a READ.
    pub fn post(&mut self, operation: Operation, length: u32) -> u64 {
        let request = SendRequest {
            operation,
            length,
            remote_va: VA,
            rkey: RKEY,
            imm: 0x0102_0304,
            solicited: false,
            fence: false,
        };
        self.post_request(request)
    }

    pub fn post_request(&mut self, request: SendRequest) -> u64 {
        let number = self.node.stack.post_send(Instant(self.now), self.qpn, request).unwrap();
        let local = if request.operation.is_answered() {
            Local::Buffer(vec![0; request.length as usize])
        } else {
            Local::Pattern(number)
        };
        self.node.memory.messages.insert((OWN_QPN, number), local);
        number
    }

    /// A frame of the puppet.
    pub fn frame(&self, say: &Say) -> Vec<u8> {
        let pad = (4 - say.payload.len() % 4) % 4;
        let transport = bth::Repr {
            opcode: say.opcode,
            pad_count: pad as u8,
            pkey: say.pkey.unwrap_or(0xffff),
            dest_qpn: say.dest_qpn.unwrap_or(OWN_QPN),
            ack_request: say.ack_request,
            psn: Psn::new(say.psn),
            ..bth::Repr::default()
        };
        let mut body = transport.to_bytes().to_vec();
        body.extend(say.srqn.iter().flat_map(|srqn| xrceth::to_bytes(*srqn)));
        body.extend(say.reth.iter().flat_map(|header| header.to_bytes()));
        body.extend(say.atomic.iter().flat_map(|header| header.to_bytes()));
        body.extend(say.aeth.iter().flat_map(|header| header.to_bytes()));
        body.extend(say.imm.iter().flat_map(|&imm| immdt::to_bytes(imm)));
        body.extend(&say.payload);
        body.resize(body.len() + pad + icrc::LENGTH, 0);
        let datagram = udp::Repr {
            source_port: 0xc000,
            destination_port: 4791,
            payload_length: body.len() as u16,
        };
        let packet = ipv4::Repr {
            type_of_service: if say.marked { 3 } else { 0 },
            time_to_live: 64,
            protocol: ipv4::PROTOCOL_UDP,
            source: say.source.unwrap_or(PEER_IP),
            destination: self.node.ipv4,
            payload_length: body.len() as u16 + 8,
        };
        let header = ethernet::Repr {
            destination: self.node.mac,
            source: PEER_MAC,
            tag: None,
            ethertype: ethernet::EtherType::IPV4,
        };
        let mut frame = header.to_bytes().to_vec();
        frame.extend(packet.to_bytes());
        frame.extend(datagram.to_bytes());
        frame.extend(body);
        icrc::append(&mut frame).unwrap();
        frame
    }

    /// Feeds a burst of frames, and gives the frames that the stack emits.
    pub fn feed(&mut self, frames: &[Vec<u8>]) -> Vec<Sent> {
        self.node.inbox.extend(frames.iter().cloned().map(Received::from));
        self.round()
    }

    /// Sends packets as one burst.
    pub fn say(&mut self, says: &[Say]) -> Vec<Sent> {
        let frames: Vec<_> = says.iter().map(|say| self.frame(say)).collect();
        self.feed(&frames)
    }

    /// The frames that the stack emits now (at most a budget).
    pub fn round(&mut self) -> Vec<Sent> {
        let frames = round(&mut self.node, self.now);
        frames.iter().filter_map(|frame| take_apart(frame)).collect()
    }

    /// Everything the stack emits now.
    pub fn drain(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        loop {
            let some = self.round();
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    /// Lets time pass up to the next timeout, and gives the frames that the stack emits then.
    pub fn time_out(&mut self) -> (u64, Vec<Sent>) {
        let before = self.now;
        // The queue of timers may look once more before it fires.
        for _ in 0..3 {
            let Some(at) = self.node.stack.next_timeout() else { break };
            self.now = at.0.max(self.now);
            let sent = self.round();
            if !sent.is_empty() || !self.node.events.is_empty() {
                return (self.now - before, sent);
            }
        }
        (self.now - before, Vec::new())
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.node.events)
    }
}

/// A frame of the stack taken apart; `None` for ARP.
pub fn take_apart(bytes: &[u8]) -> Option<Sent> {
    let (header, packet) = ethernet::Repr::parse(bytes).unwrap();
    if header.ethertype != ethernet::EtherType::IPV4 {
        return None;
    }
    assert!(icrc::check(&mut bytes.to_vec()));
    let (_, datagram) = ipv4::Repr::parse(packet).unwrap();
    let (_, body) = udp::Repr::parse(datagram).unwrap();
    let repr = frame::Repr::parse(body).unwrap();
    let is_atomic = repr.opcode.class == Class::AtomicAcknowledge;
    let value = is_atomic.then(|| {
        let (value, _) = atomicacketh::parse(&body[repr.payload.start - 8..]).unwrap();
        value
    });
    Some(Sent {
        opcode: repr.bth.opcode,
        psn: repr.bth.psn.value(),
        ack_request: repr.bth.ack_request,
        becn: repr.bth.becn,
        syndrome: repr.aeth.map(|header| header.syndrome),
        msn: repr.aeth.map_or(0, |header| header.msn),
        reth: repr.reth,
        atomic: repr.atomic,
        invalidate: repr.invalidate,
        srqn: repr.srqn,
        value,
        payload: body[repr.payload.clone()].to_vec(),
    })
}

/// An acknowledgement of the puppet.
pub fn ack(psn: u32) -> Say {
    answer(psn, Syndrome::Ack { credits: aeth::CREDITS_INVALID })
}

/// An acknowledgement or NAK of the puppet.
pub fn answer(psn: u32, syndrome: Syndrome) -> Say {
    Say {
        opcode: code::ACKNOWLEDGE,
        psn,
        aeth: Some(aeth::Repr { syndrome, msn: 0 }),
        ..Say::default()
    }
}

/// A READ response of the puppet.
pub fn response(opcode: u8, psn: u32, payload: Vec<u8>) -> Say {
    let syndrome = Syndrome::Ack { credits: aeth::CREDITS_INVALID };
    let aeth = (opcode != code::READ_RESPONSE_MIDDLE).then_some(aeth::Repr { syndrome, msn: 0 });
    Say { opcode, psn, aeth, payload, ..Say::default() }
}

/// A request of the puppet without extension headers that asks for an acknowledgement.
pub fn request(opcode: u8, psn: u32, payload: Vec<u8>) -> Say {
    Say { opcode, psn, ack_request: true, payload, ..Say::default() }
}

/// A WRITE ONLY, WRITE FIRST or READ request of the puppet.
pub fn rdma(opcode: u8, psn: u32, offset: u64, dma_length: u32, payload: Vec<u8>) -> Say {
    let reth = Some(reth::Repr { va: VA + offset, rkey: RKEY, dma_length });
    Say { reth, ..request(opcode, psn, payload) }
}

/// A fetch-and-add request of the puppet.
pub fn fetch_add(psn: u32, va: u64, add: u64) -> Say {
    let atomic = Some(atomiceth::Repr { va, rkey: RKEY, swap_or_add: add, compare: 0 });
    Say { opcode: code::FETCH_ADD, psn, ack_request: true, atomic, ..Say::default() }
}

/// A compare-and-swap request of the puppet.
pub fn compare_swap(psn: u32, va: u64, compare: u64, swap: u64) -> Say {
    let atomic = Some(atomiceth::Repr { va, rkey: RKEY, swap_or_add: swap, compare });
    Say { opcode: code::COMPARE_SWAP, psn, ack_request: true, atomic, ..Say::default() }
}

/// The puppet's answer to an atomic.
pub fn atomic_ack(psn: u32, value: u64) -> Say {
    let payload = atomicacketh::to_bytes(value).to_vec();
    Say { opcode: code::ATOMIC_ACKNOWLEDGE, payload, ..ack(psn) }
}
