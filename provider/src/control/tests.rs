use std::os::fd::AsRawFd as _;
use std::thread::JoinHandle;

use hostmem::fdpass::{Wait, receive, send};
use hostmem::memfd;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket,
};
use shim_abi::{CardInfo, Hello, Limits, PortInfo, Refusal, Reply, RingMemory};

use super::*;
use crate::limits::tests::limits;

/// A balboad that gives answers written down before.
pub(crate) struct Script {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) server: JoinHandle<Vec<Vec<u8>>>,
}

pub(crate) type Answer = (Vec<u8>, Vec<OwnedFd>);

/// Serves one client the answers in turn, then closes, and ends with the requests that it got.
pub(crate) fn script(answers: Vec<Answer>) -> Script {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(shim_abi::SOCKET_NAME);
    let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let listener = socket(kind.0, kind.1, kind.2, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let server = std::thread::spawn(move || {
        let client = crate::ffi::types::owned(accept(listener.as_raw_fd()).unwrap());
        let mut asked = Vec::new();
        for (answer, fds) in answers {
            let mut room = vec![0; shim_abi::MAX_MESSAGE];
            let received = receive(client.as_fd(), &mut room, Wait::AsSocket).unwrap();
            room.truncate(received.bytes);
            asked.push(room);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            send(client.as_fd(), &answer, &fds, Wait::AsSocket).unwrap();
        }
        asked
    });
    Script { directory, server }
}

pub(crate) fn greeting() -> Answer {
    (shim_abi::hello_frame(&Reply::Ok(Response::Done)), Vec::new())
}

pub(crate) fn answer(response: Response) -> Answer {
    (shim_abi::encode(&Reply::Ok(response)), Vec::new())
}

pub(crate) fn context(first: bool, fds: Vec<OwnedFd>) -> Answer {
    let port = PortInfo {
        link_up: true,
        max_mtu: 5,
        active_mtu: 5,
        mac: [2; 6],
        gids: vec![[1; 16]],
        vlans: vec![0],
        pkeys: vec![0xffff],
    };
    let (name, board) = ("balboa0".to_owned(), "test".to_owned());
    let firmware = "1".to_owned();
    let card = CardInfo { card: 0, name, node_guid: 7, firmware, board, port };
    let limits: Limits = limits();
    let info = ContextInfo {
        context: 5,
        card,
        limits,
        grant: Grant {
            page: 3,
            first,
            access: DoorbellAccess::Page { asleep: 0, liveness: 64, worked: 128 },
            state: 0,
        },
        rings: RingMemory { length: 8192, first },
    };
    (shim_abi::encode(&Reply::Ok(Response::Context(Box::new(info)))), fds)
}

/// The descriptors that come with the first context, in order.
fn granted() -> Vec<OwnedFd> {
    let (words, _writer) = memfd::create_read_only_for_others("words", 4096).unwrap();
    granted_with(words)
}

/// The same, with the card's page.
pub(crate) fn granted_with(words: OwnedFd) -> Vec<OwnedFd> {
    let event = EventFd::new().unwrap().into_fd();
    let (events, _theirs) = hostmem::fdpass::pair().unwrap();
    let page = memfd::create("page", 4096).unwrap();
    vec![events, page, event, words, memfd::create("rings", 8192).unwrap()]
}

fn errno<T>(result: Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

#[test]
fn a_client_greets_first_and_asks_then() {
    let script = script(vec![greeting(), answer(Response::Pd { pdn: 9 })]);
    let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
    let (response, fds) = connection.call(&Request::AllocPd { context: 1 }).unwrap();
    assert_eq!((response, fds.len()), (Response::Pd { pdn: 9 }, 0));
    let asked = script.server.join().unwrap();
    let hello = shim_abi::decode_hello::<Hello>(&asked[0]).unwrap();
    assert_eq!(hello.role, Role::Provider);
    assert_eq!(shim_abi::decode::<Request>(&asked[1]), Ok(Request::AllocPd { context: 1 }));
}

#[test]
fn no_daemon_another_version_and_a_refusal_each_have_their_errno() {
    let nowhere = tempfile::tempdir().unwrap();
    assert_eq!(errno(ControlConnection::open(nowhere.path(), 30)), libc::ENOENT);

    let mut other = shim_abi::hello_frame(&Reply::Ok(Response::Done));
    other[4] = 77;
    let newer = script(vec![(other, Vec::new())]);
    let error = ControlConnection::open(newer.directory.path(), 30).unwrap_err();
    assert!(error.to_string().contains("version 77"), "{error}");
    assert_eq!(error.errno(), libc::EPROTO);

    let refusal = Refusal { errno: libc::EPERM, reason: "not you".into() };
    let refusing = script(vec![(shim_abi::hello_frame(&Reply::Err(refusal)), Vec::new())]);
    let error = ControlConnection::open(refusing.directory.path(), 30).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.errno()), ("not you", libc::EPERM));
}

#[test]
fn an_answer_to_another_question_is_not_taken() {
    let script = script(vec![greeting(), answer(Response::Done)]);
    let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
    let asked = ask!(connection, Request::AllocPd { context: 1 }, Response::Pd { pdn } => pdn);
    assert_eq!(errno(asked), libc::EPROTO);
}

#[test]
fn the_end_of_balboad_ends_every_card_of_the_process() {
    let script = script(vec![greeting(), context(true, granted())]);
    let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
    let opened = connection.open_context(0).unwrap();
    assert_eq!(opened.rings.len(), 8192);
    script.server.join().unwrap();
    let gone = connection.call(&Request::AllocPd { context: 5 });
    assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
    assert!(opened.path.is_dead());
    assert!(matches!(connection.call(&Request::ListCards), Err(Error::Gone)));
}

#[test]
fn the_end_of_the_thread_that_serves_a_card_is_seen_without_asking_balboad() {
    let (words, writer) = memfd::create_read_only_for_others("words", 4096).unwrap();
    let card_thread = hostmem::Liveness::hold(Arc::new(writer), 64).unwrap();
    let script = script(vec![greeting(), context(true, granted_with(words))]);
    let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
    let opened = connection.open_context(0).unwrap();
    assert!(!opened.path.is_dead());
    drop(card_thread);
    assert!(opened.path.is_dead());
}

#[test]
fn later_contexts_use_what_came_with_the_first() {
    let (events, _theirs) = hostmem::fdpass::pair().unwrap();
    let script = script(vec![greeting(), context(true, granted()), context(false, vec![events])]);
    let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
    let first = connection.open_context(0).unwrap();
    let second = connection.open_context(0).unwrap();
    assert!(Arc::ptr_eq(&first.path, &second.path) && Arc::ptr_eq(&first.rings, &second.rings));
}

#[test]
fn a_context_with_descriptors_missing_is_refused() {
    for count in 0..5 {
        let mut fds = granted();
        fds.truncate(count);
        let script = script(vec![greeting(), context(true, fds), answer(Response::Done)]);
        let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
        assert_eq!(errno(connection.open_context(0)), libc::EPROTO, "{count} descriptors");
        let asked = script.server.join().unwrap();
        let closed = shim_abi::decode::<Request>(asked.last().unwrap());
        assert_eq!(closed, Ok(Request::CloseContext { context: 5 }), "{count} descriptors");
    }
    let (events, _theirs) = hostmem::fdpass::pair().unwrap();
    let script = script(vec![greeting(), context(false, vec![events])]);
    let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
    assert_eq!(errno(connection.open_context(0)), libc::EPROTO, "a grant that never came");
}

#[test]
fn a_call_without_an_answer_gives_balboad_up_until_it_has_ended_this_client() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(shim_abi::SOCKET_NAME);
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let (greeted, answers) = std::sync::mpsc::channel();
    let (words, writer) = memfd::create_read_only_for_others("words", 4096).unwrap();
    let _card_thread = hostmem::Liveness::hold(Arc::new(writer), 64).unwrap();
    let server = std::thread::spawn(move || {
        let client = crate::ffi::types::owned(accept(listener.as_raw_fd()).unwrap());
        let mut room = vec![0; shim_abi::MAX_MESSAGE];
        for (answer, fds) in [greeting(), context(true, granted_with(words))] {
            receive(client.as_fd(), &mut room, Wait::AsSocket).unwrap();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            send(client.as_fd(), &answer, &fds, Wait::AsSocket).unwrap();
        }
        greeted.send(client).unwrap();
    });
    let connection = ControlConnection::open(directory.path(), 1).unwrap();
    let opened = connection.open_context(0).unwrap();
    server.join().unwrap();
    let balboad = answers.recv().unwrap();
    let silent = connection.call(&Request::AllocPd { context: 5 }).unwrap_err();
    assert_eq!(silent.errno(), libc::ETIMEDOUT);
    assert!(silent.to_string().contains("has not answered making a PD within 1 s"), "{silent}");
    // A late answer belongs to no question.
    send(balboad.as_fd(), &answer(Response::Pd { pdn: 9 }).0, &[], Wait::AsSocket).unwrap();
    for _ in 0..2 {
        let refused = connection.call(&Request::QueryPort { context: 5 }).unwrap_err();
        assert!(matches!(refused, Error::GivenUp), "{refused}");
        assert!(!opened.path.is_dead(), "its card may still move data");
    }
    // It reads the request, and then that nothing more will come.
    let mut room = [0; 64];
    assert!(receive(balboad.as_fd(), &mut room, Wait::AsSocket).unwrap().bytes > 0);
    assert_eq!(receive(balboad.as_fd(), &mut room, Wait::AsSocket).unwrap().bytes, 0);
    drop(balboad);
    assert!(matches!(connection.call(&Request::ListCards), Err(Error::Gone)));
    assert!(opened.path.is_dead());
}
