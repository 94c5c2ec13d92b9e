//! Clients that die in other ways than by closing their socket.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Balboad, RawClient};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shim_abi::Request;

/// Names the state directory to this program when it is run again as a client.
const CLIENT_OF: &str = "BALBOAD_TEST_CLIENT_OF";

/// The test below, as the test runner names it.
const TEST: &str = "death::a_killed_client_ends_although_a_child_holds_its_socket";

/// Opens a card, hands the socket on to a child, tells its number and waits for the end.
fn be_the_client(dir: &Path) -> ! {
    let client = RawClient::provider(dir);
    client.ask(Request::OpenContext { card: 0 });
    fcntl(client.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let mut heir = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    println!("heir {}", heir.id());
    heir.wait().unwrap();
    panic!("the client outlived its heir");
}

#[test]
fn a_killed_client_ends_although_a_child_holds_its_socket() {
    if let Some(dir) = std::env::var_os(CLIENT_OF) {
        be_the_client(Path::new(&dir));
    }
    let balboad = Balboad::start(&["--soft", "1"]);
    let mut client = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", TEST])
        .env(CLIENT_OF, &balboad.dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let heir = lines
        .map(Result::unwrap)
        .find_map(|line| line.split("heir ").nth(1).map(|pid| pid.parse::<i32>().unwrap()))
        .expect("the client's heir");
    let pid = client.id();
    let has_client = |status: &serde_json::Value| {
        let clients = status["clients"].as_array().unwrap();
        clients.iter().any(|client| client["pid"] == pid)
    };
    assert!(has_client(&balboad.status()));
    client.kill().unwrap();
    client.wait().unwrap();
    balboad.await_status("the client's end", |status| {
        !has_client(status) && status["cards"][0]["windows"][0]["free_pages"] == 14
    });
    kill(Pid::from_raw(heir), Signal::SIGKILL).unwrap();
}
