//! The socket that clients connect to.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};

use crate::Error;

/// A listening Unix stream socket that only its owner can connect to.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the bound path, so that only our own is removed.
    identity: (u64, u64),
}

impl Listener {
    /// Listens at a path; a socket there that nobody listens to any more is replaced.
    pub(crate) fn new(path: PathBuf) -> Result<Self, Error> {
        match Self::open(&path) {
            Ok((socket, identity)) => Ok(Self { socket, path, identity }),
            Err(source) => Err(Error::Socket { path, source }),
        }
    }

    fn open(path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
        let socket = match bound(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                bound(path)?
            }
            outcome => outcome?,
        };
        // Nobody can connect before there is somebody who listens.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listen(&socket, Backlog::new(8)?)?;
        let found = fs::symlink_metadata(path)?;
        Ok((socket.into(), (found.dev(), found.ino())))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The connection of a client, if one waits.
    pub(crate) fn accept(&self) -> Option<OwnedFd> {
        let client = match self.socket.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => {
                log::warn!("a client cannot be let in: {error}");
                return None;
            }
        };
        match client.set_nonblocking(true) {
            Ok(()) => Some(client.into()),
            Err(error) => {
                log::warn!("a client cannot be let in: {error}");
                None
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if ours {
            if let Err(error) = fs::remove_file(&self.path) {
                log::warn!("{}: cannot remove the socket: {error}", self.path.display());
            }
        }
    }
}

fn bound(path: &Path) -> io::Result<OwnedFd> {
    let address = UnixAddr::new(path).map_err(|_| {
        let message = "the path is longer than the 107 bytes of a socket address";
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

/// Whether there is a socket at a path that nobody listens to.
fn is_stale(path: &Path) -> bool {
    // The kernel refuses a connection to anything that is not a socket just as it does to a socket
    // that is closed.
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && tried(path) == Err(Errno::ECONNREFUSED)
}

/// Tries to connect, without waiting for who accepts no more.
fn tried(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_whose_owner_accepts_nobody_is_left_alone_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("busy");
        let busy = bound(&path).unwrap();
        listen(&busy, Backlog::new(0).unwrap()).unwrap();
        while tried(&path) != Err(Errno::EAGAIN) {}
        assert!(matches!(Listener::new(path.clone()), Err(Error::Socket { .. })));
        assert!(path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_living_one_or_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("card.sock");
        let first = Listener::new(path.clone()).unwrap();
        assert!(matches!(Listener::new(path.clone()), Err(Error::Socket { .. })));
        UnixStream::connect(&path).unwrap();
        assert!(first.accept().is_some() && first.accept().is_some() && first.accept().is_none());
        // As a killed process leaves it.
        std::mem::forget(first);
        drop(bound(&dir.path().join("stale")).unwrap());
        Listener::new(dir.path().join("stale")).unwrap();
        fs::write(dir.path().join("file"), b"").unwrap();
        assert!(matches!(Listener::new(dir.path().join("file")), Err(Error::Socket { .. })));
        assert!(dir.path().join("file").exists());
    }

    #[test]
    fn only_the_owner_can_connect_and_the_socket_goes_with_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("card.sock");
        let listener = Listener::new(path.clone()).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }
}
