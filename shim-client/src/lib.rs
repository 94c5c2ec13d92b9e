//! A client's end of balboad's socket: connects, greets, asks, all within a limit of time.
//!
//! Each client decides itself how it reacts to a silent or absent balboad, and how it reports that.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Instant;

use hostmem::HandOver;
use hostmem::fdpass::{Received, Wait, receive, send};
use hostmem::process::peer_credentials;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, setsockopt, shutdown, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::{Pid, geteuid};
use shim_abi::{
    DecodeError, Hello, MAX_MESSAGE, Refusal, Reply, Request, Response, Role, SOCKET_NAME,
};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket cannot be made or reached; EAGAIN where balboad's queue of connections stayed full.
    #[error("cannot {what} balboad's socket: {errno}")]
    Socket {
        /// The attempt, to stand before the socket's path.
        what: &'static str,
        /// Why not.
        errno: Errno,
    },
    /// Another user serves the socket, and neither is it root: a user who may write to a shared folder
    /// could pose as balboad.
    #[error("balboad's socket is served by uid {uid}")]
    Foreign {
        /// That user.
        uid: u32,
    },
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// balboad did not take the question, or did not answer it, within the limit.
    #[error("balboad has not answered in time")]
    Silent,
    /// balboad has closed the connection.
    #[error("balboad has closed the connection")]
    Gone,
    /// The host does not pass the messages on, or the received one is too large.
    #[error(transparent)]
    Host(hostmem::Error),
    /// The received message is no answer.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The greeting is answered as if it were a request.
    #[error("balboad answers {0:?} to a greeting")]
    Greeting(Box<Response>),
    /// balboad refused.
    #[error("{}", .0.reason)]
    Refused(Refusal),
}

/// A connection to balboad.
///
/// It stays as it was after any outcome of a call: after [`Error::Silent`] the answer may still come,
/// and would be taken for the next one's.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    daemon: Pid,
    /// For an answer.
    room: Vec<u8>,
    /// While an answer is looked for.
    hand_over: HandOver,
}

impl Client {
    /// Connects to the balboad of a state directory. Nothing, from here on, takes longer than
    /// `seconds`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(directory: &Path, seconds: u32) -> Result<Self, ConnectError> {
        let failed = |what| move |errno| ConnectError::Socket { what, errno };
        let address = UnixAddr::new(&directory.join(SOCKET_NAME))
            .map_err(failed("use as a socket's path"))?;
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(failed("make a socket for"))?;
        // Connecting takes at most as long as sending.
        let limit = TimeVal::seconds(seconds.into());
        setsockopt(&socket, sockopt::ReceiveTimeout, &limit)
            .and_then(|()| setsockopt(&socket, sockopt::SendTimeout, &limit))
            .map_err(failed("set up a socket for"))?;
        connect(socket.as_raw_fd(), &address).map_err(failed("connect to"))?;
        let peer = peer_credentials(socket.as_fd())
            .map_err(|error| failed("see who serves")(error.errno().unwrap_or(Errno::EIO)))?;
        if peer.uid != geteuid().as_raw() && peer.uid != 0 {
            return Err(ConnectError::Foreign { uid: peer.uid });
        }
        let (room, hand_over) = (vec![0; MAX_MESSAGE], HandOver::new());
        Ok(Self { socket, daemon: peer.pid, room, hand_over })
    }

    /// balboad's process.
    #[must_use]
    pub fn daemon(&self) -> Pid {
        self.daemon
    }

    /// Sends the greeting, which comes before all else; `build` is for balboad's log.
    ///
    /// # Errors
    /// [`Error`].
    pub fn greet(&mut self, build: String, role: Role) -> Result<(), Error> {
        let received = self.exchange(&shim_abi::hello_frame(&Hello { build, role }))?;
        match shim_abi::decode_hello::<Reply>(self.answer(&received))? {
            Ok(Response::Done) => Ok(()),
            Ok(other) => Err(Error::Greeting(Box::new(other))),
            Err(refusal) => Err(Error::Refused(refusal)),
        }
    }

    /// Makes a request, and returns the answer and the descriptors with it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn ask(&mut self, request: &Request) -> Result<(Response, Vec<OwnedFd>), Error> {
        let received = self.exchange(&shim_abi::encode(request))?;
        self.response(received)
    }

    /// Waits again for the answer to the last question, behind [`Error::Silent`].
    ///
    /// # Errors
    /// [`Error`]; [`Error::Silent`] where it is not there within the limit again.
    pub fn wait_on(&mut self) -> Result<(Response, Vec<OwnedFd>), Error> {
        let received = receive(self.socket.as_fd(), &mut self.room, Wait::AsSocket);
        let received = Self::received(received)?;
        self.response(received)
    }

    fn response(&self, received: Received) -> Result<(Response, Vec<OwnedFd>), Error> {
        match shim_abi::decode::<Reply>(self.answer(&received))? {
            Ok(response) => Ok((response, received.fds)),
            Err(refusal) => Err(Error::Refused(refusal)),
        }
    }

    fn exchange(&mut self, message: &[u8]) -> Result<Received, Error> {
        let sent = send(self.socket.as_fd(), message, &[], Wait::AsSocket);
        Self::received(sent.and_then(|()| self.wait()))
    }

    /// Waits for a message, and looks for it at first: most are there sooner than a thread that sleeps is woken.
    fn wait(&mut self) -> Result<Received, hostmem::Error> {
        let begun = Instant::now();
        loop {
            match receive(self.socket.as_fd(), &mut self.room, Wait::Never) {
                Err(error) if error.would_block() => {}
                outcome => return outcome,
            }
            if !self.hand_over.looks_again(begun.elapsed()) {
                return receive(self.socket.as_fd(), &mut self.room, Wait::AsSocket);
            }
        }
    }

    fn received(received: Result<Received, hostmem::Error>) -> Result<Received, Error> {
        match received {
            Ok(received) if received.bytes > 0 => Ok(received),
            Ok(_) => Err(Error::Gone),
            Err(error) => Err(match error.errno() {
                Some(Errno::EPIPE | Errno::ECONNRESET) => Error::Gone,
                Some(Errno::EAGAIN) => Error::Silent,
                _ => Error::Host(error),
            }),
        }
    }

    fn answer(&self, received: &Received) -> &[u8] {
        self.room.get(..received.bytes).unwrap_or_default()
    }

    /// Tells balboad that nothing more will be asked: it ends this client when it reads that.
    pub fn hang_up(&self) {
        // It can only fail where the connection has ended, which the next look at it tells.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Write);
    }

    /// Drops messages of balboad for which no call waits; true once balboad has closed the connection. It does not
    /// wait.
    pub fn has_ended(&mut self) -> bool {
        loop {
            match receive(self.socket.as_fd(), &mut self.room, Wait::Never) {
                Ok(received) if received.bytes > 0 => {}
                Ok(_) => return true,
                // A late answer that is none; its descriptors are closed.
                Err(hostmem::Error::Truncated { .. }) => {}
                Err(error) => return error.errno() == Some(Errno::ECONNRESET),
            }
        }
    }
}

#[cfg(test)]
mod tests;
