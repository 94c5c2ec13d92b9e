//! A port in multicast groups, between hostile peers and a hostile user: datagrams to groups, questions for
//! members, queue pairs that join and leave, and time.
//!
//! Checked promises: a frame gives each member one copy at most, and others none; a copy lies within its
//! frame and within a receive that was taken for it; each receive that was taken completes or fails once;
//! the port reports at most as often as it may, with any questions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::task::Poll;

use arbitrary::Unstructured;
use roce::opcode::code;
use roce::wire::{bth, ethernet, extension::deth, icrc, igmp, ipv4, ipv6, mld, udp};
use roce::{
    AccessDenied, Event, GRH_LENGTH, Gid, IcrcPolicy, Instant, MacAddr, PathMtu, Placed, Placement,
    Psn, QpAttributes, QpState, Qpn, ReceiveError, RemoteAccess, RemoteRange, ResponderMemory,
    Sink, Stack, StackConfig, TakenReceive, Target, param,
};

use crate::Outcome;

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const QPNS: [u32; 3] = [0x11, 0x12, 0x13];
const QKEY: u32 = 0x1234_5678;

/// Receives of any size, as many as are wanted.
#[derive(Default)]
struct User {
    next: u64,
    /// Whose each is that was taken and not completed, and its capacity.
    taken: BTreeMap<u64, (Qpn, u64)>,
    capacities: Vec<u64>,
}

impl ResponderMemory for User {
    fn check_remote(
        &mut self,
        _: Target,
        _: RemoteRange,
        _: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        panic!("datagrams reach no memory by keys")
    }

    fn take_receive(&mut self, target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        let Some(capacity) = self.capacities.pop() else {
            return Poll::Ready(Err(ReceiveError::Empty));
        };
        let id = self.next;
        self.next += 1;
        self.taken.insert(id, (target.qpn, capacity));
        Poll::Ready(Ok(TakenReceive { id, capacity, left: None }))
    }
}

struct Bench {
    stack: Stack,
    user: User,
    now: u64,
    members: BTreeSet<(u32, Gid)>,
    /// When a report may be sent at the earliest.
    report_after: u64,
}

fn groups() -> [Gid; 4] {
    [
        Gid::from_ipv4(Ipv4Addr::new(239, 1, 2, 3)),
        Gid::from_ipv4(Ipv4Addr::new(239, 129, 2, 3)),
        Gid::from_ipv6(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 1, 0x203)),
        Gid::from_ipv6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 0x203)),
    ]
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let (mtu_max, icrc_policy) = (PathMtu::Mtu256, IcrcPolicy::CheckAll);
    let mut stack = Stack::new(StackConfig { mac: OWN, ipv4: OWN_IP, mtu_max, icrc_policy });
    for qpn in QPNS.map(|qpn| Qpn::new(qpn).expect("a small number")) {
        stack.create_qp(qpn, roce::Service::Ud, 0).expect("room for a QP");
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let init = QpAttributes { pkey_index: Some(0), qkey: Some(QKEY), ..to(QpState::Init) };
        for change in [init, to(QpState::Rtr)] {
            stack.modify_qp(Instant(0), qpn, &change).expect("a sound change");
        }
    }
    let (user, members) = (User::default(), BTreeSet::new());
    let mut bench = Bench { stack, user, now: 1_000, members, report_after: 0 };
    while !u.is_empty() {
        bench.act(u)?;
    }
    Ok(())
}

impl Bench {
    fn act(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        match u.int_in_range(0..=9)? {
            0 | 1 => {
                let (qpn, group) = (*u.choose(&QPNS)?, *u.choose(&groups())?);
                let of = Qpn::new(qpn).expect("a small number");
                self.stack.attach(Instant(self.now), of, group).expect("a group with room");
                self.members.insert((qpn, group));
            }
            2 => {
                let (qpn, group) = (*u.choose(&QPNS)?, *u.choose(&groups())?);
                let of = Qpn::new(qpn).expect("a small number");
                let left = self.stack.detach(Instant(self.now), of, group).is_ok();
                assert_eq!(left, self.members.remove(&(qpn, group)));
            }
            3 => self.user.capacities.push(u.int_in_range(0..=400)?),
            4 => self.now += u.int_in_range(0..=2_000_000_000)?,
            _ => {
                let frame = frame(u)?;
                self.take(frame);
            }
        }
        self.transmit();
        Ok(())
    }

    fn take(&mut self, mut frame: Vec<u8>) {
        let mut placements = Vec::new();
        let members = self.stack.destinations(&frame);
        let now = Instant(self.now);
        let user = &mut self.user;
        assert!(self.stack.receive(now, &mut frame, 0, user, &mut placements).is_ready());
        let mut receives = BTreeSet::new();
        for Placement { qpn, sink, offset, range, .. } in &placements {
            let Sink::Receive { id } = sink else { panic!("{sink:?} of a datagram") };
            let (whose, capacity) = user.taken[id];
            assert!(whose == *qpn && range.end <= frame.len() && !range.is_empty());
            assert!(offset + range.len() as u64 <= capacity, "{placements:?}");
            receives.insert((*qpn, *id));
        }
        let qpns: BTreeSet<Qpn> = receives.iter().map(|receive| receive.0).collect();
        assert_eq!(qpns.len(), receives.len(), "two copies for one");
        for qpn in qpns {
            assert!(members.contains(&qpn), "{qpn} is none it is for");
            let in_any = self.members.iter().any(|(member, _)| *member == qpn.value());
            assert!(in_any, "{qpn} is in no group");
        }
        self.stack.commit(now, &vec![Placed::Copied; placements.len()]);
        while let Some(event) = self.stack.poll_event() {
            let (qpn, id, length) = match event {
                Event::ReceiveCompleted { qpn, id, length, .. } => (qpn, id, length),
                Event::ReceiveFailed { qpn, id, .. } => (qpn, id, GRH_LENGTH),
                other => panic!("{other:?}"),
            };
            let (whose, _) = self.user.taken.remove(&id).expect("it was taken, and not completed");
            assert!(whose == qpn && length >= GRH_LENGTH);
        }
        assert!(self.user.taken.is_empty(), "receives are lost: {:?}", self.user.taken);
    }

    fn transmit(&mut self) {
        self.stack.handle_timeout(Instant(self.now));
        while let Some(transmit) = self.stack.poll_transmit(Instant(self.now)) {
            let frame = transmit.header.as_slice();
            assert!(!transmit.needs_icrc && frame.len() <= 1514, "{} bytes", frame.len());
            let reports = [
                MacAddr::of_group(Gid::from_ipv4(igmp::REPORTS_TO)),
                MacAddr::of_group(Gid::from_ipv6(mld::REPORTS_TO)),
            ];
            assert!(reports.iter().any(|mac| frame.starts_with(&mac.0)), "{frame:x?}");
            assert!(self.now >= self.report_after, "reports without end");
            self.report_after = self.now + param::REPORT_INTERVAL.as_nanos() as u64;
        }
    }
}

/// A frame that the port would take, with a little of it changed.
fn frame(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let group = *u.choose(&groups())?;
    let mut bytes = match u.int_in_range(0..=3)? {
        0 => igmp_query(u, group)?,
        1 => mld_query(u, group)?,
        _ => datagram(u, group)?,
    };
    for _ in 0..u.int_in_range(0..=2)? {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    if u.ratio(1, 16)? {
        bytes.truncate(u.choose_index(bytes.len())?);
    }
    if u.ratio(7, 8)? {
        let _ = icrc::append(&mut bytes);
    }
    Ok(bytes)
}

fn framed(group: Gid, ethertype: ethernet::EtherType, packet: &[u8]) -> Vec<u8> {
    let destination = MacAddr::of_group(group);
    let header = ethernet::Repr { destination, source: PEER, tag: None, ethertype };
    [&header.to_bytes()[..], packet].concat()
}

fn datagram(u: &mut Unstructured<'_>, group: Gid) -> arbitrary::Result<Vec<u8>> {
    let body = u.choose_index(300)? & !3;
    let transport = bth::Repr {
        opcode: *u.choose(&[code::UD_SEND_ONLY, code::UD_SEND_ONLY_IMM, code::SEND_ONLY])?,
        dest_qpn: *u.choose(&[0xff_ffff, 0xff_ffff, 0xff_ffff, QPNS[0]])?,
        psn: Psn::new(u.arbitrary()?),
        pkey: if u.ratio(15, 16)? { 0xffff } else { u.arbitrary()? },
        ..bth::Repr::default()
    };
    let qkey = if u.ratio(7, 8)? { QKEY } else { u.arbitrary()? };
    let deth = deth::Repr { qkey, source_qpn: 0x99 };
    let packet =
        [&transport.to_bytes()[..], &deth.to_bytes(), &vec![7; body], &[0; icrc::LENGTH]].concat();
    let udp = udp::Repr {
        source_port: u.arbitrary()?,
        destination_port: param::ROCE_UDP_PORT,
        payload_length: packet.len() as u16,
    };
    let datagram = [&udp.to_bytes()[..], &packet].concat();
    let payload_length = datagram.len() as u16;
    Ok(match group.as_ipv4() {
        Some(destination) => {
            let ip = ipv4::Repr {
                type_of_service: 0,
                time_to_live: 1,
                protocol: ipv4::PROTOCOL_UDP,
                source: PEER_IP,
                destination,
                payload_length,
            };
            let packet = [&ip.to_bytes()[..], &datagram].concat();
            framed(group, ethernet::EtherType::IPV4, &packet)
        }
        None => {
            let ip = ipv6::Repr {
                traffic_class: 0,
                flow_label: 0,
                next_header: ipv6::NEXT_HEADER_UDP,
                hop_limit: 1,
                source: PEER.link_local(),
                destination: group.as_ipv6(),
                payload_length,
            };
            let packet = [&ip.to_bytes()[..], &datagram].concat();
            framed(group, ethernet::EtherType::IPV6, &packet)
        }
    })
}

/// The internet checksum of some bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words =
        bytes.chunks(2).map(|it| u32::from(it[0]) << 8 | it.get(1).map_or(0, |b| u32::from(*b)));
    let sum: u32 = words.sum();
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

fn igmp_query(u: &mut Unstructured<'_>, group: Gid) -> arbitrary::Result<Vec<u8>> {
    let asked = if u.arbitrary()? { group.as_ipv4() } else { None };
    let to = asked.unwrap_or(igmp::ALL_HOSTS);
    let mut message = vec![0x11, u.arbitrary()?, 0, 0];
    message.extend(asked.map_or([0; 4], |group| group.octets()));
    message.extend_from_slice(if u.arbitrary()? { &[2, 125, 0, 0] } else { &[] });
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    let ip = ipv4::Repr {
        type_of_service: 0xc0,
        time_to_live: 1,
        protocol: igmp::PROTOCOL,
        source: PEER_IP,
        destination: to,
        payload_length: message.len() as u16,
    };
    let packet = [&ip.to_bytes()[..], &message].concat();
    Ok(framed(Gid::from_ipv4(to), ethernet::EtherType::IPV4, &packet))
}

fn mld_query(u: &mut Unstructured<'_>, group: Gid) -> arbitrary::Result<Vec<u8>> {
    let asked = (u.arbitrary()? && group.as_ipv4().is_none()).then(|| group.as_ipv6());
    let to = asked.unwrap_or(mld::ALL_NODES);
    let mut message = vec![130, 0, 0, 0, u.arbitrary()?, u.arbitrary()?, 0, 0];
    message.extend(asked.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
    message.extend_from_slice(if u.arbitrary()? { &[2, 125, 0, 0] } else { &[] });
    let source = PEER.link_local();
    let length = [0, 0, 0, message.len() as u8, 0, 0, 0, ipv6::NEXT_HEADER_ICMPV6];
    let sum = checksum(&[&source.octets()[..], &to.octets(), &length, &message].concat());
    message[2..4].copy_from_slice(&sum);
    let payload = [&[ipv6::NEXT_HEADER_ICMPV6, 0, 5, 2, 0, 0, 1, 0][..], &message].concat();
    let ip = ipv6::Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: ipv6::HOP_BY_HOP,
        hop_limit: 1,
        source,
        destination: to,
        payload_length: payload.len() as u16,
    };
    let packet = [&ip.to_bytes()[..], &payload].concat();
    Ok(framed(Gid::from_ipv6(to), ethernet::EtherType::IPV6, &packet))
}
