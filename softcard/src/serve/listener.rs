//! The socket that clients connect to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use nix::sys::socket::{Backlog, SockType, listen};

use crate::Error;
use crate::socket::Bound;

/// A listening Unix stream socket that only its owner can connect to.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    // Its path goes with it.
    _path: Bound,
}

impl Listener {
    /// Listens at a path; a socket of our own there without a listener is replaced.
    pub(crate) fn new(path: PathBuf) -> Result<Self, Error> {
        let listening = || -> io::Result<Self> {
            let bound = Bound::new(&path, SockType::Stream)?;
            listen(&bound, Backlog::new(8)?)?;
            let socket = bound.as_fd().try_clone_to_owned()?.into();
            Ok(Self { socket, _path: bound })
        };
        listening().map_err(|source| Error::Socket { path, source })
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn clients_are_let_in_one_by_one_and_no_second_listener_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("card.sock");
        let first = Listener::new(path.clone()).unwrap();
        let _clients = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
        assert!(first.accept().is_some() && first.accept().is_some() && first.accept().is_none());
        assert!(matches!(Listener::new(path.clone()), Err(Error::Socket { .. })));
        drop(first);
        assert!(!path.exists());
    }
}
