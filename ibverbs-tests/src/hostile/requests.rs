//! Requests for connections without end, and a program that connects beside them.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use cm::wire::{IpHeader, Message, Req, TransportService};
use cm::{PortSpace, ServiceId};
use shim_abi::rdma_cm::{HEADER, number};
use shim_abi::{CmReader, CmToken, CreateQp, Request, Response};
use verbs_sys::current::verbs as v;

use super::frame::{Ends, frame};
use super::{ATTACKING, GID, Opened, PATIENCE};
use crate::data::link::Options;
use crate::data::managed::Managed;
use crate::data::many::{self, Wishes};
use crate::ffi::{Patience, Service};
use crate::mortal::hand::RawClient;
use crate::mortal::say;

/// The word of a program that connects, before the number of its connections so far.
pub const CONNECTED: &str = "connected ";
/// The port of the listener that is flooded.
pub const FLOODED_PORT: u16 = 7470;
/// The seed of the requests.
const SEED: u64 = 17;
/// The peer that floods: its Ethernet address, and the first of those addresses that it asks from.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const FIRST: [u8; 4] = [10, 77, 0, 100];
/// Addresses that it asks from.
const ADDRESSES: u64 = 100;
/// Frames behind which it says that it attacks.
const ENOUGH: u64 = 5000;

/// Connections that a client that floods asks for before it takes them back.
const AT_ONCE: usize = 256;
/// Queue pairs by which it does in turn: more than a backlog holds, for a peer takes one's second request for news of
/// the first.
const QPS: usize = 2048;

/// Connects a queue pair of the first card with one of the second and parts them, again and again, and says how
/// often it has.
///
/// # Errors
/// When a connection does not come about.
pub fn connect(port: u16, times: Option<u64>) -> Result<()> {
    let places = [Opened::open("balboa0", 16)?, Opened::open("balboa1", 16)?];
    let contexts = [&*places[0].context, &*places[1].context];
    let mut managed = Managed::new(contexts, GID, port)?;
    for count in 1..=times.unwrap_or(u64::MAX) {
        let [asks, asked] = [places[0].qp(1)?, places[1].qp(1)?];
        managed.connect([&asks, &asked]).with_context(|| format!("connection {count}"))?;
        managed.part()?;
        say(&format!("{CONNECTED}{count}"));
        if count == 1 {
            say(ATTACKING);
        }
    }
    Ok(())
}

/// Holds connections between the first card and the second, over each of which a message has come.
///
/// # Errors
/// When one does not come about.
pub fn hold(pairs: usize, port: u16) -> Result<()> {
    let options = Options {
        devices: ["balboa0".into(), "balboa1".into()],
        gid_index: GID,
        events: false,
        thread_domain: false,
        extended: None,
        service: Service::Reliable,
        cq_entries: 64,
        patience: Patience::default(),
    };
    let (shared, go, stay, managed) = (false, None, false, Some(port));
    let wishes = Wishes { pairs, rounds: 1, shared, go, stay, managed };
    many::held(&options, &wishes, super::stay).map(drop)
}

/// Numbers that look random, and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }
}

/// Is a peer on a card's cable that asks for connections without end: of a listener that is not served, of ports
/// without a listener, and in malformed messages.
///
/// # Errors
/// When the card does not answer for its address.
pub fn by_cable(directory: &Path, card: Ipv4Addr, local: &Path, remote: &Path) -> Result<()> {
    let victim = Asker::new(directory)?;
    victim.listen()?;
    let socket = UnixDatagram::bind(remote)?;
    socket.connect(local).context("no card at the other end")?;
    let mac = find(&socket, card)?;
    let mut numbers = Numbers(SEED);
    for count in 0.. {
        let [.., last] = FIRST;
        let source = last.wrapping_add((numbers.next() % ADDRESSES) as u8);
        let source = Ipv4Addr::new(FIRST[0], FIRST[1], FIRST[2], source);
        let mut datagram = request(&mut numbers, source, card);
        if count % 8 == 7 {
            let at = numbers.next() as usize % datagram.len();
            datagram[at] ^= 1 << (numbers.next() % 8);
        }
        let ends = Ends { macs: [OWN_MAC, mac], addresses: [source, card] };
        let frame = frame(&datagram, ends)?;
        // A cable that is full loses frames.
        let _ = socket.send(&frame);
        answer_questions(&socket, mac)?;
        if count == ENOUGH {
            say(ATTACKING);
        }
    }
    Ok(())
}

/// A request for a connection, of a random number, queue pair and transaction.
fn request(numbers: &mut Numbers, source: Ipv4Addr, card: Ipv4Addr) -> [u8; 256] {
    let port = if numbers.next() % 2 == 0 { FLOODED_PORT } else { numbers.next() as u16 };
    let (source_port, destination) = (numbers.next() as u16, IpAddr::V4(card));
    let header = IpHeader { source: IpAddr::V4(source), source_port, destination };
    let mut req = Req {
        local_comm_id: numbers.next() as u32,
        service_id: ServiceId::new(PortSpace::Tcp, port).0,
        local_qpn: (numbers.next() as u32 & 0xff_ffff).max(2),
        remote_cm_response_timeout: 20,
        transport_service: TransportService::RC,
        local_cm_response_timeout: 20,
        pkey: cm::param::PKEY,
        path_mtu: 3,
        max_cm_retries: 15,
        primary_local_gid: source.to_ipv6_mapped(),
        primary_remote_gid: card.to_ipv6_mapped(),
        primary_hop_limit: 64,
        ..Req::ZERO
    };
    req.private_data[..IpHeader::LENGTH].copy_from_slice(&header.to_bytes());
    Message { transaction_id: numbers.next(), body: req.into() }.to_bytes()
}

const ARP: [u8; 2] = [8, 6];

/// An ARP message: the sender and its question or answer, about an address.
fn arp(operation: u8, to: [u8; 6], from: Ipv4Addr, about: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let mut frame = [&to[..], &OWN_MAC, &ARP, &[0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend([&OWN_MAC[..], &from.octets(), &about.0, &about.1.octets()].concat());
    frame.resize(60, 0);
    frame
}

/// Asks which Ethernet address a card has.
fn find(socket: &UnixDatagram, card: Ipv4Addr) -> Result<[u8; 6]> {
    let (deadline, mut frame) = (Instant::now() + PATIENCE, [0; 16 << 10]);
    socket.set_read_timeout(Some(PATIENCE / 20))?;
    while Instant::now() < deadline {
        socket.send(&arp(1, [0xff; 6], Ipv4Addr::from(FIRST), ([0; 6], card)))?;
        if let Ok(length) = socket.recv(&mut frame) {
            let answers = length >= 42 && frame[12..14] == ARP && frame[20..22] == [0, 2];
            if answers && frame[28..32] == card.octets() {
                socket.set_nonblocking(true)?;
                return Ok(frame[22..28].try_into()?);
            }
        }
    }
    bail!("the card at {card} does not answer")
}

/// Answers for half of the addresses that the card asks for; all else that it sends is dropped.
fn answer_questions(socket: &UnixDatagram, mac: [u8; 6]) -> Result<()> {
    let mut frame = [0; 16 << 10];
    while let Ok(length) = socket.recv(&mut frame) {
        if length >= 42 && frame[12..14] == ARP && frame[20..22] == [0, 1] && frame[41] % 2 == 0 {
            let [asker, asked] =
                [28, 38].map(|at| -> [u8; 4] { std::array::from_fn(|byte| frame[at + byte]) });
            let _ = socket.send(&arp(2, mac, asked.into(), (mac, asker.into())));
        }
    }
    Ok(())
}

/// A client that speaks the commands of rdma_cm by hand, and reads no event.
struct Asker {
    client: RawClient,
    channel: CmToken,
    /// The channel lives as long as its descriptors.
    _sockets: Vec<OwnedFd>,
}

impl Asker {
    fn new(directory: &Path) -> Result<Self> {
        let client = RawClient::connect(directory)?;
        let (response, _sockets) = client.ask(&Request::OpenCmChannel)?;
        let Response::CmChannel { channel } = response else { bail!("{response:?}") };
        Ok(Self { client, channel, _sockets })
    }

    /// Says a command of so many bytes, with fields at places.
    fn say(&self, number: u32, length: u16, fields: &[(usize, &[u8])]) -> Result<Vec<u8>> {
        let mut command = [&number.to_ne_bytes()[..], &length.to_ne_bytes(), &[4, 0]].concat();
        command.resize(HEADER + usize::from(length), 0);
        for (at, field) in fields {
            command[HEADER + at..HEADER + at + field.len()].copy_from_slice(field);
        }
        // It reads no events.
        let channel = CmReader { channel: self.channel, read: 0, held: 0 };
        let request = Request::CmCommand { channel, command, from: None };
        match self.client.ask(&request)?.0 {
            Response::CmAnswer { output, .. } => Ok(output),
            other => bail!("{other:?}"),
        }
    }

    /// Makes queue pairs of its own on the first card.
    fn qps(&self) -> Result<Vec<u32>> {
        let card = |request| self.client.ask(&request).map(|(response, _)| response);
        let Response::Context(info) = card(Request::OpenContext { card: 0 })? else {
            bail!("no context");
        };
        let context = info.context;
        let Response::Pd { pdn } = card(Request::AllocPd { context })? else { bail!("no domain") };
        let cq =
            Request::CreateCq { context, log2_entries: 4, channel: None, vector: 0, cookie: 1 };
        let Response::Cq { cqn, .. } = card(cq)? else { bail!("no completion queue") };
        let wanted = CreateQp {
            pdn,
            kind: v::IBV_QPT_RC as u8,
            send_cqn: cqn,
            receive_cqn: cqn,
            srqn: None,
            log2_sq_blocks: 4,
            log2_rq_entries: 4,
            chain: None,
            log2_rq_stride: 1,
            cookie: 2,
        };
        let made = (0..QPS).map(|_| match card(Request::CreateQp(wanted.clone()))? {
            Response::Qp { qpn, .. } => Ok(qpn),
            other => bail!("no queue pair: {other:?}"),
        });
        made.collect()
    }

    fn id(&self) -> Result<[u8; 4]> {
        let tcp = (PortSpace::Tcp as u16).to_ne_bytes();
        let answer = self.say(number::CREATE_ID, 24, &[(0, &[1]), (16, &tcp)])?;
        Ok(answer[..].try_into()?)
    }

    /// Listens at all addresses, and takes up no request.
    fn listen(&self) -> Result<()> {
        let id = self.id()?;
        let all = sockaddr(Ipv4Addr::UNSPECIFIED, FLOODED_PORT);
        self.say(number::BIND_IP, 40, &[(8, &all), (36, &id)])?;
        self.say(number::LISTEN, 8, &[(0, &id)]).map(drop)
    }

    /// Asks for a connection, as far as that goes.
    fn ask(&self, from: Ipv4Addr, to: Ipv4Addr, qpn: u32) -> Result<[u8; 4]> {
        let id = self.id()?;
        let (from, to) = (sockaddr(from, 0), sockaddr(to, FLOODED_PORT));
        let fields: [(usize, &[u8]); 4] = [(0, &from), (28, &to), (56, &id), (60, &[0xff, 0xff])];
        self.say(number::RESOLVE_IP, 64, &fields)?;
        // Where the peer is not found yet, both are refused.
        let _ = self.say(number::RESOLVE_ROUTE, 8, &[(0, &id)]);
        let qpn = qpn.to_ne_bytes();
        let _ = self.say(number::CONNECT, 288, &[(0, &qpn), (271, &[1]), (272, &id)]);
        Ok(id)
    }
}

fn sockaddr(address: Ipv4Addr, port: u16) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&address.octets());
    bytes
}

/// Asks for connections without end, of a listener of its own that takes none up, and takes them back.
///
/// # Errors
/// When balboad refuses a request that it should serve.
pub fn by_client(directory: &Path, from: Ipv4Addr, to: Ipv4Addr) -> Result<()> {
    let [listener, asker] = [Asker::new(directory)?, Asker::new(directory)?];
    listener.listen()?;
    let qpns = asker.qps()?;
    for turn in 0.. {
        let of_turn = qpns.iter().cycle().skip(turn * AT_ONCE % QPS).take(AT_ONCE);
        let ids = of_turn.map(|qpn| asker.ask(from, to, *qpn));
        for id in ids.collect::<Result<Vec<_>>>()? {
            let end = || asker.say(number::DESTROY_ID, 16, &[(8, &id)]);
            // The answer to the first word says that there are events, which stay unread here.
            end().or_else(|_| end())?;
        }
        // The backlog of a listener is full by then.
        if turn == 8 {
            say(ATTACKING);
        }
    }
    Ok(())
}
