//! Clients that would have balboad wait for them.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;

use hostmem::Errno;
use hostmem::fdpass::{Wait, pair, receive, refuse_descriptors, send};
use nix::libc::linger;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{SockType, setsockopt, sockopt};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use shim_abi::{Hello, Request, Response, Role, SOCKET_NAME};

use crate::common::{Balboad, RawClient};
use crate::service::{activated, listening};

/// A connection whose last holder waits a day in closing it, and its far end, which reads nothing.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    let full = loop {
        if let Err(error) = near.write(&[0; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    let for_a_day = linger { l_onoff: 1, l_linger: 86_400 };
    setsockopt(&near, sockopt::Linger, &for_a_day).unwrap();
    (near.into(), far)
}

#[test]
fn descriptors_that_came_before_balboad_hold_up_nobody() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
    // A kernel refuses them only on a socket with that option.
    let listener = listening(&dir.join(SOCKET_NAME), SockType::SeqPacket);
    let list = shim_abi::encode(&Request::ListCards);
    let hello = shim_abi::hello_frame(&Hello { build: "test".into(), role: Role::Tool });
    let mut far_ends = Vec::new();
    let messages = [(&b""[..], &b"x"[..]), (&hello[..], &list[..]), (&b"\xff"[..], &list[..])];
    let strangers = messages.map(|(before, message)| {
        let (near, far) = lingering();
        far_ends.push(far);
        let stranger = RawClient::dial(&dir);
        if !before.is_empty() {
            send(stranger.as_fd(), before, &[], Wait::Never).unwrap();
        }
        send(stranger.as_fd(), message, &[near.as_fd()], Wait::Never).unwrap();
        stranger
    });
    let mut balboad = Balboad::start_as(activated(&dir, listener, ""), &dir);
    for stranger in strangers {
        // The requests before are answered.
        let mut room = [0; 4096];
        let mut hear = || receive(stranger.as_fd(), &mut room, Wait::AsSocket);
        while hear().is_ok_and(|heard| heard.bytes > 0) {}
        balboad.status();
    }
    assert!(balboad.signal(Signal::SIGTERM).success());
}

#[test]
fn descriptors_whose_closing_waits_hold_up_nobody() {
    let mut balboad = Balboad::start(&["--soft", "1"]);
    let (_, receiver) = pair().unwrap();
    let refuses = refuse_descriptors(receiver.as_fd()).unwrap();
    let mut far_ends = Vec::new();
    let pid = Pid::from_raw(i32::try_from(balboad.child.id()).unwrap());
    // Stopped meanwhile, so that no other process is the last to have it.
    let mut last_of_its_kind = |client: RawClient, before: &[u8], message: &[u8]| {
        let (near, far) = lingering();
        kill(pid, Signal::SIGSTOP).unwrap();
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        if !before.is_empty() {
            send(client.as_fd(), before, &[], Wait::Never).unwrap();
        }
        let sent = send(client.as_fd(), message, &[near.as_fd()], Wait::Never);
        let errno = sent.err().and_then(|error| error.errno());
        assert_eq!(errno, refuses.then_some(Errno::EPERM));
        // If no other process has it, this one closes it, which waits for nothing once its far end is gone.
        far_ends.extend((!refuses).then_some(far));
        drop(near);
        kill(pid, Signal::SIGCONT).unwrap();
        client
    };
    let list = shim_abi::encode(&Request::ListCards);

    // In place of a greeting, with a request, and behind one that ends its client unread.
    let stranger = last_of_its_kind(RawClient::dial(&balboad.dir), b"", b"x");
    balboad.status();
    drop(stranger);
    let client = last_of_its_kind(RawClient::provider(&balboad.dir), b"", &list);
    balboad.status();
    if refuses {
        assert!(matches!(client.ask(Request::ListCards).0, Response::Cards(_)));
    } else {
        client.await_end();
    }
    drop(client);
    let client = last_of_its_kind(RawClient::provider(&balboad.dir), b"\xff", &list);
    balboad.status();
    client.await_end();

    // Where a client has nothing to say.
    let client = RawClient::provider(&balboad.dir);
    let (Response::Context(context), fds) = client.ask(Request::OpenContext { card: 0 }) else {
        panic!()
    };
    let context = context.context;
    let (Response::Channel { .. }, channel) = client.ask(Request::CreateChannel { context }) else {
        panic!()
    };
    for socket in [&fds[0], &channel[0]] {
        let refused = send(socket.as_fd(), b"x", &[socket.as_fd()], Wait::Never).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::EPIPE));
    }
    drop((client, fds, channel));
    balboad.await_status("the end of all clients", |status| {
        status["clients"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(RawClient::connect(&balboad.dir, Role::Tool).map(drop), Ok(()));
    assert!(balboad.signal(Signal::SIGTERM).success());
}

#[test]
fn who_is_refused_without_end_does_not_fill_the_log() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("log");
    let log = File::create(&path).unwrap();
    let mut balboad = Balboad::start_logging(&root.path().join("state"), &["--soft", "1"], log);
    // A limit for each connection would be none.
    for _ in 0..30 {
        let client = RawClient::provider(&balboad.dir);
        for mr in 0..100 {
            client.try_ask(&Request::DeregMr { mr }).0.unwrap_err();
        }
    }
    assert!(balboad.signal(Signal::SIGTERM).success());
    let log = fs::read_to_string(&path).unwrap();
    let refusals = log.lines().filter(|line| line.contains("was refused"));
    let (told, single): (Vec<_>, Vec<_>) = refusals.partition(|line| line.contains("more like it"));
    assert!((20..100).contains(&single.len()), "{log}");
    let left_out = told.iter().map(|line| {
        let (_, text) = line.split_once("] ").unwrap();
        text.split_once(" more like it").unwrap().0.parse::<usize>().unwrap()
    });
    assert_eq!(left_out.sum::<usize>() + single.len(), 3000, "{log}");
    assert!(log.lines().count() < 200, "{log}");
}
