//! Tests of a port: its memory and its work with many queue pairs and peers.

use core::net::Ipv4Addr;
use core::task::Poll;
use core::time::Duration;

use super::*;
use crate::api::{
    AccessDenied, Operation, ReceiveError, ReceivedFrame, RemoteAccess, RemoteRange,
    ResponderMemory, TakenReceive, Target,
};
use crate::attributes::{AccessFlags, AddressVector};
use crate::incoming::{Envelope, Flow, FramePlace, Incoming};
use crate::opcode::code;
use crate::psn::Psn;
use crate::wire::aeth::{self, Syndrome};
use crate::wire::{Malformed, arp, bth, ethernet, frame, icrc};

mod congestion;
mod priorities;
mod rates;

const PSN: u32 = 7;

fn stack() -> Stack {
    stack_with(IcrcPolicy::default())
}

fn stack_with(icrc_policy: IcrcPolicy) -> Stack {
    let (mac, ipv4) = (MacAddr([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1));
    Stack::new(StackConfig { mac, ipv4, mtu_max: PathMtu::Mtu4096, icrc_policy })
}

/// Makes a queue pair of a client's in RTR, whose peer is `dgid`.
fn listen(stack: &mut Stack, now: Instant, qpn: Qpn, client: u16, sgid_index: u8, dgid: Gid) {
    let path = AddressVector::new(sgid_index, dgid);
    let init = QpAttributes::to_init(AccessFlags::default());
    let rtr = QpAttributes {
        min_rnr_timer: Some(1),
        ..QpAttributes::to_rtr(path, PathMtu::Mtu1024, qpn, Psn::default())
    };
    stack.create_qp(qpn, Service::Rc, client).unwrap();
    for change in [init, rtr] {
        stack.modify_qp(now, qpn, &change).unwrap();
    }
}

/// Makes a queue pair in RTS with the longest timeout, whose peer is `dgid`.
fn connect(stack: &mut Stack, qpn: Qpn, sgid_index: u8, dgid: Gid) {
    listen(stack, Instant(0), qpn, 0, sgid_index, dgid);
    let rts =
        QpAttributes { timeout: Some(param::MAX_TIMEOUT), ..QpAttributes::to_rts(Psn::new(PSN)) };
    stack.modify_qp(Instant(0), qpn, &rts).unwrap();
}

/// The changes of a queue pair from RESET to RTS, along a path to `peer`.
fn connection(service: Service, path: AddressVector, peer: Qpn) -> [QpAttributes; 3] {
    let psn = Psn::default();
    let rtr = QpAttributes::to_rtr(path, PathMtu::Mtu1024, peer, psn);
    let rtr = QpAttributes { min_rnr_timer: Some(1), ..rtr };
    let init = QpAttributes::to_init(AccessFlags::all());
    if service == Service::Rc {
        return [init, rtr, QpAttributes::to_rts(psn)];
    }
    let (state, sq_psn) = (Some(QpState::Rts), Some(psn));
    let rts = QpAttributes { state, sq_psn, ..QpAttributes::default() };
    [init, QpAttributes { max_dest_rd_atomic: None, min_rnr_timer: None, ..rtr }, rts]
}

/// A WRITE, which needs no receive request of the peer.
const WRITE: SendRequest = SendRequest { operation: Operation::Write, ..SEND };

const SEND: SendRequest = SendRequest {
    operation: Operation::Send,
    length: 0,
    remote_va: 0,
    rkey: 0,
    imm: 0,
    solicited: false,
    fence: false,
};

/// Answers packet `psn` of a queue pair.
fn answer(stack: &mut Stack, now: Instant, qpn: Qpn, psn: u32, syndrome: Syndrome) {
    let slot = stack.slot(qpn).unwrap();
    let qp = stack.slots.rc(slot).unwrap();
    let transport =
        bth::Repr { opcode: code::ACKNOWLEDGE, psn: Psn::new(psn), ..bth::Repr::default() };
    let header = aeth::Repr { syndrome, msn: 0 };
    let bytes = [&transport.to_bytes()[..], &header.to_bytes(), &[0; icrc::LENGTH]].concat();
    let packet = frame::Repr::parse(&bytes).unwrap();
    let place = FramePlace { frame_index: 0, payload_start: 0 };
    let flow = Flow { source: Gid::default(), destination: Gid::default().into() };
    let envelope = Envelope { flow, traffic_class: 0, payload: 0..bytes.len() };
    let incoming = Incoming { now, envelope: &envelope, packet: &packet, place };
    assert!(qp.receive(&mut stack.shared, &incoming, &mut Refusing).is_ready());
}

/// A frame, whether its deliverer vouches for it, and whether the port has sent it itself.
struct Delivered {
    bytes: Vec<u8>,
    vouched_for: bool,
    looped: bool,
}

impl ReceivedFrame for Delivered {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn is_vouched_for(&self) -> bool {
        self.vouched_for
    }

    fn is_looped(&self) -> bool {
        self.looped
    }
}

/// A layer above that has nothing to give.
struct Refusing;

impl ResponderMemory for Refusing {
    fn check_remote(
        &mut self,
        _: Target,
        _: RemoteRange,
        _: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Err(AccessDenied::Memory))
    }

    fn take_receive(&mut self, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Err(ReceiveError::Empty))
    }
}

#[test]
fn a_frame_is_made_of_the_payload_that_it_refers_to_and_of_no_other_length() {
    let mut stack = stack_with(IcrcPolicy::CheckAll);
    let (own, qpn, now) = (stack.gid(0).unwrap(), Qpn::new(0x100).unwrap(), Instant(0));
    connect(&mut stack, qpn, 0, own);
    stack.post_send(now, qpn, SendRequest::write(5, 0, 0)).unwrap();
    let sent = stack.poll_transmit(now).unwrap();
    let mut frame = sent.to_frame(b"hello").unwrap();
    assert_eq!(frame.len(), sent.frame_length());
    assert_eq!(frame[sent.header.as_slice().len()..][..8], *b"hello\0\0\0");
    assert!(icrc::check(&mut frame));
    for other in [&b""[..], b"hell", b"hello!"] {
        assert_eq!(sent.to_frame(other), Err(Malformed::Length("payload")));
    }
}

/// RC-2.
#[test]
fn a_wrong_icrc_passes_only_where_it_is_vouched_for_and_vouching_is_trusted() {
    let trusting = IcrcPolicy::TrustVouchedFor;
    for (policy, vouched_for, trusted) in [
        (IcrcPolicy::default(), false, false),
        (IcrcPolicy::default(), true, false),
        (trusting, false, false),
        (trusting, true, true),
    ] {
        let mut stack = stack_with(policy);
        let (own, qpn, now) = (stack.gid(0).unwrap(), Qpn::new(0x100).unwrap(), Instant(0));
        // Its own peer.
        connect(&mut stack, qpn, 0, own);
        stack.post_send(now, qpn, SEND).unwrap();
        let sent = stack.poll_transmit(now).unwrap();
        let bytes = sent.to_frame(b"").unwrap();
        let mut wrong = bytes.clone();
        *wrong.last_mut().unwrap() ^= 1;
        for (bytes, is_right) in [(wrong, false), (bytes, true)] {
            let counted = |stack: &Stack| {
                let counters = stack.counters();
                (counters.rcvd_pkts, counters.rx_icrc_encapsulated)
            };
            let (accepted, dropped) = counted(&stack);
            let mut frame = Delivered { bytes: bytes.clone(), vouched_for, looped: true };
            let taken = stack.receive(now, &mut frame, 0, &mut Refusing, &mut Vec::new());
            assert!(taken.is_ready());
            stack.commit(now, &[]);
            let expected = match is_right || trusted {
                true => (accepted + 1, dropped),
                false => (accepted, dropped + 1),
            };
            assert_eq!(counted(&stack), expected, "{policy:?}, {vouched_for}, {is_right}");
            assert_eq!(frame.bytes, bytes, "the check changes nothing");
        }
    }
}

#[test]
fn timers_of_queue_pairs_without_receives_are_as_many_as_queue_pairs() {
    let mut stack = stack();
    let own = stack.gid(0).unwrap();
    let qpns: Vec<_> = (0..64).map(|n| Qpn::new(0x100 + n).unwrap()).collect();
    let mut now = Instant(0);
    for &qpn in &qpns {
        connect(&mut stack, qpn, 0, own);
        stack.post_send(now, qpn, SEND).unwrap();
    }
    for cycle in 0..1000 {
        let mut sent = 0;
        while stack.poll_transmit(now).is_some() {
            sent += 1;
        }
        assert_eq!(sent, qpns.len(), "cycle {cycle}: all are sent again");
        for &qpn in &qpns {
            answer(&mut stack, now, qpn, PSN, Syndrome::RnrNak { timer: 1 });
        }
        assert!(stack.shared.timers.len() <= qpns.len(), "cycle {cycle}");
        assert!(stack.next_timeout().is_some_and(|at| at <= now.after(Duration::from_micros(10))));
        now = now.after(Duration::from_micros(10));
        stack.handle_timeout(now);
    }
    for &qpn in &qpns {
        stack.destroy_qp(qpn);
    }
    stack.settle_timeouts();
    assert_eq!(stack.next_timeout(), None);
}

/// The addresses that a port asks for in the frames that it sends now.
fn asked(stack: &mut Stack, now: Instant) -> Vec<Ipv4Addr> {
    let frames = core::iter::from_fn(|| stack.poll_transmit(now));
    let asked = frames.map(|transmit| {
        let (header, packet) = ethernet::Repr::parse(transmit.header.as_slice()).unwrap();
        assert_eq!(header.ethertype, ethernet::EtherType::ARP);
        arp::Repr::parse(packet).unwrap().target_ip
    });
    asked.collect()
}

/// The address of the n-th neighbour that does not answer.
fn silent(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + n)
}

/// Lets `stack` handle its timers up to `end`, and gives the addresses that it asks for, and the number of wakes.
fn wait(stack: &mut Stack, end: Instant) -> (Vec<Ipv4Addr>, usize) {
    let (mut all, mut wakes) = (Vec::new(), 0);
    while let Some(at) = stack.next_timeout().filter(|at| *at <= end) {
        wakes += 1;
        stack.handle_timeout(at);
        all.extend(asked(stack, at));
        stack.settle_timeouts();
    }
    (all, wakes)
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn neighbours_that_do_not_answer_cost_little_and_delay_nobody_else() {
    const QPS: u32 = 50_000;
    let mut stack = stack();
    for n in 0..QPS {
        let dgid = Gid::from_ipv4(silent(n));
        listen(&mut stack, Instant(0), Qpn::new(0x1000 + n).unwrap(), 0, 1, dgid);
    }
    let (first, wakes) = wait(&mut stack, Instant(SECOND));
    assert!(first.len() < 1200 && wakes < 2400, "{} requests, {wakes} wakes", first.len());

    // Another client's neighbour is asked for at once, also where the first client wants the same
    // and has not had its turn.
    for (n, peer) in [(0, Ipv4Addr::new(10, 0, 0, 2)), (1, silent(QPS - 1))] {
        assert!(!first.contains(&peer));
        let qpn = Qpn::new(0x10 + n).unwrap();
        listen(&mut stack, Instant(SECOND), qpn, 1, 1, Gid::from_ipv4(peer));
        assert!(asked(&mut stack, Instant(SECOND)).contains(&peer), "{peer}");
    }

    // Nor is one of the first client's own held up by those that were asked for before.
    let (mut later, _) = wait(&mut stack, Instant(60 * SECOND));
    let mut all = first;
    all.append(&mut later);
    assert!(all.len() < 61 * 1200, "{} requests", all.len());
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), QPS as usize + 1, "each is asked for");
    let late = Ipv4Addr::new(10, 0, 0, 3);
    let now = Instant(60 * SECOND);
    listen(&mut stack, now, Qpn::new(0x12).unwrap(), 0, 1, Gid::from_ipv4(late));
    let (next, _) = wait(&mut stack, now.after(Duration::from_millis(2)));
    assert!(next.contains(&late), "{next:?}");

    for n in 0..QPS {
        stack.destroy_qp(Qpn::new(0x1000 + n).unwrap());
    }
    for n in 0..3 {
        stack.destroy_qp(Qpn::new(0x10 + n).unwrap());
    }
    assert_eq!(stack.next_timeout(), None);
}

#[test]
fn the_end_of_a_queue_pair_costs_nothing_for_others_that_are_ready() {
    const QPS: u32 = 10_000;
    let mut stack = stack();
    let own = stack.gid(0).unwrap();
    let qpn = |n| Qpn::new(0x1000 + n).unwrap();
    for n in 0..QPS {
        connect(&mut stack, qpn(n), 0, own);
        stack.post_send(Instant(0), qpn(n), SEND).unwrap();
    }
    let last = |stack: &Stack| stack.shared.ready.last(0);
    let (before, end) = (stack.shared.ready.len(), last(&stack));
    assert_eq!(before, QPS as usize);
    // One is reset, one is destroyed, and one is destroyed whose slot another takes. Nobody looks for
    // them among the others.
    let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
    stack.modify_qp(Instant(0), qpn(1), &reset).unwrap();
    stack.destroy_qp(qpn(2));
    stack.destroy_qp(qpn(3));
    assert_eq!((stack.shared.ready.len(), last(&stack)), (before, end));
    connect(&mut stack, qpn(QPS), 0, own);
    stack.post_send(Instant(0), qpn(QPS), SEND).unwrap();
    assert_eq!(stack.shared.ready.len(), before, "it has the place of the one before");
    let sent = core::iter::from_fn(|| stack.poll_transmit(Instant(0))).count();
    assert_eq!(sent, QPS as usize - 2);
    assert_eq!(stack.shared.ready.len(), 0);
    // A queue pair that had another's turn comes into the queue by itself again.
    stack.destroy_qp(qpn(QPS));
    connect(&mut stack, qpn(QPS), 0, own);
    stack.post_send(Instant(0), qpn(QPS), SEND).unwrap();
    assert!(stack.poll_transmit(Instant(0)).is_some() && stack.poll_transmit(Instant(0)).is_none());
}

/// A queue pair that had a thousand messages under way keeps no room for them.
#[test]
fn a_send_ring_gives_back_the_room_that_it_had() {
    let mut stack = stack();
    let (qpn, own) = (Qpn::new(0x100).unwrap(), stack.gid(0).unwrap());
    connect(&mut stack, qpn, 0, own);
    let room = |stack: &Stack| connected(stack, qpn).requester.messages.capacity();
    for count in [param::SEND_RING as u32, 8, 100] {
        let now = Instant(0);
        let first = connected(&stack, qpn).requester.next_psn().value();
        while stack.send_room(qpn) > param::SEND_RING - count as usize {
            stack.post_send(now, qpn, WRITE).unwrap();
        }
        assert!(room(&stack) >= count as usize && room(&stack) <= 2 * count.max(32) as usize);
        let mut acknowledged = 0;
        while acknowledged < count {
            while stack.poll_transmit(now).is_some() {
                acknowledged += 1;
            }
            let psn = first.wrapping_add(acknowledged - 1);
            answer(&mut stack, now, qpn, psn, Syndrome::Ack { credits: 31 });
            stack.narrow(qpn);
            let left = (count - acknowledged) as usize;
            assert!(room(&stack) <= (4 * left).max(param::KEPT_MESSAGES), "{left} are left");
        }
    }
    stack.modify_qp(Instant(0), qpn, &to_error()).unwrap();
    assert_eq!(room(&stack), 0);
}

fn connected(stack: &Stack, qpn: Qpn) -> &RcQp {
    match stack.slots.get(stack.slot(qpn).unwrap()).unwrap() {
        Slot::Rc(qp) => qp,
        other => panic!("{other:?}"),
    }
}

fn to_error() -> QpAttributes {
    QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() }
}
