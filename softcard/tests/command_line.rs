//! The program `softcard`, as a user starts it.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn softcard(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softcard"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    softcard(arguments).output().unwrap()
}

/// A served card, once it says that it is ready.
fn serve(socket: &str, port: &str) -> Child {
    let mut command = softcard(&["serve", "--socket", socket, "--port", port]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn wrong_usage_is_told_in_one_line_with_exit_code_2() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["serve"],
        &["serve", "--socket", "/tmp/s"],
        &["serve", "--socket", "/tmp/s", "--port", "tap0"],
        &["serve", "--socket", "/tmp/s", "--port", "unix:a"],
        &["serve", "--socket", "/tmp/s", "--port", "unix:a,b", "--fault", "loss=110%"],
        &["serve", "--socket", "/tmp/s", "--port", "unix:a,b", "--fault", "rate=0"],
        &["serve", "--socket", "/tmp/s", "--port", "udp", "--fault", "rate=1G"],
        &["serve", "--socket", "/tmp/s", "--port", "unix:a,b", "--congestion", "dcqcn"],
        &[
            "serve",
            "--socket",
            "/tmp/s",
            "--port",
            "unix:a,b",
            "--image",
            "stock",
            "--congestion",
            "dcqcn-mlx5",
        ],
        &["serve", "--socket", "/tmp/s", "--port", "unix:a,b", "--seed", "x"],
        &["serve", "--socket", "/tmp/s", "--port", "unix:a,b", "--image", "none"],
        &["serve", "--socket", "/tmp/s", "--port", "unix:a,b", "more"],
    ] {
        let output = run(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.starts_with("softcard: ") && told.lines().count() == 1, "{told}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn files_and_outputs_that_are_none_are_told_in_one_line_with_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    nix::unistd::mkfifo(path("fifo").as_str(), mode).unwrap();
    let port = format!("unix:{},{}", path("a"), path("b"));
    let long = path(&"x".repeat(200));
    for (socket, port, pcap) in [
        ("/", &port, ""),
        ("/no/where", &port, ""),
        (&path("line\nfeed/card"), &port, ""),
        (&long, &port, ""),
        (&path("card"), &"unix:/,b".to_owned(), ""),
        (&path("card"), &format!("unix:{long},b"), ""),
        (&path("card"), &format!("unix:{},{long}", path("a")), ""),
        (&path("card"), &port, "/"),
        (&path("card"), &port, "/dev/full"),
        (&path("card"), &port, &path("fifo")),
    ] {
        let mut arguments = vec!["serve", "--socket", socket, "--port", port];
        if !pcap.is_empty() {
            arguments.extend(["--pcap", pcap]);
        }
        let output = run(&arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(told.starts_with("softcard: ") && told.lines().count() == 1, "{told}");
        assert!(told.matches("os error").count() <= 1, "told twice: {told}");
        assert!(output.stdout.is_empty());
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing but the FIFO: {left:?}");
}

#[test]
fn the_help_tells_the_exit_codes() {
    let output = run(&["serve", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(help.contains("Exit codes: 0 ended by a signal; 1 "), "{help}");
}

#[test]
fn a_signal_has_it_tell_what_the_client_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut child = serve(&path("card"), &format!("unix:{},{}", path("a"), path("b")));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGUSR1).unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    let counters = loop {
        match told.next() {
            Some(line) if line.contains("dma_maps=") => break line,
            Some(line) => said.push(line),
            None => panic!("it ended by itself, {}: {said:?}", child.wait().unwrap()),
        }
    };
    assert!(counters.contains(" clients=0 dma_maps=0 mapped_files=0 interrupt_eventfds=0 "));
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(told.any(|line| line.ends_with("signal 15: softcard stops")));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_card_is_served_until_a_signal_and_leaves_no_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let port = format!("unix:{},{}", path("a"), path("b"));
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut child = serve(&path("card"), &port);
        let _client = UnixStream::connect(path("card")).unwrap();

        let second = run(&["serve", "--socket", &path("card"), "--port", &port]);
        let told = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(1), "{told}");
        assert!(told.contains("ddress already in use") && told.lines().count() == 1, "{told}");

        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
