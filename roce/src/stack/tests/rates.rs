//! Queue pairs that keep to a rate, their own or their path's.

use super::congestion::{QPN, deliver, next, opcode, pair};
use super::*;
use crate::api::DatagramRequest;
use crate::window::RateLimit;

/// 1 Gb/s: each byte takes 8 ns.
const RATE: RateLimit = RateLimit { kilobits: 1_000_000, burst: 0 };
/// The code of 2.5 Gb/s, at which five bytes take 16 ns.
const SLOW_PATH: u8 = 2;

fn qpn() -> Qpn {
    Qpn::new(QPN).unwrap()
}

fn limited_to(rate_limit: RateLimit) -> QpAttributes {
    QpAttributes { rate_limit: Some(rate_limit), ..QpAttributes::default() }
}

fn limit(stack: &mut Stack, now: Instant, rate_limit: RateLimit) {
    stack.modify_qp(now, qpn(), &limited_to(rate_limit)).unwrap();
}

/// A frame that a port has sent.
struct Sent {
    port: usize,
    at: u64,
    opcode: u8,
    bytes: u64,
}

/// Lets two ports talk until nothing happens within a second any more.
fn talk(ports: &mut [Stack; 2], mut now: Instant) -> Vec<Sent> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        for port in [0, 1] {
            while let Some(frame) = next(&mut ports[port], now) {
                let (opcode, bytes) = (opcode(&frame), frame.len() as u64);
                all.push(Sent { port, at: now.0, opcode, bytes });
                deliver(&mut ports[1 - port], now, frame);
            }
        }
        if all.len() != before {
            continue;
        }
        let due = ports.iter().filter_map(Stack::next_timeout).min();
        match due.filter(|due| *due < Instant(now.0 + Instant::SECOND)) {
            Some(due) => now = now.max(due),
            None => return all,
        }
        ports.iter_mut().for_each(|port| port.handle_timeout(now));
    }
}

/// Checks that each of some frames leaves when those before it have had their time.
fn are_paced(frames: &[&Sent], begin: u64, nanos_of: impl Fn(u64) -> u64) {
    let mut bytes = 0;
    for frame in frames {
        assert_eq!(frame.at, begin + nanos_of(bytes));
        bytes += frame.bytes;
    }
}

/// RC-109.
#[test]
fn requests_leave_at_the_rate_of_their_queue_pair_and_answers_at_once() {
    for service in [Service::Rc, Service::Uc] {
        let mut ports = pair(service);
        ports.iter_mut().for_each(|port| limit(port, Instant(0), RATE));
        for _ in 0..10 {
            ports[0].post_send(Instant(0), qpn(), SendRequest { length: 2_048, ..WRITE }).unwrap();
        }
        let sent = talk(&mut ports, Instant(0));
        let of = |port| sent.iter().filter(|it| it.port == port).collect::<Vec<_>>();
        let requests = of(0);
        assert_eq!(requests.len(), 20);
        are_paced(&requests, 0, |bytes| 8 * bytes);
        let answers = of(1);
        assert_eq!(answers.is_empty(), service == Service::Uc);
        for answer in answers {
            assert_eq!(answer.opcode, code::ACKNOWLEDGE);
            assert!(requests.iter().any(|it| it.at == answer.at));
        }
    }
}

/// RC-109.
#[test]
fn read_responses_leave_at_the_rate_of_the_queue_pair_that_answers() {
    let mut ports = pair(Service::Rc);
    limit(&mut ports[1], Instant(0), RATE);
    let read = SendRequest { operation: Operation::Read, length: 10 << 10, rkey: 7, ..SEND };
    ports[0].post_send(Instant(0), qpn(), read).unwrap();
    let sent = talk(&mut ports, Instant(0));
    let responses: Vec<_> = sent.iter().filter(|it| it.port == 1).collect();
    assert_eq!((sent.len(), responses.len()), (11, 10));
    are_paced(&responses, 0, |bytes| 8 * bytes);
}

/// RC-109.
#[test]
fn a_path_has_a_rate_and_the_slower_of_both_counts() {
    for (rate_limit, nanos_of) in [
        (RateLimit::default(), (|bytes| bytes * 16 / 5) as fn(u64) -> u64),
        (RATE, |bytes| 8 * bytes),
    ] {
        let mut ports = pair(Service::Uc);
        let port = &mut ports[0];
        let path = port.query_qp(qpn()).unwrap().path.unwrap();
        port.modify_qp(
            Instant(0),
            qpn(),
            &QpAttributes { state: Some(QpState::Reset), ..Default::default() },
        )
        .unwrap();
        let path = AddressVector { static_rate: SLOW_PATH, ..path };
        let [init, rtr, rts] = connection(Service::Uc, path, qpn());
        for change in [init, rtr, QpAttributes { rate_limit: Some(rate_limit), ..rts }] {
            port.modify_qp(Instant(0), qpn(), &change).unwrap();
        }
        port.post_send(Instant(0), qpn(), SendRequest { length: 5 << 10, ..WRITE }).unwrap();
        let sent = talk(&mut ports, Instant(0));
        assert_eq!(sent.len(), 5);
        are_paced(&sent.iter().collect::<Vec<_>>(), 0, nanos_of);
        let now = ports[0].query_qp(qpn()).unwrap();
        assert_eq!((now.path.unwrap(), now.rate_limit), (path, rate_limit.kilobits));
    }
}

/// RC-109: behind a datagram to a slow destination the next one waits, wherever it goes.
#[test]
fn datagrams_keep_to_the_rates_of_their_destinations() {
    let mut stack = stack();
    let dgid = Gid::from_ipv6(MacAddr([2, 0, 0, 0, 0, 2]).link_local());
    let vector = AddressVector::new(0, dgid);
    let slow = AddressVector { static_rate: SLOW_PATH, ..vector };
    stack.create_ah(Instant(0), 0, 0, &vector).unwrap();
    stack.create_ah(Instant(0), 1, 0, &slow).unwrap();
    stack.create_qp(qpn(), Service::Ud, 0).unwrap();
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    let init = QpAttributes { pkey_index: Some(0), qkey: Some(1), ..to(QpState::Init) };
    let rts = QpAttributes { sq_psn: Some(Psn::new(0)), ..to(QpState::Rts) };
    for change in [init, to(QpState::Rtr), rts] {
        stack.modify_qp(Instant(0), qpn(), &change).unwrap();
    }
    let handles = [1, 0, 0, 1, 1];
    for ah in handles {
        let (dest_qpn, imm) = (qpn(), None);
        let request =
            DatagramRequest { ah, dest_qpn, qkey: 1, length: 1_000, imm, solicited: false };
        stack.post_datagram(qpn(), request).unwrap();
    }
    let (mut now, mut at, mut length) = (Instant(0), Vec::new(), 0);
    while at.len() < handles.len() {
        match next(&mut stack, now) {
            Some(frame) => {
                at.push(now.0);
                length = frame.len() as u64;
            }
            None => {
                now = stack.next_timeout().unwrap();
                stack.handle_timeout(now);
            }
        }
    }
    let apart = length * 16 / 5;
    let expected = [0, apart, apart, apart, 2 * apart];
    let near = at.iter().zip(expected).all(|(at, expected)| at.abs_diff(expected) <= 1);
    assert!(near, "{at:?}, {expected:?}");
}

/// RC-109.
#[test]
fn a_limit_is_lifted_at_once_and_ends_with_a_reset() {
    let [mut stack, _] = pair(Service::Uc);
    limit(&mut stack, Instant(0), RATE);
    for _ in 0..5 {
        stack.post_send(Instant(0), qpn(), SendRequest { length: 1_000, ..WRITE }).unwrap();
    }
    let count = |stack: &mut Stack| core::iter::from_fn(|| next(stack, Instant(1))).count();
    assert_eq!(count(&mut stack), 1);
    let leaves = stack.next_timeout();
    // Ten times as fast, from the packet on that waits.
    limit(&mut stack, Instant(1), RateLimit { kilobits: 10_000_000, ..RATE });
    assert_eq!((count(&mut stack), stack.next_timeout()), (0, leaves));
    limit(&mut stack, Instant(1), RateLimit::default());
    assert_eq!(count(&mut stack), 4);
    stack.settle_timeouts();
    assert_eq!(stack.next_timeout(), None);
    limit(&mut stack, Instant(1), RATE);
    let path = stack.query_qp(qpn()).unwrap().path.unwrap();
    let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
    stack.modify_qp(Instant(1), qpn(), &reset).unwrap();
    assert_eq!(stack.query_qp(qpn()).unwrap().rate_limit, 0);
    for change in connection(Service::Uc, path, qpn()) {
        stack.modify_qp(Instant(1), qpn(), &change).unwrap();
    }
    stack.post_send(Instant(1), qpn(), SendRequest { length: 5_000, ..WRITE }).unwrap();
    assert_eq!(count(&mut stack), 5);
}

/// RC-78, RC-109.
#[test]
fn rates_that_are_none_are_refused_and_change_nothing() {
    let [mut stack, _] = pair(Service::Rc);
    limit(&mut stack, Instant(0), RATE);
    let drained = QpAttributes { state: Some(QpState::Sqd), ..QpAttributes::default() };
    stack.modify_qp(Instant(0), qpn(), &drained).unwrap();
    let path = stack.query_qp(qpn()).unwrap().path.unwrap();
    let code = AddressVector { static_rate: 1, ..path };
    let of = |rate_limit| limited_to(RateLimit { burst: 10, ..rate_limit });
    for bad in [
        of(RateLimit::default()),
        of(RateLimit { kilobits: 1, ..RATE }),
        of(RateLimit { kilobits: u32::MAX, ..RATE }),
        QpAttributes { path: Some(code), ..QpAttributes::default() },
    ] {
        let refused = stack.modify_qp(Instant(0), qpn(), &bad).unwrap_err();
        assert!(matches!(refused, Error::BadRate { .. } | Error::NoRate(1)), "{refused}");
        let now = stack.query_qp(qpn()).unwrap();
        assert_eq!((now.rate_limit, now.path.unwrap()), (RATE.kilobits, path));
    }
    assert_eq!(stack.create_ah(Instant(0), 1, 0, &code), Err(Error::NoRate(1)));
}
