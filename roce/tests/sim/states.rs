//! States of queue pairs, their destruction, and the frames beside RoCE.

use fpga_regs::engine::qp::{AttributeMask as M, QpType};
use fpga_regs::engine::transition::{self, Refused};
use fpga_regs::engine::window::Capabilities;
use netsim::config::Faults;
use roce::window::RateLimit;
use roce::wire::{arp, ethernet, icmpv4, ipv4, ipv6, ndp};
use roce::{
    Address, Error, Event, Gid, GidTable, Instant, MacAddr, Operation, PathMtu, Placed, PostError,
    QpAttributes, QpEvent, QpState, Qpn, SendRequest,
};

use crate::connection::{Options, to_init, to_rtr, to_rts};
use crate::memory::Local;
use crate::network::{Network, Node, card, round};
use crate::puppet::{PEER_IP, PEER_QPN, Puppet, RQ_PSN, SQ_PSN, ack, rdma, request};
use crate::workload::{Flow, Plan, run};

const SEND: SendRequest = SendRequest {
    operation: Operation::Send,
    length: 4,
    remote_va: 0,
    rkey: 0,
    imm: 0,
    solicited: false,
    fence: false,
};

fn to(state: QpState) -> QpAttributes {
    QpAttributes { state: Some(state), ..QpAttributes::default() }
}

/// The change to `to` that names the attributes of a mask; `None` where this stack knows one of
/// them not.
fn change(mask: M, to: QpState) -> Option<QpAttributes> {
    let options = Options::default();
    let receive = to_rtr(&options, Gid::from_ipv4(PEER_IP), Qpn::new(PEER_QPN)?, RQ_PSN);
    let send = to_rts(&options, SQ_PSN);
    let mut left = mask;
    let mut has = |bit| {
        let has = left.contains(bit);
        left.remove(bit);
        has
    };
    let change = QpAttributes {
        state: has(M::STATE).then_some(to),
        path: receive.path.filter(|_| has(M::AV)),
        path_mtu: receive.path_mtu.filter(|_| has(M::PATH_MTU)),
        dest_qpn: receive.dest_qpn.filter(|_| has(M::DEST_QPN)),
        rq_psn: receive.rq_psn.filter(|_| has(M::RQ_PSN)),
        sq_psn: send.sq_psn.filter(|_| has(M::SQ_PSN)),
        max_rd_atomic: send.max_rd_atomic.filter(|_| has(M::MAX_RD_ATOMIC)),
        max_dest_rd_atomic: receive.max_dest_rd_atomic.filter(|_| has(M::MAX_DEST_RD_ATOMIC)),
        min_rnr_timer: receive.min_rnr_timer.filter(|_| has(M::MIN_RNR_TIMER)),
        timeout: send.timeout.filter(|_| has(M::TIMEOUT)),
        retry_cnt: send.retry_cnt.filter(|_| has(M::RETRY_COUNT)),
        rnr_retry: send.rnr_retry.filter(|_| has(M::RNR_RETRY)),
        access: has(M::ACCESS).then_some(options.access),
        pkey_index: has(M::PKEY_INDEX).then_some(0),
        qkey: has(M::QKEY).then_some(1),
        rate_limit: has(M::RATE_LIMIT).then(RateLimit::default),
    };
    left.is_empty().then_some(change)
}

/// Puts the queue pair into a state, from any.
fn put(puppet: &mut Puppet, state: QpState) {
    let options = Options::default();
    let receive = to_rtr(&options, Gid::from_ipv4(PEER_IP), Qpn::new(PEER_QPN).unwrap(), RQ_PSN);
    puppet.modify(&to(QpState::Reset));
    let steps = [to_init(&options), receive, to_rts(&options, SQ_PSN), to(QpState::Sqd)];
    let last = match state {
        QpState::Reset => return,
        QpState::Err => return puppet.modify(&to(QpState::Err)),
        state => state,
    };
    for step in steps {
        puppet.modify(&step);
        if step.state == Some(last) {
            return;
        }
    }
}

/// RC-77, RC-78, RC-81.
#[test]
fn every_change_is_judged_as_the_contracts_table_judges_it() {
    use QpState as S;
    let mut puppet = Puppet::new(&Options::default());
    let mut judged = 0;
    for from in [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Err] {
        for wanted in transition::changes(QpType::Rc, from) {
            let expected = transition::check(QpType::Rc, from, &wanted, Capabilities::RATE_LIMIT);
            // Its one port a queue pair has without being told.
            let takes = transition::transition(QpType::Rc, from, wanted.state)
                .map_or(M::empty(), |row| row.required | row.optional);
            let port = takes & M::PORT;
            let Some(change) = change(wanted.mask - port, wanted.state) else { continue };
            if matches!(expected, Err(Refused::Missing { attributes: M::PORT, .. })) {
                continue;
            }
            put(&mut puppet, from);
            let done = puppet.node.stack.modify_qp(Instant(puppet.now), puppet.qpn, &change);
            let qpn = puppet.qpn;
            let refused = expected.err().map(|refused| Error::BadTransition { qpn, refused });
            assert_eq!(done.err(), refused, "{from:?}: {wanted:?}");
            assert_eq!(puppet.state(), expected.unwrap_or(from), "{from:?}: {wanted:?}");
            judged += 1;
        }
    }
    assert!(judged > 500, "{judged}");
}

/// RC-79, RC-80.
#[test]
fn draining_finishes_what_has_begun_and_starts_nothing_new() {
    // Without a timeout, so that a lost request for an acknowledgement would stop everything.
    let options = Options { mtu: PathMtu::Mtu256, timeout: 0, ..Options::default() };
    let mut puppet = Puppet::new(&options);
    for _ in 0..3 {
        puppet.post(Operation::Write, 40 * 256);
    }
    // The budget of a round ends inside the second message.
    assert_eq!(puppet.round().len(), 64);
    puppet.modify(&to(QpState::Sqd));
    let qpn = puppet.qpn;
    assert!(puppet.node.stack.query_qp(qpn).unwrap().sq_draining);
    let rest = puppet.drain();
    assert_eq!(rest.last().unwrap().psn, SQ_PSN + 79);
    assert!(rest.last().unwrap().ack_request);
    assert_eq!(puppet.events(), []);
    assert!(puppet.say(&[ack(SQ_PSN + 79)]).is_empty());
    assert_eq!(
        puppet.events(),
        [Event::SendsCompleted { qpn, through: 1 }, Event::Async { qpn, kind: QpEvent::SqDrained }]
    );
    assert!(!puppet.node.stack.query_qp(qpn).unwrap().sq_draining);
    // Messages are taken and kept.
    puppet.post(Operation::Write, 1);
    assert!(puppet.drain().is_empty());
    puppet.modify(&to(QpState::Rts));
    let sent = puppet.drain();
    assert_eq!((sent[0].psn, sent.last().unwrap().psn), (SQ_PSN + 80, SQ_PSN + 120));
    assert_eq!(puppet.node.stack.counters().retransmitted_pkts, 0);
}

/// RC-30, RC-80.
#[test]
fn draining_asks_again_if_nobody_asked() {
    let options = Options { mtu: PathMtu::Mtu256, timeout: 0, ..Options::default() };
    let mut puppet = Puppet::new(&options);
    for _ in 0..30 {
        puppet.post(Operation::Write, 3 * 256);
    }
    // 22 messages leave; the last counted on those that follow to ask.
    let now = Instant(puppet.now);
    let sent: Vec<_> = (0..66).map_while(|_| puppet.node.stack.poll_transmit(now)).collect();
    assert_eq!(sent.len(), 66);
    puppet.node.stack.commit(now, &[]);
    puppet.modify(&to(QpState::Sqd));
    let last = puppet.drain().last().cloned();
    let last = last.expect("a packet that asks");
    assert!(last.ack_request);
    puppet.say(&[ack(last.psn)]);
    assert!(
        puppet
            .events()
            .iter()
            .any(|event| { matches!(event, Event::Async { kind: QpEvent::SqDrained, .. }) })
    );
}

/// RC-80.
#[test]
fn an_idle_queue_pair_is_drained_at_once() {
    let mut puppet = Puppet::new(&Options::default());
    puppet.modify(&to(QpState::Sqd));
    puppet.round();
    let (qpn, kind) = (puppet.qpn, QpEvent::SqDrained);
    assert_eq!(puppet.events(), [Event::Async { qpn, kind }]);
}

/// RC-49, RC-79.
#[test]
fn the_first_request_in_rtr_establishes_communication() {
    let mut network = Network::new(1, 2, Faults::NONE);
    let options = Options::default();
    let (a, b) = network.connect(0, 1, &options);
    let snapshot = network.sim.hosts[1].stack.query_qp(b.qpn).unwrap();
    network.set_state(b, QpState::Reset);
    network.modify(b, &crate::connection::to_init(&options));
    let dgid = network.gid(0, true);
    let rtr = crate::connection::to_rtr(&options, dgid, a.qpn, snapshot.rq_psn.value());
    network.modify(b, &rtr);
    for _ in 0..2 {
        network.sim.hosts[1].memory.post_receive(b.qpn, 4);
        let now = Instant(network.now());
        let number = network.sim.hosts[0].stack.post_send(now, a.qpn, SEND).unwrap();
        network.sim.hosts[0].memory.messages.insert((a.qpn.value(), number), Local::Pattern(0));
        network.wake(0);
        let deadline = network.now() + 10_000_000;
        network.run(deadline, |_| false);
    }
    let kind = QpEvent::CommunicationEstablished;
    let events = &network.sim.hosts[1].events;
    assert_eq!(events[0], Event::Async { qpn: b.qpn, kind });
    assert_eq!(events.len(), 3, "{events:?}");
}

/// RC-23, RC-79.
#[test]
fn messages_are_taken_only_in_rts_and_sqd_and_only_while_there_is_room() {
    let mut node = card(0);
    let qpn = Qpn::new(5).unwrap();
    let now = Instant(0);
    assert_eq!(node.stack.post_send(now, qpn, SEND), Err(PostError::UnknownQp(qpn)));
    node.stack.create_qp(qpn, roce::Service::Rc, 0).unwrap();
    assert_eq!(node.stack.create_qp(qpn, roce::Service::Rc, 0), Err(Error::QpExists(qpn)));
    let state = QpState::Reset;
    assert_eq!(node.stack.post_send(now, qpn, SEND), Err(PostError::State { qpn, state }));

    let mut puppet = Puppet::new(&Options { max_rd_atomic: 0, ..Options::default() });
    let qpn = puppet.qpn;
    let post = |puppet: &mut Puppet, request| puppet.node.stack.post_send(now, qpn, request);
    let read = SendRequest { operation: Operation::Read, ..SEND };
    assert_eq!(post(&mut puppet, read), Err(PostError::ReadsDisabled(qpn)));
    let length = (1 << 31) + 1;
    let long = SendRequest { length, ..SEND };
    assert_eq!(post(&mut puppet, long), Err(PostError::TooLong(length)));
    let room = puppet.node.stack.send_room(qpn);
    for number in 0..room as u64 {
        assert_eq!(post(&mut puppet, SEND), Ok(number));
    }
    assert_eq!(puppet.node.stack.send_room(qpn), 0);
    assert_eq!(post(&mut puppet, SEND), Err(PostError::Full(qpn)));
    puppet.modify(&to(QpState::Err));
    let state = QpState::Err;
    assert_eq!(post(&mut puppet, SEND), Err(PostError::State { qpn, state }));
}

/// RC-82.
#[test]
fn a_queue_pair_that_is_reset_and_connected_again_starts_afresh() {
    let mut network = Network::new(3, 2, Faults::NONE);
    let options = Options::default();
    let (a, b) = network.connect(0, 1, &options);
    for round in 0..3 {
        if round != 0 {
            // In the middle of things.
            for end in [a, b] {
                network.set_state(end, QpState::Reset);
                network.sim.hosts[end.node].memory.receives.clear();
                network.sim.hosts[end.node].memory.messages.clear();
            }
            let later = network.now() + 10_000_000;
            network.run(later, |_| false);
            network.sim.hosts.iter_mut().for_each(|node| node.events.clear());
            network.bring_up(a, b, 77 + round, 5, &options);
            network.bring_up(b, a, 5, 77 + round, &options);
        }
        let plan = Plan::mixed(40, options.mtu);
        let mut flows =
            [Flow::new(&mut network, a, b, &plan), Flow::new(&mut network, b, a, &plan)];
        if round == 1 {
            for flow in &mut flows {
                flow.pump(&mut network);
            }
            let soon = network.now() + 5_000;
            network.run(soon, |_| false);
        } else {
            run(&mut network, &mut flows, 1_000_000_000);
        }
    }
}

/// RC-82.
#[test]
fn nothing_is_heard_of_a_destroyed_queue_pair() {
    let mut puppet = Puppet::new(&Options::default());
    puppet.post(Operation::Write, 10_000);
    let now = Instant(puppet.now);
    let mut frames: Vec<Vec<u8>> = [
        rdma(roce::opcode::code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]),
        rdma(roce::opcode::code::READ_REQUEST, RQ_PSN + 1, 0, 800, vec![]),
        request(roce::opcode::code::SEND_LAST, RQ_PSN + 2, vec![0; 8]),
    ]
    .iter()
    .map(|say| puppet.frame(say))
    .collect();
    let mut placements = Vec::new();
    let node = &mut puppet.node;
    for (index, frame) in frames.iter_mut().enumerate() {
        assert!(
            node.stack.receive(now, frame, index, &mut node.memory, &mut placements).is_ready()
        );
    }
    assert_eq!(placements.len(), 1);
    node.stack.destroy_qp(puppet.qpn);
    node.stack.commit(now, &[Placed::Failed]);
    assert_eq!(node.stack.poll_event(), None);
    assert!(node.stack.poll_transmit(now).is_none());
    node.stack.handle_timeout(Instant(u64::MAX));
    assert!(node.stack.poll_transmit(now).is_none());
    assert_eq!(node.stack.query_qp(puppet.qpn), None);
    // The number may be used again, and its predecessor's frames do no harm.
    node.stack.create_qp(puppet.qpn, roce::Service::Rc, 0).unwrap();
    assert!(
        node.stack.receive(now, &mut frames[0], 0, &mut node.memory, &mut placements).is_ready()
    );
    node.stack.commit(now, &[]);
    assert_eq!(node.stack.counters().drop_wrong_state, 1);
}

/// RC-46.
#[test]
fn nothing_is_sent_between_a_burst_and_its_commit() {
    let mut puppet = Puppet::new(&Options::default());
    let mut frame = puppet.frame(&rdma(roce::opcode::code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]));
    let now = Instant(puppet.now);
    let mut placements = Vec::new();
    let node = &mut puppet.node;
    assert!(node.stack.receive(now, &mut frame, 0, &mut node.memory, &mut placements).is_ready());
    assert!(node.stack.poll_transmit(now).is_none());
    node.stack.commit(now, &[Placed::Copied]);
    assert!(node.stack.poll_transmit(now).is_some());
}

/// The answer of a node to one frame.
fn answer(node: &mut Node, frame: Vec<u8>) -> Option<Vec<u8>> {
    node.inbox.push(frame.into());
    let mut frames = round(node, 0);
    assert!(frames.len() <= 1);
    frames.pop()
}

fn ethernet(destination: MacAddr, ethertype: ethernet::EtherType, parts: &[&[u8]]) -> Vec<u8> {
    let source = MacAddr([2, 0, 0, 0, 0, 9]);
    let header = ethernet::Repr { destination, source, tag: None, ethertype };
    [&header.to_bytes()[..], &parts.concat()].concat()
}

/// An ARP request for an address.
fn question_ipv4(target_ip: std::net::Ipv4Addr) -> Vec<u8> {
    let packet = arp::Repr {
        operation: arp::Operation::Request,
        sender_mac: MacAddr([2, 0, 0, 0, 0, 9]),
        sender_ip: [10, 7, 0, 9].into(),
        target_mac: MacAddr::default(),
        target_ip,
    };
    let mut frame = ethernet(MacAddr::BROADCAST, ethernet::EtherType::ARP, &[&packet.to_bytes()]);
    frame.resize(60, 0);
    frame
}

/// The answer of a node to an ARP request for an address.
fn ask_ipv4(node: &mut Node, target_ip: std::net::Ipv4Addr) -> Option<Vec<u8>> {
    answer(node, question_ipv4(target_ip))
}

#[test]
fn arp_requests_for_the_port_are_answered() {
    let mut node = card(0);
    let mut ask = |target_ip| ask_ipv4(&mut node, target_ip);
    assert_eq!(ask([10, 7, 0, 2].into()), None);
    let reply = ask([10, 7, 0, 1].into()).unwrap();
    let (header, packet) = ethernet::Repr::parse(&reply).unwrap();
    let packet = arp::Repr::parse(packet).unwrap();
    assert_eq!(header.destination, MacAddr([2, 0, 0, 0, 0, 9]));
    assert_eq!(packet.operation, arp::Operation::Reply);
    assert_eq!((packet.sender_mac, packet.sender_ip), (node.mac, node.ipv4));
}

#[test]
fn echo_requests_are_answered() {
    let mut node = card(0);
    let data: Vec<u8> = (0..56).collect();
    let echo = icmpv4::Repr { reply: false, identifier: 3, sequence: 4, data: &data };
    let ip = ipv4::Repr {
        type_of_service: 0,
        time_to_live: 3,
        protocol: ipv4::PROTOCOL_ICMP,
        source: [10, 7, 0, 9].into(),
        destination: node.ipv4,
        payload_length: 64,
    };
    let mac = node.mac;
    let frame =
        ethernet(mac, ethernet::EtherType::IPV4, &[&ip.to_bytes(), &echo.to_bytes(), &data]);
    let reply = answer(&mut node, frame).unwrap();
    let (_, packet) = ethernet::Repr::parse(&reply).unwrap();
    let (ip, packet) = ipv4::Repr::parse(packet).unwrap();
    assert_eq!(ip.destination, std::net::Ipv4Addr::new(10, 7, 0, 9));
    let reply = icmpv4::Repr::parse(packet).unwrap();
    assert_eq!(reply, icmpv4::Repr { reply: true, ..echo });
}

/// RC-14.
#[test]
fn a_peer_whose_ipv6_address_does_not_tell_is_asked_for() {
    let mut nodes = [card(0), card(1)];
    let gid =
        |n: usize| Gid::from_ipv6(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + n as u16));
    for (n, node) in nodes.iter_mut().enumerate() {
        let mut gids = GidTable::default();
        gids[2] = Some(gid(n).into());
        node.stack.set_gids(gids);
    }
    let [first, second] = &mut nodes;
    let qpn = Qpn::new(0x11).unwrap();
    first.stack.create_qp(qpn, roce::Service::Rc, 0).unwrap();
    let options = Options { mtu: PathMtu::Mtu256, timeout: 14, ..Options::default() };
    let mut rtr = to_rtr(&options, gid(1), Qpn::new(0x12).unwrap(), 0);
    rtr.path.as_mut().unwrap().sgid_index = 2;
    for change in [to_init(&options), rtr, to_rts(&options, 0)] {
        first.stack.modify_qp(Instant(0), qpn, &change).unwrap();
    }
    let read = SendRequest {
        operation: Operation::Read,
        length: 0,
        remote_va: 0,
        rkey: 0,
        imm: 0,
        solicited: false,
        fence: false,
    };
    first.stack.post_send(Instant(0), qpn, read).unwrap();
    let question = round(first, 0).pop().unwrap();
    assert_eq!(
        question[..6],
        roce::MacAddr::of_group(Gid::from_ipv6(ndp::solicited_node(gid(1).as_ipv6()))).0
    );
    let told_so = answer(second, question).unwrap();
    // An answer that comes again is none.
    let request = answer(first, told_so.clone()).unwrap();
    assert_eq!((&request[..6], &request[12..14]), (&second.mac.0[..], &[0x86, 0xdd][..]));
    assert_eq!(answer(first, told_so), None);
}

/// The answer of a node to fe80::9, which solicits the neighbour of an address.
fn ask_ipv6(node: &mut Node, own: std::net::Ipv6Addr) -> Option<Vec<u8>> {
    answer(node, question_ipv6(own))
}

/// A solicitation of fe80::9's for the neighbour of an address.
fn question_ipv6(own: std::net::Ipv6Addr) -> Vec<u8> {
    let source: std::net::Ipv6Addr = "fe80::9".parse().unwrap();
    // A solicitation with its checksum, as RFC 4861 lays it out.
    let destination = ndp::solicited_node(own);
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(own.octets());
    let sum = |source: std::net::Ipv6Addr| {
        let mut bytes = source.octets().to_vec();
        bytes.extend(destination.octets());
        bytes.extend([0, 0, 0, message.len() as u8, 0, 0, 0, 58]);
        bytes.extend(&message);
        let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = words.sum();
        !((sum & 0xffff) + (sum >> 16)) as u16
    };
    let checksum = sum(source).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: ipv6::NEXT_HEADER_ICMPV6,
        hop_limit: 255,
        source,
        destination,
        payload_length: message.len() as u16,
    };
    ethernet(
        roce::MacAddr::of_group(Gid::from_ipv6(destination)),
        ethernet::EtherType::IPV6,
        &[&ip.to_bytes(), &message],
    )
}

#[test]
fn neighbour_solicitations_for_the_link_local_address_are_answered() {
    let mut node = card(0);
    let (own, source) = (node.mac.link_local(), "fe80::9".parse().unwrap());
    let reply = ask_ipv6(&mut node, own).unwrap();
    let (header, packet) = ethernet::Repr::parse(&reply).unwrap();
    assert_eq!(header.destination, MacAddr([2, 0, 0, 0, 0, 9]));
    let (ip, packet) = ipv6::Repr::parse(packet).unwrap();
    assert_eq!((ip.source, ip.destination, ip.hop_limit), (own, source, 255));
    assert_eq!((packet[0], &packet[26..32]), (136, &node.mac.0[..]));
    assert_eq!(node.stack.counters().ndp_replies, 1);
}

/// RC-14.
#[test]
fn each_address_that_the_port_is_given_is_answered_for_until_it_is_taken_away() {
    let mut node = card(0);
    let link_local = node.mac.link_local();
    let ipv4 = [[10, 7, 0, 1], [10, 8, 0, 1], [192, 168, 0, 1]].map(std::net::Ipv4Addr::from);
    let ipv6 = ["2001:db8::1", "fd00::2:1", "fe80::1"].map(|text| text.parse().unwrap());
    let mut gids = GidTable::default();
    let all = ipv4.map(Gid::from_ipv4).into_iter().chain(ipv6.map(Gid::from_ipv6));
    for (entry, gid) in gids.iter_mut().skip(3).zip(all) {
        *entry = Some(gid.into());
    }
    gids[0] = Some(Gid::from_ipv6(link_local).into());
    node.stack.set_gids(gids);
    for address in ipv4 {
        assert!(ask_ipv4(&mut node, address).is_some(), "{address}");
    }
    for address in [link_local].into_iter().chain(ipv6) {
        assert!(ask_ipv6(&mut node, address).is_some(), "{address}");
    }
    gids[4] = None;
    gids[6] = None;
    node.stack.set_gids(gids);
    assert_eq!((ask_ipv4(&mut node, ipv4[1]), ask_ipv6(&mut node, ipv6[0])), (None, None));
    assert!(ask_ipv4(&mut node, ipv4[2]).is_some() && ask_ipv6(&mut node, ipv6[1]).is_some());
}

/// RC-104.
#[test]
fn an_address_of_a_vlan_hears_its_vlan_alone() {
    const VLAN: u16 = 5;
    let mut node = card(0);
    let (plain, tagged) = ([10, 7, 0, 1].into(), [10, 5, 0, 1].into());
    let in_both: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
    let mut gids = GidTable::default();
    gids[1] = Some(Gid::from_ipv4(plain).into());
    gids[2] = Some(Address { gid: Gid::from_ipv4(tagged), vlan: VLAN });
    gids[3] = Some(Address { gid: Gid::from_ipv6(in_both), vlan: VLAN });
    node.stack.set_gids(gids);
    let mut answer_in = |vlan: Option<u16>, mut frame: Vec<u8>| {
        if let Some(vlan) = vlan {
            let tag = ethernet::Tag { priority: 3, drop_eligible: false, vlan };
            frame.splice(12..12, tag.to_bytes());
        }
        let reply = answer(&mut node, frame)?;
        Some(ethernet::Repr::parse(&reply).unwrap().0.tag)
    };
    let own = ethernet::Tag { priority: 0, drop_eligible: false, vlan: VLAN };
    for (vlan, to_plain, to_tagged) in [
        (None, Some(None), None),
        // A priority without a VLAN.
        (Some(0), Some(None), None),
        (Some(VLAN), None, Some(Some(own))),
        (Some(VLAN + 1), None, None),
    ] {
        assert_eq!(answer_in(vlan, question_ipv4(plain)), to_plain, "{vlan:?}");
        assert_eq!(answer_in(vlan, question_ipv4(tagged)), to_tagged, "{vlan:?}");
        assert_eq!(answer_in(vlan, question_ipv6(in_both)), to_tagged, "{vlan:?}");
    }
}

#[test]
fn the_end_of_time_does_not_hang() {
    let mut network = Network::new(1, 2, Faults::NONE);
    let (a, _) = network.connect(0, 1, &Options::default());
    let node = &mut network.sim.hosts[0];
    node.stack.post_send(Instant(0), a.qpn, SEND).unwrap();
    node.memory.messages.insert((a.qpn.value(), 0), Local::Pattern(0));
    for _ in 0..100 {
        node.stack.handle_timeout(Instant(u64::MAX));
        while node.stack.poll_transmit(Instant(u64::MAX)).is_some() {}
    }
}

/// RC-81.
#[test]
fn a_path_may_change_while_drained() {
    let mut network = Network::new(1, 2, Faults::NONE);
    let options = Options::default();
    let (a, b) = network.connect(0, 1, &options);
    let send = |network: &mut Network, number: u64| {
        network.sim.hosts[1].memory.post_receive(b.qpn, 4);
        let now = Instant(network.now());
        assert_eq!(network.sim.hosts[0].stack.post_send(now, a.qpn, SEND), Ok(number));
        network.sim.hosts[0].memory.messages.insert((a.qpn.value(), number), Local::Pattern(0));
        network.wake(0);
        let later = network.now() + 10_000_000;
        network.run(later, |_| false);
        let through = Event::SendsCompleted { qpn: a.qpn, through: number };
        assert!(network.sim.hosts[0].events.contains(&through));
    };
    send(&mut network, 0);
    // The same peer with another traffic class, then the peer's other address.
    for (number, ipv4) in [(1, true), (2, false)] {
        for (own, peer) in [(a, b), (b, a)] {
            network.set_state(own, QpState::Sqd);
            let other = Options { ipv4, ..options };
            let dgid = network.gid(peer.node, ipv4);
            let path = crate::connection::to_rtr(&other, dgid, peer.qpn, 0).path;
            network.modify(own, &QpAttributes { path, ..QpAttributes::default() });
            network.set_state(own, QpState::Rts);
        }
        let asked = network.sim.hosts[0].stack.counters().sent_arp_requests;
        send(&mut network, number);
        assert_eq!(network.sim.hosts[0].stack.counters().sent_arp_requests, asked);
    }
}
