//! Programs over software cards whose engines are RTL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use harness::setting::{Daemon, Who};
use serde_json::Value;
use terminal::report;

use super::build;
use super::tools::Tools;
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
/// How long a program may take: it waits for a simulation.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// The two cards.
const CARDS: &str = "--soft 2 --soft-image rtl";

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
pub fn demo() -> Result<ExitCode> {
    with_cards(None, |daemon| {
        report!(
            "Two software cards, balboa0 and balboa1, whose queue engines are RTL, simulated cycle by cycle."
        );
        for program in PROGRAMS {
            let before = Cycles::of(daemon)?;
            between_the_cards(daemon, program, LIMIT)?;
            let passed = before.passed(daemon)?;
            ensure!(passed > 0, "{program}: nothing passed through the RTL");
        }
        Ok(ExitCode::SUCCESS)
    })
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
    with_cards(waves.as_deref(), |daemon| {
        let before = Cycles::of(daemon)?;
        let task = daemon.run("").args(&options.program).with_our_environment().at_terminal();
        let finished = task.limit(LIMIT).run()?;
        before.passed(daemon)?;
        Ok(match finished.status.success() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    })
}

/// Starts balboad with the cards, whose waves are recorded if a directory is given, and ends it behind `act`.
fn with_cards(
    waves: Option<&Path>,
    act: impl FnOnce(&Daemon<'_>) -> Result<ExitCode>,
) -> Result<ExitCode> {
    setup::packages(setup::DEMO)?;
    let tools = Tools::get()?;
    let logic = match waves {
        Some(_) => build::recording(&tools)?,
        None => build::libraries(&tools)?,
    };
    let stage = stage("")?;
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    // balboad looks for it beside the directory that it is in.
    let beside = stage.path().join("gateware");
    fs::create_dir(&beside)?;
    fs::copy(logic.join("libengine.so"), beside.join("libengine.so"))?;
    let setting = stage.setting(Who::Ourselves)?;
    let daemon = setting.balboad_within(&setting.state_dir(), CARDS, |task| match waves {
        Some(directory) => task.clone().env("BALBOA_WAVES", directory),
        None => task.clone(),
    })?;
    let code = act(&daemon)?;
    daemon.stop()?;
    Ok(code)
}

/// The counts of the RTL in each card, at a time.
struct Cycles {
    at: Instant,
    status: Value,
}

impl Cycles {
    fn of(daemon: &Daemon<'_>) -> Result<Self> {
        Ok(Self { at: Instant::now(), status: daemon.status_within(LIMIT)? })
    }

    /// Says what has passed since, and gives the bytes that the RTL read from host memory.
    fn passed(&self, daemon: &Daemon<'_>) -> Result<u64> {
        let seconds = self.at.elapsed().as_secs_f64();
        let now = Self::of(daemon)?;
        let (mut all, mut bytes) = (0, 0);
        for card in 0..2 {
            let count = |of: &Self, name: &str| {
                of.status["cards"][card]["counters"][name].as_u64().unwrap_or_default()
            };
            let since = |name| count(&now, name).saturating_sub(count(self, name));
            let cycles = since("rtl_cycles");
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
