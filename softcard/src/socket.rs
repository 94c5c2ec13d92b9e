//! Unix sockets that have a path: our own, and those that we send to.
//!
//! A path may lead through directories where others can put files. So the own socket belongs to its user
//! alone from its first moment on, and the destination must be that user's or root's.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;
use terminal::file::private_path;

/// The user id of root, which may open the files of all users.
const ROOT: u32 = 0;
/// A socket of our own at a path, which goes with it.
#[derive(Debug)]
pub struct Bound {
    socket: OwnedFd,
    path: PathBuf,
    /// The identity of the path's file: only our own is removed.
    identity: Identity,
}

impl Bound {
    /// Binds a path to a new socket, which never waits and which only its owner can reach.
    ///
    /// A socket of our own there that no process has open is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when anything else is there, [`io::ErrorKind::InvalidInput`] when
    /// the path is longer than a socket address holds.
    pub fn new(path: &Path, kind: SockType) -> io::Result<Self> {
        let socket = match bound(path, kind) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path, kind) => {
                fs::remove_file(path)?;
                bound(path, kind)?
            }
            outcome => outcome?,
        };
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(Self { socket, path: path.to_owned(), identity })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if ours {
            if let Err(error) = fs::remove_file(&self.path) {
                log::warn!("{}: cannot remove the socket: {error}", self.path.display());
            }
        }
    }
}

fn bound(path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    let address = address(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, kind, flags, None)?;
    // What is made at the path has the socket's own mode, less the umask.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

/// Whether there is a socket of our own at a path that no process has open.
fn is_stale(path: &Path, kind: SockType) -> bool {
    // The kernel refuses a connection to anything that is not a socket just as it does to a socket
    // that is closed.
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.file_type().is_socket() && found.uid() == geteuid().as_raw())
        && tried(path, kind) == Err(Errno::ECONNREFUSED)
}

/// Tries to connect, without waiting for a listener that accepts no more.
fn tried(path: &Path, kind: SockType) -> nix::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, kind, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
}

/// The identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

fn identity(found: &fs::Metadata) -> Identity {
    Identity { device: found.dev(), inode: found.ino() }
}

/// A path as a socket address.
fn address(path: &Path) -> io::Result<UnixAddr> {
    UnixAddr::new(path).map_err(|_| {
        let message =
            format!("{} is longer than the 107 bytes of a socket address", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// The destination of datagrams: the socket of our own user's, or root's, that is bound to a path at the time.
#[derive(Debug)]
pub(crate) struct Remote {
    path: PathBuf,
    /// The users whose sockets are sent to.
    trusted: [u32; 2],
    /// The path itself, where no other user could have put the socket there.
    private: Option<UnixAddr>,
    held: Option<Held>,
}

/// A socket that was looked at, independent of its path from then on.
#[derive(Debug)]
struct Held {
    identity: Identity,
    address: UnixAddr,
    /// Names the socket for as long as it is open: the address leads through it.
    _socket: fs::File,
}

/// Why there is nothing to send to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Absent {
    /// Nothing is there, or it cannot be looked at.
    #[error(transparent)]
    Missing(io::Error),
    /// It is another user's.
    #[error(
        "{} belongs to user {owner}, not to you (user {user}), and is sent no frame; choose a path in a directory of your own",
        path.display()
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The user that owns it.
        owner: u32,
        /// Our user.
        user: u32,
    },
    /// The file at the path is no socket.
    #[error("{} is no socket, and is sent no frame; move it away", .0.display())]
    NoSocket(PathBuf),
}

impl Remote {
    /// The socket at a path, which need not be there yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when the path is longer than a socket address holds.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        address(path)?;
        Ok(Self::trusting(path, [geteuid().as_raw(), ROOT]))
    }

    /// The socket at a path, of others than of our own user.
    pub(crate) fn trusting(path: &Path, trusted: [u32; 2]) -> Self {
        let private = private_path(path, trusted).and_then(|path| UnixAddr::new(&path).ok());
        Self { path: path.to_owned(), trusted, private, held: None }
    }

    /// Its address, at which no other user's socket can be until it is used.
    ///
    /// # Errors
    /// [`Absent`], where the socket is in a directory that others can write to.
    pub(crate) fn address(&mut self) -> Result<UnixAddr, Absent> {
        if let Some(address) = self.private {
            return Ok(address);
        }
        let found = fs::symlink_metadata(&self.path).map_err(Absent::Missing)?;
        // A file that is open keeps its number, so that no other can be taken for it.
        if let Some(held) = self.held.as_ref().filter(|held| held.identity == identity(&found)) {
            return Ok(held.address);
        }
        self.held = None;
        let held = self.hold()?;
        let address = held.address;
        self.held = Some(held);
        Ok(address)
    }

    fn hold(&self) -> Result<Held, Absent> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // Of the access, which has to be named, O_PATH wants nothing.
        let socket = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(&self.path);
        let socket = socket.map_err(Absent::Missing)?;
        let found = socket.metadata().map_err(Absent::Missing)?;
        if !found.file_type().is_socket() {
            return Err(Absent::NoSocket(self.path.clone()));
        }
        if !self.trusted.contains(&found.uid()) {
            let [user, _] = self.trusted;
            let path = self.path.clone();
            return Err(Absent::Foreign { path, owner: found.uid(), user });
        }
        let link = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let address = address(Path::new(&link)).map_err(Absent::Missing)?;
        Ok(Held { identity: identity(&found), address, _socket: socket })
    }
}

#[cfg(test)]
mod tests;
