use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};

use nix::sys::socket::{Backlog, listen, sendto};

use super::*;

const KINDS: [SockType; 2] = [SockType::Datagram, SockType::Stream];

/// A directory that every user may put files into, as the temporary folder.
fn sticky() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    directory
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn in_use(outcome: io::Result<Bound>) -> bool {
    outcome.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

#[test]
fn a_socket_is_its_owners_whatever_the_umask_and_its_path_goes_with_it() {
    let directory = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let path = directory.path().join("socket");
        let socket = Bound::new(&path, kind).unwrap();
        // Group and others have no right to execute it either, which no umask would have taken.
        assert_eq!(mode(&path), 0o600);
        drop(socket);
        assert!(!path.exists());
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_living_one_or_anything_else_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixDatagram::bind(&path).unwrap());
    assert!(path.exists(), "a socket closed by its program leaves its file");
    let living = Bound::new(&path, SockType::Datagram).unwrap();
    assert!(in_use(Bound::new(&path, SockType::Datagram)));
    drop(living);
    drop(UnixListener::bind(&path).unwrap());
    drop(Bound::new(&path, SockType::Stream).unwrap());
    assert!(!path.exists());

    fs::write(&path, "precious").unwrap();
    let link = directory.path().join("link");
    drop(UnixDatagram::bind(directory.path().join("stale")).unwrap());
    symlink("stale", &link).unwrap();
    for kind in KINDS {
        assert!(in_use(Bound::new(&path, kind)));
        assert!(in_use(Bound::new(&link, kind)));
    }
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert!(link.is_symlink());
}

#[test]
fn a_socket_whose_owner_accepts_nobody_is_left_alone_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("busy");
    let busy = bound(&path, SockType::Stream).unwrap();
    listen(&busy, Backlog::new(0).unwrap()).unwrap();
    while tried(&path, SockType::Stream) != Err(Errno::EAGAIN) {}
    assert!(in_use(Bound::new(&path, SockType::Stream)));
    assert!(path.exists());
}

#[test]
fn only_the_own_path_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let first = Bound::new(&path, SockType::Datagram).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = Bound::new(&path, SockType::Datagram).unwrap();
    drop(first);
    assert!(path.exists());
}

/// Whether a socket that was bound to a path gets datagrams to the remote.
fn reaches(remote: &mut Remote, socket: &UnixDatagram) -> bool {
    let from = UnixDatagram::unbound().unwrap();
    let Ok(address) = remote.address() else { return false };
    let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
    socket.set_nonblocking(true).unwrap();
    sendto(from.as_raw_fd(), b"x", &address, flags).is_ok() && socket.recv(&mut [0]).is_ok()
}

#[test]
fn in_a_sticky_directory_it_is_the_socket_that_was_looked_at_that_is_sent_to() {
    for directory in [sticky(), tempfile::tempdir().unwrap()] {
        let path = directory.path().join("peer");
        let mut remote = Remote::new(&path).unwrap();
        assert!(remote.private.is_none() || mode(directory.path()) != 0o777);
        for _ in 0..2 {
            // The second one binds the path anew, as a program that was started again does.
            let peer = UnixDatagram::bind(&path).unwrap();
            assert!(reaches(&mut remote, &peer));
            fs::remove_file(&path).unwrap();
            assert!(!reaches(&mut remote, &peer));
        }
    }
    // Between the look and the frame anything may happen to the path.
    let directory = sticky();
    let path = directory.path().join("peer");
    let mut remote = Remote::new(&path).unwrap();
    let own = UnixDatagram::bind(&path).unwrap();
    let address = remote.address().unwrap();
    fs::rename(&path, directory.path().join("away")).unwrap();
    let other = UnixDatagram::bind(&path).unwrap();
    other.set_nonblocking(true).unwrap();
    let from = UnixDatagram::unbound().unwrap();
    let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
    assert_eq!(sendto(from.as_raw_fd(), b"x", &address, flags), Ok(1));
    assert_eq!(own.recv(&mut [0]).unwrap(), 1);
    assert!(other.recv(&mut [0]).is_err());
}

#[test]
fn what_is_another_users_or_no_socket_is_not_sent_to() {
    let directory = sticky();
    let path = directory.path().join("peer");
    let _socket = UnixDatagram::bind(&path).unwrap();
    let owner = fs::metadata(&path).unwrap().uid();
    let user = owner.wrapping_add(1);
    let mut remote = Remote::trusting(&path, [user; 2]);
    let why = remote.address().unwrap_err().to_string();
    let wanted = format!("belongs to user {owner}, not to you (user {user})");
    assert!(why.contains(&wanted) && why.contains("directory of your own"), "{why}");

    let mut remote = Remote::new(&path).unwrap();
    assert!(remote.address().is_ok());
    fs::rename(&path, directory.path().join("away")).unwrap();
    assert!(matches!(remote.address(), Err(Absent::Missing(_))));
    // Neither is a link followed.
    symlink("away", &path).unwrap();
    assert!(matches!(remote.address(), Err(Absent::NoSocket(_))));
}
