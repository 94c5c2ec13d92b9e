//! The state directory: its owner, the balboad that serves it, and the socket in it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use host_view::directory::{self, Directory};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, SFlag, fchmod};
use shim_abi::SOCKET_NAME;

use crate::error::Error;
use crate::service;

/// The lock file's name in the state directory; it holds the process id of the balboad that serves the directory.
pub const LOCK_NAME: &str = "balboad.lock";

/// Bytes that are read of a lock file, which holds a process id, at most.
const MAX_LOCK_BYTES: u64 = 16;

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;

/// A state directory that is ours alone to serve, until this is dropped.
#[derive(Debug)]
pub struct StateDir {
    dir: PathBuf,
    directory: Directory,
    // Held, and never read again: the lock goes with the descriptor.
    _lock: Flock<File>,
    bound: bool,
}

impl StateDir {
    /// Makes the directory where it is missing, checks it, and claims it.
    ///
    /// It is a directory of `uid`'s own that no other user can write to, no symbolic link; one that is
    /// made here has mode 0700.
    ///
    /// # Errors
    /// [`Error::StateDir`] with the fault, [`Error::Running`] when another balboad serves it.
    pub fn claim(dir: &Path, uid: u32) -> Result<Self, Error> {
        // A slash at the end would follow a link.
        let dir = &dir.components().collect::<PathBuf>();
        let fail = |why: String| Error::StateDir { dir: dir.to_owned(), why };
        let socket = dir.join(SOCKET_NAME);
        if UnixAddr::new(&socket).is_err() {
            return Err(fail(format!(
                "the socket's path in it would have {} bytes, and the kernel takes 107; choose a shorter --state-dir",
                socket.as_os_str().len()
            )));
        }
        match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(fail(format!("it cannot be made: {error}"))),
        }
        let directory = open(dir, uid)?;
        let lock = lock(dir, &directory)?;
        Ok(Self { dir: dir.to_owned(), directory, _lock: lock, bound: false })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The directory itself.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Takes the listening socket that the service manager has made, which it also removes.
    ///
    /// # Errors
    /// [`Error::Handed`] when it listens elsewhere, [`Error::Os`] when the kernel refuses.
    pub fn adopt(&self, socket: UnixListener) -> Result<OwnedFd, Error> {
        service::check_path(&socket, &self.dir.join(SOCKET_NAME))?;
        // From here on a connecting program sees this process, not the manager, as the listener.
        let backlog = Backlog::new(BACKLOG).map_err(Error::os("backlog of the socket"))?;
        listen(&socket, backlog).map_err(Error::os("listen"))?;
        Ok(socket.into())
    }

    /// Makes the listening socket, in place of a dead balboad's.
    ///
    /// # Errors
    /// [`Error::StateDir`] when something else bears its name, [`Error::Os`] when it cannot be made.
    pub fn listen(&mut self) -> Result<OwnedFd, Error> {
        let path = self.dir.join(SOCKET_NAME);
        let fail = |why: String| Error::StateDir { dir: self.dir.clone(), why };
        match self.directory.look_at(SOCKET_NAME) {
            Ok(None) => {}
            Ok(Some(found)) if directory::is(&found, SFlag::S_IFSOCK) => {
                // This process holds the lock, so the maker of the file is gone.
                self.directory
                    .remove(OsStr::new(SOCKET_NAME))
                    .map_err(|error| fail(format!("a stale socket cannot be removed: {error}")))?;
            }
            Ok(Some(_)) => {
                return Err(fail(format!("{SOCKET_NAME} in it is no socket; move it away")));
            }
            Err(error) => {
                return Err(fail(format!("{SOCKET_NAME} in it cannot be looked at: {error}")));
            }
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(Error::os("socket"))?;
        // The file at the path gets the socket's own mode, less the umask.
        fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR).map_err(Error::os("fchmod of the socket"))?;
        let address = UnixAddr::new(&path).map_err(Error::os("path of the socket"))?;
        bind(fd.as_raw_fd(), &address).map_err(Error::os("bind of the socket"))?;
        self.bound = true;
        let backlog = Backlog::new(BACKLOG).map_err(Error::os("backlog of the socket"))?;
        listen(&fd, backlog).map_err(Error::os("listen"))?;
        Ok(fd)
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // Both names are ours while the lock is held, and it is held until after this.
        if self.bound {
            let _ = self.directory.remove(OsStr::new(SOCKET_NAME));
        }
        let _ = self.directory.remove(OsStr::new(LOCK_NAME));
    }
}

fn open(dir: &Path, uid: u32) -> Result<Directory, Error> {
    let fail = |why: String| Err(Error::StateDir { dir: dir.to_owned(), why });
    let opened = Directory::open(dir).and_then(|directory| Ok((directory.look()?, directory)));
    let (found, directory) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let kind = fs::symlink_metadata(dir).map(|found| found.file_type());
            return fail(match kind {
                Ok(kind) if kind.is_symlink() => "it is a symbolic link, which another user may have put there; name the directory itself".into(),
                Ok(kind) if !kind.is_dir() => "it is no directory".into(),
                _ => format!("it cannot be opened: {error}"),
            });
        }
    };
    if found.st_uid != uid {
        return fail(format!(
            "it belongs to user {}, not to you (user {uid}); choose one of your own with --state-dir",
            found.st_uid
        ));
    }
    // Others that can merely look in meet a socket that only its owner can connect to.
    if found.st_mode & 0o022 != 0 {
        return fail(format!(
            "others can write to it (mode {:03o}); run chmod 700 on it",
            found.st_mode & 0o777
        ));
    }
    Ok(directory)
}

fn lock(dir: &Path, directory: &Directory) -> Result<Flock<File>, Error> {
    let fail = |error: &dyn std::fmt::Display| Error::StateDir {
        dir: dir.to_owned(),
        why: format!("its lock file cannot be used: {error}"),
    };
    loop {
        let file = directory.file(LOCK_NAME).map_err(|error| fail(&error))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((file, Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let _ = file.take(MAX_LOCK_BYTES).read_to_string(&mut text);
                let holder = match text.trim().parse::<u32>() {
                    Ok(pid) => format!("process {pid}"),
                    Err(_) => "just starting".to_owned(),
                };
                return Err(Error::Running { dir: dir.to_owned(), holder });
            }
            Err((_, errno)) => return Err(fail(&errno)),
        };
        // A balboad that ends removes the file: a lock on a removed file locks no other process out.
        let ours = lock.metadata().map(|m| (m.dev(), m.ino())).ok();
        let named = directory.look_at(LOCK_NAME).ok().flatten().map(|m| (m.st_dev, m.st_ino));
        if ours.is_none() || ours != named {
            continue;
        }
        lock.set_len(0).map_err(|error| fail(&error))?;
        writeln!(lock, "{}", std::process::id()).map_err(|error| fail(&error))?;
        return Ok(lock);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn uid() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    fn refusal(dir: &Path) -> String {
        StateDir::claim(dir, uid()).unwrap_err().to_string()
    }

    #[test]
    fn a_directory_is_made_private_and_cleared_of_our_files() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/balboa");
        let mut state = StateDir::claim(&dir, uid()).unwrap();
        let socket = state.listen().unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let path = dir.join(SOCKET_NAME);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop((state, socket));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn a_second_one_is_refused_with_the_pid_of_the_first() {
        let root = tempfile::tempdir().unwrap();
        let first = StateDir::claim(root.path(), uid()).unwrap();
        let why = refusal(root.path());
        assert!(why.contains(&format!("process {}", std::process::id())), "{why}");
        drop(first);
        StateDir::claim(root.path(), uid()).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_plain_file_is_not() {
        let root = tempfile::tempdir().unwrap();
        let mut state = StateDir::claim(root.path(), uid()).unwrap();
        drop(state.listen().unwrap());
        // The first socket is still there, as after a SIGKILL.
        state.listen().unwrap();
        let path = root.path().join(SOCKET_NAME);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(state.listen().unwrap_err().to_string().contains("is no socket"));
    }

    #[test]
    fn links_loose_modes_others_directories_and_long_paths_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().join("real");
        DirBuilder::new().create(&real).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(refusal(&real).contains("chmod 700"));
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(refusal(&link).contains("symbolic link"));
        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(refusal(&link.join("")).contains("symbolic link"), "a slash at its end");
        let others = StateDir::claim(root.path(), uid() + 1).unwrap_err().to_string();
        assert!(others.contains("belongs to user"), "{others}");
        let long = root.path().join("x".repeat(100));
        assert!(refusal(&long).contains("107"));
        assert!(!long.exists());
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refusal(&file).contains("no directory"));
    }
}
