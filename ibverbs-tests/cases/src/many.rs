//! Many programs on one card, and cards of two balboads on one cable.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, run_between, start_server};
use harness::process::{Finished, Running};
use harness::runner::Case;
use harness::setting::{Daemon, PAGES, Setting};
use nix::sys::signal::Signal;
use serde_json::Value;
use verbs_programs::data::many::{ARRIVED, CONNECTED};

use super::{IBVERBS_UTILS, PERFTEST};
use crate::footprint::Footprint;

/// Pairs of programs that run at once.
const PAIRS: usize = 10;
/// How long they may take together: 20 programs that all poll share the cores.
const LIMIT: Duration = Duration::from_secs(180);
/// How long a crowd may take.
const CROWD: Duration = Duration::from_secs(600);
/// How many of it are started together: whether one of them has a page is the same for all.
const BATCH: usize = PAGES / 4;

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("20 processes on one card/ib_write_bw", &[PERFTEST], |setting| {
            at_once(setting, "ib_write_bw -F -d balboa0 -s 4096 -n 1000")
        }),
        Case::new("20 processes on one card/ib_send_bw -e", &[PERFTEST], |setting| {
            at_once(setting, "ib_send_bw -F -e -d balboa0 -s 4096 -n 1000")
        }),
        Case::new(format!("{PROCESSES} processes on one card"), &[], crowd),
        Case::new(format!("{CARDS} cards in one balboad"), &[IBVERBS_UTILS, PERFTEST], many_cards),
        Case::new(format!("{QPS} QPs on one card/of one process"), &[], |setting| {
            many_qps(setting, 1)
        }),
        Case::new(format!("{QPS} QPs on one card/of 64 processes"), &[], |setting| {
            many_qps(setting, 64)
        }),
        Case::new(format!("{USERS} QPs with one SRQ"), &[], |setting| {
            let daemon = setting.balboad("--soft 2")?;
            let before = Footprint::of(&daemon)?;
            let run = format!("--pairs {USERS} --rounds 4 --shared");
            connections(&daemon, setting, &run)?.says(&format!("{} messages", 4 * USERS))?;
            before.restored(&daemon)?;
            daemon.stop()
        }),
        Case::new("as many QPs as each card says", &[], as_many_as_said),
        Case::new("two balboads/ib_write_bw", &[PERFTEST], |setting| {
            two_daemons(setting, "ib_write_bw -F -n 1000")
        }),
        Case::new("two balboads/ib_read_bw", &[PERFTEST], |setting| {
            two_daemons(setting, "ib_read_bw -F -n 1000")
        }),
        Case::new("two balboads/ibv_rc_pingpong -g 0", &[IBVERBS_UTILS], |setting| {
            two_daemons(setting, "ibv_rc_pingpong -c -g 0")
        }),
    ]
}

fn at_once(setting: &Setting, command: &str) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let mut running = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..PAIRS {
        let port = free_port()?;
        let server = daemon.run(command).words(&format!("-p {port}")).limit(LIMIT);
        running.push(start_server(server, port)?);
        ports.push(port);
    }
    for port in ports {
        let client = daemon.run(command).words(&format!("-p {port} 127.0.0.1")).limit(LIMIT);
        running.push(client.start()?);
    }
    ensure!(running.len() == 2 * PAIRS);
    for program in running {
        Running::wait(program).and_then(Finished::success)?;
    }
    daemon.stop()
}

/// Processes on one card: of those for which it has no doorbell page balboad relays the doorbells.
const PROCESSES: usize = 256;

/// A program with connections between two devices, which waits for the word and then for its end.
fn program(daemon: &Daemon<'_>, setting: &Setting, arguments: &str, go: &Path) -> Result<Running> {
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).arg("many");
    let task = task.words(arguments).words("--stay --go").arg(go).env("VERBS_LOG_LEVEL", "2");
    task.limit(CROWD).start()
}

fn await_all(programs: &mut [Running], word: &str) -> Result<()> {
    programs.iter_mut().try_for_each(|it| it.wait_until(word, |it| it.has_said(word)))
}

fn end_all(programs: Vec<Running>) -> Result<()> {
    programs.iter().try_for_each(|it| it.signal(Signal::SIGKILL))?;
    programs.into_iter().try_for_each(|it| it.wait().map(drop))
}

/// The slots that each client was granted on the first card, sorted.
fn grants(status: &Value) -> Vec<String> {
    let clients = status["clients"].as_array().into_iter().flatten();
    let grants = clients.filter_map(|client| client["places"][0]["grant"].as_str());
    let mut grants: Vec<_> = grants.map(str::to_owned).collect();
    grants.sort();
    grants
}

/// Processes that all hold the card at once, and all send and receive.
fn crowd(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let before = Footprint::of(&daemon)?;
    let go = setting.directory().join("go");
    let arguments = "--from balboa0 --to balboa0 --pairs 1 --rounds 10 --events";
    let start = |_| program(&daemon, setting, arguments, &go);
    let mut running = Vec::new();
    // Not all at once: a machine has so many cores.
    while running.len() < PROCESSES {
        let more = BATCH.min(PROCESSES - running.len());
        let mut batch = (0..more).map(start).collect::<Result<Vec<_>>>()?;
        await_all(&mut batch, CONNECTED)?;
        running.extend(batch);
    }
    let grants = grants(&daemon.status()?);
    let of = |kind: &str| grants.iter().filter(|grant| *grant == kind).count();
    let seen = (of("page"), of("relay"));
    ensure!(seen == (PAGES, PROCESSES - PAGES), "granted are {seen:?} pages and relays");
    std::fs::write(&go, "")?;
    await_all(&mut running, ARRIVED)?;
    // Who had a page ends, and the next one has it.
    end_all(running.drain(..PAGES).collect())?;
    let deadline = Instant::now() + CROWD;
    while self::grants(&daemon.status()?).len() != PROCESSES - PAGES {
        ensure!(Instant::now() < deadline, "programs that have ended are there still");
    }
    let mut next = vec![start(0)?];
    await_all(&mut next, ARRIVED)?;
    let grants = self::grants(&daemon.status()?);
    ensure!(grants.iter().filter(|grant| *grant == "page").count() == 1, "{grants:?}");
    running.extend(next);
    end_all(running)?;
    before.restored(&daemon)?;
    daemon.stop()
}

/// Cards of one balboad.
const CARDS: u32 = 16;
/// How long cards are left alone, and how many of the kernel's ticks (10 ms) of a processor balboad may
/// take meanwhile.
const IDLE: Duration = Duration::from_secs(3);
const IDLE_TICKS: u64 = 10;

/// Discovery, messages between the first card and the last, status; and they cost nothing at rest.
fn many_cards(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(&format!("--soft {CARDS}"))?;
    let finished = daemon.run("ibv_devices").run()?.success()?;
    for card in 0..CARDS {
        let name = format!("balboa{card}");
        let found = finished.stdout.split_whitespace().any(|word| word == name);
        ensure!(found, "no {name}: {finished}");
    }
    let status = daemon.status()?;
    ensure!(
        status["cards"].as_array().is_some_and(|cards| cards.len() == CARDS as usize),
        "{status:#}"
    );
    run_between((&daemon, 0), (&daemon, CARDS - 1), "ib_write_bw -F -n 1000")?;
    let between = format!("--from balboa0 --to balboa{} --pairs 8", CARDS - 1);
    connections(&daemon, setting, &between)?;
    let before = ticks(daemon.pid())?;
    std::thread::sleep(IDLE);
    let taken = ticks(daemon.pid())?.saturating_sub(before);
    ensure!(taken <= IDLE_TICKS, "{CARDS} cards take {taken} ticks in {IDLE:?} at rest");
    daemon.stop()
}

/// Ticks of a processor that a process has taken.
fn ticks(pid: i32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind = stat.rsplit(')').next().context("no name")?;
    // The user's and the kernel's, fields 14 and 15 (proc(5)).
    let both = behind.split_whitespace().skip(11).take(2);
    both.map(|ticks| Ok(ticks.parse::<u64>()?)).sum()
}

/// Connects, sends on all and ends.
fn connections(daemon: &Daemon<'_>, setting: &Setting, arguments: &str) -> Result<Finished> {
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).arg("many");
    task.words(arguments).limit(CROWD).run()?.success()
}

/// QPs on one card, all of them connected.
const QPS: usize = 10_000;
/// QPs that take from one queue.
const USERS: usize = 1000;

fn many_qps(setting: &Setting, processes: usize) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let before = Footprint::of(&daemon)?;
    let go = setting.directory().join("go");
    let pairs = QPS.div_ceil(2 * processes);
    let arguments = format!("--from balboa0 --to balboa0 --pairs {pairs} --rounds 2");
    let start = |_| program(&daemon, setting, &arguments, &go);
    let mut running = (0..processes).map(start).collect::<Result<Vec<_>>>()?;
    await_all(&mut running, CONNECTED)?;
    let status = daemon.status()?;
    let windows = status["cards"][0]["windows"].as_array().into_iter().flatten();
    let qps: u64 = windows.filter_map(|window| window["queue_pairs"].as_u64()).sum();
    ensure!(qps >= QPS as u64, "{qps} QPs");
    std::fs::write(&go, "")?;
    await_all(&mut running, ARRIVED)?;
    end_all(running)?;
    before.restored(&daemon)?;
    daemon.stop()
}

/// A program has on each of two cards as many QPs as that says it may have, all at once; and no more.
fn as_many_as_said(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).arg("fill");
    let finished = task.limit(CROWD).run()?.success()?;
    finished.says("of balboa0 and balboa1 are all QPs that they say")?;
    before.restored(&daemon)?;
    daemon.stop()
}

fn two_daemons(setting: &Setting, command: &str) -> Result<()> {
    let [first, second] = setting.cabled_balboads()?;
    let status = first.status()?;
    ensure!(status["cards"][0]["icrc_checked"] == "every frame", "on a cable: {status:#}");
    run_between((&first, 0), (&second, 0), command)?;
    first.stop().context("the first balboad")?;
    second.stop().context("the second balboad")?;
    for end in [0, 1].map(|number| setting.cable_end(number)) {
        ensure!(!end.exists(), "{} was left behind", end.display());
    }
    Ok(())
}
