//! The endpoint for Prometheus: who asks it and how, and a thread that answers.
//!
//! One connection at a time, for a second at most, and the control thread is asked once a second at most: who
//! connects without end keeps others from the numbers, and balboad from nothing.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use hostmem::EventFd;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use crate::error::Error;

pub mod page;
pub mod request;

use request::Answer;

/// How long a connection may take.
const CONNECTION: Duration = Duration::from_secs(1);
/// How long numbers are shown before the control thread is asked again.
const FRESH: Duration = Duration::from_secs(1);
/// How long the control thread may take.
const CONTROL: Duration = Duration::from_secs(5);
/// How long nothing is accepted where the kernel could give no connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that the kernel keeps until their turn.
const BACKLOG: i32 = 16;
/// Bytes of the thread's stack.
const STACK: usize = 256 << 10;

/// Where the numbers are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket in the file system, of mode 0600.
    Unix(PathBuf),
    /// A port of this machine's own, which every user of it can reach.
    Tcp(SocketAddr),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match UnixAddr::new(path) {
                Ok(_) if !path.is_empty() => Ok(Self::Unix(path.into())),
                _ => {
                    Err(format!("metrics `{text}`: write unix:PATH, with a path of 1 to 107 bytes"))
                }
            };
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if !address.ip().is_loopback() => Err(format!(
                "metrics `{text}`: nobody is asked who they are there, so it has to be this machine's own address, 127.0.0.1 or [::1]; let a proxy with passwords show it to others"
            )),
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => Err(format!("metrics `{text}`: write unix:PATH or 127.0.0.1:PORT")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// An endpoint that answers, until this is dropped.
#[derive(Debug)]
pub struct Metrics {
    /// Readable while the thread waits for a page.
    wanted: Arc<EventFd>,
    pages: SyncSender<String>,
    stop: Arc<EventFd>,
    /// The socket's path, and its device and inode.
    path: Option<(PathBuf, u64, u64)>,
    address: Endpoint,
}

impl Metrics {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    /// [`Error::Metrics`] when something else stands there, or the kernel refuses.
    pub fn start(endpoint: &Endpoint) -> Result<Self, Error> {
        Self::make(endpoint)
            .map_err(|error| Error::Metrics { at: endpoint.to_string(), why: error.to_string() })
    }

    fn make(endpoint: &Endpoint) -> io::Result<Self> {
        let listener = Listener::at(endpoint)?;
        let path = match endpoint {
            Endpoint::Unix(path) => {
                let made = fs::symlink_metadata(path)?;
                Some((path.clone(), made.dev(), made.ino()))
            }
            Endpoint::Tcp(_) => None,
        };
        let address = listener.address(endpoint);
        let event = || EventFd::new().map(Arc::new).map_err(io::Error::other);
        let (wanted, stop) = (event()?, event()?);
        let (pages, taken) = sync_channel(1);
        let source = Source { wanted: Arc::clone(&wanted), pages: taken, kept: None };
        let stopped = Arc::clone(&stop);
        Builder::new()
            .name("metrics".into())
            .stack_size(STACK)
            .spawn(move || serve(&listener, &stopped, source))?;
        Ok(Self { wanted, pages, stop, path, address })
    }

    /// Where it is; with the number of its port, where the kernel was to choose one.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.address
    }

    /// Whether a page is waited for; it is asked once.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.wanted.drain().is_ok_and(|count| count > 0)
    }

    /// Gives the page that is waited for.
    pub fn give(&self, page: String) {
        // It has one place; whoever does not wait any more needs none.
        let _ = self.pages.try_send(page);
    }
}

impl AsFd for Metrics {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // Not waited for: it may wait for this very thread.
        let _ = self.stop.signal();
        if let Some((path, device, inode)) = &self.path {
            let ours = fs::symlink_metadata(path)
                .is_ok_and(|found| (found.dev(), found.ino()) == (*device, *inode));
            if ours {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Where pages come from.
struct Source {
    wanted: Arc<EventFd>,
    pages: Receiver<String>,
    kept: Option<(Instant, String)>,
}

impl Source {
    /// The page as it is now, or was a second ago; `None` where the control thread does not answer.
    fn page(&mut self) -> Option<&str> {
        let fresh = self.kept.as_ref().is_some_and(|(since, _)| since.elapsed() < FRESH);
        if !fresh {
            self.kept = None;
            // One that came too late for the question before.
            while self.pages.try_recv().is_ok() {}
            self.wanted.signal().ok()?;
            let page = self.pages.recv_timeout(CONTROL).ok()?;
            self.kept = Some((Instant::now(), page));
        }
        self.kept.as_ref().map(|(_, page)| page.as_str())
    }
}

fn serve(listener: &Listener, stop: &EventFd, mut source: Source) {
    loop {
        let mut both = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut both, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return log::error!("metrics are shown no more: {errno}"),
        }
        let [_, stopped] = both;
        if stopped.any().unwrap_or(true) {
            return;
        }
        match listener.accept() {
            // Whoever hangs up too early has what they wanted.
            Ok(stream) => drop(answer(stream.as_ref(), &mut source)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                log::warn!("no connection for metrics can be accepted for now: {error}");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Reads a request and answers it.
fn answer(stream: &dyn Stream, source: &mut Source) -> io::Result<()> {
    let until = deadline();
    let mut request = Vec::new();
    let answer = loop {
        if let Some(answer) = request::answer(&request) {
            break answer;
        }
        let mut bytes = [0; request::MAX_BYTES];
        stream.read_within(until)?;
        let count = stream.take(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(bytes.get(..count).unwrap_or_default());
    };
    let page = match answer {
        Answer::Page => source.page(),
        _ => None,
    };
    // Who waited for the control thread has the time to read what it said.
    let until = deadline();
    let response = answer.response(page);
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        stream.write_within(until)?;
        let count = stream.put(rest)?;
        rest = rest.get(count..).unwrap_or_default();
    }
    Ok(())
}

fn deadline() -> Instant {
    let now = Instant::now();
    now.checked_add(CONNECTION).unwrap_or(now)
}

/// What is left until then; an error where nothing is.
fn left(until: Instant) -> io::Result<Option<Duration>> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(Some(left)),
    }
}

/// A connection of either kind.
trait Stream {
    fn read_within(&self, until: Instant) -> io::Result<()>;
    fn write_within(&self, until: Instant) -> io::Result<()>;
    fn take(&self, bytes: &mut [u8]) -> io::Result<usize>;
    fn put(&self, bytes: &[u8]) -> io::Result<usize>;
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn read_within(&self, until: Instant) -> io::Result<()> {
                self.set_read_timeout(left(until)?)
            }

            fn write_within(&self, until: Instant) -> io::Result<()> {
                self.set_write_timeout(left(until)?)
            }

            fn take(&self, bytes: &mut [u8]) -> io::Result<usize> {
                (&*self).read(bytes)
            }

            fn put(&self, bytes: &[u8]) -> io::Result<usize> {
                (&*self).write(bytes)
            }
        }
    };
}

stream!(UnixStream);
stream!(TcpStream);

/// Where connections come from.
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn at(endpoint: &Endpoint) -> io::Result<Self> {
        let listener = match endpoint {
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
            Endpoint::Unix(path) => Self::Unix(unix(path)?),
        };
        Ok(listener)
    }

    fn address(&self, endpoint: &Endpoint) -> Endpoint {
        match self {
            Self::Unix(_) => endpoint.clone(),
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| endpoint.clone(), Endpoint::Tcp)
            }
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Box::new(stream)
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Box::new(stream)
            }
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Listens at a path, in place of a socket at which nobody does any more.
fn unix(path: &Path) -> io::Result<UnixListener> {
    let listener = bound(path).or_else(|error| match error {
        Errno::EADDRINUSE if is_left_behind(path) => {
            fs::remove_file(path)?;
            bound(path).map_err(io::Error::from)
        }
        errno => Err(errno.into()),
    })?;
    listen(&listener, Backlog::new(BACKLOG).map_err(io::Error::from)?)?;
    Ok(listener.into())
}

fn bound(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // What is made at the path has the socket's own mode.
    fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

/// Whether a socket of this user's stands there, and nobody listens.
fn is_left_behind(path: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    let ours =
        fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket() && it.uid() == own);
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    ours && UnixStream::connect(path).is_err_and(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(stream: &mut (impl Read + Write), request: &str) -> String {
        stream.write_all(request.as_bytes()).unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        told
    }

    /// Gives pages, and tells how many were asked for, until told to end.
    fn control(metrics: Metrics, end: Arc<EventFd>) -> std::thread::JoinHandle<usize> {
        std::thread::spawn(move || {
            let mut asked = 0;
            loop {
                let mut both = [
                    PollFd::new(metrics.as_fd(), PollFlags::POLLIN),
                    PollFd::new(end.as_fd(), PollFlags::POLLIN),
                ];
                poll(&mut both, PollTimeout::NONE).unwrap();
                if both[1].any().unwrap() {
                    return asked;
                }
                if metrics.is_asked() {
                    asked += 1;
                    metrics.give(format!("page {asked}\n"));
                }
            }
        })
    }

    #[test]
    fn endpoints_are_this_machines_own() {
        for text in ["unix:/run/balboa/metrics", "127.0.0.1:9100", "[::1]:9100"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("0.0.0.0:9100", "this machine's own"),
            ("10.0.0.1:9100", "this machine's own"),
            ("[::]:9100", "this machine's own"),
            ("localhost", "write unix:PATH or 127.0.0.1:PORT"),
            ("unix:", "with a path of 1 to 107"),
        ] {
            let told = text.parse::<Endpoint>().unwrap_err();
            assert!(told.contains(why), "{told}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        assert!(long.parse::<Endpoint>().is_err());
    }

    #[test]
    fn the_page_is_had_by_both_kinds_of_sockets_and_made_once_a_second() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("metrics");
        for endpoint in [Endpoint::Unix(path.clone()), "127.0.0.1:0".parse().unwrap()] {
            let metrics = Metrics::start(&endpoint).unwrap();
            let at = metrics.endpoint().clone();
            let begun = Instant::now();
            let end = Arc::new(EventFd::new().unwrap());
            let control = control(metrics, Arc::clone(&end));
            for _ in 0..10 {
                let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
                let told = match &at {
                    Endpoint::Unix(path) => ask(&mut UnixStream::connect(path).unwrap(), request),
                    Endpoint::Tcp(address) => {
                        ask(&mut TcpStream::connect(address).unwrap(), request)
                    }
                };
                assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
                assert!(told.contains("\r\n\r\npage "), "{told}");
            }
            end.signal().unwrap();
            let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
            assert!(control.join().unwrap() <= 1 + seconds);
        }
        assert!(!path.exists(), "the socket goes with the endpoint");
    }

    #[test]
    fn who_says_nothing_or_too_much_holds_nobody_up() {
        let metrics = Metrics::start(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let Endpoint::Tcp(address) = metrics.endpoint().clone() else { panic!() };
        let end = Arc::new(EventFd::new().unwrap());
        let control = control(metrics, Arc::clone(&end));
        let silent = TcpStream::connect(address).unwrap();
        let mut half = TcpStream::connect(address).unwrap();
        half.write_all(b"GET /met").unwrap();
        let mut endless = TcpStream::connect(address).unwrap();
        // It may be closed in the middle.
        let _ = endless.write_all(&[b'x'; 100_000]);
        let mut gone = TcpStream::connect(address).unwrap();
        gone.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        drop(gone);
        let mut honest = TcpStream::connect(address).unwrap();
        let told = ask(&mut honest, "GET /metrics HTTP/1.0\r\n\r\n");
        assert!(told.contains("\r\n\r\npage "), "{told}");
        end.signal().unwrap();
        assert!(control.join().unwrap() > 0);
        drop((silent, half, endless));
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_nothing_else_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("metrics");
        let endpoint = Endpoint::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap());
        let first = Metrics::start(&endpoint).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let why = Metrics::start(&endpoint).unwrap_err().to_string();
        assert!(why.contains("in use"), "{why}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(Metrics::start(&endpoint).is_err());
        drop(first);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
