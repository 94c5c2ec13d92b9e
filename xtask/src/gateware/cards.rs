//! Programs over software cards whose engines are RTL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use harness::setting::{Daemon, Setting, Stage, Who};
use serde_json::Value;
use terminal::report;

use super::tools::Tools;
use super::{build, ends};
use crate::demo::{between_the_cards, stage};
use crate::setup;

/// The programs of the demonstration, each on both cards.
const PROGRAMS: [&str; 6] = [
    "ib_write_bw -F -n 200",
    "ib_write_bw -F -q 64 -n 5 -s 4096",
    "ib_read_bw -F -n 200",
    "ib_send_bw -F -n 200",
    "ib_send_bw -F --use-srq -q 4 -n 50 -s 4096",
    "ibv_rc_pingpong -c -g 0 -n 200",
];
/// What checks each byte: the cards, what verbs-data does, and what it says then. Of cards of one balboad the time is one.
const CHECKS: [(&str, &str, &str); 5] = [
    (CARDS, "lists", "120 listed messages arrived"),
    (CARDS, "errors --late", "21 errors came"),
    ("--soft 2 --soft-image 0=rtl", SWEEP, "125 messages arrived"),
    ("--soft 2 --soft-image 1=rtl", SWEEP, "125 messages arrived"),
    ("--soft 2 --soft-image rtl --fault loss=1%", SWEEP, "125 messages arrived"),
];
/// Messages of every operation, of up to 16 elements of odd lengths, at every path MTU.
const SWEEP: &str = "sweep --sizes 0,1,63,65,4097";
/// How long a program may take: it waits for a simulation.
pub(super) const LIMIT: Duration = Duration::from_secs(20 * 60);
/// The two cards.
pub(super) const CARDS: &str = "--soft 2 --soft-image rtl";

/// `cargo xtask gateware demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Run those whose command or name has this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// `cargo xtask gateware sim`.
#[derive(Debug, Args)]
pub struct Sim {
    /// Record all wires of each card into this directory, as 0.fst and 1.fst
    #[arg(long, value_name = "DIRECTORY")]
    waves: Option<PathBuf>,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// Runs programs between the cards.
///
/// # Errors
/// When a tool cannot be had, or a program fails, or its bytes did not pass through the RTL.
pub fn demo(options: &Demo) -> Result<ExitCode> {
    let is_wanted = |name: &str| name.contains(&options.only);
    let stage = stage_with(None)?;
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    let setting = stage.setting(Who::Ourselves)?;
    report!(
        "Two software cards, balboa0 and balboa1, whose queue engines are RTL, simulated cycle by cycle."
    );
    let daemon = setting.balboad(CARDS)?;
    for program in PROGRAMS.into_iter().filter(|it| is_wanted(it)) {
        let before = Cycles::of(&daemon)?;
        between_the_cards(&daemon, program, LIMIT)?;
        before.have_passed(&daemon, program)?;
    }
    daemon.stop()?;
    for (cards, command, says) in CHECKS {
        let name = format!("verbs-data {command}, {cards}");
        if is_wanted(&name) {
            report!("\n---- {name}");
            check(&setting, cards, (command, says)).context(name)?;
        }
    }
    ends::all(&setting, is_wanted)?;
    Ok(ExitCode::SUCCESS)
}

/// Has verbs-data check each byte between two cards.
fn check(setting: &Setting, cards: &str, wanted: (&str, &str)) -> Result<()> {
    let daemon = setting.balboad(cards)?;
    check_beside(setting, &daemon, wanted)?;
    daemon.stop()
}

/// Has verbs-data check each byte between the cards of a balboad.
pub(super) fn check_beside(
    setting: &Setting,
    daemon: &Daemon<'_>,
    (command, says): (&str, &str),
) -> Result<()> {
    let before = Cycles::of(daemon)?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words(command).limit(LIMIT);
    report!("{}", task.run()?.success()?.says(says)?.stdout.trim_end());
    before.have_passed(daemon, command)
}

/// Runs a program beside the cards.
///
/// # Errors
/// When a tool cannot be had, or the cards do not come up.
pub fn sim(options: &Sim) -> Result<ExitCode> {
    if let Some(directory) = &options.waves {
        fs::create_dir_all(directory)?;
    }
    let waves = options.waves.as_ref().map(std::path::absolute).transpose()?;
    let stage = stage_with(waves.as_deref())?;
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    let setting = stage.setting(Who::Ourselves)?;
    let daemon = setting.balboad_within(&setting.state_dir(), CARDS, |task| match &waves {
        Some(directory) => task.clone().env("BALBOA_WAVES", directory),
        None => task.clone(),
    })?;
    let before = Cycles::of(&daemon)?;
    let task = daemon.run("").args(&options.program).with_our_environment().at_terminal();
    let finished = task.limit(LIMIT).run()?;
    before.passed(&daemon)?;
    daemon.stop()?;
    Ok(match finished.status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The programs, and the engine's library where balboad looks for it, which records waves if a directory is given.
fn stage_with(waves: Option<&Path>) -> Result<Stage> {
    setup::packages(setup::DEMO)?;
    let tools = Tools::get()?;
    let logic = match waves {
        Some(_) => build::recording(&tools)?,
        None => build::libraries(&tools)?,
    };
    let stage = stage("", &["verbs-data", "verbs-mortal"])?;
    // balboad looks for it beside the directory that it is in.
    let beside = stage.path().join("gateware");
    fs::create_dir(&beside)?;
    fs::copy(logic.join("libengine.so"), beside.join("libengine.so"))?;
    Ok(stage)
}

/// The counts of the RTL in each card, at a time.
pub(super) struct Cycles {
    at: Instant,
    status: Value,
}

impl Cycles {
    pub(super) fn of(daemon: &Daemon<'_>) -> Result<Self> {
        Ok(Self { at: Instant::now(), status: daemon.status_within(LIMIT)? })
    }

    /// The cycles of each card since an earlier time, or since its logic is a new one.
    pub(super) fn since(&self, before: &Self) -> [u64; 2] {
        [0, 1].map(|card| {
            let [now, then] = [self, before].map(|of| of.count(card, "rtl_cycles"));
            now.checked_sub(then).unwrap_or(now)
        })
    }

    fn count(&self, card: usize, name: &str) -> u64 {
        self.status["cards"][card]["counters"][name].as_u64().unwrap_or_default()
    }

    /// Says what has passed since, of which something must be the RTL's.
    fn have_passed(&self, daemon: &Daemon<'_>, program: &str) -> Result<()> {
        let passed = self.passed(daemon)?;
        ensure!(passed > 0, "{program}: nothing passed through the RTL");
        Ok(())
    }

    /// Says what has passed since, and gives the bytes that the RTL read from host memory.
    fn passed(&self, daemon: &Daemon<'_>) -> Result<u64> {
        let seconds = self.at.elapsed().as_secs_f64();
        let now = Self::of(daemon)?;
        let (mut all, mut bytes) = (0, 0);
        for card in 0..2 {
            let since = |name| now.count(card, name).saturating_sub(self.count(card, name));
            let cycles = since("rtl_cycles");
            // A card of software has none.
            if cycles == 0 {
                continue;
            }
            report!(
                "balboa{card}: image=rtl cycles={cycles} bytes_read={} bytes_written={} beats={} packets={} retransmitted={}",
                since("rtl_bytes_read"),
                since("rtl_bytes_written"),
                since("rtl_port_beats"),
                since("sent_pkts"),
                since("retransmitted_pkts"),
            );
            all += cycles;
            bytes += since("rtl_bytes_read");
        }
        report!("{:.0} cycles a second, of both cards in {seconds:.1} s", all as f64 / seconds);
        Ok(bytes)
    }
}
