use std::os::fd::{AsFd, AsRawFd};

use fpga_regs::engine::qp::QpType;
use hostmem::fdpass::{Wait, receive};
use nix::sys::socket::{MsgFlags, recv};
use shim_abi::CmAhead;

use super::abi::{event, number, option, query, space};
use super::fake::Wire;
use super::*;

mod ahead;
mod connect;
mod datagrams;
mod pings;
mod refusals;
mod search;

/// The user of all tests' programs.
const UID: u32 = 1000;
const ALICE: Asker = Asker { client: ClientId(1), uid: UID };
const BOB: Asker = Asker { client: ClientId(2), uid: UID };
const CAROL: Asker = Asker { client: ClientId(3), uid: UID };

/// The addresses of two cards, which have IPv4 and IPv6 in common.
const ADDRESSES: [(u32, u8, &str); 6] = [
    (0, 0, "fe80::1"),
    (0, 1, "10.77.0.1"),
    (0, 2, "2001:db8::1"),
    (1, 0, "fe80::2"),
    (1, 1, "10.77.0.2"),
    (1, 3, "2001:db8::2"),
];

/// A program: a channel, and the events that it has read.
struct Program {
    asker: Asker,
    token: CmToken,
    socket: OwnedFd,
    /// The number of the last event that it has read.
    read: u64,
    /// The number of one that it has taken and not read; 0 for none.
    held: u64,
    /// Numbers of events that concern no identifier any more.
    void: BTreeSet<u64>,
    /// The answers that it was last given ahead.
    ahead: Option<CmAhead>,
}

/// The server, its cards and its epoll set, in the test's own thread.
struct Bench {
    server: ConnectionManager,
    wire: Wire,
    poller: Arc<Poller>,
    /// The owners of queue pairs: whether a client has a number on a card. Where it does not matter, every client has
    /// all.
    has_qp: fn(ClientId, u32, u32) -> bool,
}

/// An event as a program sees it.
#[derive(Debug)]
struct Seen {
    uid: u64,
    id: u32,
    number: u32,
    status: u32,
    bytes: Vec<u8>,
}

impl Seen {
    fn qpn(&self) -> u32 {
        word(&self.bytes, 20)
    }

    /// Words of the peer's, of a connection.
    fn words(&self) -> &[u8] {
        &self.bytes[28..28 + usize::from(self.bytes[284])]
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn errno(error: &Error) -> Errno {
    error.errno()
}

/// A command's bytes, with the header that says so.
pub(crate) fn raw(number: u32, body: &[u8], out: u16) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap();
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(out.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// A body of fields: each where it lies, in so many bytes.
pub(crate) fn body(length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

/// A socket address in the bytes of one of IPv6.
pub(crate) fn sockaddr(text: &str) -> Vec<u8> {
    let (mut bytes, _) = abi::store(text.parse().unwrap());
    if text.starts_with("[fe80") {
        bytes[24] = 1;
    }
    bytes.to_vec()
}

impl Bench {
    fn new() -> Self {
        let mut server = ConnectionManager::new();
        let mut wire = Wire::new(&ADDRESSES);
        for card in 0..2 {
            server.set_port(card, &wire.port(card).unwrap());
        }
        Self { server, wire, poller: Arc::new(Poller::new().unwrap()), has_qp: |_, _, _| true }
    }

    fn program(&mut self, asker: Asker) -> Program {
        let (token, socket) = self.server.open(&self.poller, asker).unwrap();
        Program { asker, token, socket, read: 0, held: 0, void: BTreeSet::new(), ahead: None }
    }

    fn say_from(
        &mut self,
        program: &mut Program,
        bytes: &[u8],
        from: &mut Program,
    ) -> Result<Vec<u8>, Error> {
        let Self { server, wire, has_qp, .. } = self;
        let left = Some(from.reader());
        let said = server.command(wire, has_qp, program.asker, program.reader(), bytes, left)?;
        from.void.extend(said.void);
        Ok(said.output)
    }

    fn say(&mut self, program: &mut Program, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let Self { server, wire, has_qp, .. } = self;
        let said = server.command(wire, has_qp, program.asker, program.reader(), bytes, None)?;
        program.void.extend(said.void);
        Ok(said.output)
    }

    /// Carries datagrams until none is under way.
    fn carry(&mut self) {
        while let Some((card, arrival)) = self.wire.under_way.pop_front() {
            self.server.arrived(&mut self.wire, card, &arrival);
        }
    }

    /// Lets time go by, a timer at a time, and says how much at most.
    fn pass(&mut self, timers: usize) {
        for _ in 0..timers {
            let Some(at) = self.server.next_deadline() else { return };
            self.server.tick_at(&mut self.wire, at);
            self.carry();
        }
    }

    fn id_of(&mut self, program: &mut Program, uid: u64, space: u16, kind: QpType) -> u32 {
        let wanted =
            body(24, &[(0, &uid.to_ne_bytes()), (16, &space.to_ne_bytes()), (18, &[kind.0])]);
        word(&self.say(program, &raw(number::CREATE_ID, &wanted, 4)).unwrap(), 0)
    }

    fn id(&mut self, program: &mut Program, uid: u64) -> u32 {
        self.id_of(program, uid, space::TCP, QpType::Rc)
    }

    fn destroy(&mut self, program: &mut Program, id: u32) -> u32 {
        // It is said once that there are events that were not read, and they end with it at the second word.
        let again = |error| assert_eq!(errno(&error), Errno::EAGAIN);
        let answer = self.ask_to_end(program, id).or_else(|error| {
            again(error);
            self.ask_to_end(program, id)
        });
        word(&answer.unwrap(), 0)
    }

    fn ask_to_end(&mut self, program: &mut Program, id: u32) -> Result<Vec<u8>, Error> {
        let asked = body(16, &[(8, &id.to_ne_bytes())]);
        self.say(program, &raw(number::DESTROY_ID, &asked, 4))
    }

    fn bind(&mut self, program: &mut Program, id: u32, address: &str) -> Result<(), Error> {
        let asked = body(40, &[(8, &sockaddr(address)), (36, &id.to_ne_bytes())]);
        self.say(program, &raw(number::BIND_IP, &asked, 0)).map(|output| assert!(output.is_empty()))
    }

    fn listen(&mut self, program: &mut Program, id: u32, backlog: u32) -> Result<(), Error> {
        let asked = body(8, &[(0, &id.to_ne_bytes()), (4, &backlog.to_ne_bytes())]);
        self.say(program, &raw(number::LISTEN, &asked, 0)).map(drop)
    }

    fn resolve(
        &mut self,
        program: &mut Program,
        id: u32,
        from: Option<&str>,
        to: &str,
    ) -> Result<(), Error> {
        let source = from.map_or(vec![0; 28], sockaddr);
        let asked = body(
            64,
            &[(0, &source), (28, &sockaddr(to)), (56, &id.to_ne_bytes()), (60, &[0xd0, 7])],
        );
        self.say(program, &raw(number::RESOLVE_IP, &asked, 0)).map(drop)
    }

    fn route(&mut self, program: &mut Program, id: u32) -> Result<(), Error> {
        let asked = body(8, &[(0, &id.to_ne_bytes())]);
        self.say(program, &raw(number::RESOLVE_ROUTE, &asked, 0)).map(drop)
    }

    /// Takes an identifier of the first card to where it can connect.
    fn reach(&mut self, program: &mut Program, id: u32, to: &str) {
        let from = if to.starts_with('[') { "[2001:db8::1]:0" } else { "10.77.0.1:0" };
        self.resolve(program, id, Some(from), to).unwrap();
        assert_eq!(self.event(program).number, event::ADDR_RESOLVED);
        self.route(program, id).unwrap();
        assert_eq!(self.event(program).number, event::ROUTE_RESOLVED);
    }

    fn connect(
        &mut self,
        program: &mut Program,
        id: u32,
        qpn: u32,
        words: &[u8],
    ) -> Result<(), Error> {
        let mut asked = conn_param(qpn, words);
        asked.extend(body(16, &[(0, &id.to_ne_bytes())]));
        self.say(program, &raw(number::CONNECT, &asked, 0)).map(drop)
    }

    fn accept(
        &mut self,
        program: &mut Program,
        id: u32,
        uid: u64,
        qpn: u32,
        words: &[u8],
    ) -> Result<(), Error> {
        let mut asked = uid.to_ne_bytes().to_vec();
        asked.extend(conn_param(qpn, words));
        asked.extend(body(16, &[(0, &id.to_ne_bytes())]));
        self.say(program, &raw(number::ACCEPT, &asked, 0)).map(drop)
    }

    /// Says that the side that asks is ready.
    fn ready(&mut self, program: &mut Program, id: u32) -> Result<(), Error> {
        let asked = body(296, &[(280, &id.to_ne_bytes())]);
        self.say(program, &raw(number::ACCEPT, &asked, 0)).map(drop)
    }

    fn disconnect(&mut self, program: &mut Program, id: u32) -> Result<(), Error> {
        self.say(program, &raw(number::DISCONNECT, &id.to_ne_bytes(), 0)).map(drop)
    }

    fn try_event(&mut self, program: &mut Program) -> Result<Seen, Error> {
        program.drop_void();
        let read = program.look(MsgFlags::empty()).map_err(Error::os("recv"))?;
        program.read = read.number;
        program.ahead = read.ahead.or(program.ahead.take());
        let bytes = read.output;
        let uid = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
        let [id, number, status] = [8, 12, 16].map(|at| word(&bytes, at));
        Ok(Seen { uid, id, number, status, bytes })
    }

    fn event(&mut self, program: &mut Program) -> Seen {
        self.try_event(program).unwrap()
    }

    /// Makes a program report the place up to which it has read, by a command that is refused.
    fn tell_read(&mut self, program: &mut Program) {
        self.say(program, &raw(number::GET_EVENT, &[0; 8], 336)).unwrap_err();
    }

    fn no_event(&mut self, program: &mut Program) {
        assert_eq!(errno(&self.try_event(program).unwrap_err()), Errno::EAGAIN);
    }

    fn qp_attr(&mut self, program: &mut Program, id: u32, state: u32) -> Result<Vec<u8>, Error> {
        let asked = body(16, &[(8, &id.to_ne_bytes()), (12, &state.to_ne_bytes())]);
        self.say(program, &raw(number::INIT_QP_ATTR, &asked, 144))
    }

    fn query_route(&mut self, program: &mut Program, id: u32) -> Vec<u8> {
        let asked = body(16, &[(8, &id.to_ne_bytes())]);
        self.say(program, &raw(number::QUERY_ROUTE, &asked, 208)).unwrap()
    }

    fn set_option(
        &mut self,
        program: &mut Program,
        id: u32,
        (level, name): (u32, u32),
        value: &[u8],
    ) -> Result<(), Error> {
        let length = u32::try_from(value.len()).unwrap();
        let asked = body(
            24,
            &[
                (8, &id.to_ne_bytes()),
                (12, &level.to_ne_bytes()),
                (16, &name.to_ne_bytes()),
                (20, &length.to_ne_bytes()),
            ],
        );
        let mut bytes = raw(number::SET_OPTION, &asked, 0);
        bytes.extend(value);
        self.say(program, &bytes).map(drop)
    }

    /// A listener of Bob's on a port of all his addresses.
    fn listener(&mut self, bob: &mut Program, uid: u64, port: u16) -> u32 {
        let id = self.id(bob, uid);
        self.bind(bob, id, &format!("0.0.0.0:{port}")).unwrap();
        self.listen(bob, id, 0).unwrap();
        id
    }

    /// Asks for a connection of a queue pair's, without words; the identifier.
    fn ask(&mut self, program: &mut Program, uid: u64, to: &str, qpn: u32) -> u32 {
        let id = self.id(program, uid);
        self.reach(program, id, to);
        self.connect(program, id, qpn, &[]).unwrap();
        self.carry();
        id
    }

    /// Alice, and Bob, a listener, and a connection between them with the identifiers of both.
    fn pair() -> (Self, Program, Program, [u32; 2]) {
        let mut bench = Self::new();
        let (mut alice, mut bob) = (bench.program(ALICE), bench.program(BOB));
        bench.listener(&mut bob, 0x11, 7174);
        let ids = bench.connected(&mut alice, &mut bob, 7174);
        (bench, alice, bob, ids)
    }

    /// Connects Alice's queue pair 17 to Bob's 18; the identifiers of both.
    fn connected(&mut self, alice: &mut Program, bob: &mut Program, port: u16) -> [u32; 2] {
        let id = self.id(alice, 0xa);
        self.reach(alice, id, &format!("10.77.0.2:{port}"));
        self.connect(alice, id, 17, b"ask").unwrap();
        self.carry();
        let request = self.event(bob);
        assert_eq!(request.number, event::CONNECT_REQUEST);
        self.accept(bob, request.id, 0xb0b, 18, b"yes").unwrap();
        self.carry();
        assert_eq!(self.event(alice).number, event::CONNECT_RESPONSE);
        self.ready(alice, id).unwrap();
        self.carry();
        assert_eq!(self.event(bob).number, event::ESTABLISHED);
        [id, request.id]
    }

    fn end(&mut self, program: &Program) {
        self.server.end_client(program.asker.client);
        self.go_on_ending();
        self.carry();
    }

    fn lose(&mut self, card: u32) {
        self.server.lose_card(card);
        self.go_on_ending();
    }

    /// Does all that ends in turns; how many turns that took.
    fn go_on_ending(&mut self) -> usize {
        let mut turns = 0;
        while self.server.is_ending() {
            self.server.go_on_ending(&mut self.wire);
            turns += 1;
        }
        turns
    }
}

impl Program {
    fn reader(&self) -> CmReader {
        CmReader { channel: self.token, read: self.read, held: self.held }
    }

    /// The next event in the socket, which is taken, or looked at.
    fn look(&self, flags: MsgFlags) -> Result<CmEvent, Errno> {
        let mut room = [0; shim_abi::CM_EVENT_BYTES];
        let bytes = recv(self.socket.as_raw_fd(), &mut room, flags | MsgFlags::MSG_DONTWAIT)?;
        Ok(shim_abi::decode(&room[..bytes]).unwrap())
    }

    /// Takes events without an identifier off the socket.
    fn drop_void(&mut self) {
        while self.look(MsgFlags::MSG_PEEK).is_ok_and(|next| self.void.remove(&next.number)) {
            self.read = self.look(MsgFlags::empty()).unwrap().number;
        }
    }
}

pub(crate) fn conn_param(qpn: u32, words: &[u8]) -> Vec<u8> {
    let length = u8::try_from(words.len()).unwrap();
    // No shared receive queue, 3 and 4 READs, no flow control, 5 and 6 retries, valid.
    let rest = [length, 0, 3, 4, 0, 5, 6, 1];
    body(272, &[(0, &qpn.to_ne_bytes()), (8, words), (264, &rest)])
}
