//! Programs over software cards whose engines are RTL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use harness::setting::{Daemon, Setting, Stage, Who};
use serde_json::Value;
use terminal::report;

use super::build;
use super::tools::Tools;
use crate::demo::stage;
use crate::setup;

/// How long a program may take: it waits for a simulation.
pub(super) const LIMIT: Duration = Duration::from_secs(20 * 60);
/// The two cards.
pub(super) const CARDS: &str = "--soft 2 --soft-image rtl";
/// The engine's library in a directory of libraries.
pub(super) const ENGINE: &str = "libengine.so";

/// What verbs-data does where messages fail: their transport counts a frame as sent that it was refused the bytes of.
pub(super) const ERRORS: &str = "errors";

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
    let stage = stage_with(waves.as_deref(), &[])?;
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

/// The programs, with more of the tests', and the engine's library where balboad looks for it, which records waves if a
/// directory is given.
pub(super) fn stage_with(waves: Option<&Path>, more: &[&str]) -> Result<Stage> {
    setup::packages(setup::DEMO)?;
    let tools = Tools::get()?;
    let logic = match waves {
        Some(_) => build::recording(&tools)?,
        None => build::libraries(&tools)?,
    };
    stage("", more)?.with_rtl(&logic.join(ENGINE))
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

    /// Says what has passed since, all of which must be the RTL's: of each card it counted, on its streams of host memory,
    /// the bytes that its transport sent and received.
    pub(super) fn have_passed(&self, daemon: &Daemon<'_>, program: &str) -> Result<()> {
        let mut all = 0;
        for (card, passed) in self.passed(daemon)? {
            let Passed { read, written, sent, received } = passed;
            ensure!(
                program == ERRORS || (read, written) == (sent, received),
                "{program}: balboa{card} sent {sent} bytes and received {received}, of which its RTL counted {read} \
                 that it read and {written} that it wrote"
            );
            all += read;
        }
        ensure!(all > 0, "{program}: nothing passed through the RTL");
        Ok(())
    }

    /// Says what has passed since, and gives the payload of each card that is RTL.
    fn passed(&self, daemon: &Daemon<'_>) -> Result<Vec<(usize, Passed)>> {
        let seconds = self.at.elapsed().as_secs_f64();
        let now = Self::of(daemon)?;
        let mut all = 0;
        let mut cards = Vec::new();
        for card in 0..2 {
            let since = |name| now.count(card, name).saturating_sub(self.count(card, name));
            let cycles = since("rtl_cycles");
            // A card of software has none.
            if cycles == 0 {
                continue;
            }
            let passed = Passed {
                read: since("engine_payload_read"),
                written: since("engine_payload_written"),
                sent: since("sent_bytes"),
                received: since("rcvd_bytes"),
            };
            report!(
                "balboa{card}: image=rtl cycles={cycles} bytes_read={} bytes_written={} payload_read={} \
                 payload_written={} packets={} retransmitted={}",
                since("rtl_bytes_read"),
                since("rtl_bytes_written"),
                passed.read,
                passed.written,
                since("sent_pkts"),
                since("retransmitted_pkts"),
            );
            all += cycles;
            cards.push((card, passed));
        }
        report!("{:.0} cycles a second, of both cards in {seconds:.1} s", all as f64 / seconds);
        Ok(cards)
    }
}

/// Bytes of payload: what the RTL counts, and what its transport does.
struct Passed {
    read: u64,
    written: u64,
    sent: u64,
    received: u64,
}
