//! Rounds of a card whose port and peer are the test's.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use ::services::limit;
use fpga_regs::engine::cqe::Status;
use roce::{
    AccessFlags, AddressVector, Gid, IcrcPolicy, MacAddr, Operation, PathMtu, Psn, QpAttributes,
    QpState, SendRequest, Stack, StackConfig,
};

mod attributes;
mod congested;
mod link;
mod opcodes;
mod pair;
mod protection;
mod rig;
mod sealing;
mod seam;
mod services;
mod streams;
mod turns;

use super::*;
use crate::asks::Asks;
use crate::network::Identity;
use crate::port::{FramePool, Port};
use crate::published::Published;

/// Frames to and from the card.
#[derive(Default)]
struct Wire {
    to_card: VecDeque<Frame>,
    from_card: Vec<Vec<u8>>,
}

#[derive(Default)]
struct TestPort(Rc<RefCell<Wire>>);

impl Port for TestPort {
    fn send(&mut self, _now: u64, burst: &mut VecDeque<Frame>) {
        let sent = burst.drain(..).map(|frame| frame.as_slice().to_vec());
        self.0.borrow_mut().from_card.extend(sent);
    }

    fn receive(&mut self, _now: u64, into: &mut VecDeque<Frame>, budget: usize) {
        let wire = &mut self.0.borrow_mut().to_card;
        let count = wire.len().min(budget);
        into.extend(wire.drain(..count));
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A queue pair in RTS, over link-local addresses, which need no ARP.
fn connect(stack: &mut Stack, qpn: u32, peer: [u8; 6], peer_qpn: u32) -> Qpn {
    let peer = Gid::from_ipv6(MacAddr(peer).link_local());
    connect_to(stack, qpn, (0, peer), peer_qpn)
}

/// A queue pair in RTS, from the GID of that index to the other one.
pub(crate) fn connect_to(
    stack: &mut Stack,
    qpn: u32,
    (sgid_index, dgid): (u8, Gid),
    peer_qpn: u32,
) -> Qpn {
    let (qpn, peer_qpn) = (Qpn::new(qpn).unwrap(), Qpn::new(peer_qpn).unwrap());
    stack.create_qp(qpn, roce::Service::Rc, 0).unwrap();
    let path = AddressVector::new(sgid_index, dgid);
    let init = QpAttributes::to_init(AccessFlags::all());
    let rtr = QpAttributes::to_rtr(path, PathMtu::Mtu1024, peer_qpn, Psn::new(0));
    let rtr = QpAttributes { min_rnr_timer: Some(1), ..rtr };
    let rts = QpAttributes { timeout: Some(8), ..QpAttributes::to_rts(Psn::new(0)) };
    for change in [init, rtr, rts] {
        stack.modify_qp(Instant(0), qpn, &change).unwrap();
    }
    qpn
}

/// A card that has its addresses, and its cable.
fn card(policy: IcrcPolicy) -> (Card, Rc<RefCell<Wire>>) {
    let wire = Rc::new(RefCell::new(Wire::default()));
    let pool = FramePool::new(16);
    let published = Arc::<Published>::default();
    let vectors = Rc::new(Arc::clone(&published));
    let port = Box::new(TestPort(Rc::clone(&wire)));
    let mut card = Card::new(Default::default(), port, policy, pool, vectors, published);
    card.network.set_identity(Identity { mac: OWN, ipv4: 0x0a00_0001 });
    (card, wire)
}

/// The card's peer, with a queue pair.
fn peer() -> (Stack, Qpn) {
    let mut peer = Stack::new(StackConfig {
        mac: MacAddr(PEER),
        ipv4: [10, 0, 0, 2].into(),
        mtu_max: PathMtu::Mtu1024,
        icrc_policy: IcrcPolicy::CheckAll,
    });
    let qpn = connect(&mut peer, 0x22, OWN, 0x11);
    (peer, qpn)
}

/// A WRITE of nothing.
const NOTHING: SendRequest = SendRequest {
    operation: Operation::Write,
    length: 0,
    remote_va: 0,
    rkey: 0,
    imm: 0,
    solicited: false,
    fence: false,
};

/// RC-2.
#[test]
fn a_card_has_its_icrc_policy_whatever_its_driver_does() {
    let (mut peer, qpn) = peer();
    peer.post_send(Instant(0), qpn, NOTHING).unwrap();
    let request = peer.poll_transmit(Instant(0)).unwrap();
    // In place of its ICRC there are zeros.
    let mut bytes = request.header.as_slice().to_vec();
    bytes.resize(request.frame_length(), 0);
    let resets: [fn(&mut Card); 2] = [
        |_| {},
        |card| {
            card.reset_function();
            card.network.set_identity(Identity { mac: OWN, ipv4: 0x0a00_0001 });
        },
    ];
    for (policy, accepted) in [(IcrcPolicy::CheckAll, 0), (IcrcPolicy::TrustVouchedFor, 1)] {
        for reset in resets {
            let (mut card, wire) = card(policy);
            reset(&mut card);
            let frames = [Frame::vouched_for(&bytes), Frame::from_bytes(&bytes)];
            wire.borrow_mut().to_card.extend(frames.into_iter().flatten());
            card.round(0);
            let counters = card.network.stack.counters();
            let counted = (counters.drop_unknown_qp, counters.rx_icrc_encapsulated);
            assert_eq!(counted, (accepted, 2 - accepted), "{policy:?}");
        }
    }
}

#[test]
fn a_card_tells_of_each_round_in_which_it_moved_frames_or_a_timer_ran() {
    let (mut card, wire) = card(IcrcPolicy::CheckAll);
    let grew = |card: &mut Card, now| {
        let before = card.published.activity.load(Ordering::Acquire);
        card.round(now);
        card.published.activity.load(Ordering::Acquire) - before
    };
    grew(&mut card, 0);
    assert_eq!(grew(&mut card, 0), 0, "nothing happens");
    wire.borrow_mut().to_card.push_back(Frame::from_bytes(&[9; 64]).unwrap());
    assert_eq!(grew(&mut card, 0), 1, "a frame of nobody's");
    let qpn = connect(&mut card.network.stack, 0x11, PEER, 0x22);
    card.network.stack.post_send(Instant(0), qpn, NOTHING).unwrap();
    assert_eq!(grew(&mut card, 0), 1, "a request");
    assert_eq!(grew(&mut card, 0), 0, "no answer yet");
    let late = card.network.stack.next_timeout().unwrap().0 + 1;
    assert_eq!(grew(&mut card, late), 1, "the request again");
}

/// RC-97.
#[test]
fn answers_that_wait_in_the_port_are_heard_before_the_timers() {
    let (mut card, wire) = card(IcrcPolicy::CheckAll);
    let qpn = connect(&mut card.network.stack, 0x11, PEER, 0x22);
    let (mut peer, _) = peer();
    let mut answer = |card: &mut Card, now| {
        card.network.stack.post_send(Instant(now), qpn, NOTHING).unwrap();
        card.round(now);
        let mut request = wire.borrow_mut().from_card.remove(0);
        let Card { vfpgas, network, .. } = card;
        let mut verbs = Asks { vfpgas, decisions: &mut network.decisions, acknowledges: false };
        assert!(peer.receive(Instant(0), &mut request, 0, &mut verbs, &mut Vec::new()).is_ready());
        peer.commit(Instant(0), &[]);
        let answer = peer.poll_transmit(Instant(0)).unwrap();
        let mut bytes = answer.header.as_slice().to_vec();
        bytes.resize(answer.frame_length(), 0);
        roce::wire::icrc::append(&mut bytes).unwrap();
        Frame::from_bytes(&bytes).unwrap()
    };
    let others = || std::iter::repeat_with(|| Frame::from_bytes(&[9; 64]).unwrap());
    let run_late = |card: &mut Card| {
        let late = card.network.stack.next_timeout().unwrap().0 + 1;
        for _ in 0..10 {
            card.round(late);
        }
        assert_eq!(card.network.stack.counters().retransmitted_pkts, 0);
        assert_eq!(card.network.stack.next_timeout(), None);
        late
    };

    // The answer comes behind more frames than a round takes, and the card runs too late.
    let last = answer(&mut card, 0);
    wire.borrow_mut().to_card.extend(others().take(BURST).chain([last]));
    let late = run_late(&mut card);
    // It stays in the port while as many frames as may wait for services.
    let last = answer(&mut card, late);
    wire.borrow_mut().to_card.push_back(last);
    card.network.turns.borrow_mut().serve(true);
    for frame in others().take(limit::WAITING) {
        card.network.turns.borrow_mut().wait(0x33, 1, frame).unwrap();
    }
    let late = run_late(&mut card);
    assert_eq!(card.network.stack.counters().rdma_sends, 2);

    // Frames without end do not keep timers from running.
    card.network.stack.post_send(Instant(late), qpn, NOTHING).unwrap();
    card.round(late);
    let due = card.network.stack.next_timeout().unwrap().0 + 1_000;
    for _ in 0..=TIMER_ROUNDS {
        wire.borrow_mut().to_card.extend(others().take(BURST));
        card.round(due);
    }
    assert_eq!(card.network.stack.counters().retransmitted_pkts, 1);
}
