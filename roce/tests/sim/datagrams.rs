//! Unreliable Datagram: datagrams sent, received and dropped.

use std::collections::BTreeMap;

use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::transition;
use netsim::config::Faults;
use roce::opcode::code;
use roce::wire::extension::deth;
use roce::wire::{bth, ethernet, icrc, ipv4, ipv6, udp};
use roce::{
    AddressVector, DatagramRequest, Error, Event, GRH_LENGTH, Gid, Instant, PostError, Psn,
    QpAttributes, QpEvent, QpState, Qpn, ReceiveKind, ReceiveStatus, SendStatus,
};

use crate::connection::{End, Options};
use crate::for_each_seed;
use crate::memory::Local;
use crate::network::{Network, bad};
use crate::workload::{Flow, Plan};
use trial::rng::pattern_vec;

pub const QKEY: u32 = 0x1234_5678;
pub const AH: u32 = 0x42;
pub const FIRST_PSN: u32 = 0xff_fffe;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const GRH: usize = GRH_LENGTH as usize;

pub fn to(state: QpState) -> QpAttributes {
    QpAttributes { state: Some(state), ..QpAttributes::default() }
}

/// The changes that lead to a state.
pub fn way(state: QpState, qkey: u32) -> Vec<QpAttributes> {
    let init = QpAttributes { pkey_index: Some(0), qkey: Some(qkey), ..to(QpState::Init) };
    let rts = QpAttributes { sq_psn: Some(Psn::new(FIRST_PSN)), ..to(QpState::Rts) };
    let steps = [init, to(QpState::Rtr), rts, to(QpState::Sqd)];
    let order = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd];
    let last = order.iter().position(|it| *it == state).unwrap();
    steps[..last].to_vec()
}

pub fn vector(dgid: Gid, ipv4: bool) -> AddressVector {
    let plain = AddressVector::new(u8::from(ipv4), dgid);
    AddressVector { hop_limit: 7, traffic_class: 0x68, flow_label: 0x1234, ..plain }
}

/// A datagram to a queue pair.
pub fn request(dest_qpn: Qpn, length: u32) -> DatagramRequest {
    DatagramRequest { ah: AH, dest_qpn, qkey: QKEY, length, imm: None, solicited: false }
}

/// Two nodes with a queue pair each, in RTS, and an address handle from the first to the second.
pub struct Pair {
    pub network: Network,
    pub from: End,
    pub to: End,
}

impl Pair {
    fn new(seed: u64, ipv4: bool, faults: Faults) -> Self {
        let mut network = Network::new(seed, 2, faults);
        let from = datagram_qp(&mut network, 0, 0x11);
        let to = datagram_qp(&mut network, 1, 0x22);
        let gid = network.gid(1, ipv4);
        address(&mut network, 0, AH, &vector(gid, ipv4));
        Self { network, from, to }
    }

    /// One whose first node knows the Ethernet address of the second.
    pub fn resolved() -> Self {
        let mut pair = Self::new(1, true, Faults::NONE);
        let deadline = pair.network.now() + MILLISECOND;
        pair.network.run(deadline, |_| false);
        pair
    }

    pub fn post(&mut self, request: DatagramRequest) -> u64 {
        post(&mut self.network, self.from, request)
    }

    /// Lets time pass, and takes the events of both.
    pub fn run(&mut self, time: u64) -> [Vec<Event>; 2] {
        self.network.wake(0);
        self.network.wake(1);
        let deadline = self.network.now() + time;
        self.network.run(deadline, |_| false);
        [0, 1].map(|node| std::mem::take(&mut self.network.sim.hosts[node].events))
    }

    fn counter(&self, node: usize, name: &str) -> u64 {
        let counters = self.network.sim.hosts[node].stack.counters();
        counters.iter().find(|it| it.0 == name).unwrap().1
    }
}

pub fn datagram_qp(network: &mut Network, node: usize, qpn: u32) -> End {
    let end = End { node, qpn: Qpn::new(qpn).unwrap() };
    network.sim.hosts[node].stack.create_qp(end.qpn, roce::Service::Ud, 0).unwrap();
    way(QpState::Rts, QKEY).iter().for_each(|change| network.modify(end, change));
    end
}

pub fn address(network: &mut Network, node: usize, ah: u32, vector: &AddressVector) {
    let now = Instant(network.now());
    network.sim.hosts[node].stack.create_ah(now, ah, 0, vector).unwrap();
    network.wake(node);
}

pub fn post(network: &mut Network, from: End, request: DatagramRequest) -> u64 {
    let node = &mut network.sim.hosts[from.node];
    let number = node.stack.post_datagram(from.qpn, request).unwrap();
    node.memory.messages.insert((from.qpn.value(), number), Local::Pattern(number));
    network.wake(from.node);
    number
}

pub fn completed(qpn: Qpn, through: u64) -> Event {
    Event::SendsCompleted { qpn, through }
}

/// The headers of a frame of IPv4.
fn headers(frame: &[u8]) -> (ipv4::Repr, udp::Repr, bth::Repr, deth::Repr) {
    let (_, packet) = ethernet::Repr::parse(frame).unwrap();
    let (ip, datagram) = ipv4::Repr::parse(packet).unwrap();
    let (udp, body) = udp::Repr::parse(datagram).unwrap();
    let (transport, rest) = bth::Repr::parse(body).unwrap();
    (ip, udp, transport, deth::Repr::parse(rest).unwrap().0)
}

/// UD-2, UD-3, UD-4, UD-5.
#[test]
fn a_packet_says_whom_it_is_for_and_whom_it_is_from() {
    let mut pair = Pair::resolved();
    pair.network.record();
    let peer = pair.to.qpn;
    let own_key = DatagramRequest { qkey: 0x8000_0000, solicited: true, ..request(peer, 5) };
    pair.post(own_key);
    pair.post(DatagramRequest { imm: Some(0x0102_0304), qkey: 9, ..request(peer, 0) });
    pair.post(request(Qpn::new(0x33).unwrap(), 4096));
    pair.run(MILLISECOND);
    let frames = pair.network.sim.hosts[0].memory.capture.take().unwrap();
    let all: Vec<_> = frames.iter().map(|frame| headers(frame)).collect();
    let port = |i: usize| all[i].1.source_port;
    // That of the flow label, whichever queue pairs it is between.
    assert_eq!([port(0), port(1), port(2)], [0xd234; 3]);
    for (i, (ip, udp, transport, deth)) in all.iter().enumerate() {
        assert_eq!((ip.type_of_service, ip.time_to_live), (0x68, 7));
        assert_eq!(udp.destination_port, 4791);
        assert_eq!(transport.psn, Psn::new(FIRST_PSN + i as u32), "they wrap");
        assert!(transport.migrated && !transport.ack_request && transport.pkey == 0xffff);
        assert_eq!(deth.source_qpn, pair.from.qpn.value());
        assert!(icrc::check(&mut frames[i].clone()));
    }
    let fields = |i: usize| {
        let (_, _, transport, deth) = all[i];
        (transport.opcode, transport.dest_qpn, transport.solicited, deth.qkey)
    };
    assert_eq!(fields(0), (code::UD_SEND_ONLY, 0x22, true, QKEY));
    assert_eq!(fields(1), (code::UD_SEND_ONLY_IMM, 0x22, false, 9));
    assert_eq!(fields(2), (code::UD_SEND_ONLY, 0x33, false, QKEY));
}

/// UD-1.
#[test]
fn what_is_longer_than_a_packet_is_refused() {
    let mut pair = Pair::resolved();
    let stack = &mut pair.network.sim.hosts[0].stack;
    let post = |length| stack.post_datagram(pair.from.qpn, request(pair.to.qpn, length));
    assert_eq!(
        [4096, 4097, u32::MAX].map(post),
        [Ok(0), Err(PostError::TooLong(4097)), Err(PostError::TooLong(u32::MAX))]
    );
}

/// UD-6, UD-17.
#[test]
fn a_receive_begins_with_the_network_header() {
    for (is_ipv4, length) in [(true, 0), (true, 1), (true, 4096), (false, 0), (false, 333)] {
        let mut pair = Pair::new(1, is_ipv4, Faults::NONE);
        pair.network.record();
        let (qpn, peer) = (pair.from.qpn, pair.to.qpn);
        let id = pair.network.sim.hosts[1].memory.post_receive(peer, GRH + length + 1);
        let imm = Some(0xaabb_ccdd);
        pair.post(DatagramRequest { imm, solicited: true, ..request(peer, length as u32) });
        let [sent, received] = pair.run(MILLISECOND);
        assert_eq!(sent, [completed(qpn, 0)]);
        let arrived = Event::ReceiveCompleted {
            qpn: peer,
            srqn: None,
            id,
            length: (GRH + length) as u32,
            kind: ReceiveKind::Send,
            imm,
            solicited: true,
            source_qpn: Some(qpn.value()),
        };
        assert_eq!(received, [arrived]);
        let buffer = pair.network.sim.hosts[1].memory.buffers[&id].bytes.clone();
        assert_eq!(buffer[GRH..GRH + length], pattern_vec(0, 0, length));
        assert_eq!(buffer[GRH + length], 0xee, "nothing is written behind it");
        let frames = pair.network.sim.hosts[0].memory.capture.take().unwrap();
        let (_, packet) = ethernet::Repr::parse(frames.last().unwrap()).unwrap();
        if is_ipv4 {
            assert_eq!(buffer[..20], [0xee; 20]);
            assert_eq!(buffer[20..GRH], packet[..20]);
            // With its checksum.
            let mut datagram = buffer[20..GRH].to_vec();
            datagram.extend(&packet[20..]);
            assert_eq!(ipv4::Repr::parse(&datagram).unwrap().0.type_of_service, 0x68);
        } else {
            assert_eq!(buffer[..GRH], packet[..GRH]);
            let (ip, _) = ipv6::Repr::parse(packet).unwrap();
            assert_eq!((ip.traffic_class, ip.flow_label, ip.hop_limit), (0x68, 0x1234, 7));
        }
    }
}

/// UD-7, UD-8.
#[test]
fn where_nobody_answers_messages_are_dropped_after_a_while_and_do_not_hang() {
    let mut pair = Pair::resolved();
    let (qpn, peer) = (pair.from.qpn, pair.to.qpn);
    let nobody = Gid::from_ipv4("10.7.0.77".parse().unwrap());
    address(&mut pair.network, 0, 7, &vector(nobody, true));
    pair.network.sim.hosts[1].memory.post_receive(peer, 100);
    pair.network.sim.hosts[1].memory.post_receive(peer, 100);
    pair.post(request(peer, 9));
    pair.post(DatagramRequest { ah: 7, ..request(peer, 9) });
    pair.post(request(peer, 9));
    // Those behind it keep their order.
    let [sent, received] = pair.run(50 * MILLISECOND);
    assert_eq!((sent, received.len()), (vec![completed(qpn, 0)], 1));
    let [sent, received] = pair.run(51 * MILLISECOND);
    assert_eq!((sent, received.len()), (vec![completed(qpn, 1), completed(qpn, 2)], 1));
    assert_eq!(pair.counter(0, "drop_no_neighbour"), 1);
    // Many more are dropped at once, and others do not wait for them.
    for _ in 0..1000 {
        pair.post(DatagramRequest { ah: 7, ..request(peer, 9) });
    }
    let [sent, _] = pair.run(1_000);
    assert_eq!(sent.last(), Some(&completed(qpn, 1002)));
    assert_eq!(pair.counter(0, "drop_no_neighbour"), 1001);
    // A handle that is gone counts as a missing peer.
    let stack = &mut pair.network.sim.hosts[0].stack;
    stack.destroy_ah(7);
    pair.post(DatagramRequest { ah: 7, ..request(peer, 9) });
    assert_eq!(pair.run(1_000)[0], [completed(qpn, 1003)]);
}

/// UD-7, UD-8.
#[test]
fn a_handle_that_goes_lets_go_of_who_waits_for_it() {
    let mut pair = Pair::resolved();
    let (qpn, peer) = (pair.from.qpn, pair.to.qpn);
    let nobody = Gid::from_ipv4("10.7.0.77".parse().unwrap());
    address(&mut pair.network, 0, 7, &vector(nobody, true));
    pair.post(DatagramRequest { ah: 7, ..request(peer, 9) });
    assert_eq!(pair.run(MILLISECOND)[0], []);
    let known = [AH, 7, 8].map(|ah| pair.network.sim.hosts[0].stack.is_ah_resolved(ah));
    assert_eq!(known, [Some(true), Some(false), None]);
    pair.network.sim.hosts[0].stack.destroy_ah(7);
    assert_eq!(pair.run(MILLISECOND)[0], [completed(qpn, 0)]);
    let stack = &mut pair.network.sim.hosts[0].stack;
    stack.settle_timeouts();
    assert_eq!(stack.next_timeout(), None, "nobody is asked for");
    // A queue pair that is destroyed or reset while it waits is not woken.
    for change in [None, Some(QpState::Reset)] {
        address(&mut pair.network, 0, 7, &vector(nobody, true));
        let end = datagram_qp(&mut pair.network, 0, 0x44);
        post(&mut pair.network, end, DatagramRequest { ah: 7, ..request(peer, 9) });
        pair.run(MILLISECOND);
        match change {
            None => pair.network.sim.hosts[0].stack.destroy_qp(end.qpn),
            Some(state) => pair.network.modify(end, &to(state)),
        }
        assert_eq!(pair.run(SECOND)[0], []);
        pair.network.sim.hosts[0].stack.destroy_qp(end.qpn);
        pair.network.sim.hosts[0].stack.destroy_ah(7);
    }
}

/// UD-9.
#[test]
fn a_peer_that_has_moved_is_found_again() {
    let mut pair = Pair::resolved();
    let (peer, old) = (pair.to.qpn, pair.network.sim.hosts[1].mac);
    let asked = pair.counter(0, "sent_arp_requests");
    // Another card has the address now.
    pair.network.sim.hosts[1].off = true;
    let later = pair.network.now() + 31 * SECOND;
    pair.network.run(later, |_| false);
    pair.network.record();
    pair.post(request(peer, 9));
    pair.run(MILLISECOND);
    assert_eq!(pair.counter(0, "sent_arp_requests"), asked + 1);
    // Not with every one.
    pair.post(request(peer, 9));
    pair.run(SECOND);
    assert_eq!(pair.counter(0, "sent_arp_requests"), asked + 1);
    let frames = pair.network.sim.hosts[0].memory.capture.take().unwrap();
    assert!(frames.iter().any(|frame| frame[..6] == old.0));
}

/// UD-10, UD-11.
#[test]
fn what_is_not_for_a_queue_pair_is_dropped_and_counted() {
    let mut pair = Pair::resolved();
    let peer = pair.to.qpn;
    let receives = |pair: &Pair| pair.network.sim.hosts[1].memory.receives[&0x22].len();
    pair.network.sim.hosts[1].memory.post_receive(peer, 100);
    // Another Q_Key.
    pair.post(DatagramRequest { qkey: QKEY ^ 1, ..request(peer, 9) });
    // The Q_Key of an own that is another.
    let other = End { node: 0, qpn: Qpn::new(0x44).unwrap() };
    pair.network.sim.hosts[0].stack.create_qp(other.qpn, roce::Service::Ud, 0).unwrap();
    way(QpState::Rts, 1).iter().for_each(|change| pair.network.modify(other, change));
    let own = DatagramRequest { qkey: 1 << 31 | QKEY, ..request(peer, 9) };
    post(&mut pair.network, other, own);
    // No such queue pair, and one of a connection.
    pair.post(request(Qpn::new(0x99).unwrap(), 9));
    let (end, _) = pair.network.connect(1, 0, &Options::default());
    pair.post(request(end.qpn, 9));
    let [_, received] = pair.run(SECOND);
    assert_eq!((received, receives(&pair)), (vec![], 1));
    let dropped = ["drop_bad_qkey", "drop_unknown_qp", "drop_wrong_source", "drop_bad_opcode"];
    assert_eq!(dropped.map(|name| pair.counter(1, name)), [2, 1, 0, 1]);
    // None is posted.
    pair.post(request(peer, 9));
    pair.post(request(peer, 9));
    let [sent, received] = pair.run(MILLISECOND);
    assert_eq!((sent.len(), received.len(), receives(&pair)), (1, 1, 0));
    assert_eq!(pair.counter(1, "out_of_buffer"), 1);
}

/// UD-10, UD-15.
#[test]
fn datagrams_are_received_in_the_states_that_allow_it() {
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd];
    for state in states.into_iter().chain([QpState::Err]) {
        let mut pair = Pair::resolved();
        let peer = pair.to;
        pair.network.modify(peer, &to(QpState::Reset));
        match state {
            QpState::Err => pair.network.modify(peer, &to(QpState::Err)),
            state => {
                for change in way(state, QKEY) {
                    pair.network.modify(peer, &change);
                }
            }
        }
        pair.run(1_000);
        pair.network.sim.hosts[1].memory.post_receive(peer.qpn, 100);
        pair.post(request(peer.qpn, 9));
        let [_, received] = pair.run(MILLISECOND);
        let takes = !matches!(state, QpState::Reset | QpState::Init | QpState::Err);
        assert_eq!(received.len(), usize::from(takes), "{state:?}");
        assert_eq!(pair.counter(1, "drop_wrong_state"), u64::from(!takes), "{state:?}");
        // Queue pairs that send in that state are tested elsewhere.
        let stack = &mut pair.network.sim.hosts[1].stack;
        let refused = stack.post_datagram(peer.qpn, request(pair.from.qpn, 9)).is_err();
        assert_eq!(refused, !matches!(state, QpState::Rts | QpState::Sqd), "{state:?}");
    }
}

/// UD-12.
#[test]
fn a_receive_that_does_not_fit_fails_alone() {
    let mut pair = Pair::resolved();
    let peer = pair.to.qpn;
    let memory = &mut pair.network.sim.hosts[1].memory;
    let short = memory.post_receive(peer, GRH + 8);
    let unwritable = memory.post_receive(peer, 100);
    memory.unwritable.push(unwritable);
    let good = memory.post_receive(peer, GRH + 9);
    for _ in 0..3 {
        pair.post(request(peer, 9));
    }
    let [_, received] = pair.run(MILLISECOND);
    let failed = |id, status| Event::ReceiveFailed { qpn: peer, srqn: None, id, status };
    assert_eq!(
        received[..2],
        [
            failed(short, ReceiveStatus::LocalLength),
            failed(unwritable, ReceiveStatus::LocalProtection)
        ]
    );
    assert!(matches!(received[2], Event::ReceiveCompleted { id, .. } if id == good));
    assert_eq!(pair.network.state(pair.to), QpState::Rts);
    // Nor does one that cannot be taken.
    pair.network.sim.hosts[1].memory.bad_receives.push(peer.value());
    pair.network.sim.hosts[1].memory.post_receive(peer, 100);
    pair.network.sim.hosts[1].memory.post_receive(peer, 100);
    pair.post(request(peer, 9));
    assert_eq!(pair.run(MILLISECOND)[1], []);
    pair.network.sim.hosts[1].memory.bad_receives.clear();
    pair.post(request(peer, 9));
    let [_, received] = pair.run(MILLISECOND);
    assert_eq!((received.len(), pair.network.state(pair.to)), (1, QpState::Rts));
}

/// UD-13.
#[test]
fn a_message_that_cannot_be_read_stops_the_send_queue_and_nothing_else() {
    let mut pair = Pair::resolved();
    let (from, peer) = (pair.from, pair.to.qpn);
    for _ in 0..4 {
        pair.network.sim.hosts[1].memory.post_receive(peer, 100);
    }
    for number in 0..4 {
        pair.post(request(peer, 9));
        if number == 2 {
            let messages = &mut pair.network.sim.hosts[0].memory.messages;
            messages.insert((from.qpn.value(), 2), Local::Unreadable);
        }
    }
    let [sent, received] = pair.run(MILLISECOND);
    let status = SendStatus::LocalProtection;
    let failed = Event::SendFailed { qpn: from.qpn, message: 2, status };
    assert_eq!(sent, [completed(from.qpn, 1), failed]);
    assert_eq!((received.len(), pair.network.state(from)), (2, QpState::Sqe));
    let stack = &mut pair.network.sim.hosts[0].stack;
    let refused = stack.post_datagram(from.qpn, request(peer, 9));
    assert_eq!(refused, Err(PostError::State { qpn: from.qpn, state: QpState::Sqe }));
    // It goes on receiving.
    let gid = pair.network.gid(0, true);
    address(&mut pair.network, 1, AH, &vector(gid, true));
    let id = pair.network.sim.hosts[0].memory.post_receive(from.qpn, 100);
    let back = pair.to;
    post(&mut pair.network, back, request(from.qpn, 9));
    let [received, _] = pair.run(MILLISECOND);
    assert!(matches!(received[..], [Event::ReceiveCompleted { id: its, .. }] if its == id));
    // Back in RTS it sends, and numbers go on.
    pair.network.modify(from, &to(QpState::Rts));
    assert_eq!(pair.post(request(peer, 9)), 4);
    let [sent, received] = pair.run(MILLISECOND);
    assert_eq!((sent, received.len()), (vec![completed(from.qpn, 4)], 1));
}

/// UD-14.
#[test]
fn a_drained_send_queue_begins_nothing() {
    let mut pair = Pair::resolved();
    let (from, peer) = (pair.from, pair.to.qpn);
    pair.post(request(peer, 9));
    pair.network.modify(from, &to(QpState::Sqd));
    let drained = Event::Async { qpn: from.qpn, kind: QpEvent::SqDrained };
    assert_eq!(pair.run(MILLISECOND)[0], [drained]);
    pair.network.modify(from, &to(QpState::Rts));
    assert_eq!(pair.run(MILLISECOND)[0], [completed(from.qpn, 0)]);
}

/// UD-15.
#[test]
fn an_error_forgets_what_is_under_way_and_says_so_once() {
    let mut pair = Pair::resolved();
    let (from, peer) = (pair.from, pair.to.qpn);
    pair.post(request(peer, 9));
    pair.network.modify(from, &to(QpState::Err));
    pair.network.modify(from, &to(QpState::Err));
    assert_eq!(pair.run(MILLISECOND)[0], [Event::EnteredError { qpn: from.qpn }]);
    pair.network.modify(from, &to(QpState::Reset));
    way(QpState::Rts, QKEY).iter().for_each(|change| pair.network.modify(from, change));
    assert_eq!(pair.post(request(peer, 9)), 0, "numbers begin anew");
    assert_eq!(pair.run(MILLISECOND)[0], [completed(from.qpn, 0)]);
}

/// UD-16.
#[test]
fn states_change_as_the_contract_says() {
    let ways = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd];
    for from in ways {
        let given = [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe];
        for target in given.into_iter().chain([QpState::Reset, QpState::Err]) {
            for extra in [None, Some(1)] {
                let mut network = Network::new(1, 1, Faults::NONE);
                let qpn = Qpn::new(5).unwrap();
                network.sim.hosts[0].stack.create_qp(qpn, roce::Service::Ud, 0).unwrap();
                let end = End { node: 0, qpn };
                way(from, QKEY).iter().for_each(|change| network.modify(end, change));
                let change = QpAttributes { qkey: extra, ..to(target) };
                let done = network.sim.hosts[0].stack.modify_qp(Instant(0), qpn, &change);
                let row = transition::transition(QpType::Ud, from, target);
                use fpga_regs::engine::qp::AttributeMask as M;
                let mask = if extra.is_some() { M::QKEY } else { M::empty() };
                // The stack is one port's, which it does not ask for.
                let allowed = row.is_some_and(|row| {
                    let required = row.required - M::PORT;
                    mask.contains(required) && (required | row.optional).contains(mask)
                });
                assert_eq!(done.is_ok(), allowed, "{from:?} to {target:?} with {mask:?}");
                let state = network.sim.hosts[0].stack.query_qp(qpn).unwrap().state;
                assert_eq!(state, if allowed { target } else { from });
                if let Err(error) = done {
                    assert!(matches!(error, Error::BadTransition { .. }), "{error}");
                }
            }
        }
    }
}

/// UD-5, UD-8.
#[test]
fn address_handles_are_refused_where_nobody_can_be() {
    let mut network = Network::new(1, 1, Faults::NONE);
    let own = network.gid(0, true);
    let stack = &mut network.sim.hosts[0].stack;
    let mut create = |ah, vector| stack.create_ah(Instant(0), ah, 0, &vector);
    assert_eq!(create(1, vector(own, true)), Ok(()));
    assert_eq!(create(1, vector(own, true)), Err(Error::AhExists(1)));
    let all = Gid::from_ipv4("255.255.255.255".parse().unwrap());
    assert_eq!(create(2, vector(all, true)), Err(Error::Unreachable { dgid: all }));
    let mismatch = Error::GidMismatch { dgid: own, sgid_index: 0 };
    assert_eq!(create(2, vector(own, false)), Err(mismatch));
    assert!(stack.is_used());
    stack.destroy_ah(1);
    stack.destroy_ah(1);
    assert!(!stack.is_used());
}

/// A queue pair can send to itself.
#[test]
fn a_datagram_to_its_own_queue_pair_arrives() {
    let mut network = Network::new(1, 1, Faults::NONE);
    let own = datagram_qp(&mut network, 0, 0x11);
    let gid = network.gid(0, true);
    address(&mut network, 0, AH, &vector(gid, true));
    let id = network.sim.hosts[0].memory.post_receive(own.qpn, 100);
    post(&mut network, own, request(own.qpn, 50));
    let deadline = network.now() + MILLISECOND;
    network.run(deadline, |_| false);
    let events = &network.sim.hosts[0].events;
    assert!(matches!(
        events[..],
        [
            Event::SendsCompleted { through: 0, .. },
            Event::ReceiveCompleted { source_qpn: Some(0x11), .. }
        ]
    ));
    assert_eq!(
        network.sim.hosts[0].memory.buffers[&id].bytes[GRH..GRH + 50],
        pattern_vec(0, 0, 50)
    );
}

/// Many queue pairs on three nodes send to each other over a bad cable, beside a connection: datagrams arrive
/// as they were sent, in receives of the queue pairs that they were for, and everything completes.
#[test]
fn random_datagrams_arrive_whole_or_not_at_all() {
    for_each_seed("random_datagrams_arrive_whole_or_not_at_all", 60, |seed| {
        let faults = if seed % 4 == 0 { Faults::NONE } else { bad(200) };
        let mut network = Network::new(seed, 3, faults);
        let options = Options::default();
        let (a, b) = network.connect(0, 1, &options);
        let mut flow = Flow::new(&mut network, a, b, &Plan::mixed(50, options.mtu));
        let mut ends = Vec::new();
        for node in 0..3 {
            for number in 0..3 {
                ends.push(datagram_qp(&mut network, node, 0x100 + number));
            }
            for peer in 0..3 {
                let ipv4 = (seed + peer) % 2 == 0;
                let gid = network.gid(peer as usize, ipv4);
                address(&mut network, node, peer as u32, &vector(gid, ipv4));
            }
        }
        // The sent datagrams, by destination and key, which stands at the beginning of each.
        let mut under_way: BTreeMap<(End, u64), u32> = BTreeMap::new();
        for key in 0..200u64 {
            let (from, to) = (network.rng.pick(&ends), network.rng.pick(&ends));
            let length = network.rng.below(1200) as u32;
            let request = DatagramRequest {
                ah: to.node as u32,
                imm: Some(key as u32),
                ..request(to.qpn, length)
            };
            let number =
                network.sim.hosts[from.node].stack.post_datagram(from.qpn, request).unwrap();
            let messages = &mut network.sim.hosts[from.node].memory.messages;
            messages.insert((from.qpn.value(), number), Local::Pattern(key));
            under_way.insert((to, key), length);
            network.sim.hosts[to.node].memory.post_receive(to.qpn, 1300);
            network.wake(from.node);
        }
        let mut events = vec![Vec::new(); 3];
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
        for end in &ends {
            let node = &network.sim.hosts[end.node];
            let snapshot = node.stack.query_qp(end.qpn).unwrap();
            assert_eq!((snapshot.state, node.stack.send_room(end.qpn)), (QpState::Rts, 1024));
            for event in events[end.node].iter().filter(|event| event.qpn() == end.qpn) {
                let Event::ReceiveCompleted { id, length, imm: Some(imm), .. } = *event else {
                    assert!(matches!(event, Event::SendsCompleted { .. }), "{event:?}");
                    continue;
                };
                let sent = under_way[&(*end, imm.into())];
                assert_eq!(length, sent + GRH_LENGTH);
                let buffer = &node.memory.buffers[&id].bytes;
                let wanted = pattern_vec(imm.into(), 0, sent as usize);
                assert!(buffer[GRH..length as usize] == wanted, "datagram {imm}");
                arrived += 1;
            }
        }
        assert!(arrived > 150, "only {arrived} arrived");
        assert!(seed % 4 != 0 || arrived == 200, "{arrived} of 200 over a good cable");
    });
}
