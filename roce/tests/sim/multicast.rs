//! Multicast: members' copies of a datagram to a group, and reports of members.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::task::Poll;

use netsim::config::Faults;
use netsim::memory::Memory as _;
use roce::wire::igmp::{self, RecordType};
use roce::wire::{bth, ethernet, icrc, ipv4, ipv6, mld};
use roce::{
    AccessDenied, Address, DatagramRequest, Error, Event, GRH_LENGTH, Gid, GidTable, Instant,
    MacAddr, QpState, Qpn, ReceiveError, ReceivedFrame as _, RemoteAccess, RemoteRange,
    ResponderMemory, TakenReceive, Target,
};

use crate::connection::{End, Options};
use crate::datagrams::{AH, QKEY, address, completed, datagram_qp, post, request, vector, way};
use crate::for_each_seed;
use crate::memory::Memory;
use crate::network::{Held, Network, Node, bad, card, round};
use trial::rng::pattern_vec;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const GRH: usize = GRH_LENGTH as usize;

fn group(ipv4: bool) -> Gid {
    match ipv4 {
        true => Gid::from_ipv4(Ipv4Addr::new(239, 1, 2, 3)),
        false => Gid::from_ipv6("ff0e::1:203".parse().unwrap()),
    }
}

fn attach(network: &mut Network, end: End, group: Gid) {
    let now = Instant(network.now());
    network.sim.hosts[end.node].stack.attach(now, end.qpn, group).unwrap();
    network.wake(end.node);
}

/// A datagram to all in the group.
fn to_all(length: u32) -> DatagramRequest {
    request(Qpn::GROUP, length)
}

/// Three nodes; the first has an address handle to a group, and a sender, which is in it; each has two
/// more members.
struct Scene {
    network: Network,
    from: End,
    members: Vec<End>,
    group: Gid,
}

impl Scene {
    fn new(seed: u64, ipv4: bool, faults: Faults) -> Self {
        let mut network = Network::new(seed, 3, faults);
        let group = group(ipv4);
        let from = datagram_qp(&mut network, 0, 0x11);
        address(&mut network, 0, AH, &vector(group, ipv4));
        let mut members = vec![from];
        for node in 0..3 {
            members.extend([0x21, 0x22].map(|qpn| datagram_qp(&mut network, node, qpn)));
        }
        members.iter().for_each(|member| attach(&mut network, *member, group));
        Self { network, from, members, group }
    }

    fn run(&mut self, time: u64) {
        (0..3).for_each(|node| self.network.wake(node));
        let deadline = self.network.now() + time;
        self.network.run(deadline, |_| false);
    }

    fn receives(&mut self, end: End, capacity: usize) -> u64 {
        self.network.sim.hosts[end.node].memory.post_receive(end.qpn, capacity)
    }

    /// The receives completed since the last call, by node and queue pair.
    fn received(&mut self) -> BTreeMap<(usize, u32), Vec<(u64, u32)>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (node, its) in self.network.sim.hosts.iter_mut().enumerate() {
            for event in its.events.drain(..) {
                if let Event::ReceiveCompleted { qpn, id, length, source_qpn, .. } = event {
                    assert_eq!(source_qpn, Some(0x11));
                    all.entry((node, qpn.value())).or_default().push((id, length));
                }
            }
        }
        all
    }

    fn counter(&self, node: usize, name: &str) -> u64 {
        let counters = self.network.sim.hosts[node].stack.counters();
        counters.iter().find(|it| it.0 == name).unwrap().1
    }
}

/// UD-18, UD-19, UD-20, UD-21.
#[test]
fn every_member_gets_a_copy_of_its_own_and_so_does_who_sends() {
    for (is_ipv4, length) in [(true, 0), (true, 4096), (false, 1), (false, 333)] {
        let mut scene = Scene::new(1, is_ipv4, Faults::NONE);
        scene.network.record();
        let outside = datagram_qp(&mut scene.network, 1, 0x31);
        scene.receives(outside, 8192);
        let ids: Vec<u64> =
            scene.members.clone().into_iter().map(|end| scene.receives(end, 8192)).collect();
        let number = post(&mut scene.network, scene.from, to_all(length));
        scene.run(MILLISECOND);
        assert!(scene.network.sim.hosts[0].events.contains(&completed(scene.from.qpn, number)));
        let received = scene.received();
        assert_eq!(received.len(), scene.members.len());
        for (end, id) in scene.members.clone().iter().zip(ids) {
            let whole = GRH_LENGTH + length;
            assert_eq!(received[&(end.node, end.qpn.value())], [(id, whole)], "{end:?}");
            let buffer = &scene.network.sim.hosts[end.node].memory.buffers[&id].bytes;
            assert_eq!(buffer[GRH..whole as usize], pattern_vec(number, 0, length as usize));
            let gid = scene.group.to_bytes();
            let named = if is_ipv4 { &buffer[36..40] } else { &buffer[24..40] };
            assert!(gid.ends_with(named), "{named:x?}");
        }
        let frames = scene.network.sim.hosts[0].memory.capture.take().unwrap();
        let mac = MacAddr::of_group(scene.group);
        let sent: Vec<_> = frames.iter().filter(|frame| frame[..6] == mac.0).collect();
        assert_eq!(sent.len(), 1, "nobody was asked for it, and it was sent once");
        assert_eq!([0, 1, 2].map(|node| scene.counter(node, "rcvd_mcast_pkts")), [1, 1, 1]);
        assert_eq!([0, 1, 2].map(|node| scene.counter(node, "rcvd_pkts")), [3, 2, 2]);
        assert_eq!(scene.counter(0, "sent_mcast_pkts"), 1);
    }
}

/// UD-21.
#[test]
fn what_becomes_of_one_copy_is_nothing_to_the_others() {
    let mut scene = Scene::new(1, true, Faults::NONE);
    let of = |node, qpn| End { node, qpn: Qpn::new(qpn).unwrap() };
    // Without a receive, with one that is too short, with another Q_Key, in a state that takes nothing.
    let short = scene.receives(of(1, 0x21), GRH + 8);
    let fine = [of(0, 0x21), of(1, 0x22), of(2, 0x22)].map(|end| (end, scene.receives(end, 64)));
    let locked = of(2, 0x33);
    scene.network.sim.hosts[2].stack.create_qp(locked.qpn, roce::Service::Ud, 0).unwrap();
    way(QpState::Rts, QKEY ^ 1).iter().for_each(|change| scene.network.modify(locked, change));
    let group = scene.group;
    attach(&mut scene.network, locked, group);
    scene.receives(locked, 64);
    scene.receives(of(2, 0x21), 64);
    scene.network.set_state(of(2, 0x21), QpState::Err);
    post(&mut scene.network, scene.from, to_all(9));
    scene.run(MILLISECOND);
    let failed = |event: &Event| matches!(event, Event::ReceiveFailed { id, .. } if *id == short);
    assert!(scene.network.sim.hosts[1].events.iter().any(failed));
    let received = scene.received();
    let wanted: BTreeMap<_, _> = fine
        .iter()
        .map(|(end, id)| ((end.node, end.qpn.value()), vec![(*id, GRH_LENGTH + 9)]))
        .collect();
    assert_eq!(received, wanted);
    let dropped = ["out_of_buffer", "drop_bad_qkey", "drop_wrong_state"];
    // Of the first node's three members, the sender and one more have no receive.
    assert_eq!(dropped.map(|name| scene.counter(0, name)), [2, 0, 0]);
    assert_eq!(dropped.map(|name| scene.counter(2, name)), [0, 1, 1]);
}

/// Makes of a datagram to a group another one, with a right ICRC.
pub fn altered(frame: &[u8], alter: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = frame.to_vec();
    alter(&mut frame);
    let end = frame.len() - icrc::LENGTH;
    frame[14 + 10..14 + 12].fill(0);
    let sum: u32 = frame[14..34].chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[end..].fill(0);
    icrc::append(&mut frame).unwrap();
    frame
}

/// UD-19.
#[test]
fn what_is_not_to_a_group_that_the_port_is_in_is_dropped() {
    let mut scene = Scene::new(1, true, Faults::NONE);
    scene.network.record();
    post(&mut scene.network, scene.from, to_all(9));
    scene.run(MILLISECOND);
    let frames = scene.network.sim.hosts[0].memory.capture.take().unwrap();
    let sent = frames.iter().rfind(|frame| frame[23] == ipv4::PROTOCOL_UDP).unwrap().clone();
    scene.received();
    let member = End { node: 1, qpn: Qpn::new(0x21).unwrap() };
    for _ in 0..20 {
        scene.receives(member, 64);
    }
    let mut hears = |frame: Vec<u8>, counter: &str| {
        let count = scene.counter(1, counter);
        let now = scene.network.now();
        scene.network.inject(1, now, &frame);
        scene.run(MILLISECOND);
        assert_eq!(scene.counter(1, counter) - count, 1, "{counter}");
        scene.received().len()
    };
    assert_eq!(hears(altered(&sent, |_| {}), "rcvd_mcast_pkts"), 1);
    // Another group of the same Ethernet address, and that address for another group's.
    let twin = altered(&sent, |frame| frame[31] = 129);
    assert_eq!(hears(twin, "drop_not_for_us"), 0);
    let wrong = altered(&sent, |frame| frame[5] ^= 1);
    assert_eq!(hears(wrong, "drop_not_for_us"), 0);
    let broadcast = altered(&sent, |frame| frame[..6].fill(0xff));
    assert_eq!(hears(broadcast, "drop_not_for_us"), 0);
    let own = scene_mac(1);
    let to_one = altered(&sent, |frame| frame[..6].copy_from_slice(&own.0));
    assert_eq!(hears(to_one, "drop_not_for_us"), 0);
    // A member named by its number.
    let named = altered(&sent, |frame| frame[47..50].copy_from_slice(&[0, 0, 0x21]));
    assert_eq!(hears(named, "drop_unknown_qp"), 0);
    // In a VLAN in which the port has no address.
    let tagged = altered_tag(&sent, 7);
    assert_eq!(hears(tagged, "drop_not_for_us"), 0);
    // From a group, to which the answer would go.
    let from_group = altered(&sent, |frame| frame[26] = 239);
    assert_eq!(hears(from_group, "drop_martian_source"), 0);
    let from_itself = altered(&sent, |frame| frame[29] = 2);
    assert_eq!(hears(from_itself, "drop_martian_source"), 0);
    // A wrong ICRC, another partition, another service, no multiple of four.
    let mut spoilt = sent.clone();
    *spoilt.last_mut().unwrap() ^= 1;
    assert_eq!(hears(spoilt, "rx_icrc_encapsulated"), 0);
    let foreign = altered(&sent, |frame| frame[44..46].copy_from_slice(&[0x12, 0x34]));
    assert_eq!(hears(foreign, "rcvd_mcast_pkts"), 0);
    let connected = altered(&sent, |frame| frame[42] = roce::opcode::code::SEND_ONLY);
    assert_eq!(hears(connected, "rcvd_mcast_pkts"), 0);
    let unpadded = altered(&sent, |frame| frame[43] &= !0x30);
    assert_eq!(hears(unpadded, "rcvd_mcast_pkts"), 1, "the padding is payload then");
}

fn scene_mac(node: usize) -> MacAddr {
    card(node as u32).mac
}

fn altered_tag(frame: &[u8], vlan: u8) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat()
}

/// UD-19, UD-23.
#[test]
fn a_port_is_in_its_groups_in_each_network_that_it_has_an_address_in() {
    let mut scene = Scene::new(1, true, Faults::NONE);
    scene.run(2 * SECOND);
    scene.network.record();
    let mut gids = GidTable::default();
    gids[0] = Some(Gid::from_ipv6(scene_mac(1).link_local()).into());
    gids[3] = Some(Address { gid: Gid::from_ipv4([10, 5, 0, 2].into()), vlan: 7 });
    scene.network.sim.hosts[1].stack.set_gids(gids);
    scene.run(10 * SECOND);
    let frames = scene.network.sim.hosts[1].memory.capture.take().unwrap();
    let told: Vec<_> = frames.iter().filter_map(|frame| report(frame)).collect();
    let joined = vec![(RecordType::Joined as u8, scene.group)];
    let (none, own) = ([0; 4], [10, 5, 0, 2]);
    let once = [(0, none, joined.clone()), (7, own, joined)];
    assert_eq!(told, [once.clone(), once].concat());
    post(&mut scene.network, scene.from, to_all(9));
    scene.run(MILLISECOND);
    let heard = scene.network.sim.hosts[1].memory.heard.take().unwrap();
    let sent =
        heard.iter().rfind(|it| it.bytes()[23] == ipv4::PROTOCOL_UDP).unwrap().bytes().to_vec();
    let before = scene.counter(1, "rcvd_mcast_pkts");
    let now = scene.network.now();
    scene.network.inject(1, now, &altered_tag(&sent, 7));
    scene.run(MILLISECOND);
    assert_eq!(scene.counter(1, "rcvd_mcast_pkts"), before + 1);
}

/// The records of a report: type and group of each.
type Records = Vec<(u8, Gid)>;

/// The content of an IGMPv3 report: its VLAN, its sender, and the records.
fn report(frame: &[u8]) -> Option<(u16, [u8; 4], Records)> {
    let (header, packet) = ethernet::Repr::parse(frame).ok()?;
    if header.ethertype != ethernet::EtherType::IPV4 || packet.get(9) != Some(&igmp::PROTOCOL) {
        return None;
    }
    assert_eq!((packet[0], packet[8]), (0x46, 1));
    assert_eq!(packet[16..24], [224, 0, 0, 22, 0x94, 4, 0, 0]);
    let records = packet[32..].chunks(8).map(|record| {
        assert_eq!(record[1..4], [0; 3]);
        (record[0], Gid::from_ipv4(<[u8; 4]>::try_from(&record[4..]).unwrap().into()))
    });
    Some((header.vlan(), packet[12..16].try_into().unwrap(), records.collect()))
}

/// The content of an MLDv2 report.
fn report_ipv6(frame: &[u8]) -> Option<(Ipv6Addr, Records)> {
    let (_, packet) = ethernet::Repr::parse(frame).ok()?;
    let (ip, packet) = ipv6::Repr::parse(packet).ok()?;
    if ip.next_header != ipv6::HOP_BY_HOP {
        return None;
    }
    assert_eq!((ip.destination, ip.hop_limit, packet[8]), (mld::REPORTS_TO, 1, 143));
    let records = packet[16..]
        .chunks(20)
        .map(|record| (record[0], Gid::from_bytes(record[4..].try_into().unwrap())));
    Some((ip.source, records.collect()))
}

/// A node, and the frames that it sends until a time.
struct Alone {
    node: Node,
    now: u64,
}

impl Alone {
    fn new() -> Self {
        let mut node = card(0);
        for qpn in [0x11, 0x12] {
            node.stack.create_qp(Qpn::new(qpn).unwrap(), roce::Service::Ud, 0).unwrap();
        }
        Self { node, now: SECOND }
    }

    fn attach(&mut self, qpn: u32, group: Gid) -> Result<(), Error> {
        self.node.stack.attach(Instant(self.now), Qpn::new(qpn).unwrap(), group)
    }

    fn detach(&mut self, qpn: u32, group: Gid) -> Result<(), Error> {
        self.node.stack.detach(Instant(self.now), Qpn::new(qpn).unwrap(), group)
    }

    /// Frames that are sent in a time, with when.
    fn sends(&mut self, time: u64) -> Vec<(u64, Vec<u8>)> {
        let (end, begin) = (self.now + time, self.now);
        let mut sent = Vec::new();
        while self.now <= end {
            let now = self.now;
            sent.extend(round(&mut self.node, now).into_iter().map(|it| (now - begin, it)));
            self.node.stack.settle_timeouts();
            match self.node.stack.next_timeout() {
                Some(at) => self.now = at.0.max(now + 1),
                None => break,
            }
        }
        self.now = end;
        sent
    }

    fn hears(&mut self, frame: Vec<u8>) {
        self.node.inbox.push(frame.into());
    }
}

/// UD-22.
#[test]
fn members_are_what_they_are_until_they_leave_or_end() {
    let mut it = Alone::new();
    let one = group(true);
    let qpn = |value| Qpn::new(value).unwrap();
    it.node.stack.create_qp(qpn(0x21), roce::Service::Rc, 0).unwrap();
    it.node.stack.create_qp(qpn(0x22), roce::Service::Uc, 0).unwrap();
    assert_eq!(it.attach(0x99, one), Err(Error::UnknownQp(qpn(0x99))));
    for connected in [0x21, 0x22] {
        assert_eq!(it.attach(connected, one), Err(Error::NoDatagramQp(qpn(connected))));
        assert_eq!(it.detach(connected, one), Err(Error::NoDatagramQp(qpn(connected))));
    }
    for other in ["::", "fe80::1", "::ffff:10.0.0.1", "::ffff:255.255.255.255"] {
        let other = Gid::from_ipv6(other.parse().unwrap());
        assert_eq!(it.attach(0x11, other), Err(Error::NoGroup(other)));
    }
    assert_eq!(it.detach(0x11, one), Err(Error::NoMember { qpn: qpn(0x11), group: one }));
    assert_eq!([it.attach(0x11, one), it.attach(0x11, one)], [Ok(()), Ok(())]);
    assert_eq!(it.detach(0x11, one), Ok(()), "once is enough");
    assert!(it.detach(0x11, one).is_err());
    // As many as there can be.
    for number in 0..roce::param::MAX_GROUP_MEMBERS as u32 + 1 {
        it.node.stack.create_qp(qpn(0x1000 + number), roce::Service::Ud, 0).unwrap();
        let limit = roce::param::MAX_GROUP_MEMBERS;
        let outcome = match number as usize == limit {
            true => Err(Error::TooManyMembers { group: one, limit }),
            false => Ok(()),
        };
        assert_eq!(it.attach(0x1000 + number, one), outcome);
    }
    assert_eq!(it.attach(0x1000, one), Ok(()), "who is in it already");
    let other = |number: u32| Gid::from_ipv4((0xe800_0000 + number).into());
    let most = roce::param::MAX_GROUPS as u32;
    for number in 1..most {
        it.attach(0x11, other(number)).unwrap();
    }
    assert_eq!(it.attach(0x11, other(most)), Err(Error::TooManyGroups(most as usize)));
    // All of them end with it, and its number may come again.
    it.node.stack.destroy_qp(qpn(0x11));
    it.node.stack.create_qp(qpn(0x11), roce::Service::Ud, 0).unwrap();
    assert!(it.detach(0x11, other(1)).is_err());
    assert_eq!(it.attach(0x11, other(most)), Ok(()));
}

/// UD-22.
#[test]
fn a_member_stays_one_through_reset() {
    let mut scene = Scene::new(1, false, Faults::NONE);
    let member = End { node: 2, qpn: Qpn::new(0x21).unwrap() };
    scene.network.set_state(member, QpState::Reset);
    way(QpState::Rts, QKEY).iter().for_each(|change| scene.network.modify(member, change));
    let id = scene.receives(member, 64);
    post(&mut scene.network, scene.from, to_all(9));
    scene.run(MILLISECOND);
    assert_eq!(scene.received()[&(2, 0x21)], [(id, GRH_LENGTH + 9)]);
}

/// UD-18.
#[test]
fn connections_lead_to_no_group() {
    let mut network = Network::new(1, 2, Faults::NONE);
    let (end, _) = network.connect(0, 1, &Options::default());
    let now = Instant(network.now());
    let node = &mut network.sim.hosts[0];
    node.stack.destroy_qp(end.qpn);
    node.stack.create_qp(end.qpn, roce::Service::Rc, 0).unwrap();
    let options = Options::default();
    node.stack.modify_qp(now, end.qpn, &crate::connection::to_init(&options)).unwrap();
    for ipv4 in [true, false] {
        let mut rtr = crate::connection::to_rtr(&options, group(ipv4), end.qpn, 0);
        rtr.path.as_mut().unwrap().sgid_index = u8::from(ipv4);
        let refused = node.stack.modify_qp(now, end.qpn, &rtr);
        assert_eq!(refused, Err(Error::Unreachable { dgid: group(ipv4) }));
    }
}

/// UD-23.
#[test]
fn the_first_member_and_the_end_of_the_last_are_told_of_twice() {
    let mut it = Alone::new();
    for (ipv4, kind) in [(true, RecordType::Joined), (true, RecordType::Left)]
        .into_iter()
        .chain([(false, RecordType::Joined), (false, RecordType::Left)])
    {
        for qpn in [0x11, 0x12] {
            match kind {
                RecordType::Joined => it.attach(qpn, group(ipv4)).unwrap(),
                _ => it.detach(qpn, group(ipv4)).unwrap(),
            }
        }
        let sent = it.sends(10 * SECOND);
        assert_eq!(sent.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 500 * MILLISECOND]);
        for (_, frame) in sent {
            let records = vec![(kind as u8, group(ipv4))];
            if ipv4 {
                assert_eq!(report(&frame), Some((0, it.node.ipv4.octets(), records)));
            } else {
                assert_eq!(report_ipv6(&frame), Some((it.node.mac.link_local(), records)));
            }
        }
    }
    assert_eq!(it.node.stack.counters().sent_group_reports, 8);
    // The groups that no report names.
    for silent in ["::ffff:224.0.0.1", "ff02::1", "ff01::5", "ff00::5"] {
        it.attach(0x11, Gid::from_ipv6(silent.parse().unwrap())).unwrap();
    }
    assert_eq!(it.sends(10 * SECOND), []);
}

/// UD-23, UD-24.
#[test]
fn whoever_joins_and_leaves_without_end_makes_few_reports() {
    let mut it = Alone::new();
    let mut sent = 0;
    for turn in 0..20_000u32 {
        // The same one, and new ones.
        for group in [group(true), Gid::from_ipv6((0xff0e_u128 << 112 | u128::from(turn)).into())] {
            it.attach(0x11, group).unwrap();
            it.detach(0x11, group).unwrap();
        }
        sent += it.sends(50_000).len();
    }
    // In one second.
    assert!(sent <= 101, "{sent} reports");
    // Of twice as many groups as there can be, each told of twice.
    let more = it.sends(2_000 * SECOND).len();
    assert!(more <= 4 * roce::param::MAX_GROUPS / mld::MAX_RECORDS + 2, "{more} more");
    assert_eq!(it.node.stack.next_timeout(), None);
}

/// A general query of IGMPv3, or one for a group.
fn query(group: Option<Ipv4Addr>, code: u8) -> Vec<u8> {
    let to = group.unwrap_or(igmp::ALL_HOSTS);
    let mut packet = igmp::report(Ipv4Addr::new(10, 7, 0, 9), &[]);
    packet[16..20].copy_from_slice(&to.octets());
    packet.splice(24.., [0x11, code, 0, 0]);
    packet.extend(group.map_or([0; 4], |group| group.octets()));
    packet.extend([2, 125, 0, 0]);
    packet[3] = packet.len() as u8;
    for range in [0..24, 24..36] {
        let at = if range.start == 0 { 10 } else { 26 };
        packet[at..at + 2].fill(0);
        let words = packet[range].chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
        let sum: u32 = words.sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let mac = MacAddr::of_group(Gid::from_ipv4(to));
    let header = ethernet::Repr {
        destination: mac,
        source: MacAddr([2, 0, 0, 0, 0, 9]),
        tag: None,
        ethertype: ethernet::EtherType::IPV4,
    };
    [&header.to_bytes()[..], &packet].concat()
}

/// UD-24.
#[test]
fn who_asks_is_answered_within_the_time_given_and_floods_are_not() {
    let mut it = Alone::new();
    for number in 1..=400u32 {
        it.attach(0x11, Gid::from_ipv4((0xe800_0000 + number).into())).unwrap();
    }
    it.attach(0x11, group(false)).unwrap();
    it.sends(10 * SECOND);
    assert_eq!(it.sends(100 * SECOND), [], "nobody asks");
    it.hears(query(None, 20));
    let sent = it.sends(10 * SECOND);
    let last = sent.last().unwrap().0;
    assert!(last > 0 && last <= 2 * SECOND, "{last} ns");
    let records: Vec<_> = sent.iter().flat_map(|it| report(&it.1).unwrap().2).collect();
    assert_eq!((sent.len(), records.len()), (3, 400), "of IPv4's alone");
    assert!(records.iter().all(|record| record.0 == RecordType::IsMember as u8));
    // For one group, and for one without members here.
    let one = Ipv4Addr::from(0xe800_0007);
    it.hears(query(Some(one), 10));
    it.hears(query(Some(Ipv4Addr::new(239, 9, 9, 9)), 10));
    let sent = it.sends(10 * SECOND);
    assert_eq!(sent.len(), 1);
    assert_eq!(report(&sent[0].1).unwrap().2, [(2, Gid::from_ipv4(one))]);
    // Invalid questions: one with a wrong checksum, and one that has passed a router.
    for alter in [40, 22] {
        let mut frame = query(None, 0);
        frame[alter] ^= 3;
        it.hears(frame);
        assert_eq!(it.sends(10 * SECOND), []);
    }
    // A flood of them, for a second, that leaves no time.
    let mut count = 0;
    for _ in 0..1000 {
        for _ in 0..10 {
            it.hears(query(None, 0));
            it.hears(query(Some(one), 0));
        }
        count += it.sends(MILLISECOND).len();
    }
    assert!((1..=101).contains(&count), "{count} reports");
}

/// UD-24.
#[test]
fn questions_delay_nothing_and_are_heard_in_the_ports_networks_alone() {
    let mut it = Alone::new();
    let one = Ipv4Addr::new(239, 1, 2, 3);
    it.attach(0x11, group(true)).unwrap();
    it.sends(10 * SECOND);
    let elsewhere = altered_tag(&query(None, 0), 7);
    it.hears(elsewhere);
    assert_eq!(it.sends(10 * SECOND), []);
    // 0xff: almost an hour.
    for question in [query(Some(one), 0xff), query(None, 0xff)] {
        it.hears(question);
    }
    it.sends(MILLISECOND);
    it.detach(0x11, group(true)).unwrap();
    let sent = it.sends(SECOND);
    let left = vec![(RecordType::Left as u8, group(true))];
    assert_eq!(report(&sent.first().unwrap().1).unwrap().2, left);
    // Nor does one that leaves time delay the answer to one that leaves none.
    it.attach(0x11, group(true)).unwrap();
    it.sends(10 * SECOND);
    it.hears(query(None, 0xff));
    it.hears(query(None, 0));
    assert_eq!(it.sends(SECOND).len(), 1);
}

/// UD-23.
#[test]
fn every_group_is_told_of_while_others_come_and_go() {
    let mut it = Alone::new();
    let low = |number: u32| Gid::from_ipv6((0xff05_u128 << 112 | u128::from(number)).into());
    let mut sent = Vec::new();
    for turn in 0..6 {
        for number in 0..6000 {
            it.attach(0x11, low(number)).unwrap();
            it.detach(0x11, low(number)).unwrap();
        }
        if turn == 1 {
            it.attach(0x12, group(false)).unwrap();
        }
        sent.extend(it.sends(400 * MILLISECOND));
    }
    let joined = (RecordType::Joined as u8, group(false));
    assert!(sent.iter().any(|it| report_ipv6(&it.1).unwrap().1.contains(&joined)));
}

/// UD-23.
#[test]
fn the_group_by_which_neighbours_ask_is_never_left() {
    let mut it = Alone::new();
    let own = it.node.mac.link_local();
    let own = Gid::from_ipv6(roce::wire::ndp::solicited_node(own));
    for other in [own, group(false)] {
        it.attach(0x11, other).unwrap();
    }
    let records = |it: &mut Alone| -> Records {
        let sent = it.sends(10 * SECOND);
        sent.iter().flat_map(|it| report_ipv6(&it.1).unwrap().1).collect()
    };
    let (joined, left) = (RecordType::Joined as u8, RecordType::Left as u8);
    let both = [(joined, own), (joined, group(false))];
    assert_eq!(records(&mut it), [both, both].concat());
    it.detach(0x11, own).unwrap();
    assert_eq!(records(&mut it), [], "not even an empty one");
    it.attach(0x11, own).unwrap();
    records(&mut it);
    for other in [own, group(false)] {
        it.detach(0x11, other).unwrap();
    }
    assert_eq!(records(&mut it), [(left, group(false)); 2]);
}

/// UD-23.
#[test]
fn a_new_address_has_all_groups_told_of_anew() {
    let mut it = Alone::new();
    let mut gids = GidTable::default();
    gids[0] = Some(Gid::from_ipv6("fd00::1".parse().unwrap()).into());
    it.node.stack.set_gids(gids);
    it.attach(0x11, group(false)).unwrap();
    let sources = |it: &mut Alone| -> Vec<Ipv6Addr> {
        it.sends(10 * SECOND).iter().map(|it| report_ipv6(&it.1).unwrap().0).collect()
    };
    assert_eq!(sources(&mut it), [Ipv6Addr::UNSPECIFIED; 2]);
    let own = it.node.mac.link_local();
    gids[1] = Some(Gid::from_ipv6(own).into());
    it.node.stack.set_gids(gids);
    assert_eq!(sources(&mut it), [own; 2]);
    // The same again, and fewer.
    it.node.stack.set_gids(gids);
    gids[0] = None;
    it.node.stack.set_gids(gids);
    assert!(sources(&mut it).is_empty());
}

/// A layer above that has no answer for one queue pair the first time.
struct Thinks<'a> {
    memory: &'a mut Memory,
    about: &'a mut Option<Qpn>,
}

impl ResponderMemory for Thinks<'_> {
    fn check_remote(
        &mut self,
        _: Target,
        _: RemoteRange,
        _: RemoteAccess,
    ) -> Poll<Result<(), AccessDenied>> {
        unreachable!("datagrams have no keys")
    }

    fn take_receive(&mut self, target: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
        if *self.about == Some(target.qpn) {
            *self.about = None;
            return Poll::Pending;
        }
        self.memory.take_receive(target)
    }
}

/// UD-21.
#[test]
fn who_has_taken_a_copy_takes_none_again_while_another_makes_it_wait() {
    let mut scene = Scene::new(1, true, Faults::NONE);
    scene.network.record();
    post(&mut scene.network, scene.from, to_all(9));
    scene.run(MILLISECOND);
    scene.received();
    let heard = scene.network.sim.hosts[1].memory.heard.take().unwrap();
    let sent =
        heard.iter().rfind(|it| it.bytes()[23] == ipv4::PROTOCOL_UDP).unwrap().bytes().to_vec();
    assert_eq!(bth::Repr::parse(&sent[42..]).unwrap().0.dest_qpn, 0xff_ffff);
    let members = [0x21, 0x22].map(|qpn| Qpn::new(qpn).unwrap());
    for waits in members {
        let now = Instant(scene.network.now());
        let node = &mut scene.network.sim.hosts[1];
        let ids = members.map(|qpn| node.memory.post_receive(qpn, 64));
        let mut frame = Held::from(sent.clone());
        assert_eq!(node.stack.destinations(&frame.bytes), members);
        let mut about = Some(waits);
        let mut placements = Vec::new();
        let mut turns = 0;
        loop {
            let mut deciding = Thinks { memory: &mut node.memory, about: &mut about };
            let taken = node.stack.receive(now, &mut frame, turns, &mut deciding, &mut placements);
            turns += 1;
            if taken.is_ready() {
                break;
            }
        }
        assert_eq!((turns, placements.len()), (2, 4), "two copies, each with its header");
        let placed: Vec<_> =
            placements.iter().map(|it| node.memory.place(it, &frame.bytes)).collect();
        node.stack.commit(now, &placed);
        let events = std::iter::from_fn(|| node.stack.poll_event());
        let done: Vec<_> = events
            .map(|event| match event {
                Event::ReceiveCompleted { id, .. } => id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(done, ids);
    }
}

/// UD-21.
#[test]
fn on_bad_networks_a_copy_arrives_whole_or_not_at_all() {
    for_each_seed("multicast on bad networks", 30, |seed| {
        let faults = bad(500);
        let mut scene = Scene::new(seed, seed % 2 == 0, faults);
        for end in scene.members.clone() {
            for _ in 0..200 {
                scene.receives(end, 2048);
            }
        }
        for number in 0..100 {
            post(&mut scene.network, scene.from, to_all(number * 13));
            scene.run(10_000);
        }
        scene.run(MILLISECOND);
        let (received, from) = (scene.received(), scene.from);
        for ((node, qpn), copies) in &received {
            for (id, length) in copies {
                let bytes = &scene.network.sim.hosts[*node].memory.buffers[id].bytes;
                let length = *length as usize - GRH;
                let number = (length / 13) as u64;
                assert_eq!(bytes[GRH..GRH + length], pattern_vec(number, 0, length));
            }
            let least = if *node == from.node { 100 } else { 20 };
            assert!(copies.len() >= least, "{qpn:#x} at {node}: {}", copies.len());
        }
        assert_eq!(received.len(), scene.members.len());
    });
}
