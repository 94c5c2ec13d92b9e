//! Rules of single packets: the fields of a header, and the fate of a packet that breaks a rule.

use fpga_regs::engine::transition::Refused;
use roce::opcode::code;
use roce::wire::aeth::{NakCode, Syndrome};
use roce::wire::{bth, ethernet, icrc, ipv4, reth, udp};
use roce::{Error, Instant, MacAddr, Operation, PathMtu, QpAttributes, QpState, SendRequest};

use crate::connection::{Options, to_init, to_rtr};
use crate::network::{Node, card, round};
use crate::puppet::{PEER_IP, PEER_QPN, Puppet, RQ_PSN, Say, VA, rdma, request};

fn options() -> Options {
    Options { mtu: PathMtu::Mtu256, ..Options::default() }
}

/// Parses the IPv4, UDP and transport headers of a frame, and splits them off.
fn headers(frame: &[u8]) -> (ipv4::Repr, udp::Repr, bth::Repr, &[u8]) {
    let (_, packet) = ethernet::Repr::parse(frame).unwrap();
    let (ip, datagram) = ipv4::Repr::parse(packet).unwrap();
    let (udp, body) = udp::Repr::parse(datagram).unwrap();
    let (transport, rest) = bth::Repr::parse(body).unwrap();
    (ip, udp, transport, rest)
}

fn send(operation: Operation, length: u32) -> SendRequest {
    SendRequest {
        operation,
        length,
        remote_va: VA,
        rkey: 1,
        imm: 0x0102_0304,
        solicited: true,
        fence: false,
    }
}

/// RC-1, RC-13, RC-15, RC-16.
#[test]
fn every_frame_carries_what_the_path_and_the_peer_say() {
    let mut puppet = Puppet::new(&Options { traffic_class: 0x6a, ..options() });
    puppet.post(Operation::Write, 600);
    puppet.post(Operation::Read, 9);
    // An acknowledgement and a READ response besides.
    let write = rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]);
    let read = rdma(code::READ_REQUEST, RQ_PSN + 1, 0, 5, vec![]);
    puppet.node.inbox.extend([puppet.frame(&read), puppet.frame(&write)].map(Into::into));
    puppet.node.inbox.push(puppet.frame(&read).into());
    let mut frames = round(&mut puppet.node, puppet.now);
    frames.extend(round(&mut puppet.node, puppet.now));
    assert_eq!(frames.len(), 6);
    let port = headers(&frames[0]).1.source_port;
    assert!(port >= 0xc000, "{port}");
    for frame in &frames {
        let (ip, udp, transport, _) = headers(frame);
        assert_eq!((ip.source, ip.destination), (puppet.node.ipv4, PEER_IP));
        assert_eq!((ip.type_of_service, ip.time_to_live), (0x6a, 1));
        assert_eq!((udp.source_port, udp.destination_port), (port, 4791));
        assert_eq!((transport.dest_qpn, transport.pkey), (PEER_QPN, 0xffff));
        assert!(transport.migrated && !transport.fecn && !transport.becn);
        assert!(icrc::check(&mut frame.clone()));
    }
}

/// RC-8, RC-24.
#[test]
fn payload_is_padded_with_zeros_to_whole_words() {
    for length in 0..=8_u8 {
        let mut puppet = Puppet::new(&options());
        puppet.post(Operation::Send, u32::from(length));
        let frames = round(&mut puppet.node, puppet.now);
        let (_, _, transport, rest) = headers(&frames[0]);
        assert_eq!((transport.pad_count + length) % 4, 0);
        let padding = &rest[usize::from(length)..rest.len() - icrc::LENGTH];
        assert_eq!(padding, vec![0; usize::from(transport.pad_count)]);
    }
}

/// RC-8.
#[test]
fn a_packet_that_is_not_whole_words_is_dropped() {
    let mut puppet = Puppet::new(&options());
    let mut frame = puppet.frame(&rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]));
    // Without its last byte, all lengths right.
    let (ip, udp, ..) = headers(&frame);
    let ip = ipv4::Repr { payload_length: ip.payload_length - 1, ..ip };
    let udp = udp::Repr { payload_length: udp.payload_length - 1, ..udp };
    frame.pop();
    frame[14..34].copy_from_slice(&ip.to_bytes());
    frame[34..42].copy_from_slice(&udp.to_bytes());
    icrc::append(&mut frame).unwrap();
    assert!(puppet.feed(&[frame]).is_empty());
    assert_eq!(puppet.node.stack.counters().drop_malformed, 1);
    assert_eq!((puppet.events(), puppet.state()), (vec![], QpState::Rts));
}

/// RC-98.
#[test]
fn a_damaged_arp_packet_does_not_turn_a_neighbour_away() {
    let mut puppet = Puppet::new(&options());
    let says = |puppet: &Puppet, last: u8| {
        let packet = roce::wire::arp::Repr {
            operation: roce::wire::arp::Operation::Reply,
            sender_mac: MacAddr([2, 0, 0, 0, 0, last]),
            sender_ip: PEER_IP,
            target_mac: puppet.node.mac,
            target_ip: puppet.node.ipv4,
        };
        let header = ethernet::Repr {
            destination: puppet.node.mac,
            source: MacAddr([2, 0, 0, 0, 0, 0x77]),
            tag: None,
            ethertype: ethernet::EtherType::ARP,
        };
        [&header.to_bytes()[..], &packet.to_bytes()].concat()
    };
    // Silence makes the stack ask again.
    puppet.post(Operation::Write, 8);
    puppet.drain();
    assert!(!puppet.time_out().1.is_empty());
    for (last, destination) in [(0x76, 0x99), (0x77, 0x77)] {
        puppet.feed(&[says(&puppet, last)]);
        puppet.post(Operation::Write, 8);
        let sent = round(&mut puppet.node, puppet.now);
        assert_eq!(sent[0][..6], [2, 0, 0, 0, 0, destination]);
    }
    assert_eq!(puppet.node.stack.counters().drop_malformed, 1);
}

/// RC-3.
#[test]
fn another_udp_port_is_not_roce() {
    let mut puppet = Puppet::without_credits(&options());
    let mut frame = puppet.frame(&rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]));
    frame[36..38].copy_from_slice(&4790_u16.to_be_bytes());
    icrc::append(&mut frame).unwrap();
    assert!(puppet.feed(&[frame]).is_empty());
    assert_eq!(puppet.node.stack.counters().drop_not_for_us, 1);
    assert_eq!(puppet.node.stack.counters().rcvd_pkts, 0);
}

/// RC-4, RC-6.
#[test]
fn other_versions_and_services_are_dropped_in_silence() {
    let mut puppet = Puppet::new(&options());
    let write = rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]);
    let mut version = puppet.frame(&write);
    version[43] |= 1;
    icrc::append(&mut version).unwrap();
    // Unreliable Connection, Unreliable Datagram, and an undefined opcode.
    let others = [0x24, 0x64, 0xe0].map(|opcode| puppet.frame(&Say { opcode, ..write.clone() }));
    assert!(puppet.feed(&[version]).is_empty());
    assert!(puppet.feed(&others).is_empty());
    assert_eq!((puppet.events(), puppet.state()), (vec![], QpState::Rts));
    assert_eq!(puppet.node.stack.counters().drop_malformed, 2);
    assert_eq!(puppet.node.stack.counters().drop_bad_opcode, 2);
}

/// RC-10.
#[test]
fn a_queue_pair_that_is_not_ready_hears_nothing() {
    let write = rdma(code::WRITE_ONLY, RQ_PSN, 0, 8, vec![1; 8]);
    for state in [QpState::Reset, QpState::Init, QpState::Err] {
        let mut puppet = Puppet::new(&options());
        let first = if state == QpState::Init { QpState::Reset } else { state };
        puppet.modify(&QpAttributes { state: Some(first), ..QpAttributes::default() });
        if state == QpState::Init {
            puppet.modify(&to_init(&options()));
        }
        puppet.round();
        puppet.events();
        assert!(puppet.say(std::slice::from_ref(&write)).is_empty());
        assert_eq!((puppet.events(), puppet.state()), (vec![], state));
        assert_eq!(puppet.node.stack.counters().drop_wrong_state, 1);
    }
}

/// RC-28.
#[test]
fn only_the_last_packet_of_what_a_receiver_notices_is_solicited() {
    for (operation, expected) in [
        (Operation::Send, [false, false, true]),
        (Operation::SendImm, [false, false, true]),
        (Operation::WriteImm, [false, false, true]),
        (Operation::Write, [false, false, false]),
    ] {
        let mut puppet = Puppet::new(&options());
        puppet.post_request(send(operation, 600));
        let frames = round(&mut puppet.node, puppet.now);
        let solicited: Vec<bool> = frames.iter().map(|frame| headers(frame).2.solicited).collect();
        assert_eq!(solicited, expected, "{operation:?}");
    }
}

/// RC-22, RC-29.
#[test]
fn the_address_stands_in_the_first_packet_and_immediate_data_in_the_last() {
    let mut puppet = Puppet::new(&options());
    puppet.post_request(send(Operation::WriteImm, 600));
    let frames = round(&mut puppet.node, puppet.now);
    let (_, _, transport, rest) = headers(&frames[0]);
    let rdma = reth::Repr { va: VA, rkey: 1, dma_length: 600 };
    assert_eq!((transport.opcode, &rest[..16]), (code::WRITE_FIRST, &rdma.to_bytes()[..]));
    let (_, _, transport, rest) = headers(&frames[1]);
    assert_eq!((transport.opcode, rest.len()), (code::WRITE_MIDDLE, 256 + icrc::LENGTH));
    let (_, _, transport, rest) = headers(&frames[2]);
    assert_eq!((transport.opcode, &rest[..4]), (code::WRITE_LAST_IMM, &[1, 2, 3, 4][..]));
}

/// RC-42.
#[test]
fn nothing_needs_no_key() {
    let mut puppet = Puppet::new(&options());
    let nowhere = |say: Say| {
        let reth = Some(reth::Repr { va: u64::MAX, rkey: 0, dma_length: 0 });
        Say { reth, ..say }
    };
    let sent = puppet.say(&[
        nowhere(rdma(code::WRITE_ONLY, RQ_PSN, 0, 0, vec![])),
        nowhere(rdma(code::READ_REQUEST, RQ_PSN + 1, 0, 0, vec![])),
    ]);
    let opcodes: Vec<u8> = sent.iter().map(|sent| sent.opcode).collect();
    assert_eq!(opcodes, [code::ACKNOWLEDGE, code::READ_RESPONSE_ONLY]);
    assert_eq!(puppet.state(), QpState::Rts);
}

/// RC-23.
#[test]
fn a_message_of_more_than_two_gibibytes_is_invalid() {
    let first = rdma(code::WRITE_FIRST, RQ_PSN, 0, (1 << 31) + 1, vec![0; 256]);
    let read = rdma(code::READ_REQUEST, RQ_PSN, 0, (1 << 31) + 1, vec![]);
    for say in [first, read] {
        let mut puppet = Puppet::new(&options());
        let sent = puppet.say(&[say]);
        assert_eq!(sent[0].syndrome, Some(Syndrome::Nak(NakCode::InvalidRequest)));
    }
}

/// RC-51, RC-52.
#[test]
fn every_answer_counts_the_messages_that_are_whole() {
    let mut puppet = Puppet::new(&options());
    let msn = |puppet: &mut Puppet, say: Say| {
        let sent = puppet.say(&[say]);
        let last = sent.last().unwrap();
        assert_eq!(last.syndrome, Some(Syndrome::Ack { credits: 0 }));
        last.msn
    };
    assert_eq!(msn(&mut puppet, rdma(code::WRITE_FIRST, RQ_PSN, 0, 300, vec![0; 256])), 0);
    assert_eq!(msn(&mut puppet, request(code::WRITE_LAST, RQ_PSN + 1, vec![0; 44])), 1);
    assert_eq!(msn(&mut puppet, rdma(code::READ_REQUEST, RQ_PSN + 2, 0, 600, vec![])), 2);
    assert_eq!(msn(&mut puppet, rdma(code::WRITE_ONLY, RQ_PSN + 5, 0, 8, vec![0; 8])), 3);
    // Asked again, a READ is still the second message.
    assert_eq!(msn(&mut puppet, rdma(code::READ_REQUEST, RQ_PSN + 2, 0, 600, vec![])), 2);
    assert_eq!(puppet.say(&[request(code::SEND_ONLY, RQ_PSN + 6, vec![])])[0].msn, 3);
}

/// RC-78, RC-81.
#[test]
fn a_path_is_changed_only_while_drained_and_a_refused_change_changes_nothing() {
    let mut puppet = Puppet::new(&options());
    let other = Options { traffic_class: 4, ..options() };
    let dgid = roce::Gid::from_ipv4(PEER_IP);
    let path = to_rtr(&other, dgid, puppet.qpn, 0).path;
    let before = puppet.node.stack.query_qp(puppet.qpn).unwrap();
    let change = QpAttributes { path, min_rnr_timer: Some(9), ..QpAttributes::default() };
    let modify = |puppet: &mut Puppet, change| {
        puppet.node.stack.modify_qp(Instant(puppet.now), puppet.qpn, change)
    };
    let refused = modify(&mut puppet, &change);
    assert!(
        matches!(refused, Err(Error::BadTransition { refused: Refused::Surplus { .. }, .. })),
        "{refused:?}"
    );
    assert_eq!(puppet.node.stack.query_qp(puppet.qpn), Some(before));
    puppet.modify(&QpAttributes { state: Some(QpState::Sqd), ..QpAttributes::default() });
    assert_eq!(modify(&mut puppet, &change), Ok(()));
    let after = puppet.node.stack.query_qp(puppet.qpn).unwrap();
    assert_eq!((after.path, after.min_rnr_timer), (path, 9));
}

/// RC-15.
#[test]
fn queue_pairs_take_different_source_ports() {
    let mut node = card(0);
    let ports: std::collections::BTreeSet<u16> = (2..40)
        .map(|number| {
            let qpn = roce::Qpn::new(number).unwrap();
            node.stack.create_qp(qpn, roce::Service::Rc, 0).unwrap();
            let modify = |node: &mut Node, change: &QpAttributes| {
                node.stack.modify_qp(Instant(0), qpn, change).unwrap();
            };
            let options = Options { ipv4: false, ..options() };
            modify(&mut node, &to_init(&options));
            let dgid = roce::Gid::from_ipv6(card(1).mac.link_local());
            modify(&mut node, &to_rtr(&options, dgid, qpn, 0));
            modify(&mut node, &crate::connection::to_rts(&options, 0));
            node.stack.post_send(Instant(0), qpn, send(Operation::Send, 0)).unwrap();
            let sent = node.stack.poll_transmit(Instant(0)).unwrap();
            let header = sent.header.as_slice();
            u16::from_be_bytes([header[54], header[55]])
        })
        .collect();
    assert!(ports.len() > 30, "{ports:?}");
}
