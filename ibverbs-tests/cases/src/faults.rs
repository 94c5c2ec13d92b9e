//! Bad cables: losses, duplicates, disorder and damage on the way change no result.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{Both, run_between};
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use harness::table::table;
use serde_json::Value;

use super::pingpong::on_bad_cable;
use super::{IBVERBS_UTILS, PERFTEST};

/// The cables: name, and balboad's option. A frame between two cards passes both their cables.
const CABLES: [(&str, &str); 6] = [
    ("loss", "loss=1%"),
    ("dup", "dup=1%"),
    ("reorder", "reorder=1%"),
    ("corrupt", "corrupt=1%"),
    ("ecn and delay", "ecn=1%,delay=5us..50us"),
    ("all", "loss=1%,dup=1%,reorder=1%,corrupt=1%,ecn=1%"),
];
/// The programs of perftest. Their acknowledgement timeout is 67 ms, as that of all here: eight of them are much more than
/// a busy machine keeps a card waiting.
const PERFTESTS: [&str; 6] = [
    "ib_write_bw -F -s 65536 -n 200",
    "ib_read_bw -F -s 65536 -n 200",
    "ib_send_bw -F -s 65536 -n 200",
    "ib_write_lat -F -n 100",
    "ib_read_lat -F -n 100",
    "ib_send_lat -F -n 100",
];
/// How long 16 MiB may take, or other messages of a program.
const BULK: Duration = Duration::from_secs(180);

/// The family.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, fault) in CABLES {
        let mut add =
            |what: &str, needs: &[Need], body: fn(&Setting, &Daemon<'_>) -> Result<()>| {
                cases.push(Case::new(format!("bad cable/{name}/{what}"), needs, move |setting| {
                    let daemon = setting.balboad(&format!("--soft 2 --fault {fault}"))?;
                    body(setting, &daemon)?;
                    was_bad(&daemon, fault)?;
                    daemon.stop()
                }));
            };
        add("ibv_rc_pingpong", &[IBVERBS_UTILS], pingpong);
        add("perftest", &[PERFTEST], perftests);
        add("16 MiB", &[], bulk);
        add("atomics", &[], counter);
        add("data", &[], data);
        add("unreliable services", &[], unreliable);
        add("XRC", &[], xrc);
    }
    cases
}

/// Checks data with `-c`, and fails where it is wrong.
fn pingpong(_: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let command = "ibv_rc_pingpong -c -g 1 -m 1024 -n 100";
    let Both { server, client } = on_bad_cable(|| run_between((daemon, 0), (daemon, 1), command))?;
    for side in [server, client] {
        let side = side.says("819200 bytes in ")?.says("100 iters in ")?;
        ensure!(!side.stdout.contains("invalid data"), "{side}");
    }
    Ok(())
}

fn perftests(_: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    for command in PERFTESTS {
        let both = run_between((daemon, 0), (daemon, 1), command);
        let Both { client, .. } = both.with_context(|| command.to_owned())?;
        ensure!(table(&client)?.len() == 1, "expected one row: {client}");
    }
    Ok(())
}

/// A message of 16 MiB each way, in frames of 256 bytes; every byte is compared. What is lost twice is
/// sent again only after the acknowledgement timeout, which makes most of the time.
fn bulk(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    for operation in ["send", "read"] {
        let program = setting.bin.join("verbs-data");
        let task = daemon.run("").arg(program).words("huge --mib 16 --mtu 256").arg(operation);
        task.limit(BULK).run()?.success()?.says("16 MiB arrived")?;
    }
    Ok(())
}

/// Clients of both cards that add to the same words: repeated requests must not count twice.
fn counter(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let program = setting.bin.join("verbs-data");
    let task = daemon.run("").arg(program).words("counter");
    task.limit(BULK).run()?.success()?.says("3200 atomics counted once")?;
    Ok(())
}

/// Messages of every kind between two programs, atomics, and keys that are taken back; every byte is compared.
fn data(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let program = setting.bin.join("verbs-data");
    let command = format!("{} apart --bad-cable", program.display());
    let Both { server, client } = run_between((daemon, 0), (daemon, 1), &command)?;
    for side in [server, client] {
        let side = side.says("350 messages arrived as they should")?;
        side.says("80 atomics counted once")?.says("20 keys were taken back")?;
    }
    Ok(())
}

/// Messages and datagrams without acknowledgement: those that arrive are right.
fn unreliable(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    for service in ["uc", "ud"] {
        let program = setting.bin.join("verbs-data");
        let command = format!("{} apart --bad-cable --service {service}", program.display());
        let Both { server, client } = run_between((daemon, 0), (daemon, 1), &command)?;
        for side in [server, client] {
            side.says(" messages arrived as they should")?;
        }
    }
    Ok(())
}

/// XRC messages of every kind; every byte is compared.
fn xrc(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let program = setting.bin.join("verbs-data");
    let task = daemon.run("").arg(program).words("xrc --bad-cable");
    task.limit(BULK).run()?.success()?.says("555 XRC messages arrived")?;
    Ok(())
}

/// Checks that the cables had the faults of their options.
pub(crate) fn was_bad(daemon: &Daemon<'_>, fault: &str) -> Result<()> {
    let status = daemon.status()?;
    let cards = status["cards"].as_array().context("no cards")?;
    for (option, counter) in [
        ("loss", "fault_lost_tx"),
        ("dup", "fault_duplicated_tx"),
        ("reorder", "fault_reordered_tx"),
        ("corrupt", "fault_corrupted_tx"),
        ("ecn", "fault_ecn_marked_tx"),
        ("delay", "fault_delayed_tx"),
    ] {
        let of = |card: &Value| card["counters"][counter].as_u64();
        let count: Option<u64> = cards.iter().map(of).sum();
        let count = count.with_context(|| format!("no {counter}"))?;
        ensure!((count > 0) == fault.contains(option), "{fault}: {counter} is {count}");
    }
    Ok(())
}
