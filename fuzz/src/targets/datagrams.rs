//! A port on the machine's own network, between its card and hosts that send it datagrams, alone and in segments, and
//! words of balboads.
//!
//! Checked promises: a frame that the port vouches for has a right invariant CRC, no damaged bit, and names its sender
//! and the card; there are no more frames than datagrams; each question has one answer at most, of its length; a host
//! that never answered is sent datagrams with the identification 0 alone, and nobody one with a number that is no
//! segment's; waiting frames are bounded.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use arbitrary::Unstructured;
use hostmem::UdpSocket;
use hostmem::udp::{MOST_SEGMENTS, Outgoing, ReceiveRoom};
use roce::param::ROCE_UDP_PORT;
use roce::wire::difference::{Differences, IPV4_IDENTIFICATION};
use roce::wire::{ethernet, icrc, ipv4, udp};
use roce::{MacAddr, ReceivedFrame as _};
use softcard::UdpOptions;
use softcard::port::udp::machine::{MachineAddress, MachineDevice};
use softcard::port::{Frame, FramePool, Port as _, UdpPort};

use crate::Outcome;

const CARD: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Where words between balboads go.
const WORD_PORT: u16 = 14791;
/// Bytes of a word.
const WORD: usize = 44;
/// Frames that a port has waiting at most.
const QUEUE: usize = 512;
/// A frame's byte and its bit that change the CRC as the flag that forbids cutting does with an identification.
const WORTH_A_FLAG: (usize, u8) = (215, 8);
/// A frame's byte behind its headers that the invariant CRC does not cover.
const NOT_COVERED: usize = HEADERS + 4;
/// Bytes of a datagram's headers, and of its payload.
const HEADERS: usize = ethernet::LENGTH + ipv4::LENGTH + udp::LENGTH;

/// A host of the network.
struct Host {
    ip: Ipv4Addr,
    roce: UdpSocket,
    words: UdpSocket,
    /// Questions that it has asked, and answers that it got.
    asked: u64,
    answers: u64,
    /// The session and the mark of the last question that it got.
    question: Option<(u64, u64)>,
    /// It has answered one.
    has_answered: bool,
}

impl Host {
    fn new(ip: Ipv4Addr) -> Self {
        let bind = |port| {
            UdpSocket::bind(SocketAddr::new(ip.into(), port), 1 << 20, false).expect("a free port")
        };
        let (roce, words) = (bind(ROCE_UDP_PORT), bind(WORD_PORT));
        Self { ip, roce, words, asked: 0, answers: 0, question: None, has_answered: false }
    }
}

struct Bench {
    port: UdpPort,
    own: Ipv4Addr,
    hosts: [Host; 2],
    differences: Differences,
    room: ReceiveRoom,
    now: u64,
    /// The datagrams to the card without damage, or cut short or together, of which a CRC tells by chance.
    right: Vec<Vec<u8>>,
    /// Datagrams that were sent to the card, and frames of them that it got.
    sent: usize,
    arrived: usize,
}

/// Addresses of the loopback network that none of 42 threads of this process has, nor a process with other low 16 bits.
fn addresses() -> [Ipv4Addr; 3] {
    static THREADS: AtomicU8 = AtomicU8::new(0);
    thread_local!(static THREAD: u8 = THREADS.fetch_add(3, Ordering::Relaxed));
    let [a, b, ..] = std::process::id().to_le_bytes();
    let first = THREAD.with(|thread| *thread);
    [0, 1, 2].map(|host| {
        let last = (a & 1) << 7 | first.wrapping_add(host) & 0x7f;
        Ipv4Addr::new(127, 128 | a >> 1, b, last)
    })
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let [own, one, other] = addresses();
    let device = MachineDevice {
        name: "lo".into(),
        index: 1,
        is_up: true,
        mtu: 65_536,
        addresses: vec![MachineAddress { ip: own.into(), prefix: 8 }],
    };
    let options = UdpOptions {
        is_strict: u.arbitrary()?,
        room: u.arbitrary::<bool>()?.then_some(16 << 10),
        port: None,
    };
    let mut port = UdpPort::open(&device, options, FramePool::new(64)).expect("a free address");
    port.set_addresses(CARD.0, &[own.into()]);
    let (hosts, room) = ([Host::new(one), Host::new(other)], ReceiveRoom::default());
    let (differences, now, right) = (Differences::default(), 0, Vec::new());
    let (sent, arrived) = (0, 0);
    let mut bench = Bench { port, own, hosts, differences, room, now, right, sent, arrived };
    for _ in 0..64 {
        if u.is_empty() {
            break;
        }
        bench.act(u)?;
    }
    Ok(())
}

impl Bench {
    fn act(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let host = u.choose_index(self.hosts.len())?;
        match u.int_in_range(0..=9)? {
            0..=3 => self.datagram(u, host)?,
            4 | 5 => self.word(u, host)?,
            6 | 7 => self.sends(u, host)?,
            8 => self.now += u.int_in_range(0..=4_000_000_000_u64)?,
            _ if u.ratio(1, 4)? => self.port.reset(),
            _ => self.now += 2_000_000,
        }
        self.takes();
        (0..self.hosts.len()).for_each(|host| self.hears(host));
        Ok(())
    }

    /// A host sends datagrams, equally long but for the last.
    fn datagram(&mut self, u: &mut Unstructured<'_>, host: usize) -> Outcome {
        let count = u.int_in_range(1..=4_usize)?;
        let length = u.int_in_range(0..=300_usize)?;
        let first: u16 = *u.choose(&[0, 0, 0, 62, 700, 40_000])?;
        let mut bytes = Vec::new();
        for number in 0..count {
            let from = (self.hosts[host].ip, ROCE_UDP_PORT);
            let mut frame = frame(from, self.own, &vec![number as u8; length]);
            let id = first.wrapping_add(u16::from(u.arbitrary::<bool>()?) * number as u16);
            self.differences.put(&mut frame, IPV4_IDENTIFICATION, id.to_be_bytes());
            let mut is_right = true;
            if u.ratio(1, 8)? {
                let at = HEADERS + u.choose_index(frame.len() - HEADERS)?;
                let any = (at, 1 << u.int_in_range(0..=7)?);
                let worth = frame.len() > WORTH_A_FLAG.0 && u.ratio(1, 4)?;
                let (at, bit) = if worth { WORTH_A_FLAG } else { any };
                frame[at] ^= bit;
                is_right = at == NOT_COVERED;
            }
            if is_right {
                self.right.push(frame[HEADERS..].to_vec());
            }
            bytes.extend_from_slice(&frame[HEADERS..]);
        }
        let whole = bytes.len() / count;
        let cut = u.int_in_range(0..=whole.min(20))?;
        bytes.truncate(bytes.len() - cut);
        if cut > 0 {
            self.right.push(bytes[whole * (count - 1)..].to_vec());
        }
        let to = SocketAddr::new(self.own.into(), ROCE_UDP_PORT);
        let host = &self.hosts[host];
        let segment = (count > 1 && host.roce.can_segment()).then_some(whole as u16);
        if count > 1 && segment.is_none() {
            self.right.push(bytes.clone());
        }
        send(&host.roce, host.ip, to, &bytes, segment);
        self.sent += count;
        Ok(())
    }

    /// A host says a word, or something like it.
    fn word(&mut self, u: &mut Unstructured<'_>, host: usize) -> Outcome {
        let host = &mut self.hosts[host];
        let kind: u8 = *u.choose(&[1, 1, 2, 2, 3, 4, 0])?;
        let (session, mark) = host.question.unwrap_or((1, 1));
        let of = if u.ratio(7, 8)? { session } else { u.arbitrary()? };
        let mark = if u.ratio(7, 8)? { mark } else { u.arbitrary()? };
        let own: u64 = *u.choose(&[7, 7, 7, 8])?;
        let received: u64 =
            if u.arbitrary()? { u.int_in_range(0..=100_000)? } else { u.arbitrary()? };
        let window: u32 = *u.choose(&[0, 16 << 10, u32::MAX])?;
        let numbers = [own, of, mark, received].map(u64::to_be_bytes);
        let mut bytes =
            [b"balboa\x01".as_slice(), &[kind], &numbers.concat(), &window.to_be_bytes()].concat();
        if u.ratio(1, 8)? {
            bytes.truncate(u.choose_index(bytes.len())?);
        }
        if u.ratio(1, 8)? && !bytes.is_empty() {
            let at = u.choose_index(bytes.len())?;
            bytes[at] = u.arbitrary()?;
        }
        host.asked += 1;
        host.has_answered |= matches!(kind, 2 | 4);
        let to = SocketAddr::new(self.own.into(), WORD_PORT);
        let by = if u.ratio(15, 16)? { &host.words } else { &host.roce };
        send(by, host.ip, to, &bytes, None);
        Ok(())
    }

    /// The card sends frames to a host.
    fn sends(&mut self, u: &mut Unstructured<'_>, host: usize) -> Outcome {
        let mut burst = VecDeque::new();
        let length = u.int_in_range(0..=300_usize)?;
        for number in 0..u.int_in_range(1..=40_u8)? {
            let flow = 0xc000 | u16::from(u.ratio(1, 8)?);
            let mut bytes = frame((self.own, flow), self.hosts[host].ip, &vec![number; length]);
            if u.ratio(1, 32)? {
                let at = u.choose_index(bytes.len())?;
                bytes[at] = u.arbitrary()?;
                // It may have its place among those that wait, and nothing else.
                icrc::append(&mut bytes).ok();
            }
            burst.extend(Frame::from_bytes(&bytes));
        }
        self.port.send(self.now, &mut burst);
        assert!(self.port.room() <= QUEUE);
        Ok(())
    }

    /// The card takes arrived datagrams.
    fn takes(&mut self) {
        let mut frames = VecDeque::new();
        for _ in 0..4 {
            self.port.receive(self.now, &mut frames, 64);
        }
        let ips = self.hosts.each_ref().map(|host| host.ip);
        for mut frame in frames {
            let Some((ip, _)) = ipv4::Header::new(&frame.as_slice()[ethernet::LENGTH..]).ok()
            else {
                continue;
            };
            if ip.protocol() != ipv4::PROTOCOL_UDP {
                continue;
            }
            self.arrived += 1;
            assert!(ips.contains(&ip.source()) && ip.destination() == self.own, "{frame:?}");
            if frame.is_vouched_for() {
                assert!(icrc::check(frame.as_mut_slice()), "it vouches for a wrong ICRC");
                let payload = &frame.as_slice()[HEADERS..];
                assert!(self.right.iter().any(|it| it == payload), "it vouches for a damaged bit");
            }
        }
        assert!(self.arrived <= self.sent, "more frames than datagrams");
    }

    /// A host takes arrived datagrams.
    fn hears(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        while host.words.receive(&mut self.room).is_ok() {
            for message in self.room.messages() {
                assert!(message.bytes.len() == WORD && message.bytes.starts_with(b"balboa\x01"));
                let number = |at: usize| {
                    u64::from_be_bytes(message.bytes[at..at + 8].try_into().expect("8 bytes"))
                };
                match message.bytes[7] {
                    1 => host.question = Some((number(8), number(24))),
                    2 | 4 => host.answers += 1,
                    _ => {}
                }
            }
        }
        assert!(host.answers <= host.asked, "answers that nobody has asked for");
        while host.roce.receive(&mut self.room).is_ok() {
            for message in self.room.messages() {
                let from = (self.own, message.from.port());
                let mut frame = headed(from, host.ip, message.bytes);
                let Some(wrong) = icrc::difference(&mut frame) else { continue };
                let id = self.differences.find(&frame, IPV4_IDENTIFICATION, wrong);
                // A frame that the card has damaged itself has no number.
                let Some(id) = id.map(u16::from_be_bytes).filter(|_| wrong != 0) else { continue };
                assert!(usize::from(id) < MOST_SEGMENTS, "identification {id}");
                assert!(host.has_answered, "a segment to a host that never answered");
            }
        }
    }
}

fn send(by: &UdpSocket, from: Ipv4Addr, to: SocketAddr, bytes: &[u8], segment: Option<u16>) {
    let parts = [IoSlice::new(bytes)];
    let from = IpAddr::V4(from);
    let message = Outgoing { to, from, device: 0, tos: 2, ttl: 64, segment, parts: &parts };
    // The kernel has no room, or refuses segments of no bytes.
    let _ = by.send(&[message]);
}

/// A RoCE frame with a right invariant CRC.
fn frame(from: (Ipv4Addr, u16), to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let transport = [4, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 1];
    let mut frame = headed(from, to, &[&transport, payload, &[0; icrc::LENGTH]].concat());
    icrc::append(&mut frame).expect("room for an ICRC");
    frame
}

/// A datagram's payload behind headers.
fn headed((from, source_port): (Ipv4Addr, u16), to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let udp = udp::Repr {
        source_port,
        destination_port: ROCE_UDP_PORT,
        payload_length: payload.len() as u16,
    };
    let ip = ipv4::Repr {
        type_of_service: 2,
        time_to_live: 64,
        protocol: ipv4::PROTOCOL_UDP,
        source: from,
        destination: to,
        payload_length: (payload.len() + udp::LENGTH) as u16,
    };
    let header = ethernet::Repr {
        destination: CARD,
        source: CARD,
        tag: None,
        ethertype: ethernet::EtherType::IPV4,
    };
    [&header.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes(), payload].concat()
}
