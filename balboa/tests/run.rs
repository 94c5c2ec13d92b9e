//! Tests of the output of `balboa run`, with a stand-in for balboad.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
    send, socket,
};
use shim_abi::{CardInfo, MAX_MESSAGE, PortInfo, Reply, Request, Response, SOCKET_NAME};
use tempfile::TempDir;
use verbs_sys::{RELEASES, Release};

const OLDEST: Release = RELEASES[0];
const BALBOA: &str = env!("CARGO_BIN_EXE_balboa");

/// A copy of balboa with the oldest release's provider beside it, and a libibverbs of the given file name; both files
/// are empty, but for the name of the private interface, for only balboa's own work is tried.
fn installed(libibverbs: &str) -> (TempDir, Command) {
    let home = tempfile::tempdir().unwrap();
    let place = |name: &str| home.path().join(name);
    // Another process copies: a child that is forked while this process has the copy open for writing would keep it
    // busy.
    let copied = Command::new("cp").arg(BALBOA).arg(place("balboa")).status().unwrap();
    assert!(copied.success(), "cp: {copied}");
    fs::write(place(libibverbs), format!("\0IBVERBS_PRIVATE_{}\0", OLDEST.private_abi)).unwrap();
    fs::write(place(&OLDEST.provider()), "").unwrap();
    std::os::unix::fs::symlink(libibverbs, place("libibverbs.so.1")).unwrap();
    let mut balboa = Command::new(place("balboa"));
    balboa.env("LD_LIBRARY_PATH", home.path());
    (home, balboa)
}

/// Runs `balboa run --state-dir DIR -- COMMAND`.
fn balboa_run(dir: &Path, command: &[&str]) -> Output {
    let (_home, mut balboa) = installed(&format!("libibverbs.so.1.14.{}.0", OLDEST.number));
    balboa.args(["run", "--state-dir"]).arg(dir).arg("--").args(command);
    balboa.output().unwrap()
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, sentence: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(sentence), "expected {sentence:?} in {said:?}");
    assert_eq!(said.lines().count(), 1, "one sentence: {said:?}");
    assert_eq!(output.status.code(), Some(code), "{said}");
}

fn listener(dir: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(fd.as_raw_fd(), &UnixAddr::new(&dir.join(SOCKET_NAME)).unwrap()).unwrap();
    listen(&fd, Backlog::new(8).unwrap()).unwrap();
    fd
}

/// A state directory with a server that answers the hello and one request, which is `asked`, of one client.
fn balboad_that_answers(asked: Request, answer: Response) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let listener = listener(dir.path());
    std::thread::spawn(move || {
        let client = accept(listener.as_raw_fd()).unwrap();
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut receive = || {
            let bytes = recv(client, &mut buffer, MsgFlags::empty()).unwrap();
            buffer[..bytes].to_vec()
        };
        let hello: shim_abi::Hello = shim_abi::decode_hello(&receive()).unwrap();
        assert_eq!(hello.role, shim_abi::Role::Tool);
        let done: Reply = Ok(Response::Done);
        send(client, &shim_abi::hello_frame(&done), MsgFlags::empty()).unwrap();
        assert_eq!(shim_abi::decode::<Request>(&receive()), Ok(asked));
        let answer: Reply = Ok(answer);
        send(client, &shim_abi::encode(&answer), MsgFlags::empty()).unwrap();
        // Kept until it is read.
        receive();
    });
    dir
}

/// A state directory with a server that lists cards.
fn balboad_with(cards: Vec<CardInfo>) -> TempDir {
    balboad_that_answers(Request::ListCards, Response::Cards(cards))
}

/// A state directory with a server that introduces itself.
fn balboad_that_is(network_namespace: u64, options: &str) -> TempDir {
    let options = options.split(' ').map(str::to_owned).collect();
    let who = Response::Balboad { pid: 7, network_namespace, options };
    balboad_that_answers(Request::Introduce, who)
}

/// Runs `balboa run --state-dir DIR --start WORDS`, beside a balboad that is a script.
fn start(dir: &Path, script: Option<&str>, words: &[&str]) -> Output {
    let (home, mut balboa) = installed(&format!("libibverbs.so.1.14.{}.0", OLDEST.number));
    let written = script.is_none_or(|script| {
        let file = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(file).arg("sh").arg(script).arg(home.path().join("balboad"));
        shell.status().unwrap().success()
    });
    assert!(written);
    balboa.args(["run", "--state-dir"]).arg(dir).arg("--start").args(words);
    balboa.output().unwrap()
}

fn card(card: u32) -> CardInfo {
    let port = PortInfo {
        link_up: true,
        max_mtu: 5,
        active_mtu: 5,
        mac: [2, 0, 0, 0, 0, 1],
        gids: vec![[0xfe; 16]],
        vlans: vec![0],
        pkeys: vec![0xffff],
    };
    CardInfo {
        card,
        name: format!("balboa{card}"),
        node_guid: 1,
        firmware: "1.0".into(),
        board: "soft".into(),
        port,
    }
}

#[test]
fn a_missing_program_is_127_and_names_its_package() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(BALBOA)
        .args(["run", "--", "ib_write_bw"])
        .env("PATH", dir.path())
        .output()
        .unwrap();
    assert_fails(&output, 127, "apt-get install perftest");
}

#[test]
fn a_file_that_is_no_program_is_126() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    fs::write(&file, "").unwrap();
    let output = balboa_run(dir.path(), &[file.to_str().unwrap()]);
    assert_fails(&output, 126, "not an executable file");
}

#[test]
fn a_libibverbs_without_a_provider_is_named_with_its_release() {
    let (_home, mut balboa) = installed("libibverbs.so.1.14.52.0");
    let output = balboa.args(["run", "--", "true"]).output().unwrap();
    assert_fails(&output, 125, "is of rdma-core 52, for which there is no Balboa provider");
}

#[test]
fn a_release_whose_provider_is_not_installed_is_named_with_its_package() {
    let (_home, mut balboa) = installed("libibverbs.so.1.14.56.1");
    let output = balboa.args(["run", "--", "true"]).output().unwrap();
    assert_fails(&output, 125, "or install the package balboa-provider-56");
}

#[test]
fn a_libibverbs_that_does_not_tell_its_release_is_not_guessed_at() {
    let (_home, mut balboa) = installed("libibverbs.so.1.private");
    let output = balboa.args(["run", "--", "true"]).output().unwrap();
    assert_fails(&output, 125, "cannot tell the rdma-core release");
}

#[test]
fn a_wrong_command_line_is_not_taken_for_the_programs_own_failure() {
    let output = Command::new(BALBOA).args(["run", "--state-dir"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let output = Command::new(BALBOA).args(["status", "--no-such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// The sentences about balboad; `balboa status` has them without waiting.
fn status(dir: &Path) -> Output {
    Command::new(BALBOA).args(["status", "--state-dir"]).arg(dir).output().unwrap()
}

#[test]
fn each_wrong_state_directory_has_a_sentence_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    assert_fails(&status(&dir.path().join("none")), 1, "no balboad serves");
    assert_fails(&status(dir.path()), 1, "no balboad serves");

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert_fails(&status(&file), 1, "is not a directory");

    drop(listener(dir.path()));
    assert_fails(&status(dir.path()), 1, "left over from a balboad that has ended");
}

#[test]
fn a_program_sees_the_cards_and_nothing_of_it_remains() {
    let dir = balboad_with(vec![card(0), card(1)]);
    let plugin = format!("libbalboa{}", OLDEST.suffix());
    let script = "ls /sys/class/infiniband; cat /sys/class/infiniband_verbs/uverbs901/ibdev; \
        readlink /dev/infiniband/uverbs900; ls -d /sys/class/net; echo > /dev/null; \
        ls $RDMAV_DRIVERS-*; \
        touch /dev/infiniband/more /sys/class/more 2>/dev/null || echo read-only; \
        grep -c NoNewPrivs:.1 /proc/self/status; ls -A \"$BALBOA_STATE_DIR\"; exit 42";
    let output = balboa_run(dir.path(), &["sh", "-c", script]);
    let expected = format!(
        "balboa0\nbalboa1\nbalboa1\n/dev/full\n/sys/class/net\n/dev/infiniband/{plugin}\nread-only\n1\n{SOCKET_NAME}\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert!(!Path::new("/dev/infiniband").join(plugin).exists());
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [SOCKET_NAME]);
}

#[test]
fn a_balboad_without_cards_is_told() {
    let dir = balboad_with(Vec::new());
    assert_fails(&balboa_run(dir.path(), &["true"]), 125, "has no card");
}

#[test]
fn why_balboad_did_not_start_is_told_in_its_own_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("a/state");
    let script = "echo details >&2; echo \"balboad: no card $*\" >&2; exit 7";
    let output = start(&state, Some(script), &["--soft", "0", "--", "true"]);
    let sentence = format!(
        "balboa run: balboad did not start (exit status: 7): no card --state-dir {} --soft 0\n",
        state.display()
    );
    assert_fails(&output, 125, &sentence);
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&fs::metadata(&state).unwrap()) & 0o777, 0o700);
    let output = start(&state, Some("echo help; echo more"), &["--help", "--", "true"]);
    assert_fails(&output, 125, "balboad ended without serving, as --help, --version and");
    let output = start(&state, Some("kill -9 $$"), &["--", "true"]);
    assert_fails(&output, 125, "did not start (signal: 9 (SIGKILL)): it has logged nothing");
    // Nothing that is asked for is lost, and two software cards are the default.
    let script = "env | sort >&2; echo \"balboad: $*\" >&2; exit 1";
    let output = start(&state, Some(script), &["--", "true"]);
    assert_fails(&output, 125, &format!("--state-dir {} --soft 2\n", state.display()));
    let log = fs::read_to_string(state.join("balboad.log")).unwrap();
    assert!(log.contains("\nBALBOAD_LEASE=1\n") || log.starts_with("BALBOAD_LEASE=1\n"), "{log}");
    assert!(!log.contains("LD_LIBRARY_PATH"), "a clean environment: {log}");
}

#[test]
fn where_balboad_is_looked_for_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (_home, mut balboa) = installed(&format!("libibverbs.so.1.14.{}.0", OLDEST.number));
    balboa.env("PATH", dir.path()).args(["run", "--state-dir"]).arg(dir.path());
    let output = balboa.args(["--start", "--", "/bin/true"]).output().unwrap();
    assert_fails(&output, 125, "the program balboad is neither beside this program (");
}

#[test]
fn a_balboad_that_cannot_be_started_in_a_directory_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert_fails(&start(&file, Some("exit 1"), &["--", "true"]), 125, "is not a directory");
    let below = start(&file.join("state"), Some("exit 1"), &["--", "true"]);
    assert_fails(&below, 125, "file/state");
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&open, mode).unwrap();
    assert_fails(&start(&open, Some("exit 1"), &["--", "true"]), 125, "run chmod 700 on it");
}

#[test]
fn the_program_stands_behind_the_dashes() {
    let dir = tempfile::tempdir().unwrap();
    for words in [&["ib_write_bw"][..], &[], &["--soft", "1"], &["ib_write_bw", "--"]] {
        let output = start(dir.path(), Some("exit 1"), words);
        assert_fails(&output, 125, "no program is given: with --start it stands behind --");
    }
    let output = start(dir.path(), Some("exit 1"), &["--", "no-such-program"]);
    assert_fails(&output, 127, "no-such-program: command not found");
}

#[test]
fn a_balboad_with_other_options_or_in_another_network_is_told() {
    let here = shim_abi::network_namespace();
    let dir = balboad_that_is(here, "--soft 2 -v");
    let output = start(dir.path(), None, &["--soft", "4", "--", "true"]);
    assert_fails(&output, 125, "was started with `--soft 2 -v`, not with `--soft 4`");
    let dir = balboad_that_is(here + 1, "--soft 2");
    let output = start(dir.path(), None, &["--", "true"]);
    assert_fails(&output, 125, "(process 7) is in another network namespace");
}

#[test]
fn none_is_started_within_a_programs_world() {
    let dir = tempfile::tempdir().unwrap();
    let (_home, mut balboa) = installed(&format!("libibverbs.so.1.14.{}.0", OLDEST.number));
    balboa.env("RDMAV_DRIVERS", "/dev/infiniband/libbalboa").args(["run", "--state-dir"]);
    let output = balboa.arg(dir.path()).args(["--start", "--", "true"]).output().unwrap();
    assert_fails(&output, 125, "within balboa run none is started");
}
