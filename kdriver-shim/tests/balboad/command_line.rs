//! balboad as its user sees it: arguments, exit codes, state directory, signals.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use crate::common::{Balboad, RawClient, command};
use nix::sys::signal::Signal;
use shim_abi::{Request, Response, Role};

#[test]
fn a_signal_ends_it_and_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut balboad = Balboad::start_in(&dir, &["--soft", "1"]);
        let client = RawClient::provider(&dir);
        client.ask(Request::OpenContext { card: 0 });
        assert_eq!(balboad.signal(signal).code(), Some(0));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        client.await_end();
    }
}

#[test]
fn a_second_one_is_refused_and_a_killed_one_replaced() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    let mut first = Balboad::start_in(&dir, &["--soft", "1"]);
    let second = command(&dir, &["--soft", "1"]).output().unwrap();
    assert_eq!(second.status.code(), Some(3));
    let why = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(why.contains(&format!("process {}", first.child.id())), "{why}");
    assert!(second.stdout.is_empty());
    assert_eq!(first.signal(Signal::SIGKILL).signal(), Some(9));
    let third = Balboad::start_in(&dir, &["--soft", "1"]);
    assert_eq!(third.status()["pid"], third.child.id());
}

#[test]
fn wrong_arguments_are_one_sentence_and_exit_code_2() {
    let root = tempfile::tempdir().unwrap();
    for (args, sentence) in [
        (&[][..], "--soft 1 runs one software card"),
        (&["--soft", "2", "--ip", "5=10.0.0.1"], "there is no card 5"),
        (&["--soft", "x"], "invalid value 'x'"),
    ] {
        let output = command(root.path(), args).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{why}");
        assert!(why.contains(sentence), "{why}");
    }
    let output = command(root.path(), &["--soft", "1", "--port", "unix:/no/where,/x"]).output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}

#[test]
fn a_card_that_is_not_what_its_manifest_says_has_no_engine_and_a_sentence_why() {
    let root = tempfile::tempdir().unwrap();
    let manifest = root.path().join("vqe.toml");
    let state = root.path().join("state");
    let with = |text: &str, args: &[&'static str]| {
        fs::write(&manifest, text).unwrap();
        let mut all = vec!["--soft", "1", "--manifest", manifest.to_str().unwrap()];
        all.extend(args);
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let failure = |args: Vec<String>| {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut balboad = Balboad::start_in(&state, &args);
        let status = balboad.status();
        assert_eq!(balboad.signal(Signal::SIGTERM).code(), Some(0));
        status["cards"][0]["failure"].as_str().unwrap_or_default().to_owned()
    };
    let new = "format = 1\nname = \"vqe\"\nshell-map = \"since-2026\"\n";
    let why = failure(with(new, &["--soft-map", "before-2026"]));
    assert!(why.contains("correct shell-map in the manifest of vqe"), "{why}");
    let why = failure(with(&format!("{new}regions = 2\n"), &[]));
    assert!(why.contains("has 4 vFPGAs, and vqe has 2 by its manifest"), "{why}");
    for args in [with("shell", &[]), vec!["--soft".into(), "1".into(), "--soft-map=new".into()]] {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let output = command(&state, &args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn every_card_has_the_address_it_was_given() {
    let args = ["--soft", "3", "--ip", "1=192.168.1.2/16", "--ip", "10.9.8.7"];
    let balboad = Balboad::start(&args);
    let tool = RawClient::connect(&balboad.dir, Role::Tool).unwrap();
    let (Response::Cards(cards), _) = tool.ask(Request::ListCards) else { panic!() };
    let macs: Vec<_> = cards.iter().map(|card| card.port.mac[2..].to_vec()).collect();
    assert_eq!(macs, [[10, 9, 8, 7], [192, 168, 1, 2], [10, 77, 0, 3]]);
    assert!(cards.iter().all(|card| card.port.link_up));
    let status = balboad.status();
    assert_eq!(status["cards"][1]["ip"], "192.168.1.2/16");
    assert_eq!(status["cards"][1]["gids"][1], "::ffff:192.168.1.2");
}

#[test]
fn more_processes_fit_on_a_card_than_it_has_doorbell_pages() {
    let balboad = Balboad::start(&["--soft", "1"]);
    let opened = |_| {
        let client = RawClient::provider(&balboad.dir);
        client.ask(Request::OpenContext { card: 0 });
        client
    };
    let clients: Vec<_> = (0..60).map(opened).collect();
    let sum = |status: &serde_json::Value, what: &str| -> u64 {
        let windows = status["cards"][0]["windows"].as_array().into_iter().flatten();
        windows.filter_map(|window| window[what].as_u64()).sum()
    };
    balboad.await_status("four who are relayed", |status| {
        (sum(status, "free_pages"), sum(status, "free_relays")) == (0, 956)
    });
    drop(clients);
    balboad.await_status("free pages", |status| {
        (sum(status, "free_pages"), sum(status, "free_relays")) == (56, 960)
    });
}
