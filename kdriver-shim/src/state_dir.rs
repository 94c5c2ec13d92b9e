//! The state directory: whose it is, who serves it, and the socket in it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use shim_abi::SOCKET_NAME;

use crate::error::Error;

/// The lock file's name in the state directory; it holds the process id of who serves it.
pub const LOCK_NAME: &str = "balboad.lock";

/// What is read of a lock file, which holds a process id, at most.
const MAX_LOCK_BYTES: u64 = 16;

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;

/// A state directory that is ours alone to serve, until this is dropped.
#[derive(Debug)]
pub struct StateDir {
    dir: PathBuf,
    // Held, and never read again: the lock goes with the descriptor.
    _lock: Flock<File>,
    bound: bool,
}

impl StateDir {
    /// Makes the directory where it is missing, checks it, and claims it.
    ///
    /// It is a directory of `uid`'s own that nobody else can write to, no symbolic link; one that is
    /// made here has mode 0700.
    ///
    /// # Errors
    /// [`Error::StateDir`] with what is wrong, [`Error::Running`] when another balboad serves it.
    pub fn claim(dir: &Path, uid: u32) -> Result<Self, Error> {
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
        check(dir, uid)?;
        let lock = lock(dir)?;
        Ok(Self { dir: dir.to_owned(), _lock: lock, bound: false })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Makes the listening socket, in place of one that a dead balboad left.
    ///
    /// # Errors
    /// [`Error::StateDir`] when something else bears its name, [`Error::Os`] when it cannot be made.
    pub fn listen(&mut self) -> Result<OwnedFd, Error> {
        let path = self.dir.join(SOCKET_NAME);
        let fail = |why: String| Error::StateDir { dir: self.dir.clone(), why };
        match fs::symlink_metadata(&path) {
            Ok(found) if found.file_type().is_socket() => {
                // We hold the lock, so whoever made it is gone.
                fs::remove_file(&path)
                    .map_err(|error| fail(format!("a stale socket cannot be removed: {error}")))?;
            }
            Ok(_) => {
                return Err(fail(format!("{SOCKET_NAME} in it is no socket; move it away")));
            }
            Err(_) => {}
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(Error::os("socket"))?;
        let address = UnixAddr::new(&path).map_err(Error::os("path of the socket"))?;
        bind(fd.as_raw_fd(), &address).map_err(Error::os("bind of the socket"))?;
        self.bound = true;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(|error| {
            Error::StateDir {
                dir: self.dir.clone(),
                why: format!("the socket's mode cannot be set: {error}"),
            }
        })?;
        let backlog = Backlog::new(BACKLOG).map_err(Error::os("backlog of the socket"))?;
        listen(&fd, backlog).map_err(Error::os("listen"))?;
        Ok(fd)
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // Both names are ours while the lock is held, and it is held until after this.
        if self.bound {
            let _ = fs::remove_file(self.dir.join(SOCKET_NAME));
        }
        let _ = fs::remove_file(self.dir.join(LOCK_NAME));
    }
}

fn check(dir: &Path, uid: u32) -> Result<(), Error> {
    let fail = |why: String| Err(Error::StateDir { dir: dir.to_owned(), why });
    let found = match fs::symlink_metadata(dir) {
        Ok(found) => found,
        Err(error) => return fail(format!("it cannot be looked at: {error}")),
    };
    if found.file_type().is_symlink() {
        return fail("it is a symbolic link, which another user may have put there; name the directory itself".into());
    }
    if !found.is_dir() {
        return fail("it is no directory".into());
    }
    if found.uid() != uid {
        return fail(format!(
            "it belongs to user {}, not to you (user {uid}); choose one of your own with --state-dir",
            found.uid()
        ));
    }
    // Others that can merely look in meet a socket that only its owner can connect to.
    if found.mode() & 0o022 != 0 {
        return fail(format!(
            "others can write to it (mode {:03o}); run chmod 700 on it",
            found.mode() & 0o777
        ));
    }
    Ok(())
}

fn lock(dir: &Path) -> Result<Flock<File>, Error> {
    let path = dir.join(LOCK_NAME);
    let fail = |error: &dyn std::fmt::Display| Error::StateDir {
        dir: dir.to_owned(),
        why: format!("its lock file cannot be used: {error}"),
    };
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits() | OFlag::O_CLOEXEC.bits())
            .open(&path)
            .map_err(|error| fail(&error))?;
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
        // A balboad that ends removes the file: a lock on a removed file locks nobody out.
        let ours = lock.metadata().map(|m| (m.dev(), m.ino())).ok();
        let named = fs::symlink_metadata(&path).map(|m| (m.dev(), m.ino())).ok();
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
