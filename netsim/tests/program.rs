//! The program `netsim`, as a user starts it: its exit codes, its sentences, and the files that it writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A small network, whose bars follow.
const NETWORK: &str = "\
[small]
shape.ring.switches = 4
host = { rate = \"100G\", delay = \"1us\" }
trunk = { rate = \"100G\", delay = \"1us\", ets = { weights = { 0 = 40, 3 = 60 } } }
switch = { buffer = \"1M\", reserve = \"4k\", pfc = [3] }
congestion = { algorithm = \"dcqcn-mlx5\", min_rate = 10 }
routes = [{ switch = 0, to = 2, via = 1 }, { switch = 2, to = 0, via = 3 }]
traffic = [{ pattern = \"shape\", bytes = \"64k\", messages = 3, class = 104 }]
";

fn netsim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_netsim")).args(arguments).output().unwrap()
}

/// A file of a test's own in the directory of all tests.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs the networks of a text.
fn of_text(name: &str, text: &str, more: &[&str]) -> Output {
    let file = place(name);
    fs::write(&file, text).unwrap();
    netsim(&[&["--file", file.to_str().unwrap()], more].concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that a run ended with exit code 2 and one sentence that says so.
#[track_caller]
fn assert_refused(output: &Output, says: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.starts_with("netsim: ") && told.contains(says), "{told}");
    assert_eq!((told.lines().count(), stdout(output).as_str()), (1, ""), "{told}");
}

#[test]
fn a_wrong_description_is_told_in_one_sentence_with_exit_code_2() {
    let end = ["--until", "10us"];
    for (from, to, says) in [
        (
            "rate = \"100G\"",
            "rate = \"0G\"",
            "the network 'small': a rate is 0, and has to be 1k to 10000G",
        ),
        ("3 = 60", "3 = 50", "the network 'small': ets: the weights are 90 in all"),
        ("3 = 60", "9 = 60", "a priority of ets is 9, and has to be 0 to 7"),
        (
            "min_rate = 10",
            "min_rate = 131072",
            "the network 'small': congestion: min_rate is 131072; it can be 0 to 131071",
        ),
        (
            "to = 0, via = 3 }",
            "to = 0, via = 3 }, { switch = 3, to = 0, via = 2 }",
            "the network 'small': the routes to host 0 have a loop through switch",
        ),
        ("[small]", "[small", "the networks' description: "),
    ] {
        let text = NETWORK.replacen(from, to, 1);
        assert_ne!(text, NETWORK, "{from}");
        assert_refused(&of_text("wrong.toml", &text, &end), says);
    }
    assert_refused(&of_text("endless.toml", NETWORK, &[]), "give --until");
    assert_refused(&netsim(&["no-such-network"]), "there is no network 'no-such-network'");
    assert_refused(&netsim(&["--file", "/nonexistent"]), "cannot read /nonexistent");
    assert_refused(&netsim(&["--seeds", "0"]), "--seeds");
}

#[test]
fn a_network_that_breaks_a_bar_ends_the_program_with_exit_code_1() {
    let text = format!("{NETWORK}bars = {{ until = \"100us\", goodput.least = \"60G\" }}\n");
    let kept = of_text("kept.toml", &text, &["--seeds", "2"]);
    let said = stdout(&kept);
    assert_eq!(kept.status.code(), Some(0), "{said}");
    assert!(said.ends_with("\n2 passed, 0 failed, 0 skipped\n"), "{said}");
    let broken = of_text("broken.toml", &text.replace("60G", "64G"), &[]);
    let said = stdout(&broken);
    assert_eq!(broken.status.code(), Some(1), "{said}");
    assert!(said.contains("FAIL small, seed 1: "), "{said}");
    assert!(said.contains("goodput in bits per second is "), "{said}");
    assert!(said.ends_with("failed: small, seed 1\n0 passed, 1 failed, 0 skipped\n"), "{said}");
}

#[test]
fn the_results_of_a_run_are_written_as_tables_and_charts() {
    let directory = place("results");
    let options = ["small", "--until", "100us", "--write", directory.to_str().unwrap()];
    let run = of_text("written.toml", NETWORK, &options);
    assert_eq!(run.status.code(), Some(0), "{}", stdout(&run));
    for file in ["queues", "flows", "rates", "priorities", "fairness", "messages"] {
        let chart = fs::read_to_string(directory.join(file).with_extension("svg")).unwrap();
        assert!(chart.starts_with("<svg ") && chart.contains("<polyline"), "{file}: {chart}");
        if !["rates", "priorities"].contains(&file) {
            let table = fs::read_to_string(directory.join(file).with_extension("csv")).unwrap();
            assert!(table.lines().count() > 1, "{file}: {table}");
        }
    }
    // All messages arrived, and each chart has the time in the unit that suits it.
    let messages = fs::read_to_string(directory.join("messages.csv")).unwrap();
    assert_eq!(messages.lines().count(), 1 + 4 * 3, "{messages}");
    let chart = fs::read_to_string(directory.join("queues.svg")).unwrap();
    assert!(chart.contains(">µs</text>"), "{chart}");
}
