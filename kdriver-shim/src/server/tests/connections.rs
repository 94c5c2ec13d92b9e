//! Programs that connect by two software cards, each by raw commands on its control connection.

use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::window::Capabilities;
use shim_abi::{CmEvent, CmReader, CmToken};

use super::*;
use crate::cm::abi::{event, number};
use crate::cm::tests::{body, conn_param, raw, sockaddr, word};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A program with a channel.
struct Program {
    peer: bench::Peer,
    channel: CmToken,
    socket: OwnedFd,
    /// The number of the last event that it has read.
    read: std::cell::Cell<u64>,
}

impl Program {
    fn new(bench: &mut Bench) -> Self {
        let peer = bench.provider();
        let (response, mut fds) = bench.ask(&peer, Request::OpenCmChannel);
        let Response::CmChannel { channel } = response else { panic!("{response:?}") };
        Self { peer, channel, socket: fds.pop().unwrap(), read: Default::default() }
    }

    fn try_say(&self, bench: &mut Bench, command: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let channel = CmReader { channel: self.channel, read: self.read.get(), held: 0 };
        let request = Request::CmCommand { channel, command, from: None };
        match bench.try_ask(&self.peer, &request).0? {
            Response::CmAnswer { output, .. } => Ok(output),
            other => panic!("{other:?}"),
        }
    }

    fn say(&self, bench: &mut Bench, command: Vec<u8>) -> Vec<u8> {
        self.try_say(bench, command).unwrap()
    }

    fn id(&self, bench: &mut Bench, uid: u64) -> u32 {
        let wanted = body(24, &[(0, &uid.to_ne_bytes()), (16, &0x0106u16.to_ne_bytes())]);
        word(&self.say(bench, raw(number::CREATE_ID, &wanted, 4)), 0)
    }

    fn listen(&self, bench: &mut Bench, address: &str) -> u32 {
        let id = self.id(bench, 1);
        let bound = body(40, &[(8, &sockaddr(address)), (36, &id.to_ne_bytes())]);
        self.say(bench, raw(number::BIND_IP, &bound, 0));
        self.say(bench, raw(number::LISTEN, &body(8, &[(0, &id.to_ne_bytes())]), 0));
        id
    }

    fn resolve(&self, bench: &mut Bench, id: u32, from: &str, to: &str, milliseconds: u32) {
        let fields: [(usize, &[u8]); 4] = [
            (0, &sockaddr(from)),
            (28, &sockaddr(to)),
            (56, &id.to_ne_bytes()),
            (60, &milliseconds.to_ne_bytes()),
        ];
        self.say(bench, raw(number::RESOLVE_IP, &body(64, &fields), 0));
    }

    /// A context, a domain and a completion queue on a card.
    fn domain(&self, bench: &mut Bench, card: u32) -> (u32, u32, u32) {
        let context = bench.open(&self.peer, card).0.context;
        let (pdn, (cqn, _)) = (bench.pd(&self.peer, context), bench.cq(&self.peer, context, None));
        (context, pdn, cqn)
    }

    /// A queue pair on a card, in RESET.
    fn qp(&self, bench: &mut Bench, card: u32, kind: QpType) -> u32 {
        let (_, pdn, cqn) = self.domain(bench, card);
        let wanted = shim_abi::CreateQp { kind: kind.0, ..wanted_qp(pdn, cqn) };
        match bench.ask(&self.peer, Request::CreateQp(wanted)).0 {
            Response::Qp { qpn, .. } => qpn,
            other => panic!("{other:?}"),
        }
    }

    fn connect(&self, bench: &mut Bench, id: u32, qpn: u32) -> Result<Vec<u8>, Refusal> {
        let mut asked = conn_param(qpn, b"ask");
        asked.extend(body(16, &[(0, &id.to_ne_bytes())]));
        self.try_say(bench, raw(number::CONNECT, &asked, 0))
    }

    /// An identifier that can connect.
    fn reach(&self, bench: &mut Bench, from: &str, to: &str) -> u32 {
        let id = self.id(bench, 2);
        self.resolve(bench, id, from, to, 60_000);
        assert_eq!(self.event(bench), (id, event::ADDR_RESOLVED));
        self.say(bench, raw(number::RESOLVE_ROUTE, &body(8, &[(0, &id.to_ne_bytes())]), 0));
        assert_eq!(self.event(bench).1, event::ROUTE_RESOLVED);
        id
    }

    fn ask(&self, bench: &mut Bench, (from, to): (&str, &str), qpn: u32) -> u32 {
        let id = self.reach(bench, from, to);
        self.connect(bench, id, qpn).unwrap();
        id
    }

    fn accept(&self, bench: &mut Bench, id: u32, qpn: u32) {
        let mut asked = 3u64.to_ne_bytes().to_vec();
        asked.extend(conn_param(qpn, b"yes"));
        asked.extend(body(16, &[(0, &id.to_ne_bytes())]));
        self.say(bench, raw(number::ACCEPT, &asked, 0));
    }

    /// Waits for an event, as a program does: by its socket. Its identifier and number.
    fn event(&self, bench: &mut Bench) -> (u32, u32) {
        let begun = Instant::now();
        loop {
            let mut fds =
                [nix::poll::PollFd::new(self.socket.as_fd(), nix::poll::PollFlags::POLLIN)];
            if nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap() == 1 {
                let mut room = [0; shim_abi::CM_EVENT_BYTES];
                let received = fdpass::receive(self.socket.as_fd(), &mut room, Wait::Never);
                let bytes = received.unwrap().bytes;
                let event: CmEvent = shim_abi::decode(&room[..bytes]).unwrap();
                self.read.set(event.number);
                return (word(&event.output, 8), word(&event.output, 12));
            }
            assert!(begun.elapsed() < LIMIT, "no event comes");
            assert!(bench.server.step(Some(Duration::from_millis(1))).unwrap());
        }
    }
}

#[test]
fn programs_connect_by_two_cards_and_part() {
    let (mut bench, runtime) = Bench::soft(2);
    let (alice, bob) = (Program::new(&mut bench), Program::new(&mut bench));
    bob.listen(&mut bench, "0.0.0.0:7174");
    // One that stands in for the queue pair that will carry data, as UCX has it, and an ordinary one.
    let one = alice.qp(&mut bench, 0, QpType::Ud);
    let other = bob.qp(&mut bench, 1, QpType::Rc);
    let id = alice.ask(&mut bench, ("10.77.0.1:0", "10.77.0.2:7174"), one);
    let (asked, what) = bob.event(&mut bench);
    assert_eq!(what, event::CONNECT_REQUEST);
    bob.accept(&mut bench, asked, other);
    assert_eq!(alice.event(&mut bench), (id, event::CONNECT_RESPONSE));
    alice.say(&mut bench, raw(number::ACCEPT, &body(296, &[(280, &id.to_ne_bytes())]), 0));
    assert_eq!(bob.event(&mut bench), (asked, event::ESTABLISHED));
    alice.say(&mut bench, raw(number::DISCONNECT, &id.to_ne_bytes(), 0));
    assert_eq!(bob.event(&mut bench), (asked, event::DISCONNECTED));
    bob.say(&mut bench, raw(number::DISCONNECT, &asked.to_ne_bytes(), 0));
    assert_eq!(alice.event(&mut bench), (id, event::DISCONNECTED));

    // By the card itself, and with a peer that dies.
    let one = alice.qp(&mut bench, 1, QpType::Rc);
    let id = alice.ask(&mut bench, ("10.77.0.2:0", "10.77.0.2:7174"), one);
    let (asked, _) = bob.event(&mut bench);
    bob.accept(&mut bench, asked, other);
    assert_eq!(alice.event(&mut bench), (id, event::CONNECT_RESPONSE));
    alice.say(&mut bench, raw(number::ACCEPT, &body(296, &[(280, &id.to_ne_bytes())]), 0));
    assert_eq!(bob.event(&mut bench), (asked, event::ESTABLISHED));
    drop(bob);
    assert_eq!(alice.event(&mut bench), (id, event::DISCONNECTED));
    drop(alice);
    bench.turn();
    let census = bench.server.connections.census();
    assert_eq!((census.channels, census.identifiers, census.ports), (0, 0, 0));
    drop(bench);
    runtime.shutdown();
}

#[test]
fn a_process_connects_by_no_queue_pair_of_anothers() {
    let (mut bench, runtime) = Bench::soft(2);
    let (alice, bob, carol) =
        (Program::new(&mut bench), Program::new(&mut bench), Program::new(&mut bench));
    bob.listen(&mut bench, "0.0.0.0:7174");
    let (hers, his) = (alice.qp(&mut bench, 0, QpType::Rc), bob.qp(&mut bench, 1, QpType::Rc));
    let path = ("10.77.0.1:0", "10.77.0.2:7174");
    let id = alice.ask(&mut bench, path, hers);
    let (asked, _) = bob.event(&mut bench);
    bob.accept(&mut bench, asked, his);
    assert_eq!(alice.event(&mut bench), (id, event::CONNECT_RESPONSE));

    // Carol knows their numbers, and has a queue pair on the other card.
    let elsewhere = carol.qp(&mut bench, 1, QpType::Rc);
    let attempt = carol.reach(&mut bench, path.0, path.1);
    for qpn in [hers, his, elsewhere] {
        let refusal = carol.connect(&mut bench, attempt, qpn).unwrap_err();
        assert_eq!(refusal.errno, Errno::EINVAL as i32, "{refusal:?}");
    }
    let (context, ..) = carol.domain(&mut bench, 0);
    let open = Request::OpenXrcd { context, file: None, creates: true, exclusive: false };
    let (Response::Xrcd { xrcd }, _) = bench.ask(&carol.peer, open) else { panic!() };
    let made = bench.ask(&carol.peer, Request::CreateTarget { xrcd, cookie: 1 }).0;
    let Response::Target { qpn: target, .. } = made else { panic!("{made:?}") };
    carol.connect(&mut bench, attempt, target).unwrap();
    let (request, what) = bob.event(&mut bench);
    assert_eq!(what, event::CONNECT_REQUEST, "nobody was told of an end");
    let another = bob.qp(&mut bench, 1, QpType::Rc);
    bob.accept(&mut bench, request, another);
    // That is connected, and Alice's goes on.
    assert_eq!(carol.event(&mut bench), (attempt, event::CONNECT_RESPONSE));
    alice.say(&mut bench, raw(number::ACCEPT, &body(296, &[(280, &id.to_ne_bytes())]), 0));
    assert_eq!(bob.event(&mut bench), (asked, event::ESTABLISHED));
    drop((alice, bob, carol, bench));
    runtime.shutdown();
}

#[test]
fn a_card_looks_for_who_is_to_be_connected_to() {
    let (mut bench, runtime) = Bench::soft(2);
    let alice = Program::new(&mut bench);
    let id = alice.id(&mut bench, 2);
    alice.resolve(&mut bench, id, "10.77.0.1:0", "10.77.0.99:7174", 150);
    assert_eq!(alice.event(&mut bench), (id, event::ADDR_ERROR));
    // The other card gets the address, and a repeated question finds it.
    let device = &mut bench.server.cards[1].device;
    let (mut gids, vlans) = (device.gids.clone(), device.vlans.clone());
    let free = gids.iter_mut().find(|gid| **gid == [0; 16]).unwrap();
    *free = crate::cm::abi::gid("10.77.0.99".parse().unwrap());
    device.set_gids(gids, vlans).unwrap();
    alice.resolve(&mut bench, id, "10.77.0.1:0", "10.77.0.99:7174", 60_000);
    assert_eq!(alice.event(&mut bench), (id, event::ADDR_RESOLVED));
    drop((alice, bench));
    runtime.shutdown();
}

#[test]
fn who_has_a_channel_is_told_of_the_end_of_its_client() {
    let (mut bench, runtime) = Bench::soft(1);
    let program = Program::new(&mut bench);
    let Program { peer, socket, .. } = program;
    drop(peer);
    bench.turn();
    assert_eq!(fdpass::receive(socket.as_fd(), &mut [0], Wait::Never).unwrap().bytes, 0);
    drop(bench);
    runtime.shutdown();
}

#[test]
fn without_a_queue_pair_1_there_is_no_connection_management() {
    let mut bench = Bench::lacking(Capabilities::GSI, 1, 1);
    bench.server.cards[0].manage_connections();
    let peer = bench.provider();
    let refusal = bench.refused(&peer, Request::OpenCmChannel);
    assert_eq!(refusal.errno, Errno::ENODEV as i32, "{refusal:?}");
}

#[test]
fn the_status_counts_what_the_connection_manager_has() {
    let (mut bench, runtime) = Bench::soft(1);
    let bob = Program::new(&mut bench);
    bob.listen(&mut bench, "10.77.0.1:7174");
    let tool = bench.tool();
    let (Response::Status { length }, fds) = bench.ask(&tool, Request::Status) else { panic!() };
    let mut text = vec![0; usize::try_from(length).unwrap()];
    assert_eq!(nix::unistd::read(&fds[0], &mut text).unwrap(), text.len());
    let status: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let connections = &status["connections"];
    let counted = ["channels", "identifiers", "listeners", "ports", "held"];
    assert_eq!(counted.map(|what| connections[what].as_u64().unwrap()), [1, 1, 1, 1, 0]);
    assert_eq!(connections["counters"]["received_req"], 0);
    let client = &status["clients"][0]["usage"];
    assert_eq!(
        (&client["event_channels"], &client["connection_identifiers"]),
        (&1.into(), &1.into())
    );
    drop((bob, bench));
    runtime.shutdown();
}
