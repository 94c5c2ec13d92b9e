//! Programs on cards with the published image: operations that it carries, and those that it does not.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use harness::pair::{Both, free_port, run_between, start_server};
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use serde_json::Value;
use verbs_programs::hostile::unanswered::MemoryKind;

use super::capture::{DISSECT, LIMIT, TSHARK, number, tshark};
use super::faults::was_bad;
use super::{IBVERBS_UTILS, PERFTEST, perftest::STEADY_CLOCK};
use crate::attack::unanswered::open_node;

/// Two cards with the published image. A busy peer is not dead: a test's machine may be slower than any card.
const STOCK: &str = "--soft 2 --soft-image stock --tunnel off --watchdog 20000";
/// The same with the tunnel between them.
pub(crate) const TUNNEL: &str = "--soft 2 --soft-image stock --tunnel on --watchdog 20000";
/// The same, where silence is waited for.
const STRAYS: &str = "--soft 2 --soft-image stock --tunnel off --watchdog 5000";
const STRAYS_IN_TUNNEL: &str = "--soft 2 --soft-image stock --tunnel on --watchdog 5000";
/// How long a sweep may take: 850 messages, some of 1 MiB.
const SWEEP: Duration = Duration::from_secs(180);
/// Opcodes of WRITE, READ and their answers: all that the published stack knows, but for SEND.
const OPCODES: [u8; 10] = [0x06, 0x07, 0x08, 0x0a, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11];

/// The family.
pub fn cases() -> Vec<Case> {
    let parts = [programs(), properties(), through_tunnel(), data(), tunnel(), ends()];
    parts.into_iter().flatten().collect()
}

/// perftest's programs without the tunnel, also with a card's old build.
fn programs() -> Vec<Case> {
    let mut cases = Vec::new();
    for program in ["ib_write_bw", "ib_read_bw"] {
        cases.push(Case::new(
            format!("stock/{program} with its defaults, as tshark sees it"),
            &[PERFTEST, TSHARK],
            move |setting| defaults(setting, program),
        ));
    }
    for command in [
        "ib_write_bw -b -n 200",
        "ib_write_bw -q 55 -n 10",
        "ib_read_bw -q 32 -n 10 -s 16384",
        "ib_write_bw -s 4 -n 500",
        "ib_write_bw -I 64 -s 64 -n 500",
        "ib_write_bw -s 8388608 -n 5",
        "ib_read_bw -s 8388608 -n 5",
        "ib_write_lat -s 64 -n 200",
        "ib_read_lat -s 64 -n 200",
    ] {
        cases.push(Case::new(format!("stock/{command}"), &[PERFTEST], move |setting| {
            let daemon = setting.balboad(STOCK)?;
            run_between((&daemon, 0), (&daemon, 1), &format!("{command} {STEADY_CLOCK}"))?;
            unharmed(&daemon)?;
            daemon.stop()
        }));
    }
    for (command, tunnel) in [
        ("ib_write_bw -b -n 100", "off"),
        ("ib_write_bw -q 55 -n 10 -s 16384", "off"),
        ("ib_read_bw -q 32 -n 10 -s 16384", "off"),
        ("ib_send_bw -s 300000 -n 20", "on"),
    ] {
        let name = format!("stock/an old build/{command}");
        cases.push(Case::new(name, &[PERFTEST], move |setting| {
            let cards = "--soft 2 --soft-image stock-old --watchdog 20000";
            let daemon = setting.balboad(&format!("{cards} --tunnel {tunnel}"))?;
            run_between((&daemon, 0), (&daemon, 1), &format!("{command} {STEADY_CLOCK}"))?;
            unharmed(&daemon)?;
            daemon.stop()
        }));
    }
    cases
}

/// Properties of published cards without the tunnel.
fn properties() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.push(Case::new("stock/64 queue pairs of two programs", &[PERFTEST], many));
    cases.push(Case::new("stock/verbs-data published", &[], published));
    cases.push(Case::new("stock/verbs-data races --one-sided", &[], |setting| {
        let daemon = setting.balboad(STOCK)?;
        let program = setting.bin.join("verbs-data");
        let task = daemon.run("").arg(program).words("races --one-sided").limit(SWEEP);
        let says = "nothing came behind the end of memory in 500 races";
        task.run()?.success()?.says(says)?;
        daemon.stop()
    }));
    for command in ["ib_write_bw -n 50", "ib_read_bw -n 50"] {
        let name = format!("stock/to a card that is not as published/{command}");
        cases.push(Case::new(name, &[PERFTEST], move |setting| {
            let daemon = setting.balboad("--soft 2 --soft-image 0=stock --watchdog 20000")?;
            run_between((&daemon, 1), (&daemon, 0), &format!("{command} {STEADY_CLOCK}"))?;
            unharmed(&daemon)?;
            daemon.stop()
        }));
    }
    cases.push(Case::new("stock/two balboads", &[PERFTEST], told_of_rnics));
    cases.push(Case::new(
        "stock/what needs the tunnel is refused by its name",
        &[PERFTEST],
        refused,
    ));
    cases.push(Case::new(
        "stock/a program is told before its card is reset",
        &[IBVERBS_UTILS],
        told_of_reset,
    ));
    cases.push(Case::new(
        "stock/tunnel/the engines' thread sleeps without queue pairs",
        &[PERFTEST],
        sleeps,
    ));
    cases.push(Case::new(
        "stock/a peer that vanishes costs its queue pair, until the reset",
        &[PERFTEST],
        vanished,
    ));
    cases
}

/// Programs through the tunnel.
fn through_tunnel() -> Vec<Case> {
    let mut cases = Vec::new();
    for command in [
        "ib_send_bw -a -n 20",
        "ib_send_bw -b -n 200 -s 5001",
        "ib_send_bw -q 16 -n 50 -s 3",
        "ib_send_bw -r 1 -n 200 -m 256",
        "ib_send_lat -s 65 -n 200",
        "ib_write_bw -a -n 10",
        "ib_write_lat -s 65 -n 200",
        "ib_read_bw -a -n 10",
        "ib_read_lat -s 65 -n 200",
        "ib_atomic_bw -n 500",
        "ib_atomic_lat -A CMP_AND_SWAP -n 200",
    ] {
        let name = format!("stock/tunnel/{command}");
        cases.push(Case::new(name, &[PERFTEST], move |setting| {
            let daemon = setting.balboad(TUNNEL)?;
            run_between((&daemon, 0), (&daemon, 1), &format!("{command} {STEADY_CLOCK}"))?;
            tunnelled(&daemon)?;
            daemon.stop()
        }));
    }
    for options in ["", " -m 256 -e", " -s 5001 -n 200"] {
        let name = format!("stock/tunnel/ibv_rc_pingpong -c{options}");
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| {
            let daemon = setting.balboad(TUNNEL)?;
            let command = format!("ibv_rc_pingpong -c -g 1{options}");
            let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), &command)?;
            for side in [server, client] {
                ensure!(!side.says(" iters in ")?.stdout.contains("invalid data"), "other bytes");
            }
            tunnelled(&daemon)?;
            daemon.stop()
        }));
    }
    cases
}

/// verbs-data through the tunnel, and strays with it and without.
fn data() -> Vec<Case> {
    let mut cases = Vec::new();
    for (command, says) in [
        ("sweep --gid 1", "850 messages arrived"),
        ("sweep --gid 1 --events", "850 messages arrived"),
        ("lists --gid 1", "listed messages arrived"),
        ("shared --gid 1", "600 shared messages arrived"),
        ("many --pairs 31 --rounds 40", "1240 messages arrived on 31 connections"),
        ("counter", "3200 atomics counted once"),
        ("vectors", "648 completions were told of"),
        ("states --reliable-only", "5 states were"),
        ("reach --tries 20", "reached in 20 of 20 before and in 0 of 20 after"),
        ("races", "nothing came behind the end of memory in 700 races"),
    ] {
        let name = format!("stock/tunnel/verbs-data {command}");
        cases.push(Case::new(name, &[], move |setting| {
            let daemon = setting.balboad(TUNNEL)?;
            let program = setting.bin.join("verbs-data");
            let task = daemon.run("").arg(program).words(command).limit(SWEEP);
            task.run()?.success()?.says(says)?;
            tunnelled(&daemon)?;
            daemon.stop()
        }));
    }
    for (way, cards) in [("", STRAYS), ("tunnel/", STRAYS_IN_TUNNEL)] {
        let name = format!("stock/{way}who sends to who is not ready stops no card");
        cases.push(Case::new(name, &[], move |setting| {
            let daemon = setting.balboad(cards)?;
            let program = setting.bin.join("verbs-data");
            let task = daemon.run("").arg(program).words("strays --gid 1").limit(SWEEP);
            task.run()?.success()?.says("3 strays failed and harmed nobody")?;
            unharmed(&daemon)?;
            daemon.stop()
        }));
    }
    cases
}

/// Properties of the tunnel.
fn tunnel() -> Vec<Case> {
    vec![
        Case::new("stock/tunnel/verbs-data errors", &[], errors),
        Case::new(
            "stock/tunnel/what goes over the link, as tshark sees it",
            &[PERFTEST, TSHARK],
            only_writes,
        ),
        Case::new(
            "stock/tunnel/long messages go without slots, as tshark sees it",
            &[PERFTEST, TSHARK],
            granted,
        ),
        Case::new("stock/tunnel/verbs-data grants", &[], taken_back),
        Case::new(
            "stock/tunnel/verbs-data grants --silent",
            &[PERFTEST, Need::Node(MemoryKind::Userfault.node())],
            silent,
        ),
        Case::new("stock/tunnel/two balboads", &[PERFTEST, IBVERBS_UTILS], two_balboads),
        Case::new("stock/tunnel/another key", &[IBVERBS_UTILS], another_key),
    ]
}

/// Ends of programs, balboads and cards, and losses.
fn ends() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, victim) in [("that is written to", 0), ("that writes", 1)] {
        for (way, cards) in [("", STOCK), ("tunnel/", TUNNEL)] {
            cases.push(Case::new(
                format!("stock/{way}a program {name} is killed, and others go on"),
                &[PERFTEST],
                move |setting| killed(setting, cards, victim),
            ));
        }
    }
    for program in ["ib_send_bw", "ib_atomic_bw"] {
        let name = format!("stock/tunnel/a balboad is killed amid {program}");
        cases.push(Case::new(name, &[PERFTEST], |setting| balboad_killed(setting, program)));
    }
    cases.push(Case::new("stock/tunnel/a card is reset that sends", &[PERFTEST], reset_amid));
    cases.extend(on_one_card());
    for command in ["ibv_rc_pingpong -c -g 1 -n 30", "ibv_rc_pingpong -g 1 -n 30 -s 9000"] {
        let name = format!("stock/tunnel/lossy/{command}");
        cases.push(Case::new(name, &[IBVERBS_UTILS], move |setting| lossy(setting, command)));
    }
    cases.push(Case::new("stock/a loss stops a card, which says so", &[PERFTEST], stopped));
    cases
}

/// Between QPs of one card, by the host, with the tunnel and without.
fn on_one_card() -> Vec<Case> {
    let mut cases = Vec::new();
    for (way, cards, command) in [
        ("", STOCK, "ib_write_bw -b -n 200 -s 5001"),
        ("", STOCK, "ib_read_bw -n 50"),
        ("tunnel/", TUNNEL, "ib_send_bw -b -n 200 -s 5001"),
        ("tunnel/", TUNNEL, "ib_atomic_bw -n 200"),
    ] {
        let name = format!("stock/{way}one card/{command}");
        cases.push(Case::new(name, &[PERFTEST], move |setting| {
            let daemon = setting.balboad(cards)?;
            run_between((&daemon, 0), (&daemon, 0), &format!("{command} {STEADY_CLOCK}"))?;
            stayed(daemon)
        }));
    }
    // It has no peer to send to.
    cases.push(Case::new("stock/tunnel/one card/alone", &[PERFTEST, IBVERBS_UTILS], |setting| {
        let daemon =
            setting.balboad("--soft 2 --soft-image 0=stock --tunnel on --watchdog 20000")?;
        run_between((&daemon, 0), (&daemon, 0), &format!("ib_atomic_bw -n 50 {STEADY_CLOCK}"))?;
        run_between((&daemon, 0), (&daemon, 0), "ibv_ud_pingpong -g 1 -n 50")?;
        stayed(daemon)
    }));
    for (command, says) in [
        ("sweep --to balboa0", "850 messages arrived"),
        ("counter --to balboa0", "3200 atomics counted once"),
        ("states --to balboa0 --reliable-only", "5 states were"),
    ] {
        let name = format!("stock/tunnel/one card/verbs-data {command}");
        cases.push(Case::new(name, &[], move |setting| {
            let daemon = setting.balboad(TUNNEL)?;
            let program = setting.bin.join("verbs-data");
            let task = daemon.run("").arg(program).words(command).limit(SWEEP);
            task.run()?.success()?.says(says)?;
            stayed(daemon)
        }));
    }
    cases
}

/// Slots went, and the card posted nothing.
fn stayed(daemon: Daemon<'_>) -> Result<()> {
    are_zero(&daemon, &HARM)?;
    let status = daemon.status()?;
    let [slots, posts] =
        ["tunnel_slots_sent", "engine_posts"].map(|name| counter(&status, 0, name));
    ensure!(slots > 0 && posts == 0, "{slots} slots, {posts} posts");
    daemon.stop()
}

/// A counter of a card, 0 where it is not there.
pub(crate) fn counter(status: &Value, card: usize, name: &str) -> u64 {
    status["cards"][card]["counters"][name].as_u64().unwrap_or(0)
}

/// Counters that are 0 where nothing was lost or refused, copies of counters went where memory is, and both cards go on.
pub(crate) const HARM: [&str; 7] = [
    "stock_reception_stands",
    "stock_sending_starves",
    "stock_lost_posts",
    "stock_lost_frames",
    "stock_refused_transfers",
    "engine_quarantined_qps",
    "dma_faults",
];

/// Checks that no harm was done, and no engine reached for memory without an owner.
fn unharmed(daemon: &Daemon<'_>) -> Result<()> {
    are_zero(daemon, &HARM)?;
    are_zero(daemon, &["engine_pages_of_nobody"])
}

pub(crate) fn are_zero(daemon: &Daemon<'_>, names: &[&str]) -> Result<()> {
    let status = daemon.status()?;
    for name in names {
        for card in [0, 1] {
            let count = counter(&status, card, name);
            ensure!(count == 0, "{name} of card {card} is {count}");
        }
    }
    Ok(())
}

fn defaults(setting: &Setting, program: &str) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("{STOCK} --pcap {}", file.display()))?;
    run_between((&daemon, 0), (&daemon, 1), &format!("{program} {STEADY_CLOCK}"))?;
    unharmed(&daemon)?;
    let status = daemon.status()?;
    let open = status["cards"][0]["unprotected"].as_array().map_or(0, Vec::len);
    ensure!(open > 0, "what is not protected is not said: {status:#}");
    daemon.stop()?;

    let seen = dissect(setting, &file)?;
    let wanted = if program == "ib_read_bw" { 0x0c } else { 0x0a };
    ensure!(seen.contains(&wanted) && seen.contains(&0x11) != (wanted == 0x0c), "{seen:x?}");
    Ok(())
}

/// The opcodes of a capture, of which all are the stack's, each asks to be acknowledged, and none refuses anything.
pub(crate) fn dissect(setting: &Setting, file: &Path) -> Result<BTreeSet<u8>> {
    let fields = ["infiniband.bth.opcode", "infiniband.bth.a", "infiniband.aeth.syndrome"];
    let task =
        tshark(setting, file).words(DISSECT).args(["-Y", "udp.port == 4791", "-T", "fields"]);
    let task = task.args(fields.iter().flat_map(|field| ["-e", *field]));
    let packets = task.run()?.success()?.stdout;
    let mut seen = BTreeSet::new();
    for line in packets.lines() {
        let mut words = line.split('\t');
        let opcode = number(words.next().context("no opcode")?)?;
        let asks = words.next().context("no AckReq")?;
        ensure!(OPCODES.contains(&opcode), "a packet of opcode {opcode:#x}");
        let is_answer = (0x0d..=0x11).contains(&opcode);
        ensure!(is_answer || ["1", "True"].contains(&asks), "no AckReq: {line}");
        if let Some(syndrome) = words.next().filter(|word| !word.is_empty()) {
            ensure!(number(syndrome)? >> 5 == 0, "a NAK: {line}");
        }
        seen.insert(opcode);
    }
    Ok(seen)
}

/// Checks that both cards are unharmed, and the tunnel's traffic went there.
fn tunnelled(daemon: &Daemon<'_>) -> Result<()> {
    // A slot to a queue pair that has just ended lands in the spare page.
    are_zero(daemon, &HARM)?;
    let status = daemon.status()?;
    for card in [0, 1] {
        for name in ["tunnel_slots_sent", "tunnel_slots_taken"] {
            ensure!(counter(&status, card, name) > 0, "{name} of card {card} is 0");
        }
    }
    Ok(())
}

/// Each error by its status; a dead peer is found out by the watchdog, which is to be no longer than such a card's retries.
fn errors(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2 --soft-image stock --tunnel on --watchdog 2000")?;
    let program = setting.bin.join("verbs-data");
    let task = daemon.run("").arg(program).words("errors").limit(SWEEP);
    task.run()?.success()?.says("25 errors came as they should")?;
    tunnelled(&daemon)?;
    daemon.stop()
}

fn only_writes(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("{TUNNEL} --pcap {}", file.display()))?;
    for command in ["ib_send_bw -n 50 -s 9001", "ib_read_bw -n 50 -s 9001", "ib_atomic_bw -n 50"] {
        run_between((&daemon, 0), (&daemon, 1), &format!("{command} {STEADY_CLOCK}"))?;
    }
    tunnelled(&daemon)?;
    daemon.stop()?;
    let seen = dissect(setting, &file)?;
    ensure!(seen == BTreeSet::from([0x0a, 0x11]), "{seen:x?}");
    Ok(())
}

/// Long messages of each kind go by WRITEs of several packets, from one program's memory to the other's.
fn granted(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("{TUNNEL} --pcap {}", file.display()))?;
    let mut before = [0; 2];
    for (command, sender) in [("ib_send_bw", 1usize), ("ib_write_bw", 1), ("ib_read_bw", 0)] {
        let command = format!("{command} -n 10 -s 1048576 {STEADY_CLOCK}");
        run_between((&daemon, 0), (&daemon, 1), &command)?;
        let status = daemon.status()?;
        let sent = [0, 1].map(|card| counter(&status, card, "tunnel_granted_bytes_sent"));
        // The first one may go before the peer is known to grant.
        let more = sent[sender] - before[sender];
        ensure!(more >= 8 << 20, "{command}: {more} bytes of card {sender} went by grants");
        are_zero(&daemon, &["tunnel_grants_astray"])?;
        before = sent;
    }
    tunnelled(&daemon)?;
    daemon.stop()?;
    let seen = dissect(setting, &file)?;
    ensure!(seen == BTreeSet::from([0x06, 0x07, 0x08, 0x0a, 0x11]), "{seen:x?}");
    Ok(())
}

/// Memory of long messages goes, or is taken back, at any time.
fn taken_back(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(TUNNEL)?;
    let program = setting.bin.join("verbs-data");
    let task = daemon.run("").arg(program).words("grants --gid 1").limit(SWEEP);
    task.run()?.success()?.says("61 long messages went by the book")?;
    let status = daemon.status()?;
    for card in [0, 1] {
        let granted = counter(&status, card, "tunnel_granted_bytes_sent");
        ensure!(granted > 1 << 20, "card {card} sent {granted} bytes by grants");
    }
    let astray = counter(&status, 0, "tunnel_grants_astray");
    ensure!(astray > 0, "what was written to memory that is only read is taken to be there");
    // Memory that is gone is a fault of the bus.
    let harm = HARM.into_iter().filter(|name| *name != "dma_faults").collect::<Vec<_>>();
    are_zero(&daemon, &harm)?;
    daemon.stop()
}

/// A program whose long message lies in memory that does not answer is ended, and no other program stops.
fn silent(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(TUNNEL)?;
    let node = open_node(MemoryKind::Userfault, setting)?;
    let program = setting.bin.join("verbs-data");
    let command = format!("grants --gid 1 --silent {}", node.display());
    let task = daemon.run("").arg(program).words(&command).limit(SWEEP);
    task.run()?.success()?.says("what does not answer is not sent")?;
    let command = format!("ib_send_bw -s 262144 -n 50 {STEADY_CLOCK}");
    run_between((&daemon, 0), (&daemon, 1), &command)?;
    are_zero(&daemon, &["stock_reception_stands", "stock_sending_starves"])?;
    daemon.stop()
}

/// Arguments of a balboad of [`Setting::cabled_balboads_with`], with a file of peers that names the cards of both.
pub(crate) fn peers(setting: &Setting, name: &str, key: &str, watchdog: u32) -> Result<String> {
    let file = peers_file(setting, name, key)?;
    Ok(format!("--soft-image stock --watchdog {watchdog} --tunnel-peers {}", file.display()))
}

/// A file of peers, for balboads whose cards have these addresses.
pub(crate) fn peers_file(setting: &Setting, name: &str, key: &str) -> Result<PathBuf> {
    let file = setting.directory().join(name);
    let lines = [1, 2].map(|card| format!("10.77.0.{card} {}\n", key.repeat(16)));
    fs::write(&file, lines.concat())?;
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    chown(&file, Some(setting.uid()), None)?;
    Ok(file)
}

/// Between balboads, without the tunnel: a WRITE goes packet by packet to a peer that is declared an RNIC.
fn told_of_rnics(setting: &Setting) -> Result<()> {
    let rnics = "--rnic-peers 10.77.0.1,10.77.0.2";
    for (peers, command, posts) in
        [("", "ib_write_lat -s 64 -n 50", 200..=799), (rnics, "ib_read_bw -n 50", 800..=1600)]
    {
        let options = format!("--soft-image stock --tunnel off --watchdog 20000 {peers}");
        let [one, other] = setting.cabled_balboads_with(&options)?;
        let run = |command| {
            run_between((&one, 0), (&other, 0), &format!("{command} {STEADY_CLOCK}")).map(drop)
        };
        // 3.2 MB.
        run("ib_write_bw -n 50 -s 65536")?;
        let posted = counter(&other.status()?, 0, "engine_posts");
        ensure!(posts.contains(&posted), "{peers}: {posted} posts");
        run(command)?;
        for daemon in [one, other] {
            ensure!(counter(&daemon.status()?, 0, "stock_reception_stands") == 0, "a card stands");
            daemon.stop()?;
        }
    }
    Ok(())
}

fn two_balboads(setting: &Setting) -> Result<()> {
    let arguments = peers(setting, "peers", "5a", 20_000)?;
    let [one, other] = setting.cabled_balboads_with(&arguments)?;
    let long = "ib_write_bw -n 10 -s 1048576";
    for command in ["ib_send_bw -n 200 -s 5001", "ib_write_bw -n 50", long, "ib_atomic_bw -n 100"] {
        run_between((&one, 0), (&other, 0), &format!("{command} {STEADY_CLOCK}"))?;
    }
    run_between((&other, 0), (&one, 0), "ibv_rc_pingpong -c -g 1")?;
    for daemon in [one, other] {
        ensure!(counter(&daemon.status()?, 0, "stock_reception_stands") == 0, "a card stands");
        daemon.stop()?;
    }
    Ok(())
}

/// Ends with different keys do not hear each other, and harm no card.
fn another_key(setting: &Setting) -> Result<()> {
    let first = peers(setting, "peers", "5a", 20_000)?;
    let second = peers(setting, "others", "5b", 1000)?;
    let options = |number: usize| {
        let [local, remote] = [number, 1 - number].map(|end| setting.cable_end(end));
        let port = format!("--port unix:{},{}", local.display(), remote.display());
        format!("--soft 1 {port} --ip 10.77.0.{}/24", number + 1)
    };
    let start = |number: usize, more: &str| {
        let state_dir = setting.directory().join(format!("cabled{number}"));
        setting.balboad_in(&state_dir, &format!("{} {more}", options(number)))
    };
    let (one, other) = (start(0, &first)?, start(1, &second)?);
    let port = free_port()?;
    let side = |daemon: &Daemon<'_>| {
        daemon.run("ibv_rc_pingpong -g 1").words(&format!("-d balboa0 -p {port}"))
    };
    let server = start_server(side(&one), port)?;
    let client = side(&other).arg("127.0.0.1").run()?;
    ensure!(!client.status.success(), "it went well");
    client.complains("transport retry counter exceeded")?;
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    for daemon in [one, other] {
        ensure!(counter(&daemon.status()?, 0, "stock_reception_stands") == 0, "a card stands");
        daemon.stop()?;
    }
    Ok(())
}

/// Every byte of messages of several pieces, memory that ends under them, and requests that are refused.
fn published(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(STOCK)?;
    let program = setting.bin.join("verbs-data");
    let task = daemon.run("").arg(program).arg("published").limit(SWEEP);
    task.run()?.success()?.says("12 messages arrived whole, 9 things were refused")?;
    are_zero(&daemon, &HARM)?;
    daemon.stop()
}

/// WRITEs of one program and READs of another, 32 QPs each, at the same time.
fn many(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(STOCK)?;
    let run = |command: &str| {
        run_between(
            (&daemon, 0),
            (&daemon, 1),
            &format!("{command} -q 32 -n 20 -s 16384 {STEADY_CLOCK}"),
        )
    };
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| run("ib_read_bw"));
        let writes = run("ib_write_bw");
        let reads = reads.join().map_err(|_| anyhow::anyhow!("a test's thread panicked"))?;
        writes.and(reads)
    })?;
    unharmed(&daemon)?;
    daemon.stop()
}

fn refused(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(STOCK)?;
    for command in [
        "ib_send_bw",
        "ib_send_bw -c UD",
        "ib_write_bw -s 5",
        "ib_write_bw -m 1024",
        "ib_atomic_bw",
    ] {
        let port = free_port()?;
        let side = |card: u32| {
            let task = daemon.run(command).env("VERBS_LOG_LEVEL", "2").arg(STEADY_CLOCK);
            task.words(&format!("-n 5 -d balboa{card} -p {port}"))
        };
        let before = daemon.log().len();
        let server = start_server(side(0), port)?;
        let client = side(1).arg("127.0.0.1").run()?;
        ensure!(!client.status.success(), "{command} went well");
        server.signal(Signal::SIGKILL)?;
        let log = daemon.log();
        let told = log.get(before..).unwrap_or_default();
        // For posted requests balboad's log has the reason, for all others the program's.
        let told = if command == "ib_write_bw -s 5" { told } else { "" };
        let said = format!("{client}{}{}{told}", server.output(), server.errors());
        ensure!(said.contains("tunnel"), "{command} says nothing of the tunnel: {said}");
        server.wait()?;
    }
    unharmed(&daemon)?;
    daemon.stop()
}

fn killed(setting: &Setting, cards: &str, victim: usize) -> Result<()> {
    let daemon = setting.balboad(cards)?;
    let port = free_port()?;
    let side = |card: u32| {
        daemon
            .run("ib_write_bw -D 60")
            .arg(STEADY_CLOCK)
            .words(&format!("-d balboa{card} -p {port}"))
    };
    let server = start_server(side(0), port)?;
    let client = side(1).arg("127.0.0.1").start()?;
    let mut programs = [server, client];
    let begun = |_: &_| daemon.status().is_ok_and(|it| counter(&it, 1, "engine_posts") > 100);
    programs[1].wait_until("it wrote", begun)?;
    programs[victim].signal(Signal::SIGKILL)?;
    // The other one goes, too, as soon as it finds that out.
    programs[1 - victim].signal(Signal::SIGTERM)?;
    for program in programs {
        program.wait()?;
    }
    // Others, on the same cards.
    run_between((&daemon, 0), (&daemon, 1), &format!("ib_write_bw -n 50 {STEADY_CLOCK}"))?;
    run_between((&daemon, 1), (&daemon, 0), &format!("ib_read_bw -n 50 {STEADY_CLOCK}"))?;
    let status = daemon.status()?;
    for name in ["stock_reception_stands", "stock_sending_starves", "engine_quarantined_qps"] {
        let counts = [0, 1].map(|card| counter(&status, card, name));
        ensure!(counts == [0, 0], "{name}: {counts:?}");
    }
    daemon.stop()
}

/// A balboad with its card dies: its own program and the other one's QP fail, and no other.
fn balboad_killed(setting: &Setting, program: &str) -> Result<()> {
    let arguments = peers(setting, "peers", "5a", 5000)?;
    let [peer, daemon] = setting.cabled_balboads_with(&arguments)?;
    let port = free_port()?;
    let side = |daemon: &Daemon<'_>| {
        let task = daemon.run(&format!("{program} -D 60")).arg(STEADY_CLOCK);
        task.words(&format!("-d balboa0 -p {port}"))
    };
    let server = start_server(side(&peer), port)?;
    let mut client = side(&daemon).arg("127.0.0.1").start()?;
    let begun = |_: &_| daemon.status().is_ok_and(|it| counter(&it, 0, "tunnel_slots_sent") > 100);
    client.wait_until("it sent", begun)?;
    peer.kill()?;
    let client = client.wait()?;
    let said = format!("{}{}", client.stdout, client.stderr);
    ensure!(
        !client.status.success() && said.contains("status 12"),
        "no IBV_WC_RETRY_EXC_ERR: {client}"
    );
    // An atomic's outcome is unknown.
    let is_said = daemon.log().contains("may have been executed or not");
    ensure!(is_said == (program == "ib_atomic_bw"), "atomics: {}", daemon.log());
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    // This card goes on, between QPs of its own.
    run_between((&daemon, 0), (&daemon, 0), &format!("ib_send_bw -n 50 {STEADY_CLOCK}"))?;
    daemon.stop()
}

fn told_of_reset(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(STOCK)?;
    let mut watch = daemon.run("ibv_asyncwatch -d balboa0").start()?;
    watch.wait_until("it watches", |it| it.output().contains("async event FD"))?;
    let reset = setting.built("balboa").words("reset balboa0 --yes --state-dir");
    reset.arg(daemon.state_dir()).run()?.success()?;
    watch.wait_until("it was told", |it| it.output().contains("IBV_EVENT_DEVICE_FATAL"))?;
    watch.signal(Signal::SIGKILL)?;
    watch.wait()?;
    daemon.stop()
}

/// How often the thread of a card's engines has gone to sleep.
fn sleeps_of(daemon: &Daemon<'_>) -> Result<u64> {
    let tasks = Path::new("/proc").join(daemon.pid().to_string()).join("task");
    for task in fs::read_dir(tasks)? {
        let task = task?.path();
        if fs::read_to_string(task.join("comm"))?.trim_end() != "engine0" {
            continue;
        }
        let status = fs::read_to_string(task.join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        return Ok(line.context("no count of switches")?.trim().parse()?);
    }
    bail!("no thread of the name engine0")
}

/// A thread that looks by a timer sleeps a thousand times in a second, and one that waits to be woken not once.
fn sleeps(setting: &Setting) -> Result<()> {
    const STILL: Duration = Duration::from_secs(1);
    let daemon = setting.balboad(TUNNEL)?;
    run_between((&daemon, 0), (&daemon, 1), &format!("ib_send_bw -n 50 {STEADY_CLOCK}"))?;
    let begun = Instant::now();
    loop {
        let before = sleeps_of(&daemon)?;
        std::thread::sleep(STILL);
        let count = sleeps_of(&daemon)? - before;
        if count == 0 {
            return daemon.stop();
        }
        ensure!(begun.elapsed() < LIMIT, "it woke {count} times within {STILL:?}");
    }
}

/// A card is reset amid its sending, and neither card stands afterwards.
fn reset_amid(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(TUNNEL)?;
    for _ in 0..5 {
        let port = free_port()?;
        let side = |card: u32| {
            let task = daemon.run("ib_send_bw -D 60").arg(STEADY_CLOCK);
            task.words(&format!("-d balboa{card} -p {port}"))
        };
        let sent = || daemon.status().map(|it| counter(&it, 0, "tunnel_slots_sent"));
        let server = start_server(side(1), port)?;
        let before = sent()?;
        let mut client = side(0).arg("127.0.0.1").start()?;
        client.wait_until("it sent", |_: &_| sent().is_ok_and(|now| now > before + 100))?;
        let reset = setting.built("balboa").words("reset balboa0 --yes --state-dir");
        reset.arg(daemon.state_dir()).run()?.success()?;
        for program in [client, server] {
            program.signal(Signal::SIGKILL)?;
            program.wait()?;
        }
        run_between((&daemon, 0), (&daemon, 1), &format!("ib_send_bw -n 50 {STEADY_CLOCK}"))?;
        are_zero(&daemon, &["stock_reception_stands", "stock_sending_starves"])?;
        are_zero(&daemon, &["engine_quarantined_qps", "engine_wants_reset"])?;
    }
    daemon.stop()
}

/// A cable that loses, and cards that are told so. The model's timers are slow: few packets take long.
fn lossy(setting: &Setting, command: &str) -> Result<()> {
    let cards = "--soft 2 --soft-image stock --tunnel on --lossy --watchdog 120000";
    let daemon = setting.balboad(&format!("{cards} --fault loss=1% --seed 5"))?;
    run_between((&daemon, 0), (&daemon, 1), command)?;
    tunnelled(&daemon)?;
    was_bad(&daemon, "loss")?;
    are_zero(&daemon, &["engine_wants_reset"])?;
    daemon.stop()
}

fn stopped(setting: &Setting) -> Result<()> {
    let cards = "--soft 2 --soft-image stock --tunnel off --watchdog 2000";
    let daemon = setting.balboad(&format!("{cards} --fault loss=3% --seed 5"))?;
    let wants = |status: &Value| [0, 1].map(|card| counter(status, card, "engine_wants_reset"));
    let doctor = || {
        let task = setting.built("balboa").words("doctor --state-dir").arg(daemon.state_dir());
        task.run()
    };
    // A loss behind which its queue pair sends nothing leaves no gap, and fails that one alone. Once there was a gap,
    // the next queue pair fails; there are numbers of queue pairs for so many.
    const ATTEMPTS: usize = 10;
    const STANDS: &str = "balboa1 may stand: nobody is answered any more";
    let mut told = doctor()?;
    for _ in 0..ATTEMPTS {
        let port = free_port()?;
        let side = |card: u32| {
            let task = daemon.run("ib_write_bw -D 60").arg(STEADY_CLOCK);
            task.words(&format!("-q 4 -d balboa{card} -p {port}"))
        };
        let server = start_server(side(0), port)?;
        let client = side(1).arg("127.0.0.1").run()?;
        ensure!(!client.status.success(), "it went well");
        server.signal(Signal::SIGKILL)?;
        server.wait()?;
        told = doctor()?;
        if told.stdout.contains(STANDS) {
            break;
        }
    }
    told.code(1)?.says(STANDS)?.says("balboa reset balboa1")?;
    for card in [0, 1] {
        let task = setting.built("balboa").words(&format!("reset balboa{card} --yes"));
        task.arg("--state-dir").arg(daemon.state_dir()).run()?.success()?;
    }
    let status = daemon.status()?;
    ensure!(wants(&status) == [0, 0], "after the reset: {status:#}");
    daemon.stop()
}

fn vanished(setting: &Setting) -> Result<()> {
    let arguments = "--soft-image stock --watchdog 5000";
    let [peer, daemon] = setting.cabled_balboads_with(arguments)?;
    let port = free_port()?;
    let side = |daemon: &Daemon<'_>| {
        daemon.run("ib_write_bw -D 60").arg(STEADY_CLOCK).words(&format!("-d balboa0 -p {port}"))
    };
    let server = start_server(side(&peer), port)?;
    let mut client = side(&daemon).arg("127.0.0.1").start()?;
    let begun = |_: &_| daemon.status().is_ok_and(|it| counter(&it, 0, "engine_posts") > 100);
    client.wait_until("it wrote", begun)?;
    // The other program lives on, and its card does not.
    peer.kill()?;
    let client = client.wait()?;
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    let said = format!("{}{}", client.stdout, client.stderr);
    ensure!(
        !client.status.success() && said.contains("status 12"),
        "no IBV_WC_RETRY_EXC_ERR: {client}"
    );
    ensure!(
        counter(&daemon.status()?, 0, "engine_quarantined_qps") == 1,
        "its number does not rest"
    );
    let balboa = |arguments: &str| {
        let task = setting.built("balboa").words(arguments);
        task.arg("--state-dir").arg(daemon.state_dir()).run()?.success()
    };
    balboa("reset balboa0 --yes")?;
    ensure!(counter(&daemon.status()?, 0, "engine_quarantined_qps") == 0, "its number still rests");
    daemon.stop()
}
