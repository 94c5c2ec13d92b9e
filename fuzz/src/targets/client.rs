//! balboad's sessions, on a software card, with clients that send and pass anything.
//!
//! Checked promises: balboad goes on; a client that behaves is served as if it were alone; the
//! others' objects are gone after them, descriptors they passed included; the status stays sound JSON.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use card_driver::address::PortAddress;
use card_driver::bringup::bring_up;
use card_driver::soft::{self, SoftCard};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use hostmem::fdpass::{self, Wait};
use hostmem::memfd;
use kdriver_shim::args::WantedCards;
use kdriver_shim::cards::Card;
use kdriver_shim::server::Server;
use kdriver_shim::state_dir::StateDir;
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, socket,
};
use shim_abi::{
    AddressVector, CmReader, CreateQp, FileId, Hello, MAX_MESSAGE, Qos, Reply, Request, Response,
    Role, SOCKET_NAME, ServiceChain, ServiceSide, ServiceUsers, hello_frame,
};

use crate::Outcome;

/// How long anything may take that is done aside.
const LIMIT: Duration = Duration::from_secs(60);
/// A service of a user's.
const MODULE: &[u8] = include_bytes!("../../../services-wasm/template/rows.wasm");
static MEMORY: [u8; 20_000] = [0; 20_000];

/// A client, and the numbers it was given.
struct Peer {
    socket: OwnedFd,
    numbers: Vec<u32>,
}

struct Bench {
    server: Server,
    dir: tempfile::TempDir,
    state: StateDir,
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let address = PortAddress::default_of(0);
    let cards = WantedCards {
        soft: vec![SoftCard::default()],
        addresses: vec![address],
        manifests: vec![None],
        ..WantedCards::default()
    };
    let manifest = cards.manifest(0).expect("its own manifest");
    let (runtime, backends) =
        soft::start(&cards.soft, &[], None, Vec::new(), 1).expect("a card starts");
    let cards = backends.into_iter().map(|backend| {
        let device = bring_up(0, Arc::new(backend), address, &manifest);
        let mut card = Card::new(device.expect("a sound card comes up"));
        card.device.serve_interrupts().expect("a thread");
        card.manage_connections();
        card
    });
    let cards = cards.collect();
    let dir = tempfile::tempdir().expect("a directory");
    let uid = nix::unistd::geteuid().as_raw();
    let mut state = StateDir::claim(dir.path(), uid).expect("a directory of our own");
    let listener = state.listen().expect("a socket");
    let server = Server::new(cards, listener, uid, &state).expect("a server");
    let mut bench = Bench { server, dir, state };
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_NONBLOCK).expect("a pipe");

    let mut honest = bench.provider();
    let context = bench.number(&honest, &Request::OpenContext { card: 0 });
    let mut peers = Vec::new();
    while !u.is_empty() {
        bench.act(u, &mut peers, &writer)?;
        if u.ratio(1, 16)? {
            honest.numbers.push(bench.number(&honest, &Request::AllocPd { context }));
        }
    }
    drop(peers);
    drop(writer);
    // One message of each client a turn: the messages under way take some turns.
    for _ in 0..200 {
        bench.turn();
    }
    bench.everything_is_as_before(&honest, &reader);
    drop(bench);
    runtime.shutdown();
    Ok(())
}

impl Bench {
    fn act(
        &mut self,
        u: &mut Unstructured<'_>,
        peers: &mut Vec<Peer>,
        writer: &OwnedFd,
    ) -> Outcome {
        match u.int_in_range(0..=15)? {
            0 | 1 if peers.len() < 6 => peers.push(self.provider()),
            2 if peers.len() < 6 => {
                // One that says something else than a greeting, or half of it, or nothing.
                let peer = Peer { socket: self.dial(), numbers: Vec::new() };
                let mut frame = hello_frame(&Hello { build: "x".into(), role: Role::Tool });
                frame.truncate(u.int_in_range(0..=frame.len())?);
                frame.extend(u.bytes(u.len().min(2))?);
                let _ = fdpass::send(peer.socket.as_fd(), &frame, &[], Wait::Never);
                peers.push(peer);
            }
            3 if !peers.is_empty() => {
                let at = u.choose_index(peers.len())?;
                peers.swap_remove(at);
            }
            4 if !peers.is_empty() => {
                // Bytes, from none to more than a message has.
                let length = *u.choose(&[1, 2, 9, 40, MAX_MESSAGE, MAX_MESSAGE + 1])?;
                let mut bytes = u.bytes(length.min(u.len()))?.to_vec();
                bytes.resize(length, 0);
                let peer = u.choose(peers)?;
                let _ = fdpass::send(peer.socket.as_fd(), &bytes, &[], Wait::Never);
            }
            5 if !peers.is_empty() => {
                let peer = u.choose(peers)?;
                pass_descriptors(u, &peer.socket, writer)?;
            }
            6 if !peers.is_empty() => {
                // Requests without end, whose answers stay unread.
                let peer = u.choose(peers)?;
                for _ in 0..u.int_in_range(1..=64)? {
                    let request = shim_abi::encode(&Request::ListCards);
                    let _ = fdpass::send(peer.socket.as_fd(), &request, &[], Wait::Never);
                }
            }
            _ if !peers.is_empty() => {
                let at = u.choose_index(peers.len())?;
                self.request(u, &mut peers[at])?;
            }
            _ => {}
        }
        self.turn();
        Ok(())
    }

    /// A request with numbers that the client has, or others.
    fn request(&mut self, u: &mut Unstructured<'_>, peer: &mut Peer) -> Outcome {
        let numbers = std::mem::take(&mut peer.numbers);
        let request = any_request(u, &numbers)?;
        peer.numbers = numbers;
        let message = shim_abi::encode(&request);
        if fdpass::send(peer.socket.as_fd(), &message, &[], Wait::Never).is_err() {
            return Ok(());
        }
        self.turn();
        let mut buffer = vec![0; MAX_MESSAGE];
        let Ok(received) = fdpass::receive(peer.socket.as_fd(), &mut buffer, Wait::Never) else {
            return Ok(());
        };
        match shim_abi::decode::<Reply>(&buffer[..received.bytes]) {
            Ok(Ok(response)) => {
                if let Response::Target { qpn, .. } = response {
                    peer.numbers.push(qpn);
                }
                peer.numbers.extend(number_of(&response));
            }
            Ok(Err(refusal)) => {
                assert!(received.fds.is_empty() && refusal.errno > 0 && !refusal.reason.is_empty());
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn turn(&mut self) {
        for _ in 0..3 {
            assert!(self.server.step(Some(Duration::ZERO)).expect("the server goes on"));
        }
    }

    fn dial(&self) -> OwnedFd {
        dial(self.dir.path())
    }

    fn provider(&mut self) -> Peer {
        let peer = Peer { socket: self.dial(), numbers: Vec::new() };
        let hello = hello_frame(&Hello { build: "x".into(), role: Role::Provider });
        fdpass::send(peer.socket.as_fd(), &hello, &[], Wait::Never).expect("balboad listens");
        let mut answer = vec![0; MAX_MESSAGE];
        // The kernel is asked about the program aside, which takes a moment.
        let bytes = loop {
            self.turn();
            match fdpass::receive(peer.socket.as_fd(), &mut answer, Wait::Never) {
                Ok(received) => break received.bytes,
                Err(error) => assert!(error.would_block(), "{error}"),
            }
            std::thread::yield_now();
        };
        answer.truncate(bytes);
        assert_eq!(shim_abi::decode_hello::<Reply>(&answer), Ok(Ok(Response::Done)));
        peer
    }

    fn exchange(&mut self, peer: &Peer, message: &[u8]) -> (Vec<u8>, Vec<OwnedFd>) {
        fdpass::send(peer.socket.as_fd(), message, &[], Wait::Never).expect("balboad listens");
        self.turn();
        let mut buffer = vec![0; MAX_MESSAGE];
        let received = fdpass::receive(peer.socket.as_fd(), &mut buffer, Wait::Never);
        let received = received.expect("an honest client is answered");
        buffer.truncate(received.bytes);
        (buffer, received.fds)
    }

    fn ask(&mut self, peer: &Peer, request: &Request) -> (Response, Vec<OwnedFd>) {
        let (answer, fds) = self.exchange(peer, &shim_abi::encode(request));
        let reply = shim_abi::decode::<Reply>(&answer).expect("a reply");
        (reply.unwrap_or_else(|refusal| panic!("{request:?}: {refusal:?}")), fds)
    }

    fn number(&mut self, peer: &Peer, request: &Request) -> u32 {
        number_of(&self.ask(peer, request).0).expect("a number")
    }

    fn everything_is_as_before(&mut self, honest: &Peer, reader: &OwnedFd) {
        // Passed descriptors are closed aside.
        let begun = Instant::now();
        while nix::unistd::read(reader, &mut [0]) != Ok(0) {
            assert!(begun.elapsed() < LIMIT, "balboad keeps a descriptor that it was passed");
            std::thread::yield_now();
        }
        let (response, fds) = self.ask(honest, &Request::Status);
        let Response::Status { length } = response else { panic!("{response:?}") };
        let length = usize::try_from(length).expect("a length");
        let text =
            hostmem::SharedMapping::new(fds[0].as_fd(), 0, length, hostmem::Access::ReadOnly);
        let mut bytes = vec![0; length];
        text.and_then(|text| text.read_bytes(0, &mut bytes)).expect("the status can be read");
        let status: serde_json::Value = serde_json::from_slice(&bytes).expect("the status is JSON");
        // The asking client, and no other.
        assert_eq!(status["clients"].as_array().map(Vec::len), Some(1), "{}", status["clients"]);
        assert_eq!(status["connections"]["channels"], 0);
        let card = &status["cards"][0];
        for window in card["windows"].as_array().expect("windows") {
            assert!(window["dead"].is_null());
            assert_eq!(
                (&window["completion_queues"], &window["queue_pairs"]),
                (&0.into(), &0.into())
            );
        }
        for (what, count) in card["quarantine"].as_object().expect("counts") {
            assert_eq!(count, 0, "{what} are quarantined");
        }
        assert!(self.state.path().exists());
    }
}

fn dial(dir: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
        .expect("a socket");
    let path = UnixAddr::new(&dir.join(SOCKET_NAME)).expect("a short path");
    connect(socket.as_raw_fd(), &path).expect("balboad listens");
    socket
}

/// A message with descriptors, more than one message may carry among them.
fn pass_descriptors(u: &mut Unstructured<'_>, socket: &OwnedFd, writer: &OwnedFd) -> Outcome {
    let null = File::open("/dev/null").expect("/dev/null");
    let memory = memfd::create("passed", 4096).expect("a memory file");
    let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
    for _ in 0..*u.choose(&[1, 2, 8, 9, 40, 253])? {
        fds.push(match u.int_in_range(0..=3)? {
            0 => null.as_fd(),
            1 => memory.as_fd(),
            2 => socket.as_fd(),
            _ => writer.as_fd(),
        });
    }
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let message = shim_abi::encode(&Request::ListCards);
    let parts = [std::io::IoSlice::new(&message)];
    let control = [ControlMessage::ScmRights(&raw)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = sendmsg::<()>(socket.as_raw_fd(), &parts, &control, flags, None);
    Ok(())
}

fn users(u: &mut Unstructured<'_>, qpn: u32) -> arbitrary::Result<ServiceUsers> {
    Ok(match u.int_in_range(0..=3)? {
        0 => ServiceUsers::Qp(qpn),
        1 => ServiceUsers::Peer(u.arbitrary()?),
        2 => ServiceUsers::Process(u.arbitrary()?),
        _ => ServiceUsers::Dscp(u.arbitrary()?),
    })
}

fn chain(u: &mut Unstructured<'_>) -> arbitrary::Result<ServiceChain> {
    let side = *u.choose(&[ServiceSide::Both, ServiceSide::Requester, ServiceSide::Responder])?;
    Ok(ServiceChain { services: u.arbitrary()?, settings: u.arbitrary()?, side })
}

/// A change of a queue pair.
fn change(u: &mut Unstructured<'_>) -> arbitrary::Result<[[u64; 8]; 2]> {
    let mask = AttributeMask::from_bits_retain(u.arbitrary()?);
    let state = QpState(u.int_in_range(0..=7)?);
    Ok(Attributes { mask, state, ..Attributes::default() }.encode())
}

fn number_of(response: &Response) -> Option<u32> {
    match response {
        Response::Context(info) => Some(info.context),
        Response::Channel { channel } => Some(*channel),
        Response::Pd { pdn } => Some(*pdn),
        Response::Reserved { mr, .. } => Some(*mr),
        Response::Cq { cqn, .. } => Some(*cqn),
        Response::Srq { srqn, .. } => Some(*srqn),
        Response::Qp { qpn, .. } => Some(*qpn),
        Response::Xrcd { xrcd } => Some(*xrcd),
        Response::Target { target, .. } => Some(*target),
        Response::Ah { ah, .. } => Some(*ah),
        _ => None,
    }
}

fn any_request(u: &mut Unstructured<'_>, numbers: &[u32]) -> arbitrary::Result<Request> {
    let number = |u: &mut Unstructured<'_>| match u.ratio(1, 8)? || numbers.is_empty() {
        true => u.int_in_range(0..=4),
        // The latest are the ones that fit together.
        false => Ok(numbers[numbers.len() - 1 - u.choose_index(numbers.len().min(6))?]),
    };
    Ok(match u.int_in_range(0..=40)? {
        40 => match u.int_in_range(0..=11)? {
            11 => Request::LoadService {
                card: 0,
                module: match u.arbitrary()? {
                    true => MODULE.to_vec(),
                    false => u.bytes(u.len().min(64))?.to_vec(),
                },
            },
            10 => Request::UnloadService { card: 0, name: "rows".into(), now: u.arbitrary()? },
            9 => Request::QueryQos { card: 0 },
            8 => Request::SetQos {
                card: 0,
                qos: Qos {
                    dscp: u.arbitrary()?,
                    classes: u.arbitrary()?,
                    strict: u.arbitrary()?,
                    weights: u.arbitrary()?,
                    pfc: u.arbitrary()?,
                },
            },
            7 => {
                let qpn = number(u)?;
                Request::DetachServices { card: 0, from: users(u, qpn)?, now: u.arbitrary()? }
            }
            6 => {
                let qpn = number(u)?;
                Request::AttachServices {
                    card: 0,
                    to: users(u, qpn)?,
                    chain: chain(u)?,
                    replaces: u.arbitrary()?,
                }
            }
            5 => Request::Ping { card: u.arbitrary()?, address: u.arbitrary()? },
            4 => Request::Introduce,
            0 => {
                let (length, name) = (u.int_in_range(0..=64)?, u.arbitrary()?);
                Request::FlashOpen {
                    card: 0,
                    length,
                    sha256: u.arbitrary()?,
                    name,
                    manifest: u.arbitrary()?,
                }
            }
            1 => Request::FlashWrite { bytes: u.bytes(u.len().min(64))?.to_vec() },
            2 => Request::FlashApply { force: true },
            _ => Request::FlashRollback { card: 0, force: true },
        },
        0 => Request::ListCards,
        1 => Request::Status,
        2 | 3 => Request::OpenContext { card: u.int_in_range(0..=1)? },
        4 => Request::CloseContext { context: number(u)? },
        38 => Request::OpenCmChannel,
        39 => {
            let bytes: usize = u.int_in_range(0..=300)?;
            let (channel, read, held) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
            let reader = |channel| CmReader { channel, read, held };
            let (channel, from) = (reader(channel), u.arbitrary::<Option<_>>()?.map(reader));
            Request::CmCommand { channel, command: u.bytes(bytes.min(u.len()))?.to_vec(), from }
        }
        5 => Request::QueryPort { context: number(u)? },
        6 => Request::CreateChannel { context: number(u)? },
        7 | 8 => Request::AllocPd { context: number(u)? },
        9 => Request::DeallocPd { pdn: number(u)? },
        10 => Request::ReserveMr {
            pdn: number(u)?,
            address: match u.ratio(1, 4)? {
                true => u.arbitrary()?,
                false => MEMORY.as_ptr() as u64 + u.int_in_range(0..=4096)?,
            },
            length: match u.ratio(1, 4)? {
                true => u.arbitrary()?,
                false => u.int_in_range(0..=8192)?,
            },
            hca_va: u.arbitrary()?,
            access: u.int_in_range(0..=0xff)?,
        },
        11 => Request::CommitMr { mr: number(u)? },
        12 => Request::DeregMr { mr: number(u)? },
        13 => Request::CreateCq {
            context: number(u)?,
            log2_entries: u.int_in_range(0..=26)?,
            channel: if u.arbitrary()? { Some(number(u)?) } else { None },
            vector: u.int_in_range(0..=4)?,
            cookie: u.arbitrary()?,
        },
        14 => Request::DestroyCq { cqn: number(u)? },
        15 => {
            let (pdn, cqn) = (number(u)?, number(u)?);
            let srqn = if u.ratio(1, 4)? { Some(number(u)?) } else { None };
            Request::CreateQp(CreateQp {
                chain: if u.ratio(1, 4)? { Some(chain(u)?) } else { None },
                pdn,
                kind: *u.choose(&[0, 1, 2, 2, 2, 3, 4, 9, 9, 10])?,
                send_cqn: cqn,
                receive_cqn: cqn,
                srqn,
                log2_sq_blocks: u.int_in_range(0..=17)?,
                log2_rq_entries: u.int_in_range(0..=17)?,
                log2_rq_stride: u.int_in_range(0..=4)?,
                cookie: u.arbitrary()?,
            })
        }
        16 => {
            let qpn = number(u)?;
            let first = if u.ratio(1, 4)? { Some(change(u)?) } else { None };
            Request::ModifyQp { qpn, first, attributes: change(u)? }
        }
        17 => Request::QueryQp { qpn: number(u)? },
        18 => Request::CreateSrq {
            pdn: number(u)?,
            log2_entries: u.int_in_range(0..=17)?,
            log2_stride: u.int_in_range(0..=4)?,
            cookie: u.arbitrary()?,
        },
        19 => Request::ModifySrq { srqn: number(u)?, limit: u.int_in_range(0..=70)? },
        20 => Request::QuerySrq { srqn: number(u)? },
        21 => Request::DestroySrq { srqn: number(u)? },
        22 => Request::QueryClock { context: number(u)? },
        23 => Request::CreateAh {
            pdn: number(u)?,
            address: AddressVector {
                sgid_index: u.int_in_range(0..=17)?,
                hop_limit: u.arbitrary()?,
                traffic_class: u.arbitrary()?,
                sl: u.arbitrary()?,
                flow_label: u.int_in_range(0..=1 << 20)?,
                dgid: u.arbitrary()?,
                static_rate: u.int_in_range(0..=26)?,
            },
        },
        24 => Request::DestroyAh { ah: number(u)? },
        34 => {
            let group = *u.choose(&[[0xff; 16], [0xfe; 16]])?;
            match u.arbitrary()? {
                true => Request::AttachMulticast { qpn: number(u)?, group },
                false => Request::DetachMulticast { qpn: number(u)?, group },
            }
        }
        25 => {
            Request::ModifyMr { mr: number(u)?, pdn: number(u)?, access: u.int_in_range(0..=0xff)? }
        }
        27 => Request::ResizeCq { cqn: number(u)?, log2_entries: u.int_in_range(0..=26)? },
        28 => Request::ReleaseCqRing { cqn: number(u)? },
        29 => Request::AllocDm {
            context: number(u)?,
            length: if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=9000)? },
            log2_alignment: u.int_in_range(0..=17)?,
        },
        30 => Request::CopyDm {
            dm: number(u)?,
            offset: u.int_in_range(0..=9000)?,
            length: if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=9000)? },
            to_card: u.arbitrary()?,
        },
        31 => Request::RegDmMr {
            pdn: number(u)?,
            dm: number(u)?,
            offset: u.int_in_range(0..=9000)?,
            length: u.int_in_range(0..=9000)?,
            access: u.int_in_range(0..=0xff)?,
        },
        32 if u.arbitrary()? => Request::AllocNullMr { pdn: number(u)? },
        32 => Request::FreeDm { dm: number(u)? },
        33 => {
            Request::ModerateCq { cqn: number(u)?, count: u.arbitrary()?, period: u.arbitrary()? }
        }
        26 => Request::MoveMr { mr: number(u)?, to: number(u)? },
        35 | 36 => any_xrc_request(u, number)?,
        _ => Request::DestroyQp { qpn: number(u)? },
    })
}

/// Any request about XRC; two files stand for domains, so that clients share them.
fn any_xrc_request<'a>(
    u: &mut Unstructured<'a>,
    number: impl Fn(&mut Unstructured<'a>) -> arbitrary::Result<u32>,
) -> arbitrary::Result<Request> {
    Ok(match u.int_in_range(0..=9)? {
        0 | 1 => Request::OpenXrcd {
            context: number(u)?,
            file: match u.int_in_range(0..=2)? {
                0 => None,
                inode => Some(FileId { device: 1, inode }),
            },
            creates: u.ratio(7, 8)?,
            exclusive: u.ratio(1, 8)?,
        },
        2 => Request::CloseXrcd { xrcd: number(u)? },
        3 => Request::CreateXrcSrq {
            xrcd: number(u)?,
            pdn: number(u)?,
            cqn: number(u)?,
            log2_entries: u.int_in_range(0..=17)?,
            log2_stride: u.int_in_range(0..=4)?,
            cookie: u.arbitrary()?,
        },
        4 | 5 => Request::CreateTarget { xrcd: number(u)?, cookie: u.arbitrary()? },
        6 => {
            let (xrcd, qpn, cookie) = (number(u)?, number(u)?, u.arbitrary()?);
            Request::OpenTarget { xrcd, qpn, cookie }
        }
        7 => {
            let attributes = Attributes {
                mask: AttributeMask::from_bits_retain(u.arbitrary()?),
                state: QpState(u.int_in_range(0..=7)?),
                ..Attributes::default()
            };
            Request::ModifyTarget { target: number(u)?, attributes: attributes.encode() }
        }
        8 => Request::QueryTarget { target: number(u)? },
        _ => Request::DestroyTarget { target: number(u)? },
    })
}
