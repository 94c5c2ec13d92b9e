use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::engine::window::{self, Capabilities};
use roce::qos::{Qos, pfc};
use roce::{Gid, IcrcPolicy, MacAddr, Qpn};

use super::*;
use crate::card::Card;
use crate::datapath::tests::connect_to;
use crate::network::Identity;
use crate::port::{FaultSource, Faults, FramePool};
use crate::published::Published;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OWN_IP: [u8; 4] = [10, 0, 0, 1];
const PEER_IP: [u8; 4] = [10, 0, 0, 2];

/// The frames that are to arrive at a port, and those that left by it.
#[derive(Default)]
struct Ends {
    arriving: VecDeque<Frame>,
    left: Vec<Vec<u8>>,
    room: usize,
}

struct TestPort(Rc<RefCell<Ends>>);

impl Port for TestPort {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        let mut ends = self.0.borrow_mut();
        let taken = burst.len().min(ends.room);
        ends.left.extend(burst.drain(..taken).map(|frame| frame.as_slice().to_vec()));
    }

    fn receive(&mut self, _now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let arriving = &mut self.0.borrow_mut().arriving;
        let taken = arriving.len().min(budget);
        into.extend(arriving.drain(..taken));
    }

    fn room(&self) -> usize {
        self.0.borrow().room
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A card whose port a host shares; its cable, and the way to the host.
fn shared() -> (Card, [Rc<RefCell<Ends>>; 2]) {
    shared_behind(|port, _| port)
}

/// The same with a wrapper around the port.
fn shared_behind(
    put: impl Fn(Box<dyn Port>, &FramePool) -> Box<dyn Port>,
) -> (Card, [Rc<RefCell<Ends>>; 2]) {
    let ends = [(); 2].map(|()| Rc::new(RefCell::new(Ends { room: 64, ..Ends::default() })));
    let published = Arc::<Published>::default();
    let vectors = Rc::new(Arc::clone(&published));
    let port = Box::new(TestPort(Rc::clone(&ends[0])));
    let (policy, pool) = (IcrcPolicy::CheckAll, FramePool::new(8));
    let port = put(port, &pool);
    let mut card = Card::new(Default::default(), port, policy, pool, vectors, published);
    card.share_port(Box::new(TestPort(Rc::clone(&ends[1]))));
    card.network.set_identity(Identity { mac: OWN, ipv4: u32::from_be_bytes(OWN_IP) });
    (card, ends)
}

fn arp(operation: u8, target_ip: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    if operation == 2 {
        frame.copy_from_slice(&OWN);
    }
    frame.extend(PEER);
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(PEER);
    frame.extend(PEER_IP);
    frame.extend([0; 6]);
    frame.extend(target_ip);
    frame
}

/// An IPv4 frame to the card, with a right checksum.
fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ip = roce::wire::ipv4::Repr {
        type_of_service: 0,
        time_to_live: 64,
        protocol,
        source: PEER_IP.into(),
        destination: OWN_IP.into(),
        payload_length: payload.len() as u16,
    };
    [&OWN[..], &PEER, &[0x08, 0x00], &ip.to_bytes(), payload].concat()
}

fn roce(qpn: u32) -> Vec<u8> {
    let [_, a, b, c] = qpn.to_be_bytes();
    let length = 8 + 12 + 4u8;
    let udp = [0xc0, 0, 0x12, 0xb7, 0, length, 0, 0];
    let bth = [0x11, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 0];
    ipv4(17, &[&udp[..], &bth, &[0; 4]].concat())
}

fn arrive(ends: &Rc<RefCell<Ends>>, frame: &[u8]) {
    ends.borrow_mut().arriving.push_back(Frame::from_bytes(frame).unwrap());
}

fn left(ends: &Rc<RefCell<Ends>>) -> Vec<Vec<u8>> {
    std::mem::take(&mut ends.borrow_mut().left)
}

/// A RoCE packet that the host sends to the peer, in the name of the card's address.
fn roce_of_the_host(qpn: u32) -> Vec<u8> {
    let received = roce(qpn);
    let ip = roce::wire::ipv4::Repr {
        type_of_service: 0,
        time_to_live: 64,
        protocol: 17,
        source: OWN_IP.into(),
        destination: PEER_IP.into(),
        payload_length: (received.len() - 34) as u16,
    };
    [&PEER[..], &OWN, &[0x08, 0x00], &ip.to_bytes(), &received[34..]].concat()
}

/// Connects a queue pair of the card's to one of the peer's.
fn connect(card: &mut Card, qpn: u32, dest_qpn: u32) {
    connect_to(&mut card.network.stack, qpn, (1, Gid::from_ipv4(PEER_IP.into())), dest_qpn);
}

fn counted(card: &Card, name: &str) -> u64 {
    card.counters().iter().find(|(it, _)| *it == name).unwrap().1
}

#[test]
fn each_question_is_answered_by_one_of_both_only() {
    let (mut card, [cable, host]) = shared();
    arrive(&cable, &arp(1, OWN_IP));
    card.round(0);
    assert_eq!((left(&cable).len(), left(&host).len()), (1, 0), "the card answers ARP");
    let ping = ipv4(1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    arrive(&cable, &ping);
    card.round(0);
    assert_eq!((left(&cable).len(), left(&host)), (0, vec![ping]), "the host answers echos");
    let reply = arp(2, OWN_IP);
    arrive(&cable, &reply);
    card.round(0);
    assert_eq!((left(&cable).len(), left(&host)), (0, vec![reply]), "both may have asked");
}

#[test]
fn roce_of_other_queue_pairs_is_the_hosts() {
    let (mut card, [cable, host]) = shared();
    card.network.stack.create_qp(Qpn::new(0x77).unwrap(), roce::Service::Rc, 0).unwrap();
    for qpn in [0x77, 1, 0x78] {
        arrive(&cable, &roce(qpn));
    }
    card.round(0);
    assert_eq!(left(&host), [roce(1), roce(0x78)]);
    let dropped =
        |name| card.network.stack.counters().iter().find(|(it, _)| *it == name).unwrap().1;
    assert_eq!((dropped("drop_unknown_qp"), dropped("rx_icrc_encapsulated")), (0, 1));
}

#[test]
fn what_the_host_sends_leaves_by_the_port_and_waits_while_that_has_no_room() {
    let (mut card, [cable, host]) = shared();
    let frames: Vec<Vec<u8>> =
        (0..3).map(|n| [&PEER[..], &OWN, &[0x88, 0xcc, n]].concat()).collect();
    cable.borrow_mut().room = 0;
    frames.iter().for_each(|frame| arrive(&host, frame));
    card.round(0);
    assert_eq!(host.borrow().arriving.len(), 3, "they stay with the host");
    cable.borrow_mut().room = 2;
    while card.round(0) {}
    cable.borrow_mut().room = 64;
    while card.round(0) {}
    assert_eq!(left(&cable), frames);
    assert!(left(&host).is_empty(), "the host does not hear itself");
}

/// A frame of the host's of a priority, as long as the longest.
fn long(priority: u8) -> Vec<u8> {
    let ip = roce::wire::ipv4::Repr {
        type_of_service: priority << 5,
        time_to_live: 64,
        protocol: 1,
        source: OWN_IP.into(),
        destination: PEER_IP.into(),
        payload_length: 4_000,
    };
    [&PEER[..], &OWN, &[0x08, 0x00], &ip.to_bytes(), &[0; 4_000]].concat()
}

#[test]
fn frames_of_the_hosts_that_wait_for_a_paused_priority_hold_up_no_other() {
    let (mut card, [cable, host]) = shared_behind(|port, pool| {
        let source = FaultSource { seed: 1, card: 0, layer: 0 };
        Box::new(Faults::new(port, &"rate=10M".parse().unwrap(), source, pool))
    });
    card.network.set_qos(0, &Qos { pfc: 1, ..Qos::default() }).unwrap();
    arrive(&cable, &pfc::frame(MacAddr(PEER), 0, pfc::LONGEST));
    while card.round(0) {}
    left(&host);
    (0..40).for_each(|_| arrive(&host, &long(0)));
    arrive(&host, &long(3));
    let mut sent = Vec::new();
    for step in 0..100 {
        card.round(step * 1_000_000);
        sent.extend(left(&cable));
    }
    assert!(sent == [long(3)], "{} frames", sent.len());
    let dropped = counted(&card, "host_frames_dropped");
    assert!((36..40).contains(&dropped), "{dropped} of 40");
    // Behind the pause, which is 3.4 s of the cable's.
    while card.round(4_000_000_000) {}
    let sent = left(&cable);
    assert!(sent.iter().all(|frame| *frame == long(0)) && sent.len() as u64 + dropped == 40);
}

#[test]
fn the_host_reaches_neither_the_card_nor_itself() {
    let (mut card, [cable, host]) = shared();
    connect(&mut card, 0x77, 0x88);
    // As a raw socket makes them.
    for frame in [roce(0x77), arp(2, OWN_IP), ipv4(1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0])] {
        arrive(&host, &frame);
    }
    while card.round(0) {}
    // The card itself asks for its peer.
    assert!(left(&cable).iter().all(|frame| frame[..6] == [0xff; 6]));
    assert!(left(&host).is_empty());
    assert_eq!(counted(&card, "host_frames_to_itself"), 3);
    assert_eq!(card.network.tally.packets.rx, 0, "something of it was received");
}

#[test]
fn the_host_does_not_speak_for_a_queue_pair_of_the_cards() {
    let (mut card, [cable, host]) = shared();
    connect(&mut card, 0x77, 0x88);
    while card.round(0) {}
    left(&cable);
    for qpn in [0x88, 1, 0x89, 0x77] {
        arrive(&host, &roce_of_the_host(qpn));
    }
    while card.round(0) {}
    assert_eq!(left(&cable), [1, 0x89, 0x77].map(roce_of_the_host));
    assert_eq!(counted(&card, "host_frames_forged"), 1);
    card.network.stack.destroy_qp(Qpn::new(0x77).unwrap());
    arrive(&host, &roce_of_the_host(0x88));
    while card.round(0) {}
    assert_eq!(left(&cable), [roce_of_the_host(0x88)], "the number may be anybody's again");
}

#[test]
fn frames_that_are_refused_hold_nothing_up() {
    let (mut card, [cable, host]) = shared();
    let last = [&PEER[..], &OWN, &[0x88, 0xcc]].concat();
    for _ in 0..200 {
        arrive(&host, &arp(2, OWN_IP));
    }
    arrive(&host, &last);
    while card.round(0) {}
    assert_eq!(left(&cable), [last], "the card rested before all was looked at");
}

#[test]
fn a_card_that_is_never_idle_leaves_the_host_its_turn() {
    let (mut card, [cable, host]) = shared();
    cable.borrow_mut().room = 2 * HOST_TURN;
    let frame = [&PEER[..], &OWN, &[0x88, 0xcc]].concat();
    for _ in 0..3 * HOST_TURN {
        arrive(&host, &frame);
        // Each is answered by a frame of the card's.
        arrive(&cable, &arp(1, OWN_IP));
        arrive(&cable, &arp(1, OWN_IP));
    }
    card.round(0);
    let sent = left(&cable);
    assert_eq!(sent.len(), 2 * HOST_TURN);
    assert_eq!(sent.iter().filter(|it| **it == frame).count(), HOST_TURN);
}

#[test]
fn queue_pair_1_of_a_shared_port_is_the_hosts() {
    let register = user_csr(0) + window::CAPABILITIES;
    let offers = |card: &Card| {
        let offered = Capabilities::from_bits_retain(card.read(0, Bar::Shell, register, 8));
        assert!(offered.contains(Capabilities::UD));
        offered.contains(Capabilities::GSI)
    };
    let (mut card, _) = shared();
    assert!(!offers(&card));
    card.reset();
    assert!(!offers(&card), "a reset gives it no other port");
    let published = Arc::<Published>::default();
    let vectors = Rc::new(Arc::clone(&published));
    let port = Box::new(TestPort(Rc::default()));
    let (policy, pool) = (IcrcPolicy::CheckAll, FramePool::new(8));
    let alone = Card::new(Default::default(), port, policy, pool, vectors, published);
    assert!(offers(&alone));
    let other = user_csr(1) + window::CAPABILITIES;
    let others = Capabilities::from_bits_retain(alone.read(0, Bar::Shell, other, 8));
    assert!(!others.contains(Capabilities::GSI), "it is of window 0");
}
