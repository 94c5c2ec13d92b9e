//! balboad's connection manager between hostile programs and a hostile peer: commands of any bytes and of any order,
//! with numbers of other programs, and datagrams that fit earlier ones.
//!
//! Checked promises: an answer is no longer than its room; events come in their order, and are void only while they are
//! on their way to a program that reports its reads truly; no program reaches another's identifiers; and when all
//! programs have gone nothing is left.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arbitrary::Unstructured;
use hostmem::fdpass::{Wait, receive};
use kdriver_shim::cm::fake::Wire;
use kdriver_shim::cm::network::Network as _;
use kdriver_shim::cm::{Asker, Census, ConnectionManager, Said, abi};
use kdriver_shim::poller::Poller;
use kdriver_shim::process::ClientId;
use shim_abi::{CmEvent, CmReader, CmToken};

use crate::Outcome;

/// Datagrams that the peer remembers.
const SAID: usize = 32;
/// Room for the longest answer.
const ROOM: u16 = 400;
/// Addresses of everybody, of the cards, of a peer that is not there, and of a group.
const ADDRESSES: [&str; 8] = [
    "0.0.0.0:0",
    "0.0.0.0:7174",
    "10.77.0.1:7174",
    "10.77.0.2:7174",
    "10.77.0.9:7174",
    "[::]:7174",
    "[2001:db8::2]:0",
    "239.1.1.1:0",
];

/// A channel, and whose it is.
struct Program {
    asker: Asker,
    token: CmToken,
    socket: OwnedFd,
    /// The number of the last event that it has read.
    read: u64,
    /// Whether it says that it has read more.
    lies: bool,
    /// Numbers of events that are void.
    void: BTreeSet<u64>,
}

impl Program {
    fn reader(&self) -> CmReader {
        let (read, held) = if self.lies { (u64::MAX, 1) } else { (self.read, 0) };
        CmReader { channel: self.token, read, held }
    }
}

struct Bench {
    server: ConnectionManager,
    /// Two cards, whose datagrams a hostile peer has in its hands.
    cable: Wire,
    poller: Arc<Poller>,
    programs: Vec<Program>,
    /// Numbers that were given out.
    ids: BTreeSet<u32>,
    joins: BTreeSet<u32>,
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let mut cable = Wire::new(&[
        (0, 1, "10.77.0.1"),
        (0, 2, "fe80::1"),
        (1, 1, "10.77.0.2"),
        (1, 3, "2001:db8::2"),
    ]);
    cable.silent = nobodies(false);
    let mut server = ConnectionManager::new();
    for card in 0..2 {
        server.set_port(card, &cable.port(card).expect("a card"));
    }
    let poller = Arc::new(Poller::new().expect("an epoll set"));
    let (ids, joins) = Default::default();
    let mut bench = Bench { server, cable, poller, programs: Vec::new(), ids, joins };
    // The last step of an input is undone, too.
    while !u.is_empty() && bench.act(u).is_ok() {
        let forgotten = bench.cable.under_way.len().saturating_sub(SAID);
        bench.cable.under_way.drain(..forgotten);
    }
    for client in 0..3 {
        bench.server.end_client(ClientId(client));
    }
    bench.end();
    let left = bench.server.census();
    // Connections without a program end with time.
    let wanted = Census { lingering: left.lingering, ..Census::default() };
    assert_eq!(left, wanted);
    Ok(())
}

/// The addresses without answers: those of missing peers, or all.
fn nobodies(all: bool) -> Vec<[u8; 16]> {
    let gids = ADDRESSES
        .iter()
        .map(|text| abi::gid(text.parse::<std::net::SocketAddr>().expect("an address").ip()));
    gids.filter(|gid| all || gid.ends_with(&[10, 77, 0, 9])).collect()
}

impl Bench {
    fn act(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        match u.int_in_range(0..=15)? {
            0 if self.programs.len() < 5 => {
                let client = ClientId(u.int_in_range(0..=2)?);
                let asker = Asker { client, uid: 1000 };
                let (token, socket) =
                    self.server.open(&self.poller, asker).expect("a channel of so few");
                let (read, lies, void) = (0, u.ratio(1, 4)?, BTreeSet::new());
                self.programs.push(Program { asker, token, socket, read, lies, void });
            }
            1 if u.ratio(1, 8)? => {
                let client = ClientId(u.int_in_range(0..=2)?);
                self.server.end_client(client);
                self.programs.retain(|program| program.asker.client != client);
                self.end();
            }
            2 if u.ratio(1, 8)? => {
                self.server.lose_card(u.int_in_range(0..=2)?);
                self.server.go_on_ending(&mut self.cable);
            }
            3 if u.ratio(1, 8)? => {
                let is_anybody_there = self.cable.silent == nobodies(false);
                self.cable.silent = nobodies(is_anybody_there);
                self.server.tick(&mut self.cable);
            }
            2..=5 => self.hear(u)?,
            6..=9 if !self.programs.is_empty() => {
                let at = u.choose_index(self.programs.len())?;
                self.go_about(u, at)?;
            }
            _ if !self.programs.is_empty() => {
                let at = u.choose_index(self.programs.len())?;
                let bytes = self.command(u)?;
                let from = self.programs[u.choose_index(self.programs.len())?].token;
                self.say(at, &bytes, from);
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self) {
        while self.server.is_ending() {
            self.server.go_on_ending(&mut self.cable);
        }
    }

    /// A datagram of the peer's: something that was said, as it was or a bit of it otherwise, or anything.
    fn hear(&mut self, u: &mut Unstructured<'_>) -> Outcome {
        let (card, mut arrival) = match self.cable.under_way.len() {
            0 => return Ok(()),
            count if u.ratio(3, 4)? => {
                let at = count - 1 - u.int_in_range(0..=count - 1)?;
                self.cable.under_way.remove(at).expect("it is there")
            }
            count => self.cable.under_way[u.choose_index(count)?],
        };
        if u.ratio(1, 4)? {
            let at = u.int_in_range(0..=255)?;
            arrival.datagram[at] ^= u.int_in_range(1..=255)?;
            arrival.destination_gid_index = u.int_in_range(0..=4)?;
        }
        self.server.arrived(&mut self.cable, card, &arrival);
        Ok(())
    }

    /// A step of an honest program: it listens, asks for a connection or a resolution, or answers.
    fn go_about(&mut self, u: &mut Unstructured<'_>, at: usize) -> Outcome {
        let space = if u.ratio(3, 4)? { abi::space::TCP } else { abi::space::UDP };
        let create = raw(0, 24, &[(0, &[1]), (16, &space.to_ne_bytes())]);
        let own = self.programs[at].token;
        match u.int_in_range(0..=2)? {
            what @ (0 | 1) => {
                self.say(at, &create, own);
                let Some(id) = self.ids.last().map(|id| id.to_ne_bytes()) else { return Ok(()) };
                let to = abi::store("0.0.0.0:7174".parse().expect("an address")).0;
                if what == 0 {
                    self.say(at, &raw(2, 40, &[(8, &to), (36, &id)]), own);
                    self.say(at, &raw(7, 8, &[(0, &id), (4, &[2])]), own);
                    return Ok(());
                }
                let from = abi::store("10.77.0.1:0".parse().expect("an address")).0;
                let to = abi::store("10.77.0.2:7174".parse().expect("an address")).0;
                let resolve = raw(3, 64, &[(0, &from), (28, &to), (56, &id)]);
                let qpn = [u.int_in_range(2..=20)?];
                let connect = raw(6, 288, &[(0, &qpn), (271, &[1]), (272, &id)]);
                for step in [resolve, raw(4, 8, &[(0, &id)]), connect] {
                    self.say(at, &step, own);
                }
            }
            _ => {
                for _ in 0..u.int_in_range(1..=4)? {
                    self.read(at);
                }
                let ids: Vec<_> = self.ids.iter().rev().copied().take(4).collect();
                let id = u.choose(&ids)?.to_ne_bytes();
                let valid = [u.int_in_range(0..=1)?];
                let qpn = [u.int_in_range(2..=20)?];
                let accept = [(0, &[9][..]), (8, &qpn), (279, &valid), (280, &id)];
                self.say(at, &raw(8, 296, &accept), own);
            }
        }
        Ok(())
    }

    /// A command: its number and length as they ought to be or not, fields of numbers that were given out, an
    /// address of a host, and any bytes.
    fn command(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
        let number: u32 = u.int_in_range(0..=24)?;
        let mut body = self.body(u, number)?;
        if u.ratio(1, 4)? && !body.is_empty() {
            let at = u.choose_index(body.len())?;
            body[at] = u.int_in_range(0..=255)?;
        }
        let mut said = u16::try_from(body.len()).expect("it is short");
        let mut out = ROOM;
        if u.ratio(1, 16)? {
            (said, out) = (u.arbitrary()?, u.arbitrary()?);
        }
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend(said.to_ne_bytes());
        bytes.extend(out.to_ne_bytes());
        bytes.extend(body);
        if u.ratio(1, 16)? {
            bytes.truncate(u.int_in_range(0..=bytes.len())?);
        }
        Ok(bytes)
    }

    /// The body of a command of that number: an identifier, or a join, and its other fields.
    fn body(&self, u: &mut Unstructured<'_>, number: u32) -> arbitrary::Result<Vec<u8>> {
        let (length, id_at) = match number {
            0 => (24, None),
            1 | 11 | 17 | 18 | 19 => (16, Some(8)),
            2 => (40, Some(36)),
            3 => (64, Some(56)),
            6 => (288, Some(272)),
            8 => (296, Some(280)),
            9 => (264, Some(0)),
            14 => (24, Some(8)),
            16 => (48, Some(44)),
            20 => (136, Some(0)),
            21 => (272, Some(0)),
            22 => (152, Some(16)),
            12 => (8, None),
            _ => (8, Some(0)),
        };
        let mut body = vec![0; length];
        let mut put = |at: usize, bytes: &[u8]| body[at..at + bytes.len()].copy_from_slice(bytes);
        let given = if number == 17 { &self.joins } else { &self.ids };
        if let Some(at) = id_at {
            let id = *u.choose(&given.iter().copied().chain([7]).collect::<Vec<_>>())?;
            put(at, &id.to_ne_bytes());
        }
        let text = *u.choose(&ADDRESSES)?;
        let (address, size) = abi::store(text.parse().expect("an address"));
        match number {
            0 => {
                let spaces = [abi::space::TCP, abi::space::UDP, abi::space::IB];
                put(0, &[1]);
                put(16, &u.choose(&spaces)?.to_ne_bytes());
                put(18, &[*u.choose(&[2, 3, 4, 9])?]);
            }
            2 => put(8, &address),
            3 => put(28, &address),
            6 => {
                put(0, &[17]);
                put(271, &[1]);
            }
            8 => {
                put(0, &[1]);
                put(8, &[18]);
                put(279, &[u.int_in_range(0..=1)?]);
            }
            11 => put(12, &[u.int_in_range(0..=7)?]),
            16 => put(16, &address),
            19 => put(12, &[u.int_in_range(0..=3)?]),
            20 => {
                put(4, &size.to_ne_bytes());
                put(8, &address);
            }
            21 => {
                put(10, &size.to_ne_bytes());
                put(144, &address);
            }
            22 => {
                put(20, &size.to_ne_bytes());
                put(24, &address);
            }
            _ => {}
        }
        Ok(body)
    }

    fn say(&mut self, at: usize, bytes: &[u8], from: CmToken) {
        let Self { server, cable, programs, .. } = self;
        let program = &programs[at];
        let number = bytes.first().copied().unwrap_or(u8::MAX);
        let left = programs.iter().position(|it| it.token == from).expect("it is there");
        let from = programs[left].reader();
        let outcome = {
            // Each lacks some.
            let has_qp = |client: ClientId, _: u32, qpn: u32| u64::from(qpn) % 4 != client.0;
            server.command(cable, &has_qp, program.asker, program.reader(), bytes, Some(from))
        };
        let whole = bytes.len() >= abi::HEADER;
        let out = if whole { u16::from_ne_bytes([bytes[6], bytes[7]]) } else { 0 };
        let Ok(Said { output, void }) = outcome else { return };
        assert!(output.len() <= usize::from(out));
        let first = output.first_chunk().map(|it| u32::from_ne_bytes(*it));
        match number {
            0 => self.ids.extend(first),
            16 | 22 => self.joins.extend(first),
            _ => {}
        }
        let of = &mut self.programs[if number == 18 { left } else { at }];
        assert!(of.lies || void.iter().all(|number| *number > of.read), "it was read");
        of.void.extend(void);
    }

    /// Reads an event, if there is one.
    fn read(&mut self, at: usize) {
        let program = &mut self.programs[at];
        let mut room = [0; shim_abi::CM_EVENT_BYTES];
        let Ok(received) = receive(program.socket.as_fd(), &mut room, Wait::Never) else { return };
        let event: CmEvent = shim_abi::decode(&room[..received.bytes]).expect("an event");
        assert!(event.number > program.read, "events come in their order");
        program.read = event.number;
        if !program.void.remove(&event.number) {
            // A request brings an identifier.
            let about = event.output.get(8..).and_then(|it| it.first_chunk());
            self.ids.extend(about.map(|it| u32::from_ne_bytes(*it)));
        }
    }
}

/// A command of so many bytes, with fields in it.
fn raw(number: u32, length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.extend(u16::try_from(length).expect("it is short").to_ne_bytes());
    bytes.extend(ROOM.to_ne_bytes());
    bytes.resize(abi::HEADER + length, 0);
    for (at, field) in fields {
        bytes[abi::HEADER + at..][..field.len()].copy_from_slice(field);
    }
    bytes
}
