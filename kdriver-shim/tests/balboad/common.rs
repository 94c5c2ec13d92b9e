//! A real balboad in a temporary directory, and a client that speaks to it as the provider does.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hostmem::fdpass::{Wait, receive, send};
use hostmem::{Access, SharedMapping};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::Pid;
use shim_abi::{Hello, MAX_MESSAGE, Reply, Request, Response, Role, SOCKET_NAME};

/// How long anything may take before a test fails.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A running balboad.
pub struct Balboad {
    pub child: Child,
    pub dir: PathBuf,
    _root: Option<tempfile::TempDir>,
}

/// The program, with its state directory set.
pub fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_balboad"));
    command.arg("--state-dir").arg(dir).args(args).env("RUST_LOG", "warn");
    command
}

impl Balboad {
    /// Starts one in a directory of its own and waits until it is ready.
    pub fn start(args: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut balboad = Self::start_in(&root.path().join("state"), args);
        balboad._root = Some(root);
        balboad
    }

    /// Starts one in a directory and waits until it is ready.
    pub fn start_in(dir: &Path, args: &[&str]) -> Self {
        Self::start_as(command(dir, args), dir)
    }

    /// Starts one that logs as it does without being told, to a file, and waits until it is ready.
    pub fn start_logging(dir: &Path, args: &[&str], log: File) -> Self {
        let mut command = command(dir, args);
        command.env_remove("RUST_LOG").stderr(log);
        Self::start_as(command, dir)
    }

    /// Starts one by a command of its own, and waits until it is ready.
    pub fn start_as(mut command: Command, dir: &Path) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, dir: dir.to_owned(), _root: None }
    }

    /// Sends it a signal and waits for its end.
    pub fn signal(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "{signal} has no effect");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its status.
    pub fn status(&self) -> serde_json::Value {
        let tool = RawClient::connect(&self.dir, Role::Tool).unwrap();
        let (Response::Status { length }, fds) = tool.ask(Request::Status) else { panic!() };
        let length = length as usize;
        let text = SharedMapping::new(fds[0].as_fd(), 0, length, Access::ReadOnly).unwrap();
        let mut bytes = vec![0; length];
        text.read_bytes(0, &mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Asks for the status until it is as wanted.
    pub fn await_status(&self, what: &str, wanted: impl Fn(&serde_json::Value) -> bool) {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{what} did not come about: {status:#}");
        }
    }
}

impl Drop for Balboad {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of a balboad that sends the messages that a test wants, one by one.
pub struct RawClient {
    socket: OwnedFd,
}

impl RawClient {
    /// Connects, and says nothing.
    pub fn dial(dir: &Path) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        // A balboad that hangs fails a test, and does not hang it.
        let limit = TimeVal::seconds(LIMIT.as_secs().try_into().unwrap());
        setsockopt(&socket, sockopt::ReceiveTimeout, &limit).unwrap();
        let address = UnixAddr::new(&dir.join(SOCKET_NAME)).unwrap();
        connect(socket.as_raw_fd(), &address).unwrap();
        Self { socket }
    }

    /// Connects and greets.
    pub fn connect(dir: &Path, role: Role) -> Result<Self, String> {
        let client = Self::dial(dir);
        let hello = shim_abi::hello_frame(&Hello { build: "test".into(), role });
        let (answer, _) = client.exchange(&hello);
        let reply: Reply = shim_abi::decode_hello(&answer).unwrap();
        reply.map(|_| client).map_err(|refusal| refusal.reason)
    }

    /// Connects as a verbs program does.
    pub fn provider(dir: &Path) -> Self {
        Self::connect(dir, Role::Provider).unwrap()
    }

    fn exchange(&self, message: &[u8]) -> (Vec<u8>, Vec<OwnedFd>) {
        send(self.socket.as_fd(), message, &[], Wait::AsSocket).unwrap();
        let mut buffer = vec![0; MAX_MESSAGE];
        let received = receive(self.socket.as_fd(), &mut buffer, Wait::AsSocket).unwrap();
        buffer.truncate(received.bytes);
        (buffer, received.fds)
    }

    /// Makes a request.
    pub fn try_ask(&self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        let (answer, fds) = self.exchange(&shim_abi::encode(request));
        (shim_abi::decode(&answer).unwrap(), fds)
    }

    /// Makes a request that must not be refused.
    pub fn ask(&self, request: Request) -> (Response, Vec<OwnedFd>) {
        let (reply, fds) = self.try_ask(&request);
        (reply.unwrap_or_else(|refusal| panic!("{request:?}: {refusal:?}")), fds)
    }

    /// Waits until balboad has closed the connection.
    pub fn await_end(&self) {
        let received = receive(self.socket.as_fd(), &mut [0; 16], Wait::AsSocket);
        assert!(received.is_err() || received.is_ok_and(|received| received.bytes == 0));
    }
}

impl AsFd for RawClient {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
