//! Placements that are not known at the commit: their queue pair waits, and no other does.

use netsim::memory::Memory as _;
use roce::opcode::code;
use roce::{Event, Instant, PathMtu, Placed, QpAttributes, QpState, SendRequest};

use crate::connection::Options;
use crate::puppet::{
    Puppet, RKEY, RQ_PSN, SQ_PSN, Say, Sent, VA, ack, fetch_add, rdma, request, response,
};

/// The frames and events of the stack.
type Outcome = (Vec<Sent>, Vec<Event>);

fn puppet() -> Puppet {
    let mut puppet = Puppet::new(&Options { mtu: PathMtu::Mtu256, ..Options::default() });
    for _ in 0..2 {
        puppet.node.memory.post_receive(puppet.qpn, 4096);
    }
    puppet
}

/// Feeds a burst, and has the placements go; they are known late where `late` says so, and then as `ends` says.
fn feed(
    puppet: &mut Puppet,
    says: &[Say],
    late: bool,
    ends: fn(usize, Placed) -> Placed,
) -> Outcome {
    let now = Instant(puppet.now);
    let mut frames: Vec<Vec<u8>> = says.iter().map(|say| puppet.frame(say)).collect();
    let node = &mut puppet.node;
    let mut placements = Vec::new();
    for (index, frame) in frames.iter_mut().enumerate() {
        let taken = node.stack.receive(now, frame, index, &mut node.memory, &mut placements);
        assert!(taken.is_ready());
    }
    let placed = placements.iter().map(|it| node.memory.place(it, &frames[it.frame_index]));
    let placed: Vec<_> = placed.enumerate().map(|(number, it)| ends(number, it)).collect();
    if !late {
        node.stack.commit(now, &placed);
        return (puppet.drain(), puppet.events());
    }
    node.stack.commit(now, &vec![Placed::Later; placed.len()]);
    assert_eq!(node.stack.is_unsettled(puppet.qpn), !placed.is_empty());
    assert_eq!((puppet.drain(), puppet.events()), (vec![], vec![]));
    if !placed.is_empty() {
        // Packets that come now wait, without any effect.
        let more = puppet.frame(&rdma(code::WRITE_ONLY, RQ_PSN + 9, 0, 8, vec![9; 8]));
        let node = &mut puppet.node;
        let before = node.stack.counters().rcvd_pkts;
        let mut bytes = more.clone();
        let again = node.stack.receive(now, &mut bytes, 0, &mut node.memory, &mut Vec::new());
        assert!(again.is_pending());
        node.stack.commit(now, &[]);
        assert_eq!(node.stack.counters().rcvd_pkts, before);
        // It cannot be let go before that is known.
        node.stack.go_on(puppet.qpn);
        assert_eq!((puppet.drain(), puppet.events()), (vec![], vec![]));
    }
    puppet.node.stack.settle(puppet.qpn, &placed);
    puppet.node.stack.go_on(puppet.qpn);
    (puppet.drain(), puppet.events())
}

/// RC-46, RC-47.
#[test]
fn what_is_known_late_comes_to_the_same() {
    let write = |psn| rdma(code::WRITE_ONLY, psn, 0, 8, vec![1; 8]);
    let read = |psn| rdma(code::READ_REQUEST, psn, 0, 600, vec![]);
    let send = |psn| request(code::SEND_ONLY, psn, vec![2; 8]);
    let all = |_, placed| placed;
    let not_the_second: fn(usize, Placed) -> Placed =
        |number, placed| if number == 1 { Placed::Failed } else { placed };
    for says in [
        vec![write(RQ_PSN)],
        vec![send(RQ_PSN), send(RQ_PSN + 1)],
        vec![write(RQ_PSN), read(RQ_PSN + 1)],
        vec![write(RQ_PSN), fetch_add(RQ_PSN + 1, VA, 3), write(RQ_PSN + 2)],
        vec![write(RQ_PSN), send(RQ_PSN + 1), write(RQ_PSN + 2)],
    ] {
        for ends in [all, not_the_second] {
            let [at_once, late] = [false, true].map(|late| {
                let mut puppet = puppet();
                let outcome = feed(&mut puppet, &says, late, ends);
                (outcome, puppet.state())
            });
            assert_eq!(at_once, late, "{says:?}");
        }
    }
}

/// RC-86.
#[test]
fn a_read_that_is_placed_late_completes_late() {
    for (ends, state) in [
        ((|_, placed| placed) as fn(usize, Placed) -> Placed, QpState::Rts),
        (|_, _| Placed::Failed, QpState::Err),
    ] {
        let [at_once, late] = [false, true].map(|late| {
            let mut puppet = puppet();
            puppet.post(roce::Operation::Read, 8);
            puppet.round();
            let say = response(code::READ_RESPONSE_ONLY, SQ_PSN, vec![7; 8]);
            let outcome = feed(&mut puppet, &[say], late, ends);
            assert_eq!(puppet.state(), state);
            outcome
        });
        assert_eq!(at_once, late);
        assert!(!late.1.is_empty());
    }
}

/// RC-82.
#[test]
fn a_queue_pair_that_begins_anew_waits_for_nothing_of_before() {
    let mut puppet = puppet();
    let now = Instant(puppet.now);
    let mut frame = puppet.frame(&request(code::SEND_ONLY, RQ_PSN, vec![2; 8]));
    let node = &mut puppet.node;
    let mut placements = Vec::new();
    let _ = node.stack.receive(now, &mut frame, 0, &mut node.memory, &mut placements);
    node.stack.commit(now, &[Placed::Later]);
    let state = Some(QpState::Reset);
    node.stack
        .modify_qp(now, puppet.qpn, &QpAttributes { state, ..QpAttributes::default() })
        .unwrap();
    assert!(!node.stack.is_unsettled(puppet.qpn));
    node.stack.settle(puppet.qpn, &[Placed::Copied]);
    assert_eq!((puppet.drain(), puppet.events()), (vec![], vec![]));

    // It began anew before the commit.
    let mut puppet = self::puppet();
    let mut frame = puppet.frame(&request(code::SEND_ONLY, RQ_PSN, vec![2; 8]));
    let node = &mut puppet.node;
    let _ = node.stack.receive(now, &mut frame, 0, &mut node.memory, &mut Vec::new());
    node.stack
        .modify_qp(now, puppet.qpn, &QpAttributes { state, ..QpAttributes::default() })
        .unwrap();
    node.stack.commit(now, &[Placed::Later]);
    assert!(!node.stack.is_unsettled(puppet.qpn));
}

#[test]
fn a_queue_pair_that_is_paused_sends_nothing_until_it_goes_on() {
    let mut puppet = puppet();
    puppet.node.stack.pause(puppet.qpn);
    puppet.post_request(SendRequest {
        operation: roce::Operation::Write,
        length: 8,
        remote_va: VA,
        rkey: RKEY,
        imm: 0,
        solicited: false,
        fence: false,
    });
    assert_eq!(puppet.drain(), []);
    assert_eq!(puppet.say(&[rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8])]), []);
    puppet.node.stack.go_on(puppet.qpn);
    assert_eq!(puppet.drain().len(), 2, "its answer, and its request");
}

/// RC-75: only the layer above is silent.
#[test]
fn a_queue_pair_that_is_paused_has_no_fewer_retries() {
    let mut puppet = puppet();
    let number = puppet.post(roce::Operation::Write, 8);
    assert_eq!(puppet.drain().len(), 1);
    puppet.node.stack.pause(puppet.qpn);
    for _ in 0..30 {
        assert_eq!(puppet.time_out().1, []);
    }
    assert_eq!((puppet.state(), puppet.events()), (QpState::Rts, vec![]));
    puppet.node.stack.go_on(puppet.qpn);
    assert_eq!(puppet.drain(), []);
    // Its timer is there as before.
    assert_eq!(puppet.time_out().1.len(), 1);
    assert_eq!(puppet.say(&[ack(SQ_PSN)]), []);
    let qpn = puppet.qpn;
    assert_eq!(puppet.events(), [Event::SendsCompleted { qpn, through: number }]);
}
