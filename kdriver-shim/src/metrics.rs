//! The endpoint for Prometheus: its connections and their limits, and the thread that answers.
//!
//! A connection has a second, and one beyond the limit replaces the oldest; the control thread is asked at most once a
//! second. So a silent connection keeps neither other readers nor balboad waiting.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use hostmem::EventFd;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Backlog, SockType, UnixAddr, listen};
use softcard::socket::Bound;

use crate::error::Error;

pub mod page;
pub mod request;

use request::HttpAnswer;

/// Connections at a time.
const MOST: usize = 64;
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

/// The place of the numbers.
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
                "metrics `{text}`: readers need no password there, so it has to be this machine's own address, 127.0.0.1 or [::1]; let a proxy with passwords show it to others"
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
    // A socket's path goes with it.
    _path: Option<Bound>,
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
        let (listener, path, address) = match endpoint {
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address =
                    listener.local_addr().map_or_else(|_| endpoint.clone(), Endpoint::Tcp);
                (MetricsListener::Tcp(listener), None, address)
            }
            Endpoint::Unix(path) => {
                let bound = Bound::new(path, SockType::Stream)?;
                listen(&bound, Backlog::new(BACKLOG)?)?;
                let listener = bound.as_fd().try_clone_to_owned()?.into();
                (MetricsListener::Unix(listener), Some(bound), endpoint.clone())
            }
        };
        let event = || EventFd::new().map(Arc::new).map_err(io::Error::other);
        let (wanted, stop) = (event()?, event()?);
        let (pages, taken) = sync_channel(1);
        let source = Source { wanted: Arc::clone(&wanted), pages: taken, kept: None };
        let stopped = Arc::clone(&stop);
        Builder::new()
            .name("metrics".into())
            .stack_size(STACK)
            .spawn(move || serve(&listener, &stopped, source))?;
        Ok(Self { wanted, pages, stop, _path: path, address })
    }

    /// Its place; with the number of its port, if the kernel chose one.
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
        // It has one place; a reader that waits no longer needs none.
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

/// A connection of either kind, which never waits.
struct MetricsConnection {
    stream: File,
    until: Instant,
    received: Vec<u8>,
    /// Its answer, and the number of its bytes that were written.
    response: Option<(String, usize)>,
}

impl MetricsConnection {
    fn new(stream: OwnedFd) -> Self {
        Self { stream: stream.into(), until: deadline(), received: Vec::new(), response: None }
    }

    /// The events that it waits for.
    fn interest(&self) -> PollFlags {
        if self.response.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Reads and writes as far as that goes; whether it is over.
    fn go_on(&mut self, source: &mut Source) -> bool {
        match self.read(source).and_then(|()| self.write()) {
            Ok(()) => true,
            // A reader that hangs up early needs no answer.
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    fn read(&mut self, source: &mut Source) -> io::Result<()> {
        while self.response.is_none() {
            if let Some(answer) = request::answer(&self.received) {
                let page = match answer {
                    HttpAnswer::Page => source.page(),
                    _ => None,
                };
                self.response = Some((answer.response(page), 0));
                // A reader that waited for the control thread gets time to read its answer.
                self.until = deadline();
                break;
            }
            let mut bytes = [0; request::MAX_BYTES];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.received.extend_from_slice(bytes.get(..count).unwrap_or_default());
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let Some((response, written)) = &mut self.response else { return Ok(()) };
        while let Some(rest @ [_, ..]) = response.as_bytes().get(*written..) {
            let count = self.stream.write(rest)?;
            *written = written.saturating_add(count);
        }
        Ok(())
    }
}

fn serve(listener: &MetricsListener, stop: &EventFd, mut source: Source) {
    let mut connections = VecDeque::new();
    loop {
        let ready = match wait(listener, stop, &connections) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => continue,
            Err(errno) => return log::error!("metrics can no longer be shown: {errno}"),
        };
        let mut ready = ready.into_iter();
        let [stopped, comes] = [ready.next(), ready.next()].map(|it| it.unwrap_or(true));
        if stopped {
            return;
        }
        connections.retain_mut(|connection: &mut MetricsConnection| {
            let is_ready = ready.next().unwrap_or(false);
            !(is_ready && connection.go_on(&mut source)) && Instant::now() < connection.until
        });
        if comes {
            let mut connection = match listener.accept() {
                Ok(stream) => MetricsConnection::new(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => {
                    log::warn!("no connection for metrics can be accepted for now: {error}");
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            if !connection.go_on(&mut source) {
                connections.push_back(connection);
                if connections.len() > MOST {
                    connections.pop_front();
                }
            }
        }
    }
}

/// Waits until there is work: the order to stop, a connection that comes, or one that can go on.
fn wait(
    listener: &MetricsListener,
    stop: &EventFd,
    connections: &VecDeque<MetricsConnection>,
) -> Result<Vec<bool>, Errno> {
    let mut all = vec![
        PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        PollFd::new(listener.as_fd(), PollFlags::POLLIN),
    ];
    all.extend(connections.iter().map(|it| PollFd::new(it.stream.as_fd(), it.interest())));
    let first = connections.iter().map(|it| it.until).min();
    let patience = first.map_or(PollTimeout::NONE, |until| {
        let left = until.saturating_duration_since(Instant::now());
        // Of less than a millisecond the kernel makes nothing.
        PollTimeout::try_from(left.saturating_add(Duration::from_millis(1)))
            .unwrap_or(PollTimeout::MAX)
    });
    poll(&mut all, patience)?;
    Ok(all.iter().map(|it| it.any().unwrap_or(true)).collect())
}

fn deadline() -> Instant {
    let now = Instant::now();
    now.checked_add(CONNECTION).unwrap_or(now)
}

/// Where connections come from.
enum MetricsListener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl MetricsListener {
    fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.into()
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.into()
            }
        })
    }
}

impl AsFd for MetricsListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpStream;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::{AddressFamily, SockFlag, connect, socket};

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
    fn beside_twice_as_many_silent_ones_as_there_is_room_for_one_that_asks_waits_for_none() {
        let metrics = Metrics::start(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let Endpoint::Tcp(address) = metrics.endpoint().clone() else { panic!() };
        let end = Arc::new(EventFd::new().unwrap());
        let control = control(metrics, Arc::clone(&end));
        let begun = Instant::now();
        let silent: Vec<_> = (0..2 * MOST).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut honest = TcpStream::connect(address).unwrap();
        let told = ask(&mut honest, "GET /metrics HTTP/1.0\r\n\r\n");
        assert!(told.contains("\r\n\r\npage "), "{told}");
        // One after the other they would have had a second each.
        assert!(begun.elapsed() < CONNECTION * u32::try_from(MOST).unwrap());
        end.signal().unwrap();
        control.join().unwrap();
        drop(silent);
    }

    #[test]
    fn one_that_listens_and_accepts_nobody_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("metrics");
        let other = Bound::new(&path, SockType::Stream).unwrap();
        listen(&other, Backlog::new(0).unwrap()).unwrap();
        let mut full = Vec::new();
        loop {
            let flags = SockFlag::SOCK_NONBLOCK;
            let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
            let done = connect(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap());
            full.push(fd);
            if done == Err(Errno::EAGAIN) {
                break;
            }
        }
        let why = Metrics::start(&Endpoint::Unix(path)).unwrap_err().to_string();
        assert!(why.contains("in use"), "{why}");
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
