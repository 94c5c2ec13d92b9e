//! A server on fake cards and clients of it, all in the test's own thread.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use bitstreams::Manifest;
use card_driver::address::PortAddress;
use card_driver::backend::CardBackend;
use card_driver::bringup::bring_up;
use card_driver::fake::FakeCard;
use card_driver::hosted::HostedOptions;
use card_driver::soft::{self, SoftBackend, SoftCard};
use fpga_regs::coyote::shell::Map;

use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::window::{Capabilities, RELAY_PAGE};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use shim_abi::{AddressVector, ContextInfo, CreateQp, SOCKET_NAME};
use softcard::Runtime;

use crate::args::WantedCards;
use crate::cards::{Card, Quarantine};
use crate::images;
use crate::images::store::Store;
use crate::server::*;
use crate::state_dir::StateDir;

/// A server on fake cards, run step by step in the test's own thread.
pub(super) struct Bench {
    pub(super) server: Server,
    pub(super) cards: Vec<Arc<FakeCard>>,
    state: StateDir,
    root: tempfile::TempDir,
}

/// A client in the same process.
pub(super) struct Peer {
    pub(super) socket: OwnedFd,
}

impl Bench {
    /// Leaves no places on the first window but the doorbell pages of programs.
    pub(super) fn relays_nobody(&mut self) {
        let pages = &mut self.server.cards[0].users[0].pages;
        pages.truncate(usize::from(RELAY_PAGE));
    }

    pub(super) fn new(cards: u32, windows: u8) -> Self {
        Self::lacking(Capabilities::empty(), cards, windows)
    }

    /// One whose cards do not offer all that a software card does.
    pub(super) fn lacking(missing: Capabilities, cards: u32, windows: u8) -> Self {
        let root = tempfile::tempdir().unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        let mut state = StateDir::claim(root.path(), uid).unwrap();
        let fakes: Vec<_> = (0..cards).map(|_| Arc::new(FakeCard::new(windows))).collect();
        fakes.iter().for_each(|card| card.hide(missing));
        let (name, map) = ("test".into(), Map::Since2026);
        let regions = Some(windows);
        let manifest = Manifest { name, map, regions, ..Manifest::default() };
        let brought_up = (0..cards).zip(&fakes).map(|(number, fake)| {
            let backend: Arc<dyn CardBackend> = Arc::<FakeCard>::clone(fake);
            let address = PortAddress::default_of(number);
            Card::new(bring_up(number, backend, address, &manifest).unwrap())
        });
        let cards = brought_up.collect();
        let listener = state.listen().unwrap();
        let server = Server::new(cards, listener, uid, &state).unwrap();
        Self { server, cards: fakes, state, root }
    }

    /// One of software cards on a switch, which serve their interrupts themselves; the runtime is to be shut down
    /// behind the bench.
    pub(super) fn soft(cards: u32) -> (Self, Runtime) {
        let (bench, runtime, _) = Self::soft_in(tempfile::tempdir().unwrap(), cards);
        (bench, runtime)
    }

    /// A bench as [`Self::soft`], with the images that a state directory records, and with the back-ends.
    pub(super) fn soft_in(
        root: tempfile::TempDir,
        cards: u32,
    ) -> (Self, Runtime, Vec<Arc<SoftBackend>>) {
        let soft = vec![SoftCard::default(); usize::try_from(cards).unwrap()];
        Self::cards_in(root, soft, |_, manifest| manifest)
    }

    /// The same, with cards of a kind, each by its number with a manifest made from its own.
    pub(super) fn cards_in(
        root: tempfile::TempDir,
        soft: Vec<SoftCard>,
        given: impl Fn(u32, Manifest) -> Manifest,
    ) -> (Self, Runtime, Vec<Arc<SoftBackend>>) {
        let cards = u32::try_from(soft.len()).unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        let mut state = StateDir::claim(root.path(), uid).unwrap();
        let store = Store::new(state.directory()).unwrap();
        let manifests = soft.iter().map(|_| None).collect();
        let mut wanted = WantedCards { soft, manifests, ..WantedCards::default() };
        let mut known = Vec::new();
        for number in 0..cards {
            let manifest = given(number, wanted.manifest(number).unwrap());
            let card = &mut wanted.soft[number as usize];
            let location = soft::location(number as usize);
            let takes = card.takes();
            known.push(match images::restored(&store, &location, &manifest, takes) {
                Some(known) => {
                    *card = known.card(card);
                    (known.manifest, Some(known.record))
                }
                None => (manifest, None),
            });
        }
        let (runtime, backends) = soft::start(&wanted.soft, &[], None, Vec::new(), 1).unwrap();
        let backends: Vec<_> = backends.into_iter().map(Arc::new).collect();
        let brought_up = (0..cards).zip(&backends).zip(known);
        let brought_up = brought_up.map(|((number, backend), (manifest, record))| {
            let backend: Arc<dyn CardBackend> = Arc::<SoftBackend>::clone(backend);
            let address = PortAddress::default_of(number);
            Card::start(number, backend, address, manifest, record, HostedOptions::default())
                .unwrap()
        });
        let brought_up = brought_up.collect();
        let listener = state.listen().unwrap();
        let server = Server::new(brought_up, listener, uid, &state).unwrap();
        (Self { server, cards: Vec::new(), state, root }, runtime, backends)
    }

    /// Ends it, as a balboad that dies; the files of its state directory stay.
    pub(super) fn die(self) -> tempfile::TempDir {
        let Self { server, state, root, .. } = self;
        drop((server, state));
        root
    }

    /// Serves all requests that are there, and does all work that waits for its turn.
    pub(super) fn turn(&mut self) {
        for turn in 0.. {
            self.server.cards.iter().for_each(|card| card.device.shell.attend().unwrap());
            assert!(self.server.step(Some(Duration::ZERO)).unwrap());
            if turn >= 3 && !self.server.has_work() {
                return;
            }
        }
    }

    /// Serves interrupts by threads of their own from now on, as balboad does.
    pub(super) fn serve_interrupts(&mut self) {
        self.server.cards.iter_mut().for_each(|card| card.device.serve_interrupts().unwrap());
    }

    pub(super) fn state_dir(&self) -> &Path {
        self.root.path()
    }

    pub(super) fn connect(&mut self) -> Peer {
        Peer { socket: dial(self.root.path()) }
    }

    pub(super) fn exchange(&mut self, peer: &Peer, message: &[u8]) -> (Vec<u8>, Vec<OwnedFd>) {
        fdpass::send(peer.socket.as_fd(), message, &[], Wait::Never).unwrap();
        self.answer(peer)
    }

    /// The answer to the last request.
    pub(super) fn answer(&mut self, peer: &Peer) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            self.turn();
            match fdpass::receive(peer.socket.as_fd(), &mut buffer, Wait::Never) {
                Ok(received) => {
                    buffer.truncate(received.bytes);
                    return (buffer, received.fds);
                }
                // An image is looked at aside, which takes a moment.
                Err(error) => assert!(self.server.flasher.examiner().is_busy(), "{error}"),
            }
            assert!(self.server.step(Some(Duration::from_millis(1))).unwrap());
        }
    }

    pub(super) fn greet(&mut self, peer: &Peer, role: Role) -> Reply {
        let hello = shim_abi::hello_frame(&Hello { build: "test".into(), role });
        fdpass::send(peer.socket.as_fd(), &hello, &[], Wait::Never).unwrap();
        let mut buffer = vec![0; MAX_MESSAGE];
        // The kernel is asked about a verbs program aside, which takes a moment.
        loop {
            self.turn();
            match fdpass::receive(peer.socket.as_fd(), &mut buffer, Wait::Never) {
                Ok(received) => {
                    buffer.truncate(received.bytes);
                    return shim_abi::decode_hello(&buffer).unwrap();
                }
                Err(error) => assert!(error.would_block(), "{error}"),
            }
            assert!(self.server.step(Some(Duration::from_millis(1))).unwrap());
        }
    }

    fn greeted(&mut self, role: Role) -> Peer {
        let peer = self.connect();
        assert_eq!(self.greet(&peer, role), Ok(Response::Done));
        peer
    }

    pub(super) fn provider(&mut self) -> Peer {
        self.greeted(Role::Provider)
    }

    pub(super) fn tool(&mut self) -> Peer {
        self.greeted(Role::Tool)
    }

    pub(super) fn try_ask(&mut self, peer: &Peer, request: &Request) -> (Reply, Vec<OwnedFd>) {
        let (answer, fds) = self.exchange(peer, &shim_abi::encode(request));
        (shim_abi::decode(&answer).unwrap(), fds)
    }

    pub(super) fn ask(&mut self, peer: &Peer, request: Request) -> (Response, Vec<OwnedFd>) {
        let (reply, fds) = self.try_ask(peer, &request);
        (reply.unwrap_or_else(|refusal| panic!("{request:?}: {refusal:?}")), fds)
    }

    pub(super) fn refused(&mut self, peer: &Peer, request: Request) -> Refusal {
        let (reply, fds) = self.try_ask(peer, &request);
        assert!(fds.is_empty());
        reply.expect_err("refusal")
    }

    pub(super) fn open(&mut self, peer: &Peer, card: u32) -> (ContextInfo, Vec<OwnedFd>) {
        match self.ask(peer, Request::OpenContext { card }) {
            (Response::Context(info), fds) => (*info, fds),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn pd(&mut self, peer: &Peer, context: u32) -> u32 {
        match self.ask(peer, Request::AllocPd { context }).0 {
            Response::Pd { pdn } => pdn,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn channel(&mut self, peer: &Peer, context: u32) -> (u32, Vec<OwnedFd>) {
        match self.ask(peer, Request::CreateChannel { context }) {
            (Response::Channel { channel }, fds) => (channel, fds),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn cq(&mut self, peer: &Peer, context: u32, channel: Option<u32>) -> (u32, u64) {
        self.cq_of_vector(peer, context, channel, 0)
    }

    pub(super) fn cq_of_vector(
        &mut self,
        peer: &Peer,
        context: u32,
        channel: Option<u32>,
        vector: u8,
    ) -> (u32, u64) {
        let cookie = 0xc0ffee;
        let request = Request::CreateCq { context, log2_entries: 6, channel, vector, cookie };
        match self.ask(peer, request).0 {
            Response::Cq { cqn, ring } => (cqn, ring),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn qp(&mut self, peer: &Peer, pdn: u32, cqn: u32) -> u32 {
        match self.ask(peer, Request::CreateQp(wanted_qp(pdn, cqn))).0 {
            Response::Qp { qpn, .. } => qpn,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn srq(&mut self, peer: &Peer, pdn: u32) -> u32 {
        let request = Request::CreateSrq { pdn, log2_entries: 4, log2_stride: 0, cookie: 0xbeef };
        match self.ask(peer, request).0 {
            Response::Srq { srqn, .. } => srqn,
            other => panic!("{other:?}"),
        }
    }

    /// A QP and the shared receive queue that it uses.
    pub(super) fn sharing_qp(&mut self, peer: &Peer, pdn: u32, cqn: u32) -> (u32, u32) {
        let srqn = self.srq(peer, pdn);
        let wanted = CreateQp { srqn: Some(srqn), ..wanted_qp(pdn, cqn) };
        match self.ask(peer, Request::CreateQp(wanted)).0 {
            Response::Qp { qpn, receive: None, .. } => (qpn, srqn),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn ah(&mut self, peer: &Peer, pdn: u32) -> u32 {
        match self.ask(peer, wanted_ah(pdn)).0 {
            Response::Ah { ah, .. } => ah,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn mr(&mut self, peer: &Peer, pdn: u32, memory: &[u8]) -> (u32, u32) {
        let address = memory.as_ptr() as u64;
        let length = memory.len() as u64;
        let request = Request::ReserveMr { pdn, address, length, hca_va: address, access: 1 };
        let (mr, iova) = match self.ask(peer, request).0 {
            Response::Reserved { mr, iova } => (mr, iova),
            other => panic!("{other:?}"),
        };
        assert_eq!(iova % 4096, address % 4096);
        match self.ask(peer, Request::CommitMr { mr }).0 {
            Response::Mr { lkey, rkey } => {
                assert_eq!(lkey, rkey);
                (mr, lkey)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Brings a QP of card 0 into ERR behind the server's back.
    pub(super) fn fail(&mut self, window: u8, qpn: u32) {
        let (state, mask) = (QpState::Err, AttributeMask::STATE);
        let failed = Attributes { state, mask, ..Attributes::default() };
        let engine = self.server.cards[0].window(window).unwrap().engine;
        engine.modify_qp(qpn, &failed).unwrap();
    }

    pub(super) fn completion(&mut self, cqn: u32) {
        let event = Event { kind: EventType::Completion, number: cqn, ..Event::default() };
        self.cards[0].raise(0, event);
        self.turn();
    }
}

/// Leaked resources of a card, at the end bytes of I/O virtual addresses.
pub(super) fn leaked(card: &Card) -> (Quarantine, u64) {
    (card.quarantine, card.device.arena.lost_bytes())
}

pub(super) fn wanted_ah(pdn: u32) -> Request {
    let dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 9];
    let address = AddressVector {
        sgid_index: 1,
        hop_limit: 64,
        traffic_class: 0,
        sl: 0,
        flow_label: 0,
        static_rate: 0,
        dgid,
    };
    Request::CreateAh { pdn, address }
}

/// The request for a completion queue without a listener.
pub(super) fn create_cq(context: u32, log2_entries: u8) -> Request {
    Request::CreateCq { context, log2_entries, channel: None, vector: 0, cookie: 0 }
}

pub(super) fn wanted_qp(pdn: u32, cqn: u32) -> CreateQp {
    CreateQp {
        pdn,
        kind: 2,
        send_cqn: cqn,
        receive_cqn: cqn,
        srqn: None,
        log2_sq_blocks: 7,
        log2_rq_entries: 6,
        log2_rq_stride: 1,
        cookie: 0xdead,
        chain: None,
    }
}

pub(super) fn dial(dir: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    connect(fd.as_raw_fd(), &UnixAddr::new(&dir.join(SOCKET_NAME)).unwrap()).unwrap();
    fd
}

pub(super) fn records(fd: &OwnedFd) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut buffer = [0; 64];
    while let Ok(received) = fdpass::receive(fd.as_fd(), &mut buffer, Wait::Never) {
        if received.bytes == 0 {
            break;
        }
        found.push(buffer[..received.bytes].to_vec());
    }
    found
}
