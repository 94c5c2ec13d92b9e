//! Congestion control of software cards, on a cable that carries less than its senders send.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::pair::{free_port, start_server};
use harness::process::Running;
use harness::runner::Case;
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::PERFTEST;
use super::counters::counters_of;

/// The senders, of which each has a card of its own. The receivers share the card behind them, and its cable.
const SENDERS: usize = 3;
/// The cable of each card, of which any machine fills the receivers': a hundredth of the paper's.
const CABLE: &str = "rate=400M,buffer=384k,ecn=5k:200k:1%";
/// The paper's parameters with all times a hundred times as long: a packet takes so much longer, and a busy machine
/// comes late by as much.
const REACTION: &str = "dcqcn-paper,time_reset=5500,dce_tcp_rtt=5500,rate_reduce_monitor_period=5000,min_time_between_cnps=5000";
/// Bytes of a message.
const MESSAGE: u64 = 8192;
/// Messages of all senders before shares are looked at, and while they are.
const BEFORE: u64 = 25_000;
const COUNTED: u64 = 12_000;
/// How long that may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The family.
pub fn cases() -> Vec<Case> {
    vec![Case::new("congestion/ib_write_bw pairs share a marking cable", &[PERFTEST], fair).alone()]
}

/// The outcome of the senders' messages while they were counted.
#[derive(Debug)]
struct Outcome {
    /// Messages of each.
    shares: Vec<u64>,
    /// Frames that found no room, marks, notifications that were heeded, and packets that were sent again.
    dropped: u64,
    marked: u64,
    handled: u64,
    repeated: u64,
}

impl Outcome {
    /// Jain's index of fairness: 1 where all have the same.
    fn fairness(&self) -> f64 {
        let sum: f64 = self.shares.iter().map(|share| *share as f64).sum();
        let squares: f64 = self.shares.iter().map(|share| (*share as f64).powi(2)).sum();
        sum * sum / (self.shares.len() as f64 * squares)
    }
}

/// A counter of each card, by a balboad's status.
fn of_all(status: &Value, name: &str) -> Result<Vec<u64>> {
    (0..=SENDERS)
        .map(|card| Ok(counters_of(status, card)?.get(name).copied().unwrap_or(0)))
        .collect()
}

/// Messages that each sender has sent.
fn sent(status: &Value) -> Result<Vec<u64>> {
    Ok(of_all(status, "rdma_sends")?[..SENDERS].to_vec())
}

/// Waits until the senders have sent as many messages as is asked for; the status of that time.
fn when_sent(daemon: &Daemon<'_>, what: &str, is: impl Fn(&[u64]) -> bool) -> Result<Value> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let status = daemon.status()?;
        let sent = sent(&status)?;
        if is(&sent) {
            return Ok(status);
        }
        ensure!(Instant::now() < deadline, "messages that were sent: {sent:?}, not {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lets all senders send at once, with cards of this reaction to congestion.
fn outcome(setting: &Setting, reaction: &str) -> Result<Outcome> {
    let cards = SENDERS + 1;
    let daemon =
        setting.balboad(&format!("--soft {cards} --fault {CABLE} --congestion {reaction}"))?;
    let mut programs: Vec<Running> = Vec::new();
    for card in 0..SENDERS {
        let port = free_port()?;
        let command = format!("ib_write_bw -F -s {MESSAGE} -D 300 -p {port}");
        let side =
            |card: usize| daemon.run(&command).words(&format!("-d balboa{card}")).limit(2 * LIMIT);
        programs.push(start_server(side(SENDERS), port)?);
        programs.push(side(card).arg("127.0.0.1").start()?);
    }
    let begun = when_sent(&daemon, "by all", |sent| sent.iter().all(|sent| *sent >= 100))?;
    let names = ["fault_dropped_rx", "fault_ecn_marked_rx", "rp_cnp_handled", "retransmitted_pkts"];
    let look = |behind: u64, more: u64| {
        let total = behind + more;
        let is = |sent: &[u64]| sent.iter().sum::<u64>() >= total;
        let status = when_sent(&daemon, &total.to_string(), is)?;
        let sum = |name: &str| anyhow::Ok(of_all(&status, name)?.iter().sum::<u64>());
        anyhow::Ok((sent(&status)?, names.map(sum).into_iter().collect::<Result<Vec<_>>>()?))
    };
    let (before, was) = look(sent(&begun)?.iter().sum(), BEFORE)?;
    let (after, is) = look(before.iter().sum(), COUNTED)?;
    let grown: Vec<u64> = is.iter().zip(was).map(|(is, was)| is - was).collect();
    let outcome = Outcome {
        shares: after.iter().zip(before).map(|(after, before)| after - before).collect(),
        dropped: grown[0],
        marked: grown[1],
        handled: grown[2],
        repeated: grown[3],
    };
    programs.iter().try_for_each(|program| program.signal(Signal::SIGKILL))?;
    programs.into_iter().try_for_each(|program| program.wait().map(drop))?;
    daemon.stop()?;
    println!("{reaction}: fairness {:.3} of {outcome:?}", outcome.fairness());
    Ok(outcome)
}

fn fair(setting: &Setting) -> Result<()> {
    let without = outcome(setting, "off")?;
    let with = outcome(setting, REACTION)?;
    ensure!((without.marked, without.handled) == (0, 0), "{without:?}");
    ensure!(with.marked > 0 && with.handled > 0, "{with:?}");
    ensure!(with.fairness() >= 0.95, "{:.3} of {with:?}", with.fairness());
    ensure!(without.dropped > 0, "{without:?}");
    // A machine that is late lets rates grow meanwhile, so that some is lost then.
    ensure!(with.repeated < without.repeated, "{with:?}\n{without:?}");
    Ok(())
}
