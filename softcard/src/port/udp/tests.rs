use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use roce::ReceivedFrame as _;
use roce::param::ROCE_UDP_PORT;
use roce::wire::difference::{IPV4_FLAGS, IPV4_IDENTIFICATION};
use roce::wire::ethernet::{self, EtherType};
use roce::wire::{arp, icrc, ipv4};

use super::frames::Macs;
use super::machine::MachineAddress;
use super::word::{Word, WordKind};
use super::*;

const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

/// Addresses of the loopback network that no other test has: by the process, and by the test.
fn addresses(test: u8) -> [Ipv4Addr; 2] {
    let [a, b, ..] = std::process::id().to_le_bytes();
    let test = test.wrapping_mul(2);
    [test, test.wrapping_add(1)].map(|last| {
        let last = (a & 1) << 7 | last.wrapping_add(10) & 0x7f;
        Ipv4Addr::new(127, a | 1, b, last)
    })
}

fn port(ip: Ipv4Addr, mac: MacAddr) -> UdpPort {
    port_with(ip, mac, UdpOptions::default())
}

fn port_with(ip: Ipv4Addr, mac: MacAddr, options: UdpOptions) -> UdpPort {
    let device = MachineDevice {
        name: "lo".into(),
        index: 1,
        is_up: true,
        mtu: 65_536,
        addresses: vec![MachineAddress { ip: ip.into(), prefix: 8 }],
    };
    let mut port = UdpPort::open(&device, options, FramePool::new(1024)).unwrap();
    port.set_addresses(mac.0, &[ip.into()]);
    port
}

/// A RoCE frame with a right invariant CRC.
fn frame([from, to]: [Ipv4Addr; 2], source_port: u16, payload: &[u8]) -> Frame {
    let (source, destination) = (from.into(), to.into());
    let destination_port = ROCE_UDP_PORT;
    let headers = Headers { source, destination, source_port, destination_port, tos: 2, ttl: 64 };
    let mut transport = vec![4, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 1];
    transport.extend_from_slice(payload);
    transport.extend([0; icrc::LENGTH]);
    let mut frame = Frame::from_bytes(&[]).unwrap();
    assert!(headers.frame(Macs { source: MACS[0], destination: MACS[1] }, &transport, &mut frame));
    frame.seal();
    frame
}

/// Runs both ports until as many frames have arrived at the second.
fn carry(
    one: &mut UdpPort,
    two: &mut UdpPort,
    burst: &mut VecDeque<Frame>,
    count: usize,
) -> Vec<Frame> {
    let mut arrived = VecDeque::new();
    let started = Instant::now();
    while arrived.len() < count {
        let now = started.elapsed().as_nanos() as u64;
        one.send(now, burst);
        two.receive(now, &mut arrived, 64);
        one.receive(now, &mut VecDeque::new(), 64);
        // A datagram on one machine is there at once; only a machine that is very busy waits.
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", two.counters());
        if one.fd().is_some() && arrived.is_empty() {
            std::thread::yield_now();
        }
    }
    arrived.into()
}

fn counter(port: &UdpPort, name: &str) -> u64 {
    port.counters().iter().find(|(it, _)| *it == name).unwrap().1
}

/// Lets the card of the first port ask for the second's address; true if it was answered.
fn asks(one: &mut UdpPort, [own, peer]: [Ipv4Addr; 2]) -> bool {
    let request = arp::Repr {
        operation: arp::Operation::Request,
        sender_mac: MACS[0],
        sender_ip: own,
        target_mac: MacAddr::default(),
        target_ip: peer,
    };
    let header = ethernet::Repr {
        destination: MacAddr::BROADCAST,
        source: MACS[0],
        tag: None,
        ethertype: EtherType::ARP,
    };
    let bytes = [&header.to_bytes()[..], &request.to_bytes()].concat();
    one.send(0, &mut VecDeque::from([Frame::from_bytes(&bytes).unwrap()]));
    let mut answers = VecDeque::new();
    one.receive(0, &mut answers, 8);
    answers.len() == 1
}

#[test]
fn frames_pass_to_a_stranger_one_by_one_and_to_a_balboad_in_segments() {
    let ips = addresses(0);
    pass(ips, (0..40_u8).map(|it| frame(ips, 0xc000, &[it; 1024])).collect());
}

#[test]
fn frames_of_a_published_card_pass_as_all_others() {
    let ips = addresses(13);
    let differences = Differences::default();
    let sent = (0..40_u8).map(|it| {
        let mut frame = frame(ips, 0xc000, &[it; 1024]);
        // It does not forbid to cut them.
        differences.put(frame.as_mut_slice(), IPV4_FLAGS, [0, 0]);
        assert!(icrc::check(frame.as_mut_slice()));
        frame
    });
    pass(ips, sent.collect());
}

fn pass(ips: [Ipv4Addr; 2], sent: Vec<Frame>) {
    let (mut one, mut two) = (port(ips[0], MACS[0]), port(ips[1], MACS[1]));
    // Nothing is heard of it, for so long that it is a stranger.
    let mut burst = sent.iter().cloned().collect();
    for turn in 0..110 {
        one.send(turn * TURN_NS, &mut burst);
    }
    assert_eq!((burst.len(), counter(&one, "port_messages_sent")), (0, 40));
    let check = |frames: &[Frame], one: &UdpPort| {
        for (number, frame) in frames.iter().enumerate() {
            let mut copy = frame.clone();
            assert!(frame.is_vouched_for() && icrc::check(copy.as_mut_slice()), "{number}");
            assert_eq!(frame.as_slice()[IPV4_FLAGS..IPV4_FLAGS + 2], [0x40, 0], "as on the wire");
            let headers = Headers::of(frame.as_slice(), ROCE_UDP_PORT).unwrap();
            assert_eq!((headers.tos, headers.ttl), (2, 64));
            let port = one.sockets.sender(0xc000, true).unwrap().port;
            assert_eq!(headers.source_port, port, "a flow keeps its port");
            assert_eq!(frame.as_slice()[54..54 + 1024], [(number % 40) as u8; 1024]);
        }
    };
    check(&carry(&mut one, &mut two, &mut burst, 40), &one);

    // The question went out with the first frame.
    while counter(&one, "port_balboads_known") == 0 {
        two.receive(0, &mut VecDeque::new(), 8);
        one.receive(0, &mut VecDeque::new(), 8);
    }
    let before = counter(&one, "port_messages_sent");
    let mut burst = sent.iter().cloned().collect();
    let arrived = carry(&mut one, &mut two, &mut burst, 40);
    check(&arrived, &one);
    if one.sockets.can_segment() {
        assert_eq!(counter(&one, "port_messages_sent"), before + 1);
        // Each has the number of its segment, which the invariant CRC covers.
        for (number, frame) in (0_u16..).zip(&arrived) {
            let (header, _) = ipv4::Header::new(&frame.as_slice()[14..]).unwrap();
            assert_eq!((header.identification(), header.checksum_is_right()), (number, true));
        }
    }
}

#[test]
fn frames_of_all_lengths_and_flows_arrive_in_the_order_of_each_flow() {
    let ips = addresses(1);
    let (mut one, mut two) = (port(ips[0], MACS[0]), port(ips[1], MACS[1]));
    assert!(asks(&mut one, ips));
    let mut sent = VecDeque::new();
    for round in 0..50_u16 {
        for flow in 0..3_u16 {
            for length in [4096, 4096, 1024, 12, 12, 4096] {
                let number = [round.to_be_bytes(), flow.to_be_bytes()].concat();
                let payload = [&number[..], &vec![7; length - 4]].concat();
                sent.push_back(frame(ips, 0xc000 + flow * 33, &payload));
            }
        }
    }
    let expected: Vec<Vec<u8>> = sent.iter().map(|it| it.as_slice()[54..].to_vec()).collect();
    let count = sent.len();
    let arrived = carry(&mut one, &mut two, &mut sent, count);
    let flow_of = |payload: &[u8]| u16::from_be_bytes([payload[2], payload[3]]);
    for flow in 0..3 {
        let of = |all: &[&[u8]]| {
            all.iter()
                .filter(|it| flow_of(it) == flow)
                .map(|it| it[..it.len() - 4].to_vec())
                .collect::<Vec<_>>()
        };
        let expected: Vec<&[u8]> = expected.iter().map(Vec::as_slice).collect();
        let arrived: Vec<&[u8]> = arrived.iter().map(|it| &it.as_slice()[54..]).collect();
        assert_eq!(of(&arrived), of(&expected), "flow {flow}");
    }
    assert_eq!(
        counter(&two, "port_frames_lost"),
        0,
        "no more was under way than there is room for"
    );
}

#[test]
fn nothing_is_lost_where_sockets_have_little_room() {
    // The room that older kernels grant.
    const ROOM: usize = 208 << 10;
    let ips = addresses(6);
    let little = UdpOptions { room: Some(ROOM), ..UdpOptions::default() };
    let mut one = port_with(ips[0], MACS[0], little);
    let mut two = port_with(ips[1], MACS[1], little);
    assert!(asks(&mut one, ips));
    while counter(&one, "port_balboads_known") == 0 {
        two.receive(0, &mut VecDeque::new(), 8);
        one.receive(0, &mut VecDeque::new(), 8);
    }
    let started = Instant::now();
    for length in [4096, 1024, 16] {
        let (mut sent, mut arrived) = (0, VecDeque::new());
        let mut burst = VecDeque::new();
        while arrived.len() < 2000 {
            while burst.len() < 256 && sent < 2000 {
                burst.push_back(frame(ips, 0xc000, &vec![1; length]));
                sent += 1;
            }
            // The receiver has its turn only when the sender has no room.
            let now = || started.elapsed().as_nanos() as u64;
            let before = burst.len();
            one.send(now(), &mut burst);
            if burst.len() == before || sent == 2000 {
                two.receive(now(), &mut arrived, 128);
                one.receive(now(), &mut VecDeque::new(), 8);
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{:?}", one.counters());
        }
    }
    assert_eq!(counter(&two, "port_frames_lost"), 0);
}

#[test]
fn what_a_stranger_numbers_is_believed_where_it_counts_on() {
    let ips = addresses(2);
    let mut two = port(ips[1], MACS[1]);
    let stranger = UdpSocket::bind(SocketAddr::new(ips[0].into(), 0)).unwrap();
    let source_port = stranger.local_addr().unwrap().port();
    let differences = Differences::default();
    let mut arrived = |id: u16, spoil: bool| {
        let mut frame = frame(ips, source_port, &[5; 64]);
        differences.put(frame.as_mut_slice(), IPV4_IDENTIFICATION, id.to_be_bytes());
        if spoil {
            frame.as_mut_slice()[60] ^= 1;
        }
        stranger
            .send_to(&frame.as_slice()[42..], SocketAddr::new(ips[1].into(), ROCE_UDP_PORT))
            .unwrap();
        let mut frames = VecDeque::new();
        while frames.is_empty() {
            two.receive(0, &mut frames, 8);
        }
        let mut frame = frames.pop_front().unwrap();
        (frame.is_vouched_for(), icrc::check(frame.as_mut_slice()))
    };
    assert_eq!(arrived(0, false), (true, true));
    assert_eq!(arrived(0, true), (false, false), "the card drops and counts it");
    assert_eq!(arrived(700, false), (true, true), "the first");
    assert_eq!(arrived(701, false), (true, true));
    assert_eq!(arrived(702, true), (false, false));
    assert_eq!(arrived(703, false), (true, true), "one that was damaged changes nothing");
    assert_eq!(arrived(9000, false), (false, false), "it may be damage");
    assert_eq!(arrived(9001, false), (true, true), "it was none");
}

#[test]
fn nobody_is_found_where_no_route_leads() {
    let ips = addresses(3);
    let mut one = port(ips[0], MACS[0]);
    assert!(asks(&mut one, ips));
    // From a loopback address no other is reached.
    assert!(!asks(&mut one, [ips[0], Ipv4Addr::new(198, 51, 100, 1)]));
    // From an address that is not the machine's none is.
    assert!(!asks(&mut one, [Ipv4Addr::new(198, 51, 100, 2), ips[1]]));
}

#[test]
fn a_port_that_is_taken_is_told_and_an_address_that_goes_is_let_go() {
    let ips = addresses(4);
    let mut one = port(ips[0], MACS[0]);
    let device = MachineDevice {
        name: "lo".into(),
        index: 1,
        is_up: true,
        mtu: 65_536,
        addresses: vec![MachineAddress { ip: ips[0].into(), prefix: 8 }],
    };
    let again = UdpPort::open(&device, UdpOptions::default(), FramePool::new(1)).err().unwrap();
    assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    one.set_addresses(MACS[0].0, &[ips[1].into()]);
    assert!(UdpPort::open(&device, UdpOptions::default(), FramePool::new(1)).is_ok());
    // One that the machine lacks is waited for.
    one.set_addresses(MACS[0].0, &[Ipv4Addr::new(198, 51, 100, 1).into()]);
    assert_eq!(one.next_timeout(), Some(0));
}

#[test]
fn no_datagram_makes_it_panic() {
    let ips = addresses(5);
    let mut two = port(ips[1], MACS[1]);
    let stranger = UdpSocket::bind(SocketAddr::new(ips[0].into(), 0)).unwrap();
    let mut random = trial::rng::Rng::new(7);
    let mut frames = VecDeque::new();
    for round in 0..400_u32 {
        let length = random.below(if round % 9 == 0 { 9000 } else { 80 }) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        for port in [ROCE_UDP_PORT, WORD_PORT] {
            let _ = stranger.send_to(&bytes, SocketAddr::new(ips[1].into(), port));
        }
        two.receive(round.into(), &mut frames, 64);
    }
    assert!(frames.iter().all(|frame| !frame.is_vouched_for()));
}

#[test]
fn what_encloses_a_frame_arrives_as_it_was_and_gives_the_frame_back() {
    let [a, b] = addresses(40);
    let (mut one, mut two) = (port(a, MACS[0]), port(b, MACS[1]));
    // As a sealing step does that keeps the source port and says so.
    let inner = frame([a, b], 0xc123, &[7; 40]);
    let mut sealed = inner.clone();
    let length = sealed.as_slice().len();
    assert!(sealed.set_len(length + 16));
    sealed.as_mut_slice()[length..].fill(0x5e);
    sealed.as_mut_slice()[length..length + 2].copy_from_slice(&[0xc1, 0x23]);
    sealed.enclose();
    let mut burst = VecDeque::from([sealed.clone()]);
    let arrived = carry(&mut one, &mut two, &mut burst, 1).remove(0);
    let headers = Headers::of(arrived.as_slice(), ROCE_UDP_PORT).unwrap();
    let payload = headers.payload(length + 16);
    assert_eq!(arrived.as_slice()[payload.clone()], sealed.as_slice()[payload.clone()]);
    assert!(!arrived.is_vouched_for());
    // As its opening step does.
    let (datagram, trailer) = arrived.as_slice()[payload].split_at(length - 42);
    let source_port = u16::from_be_bytes([trailer[0], trailer[1]]);
    let mut opened = Frame::from_bytes(&[]).unwrap();
    let headers = Headers { source_port, ..headers };
    assert!(headers.frame(Macs { source: MACS[0], destination: MACS[1] }, datagram, &mut opened));
    assert!(icrc::check(opened.as_mut_slice()));
}

#[test]
fn a_port_hears_so_many_groups_and_none_once_its_card_was_reset() {
    let ips = addresses(7);
    let mut one = port(ips[0], MACS[0]);
    let group = |number: usize| Ipv4Addr::new(239, 9, (number >> 8) as u8, number as u8);
    for number in 0..MOST_GROUPS + 3 {
        assert_eq!(one.hear_group(group(number).into(), true), number < MOST_GROUPS);
    }
    assert_eq!((one.sockets.groups(), one.most_groups()), (MOST_GROUPS, MOST_GROUPS));
    assert!(one.hear_group(group(0).into(), false));
    assert_eq!(one.sockets.groups(), MOST_GROUPS - 1);

    // Frames that have come for the old stack go, too.
    let answer = frame(ips, 0xc000, &[1; 64]);
    one.arrived.push_back(answer);
    let mut burst = VecDeque::from([frame(ips, 0xc000, &[1; 64])]);
    let headers = Headers::of(burst[0].as_slice(), ROCE_UDP_PORT).unwrap();
    one.peers.queue(0, headers, &mut burst, QUEUE, |_| unreachable!("alone it has all places"));
    one.reset();
    assert_eq!((one.sockets.groups(), one.arrived.len(), one.peers.queued), (0, 0, 0));
    let mut two = port(ips[1], MACS[1]);
    assert_eq!(
        carry(&mut one, &mut two, &mut VecDeque::from([frame(ips, 0xc000, &[7; 64])]), 1).len(),
        1
    );
}

#[test]
fn what_each_address_has_lost_is_counted_together() {
    let ips = addresses(8);
    let little = UdpOptions { room: Some(4096), ..UdpOptions::default() };
    let mut two = port_with(ips[0], MACS[0], little);
    two.set_addresses(MACS[0].0, &ips.map(IpAddr::from));
    two.receive(0, &mut VecDeque::new(), 8);
    let stranger = UdpSocket::bind(SocketAddr::new(ips[0].into(), 0)).unwrap();
    let mut arrived = VecDeque::new();
    let mut sent = 0;
    let mut flood = |two: &mut UdpPort, count: u64| {
        for ip in ips {
            for _ in 0..count {
                stranger.send_to(&[0; 200], SocketAddr::new(ip.into(), ROCE_UDP_PORT)).unwrap();
                sent += 1;
            }
        }
        for _ in 0..100 {
            two.receive(0, &mut arrived, 1000);
        }
        (sent, arrived.len() as u64)
    };
    flood(&mut two, 200);
    // A loss is told with the next datagram.
    let (sent, arrived) = flood(&mut two, 1);
    assert!(arrived < 200, "{arrived}");
    assert_eq!(counter(&two, "port_frames_lost"), sent - arrived);
}

#[test]
fn a_strict_port_believes_no_host_that_counts() {
    let ips = addresses(9);
    let strict = UdpOptions { is_strict: true, ..UdpOptions::default() };
    let mut two = port_with(ips[1], MACS[1], strict);
    let stranger = UdpSocket::bind(SocketAddr::new(ips[0].into(), 0)).unwrap();
    let source_port = stranger.local_addr().unwrap().port();
    let differences = Differences::default();
    for (id, is_right) in [(0_u16, true), (700, false), (701, false), (702, false), (0, true)] {
        let mut frame = frame(ips, source_port, &[5; 64]);
        differences.put(frame.as_mut_slice(), IPV4_IDENTIFICATION, id.to_be_bytes());
        let to = SocketAddr::new(ips[1].into(), ROCE_UDP_PORT);
        stranger.send_to(&frame.as_slice()[42..], to).unwrap();
        let mut frames = VecDeque::new();
        while frames.is_empty() {
            two.receive(0, &mut frames, 8);
        }
        assert_eq!(frames[0].is_vouched_for(), is_right, "{id}");
    }
    assert_eq!(counter(&two, "port_frames_numbered"), 0);
}

#[test]
fn datagrams_that_may_be_cut_are_right_too_as_published_cards_send_them() {
    let ips = addresses(10);
    let stranger = UdpSocket::bind(SocketAddr::new(ips[0].into(), 0)).unwrap();
    let source_port = stranger.local_addr().unwrap().port();
    let differences = Differences::default();
    // Payload, whether the flag is clear, identification, a damaged byte and its bits, and whether it is right.
    for (length, is_clear, id, (at, spoil), is_right) in [
        // That bit is worth as much as a clear flag with another identification.
        (1024, false, 0_u16, (215, 8_u8), false),
        (64, true, 0, (60, 0), true),
        (64, true, 0, (60, 1), false),
        (64, true, 5, (60, 0), false),
        (64, false, 0, (60, 0), true),
    ] {
        let mut two = port(ips[1], MACS[1]);
        let mut frame = frame(ips, source_port, &vec![5; length]);
        let bytes = frame.as_mut_slice();
        if is_clear {
            differences.put(bytes, IPV4_FLAGS, [0, 0]);
        }
        differences.put(bytes, IPV4_IDENTIFICATION, id.to_be_bytes());
        bytes[at] ^= spoil;
        let to = SocketAddr::new(ips[1].into(), ROCE_UDP_PORT);
        stranger.send_to(&frame.as_slice()[42..], to).unwrap();
        let mut frames = VecDeque::new();
        while frames.is_empty() {
            two.receive(0, &mut frames, 8);
        }
        let frame = &mut frames[0];
        assert_eq!(
            (frame.is_vouched_for(), icrc::check(frame.as_mut_slice())),
            (is_right, is_right),
            "{length} bytes, clear: {is_clear}, {id}, {spoil} at {at}"
        );
        let (header, _) = ipv4::Header::new(&frame.as_slice()[14..]).unwrap();
        assert!(header.checksum_is_right());
    }
}

#[test]
fn a_datagram_to_a_group_has_the_groups_ethernet_address() {
    let ips = addresses(11);
    let (mut one, mut two) = (port(ips[0], MACS[0]), port(ips[1], MACS[1]));
    let group = Ipv4Addr::new(239, 8, ips[0].octets()[2], ips[0].octets()[3]);
    assert!(two.hear_group(group.into(), true));
    let mut burst = VecDeque::from([frame([ips[0], group], 0xc000, &[3; 64])]);
    let arrived = carry(&mut one, &mut two, &mut burst, 1);
    assert_eq!(arrived[0].as_slice()[..6], MacAddr::of_group(roce::Gid::from_ipv4(group)).0);
    assert!(arrived[0].is_vouched_for());
}

#[test]
fn a_group_is_heard_again_once_the_device_that_it_is_heard_by_is_there() {
    let ips = addresses(12);
    let (mut one, mut two) = (port(ips[0], MACS[0]), port(ips[1], MACS[1]));
    let groups =
        [1, 2].map(|first| Ipv4Addr::new(239, first, ips[0].octets()[2], ips[0].octets()[3]));
    for group in groups {
        assert!(two.hear_group(group.into(), true));
    }
    // It came back, and went again before anything could be heard by it.
    two.sockets.stand_on(i32::MAX as u32);
    assert!(two.sockets.bind_missing());
    assert_eq!(two.sockets.groups(), 0);
    assert!(two.hear_group(groups[1].into(), false), "what is not heard is left, too");
    two.sockets.stand_on(1);
    assert!(!two.sockets.bind_missing());
    let mut burst = VecDeque::from([frame([ips[0], groups[0]], 0xc000, &[3; 64])]);
    assert_eq!(carry(&mut one, &mut two, &mut burst, 1).len(), 1);
    assert_eq!(two.sockets.groups(), 1);
}

/// The receive buffer that older kernels grant.
const LITTLE: UdpOptions = UdpOptions { is_strict: false, room: Some(208 << 10), port: None };
/// A turn of every port, in nanoseconds of a clock of the test's own.
const TURN_NS: u64 = 1_000_000;

/// Lets every sender send as many frames of 1 KiB, while the receiver takes a few in each turn.
fn incast(two: &mut UdpPort, ip: Ipv4Addr, senders: &mut [(UdpPort, Ipv4Addr)], each: usize) {
    // Everybody is asked, and then how much of the room it has, now that all are known.
    let (mut now, mut arrived) = (0, VecDeque::new());
    for _ in 0..3 {
        for (sender, own) in senders.iter_mut() {
            let [own, ip] = [*own, ip].map(IpAddr::from);
            for (port, pair) in
                [(&mut *sender, Pair { own, peer: ip }), (two, Pair { own: ip, peer: own })]
            {
                port.peers.known(pair);
                port.ask(now, pair);
            }
            for _ in 0..2 {
                two.receive(now, &mut arrived, 8);
                sender.receive(now, &mut arrived, 8);
            }
        }
        now += 1_100 * TURN_NS;
    }
    assert_eq!(counter(two, "port_balboads_known"), senders.len() as u64);
    let mut bursts: Vec<VecDeque<Frame>> = Vec::new();
    for (_, own) in senders.iter() {
        // Two lengths in turns, of which no more than two leave by one message.
        let length = |number: usize| if number % 2 == 0 { 1000 } else { 1024 };
        let frames = (0..each).map(|it| frame([*own, ip], 0xc000, &vec![1; length(it)]));
        bursts.push(frames.collect());
    }
    while arrived.len() < each * senders.len() {
        for ((sender, _), burst) in senders.iter_mut().zip(&mut bursts) {
            sender.send(now, burst);
        }
        // It answers all words that stand in line.
        two.receive(now, &mut arrived, 6);
        for (sender, _) in senders.iter_mut() {
            sender.receive(now, &mut VecDeque::new(), 8);
        }
        assert_eq!(counter(two, "port_frames_lost"), 0, "after {} frames", arrived.len());
        now += TURN_NS;
        assert!(now < 20_000 * TURN_NS, "{:?}", senders[0].0.counters());
    }
    assert!(senders.iter().all(|(it, _)| counter(it, "port_balboads_given_up") == 0));
}

#[test]
fn nothing_is_lost_where_much_stands_in_line_while_questions_are_answered() {
    let ips = addresses(14);
    let mut two = port_with(ips[1], MACS[1], LITTLE);
    let one = port_with(ips[0], MACS[0], LITTLE);
    incast(&mut two, ips[1], &mut [(one, ips[0])], 2000);
}

#[test]
fn nothing_is_lost_where_what_others_have_sent_stands_before_it() {
    let (ips, more) = (addresses(15), addresses(16));
    let mut two = port_with(ips[1], MACS[1], LITTLE);
    let senders = [ips[0], more[0], more[1]].map(|ip| (port_with(ip, MACS[0], LITTLE), ip));
    incast(&mut two, ips[1], &mut { senders }, 1000);
}

#[test]
fn what_is_for_a_host_that_has_not_answered_yet_waits_for_a_while() {
    let ips = addresses(17);
    let (mut one, mut two) =
        (port_with(ips[0], MACS[0], LITTLE), port_with(ips[1], MACS[1], LITTLE));
    assert!(asks(&mut one, ips));
    let mut burst: VecDeque<Frame> = (0..1000).map(|_| frame(ips, 0xc000, &[1; 1024])).collect();
    // It has no processor for a while.
    let mut now = 0;
    while now < 50 * TURN_NS {
        now += TURN_NS;
        one.send(now, &mut burst);
        one.receive(now, &mut VecDeque::new(), 8);
    }
    let mut arrived = VecDeque::new();
    while arrived.len() < 1000 {
        now += TURN_NS;
        two.receive(now, &mut arrived, 128);
        one.receive(now, &mut VecDeque::new(), 8);
        one.send(now, &mut burst);
        assert_eq!(counter(&two, "port_frames_lost"), 0, "after {} frames", arrived.len());
        assert!(now < 10_000 * TURN_NS, "{:?}", one.counters());
    }
}

#[test]
fn what_is_for_a_host_that_never_answers_leaves_after_a_while() {
    let ips = addresses(18);
    let mut one = port(ips[0], MACS[0]);
    assert!(asks(&mut one, ips));
    let mut burst: VecDeque<Frame> = (0..1000).map(|_| frame(ips, 0xc000, &[1; 1024])).collect();
    let mut now = 0;
    while counter(&one, "port_frames_sent") < 1000 {
        now += TURN_NS;
        one.send(now, &mut burst);
        one.receive(now, &mut VecDeque::new(), 8);
        assert!(now < 150 * TURN_NS, "{:?}", one.counters());
    }
    assert_eq!(counter(&one, "port_balboads_given_up"), 0, "it was none");
    // From then on it is known to be none.
    let mut burst: VecDeque<Frame> = (0..500).map(|_| frame(ips, 0xc000, &[1; 1024])).collect();
    one.send(now, &mut burst);
    assert_eq!(counter(&one, "port_frames_sent"), 1500);
}

/// Has frames for a host in every place of a port, and more behind them, and one for another host at last, to which the
/// port has sent just before if it `is_known`; how long that waits. The host takes nothing, and says so in its answers if it `answers`, in which it counts a byte more each time.
fn waits_behind_a_slow_host(test: u8, answers: bool, is_known: bool) -> u64 {
    let (ips, [slow, _]) = (addresses(test), addresses(test + 1));
    let (mut one, mut two) = (port(ips[0], MACS[0]), port(ips[1], MACS[1]));
    let words = UdpSocket::bind(SocketAddr::new(slow.into(), WORD_PORT)).unwrap();
    words.set_nonblocking(true).unwrap();
    let (mut now, mut received) = (0, 0);
    let mut turn = |one: &mut UdpPort, burst: &mut VecDeque<Frame>| {
        one.send(now, burst);
        let mut bytes = [0; 64];
        while let Some((length, from)) = words.recv_from(&mut bytes).ok().filter(|_| answers) {
            let Word { session: of, mark, .. } = Word::parse(&bytes[..length]).unwrap();
            received += 1;
            let kind = if received == 1 { WordKind::Answer } else { WordKind::Busy };
            let word = Word { kind, session: 9, of, mark, received, window: 0 };
            words.send_to(&word.to_bytes(), from).unwrap();
        }
        one.receive(now, &mut VecDeque::new(), 8);
        now += TURN_NS;
        now
    };
    let first = |ips| frame(ips, 0xc000, &[1; 1024]);
    let known = is_known.then(|| first(ips));
    turn(&mut one, &mut known.into_iter().chain([first([ips[0], slow])]).collect());
    two.receive(0, &mut VecDeque::new(), 8);
    assert_eq!(counter(&one, "port_balboads_known"), u64::from(answers));
    let mut burst: VecDeque<Frame> =
        (0..2 * QUEUE).map(|_| frame([ips[0], slow], 0xc000, &[1; 1024])).collect();
    burst.push_back(frame(ips, 0xc000, &[2; 64]));
    loop {
        let (mut arrived, now) = (VecDeque::new(), turn(&mut one, &mut burst));
        two.receive(now, &mut arrived, 8);
        if !arrived.is_empty() {
            assert!(one.peers.queued >= QUEUE / 2 - 1, "what is for the slow one still waits");
            return now;
        }
        assert!(now < 2_000 * TURN_NS, "{:?}", one.counters());
    }
}

#[test]
fn who_does_not_answer_holds_nobody_up_for_long() {
    let waits = waits_behind_a_slow_host(19, false, true);
    assert!(waits < 25 * TURN_NS, "{waits}");
}

#[test]
fn a_balboad_that_takes_nothing_holds_nobody_up_for_long() {
    for (test, is_known, most) in [(21, true, 110), (23, false, 1_010)] {
        let waits = waits_behind_a_slow_host(test, true, is_known);
        assert!(waits < most * TURN_NS, "{waits}");
    }
}
