//! Unreliable Connection: packets sent, taken and dropped.

use std::collections::BTreeMap;

use fpga_regs::engine::qp::{AttributeMask as M, QpType};
use fpga_regs::engine::transition;
use netsim::config::Faults;
use roce::opcode::code;
use roce::wire::reth;
use roce::{
    AccessFlags, AtomicOperation, Error, Event, Gid, Instant, Operation, PathMtu, PostError, Psn,
    QpAttributes, QpEvent, QpState, Qpn, ReceiveKind, ReceiveStatus, SendRequest, SendStatus,
};

use crate::connection::{End, Options, to_init, to_rtr, to_rts};
use crate::for_each_seed;
use crate::memory::{Local, Region};
use crate::network::{Network, bad};
use crate::puppet::{PEER_IP, PEER_QPN, Puppet, RKEY, RQ_PSN, SQ_PSN, Say, VA};
use crate::workload::{Flow, Plan};
use trial::rng::pattern_vec;

pub const UC: u8 = code::UNRELIABLE_CONNECTION;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

fn to(state: QpState) -> QpAttributes {
    QpAttributes { state: Some(state), ..QpAttributes::default() }
}

/// The changes that lead from RESET to RTS: those of a reliable connection, without its own attributes.
fn way(options: &Options, dgid: Gid, peer: Qpn, (sq_psn, rq_psn): (u32, u32)) -> [QpAttributes; 3] {
    let steps = [to_init(options), to_rtr(options, dgid, peer, rq_psn), to_rts(options, sq_psn)];
    steps.map(|change| QpAttributes {
        max_dest_rd_atomic: None,
        min_rnr_timer: None,
        timeout: None,
        retry_cnt: None,
        rnr_retry: None,
        max_rd_atomic: None,
        ..change
    })
}

fn create(network: &mut Network, node: usize, qpn: u32) -> End {
    let end = End { node, qpn: Qpn::new(qpn).unwrap() };
    network.sim.hosts[node].stack.create_qp(end.qpn, roce::Service::Uc, 0).unwrap();
    end
}

fn bring_up(network: &mut Network, own: End, peer: End, options: &Options) {
    let dgid = network.gid(peer.node, options.ipv4);
    let psns = if own < peer { (SQ_PSN, RQ_PSN) } else { (RQ_PSN, SQ_PSN) };
    for change in way(options, dgid, peer.qpn, psns) {
        network.modify(own, &change);
    }
}

pub fn connect(network: &mut Network, options: &Options) -> (End, End) {
    let (a, b) = (create(network, 0, 0x11), create(network, 1, 0x22));
    bring_up(network, a, b, options);
    bring_up(network, b, a, options);
    (a, b)
}

pub fn request(operation: Operation, length: u32) -> SendRequest {
    SendRequest {
        operation,
        length,
        remote_va: VA,
        rkey: RKEY,
        imm: 0x0102_0304,
        solicited: true,
        fence: false,
    }
}

pub fn post(network: &mut Network, from: End, request: SendRequest, key: u64) -> u64 {
    let now = Instant(network.now());
    let node = &mut network.sim.hosts[from.node];
    let number = node.stack.post_send(now, from.qpn, request).unwrap();
    node.memory.messages.insert((from.qpn.value(), number), Local::Pattern(key));
    network.wake(from.node);
    number
}

pub fn run(network: &mut Network, time: u64) -> [Vec<Event>; 2] {
    network.wake(0);
    network.wake(1);
    let deadline = network.now() + time;
    network.run(deadline, |_| false);
    [0, 1].map(|node| std::mem::take(&mut network.sim.hosts[node].events))
}

pub fn counter(network: &Network, node: usize, name: &str) -> u64 {
    let counters = network.sim.hosts[node].stack.counters();
    counters.iter().find(|it| it.0 == name).unwrap().1
}

/// A queue pair in RTS, path MTU 256, and its peer.
fn puppet() -> Puppet {
    of_connection(Puppet::new(&Options::default()))
}

/// Makes a puppet the peer of a queue pair of Unreliable Connection.
pub fn of_connection(mut puppet: Puppet) -> Puppet {
    let options = Options { mtu: PathMtu::Mtu256, ..Options::default() };
    puppet.node.stack.destroy_qp(puppet.qpn);
    puppet.node.stack.create_qp(puppet.qpn, roce::Service::Uc, 0).unwrap();
    let peer = Qpn::new(PEER_QPN).unwrap();
    for change in way(&options, Gid::from_ipv4(PEER_IP), peer, (SQ_PSN, RQ_PSN)) {
        puppet.modify(&change);
    }
    assert!(puppet.drain().is_empty());
    // Its Ethernet address was forgotten with the first queue pair.
    puppet.learn();
    puppet
}

fn send(opcode: u8, psn: u32, length: usize) -> Say {
    Say { opcode: UC | opcode, psn, payload: pattern_vec(psn.into(), 0, length), ..Say::default() }
}

fn write(opcode: u8, psn: u32, dma_length: u32, length: usize) -> Say {
    let reth = Some(reth::Repr { va: VA, rkey: RKEY, dma_length });
    Say { reth, ..send(opcode, psn, length) }
}

fn count(puppet: &Puppet, name: &str) -> u64 {
    puppet.node.stack.counters().iter().find(|it| it.0 == name).unwrap().1
}

fn completed(qpn: Qpn, through: u64) -> Event {
    Event::SendsCompleted { qpn, through }
}

/// The receives that were filled: their names and lengths.
fn filled(events: &[Event]) -> Vec<(u64, u32)> {
    let filled = |event: &Event| match *event {
        Event::ReceiveCompleted { id, length, .. } => Some((id, length)),
        _ => None,
    };
    events.iter().filter_map(filled).collect()
}

/// UC-1, UC-2, UC-3, UC-4.
#[test]
fn messages_are_cut_into_packets_that_nobody_is_asked_to_acknowledge() {
    let mut puppet = puppet();
    for (operation, length) in
        [(Operation::SendImm, 600), (Operation::Write, 512), (Operation::Send, 0)]
    {
        puppet.node.stack.post_send(Instant(0), puppet.qpn, request(operation, length)).unwrap();
    }
    for number in 0..3 {
        puppet.node.memory.messages.insert((puppet.qpn.value(), number), Local::Pattern(number));
    }
    let sent = puppet.drain();
    let opcodes: Vec<u8> = sent.iter().map(|packet| packet.opcode).collect();
    assert_eq!(
        opcodes,
        [
            UC | code::SEND_FIRST,
            UC | code::SEND_MIDDLE,
            UC | code::SEND_LAST_IMM,
            UC | code::WRITE_FIRST,
            UC | code::WRITE_LAST,
            UC | code::SEND_ONLY
        ]
    );
    for (i, packet) in sent.iter().enumerate() {
        assert_eq!((packet.psn, packet.ack_request), (SQ_PSN + i as u32, false));
    }
    assert_eq!(sent[3].reth, Some(reth::Repr { va: VA, rkey: RKEY, dma_length: 512 }));
    assert_eq!(sent[2].payload, pattern_vec(0, 512, 88));
    assert_eq!(puppet.events(), [completed(puppet.qpn, 2)]);
    assert_eq!(puppet.node.stack.next_timeout(), None, "nothing is waited for");
}

/// UC-1.
#[test]
fn what_must_be_answered_is_refused() {
    let mut puppet = puppet();
    let fetch_add = Operation::Atomic(AtomicOperation::FetchAdd { add: 1 });
    let invalidate = Operation::SendInvalidate { rkey: 1 };
    for (operation, length) in [(Operation::Read, 8), (fetch_add, 8), (invalidate, 8)] {
        let request = request(operation, length);
        let refused = puppet.node.stack.post_send(Instant(0), puppet.qpn, request);
        assert_eq!(refused, Err(PostError::NotOffered(puppet.qpn)));
    }
    let long = request(Operation::Send, (1 << 31) + 1);
    let refused = puppet.node.stack.post_send(Instant(0), puppet.qpn, long);
    assert_eq!(refused, Err(PostError::TooLong((1 << 31) + 1)));
    // Packets of other services have no effect.
    puppet.node.memory.post_receive(puppet.qpn, 100);
    let say = |opcode| Say { opcode, ..send(code::SEND_ONLY, RQ_PSN, 8) };
    for opcode in [code::SEND_ONLY, code::READ_RESPONSE_MIDDLE, code::CNP, 0x15] {
        assert!(puppet.say(&[say(opcode)]).is_empty(), "{opcode:#x}");
    }
    assert_eq!((puppet.events(), count(&puppet, "drop_bad_opcode")), (vec![], 3));
    assert_eq!(count(&puppet, "rp_cnp_ignored"), 1);
    puppet.say(&[send(code::SEND_ONLY, RQ_PSN, 8)]);
    assert_eq!(filled(&puppet.events()).len(), 1);
}

/// UC-3, UC-5.
#[test]
fn a_message_arrives_whole_and_is_not_answered() {
    for ipv4 in [true, false] {
        let mut network = Network::new(1, 2, Faults::NONE);
        let options = Options { ipv4, ..Options::default() };
        let (a, b) = connect(&mut network, &options);
        let region = Region { va: VA, bytes: vec![0; 65_536], writable: true };
        network.sim.hosts[1].memory.regions.insert(RKEY, region);
        let ids: Vec<u64> =
            [0, 5000, 0].map(|n| network.sim.hosts[1].memory.post_receive(b.qpn, n)).into();
        let all = [
            (Operation::Send, 0),
            (Operation::SendImm, 5000),
            (Operation::Write, 40_000),
            (Operation::WriteImm, 3000),
        ];
        for (key, (operation, length)) in all.into_iter().enumerate() {
            post(&mut network, a, request(operation, length), key as u64);
        }
        let [sent, received] = run(&mut network, MILLISECOND);
        assert_eq!(sent.last(), Some(&completed(a.qpn, 3)));
        assert_eq!(filled(&received), [(ids[0], 0), (ids[1], 5000), (ids[2], 3000)]);
        let last = Event::ReceiveCompleted {
            qpn: b.qpn,
            srqn: None,
            id: ids[2],
            length: 3000,
            kind: ReceiveKind::Write,
            imm: Some(0x0102_0304),
            solicited: true,
            source_qpn: None,
        };
        assert_eq!(received.last(), Some(&last));
        let memory = &network.sim.hosts[1].memory;
        assert!(memory.buffers[&ids[1]].bytes == pattern_vec(1, 0, 5000));
        assert!(memory.regions[&RKEY].bytes[..3000] == pattern_vec(3, 0, 3000));
        assert!(memory.regions[&RKEY].bytes[3000..40_000] == pattern_vec(2, 3000, 37_000));
        assert_eq!(network.sim.hosts[1].memory.roce_frames_sent, 0);
    }
}

/// UC-6, UC-7.
#[test]
fn from_a_packet_that_is_missing_to_the_next_message_everything_is_dropped() {
    let mut puppet = puppet();
    let (first, second) = (
        puppet.node.memory.post_receive(puppet.qpn, 1000),
        puppet.node.memory.post_receive(puppet.qpn, 1000),
    );
    let psn = RQ_PSN;
    // Its middle is lost, the rest has no effect, and the next message uses its receive request.
    puppet.say(&[
        send(code::SEND_FIRST, psn, 256),
        send(code::SEND_MIDDLE, psn + 2, 256),
        send(code::SEND_LAST, psn + 3, 9),
        send(code::SEND_ONLY, psn + 4, 100),
    ]);
    assert_eq!(filled(&puppet.events()), [(first, 100)]);
    let bytes = &puppet.node.memory.buffers[&first].bytes;
    assert_eq!(bytes[..100], pattern_vec((psn + 4).into(), 0, 100));
    assert_eq!(["out_of_sequence", "drop_after_gap"].map(|name| count(&puppet, name)), [1, 2]);
    // The first packet is lost, and all of the next message's but its last.
    puppet.say(&[send(code::SEND_LAST, psn + 6, 9), send(code::SEND_LAST_IMM, psn + 20, 9)]);
    assert_eq!(puppet.events(), []);
    // The first packet of a message is taken with any number, also where it comes in the middle of a message.
    puppet.say(&[
        send(code::SEND_FIRST, psn + 1000, 256),
        send(code::SEND_FIRST, psn + 1001, 256),
        send(code::SEND_LAST, psn + 1002, 1),
    ]);
    assert_eq!(filled(&puppet.events()), [(second, 257)]);
    // A repetition is a gap like any other.
    puppet.node.memory.post_receive(puppet.qpn, 1000);
    puppet.say(&[send(code::SEND_FIRST, psn, 256), send(code::SEND_LAST, psn, 9)]);
    assert_eq!(puppet.events(), []);
    assert_eq!(puppet.state(), QpState::Rts);
}

/// UC-2, UC-6.
#[test]
fn numbers_wrap() {
    let mut puppet = puppet();
    let id = puppet.node.memory.post_receive(puppet.qpn, 1000);
    puppet.say(&[
        send(code::SEND_FIRST, 0xff_ffff, 256),
        send(code::SEND_MIDDLE, 0, 256),
        send(code::SEND_LAST, 1, 5),
    ]);
    assert_eq!(filled(&puppet.events()), [(id, 517)]);
    assert_eq!(puppet.node.stack.query_qp(puppet.qpn).unwrap().rq_psn, Psn::new(2));
}

/// UC-8, UC-9, UC-10.
#[test]
fn what_cannot_be_taken_is_dropped_with_its_message_and_counted() {
    let psn = RQ_PSN;
    let packet = |opcode, n, length| send(opcode, psn + n, length);
    let refused = |says: Vec<Say>, counter: &str| {
        let mut puppet = puppet();
        let id = puppet.node.memory.post_receive(puppet.qpn, 300);
        let next = says.last().unwrap().psn + 1;
        assert!(puppet.say(&says).is_empty());
        assert_eq!((puppet.events(), count(&puppet, counter)), (vec![], 1), "{counter}: {says:?}");
        assert!(puppet.node.memory.regions[&RKEY].bytes[256..].iter().all(|byte| *byte == 0));
        // The next message is taken, with the same receive request.
        puppet.say(&[send(code::SEND_ONLY, next, 200)]);
        assert_eq!((filled(&puppet.events()), puppet.state()), (vec![(id, 200)], QpState::Rts));
    };
    let invalid = "resp_remote_invalid_request";
    refused(vec![packet(code::SEND_FIRST, 0, 255)], invalid);
    refused(vec![packet(code::SEND_ONLY, 0, 257)], invalid);
    refused(vec![packet(code::SEND_FIRST, 0, 256), packet(code::SEND_LAST, 1, 0)], invalid);
    let mixed = vec![packet(code::SEND_FIRST, 0, 256), packet(code::WRITE_LAST, 1, 8)];
    refused(mixed, "drop_after_gap");
    let long = vec![packet(code::SEND_FIRST, 0, 256), packet(code::SEND_LAST, 1, 45)];
    refused(long, "resp_local_length_error");
    // A WRITE that is shorter or longer than it says.
    refused(vec![write(code::WRITE_ONLY, psn, 9, 8)], invalid);
    refused(vec![write(code::WRITE_FIRST, psn, 256, 256)], invalid);
    let short = vec![write(code::WRITE_FIRST, psn, 300, 256), packet(code::WRITE_LAST, 1, 45)];
    refused(short, invalid);
    let rkey = |rkey, va| {
        let reth = Some(reth::Repr { va, rkey, dma_length: 8 });
        Say { reth, ..write(code::WRITE_ONLY, psn, 8, 8) }
    };
    for say in [rkey(RKEY + 1, VA), rkey(RKEY, VA + 65_530), rkey(RKEY, u64::MAX)] {
        refused(vec![say], "resp_remote_access_errors");
    }
    // None is posted.
    let mut puppet = puppet();
    puppet.say(&[packet(code::SEND_FIRST, 0, 256), packet(code::SEND_LAST, 1, 8)]);
    assert_eq!((puppet.events(), count(&puppet, "out_of_buffer")), (vec![], 1));
    // Nor may the peer write.
    let change = QpAttributes { access: Some(AccessFlags::empty()), ..QpAttributes::default() };
    puppet.modify(&change);
    puppet.say(&[write(code::WRITE_ONLY, psn + 2, 8, 8)]);
    assert_eq!((puppet.events(), count(&puppet, invalid)), (vec![], 1));
}

/// UC-11, UC-14.
#[test]
fn memory_that_cannot_be_written_takes_the_queue_pair_to_the_error_state() {
    let error = |qpn| Event::EnteredError { qpn };
    let mut receiver = puppet();
    let qpn = receiver.qpn;
    let id = receiver.node.memory.post_receive(qpn, 300);
    receiver.node.memory.post_receive(qpn, 300);
    receiver.node.memory.unwritable.push(id);
    receiver.say(&[send(code::SEND_ONLY, RQ_PSN, 9), send(code::SEND_ONLY, RQ_PSN + 1, 9)]);
    let events = receiver.events();
    let failed = |id, status| Event::ReceiveFailed { qpn, srqn: None, id, status };
    assert_eq!(events[0], failed(id, ReceiveStatus::LocalProtection));
    assert!(matches!(events[1], Event::ReceiveFailed { status: ReceiveStatus::Flushed, .. }));
    assert_eq!(events[2..], [error(qpn)]);
    // A WRITE has no receive request that could say it.
    let mut target = puppet();
    target.node.memory.unwritable_keys.push(RKEY);
    target.say(&[write(code::WRITE_ONLY, RQ_PSN, 8, 8)]);
    let fatal = Event::Async { qpn, kind: QpEvent::Fatal };
    assert_eq!(target.events(), [fatal, error(qpn)]);
    // A receive request that cannot be used.
    let mut unusable = puppet();
    unusable.node.memory.bad_receives.push(qpn.value());
    unusable.node.memory.post_receive(qpn, 300);
    unusable.say(&[send(code::SEND_ONLY, RQ_PSN, 9)]);
    assert_eq!(unusable.events(), [error(qpn)]);
    // One that a message holds is given back.
    let mut holder = puppet();
    let id = holder.node.memory.post_receive(qpn, 300);
    holder.say(&[send(code::SEND_FIRST, RQ_PSN, 256)]);
    holder.modify(&to(QpState::Err));
    holder.modify(&to(QpState::Err));
    holder.round();
    assert_eq!(holder.events(), [failed(id, ReceiveStatus::Flushed), error(qpn)]);
    holder.say(&[send(code::SEND_ONLY, RQ_PSN + 1, 9)]);
    assert_eq!((holder.events(), count(&holder, "drop_wrong_state")), (vec![], 1));
}

/// UC-12.
#[test]
fn a_message_that_cannot_be_read_stops_the_send_queue_and_nothing_else() {
    let mut network = Network::new(1, 2, Faults::NONE);
    let (a, b) = connect(&mut network, &Options { mtu: PathMtu::Mtu256, ..Options::default() });
    for _ in 0..4 {
        network.sim.hosts[1].memory.post_receive(b.qpn, 1000);
    }
    for number in 0..4 {
        post(&mut network, a, request(Operation::Send, 700), number);
        if number == 2 {
            let messages = &mut network.sim.hosts[0].memory.messages;
            messages.insert((a.qpn.value(), 2), Local::Unreadable);
        }
    }
    let [sent, received] = run(&mut network, MILLISECOND);
    let status = SendStatus::LocalProtection;
    let failed = Event::SendFailed { qpn: a.qpn, message: 2, status };
    assert_eq!(sent, [completed(a.qpn, 1), failed]);
    assert_eq!((filled(&received).len(), network.state(a)), (2, QpState::Sqe));
    let refused =
        network.sim.hosts[0].stack.post_send(Instant(0), a.qpn, request(Operation::Send, 1));
    assert_eq!(refused, Err(PostError::State { qpn: a.qpn, state: QpState::Sqe }));
    // It goes on receiving.
    let id = network.sim.hosts[0].memory.post_receive(a.qpn, 1000);
    post(&mut network, b, request(Operation::Send, 700), 9);
    let [received, _] = run(&mut network, MILLISECOND);
    assert_eq!(filled(&received), [(id, 700)]);
    // Back in RTS it sends, and numbers go on.
    network.modify(a, &to(QpState::Rts));
    assert_eq!(post(&mut network, a, request(Operation::Send, 700), 4), 4);
    let [sent, received] = run(&mut network, MILLISECOND);
    assert_eq!((sent, filled(&received).len()), (vec![completed(a.qpn, 4)], 1));
}

/// UC-13.
#[test]
fn a_drained_send_queue_ends_what_has_begun_and_begins_nothing() {
    let mut puppet = puppet();
    let qpn = puppet.qpn;
    // More packets than the stack makes in one round.
    for number in 0..2 {
        let request = request(Operation::Send, 256 * 1000);
        puppet.node.stack.post_send(Instant(0), qpn, request).unwrap();
        puppet.node.memory.messages.insert((qpn.value(), number), Local::Pattern(number));
    }
    let mut packets = puppet.round().len();
    assert!((1..1000).contains(&packets), "{packets}");
    puppet.modify(&to(QpState::Sqd));
    assert!(puppet.node.stack.query_qp(qpn).unwrap().sq_draining);
    packets += puppet.drain().len();
    let drained = Event::Async { qpn, kind: QpEvent::SqDrained };
    assert_eq!((packets, puppet.events()), (1000, vec![completed(qpn, 0), drained]));
    assert!(!puppet.node.stack.query_qp(qpn).unwrap().sq_draining);
    puppet.modify(&to(QpState::Rts));
    assert_eq!((puppet.drain().len(), puppet.events()), (1000, vec![completed(qpn, 1)]));
}

/// UC-4, UC-14.
#[test]
fn an_error_forgets_what_is_under_way_and_a_reset_begins_anew() {
    let mut network = Network::new(1, 2, Faults::NONE);
    let options = Options::default();
    let (a, b) = connect(&mut network, &options);
    post(&mut network, a, request(Operation::Send, 9), 0);
    network.modify(a, &to(QpState::Err));
    assert_eq!(run(&mut network, MILLISECOND)[0], [Event::EnteredError { qpn: a.qpn }]);
    network.modify(a, &to(QpState::Reset));
    bring_up(&mut network, a, b, &options);
    assert_eq!(post(&mut network, a, request(Operation::Send, 9), 0), 0);
    assert_eq!(run(&mut network, MILLISECOND)[0], [completed(a.qpn, 0)]);
    network.sim.hosts[0].stack.destroy_qp(a.qpn);
    network.sim.hosts[0].stack.settle_timeouts();
    assert!(!network.sim.hosts[0].stack.is_used());
    assert_eq!(network.sim.hosts[0].stack.next_timeout(), None);
}

/// UC-4.
#[test]
fn where_nobody_answers_messages_are_dropped_after_a_while_and_do_not_hang() {
    let mut network = Network::new(1, 2, Faults::NONE);
    let (a, b) = (create(&mut network, 0, 0x11), create(&mut network, 1, 0x22));
    network.sim.hosts[1].off = true;
    bring_up(&mut network, a, b, &Options::default());
    post(&mut network, a, request(Operation::Send, 9000), 0);
    assert_eq!(run(&mut network, 50 * MILLISECOND)[0], []);
    assert_eq!(run(&mut network, 51 * MILLISECOND)[0], [completed(a.qpn, 0)]);
    for number in 1..1001 {
        post(&mut network, a, request(Operation::Send, 9000), number);
    }
    let [sent, _] = run(&mut network, MILLISECOND);
    assert_eq!(sent.last(), Some(&completed(a.qpn, 1000)));
    assert_eq!(counter(&network, 0, "drop_no_neighbour"), 1001);
    // Once a host answers, they arrive.
    network.sim.hosts[1].off = false;
    bring_up(&mut network, b, a, &Options::default());
    run(&mut network, 20 * SECOND);
    let id = network.sim.hosts[1].memory.post_receive(b.qpn, 9000);
    post(&mut network, a, request(Operation::Send, 9000), 7);
    let [_, received] = run(&mut network, MILLISECOND);
    assert_eq!(filled(&received), [(id, 9000)]);
}

/// UC-5.
#[test]
fn messages_are_received_in_the_states_that_allow_it() {
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd];
    for (steps, state) in states.into_iter().enumerate() {
        let mut network = Network::new(1, 2, Faults::NONE);
        let options = Options::default();
        let (a, b) = (create(&mut network, 0, 0x11), create(&mut network, 1, 0x22));
        bring_up(&mut network, a, b, &options);
        let dgid = network.gid(0, true);
        let way = way(&options, dgid, a.qpn, (RQ_PSN, SQ_PSN));
        for change in way.iter().chain([&to(QpState::Sqd)]).take(steps) {
            network.modify(b, change);
        }
        run(&mut network, MILLISECOND);
        network.sim.hosts[1].memory.post_receive(b.qpn, 100);
        post(&mut network, a, request(Operation::Send, 9), 0);
        let [_, received] = run(&mut network, MILLISECOND);
        let takes = !matches!(state, QpState::Reset | QpState::Init);
        assert_eq!(filled(&received).len(), usize::from(takes), "{state:?}");
        let established = Event::Async { qpn: b.qpn, kind: QpEvent::CommunicationEstablished };
        assert_eq!(received.contains(&established), state == QpState::Rtr, "{state:?}");
    }
    // Somebody else's are dropped.
    let mut puppet = puppet();
    puppet.node.memory.post_receive(puppet.qpn, 100);
    let stranger = Some("10.7.0.98".parse().unwrap());
    puppet.say(&[Say { source: stranger, ..send(code::SEND_ONLY, RQ_PSN, 8) }]);
    puppet.say(&[Say { pkey: Some(0x1234), ..send(code::SEND_ONLY, RQ_PSN, 8) }]);
    let dropped = ["drop_wrong_source", "drop_bad_pkey"].map(|name| count(&puppet, name));
    assert_eq!((puppet.events(), dropped), (vec![], [1, 1]));
}

/// UC-15.
#[test]
fn states_change_as_the_contract_says() {
    let options = Options::default();
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd];
    for (steps, from) in states.into_iter().enumerate() {
        let mut network = Network::new(1, 1, Faults::NONE);
        let dgid = network.gid(0, true);
        let way = way(&options, dgid, Qpn::new(9).unwrap(), (1, 2));
        let targets = states.into_iter().chain([QpState::Sqe, QpState::Err]);
        let changes = way.into_iter().chain(targets.map(to));
        for (number, change) in changes.enumerate() {
            let end = create(&mut network, 0, 0x100 + number as u32);
            for step in way.iter().chain([&to(QpState::Sqd)]).take(steps) {
                network.modify(end, step);
            }
            let target = change.state.unwrap();
            let done = network.sim.hosts[0].stack.modify_qp(Instant(0), end.qpn, &change);
            let row = transition::transition(QpType::Uc, from, target);
            let given = match (number, target) {
                (0, _) => M::PKEY_INDEX | M::ACCESS,
                (1, _) => M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
                (2, _) => M::SQ_PSN,
                _ => M::empty(),
            };
            let allowed = row.is_some_and(|row| {
                let required = row.required - M::PORT;
                given.contains(required) && (required | row.optional).contains(given)
            });
            assert_eq!(done.is_ok(), allowed, "{from:?} to {target:?}: {done:?}");
            assert_eq!(network.state(end), if allowed { target } else { from });
            if let Err(error) = done {
                assert!(matches!(error, Error::BadTransition { .. }), "{error}");
            }
        }
    }
}

/// UC-6, UC-7: over bad cables, beside a reliable connection, each message arrives whole and in its order or
/// not at all.
#[test]
fn random_messages_arrive_whole_or_not_at_all() {
    for_each_seed("random_messages_arrive_whole_or_not_at_all", 60, |seed| {
        let faults = if seed % 4 == 0 { Faults::NONE } else { bad(100) };
        let mut network = Network::new(seed, 2, faults);
        let mtu = network.rng.pick(&[PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu4096]);
        let options = Options { mtu, ipv4: seed % 2 == 0, ..Options::default() };
        let (x, y) = network.connect(0, 1, &options);
        let mut flow = Flow::new(&mut network, x, y, &Plan::mixed(50, mtu));
        let (a, b) = connect(&mut network, &options);
        let mut lengths: BTreeMap<(usize, u32), u32> = BTreeMap::new();
        for key in 0..200u32 {
            let (from, to) = if network.rng.below(2) == 0 { (a, b) } else { (b, a) };
            let length = network.rng.below(u64::from(mtu.bytes()) * 4) as u32;
            let request = SendRequest { imm: key, ..request(Operation::SendImm, length) };
            post(&mut network, from, request, key.into());
            lengths.insert((to.node, key), length);
            network.sim.hosts[to.node].memory.post_receive(to.qpn, mtu.bytes() as usize * 4);
        }
        let mut events = vec![Vec::new(); 2];
        let deadline = network.now() + 20 * SECOND;
        loop {
            flow.pump(&mut network);
            for (node, events) in events.iter_mut().enumerate() {
                for event in std::mem::take(&mut network.sim.hosts[node].events) {
                    flow.check(&mut network, node, &event);
                    events.push(event);
                }
            }
            if !network.step() || network.now() >= deadline {
                break;
            }
        }
        assert!(flow.is_done(), "the connection beside them was held up");
        let mut arrived = 0;
        for end in [a, b] {
            let node = &network.sim.hosts[end.node];
            assert_eq!((network.state(end), node.stack.send_room(end.qpn)), (QpState::Rts, 1024));
            let mut seen = BTreeMap::new();
            for event in events[end.node].iter().filter(|event| event.qpn() == end.qpn) {
                let Event::ReceiveCompleted { id, length, imm: Some(key), .. } = *event else {
                    assert!(matches!(event, Event::SendsCompleted { .. }), "{event:?}");
                    continue;
                };
                assert_eq!(length, lengths[&(end.node, key)]);
                let buffer = &node.memory.buffers[&id].bytes[..length as usize];
                assert!(buffer == pattern_vec(key.into(), 0, length as usize), "message {key}");
                *seen.entry(key).or_insert(0) += 1;
                arrived += 1;
            }
            // Only a cable makes two of one.
            assert!(seed % 4 != 0 || seen.values().all(|times| *times == 1));
        }
        assert!(arrived > 100, "only {arrived} arrived");
        assert!(seed % 4 != 0 || arrived == 200, "{arrived} of 200 over a good cable");
    });
}
