//! Clients that would have balboad wait for them.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};

use hostmem::fdpass::{Wait, send};
use nix::libc::linger;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use shim_abi::{Request, Response, Role};

use crate::common::{Balboad, Client};

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
fn descriptors_whose_closing_waits_hold_up_nobody() {
    let mut balboad = Balboad::start(&["--soft", "1"]);
    let mut far_ends = Vec::new();
    let pid = Pid::from_raw(i32::try_from(balboad.child.id()).unwrap());
    // Stopped meanwhile, so that nobody else is the last to have it.
    let mut last_of_its_kind = |socket: &Client, before: &[u8], message: &[u8]| {
        let (near, far) = lingering();
        far_ends.push(far);
        kill(pid, Signal::SIGSTOP).unwrap();
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        if !before.is_empty() {
            send(socket.as_fd(), before, &[], Wait::Never).unwrap();
        }
        send(socket.as_fd(), message, &[near.as_fd()], Wait::Never).unwrap();
        drop(near);
        kill(pid, Signal::SIGCONT).unwrap();
    };
    let list = shim_abi::encode(&Request::ListCards);

    // In place of a greeting, with a request, and behind one that ends its client unread.
    let stranger = Client::dial(&balboad.dir);
    last_of_its_kind(&stranger, b"", b"x");
    balboad.status();
    let client = Client::provider(&balboad.dir);
    last_of_its_kind(&client, b"", &list);
    balboad.status();
    client.await_end();
    let client = Client::provider(&balboad.dir);
    last_of_its_kind(&client, b"\xff", &list);
    balboad.status();
    client.await_end();

    // Where a client has nothing to say.
    let client = Client::provider(&balboad.dir);
    let (Response::Context(context), fds) = client.ask(Request::OpenContext { card: 0 }) else {
        panic!()
    };
    let context = context.context;
    let (Response::Channel { .. }, channel) = client.ask(Request::CreateChannel { context }) else {
        panic!()
    };
    for socket in [&fds[0], &channel[0]] {
        let refused = send(socket.as_fd(), b"x", &[socket.as_fd()], Wait::Never).unwrap_err();
        assert_eq!(refused.errno(), Some(nix::errno::Errno::EPIPE));
    }
    drop((client, fds, channel));
    balboad.await_status("the end of all clients", |status| {
        status["clients"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(Client::connect(&balboad.dir, Role::Tool).map(drop), Ok(()));
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
        let client = Client::provider(&balboad.dir);
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
