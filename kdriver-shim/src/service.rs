//! The messages between balboad and the service manager (systemd); without one, none.

use std::io;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::time::{Duration, Instant};

use listenfd::ListenFd;
use nix::libc::{AF_UNIX, SOCK_SEQPACKET};
use nix::sys::socket::{getsockopt, sockopt};
use sd_notify::NotifyState;

use crate::error::Error;

/// How long a service manager that reads nothing is waited for; rounds are told of without waiting.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon a round is told of again that it had no room to be told.
const AGAIN: Duration = Duration::from_millis(100);

/// Says that programs are served.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Says that the configuration is read again; [`ready`] ends that.
pub fn reloading() {
    let now = NotifyState::monotonic_usec_now().ok();
    tell(&[Some(NotifyState::Reloading), now].into_iter().flatten().collect::<Vec<_>>());
}

/// Says that balboad ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = send(states, Some(PATIENCE)) {
        log::warn!("the service manager cannot be told: {error}");
    }
}

/// Sends it, if there is a service manager; waits so long until there is room.
fn send(states: &[NotifyState<'_>], patience: Option<Duration>) -> io::Result<()> {
    std::env::var_os("NOTIFY_SOCKET")
        .map_or(Ok(()), |path| send_to(Path::new(&path), states, patience))
}

fn send_to(path: &Path, states: &[NotifyState<'_>], patience: Option<Duration>) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(patience.is_none())?;
    socket.set_write_timeout(patience)?;
    socket.connect(path)?;
    let lines: String = states.iter().map(|state| format!("{state}\n")).collect();
    socket.send(lines.as_bytes()).map(drop)
}

/// The periodic sign of life for the service manager.
#[derive(Debug)]
pub struct Watchdog {
    period: Duration,
    due: Instant,
}

impl Watchdog {
    /// The watchdog that the service manager asks for.
    #[must_use]
    pub fn wanted() -> Option<Self> {
        // Twice in the time that it gives, as its manual advises.
        let period = sd_notify::watchdog_enabled()?.checked_div(2)?;
        Some(Self { period, due: Instant::now() })
    }

    /// The time to wait before [`Self::feed`].
    #[must_use]
    pub fn patience(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Tells that this thread makes its rounds, if it is time to.
    pub fn feed(&mut self, now: Instant) {
        if now >= self.due {
            let mut next = self.period;
            if let Err(error) = send(&[NotifyState::Watchdog], None) {
                log::warn!("the service manager cannot be told of a round: {error}");
                if error.kind() == std::io::ErrorKind::WouldBlock {
                    next = next.min(AGAIN);
                }
            }
            self.due = now.checked_add(next).unwrap_or(now);
        }
    }
}

/// The socket that the service manager listens at for this process, if it does.
///
/// Must be called before any thread starts, for it removes the variables that it reads from the environment.
///
/// # Errors
/// [`Error::Handed`] when the descriptors are not one listening socket of Unix' `SOCK_SEQPACKET`.
pub fn handed_socket() -> Result<Option<UnixListener>, Error> {
    let refused = |why: String| Error::Handed { why };
    // listenfd would take a set of descriptors that names no process.
    let ours = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let count = std::env::var("LISTEN_FDS").unwrap_or_default();
    if !ours || count == "0" || count.is_empty() {
        return Ok(None);
    }
    if count != "1" {
        return Err(refused(format!("{count} descriptors, where one is taken")));
    }
    let kind = "listening socket of SOCK_SEQPACKET (ListenSequentialPacket=)";
    let taken = ListenFd::from_env().take_custom(0, AF_UNIX, SOCK_SEQPACKET, kind);
    let Some(socket): Option<UnixListener> = taken.map_err(|error| refused(error.to_string()))?
    else {
        return Ok(None);
    };
    match getsockopt(&socket, sockopt::AcceptConn) {
        Ok(true) => {}
        _ => return Err(refused(format!("fd 3 is no {kind}"))),
    }
    socket.set_nonblocking(true).map_err(|error| refused(error.to_string()))?;
    Ok(Some(socket))
}

/// Checks that a socket listens at a path.
///
/// # Errors
/// [`Error::Handed`] with where it does.
pub fn check_path(socket: &UnixListener, path: &Path) -> Result<(), Error> {
    let address = socket.local_addr().ok();
    let at = address.as_ref().and_then(|address| address.as_pathname());
    let same = at.is_some_and(|at| {
        at == path || matches!((at.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b)
    });
    if same {
        return Ok(());
    }
    let at = at.map_or_else(|| "nowhere".to_owned(), |at| at.display().to_string());
    let path = path.display();
    Err(Error::Handed {
        why: format!(
            "a socket at {at}, and programs look for {path}; let ListenSequentialPacket= or state-dir be the other's"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_fed_when_it_is_due_and_not_before() {
        let now = Instant::now();
        let period = Duration::from_secs(5);
        let mut watchdog = Watchdog { period, due: now };
        assert_eq!(watchdog.patience(now), Duration::ZERO);
        watchdog.feed(now);
        assert_eq!(watchdog.patience(now), period);
        watchdog.feed(now + Duration::from_secs(4));
        assert_eq!(watchdog.patience(now + Duration::from_secs(4)), Duration::from_secs(1));
    }

    #[test]
    fn a_manager_that_reads_nothing_holds_nobody_up() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let mut sent = 0;
        let full = loop {
            match send_to(&path, &[NotifyState::Watchdog], None) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let ready = [NotifyState::Ready, NotifyState::Status("well")];
        let tell = |patience| send_to(&path, &ready, Some(patience));
        let full = tell(Duration::from_millis(1)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let mut bytes = [0; 100];
        let mut told = || {
            let count = manager.recv(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes[..count]).into_owned()
        };
        (0..sent).for_each(|_| assert_eq!(told(), "WATCHDOG=1\n"));
        tell(PATIENCE).unwrap();
        assert_eq!(told(), "READY=1\nSTATUS=well\n");
    }

    #[test]
    fn a_socket_elsewhere_is_refused_with_both_places() {
        let root = tempfile::tempdir().unwrap();
        let (here, there) = (root.path().join("here"), root.path().join("there"));
        let socket = UnixListener::bind(&here).unwrap();
        check_path(&socket, &here).unwrap();
        check_path(&socket, &root.path().join("./here")).unwrap();
        let why = check_path(&socket, &there).unwrap_err().to_string();
        assert!(why.contains("/here") && why.contains("/there"), "{why}");
    }
}
