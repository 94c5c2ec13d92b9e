//! UCX, whose transports over verbs are `rc_verbs` (a shared receive queue, with an auxiliary `ud_verbs` by
//! which its queue pairs are connected) and `ud_verbs`, which is reliable by itself.

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, run_pair};
use harness::process::{Finished, Task};
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};

use super::counters::went_through;

pub(crate) const UCX: Need = Need::Program("ucx_perftest", "ucx-utils");
/// Debian's UCX 1.23~rc1 comes without it.
const VERBS: Need = Need::Library("ucx/libuct_ib.so.0", "libucx0");

/// Transports.
const TRANSPORTS: [&str; 2] = ["rc_verbs", "ud_verbs"];

/// The tests that run on each of them, and by UCX's own choice: matched messages short, eager and by rendezvous, active
/// messages, a stream, and accesses to the peer's memory.
const TESTS: [&str; 10] = [
    "tag_lat -s 8 -n 1000",
    "tag_bw -s 4096 -n 1000",
    "tag_bw -s 1048576 -n 50",
    "ucp_am_lat -s 2000 -n 1000",
    "stream_bw -s 8192 -n 500",
    "ucp_put_bw -s 65536 -n 200",
    "ucp_get -s 65536 -n 200",
    "ucp_put_lat -s 8 -n 500",
    "ucp_fadd -s 8 -n 500",
    "ucp_cswap -s 8 -n 500",
];

/// The family.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for transport in TRANSPORTS {
        for test in TESTS {
            cases.push(case(Transport::Over(transport), test, "1"));
        }
        // The link-local addresses.
        cases.push(case(Transport::Over(transport), "tag_bw -s 4096 -n 1000", "0"));
    }
    cases.push(Case::new("ucx/ucx_info -d", &[UCX, VERBS], info));
    cases.extend(TESTS.map(|test| case(Transport::OwnChoice, test, "1")));
    cases
}

/// UCX finds the transports on every card.
fn info(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let told = daemon.run("ucx_info -d").run()?.success()?;
    let lines: Vec<&str> = told.stdout.lines().map(str::trim).collect();
    for card in ["balboa0:1", "balboa1:1"] {
        for transport in TRANSPORTS {
            let name = format!("#      Transport: {transport}");
            let found = lines.windows(2).any(|two| {
                two[0].ends_with(name.trim_start()) && two[1].ends_with(&format!("Device: {card}"))
            });
            ensure!(found, "no {transport} on {card}: {told}");
        }
    }
    daemon.stop()
}

/// The transport that UCX is told to take.
#[derive(Clone, Copy)]
enum Transport {
    /// One transport, between two cards.
    Over(&'static str),
    /// Nothing, but that no memory is to be shared; TCP is left to it. Of several cards it would use some.
    OwnChoice,
}

fn case(transport: Transport, test: &'static str, gid: &'static str) -> Case {
    let transport_name = match transport {
        Transport::Over(transport) => transport,
        Transport::OwnChoice => "its own choice",
    };
    let name = format!("ucx/{transport_name}/{test}/gid {gid}");
    Case::new(name, &[UCX, VERBS], move |setting| run(setting, transport, test, gid))
}

/// A side of `ucx_perftest`.
pub(crate) fn perftest(daemon: &Daemon<'_>, transport: &str, card: u32, port: u16) -> Task {
    plain(daemon, port)
        // `aux`: only to connect with, where the other needs it.
        .env("UCX_TLS", format!("{transport},ud_verbs:aux"))
        .env("UCX_NET_DEVICES", format!("balboa{card}:1"))
}

/// The same, told nothing but the port.
fn plain(daemon: &Daemon<'_>, port: u16) -> Task {
    // From UCX 1.18 on Debian's takes itself for a program of MPI's where its input is none, and then does not end.
    daemon.run(&format!("ucx_perftest -p {port}")).at_terminal()
}

/// Only that it reached the end is looked at: the figures of a line of numbers.
pub(crate) fn has_figures(client: &Finished) -> Result<()> {
    let figures = client.stdout.lines().rev().find(|line| !line.trim().is_empty());
    let all_numbers = figures.is_some_and(|line| {
        line.split_whitespace().count() >= 3
            && line.split_whitespace().all(|word| word.parse::<f64>().is_ok())
    });
    ensure!(all_numbers, "there are no figures: {client}");
    Ok(())
}

fn run(setting: &Setting, transport: Transport, test: &str, gid: &str) -> Result<()> {
    let cards = if matches!(transport, Transport::Over(_)) { 2 } else { 1 };
    let daemon = setting.balboad(&format!("--soft {cards}"))?;
    let port = free_port()?;
    let side = |card: u32| {
        let task = match transport {
            Transport::Over(transport) => perftest(&daemon, transport, card, port),
            Transport::OwnChoice => plain(&daemon, port).env("UCX_TLS", "^sm"),
        };
        task.env("UCX_IB_GID_INDEX", gid)
    };
    let client = side(1).arg("127.0.0.1").arg("-t").words(test).arg("-f").arg("-w").arg("100");
    let client = run_pair(side(0), client, port)?.client;
    has_figures(&client)?;
    let bytes = bytes(test).with_context(|| format!("{test:?} says no size and number"))?;
    went_through(std::slice::from_ref(&daemon), cards, bytes)
        .with_context(|| format!("after {client}"))?;
    daemon.stop()
}

/// The payload in bytes of a test's messages, if it has any.
fn bytes(test: &str) -> Option<u64> {
    let words: Vec<&str> = test.split_whitespace().collect();
    let value = |option| words.windows(2).find(|two| two[0] == option)?[1].parse::<u64>().ok();
    Some(value("-s")? * value("-n")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_says_how_much_it_moves() {
        assert_eq!(bytes("tag_bw -s 4096 -n 1000"), Some(4_096_000));
        assert_eq!(bytes("tag_bw -s 4096"), None);
        assert!(TESTS.iter().all(|test| bytes(test) > Some(0)));
    }
}
