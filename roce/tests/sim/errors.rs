//! Scenarios that end in an error, between two whole stacks.

use netsim::config::Faults;
use roce::{
    Event, Instant, Operation, PathMtu, QpEvent, QpState, ReceiveStatus, SendRequest, SendStatus,
};

use crate::connection::{End, Options};
use crate::for_each_seed;
use crate::memory::{Local, Region};
use crate::network::{Network, bad, card};

const SECOND: u64 = 1_000_000_000;
const RKEY: u32 = 0x55;
const VA: u64 = 0x9000;

/// Two connected nodes; the second has a region of 64 KiB.
fn pair(seed: u64, faults: Faults, options: &Options) -> (Network, End, End) {
    let mut network = Network::new(seed, 2, faults);
    let (a, b) = network.connect(0, 1, options);
    let region = Region { va: VA, bytes: vec![7; 65_536], writable: true };
    network.sim.hosts[1].memory.regions.insert(RKEY, region);
    (network, a, b)
}

fn request(operation: Operation, length: u32) -> SendRequest {
    SendRequest {
        operation,
        length,
        remote_va: VA,
        rkey: RKEY,
        imm: 0,
        solicited: false,
        fence: false,
    }
}

fn post(network: &mut Network, end: End, request: SendRequest, local: Local) -> u64 {
    let now = Instant(network.now());
    let node = &mut network.sim.hosts[end.node];
    let number = node.stack.post_send(now, end.qpn, request).unwrap();
    node.memory.messages.insert((end.qpn.value(), number), local);
    network.wake(end.node);
    number
}

fn post_plain(network: &mut Network, end: End, operation: Operation, length: u32) -> u64 {
    let local = match operation {
        Operation::Read => Local::Buffer(vec![0; length as usize]),
        _ => Local::Pattern(1),
    };
    post(network, end, request(operation, length), local)
}

/// Runs until `end` is in the error state, and a little longer.
fn run_to_error(network: &mut Network, end: End) {
    let deadline = network.now() + 20 * SECOND;
    let entered = network.run(deadline, |network| network.state(end) == QpState::Err);
    assert!(entered, "no error within 20 s");
    let deadline = network.now() + SECOND;
    network.run(deadline, |_| false);
}

fn failed(end: End, message: u64, status: SendStatus) -> Event {
    Event::SendFailed { qpn: end.qpn, message, status }
}

fn entered(end: End) -> Event {
    Event::EnteredError { qpn: end.qpn }
}

fn events(network: &mut Network, end: End) -> Vec<Event> {
    std::mem::take(&mut network.sim.hosts[end.node].events)
}

/// RC-75.
#[test]
fn a_peer_that_goes_dead_exceeds_the_retries_in_time() {
    for ipv4 in [true, false] {
        let options = Options { ipv4, retry_cnt: 3, ..Options::default() };
        let (mut network, a, b) = pair(1, Faults::NONE, &options);
        post_plain(&mut network, a, Operation::Write, 100);
        let done = network.run(SECOND, |network| !network.sim.hosts[0].events.is_empty());
        assert!(done);
        assert!(matches!(events(&mut network, a)[..], [Event::SendsCompleted { through: 0, .. }]));
        network.sim.hosts[b.node].off = true;
        let start = network.now();
        post_plain(&mut network, a, Operation::Write, 5000);
        network.run(SECOND, |network| network.state(a) == QpState::Err);
        // Four timeouts of 4.096 µs · 2^8, and next to nothing besides.
        let elapsed = network.now() - start;
        assert!((4 * 1_048_576..4 * 1_048_576 + 20_000).contains(&elapsed), "{elapsed} ns");
        run_to_error(&mut network, a);
        let expected = [failed(a, 1, SendStatus::RetryExceeded), entered(a)];
        assert_eq!(events(&mut network, a), expected);
    }
}

#[test]
fn a_peer_that_was_never_there_exceeds_the_retries() {
    let mut network = Network::new(1, 2, Faults::NONE);
    network.sim.hosts[1].off = true;
    let (a, _) = network.connect(0, 1, &Options::default());
    post_plain(&mut network, a, Operation::Send, 1);
    run_to_error(&mut network, a);
    assert_eq!(events(&mut network, a), [failed(a, 0, SendStatus::RetryExceeded), entered(a)]);
    assert_eq!(network.sim.hosts[0].memory.roce_frames_sent, 0);
    assert!(network.sim.hosts[0].stack.counters().sent_arp_requests >= 6);
}

#[test]
fn a_peer_that_comes_back_with_another_ethernet_address_is_found_again() {
    let options = Options { timeout: 14, ..Options::default() };
    let (mut network, a, b) = pair(1, Faults::NONE, &options);
    post_plain(&mut network, a, Operation::Write, 100);
    network.run(SECOND, |network| !network.sim.hosts[0].events.is_empty());
    // The same port in another card: address, QP and memory stay, the Ethernet address changes.
    let (peer, own) = (network.sim.hosts[0].ipv4, network.sim.hosts[1].ipv4);
    let mut other = card(99);
    other.port = network.sim.hosts[1].port;
    other.ipv4 = own;
    other.stack = roce::Stack::new(roce::StackConfig {
        mac: other.mac,
        ipv4: own,
        mtu_max: PathMtu::Mtu4096,
        icrc_policy: roce::IcrcPolicy::CheckAll,
    });
    other.stack.create_qp(b.qpn, roce::Service::Rc, 0).unwrap();
    std::mem::swap(&mut other.memory, &mut network.sim.hosts[1].memory);
    let old = network.sim.hosts[1].stack.query_qp(b.qpn).unwrap();
    network.sim.hosts[1] = other;
    assert_eq!(network.sim.hosts[0].ipv4, peer);
    network.bring_up(b, a, old.sq_psn.value(), old.rq_psn.value(), &options);
    events(&mut network, a);
    post_plain(&mut network, a, Operation::Write, 100);
    let deadline = network.now() + SECOND;
    network.run(deadline, |network| !network.sim.hosts[0].events.is_empty());
    let through = Event::SendsCompleted { qpn: a.qpn, through: 1 };
    assert_eq!(events(&mut network, a), [through]);
}

/// RC-41, RC-60, RC-84, RC-88.
#[test]
fn a_bad_key_is_a_remote_access_error_on_both_sides() {
    for operation in [Operation::Write, Operation::WriteImm, Operation::Read] {
        let (mut network, a, b) = pair(1, Faults::NONE, &Options::default());
        post_plain(&mut network, a, Operation::Write, 100);
        let local = Local::Buffer(vec![0; 5000]);
        let local = if operation == Operation::Read { local } else { Local::Pattern(1) };
        post(&mut network, a, SendRequest { rkey: 0x66, ..request(operation, 5000) }, local);
        post_plain(&mut network, a, Operation::Write, 100);
        run_to_error(&mut network, a);
        assert_eq!(
            events(&mut network, a),
            [
                Event::SendsCompleted { qpn: a.qpn, through: 0 },
                failed(a, 1, SendStatus::RemoteAccess),
                entered(a)
            ]
        );
        let access = Event::Async { qpn: b.qpn, kind: QpEvent::AccessError };
        assert_eq!(events(&mut network, b), [access, entered(b)]);
        assert_eq!(network.sim.hosts[0].stack.counters().req_remote_access_errors, 1);
        assert_eq!(network.sim.hosts[1].stack.counters().resp_remote_access_errors, 1);
    }
}

/// RC-40, RC-60.
#[test]
fn a_message_too_long_is_an_invalid_request() {
    let (mut network, a, b) = pair(1, Faults::NONE, &Options::default());
    let id = network.sim.hosts[1].memory.post_receive(b.qpn, 2999);
    post_plain(&mut network, a, Operation::Send, 3000);
    run_to_error(&mut network, a);
    let invalid = failed(a, 0, SendStatus::RemoteInvalidRequest);
    assert_eq!(events(&mut network, a), [invalid, entered(a)]);
    let (qpn, status) = (b.qpn, ReceiveStatus::LocalLength);
    assert_eq!(
        events(&mut network, b),
        [Event::ReceiveFailed { qpn, srqn: None, id, status }, entered(b)]
    );
}

/// RC-65.
#[test]
fn no_receive_request_exceeds_the_rnr_retries() {
    let options = Options { rnr_retry: 2, min_rnr_timer: 10, ..Options::default() };
    let (mut network, a, _) = pair(1, Faults::NONE, &options);
    post_plain(&mut network, a, Operation::SendImm, 3000);
    run_to_error(&mut network, a);
    let exceeded = failed(a, 0, SendStatus::RnrRetryExceeded);
    assert_eq!(events(&mut network, a), [exceeded, entered(a)]);
    assert_eq!(network.sim.hosts[1].stack.counters().send_rnr_err, 3);
    assert_eq!(network.sim.hosts[0].stack.counters().retry_rnr_exceeded_err, 1);
}

/// RC-84, RC-85.
#[test]
fn unreadable_memory_fails_its_message_after_those_before_it() {
    for at in [0, 3] {
        let (mut network, a, b) = pair(1, Faults::NONE, &Options::default());
        for number in 0..6 {
            let local = if number == at { Local::Unreadable } else { Local::Pattern(number) };
            post(&mut network, a, request(Operation::Write, 3000), local);
        }
        run_to_error(&mut network, a);
        let mut got = events(&mut network, a);
        assert_eq!(
            got.split_off(got.len() - 2),
            [failed(a, at, SendStatus::LocalProtection), entered(a)]
        );
        let through = got.iter().map(|event| match event {
            Event::SendsCompleted { through, .. } => *through,
            other => panic!("{other:?}"),
        });
        assert_eq!(through.max(), at.checked_sub(1));
        assert_eq!(events(&mut network, b), []);
    }
}

/// RC-86.
#[test]
fn unwritable_memory_fails_a_read_and_nothing_before_it() {
    let (mut network, a, _) = pair(1, Faults::NONE, &Options::default());
    post_plain(&mut network, a, Operation::Read, 2000);
    post(&mut network, a, request(Operation::Read, 2000), Local::Unreadable);
    post_plain(&mut network, a, Operation::Read, 2000);
    run_to_error(&mut network, a);
    assert_eq!(
        events(&mut network, a),
        [
            Event::SendsCompleted { qpn: a.qpn, through: 0 },
            failed(a, 1, SendStatus::LocalProtection),
            entered(a)
        ]
    );
}

#[test]
fn errors_are_found_over_bad_cables_too() {
    for_each_seed("errors_are_found_over_bad_cables_too", 20, |seed| {
        let options = Options { mtu: PathMtu::Mtu256, ..Options::default() };
        let (mut network, a, b) = pair(seed, bad(200), &options);
        let operation = network.rng.pick(&[Operation::Write, Operation::Read]);
        let bad = network.rng.below(5);
        for number in 0..6 {
            let rkey = if number == bad { 0x66 } else { RKEY };
            let local = match operation {
                Operation::Read => Local::Buffer(vec![0; 1000]),
                _ => Local::Pattern(number),
            };
            post(&mut network, a, SendRequest { rkey, ..request(operation, 1000) }, local);
        }
        run_to_error(&mut network, a);
        let got = events(&mut network, a);
        // If the NAK is lost, the responder, already in its error state, stays silent; and the
        // requester may lack responses or acknowledgements from before.
        let failure = got.iter().find_map(|event| match *event {
            Event::SendFailed { message, status, .. } => Some((message, status)),
            _ => None,
        });
        match failure {
            Some((message, SendStatus::RemoteAccess)) => assert_eq!(message, bad),
            Some((message, SendStatus::RetryExceeded)) => assert!(message <= bad),
            other => panic!("{other:?}"),
        }
        assert_eq!(got.iter().filter(|event| **event == entered(a)).count(), 1);
        assert_eq!(network.state(b), QpState::Err);
    });
}
