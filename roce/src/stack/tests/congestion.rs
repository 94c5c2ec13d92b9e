//! Marks and notifications between two ports.

use super::*;
use crate::api::Placed;
use crate::congestion::NotificationPoint;
use crate::window::{Dcqcn, DcqcnParameters};

pub(super) const QPN: u32 = 0x0000_00d2;

/// Two ports with a queue pair each of that number, connected.
pub(super) fn pair(service: Service) -> [Stack; 2] {
    pair_with(service, |_| {})
}

/// The same, of ports that were set up in some way.
pub(super) fn pair_with(service: Service, set_up: impl Fn(&mut Stack)) -> [Stack; 2] {
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    [(1, 2), (2, 1)].map(|(own, peer)| {
        let ipv4 = Ipv4Addr::new(10, 0, 0, own);
        let (mtu_max, icrc_policy) = (PathMtu::Mtu4096, IcrcPolicy::CheckAll);
        let mut stack = Stack::new(StackConfig { mac: mac(own), ipv4, mtu_max, icrc_policy });
        set_up(&mut stack);
        let qpn = Qpn::new(QPN).unwrap();
        stack.create_qp(qpn, service, 0).unwrap();
        let dgid = Gid::from_ipv6(mac(peer).link_local());
        let path = AddressVector { traffic_class: 26 << 2, ..AddressVector::new(0, dgid) };
        for change in connection(service, path, qpn) {
            stack.modify_qp(Instant(0), qpn, &change).unwrap();
        }
        stack
    })
}

/// The next frame of a port, sealed.
pub(super) fn next(stack: &mut Stack, now: Instant) -> Option<Vec<u8>> {
    let transmit = stack.poll_transmit(now)?;
    stack.frames_made();
    let payload = transmit.payload.map_or(0, |payload| payload.length as usize);
    Some(transmit.to_frame(&vec![0; payload]).unwrap())
}

/// Where the traffic class of a frame of IPv6 lies, and the Base Transport Header.
const CLASS: usize = 15;
const BTH: usize = 14 + 40 + 8;

fn class(frame: &[u8]) -> u8 {
    frame[CLASS - 1] << 4 | frame[CLASS] >> 4
}

fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[CLASS] |= 0x30;
    frame
}

/// A layer above that allows everything.
struct Allowing;

impl ResponderMemory for Allowing {
    fn check_remote(
        &mut self,
        _: Target,
        _: RemoteRange,
        _: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        Poll::Ready(Ok(()))
    }

    fn take_receive(&mut self, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        Poll::Ready(Ok(TakenReceive { id: 0, capacity: 4096, left: Some(1) }))
    }
}

pub(super) fn deliver(stack: &mut Stack, now: Instant, bytes: Vec<u8>) {
    let (mut frame, mut placements) =
        (Delivered { bytes, vouched_for: false, looped: false }, Vec::new());
    assert!(stack.receive(now, &mut frame, 0, &mut Allowing, &mut placements).is_ready());
    stack.commit(now, &vec![Placed::Copied; placements.len()]);
}

fn request(from: &mut Stack, now: Instant) -> Vec<u8> {
    from.post_send(now, Qpn::new(QPN).unwrap(), WRITE).unwrap();
    next(from, now).unwrap()
}

pub(super) fn opcode(frame: &[u8]) -> u8 {
    frame[BTH]
}

fn services() -> [Service; 2] {
    [Service::Rc, Service::Uc]
}

/// RC-94: the example of annex A17.9.3, but for addresses and checksum.
#[test]
fn a_notification_is_that_of_the_annex_byte_by_byte() {
    for service in services() {
        let [mut from, mut to] = pair(service);
        let now = Instant(1);
        let frame = request(&mut from, now);
        deliver(&mut to, now, marked(frame));
        let cnp = next(&mut to, now).unwrap();
        let mut expected = vec![0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2];
        expected.resize(12 + 16, 0);
        assert_eq!(cnp[BTH..cnp.len() - icrc::LENGTH], expected);
        assert_eq!(cnp[14 + 4..14 + 6], [0, 8 + 12 + 16 + 4], "the length");
        assert_eq!(class(&cnp), 26 << 2);
        let qpn = Qpn::new(QPN).unwrap();
        assert_eq!((to.counters().np_cnp_sent, to.qp_counters(qpn).unwrap().np_cnp_sent), (1, 1));
        // It is right, and heard.
        deliver(&mut from, now, cnp);
        let counters = from.counters();
        assert_eq!((counters.rp_cnp_ignored, counters.rcvd_pkts), (1, 1));
    }
}

/// RC-94, RC-95.
#[test]
fn a_port_notifies_as_it_is_told_to() {
    for service in services() {
        let [mut from, mut to] = pair(service);
        let point = NotificationPoint {
            min_time_between_cnps: 50,
            cnp_dscp: Some(48),
            ..NotificationPoint::default()
        };
        to.set_notification_point(point).unwrap();
        let mut sent = |to: &mut Stack, micros: u64| {
            let now = Instant(micros * 1_000);
            let frame = request(&mut from, now);
            deliver(to, now, marked(frame));
            let frames: Vec<_> = core::iter::from_fn(|| next(to, now)).collect();
            frames.into_iter().find(|frame| opcode(frame) == code::CNP)
        };
        assert_eq!(sent(&mut to, 100).map(|cnp| class(&cnp)), Some(48 << 2));
        assert_eq!(sent(&mut to, 149), None);
        assert!(sent(&mut to, 150).is_some());
        let bad = NotificationPoint { cnp_dscp: Some(64), ..point };
        assert!(to.set_notification_point(bad).is_err());
        assert!(sent(&mut to, 200).is_some_and(|cnp| class(&cnp) == 48 << 2), "nothing changed");
        to.set_notification_point(NotificationPoint { enable: false, ..point }).unwrap();
        assert_eq!(sent(&mut to, 1_000), None);
        let counters = to.counters();
        assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (5, 3));
    }
}

/// RC-17, RC-95.
#[test]
fn of_marked_packets_that_are_not_taken_nobody_is_notified() {
    for service in services() {
        let [mut from, mut to] = pair(service);
        let frame = request(&mut from, Instant(1));
        let with = |at: usize, value: u8| {
            let mut other = frame[..frame.len() - icrc::LENGTH].to_vec();
            other[at] = value;
            other.resize(frame.len(), 0);
            icrc::append(&mut other).unwrap();
            marked(other)
        };
        // Another service's, a stranger's, and another partition's.
        let others = [with(BTH, opcode(&frame) ^ 0x20), with(14 + 23, 9), with(BTH + 2, 0x12)];
        for other in others {
            deliver(&mut to, Instant(1), other);
            assert_eq!(next(&mut to, Instant(1)), None);
        }
        let counters = to.counters();
        assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (1, 0));
        deliver(&mut to, Instant(1), marked(frame));
        assert_eq!(next(&mut to, Instant(1)).map(|cnp| opcode(&cnp)), Some(code::CNP));
    }
}

/// RC-94, UC-5: a queue pair whose sends have failed receives all the same.
#[test]
fn a_queue_pair_that_may_not_send_any_more_notifies_of_what_it_receives() {
    let [mut from, mut to] = pair(Service::Uc);
    let (qpn, now) = (Qpn::new(QPN).unwrap(), Instant(1));
    to.post_send(now, qpn, SendRequest { length: 4, ..WRITE }).unwrap();
    let payload = to.poll_transmit(now).unwrap().payload.unwrap();
    to.payload_failed(now, qpn, &payload);
    to.frames_made();
    assert_eq!(to.query_qp(qpn).unwrap().state, QpState::Sqe);
    let frame = request(&mut from, now);
    deliver(&mut to, now, marked(frame));
    assert_eq!(next(&mut to, now).map(|cnp| opcode(&cnp)), Some(code::CNP));
    assert_eq!(next(&mut to, now), None);
}

const LINE: u64 = 40_000_000_000;

fn react(stack: &mut Stack) {
    let dcqcn = Dcqcn::new(LINE, DcqcnParameters::paper(LINE)).unwrap();
    stack.set_windows(dcqcn.windows());
}

/// RC-17: switches may mark the paced packets of a queue pair whose window reacts, and no others.
#[test]
fn what_a_reacting_window_paces_may_be_marked_and_what_answers_may_not() {
    const ECT: u8 = 26 << 2 | 2;
    for service in services() {
        let [mut from, _] = pair_with(service, react);
        assert_eq!(class(&request(&mut from, Instant(1))), ECT);
        let [mut from, _] = pair(service);
        assert_eq!(class(&request(&mut from, Instant(1))), 26 << 2);
    }
    let [mut from, mut to] = pair_with(Service::Rc, react);
    let (qpn, now) = (Qpn::new(QPN).unwrap(), Instant(1));
    let read = SendRequest { operation: Operation::Read, length: 3_000, rkey: 7, ..SEND };
    from.post_send(now, qpn, read).unwrap();
    let asked = next(&mut from, now).unwrap();
    assert_eq!((opcode(&asked), class(&asked)), (code::READ_REQUEST, ECT));
    deliver(&mut to, now, marked(asked));
    let mut sent = Vec::new();
    let mut now = now;
    while let Some(frame) = next(&mut to, now).or_else(|| {
        now = to.next_timeout()?;
        to.handle_timeout(now);
        next(&mut to, now)
    }) {
        sent.push((opcode(&frame), class(&frame)));
    }
    let responses =
        [code::READ_RESPONSE_FIRST, code::READ_RESPONSE_MIDDLE, code::READ_RESPONSE_LAST];
    let expected: Vec<_> = responses.map(|opcode| (opcode, ECT)).into();
    assert_eq!(sent[0], (code::CNP, 26 << 2));
    assert_eq!(sent[1..], expected);
    from.post_send(now, qpn, WRITE).unwrap();
    let mut write = || next(&mut from, now).filter(|frame| opcode(frame) == code::WRITE_ONLY);
    deliver(&mut to, now, write().unwrap());
    let answer = next(&mut to, now).unwrap();
    assert_eq!((opcode(&answer), class(&answer)), (code::ACKNOWLEDGE, 26 << 2));
}

/// RC-96.
#[test]
fn notifications_slow_down_whom_they_are_for_and_the_others_are_counted() {
    for service in services() {
        let [mut from, mut to] = pair_with(service, react);
        // A notification for which no host can have had a reason.
        let cnp = {
            let [mut from, mut to] = pair(service);
            deliver(&mut to, Instant(1), marked(request(&mut from, Instant(1))));
            next(&mut to, Instant(1)).unwrap()
        };
        deliver(&mut from, Instant(1), cnp.clone());
        let counted = |stack: &Stack| {
            let counters = stack.counters();
            (counters.rp_cnp_handled, counters.rp_cnp_ignored)
        };
        assert_eq!(counted(&from), (0, 1));
        let frame = request(&mut from, Instant(2));
        deliver(&mut to, Instant(2), marked(frame));
        let heard =
            core::iter::from_fn(|| next(&mut to, Instant(2))).find(|it| opcode(it) == code::CNP);
        deliver(&mut from, Instant(3), heard.unwrap());
        assert_eq!(counted(&from), (1, 1));
        // As many as come at once count as are sent in 100 µs.
        (0..100).for_each(|_| deliver(&mut from, Instant(4), cnp.clone()));
        assert_eq!(counted(&from), (25, 77));
    }
}
