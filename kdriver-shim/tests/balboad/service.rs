//! The service balboad: its configuration file, and the messages between it and the service manager.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use hostmem::process::peer_credentials;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::unistd::Pid;
use shim_abi::{Role, SOCKET_NAME};

use crate::common::{Balboad, LIMIT, RawClient, command};

/// A service manager, which reads all messages, lest there be no room for more.
struct Manager {
    told: mpsc::Receiver<Vec<String>>,
}

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count) = socket.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]);
                if tell.send(text.lines().map(str::to_owned).collect()).is_err() {
                    break;
                }
            }
        });
        Self { told }
    }

    /// Waits for a message with such a line, and returns the lines of those that came.
    fn await_line(&self, wanted: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        while !lines.iter().any(|line| line == wanted) {
            lines.extend(self.told.recv_timeout(LIMIT).unwrap_or_else(|error| {
                panic!("{wanted} was not told, but {lines:?}: {error}");
            }));
        }
        lines
    }
}

/// The program, with a configuration file in place of options.
fn configured(file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_balboad"));
    command.arg("--config").arg(file).env("RUST_LOG", "info");
    command
}

/// The page of metrics of a socket.
fn page(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// Waits until a file has a text.
fn await_text(file: &Path, wanted: &str) {
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap();
        if text.contains(wanted) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "no {wanted:?} in {text}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

pub fn listening(path: &Path, kind: SockType) -> OwnedFd {
    let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(path).unwrap()).unwrap();
    if kind != SockType::Datagram {
        listen(&fd, Backlog::new(8).unwrap()).unwrap();
    }
    fd
}

/// The program as a service manager starts it, with a socket as its descriptor 3.
pub fn activated(dir: &Path, socket: OwnedFd, more: &str) -> Command {
    let inner = command(dir, &["--soft", "1"]);
    let mut words = vec![inner.get_program().to_owned()];
    words.extend(inner.get_args().map(|word| word.to_owned()));
    let mut command = Command::new("sh");
    let script = format!("exec 3<&0 </dev/null; {more} export LISTEN_PID=$$; exec \"$@\"");
    command.arg("-c").arg(script).arg("sh").args(words);
    command.env("LISTEN_FDS", "1").env("RUST_LOG", "warn").stdin(Stdio::from(socket));
    command
}

#[test]
fn the_service_manager_is_told_of_the_start_the_rounds_a_reload_and_the_end() {
    let root = tempfile::tempdir().unwrap();
    let (file, log) = (root.path().join("balboad.toml"), root.path().join("log"));
    let state = root.path().join("state");
    fs::write(&file, format!("soft = 1\nstate-dir = {state:?}\n")).unwrap();
    let path = root.path().join("notify");
    let manager = Manager::at(&path);
    let mut command = configured(&file);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "20000");
    command.stderr(File::create(&log).unwrap());
    let mut balboad = Balboad::start_as(command, &state);
    let told = manager.await_line("READY=1");
    assert!(told.iter().any(|line| line.starts_with("STATUS=1 cards in ")), "{told:?}");
    // Nothing happens, and still it tells again and again.
    for _ in 0..3 {
        manager.await_line("WATCHDOG=1");
    }
    fs::write(&file, format!("soft = 2\nstate-dir = {state:?}\nverbose = 1\n")).unwrap();
    kill(Pid::from_raw(balboad.child.id() as i32), Signal::SIGHUP).unwrap();
    let told = manager.await_line("RELOADING=1");
    assert!(told.iter().any(|line| line.starts_with("MONOTONIC_USEC=")), "{told:?}");
    manager.await_line("READY=1");
    await_text(&log, "soft: balboad has to be started again");
    fs::write(&file, "sofd = 2\n").unwrap();
    kill(Pid::from_raw(balboad.child.id() as i32), Signal::SIGHUP).unwrap();
    await_text(&log, "the configuration stays as it was");
    await_text(&log, "line 1: unknown field `sofd`");
    // What is no file any more is not waited for.
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    kill(Pid::from_raw(balboad.child.id() as i32), Signal::SIGHUP).unwrap();
    await_text(&log, "it is no regular file");
    assert_eq!(balboad.status()["cards"].as_array().unwrap().len(), 1);
    let checked = configured(&file).arg("--check-config").output().unwrap();
    assert_eq!(checked.status.code(), Some(2));
    assert_eq!(balboad.signal(Signal::SIGTERM).code(), Some(0));
    manager.await_line("STOPPING=1");
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let flags = |flags| fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
    flags(OFlag::O_NONBLOCK);
    let mut full = 0;
    while let Ok(bytes) = nix::unistd::write(&writer, &[b'x'; 4096]) {
        full += bytes;
    }
    flags(OFlag::empty());
    let mut command = command(&state, &["--soft", "2"]);
    command.env("RUST_LOG", "info").stderr(Stdio::from(writer));
    let mut balboad = Balboad::start_as(command, &state);
    assert_eq!(balboad.status()["cards"].as_array().unwrap().len(), 2);
    // A reader that comes back gets the number of lost lines.
    let mut reader = File::from(reader);
    reader.read_exact(&mut vec![0; full]).unwrap();
    assert_eq!(balboad.signal(Signal::SIGTERM).code(), Some(0));
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(" lines are lost, for nobody read the log"), "{rest}");
    assert!(rest.contains("balboad stops"), "{rest}");
}

#[test]
fn a_reload_shows_metrics_moves_them_and_hides_them() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("balboad.toml");
    let (state, log) = (root.path().join("state"), root.path().join("log"));
    let write = |more: &str| {
        fs::write(&file, format!("soft = 2\nstate-dir = {state:?}\n{more}")).unwrap();
    };
    let at = |name: &str| root.path().join(name);
    let metrics = |name: &str| format!("metrics = \"unix:{}\"\n", at(name).display());
    write("");
    let mut command = configured(&file);
    command.stderr(File::create(&log).unwrap());
    let balboad = Balboad::start_as(command, &state);
    let pid = Pid::from_raw(balboad.child.id() as i32);
    let client = RawClient::provider(&state);
    for (name, before) in [("first", None), ("second", Some("first"))] {
        write(&metrics(name));
        kill(pid, Signal::SIGHUP).unwrap();
        await_text(&log, &format!("metrics are shown at unix:{}", at(name).display()));
        let page = page(&at(name));
        for line in [
            "node_infiniband_state_id{device=\"balboa1\",port=\"1\"} 4\n",
            "node_infiniband_port_data_transmitted_bytes_total{device=\"balboa0\",port=\"1\"} 0\n",
            "balboa_hw_sent_pkts_total{device=\"balboa0\",port=\"1\"} 0\n",
            "balboa_clients{role=\"provider\"} 1\n",
            "balboa_engine_alive{device=\"balboa1\",vfpga=\"3\"} 1\n",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(before.is_none_or(|before| !at(before).exists()));
    }
    // A path that is taken: the metrics stay where they are.
    fs::write(at("taken"), "precious").unwrap();
    write(&metrics("taken"));
    kill(pid, Signal::SIGHUP).unwrap();
    await_text(&log, "the configuration stays as it was: metrics cannot be shown at");
    UnixStream::connect(at("second")).unwrap();
    write("");
    kill(pid, Signal::SIGHUP).unwrap();
    let begun = Instant::now();
    while at("second").exists() {
        assert!(begun.elapsed() < LIMIT);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(client);
}

#[test]
fn every_name_of_the_dashboard_is_one_of_the_pages() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metrics");
    let at = format!("unix:{}", path.display());
    let _balboad =
        Balboad::start_in(&root.path().join("state"), &["--soft", "1", "--metrics", &at]);
    let page = page(&path);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/grafana-dashboard.json");
    let dashboard: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let expressions: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(panels.len() > 5 && expressions.len() > 10);
    for expression in expressions {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = |word: &&str| word.starts_with("balboa_") || word.starts_with("node_");
        let names: Vec<&str> = words.filter(ours).collect();
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(page.contains(&format!("\n{name}{{")), "{name} is not in {page}");
        }
    }
}

#[test]
fn a_configuration_is_checked_without_a_card() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("balboad.toml");
    let check = |text: &str, more: &[&str]| {
        fs::write(&file, text).unwrap();
        let output = configured(&file).arg("--check-config").args(more).output().unwrap();
        let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), told(&output.stdout), told(&output.stderr))
    };
    let (code, told, _) = check("soft = 2\nvfio = [\"3b:00.0\"]\n", &[]);
    assert_eq!(code, Some(0));
    assert!(told.ends_with(": well; 2 software cards, 1 behind VFIO\n"), "{told}");
    for (text, more, sentence) in [
        ("soft = 17\n", &[][..], "from 1 to 16"),
        ("soft = 1\nsofd = 1\n", &[], "line 2: unknown field `sofd`"),
        ("soft = 1\nmanifest = [\"/nonexistent\"]\n", &[], "/nonexistent"),
        ("soft = 1\n", &["--ip", "5=10.0.0.1"], "there is no card 5"),
    ] {
        let (code, _, why) = check(text, more);
        assert_eq!(code, Some(2), "{why}");
        assert!(why.contains(sentence) && why.lines().count() == 1, "{why}");
    }
}

#[test]
fn what_is_found_wrong_at_the_start_ends_balboad_as_a_wrong_argument() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("balboad.toml");
    for (text, sentence) in [
        ("soft = 1\nmanifest = [\"/nonexistent\"]\n", "/nonexistent"),
        ("soft = 1\nlossy = true\n", "--lossy: no card here has a published bitstream"),
        (
            "soft = 1\nsoft-image = [\"stock\"]\ntunnel-peers = \"/nonexistent\"\n",
            "/nonexistent: it cannot be read",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let state = root.path().join("state");
        let output = configured(&file).arg("--state-dir").arg(&state).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        let last = why.lines().last().unwrap_or_default();
        assert!(last.contains(sentence), "{why}");
        assert_eq!(output.status.code(), Some(2), "{why}");
    }
}

#[test]
fn a_socket_that_was_handed_over_is_served_and_left() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    fs::create_dir(&state).unwrap();
    let path = state.join(SOCKET_NAME);
    let socket = listening(&path, SockType::SeqPacket);
    // Who comes before balboad waits, and is served.
    let early = RawClient::dial(&state);
    let mut balboad = Balboad::start_as(activated(&state, socket, ""), &state);
    let client = RawClient::connect(&state, Role::Tool).unwrap();
    // A program declares balboad as its tracer, and not the maker of the socket.
    let served_by = peer_credentials(client.as_fd()).unwrap();
    assert_eq!(served_by.pid.as_raw(), balboad.child.id() as i32);
    assert_eq!(balboad.signal(Signal::SIGTERM).code(), Some(0));
    early.await_end();
    assert!(path.exists(), "the service manager removes it");
}

#[test]
fn what_is_no_socket_of_balboads_is_refused_in_a_sentence() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    fs::create_dir(&state).unwrap();
    let path = state.join(SOCKET_NAME);
    let elsewhere = root.path().join("elsewhere");
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    for (make, more, sentence) in [
        ((&|| listening(&elsewhere, SockType::SeqPacket)) as &dyn Fn() -> OwnedFd, "", "elsewhere"),
        (&|| listening(&path, SockType::Stream), "", "ListenSequentialPacket="),
        (&null, "", "is not a socket"),
        (&null, "export LISTEN_FDS=2;", "2 descriptors, where one is taken"),
    ] {
        let _ = (fs::remove_file(&path), fs::remove_file(&elsewhere));
        let output = activated(&state, make(), more).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(why.contains(sentence) && why.lines().count() == 1, "{why}");
    }
    // Meant for another process: not looked at.
    let mut command = command(&state, &["--soft", "1"]);
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    Balboad::start_as(command, &state);
}
