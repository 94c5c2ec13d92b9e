//! Tests of the datagram port, with real sockets.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::epoll::EpollTimeout;

use super::*;

fn frame(bytes: &[u8]) -> Frame {
    Frame::from_bytes(bytes).unwrap()
}

fn open(local: &Path, remote: &Path) -> UnixPort {
    UnixPort::open(local, remote, FramePool::new(16)).unwrap()
}

fn received(port: &mut UnixPort) -> Vec<Vec<u8>> {
    let mut into = VecDeque::new();
    port.receive(0, &mut into, usize::MAX);
    into.iter().map(|frame| frame.as_slice().to_vec()).collect()
}

fn counter(port: &UnixPort, name: &str) -> u64 {
    port.counters().iter().find(|(found, _)| *found == name).unwrap().1
}

fn readable(port: &UnixPort) -> bool {
    let mut fds = [PollFd::new(port.fd().unwrap(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

struct Pair {
    a: UnixPort,
    b: UnixPort,
    directory: tempfile::TempDir,
}

fn pair() -> Pair {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("a"), directory.path().join("b"));
    Pair { a: open(&one, &two), b: open(&two, &one), directory }
}

#[test]
fn frames_arrive_whole_and_in_order() {
    let Pair { mut a, mut b, directory: _directory } = pair();
    let frames = [vec![1; MIN_FRAME], vec![2; 60], vec![3; FRAME_CAPACITY]];
    let mut burst: VecDeque<Frame> = frames.iter().map(|bytes| frame(bytes)).collect();
    assert!(!readable(&b));
    a.send(0, &mut burst);
    assert!(burst.is_empty());
    assert!(readable(&b));
    let mut into = VecDeque::new();
    b.receive(0, &mut into, 1);
    assert_eq!(into.len(), 1);
    b.receive(0, &mut into, 64);
    assert!(into.iter().zip(&frames).all(|(frame, bytes)| frame.as_slice() == bytes));
    assert_eq!(into.len(), 3);
    assert!(!readable(&b));
    b.send(0, &mut into);
    assert_eq!(received(&mut a), frames);
    assert_eq!((counter(&a, "port_frames_sent"), counter(&a, "port_frames_received")), (3, 3));
}

fn path_of_bursts(path: &Path) -> PathBuf {
    path.with_extension("bursts")
}

fn frames_of(count: usize, length: usize) -> VecDeque<Frame> {
    (0..count).map(|number| frame(&vec![number as u8; length])).collect()
}

#[test]
fn a_burst_leaves_in_few_datagrams_and_arrives_as_it_was() {
    for (length, datagrams) in [(60, 2), (FRAME_CAPACITY, 3)] {
        let Pair { mut a, mut b, directory: _directory } = pair();
        let mut burst = frames_of(40, length);
        let sent: Vec<_> = burst.iter().map(|frame| frame.as_slice().to_vec()).collect();
        a.send(0, &mut burst);
        assert!(burst.is_empty());
        assert_eq!(
            (counter(&a, "port_frames_sent"), counter(&a, "port_messages_sent")),
            (40, datagrams)
        );
        let mut into = VecDeque::new();
        for (most, all) in [(1, 1), (2, 3), (20, 23), (200, 40)] {
            b.receive(7, &mut into, most);
            assert_eq!(into.len(), all);
            // The rest of a datagram is in no socket, so the thread comes back for it by itself.
            assert_eq!(b.next_timeout().is_some(), !b.arrived.is_empty());
        }
        assert!(into.iter().zip(&sent).all(|(frame, bytes)| frame.as_slice() == bytes));
        assert_eq!(counter(&b, "port_frames_received"), 40);
        assert!(!readable(&b));
    }
}

#[test]
fn a_peer_is_sent_what_it_takes_whatever_it_was_before() {
    let Pair { mut a, b, directory } = pair();
    let two = directory.path().join("b");
    a.send(0, &mut frames_of(4, 60));
    assert_eq!(counter(&a, "port_messages_sent"), 1);
    drop(b);
    assert!(!path_of_bursts(&two).exists());
    // As QEMU's, or an older card's.
    let plain = UnixDatagram::bind(&two).unwrap();
    a.send(0, &mut frames_of(4, 60));
    assert_eq!(counter(&a, "port_messages_sent"), 5);
    for number in 0..4 {
        let mut bytes = [0; 100];
        assert_eq!(plain.recv(&mut bytes).unwrap(), 60);
        assert_eq!(bytes[..60], [number; 60]);
    }
    drop(plain);
    fs::remove_file(&two).unwrap();
    let mut b = open(&two, &directory.path().join("a"));
    let second = 1_000_000_000;
    a.send(second, &mut frames_of(4, 60));
    assert_eq!((counter(&a, "port_messages_sent"), received(&mut b).len()), (6, 4));
    // The socket of a program that was killed is there, and nobody's.
    drop(b);
    drop(UnixDatagram::bind(path_of_bursts(&two)).unwrap());
    let plain = UnixDatagram::bind(&two).unwrap();
    a.send(2 * second, &mut frames_of(2, 60));
    assert_eq!(counter(&a, "port_messages_sent"), 8);
    assert!((0..2).all(|_| plain.recv(&mut [0; 60]).unwrap() == 60));
}

#[test]
fn a_port_without_a_second_socket_takes_frames_one_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("a"), directory.path().join("b"));
    fs::write(path_of_bursts(&one), "somebody's").unwrap();
    let (mut a, mut b) = (open(&one, &two), open(&two, &one));
    assert!(a.bursts.is_none() && b.bursts.is_some());
    b.send(0, &mut frames_of(3, 60));
    assert_eq!((counter(&b, "port_messages_sent"), received(&mut a).len()), (3, 3));
    a.send(0, &mut frames_of(3, 60));
    assert_eq!((counter(&a, "port_messages_sent"), received(&mut b).len()), (3, 3));
    drop((a, b));
    assert_eq!(fs::read(path_of_bursts(&one)).unwrap(), b"somebody's");
}

#[test]
fn datagrams_of_many_frames_that_are_none_are_dropped_and_counted() {
    let Pair { a: _a, mut b, directory } = pair();
    let raw = UnixDatagram::unbound().unwrap();
    let to = path_of_bursts(&directory.path().join("b"));
    let datagram = |words: &[u16], bytes: usize| {
        let mut datagram: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        datagram.resize(64, 0);
        datagram.resize(64 + bytes, 7);
        datagram
    };
    let capacity = FRAME_CAPACITY as u16;
    let none = [
        vec![],
        vec![1; 63],
        datagram(&[], 0),
        datagram(&[0, 60], 60),
        datagram(&[32], 60),
        datagram(&[u16::MAX; 32], 60),
        datagram(&[1, 60], 59),
        datagram(&[1, 60], 61),
        datagram(&[1, 60], 0),
        datagram(&[2, 60], 60),
        datagram(&[1, 60, 60], 120),
        datagram(&[1, MIN_FRAME as u16 - 1], MIN_FRAME - 1),
        datagram(&[1, capacity + 1], FRAME_CAPACITY + 1),
    ];
    for datagram in &none {
        raw.send_to(datagram, &to).unwrap();
        assert_eq!(received(&mut b), [[0; 0]; 0], "{:?}", datagram.get(..8));
    }
    assert_eq!(counter(&b, "port_frames_bad_length"), none.len() as u64);
    raw.send_to(&datagram(&[2, MIN_FRAME as u16, capacity], MIN_FRAME + FRAME_CAPACITY), &to)
        .unwrap();
    assert_eq!(received(&mut b), [vec![7; MIN_FRAME], vec![7; FRAME_CAPACITY]]);
}

#[test]
fn frames_to_an_absent_peer_are_dropped_and_counted_until_it_comes() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("a"), directory.path().join("b"));
    let mut a = open(&one, &two);
    let mut burst = VecDeque::from([frame(&[1; 60]), frame(&[2; 60])]);
    a.send(0, &mut burst);
    assert_eq!((burst.len(), counter(&a, "port_frames_no_peer")), (0, 2));

    for round in 1..=2 {
        // The second peer binds the path anew, as a program that was started again does.
        let mut b = open(&two, &one);
        a.send(0, &mut VecDeque::from([frame(&[round; 60])]));
        assert_eq!(received(&mut b), [[round; 60]]);
        b.send(0, &mut VecDeque::from([frame(&[9; 60])]));
        assert_eq!(received(&mut a), [[9; 60]]);
        drop(b);
        assert!(!two.exists());
        a.send(0, &mut VecDeque::from([frame(&[3; 60])]));
        assert_eq!(counter(&a, "port_frames_no_peer"), 2 + u64::from(round));
    }
}

/// Sends until the peer's queue is full; returns the number of frames that it took and the rest.
fn fill(port: &mut UnixPort, length: usize) -> (usize, VecDeque<Frame>) {
    let offered = 2000;
    let mut burst: VecDeque<Frame> = (0..offered).map(|_| frame(&vec![7; length])).collect();
    port.send(0, &mut burst);
    assert!(!burst.is_empty(), "the kernel queued all {offered} frames");
    (offered - burst.len(), burst)
}

#[test]
fn a_full_peer_keeps_frames_with_their_sender_and_tells_when_it_has_room() {
    for length in [60, FRAME_CAPACITY] {
        let Pair { mut a, mut b, directory: _directory } = pair();
        // The card thread waits like this: edge-triggered, on the port's one descriptor.
        let thread = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        thread.add(a.fd().unwrap(), EpollEvent::new(flags, 0)).unwrap();
        let woken = |wait: Duration| {
            let timeout = EpollTimeout::try_from(wait).unwrap();
            thread.wait(&mut [EpollEvent::empty()], timeout).unwrap() == 1
        };

        let (mut taken, mut burst) = fill(&mut a, length);
        let total = taken + burst.len();
        assert_eq!(counter(&a, "port_frames_held"), 1);
        assert_eq!(a.room(), 1);
        assert!(!readable(&a), "a port that waits must not spin");
        let mut arrived = 0;
        while arrived < total {
            let now = received(&mut b).len();
            assert_eq!(now, taken);
            arrived += now;
            if burst.is_empty() {
                break;
            }
            assert!(woken(Duration::from_secs(20)), "not told of room, {length} bytes");
            let before = burst.len();
            a.send(0, &mut burst);
            taken = before - burst.len();
            assert!(taken > 0, "told of room that is not there");
        }
        assert_eq!(arrived, total);
        assert_eq!((a.room(), a.next_timeout()), (ROOM, None));
        assert!(!readable(&a));
        // Frames wake it as before.
        b.send(0, &mut VecDeque::from([frame(&[1; 60])]));
        assert!(woken(Duration::from_secs(20)));
    }
}

#[test]
fn a_peer_that_vanishes_while_full_does_not_hold_the_sender_for_ever() {
    let Pair { mut a, b, directory: _directory } = pair();
    let (_, mut burst) = fill(&mut a, 60);
    drop(b);
    assert!(readable(&a));
    a.send(0, &mut burst);
    assert!(burst.is_empty());
    assert!(counter(&a, "port_frames_no_peer") > 0);
    assert_eq!(a.room(), ROOM);
    assert!(!readable(&a));
}

#[test]
fn a_full_send_buffer_keeps_frames_with_their_sender_and_tells_when_it_has_room() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("a"), directory.path().join("b"));
    let mut a = open(&one, &two);
    let peer = UnixDatagram::bind(&two).unwrap();
    // The queue of a peer that is connected to us has no limit but our own buffer.
    peer.connect(&one).unwrap();
    peer.set_nonblocking(true).unwrap();
    let (mut taken, mut burst) = fill(&mut a, FRAME_CAPACITY);
    while !burst.is_empty() {
        assert!(!readable(&a), "a port that waits must not spin");
        for _ in 0..taken {
            assert_eq!(peer.recv(&mut [0; FRAME_CAPACITY]).unwrap(), FRAME_CAPACITY);
        }
        assert!(readable(&a), "not told of room");
        let before = burst.len();
        a.send(0, &mut burst);
        taken = before - burst.len();
        assert!(taken > 0, "told of room that is not there");
    }
    assert!(!readable(&a));

    // Connected to a third, it refuses our frames.
    let third = directory.path().join("c");
    let _third = UnixDatagram::bind(&third).unwrap();
    peer.connect(&third).unwrap();
    a.send(0, &mut VecDeque::from([frame(&[1; 60])]));
    assert_eq!(counter(&a, "port_frames_no_peer"), 1);
}

#[test]
fn datagrams_of_a_bad_length_are_dropped_and_counted() {
    let Pair { mut a, mut b, directory: _directory } = pair();
    let raw = UnixDatagram::unbound().unwrap();
    let to = b.socket.path().to_owned();
    for length in [0, MIN_FRAME - 1, FRAME_CAPACITY + 1, 60_000, 60] {
        raw.send_to(&vec![5; length], &to).unwrap();
    }
    assert_eq!(received(&mut b), [[5; 60]]);
    assert_eq!(counter(&b, "port_frames_bad_length"), 4);
    a.send(0, &mut VecDeque::from([frame(&[1; MIN_FRAME - 1]), frame(&[1; 14])]));
    assert_eq!((counter(&a, "port_frames_bad_length"), counter(&a, "port_frames_sent")), (1, 1));
}

#[test]
fn what_another_user_bound_gets_no_frame_and_one_line_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let (one, two) = (directory.path().join("a"), directory.path().join("b"));
    let stranger = UnixDatagram::bind(&two).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let me = fs::metadata(&two).unwrap().uid();
    let remote = || Remote::trusting(&two, [me + 1; 2]);
    let refused = UnixPort::open_to(&one, remote(), FramePool::new(1)).err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains(&format!("belongs to user {me}")), "{refused}");
    drop(stranger);
    fs::remove_file(&two).unwrap();

    // It comes later, where the card's peer was or was to be.
    let mut port = UnixPort::open_to(&one, remote(), FramePool::new(1)).unwrap();
    let stranger = UnixDatagram::bind(&two).unwrap();
    stranger.set_nonblocking(true).unwrap();
    port.send(0, &mut VecDeque::from([frame(&[1; 60]), frame(&[2; 60])]));
    assert!(port.refused);
    assert_eq!(stranger.recv(&mut [0; 60]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let counted = ["port_frames_no_peer", "port_frames_sent"].map(|name| counter(&port, name));
    assert_eq!(counted, [2, 0]);
}

#[test]
fn descriptors_do_not_come_with_frames_where_the_kernel_can_refuse_them() {
    let Pair { mut a, b: _b, directory } = pair();
    let sender = UnixDatagram::unbound().unwrap();
    sender.connect(directory.path().join("a")).unwrap();
    let refuses = fdpass::refuse_descriptors(sender.as_fd()).unwrap();
    let sent = fdpass::send(sender.as_fd(), &[1; 60], &[sender.as_fd()], fdpass::Wait::Never);
    assert_eq!(sent.is_err(), refuses);
    assert_eq!(received(&mut a).len(), usize::from(!refuses));
}

#[test]
fn a_path_that_is_too_long_is_refused() {
    let long = PathBuf::from("/tmp").join("x".repeat(200));
    let refused = UnixPort::open(&long, Path::new("/r"), FramePool::new(1)).err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    let refused = UnixPort::open(Path::new("/l"), &long, FramePool::new(1)).err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}
