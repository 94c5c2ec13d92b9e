//! Many programs on one card, and cards of two balboads on one cable.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{IBVERBS_UTILS, PERFTEST};
use crate::footprint::Footprint;
use crate::pair::{free_port, run_between, start_server};
use crate::process::{Finished, Running};
use crate::runner::Case;
use crate::setting::Setting;

/// Pairs of programs that run at once.
const PAIRS: usize = 10;
/// How long they may take together: 20 programs that all poll share the cores.
const LIMIT: Duration = Duration::from_secs(180);

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("20 processes on one card/ib_write_bw", &[PERFTEST], |setting| {
            at_once(setting, "ib_write_bw -F -d balboa0 -s 4096 -n 1000")
        }),
        Case::new("20 processes on one card/ib_send_bw -e", &[PERFTEST], |setting| {
            at_once(setting, "ib_send_bw -F -e -d balboa0 -s 4096 -n 1000")
        }),
        Case::new("60 processes on one card, and one more", &[], one_more),
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

/// Doorbell pages of a card, of which a process has one.
const PAGES: usize = 60;

/// Processes that hold a doorbell page each; the first that finds none is told so, and has one once
/// another has ended.
fn one_more(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let before = Footprint::of(&daemon)?;
    let idle = || -> Result<Running> {
        let task = daemon.run("").arg(setting.bin.join("verbs-bench"));
        let task = task.words("--from balboa0 --to balboa0 idle").limit(LIMIT);
        task.env("VERBS_LOG_LEVEL", "2").start()
    };
    let ready = |it: &Running| it.output().lines().any(|line| line == "ready");
    let mut running = (0..PAGES).map(|_| idle()).collect::<Result<Vec<_>>>()?;
    for program in &mut running {
        program.wait_until("it was connected", ready)?;
    }
    let refused = idle()?.wait()?;
    let named = refused.stderr.contains(&format!("all {PAGES} doorbell pages"));
    ensure!(!refused.status.success() && named, "process {} was not told: {refused}", PAGES + 1);
    let ended = running.swap_remove(PAGES / 2);
    ended.signal(Signal::SIGKILL)?;
    ended.wait()?;
    // balboad may hear of the end a moment later than we.
    let free = |status: &Value| {
        let windows = status["cards"][0]["windows"].as_array();
        windows.into_iter().flatten().any(|window| window["free_pages"].as_u64() != Some(0))
    };
    let deadline = Instant::now() + LIMIT;
    while !free(&daemon.status()?) {
        ensure!(Instant::now() < deadline, "the page of a process that has ended stays its");
    }
    let mut next = idle()?;
    next.wait_until("it was connected", ready)?;
    running.push(next);
    for program in &running {
        program.signal(Signal::SIGKILL)?;
    }
    for program in running {
        program.wait()?;
    }
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
