//! Networks in virtual time, judged by the bars of their descriptions.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::process::Task;
use harness::summary::{Clock, Step, Summary};

use crate::cargo::{self, Profile};

/// How long all networks may take with a seed; a few that are large take most of it.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// `cargo xtask network`.
#[derive(Debug, Args)]
pub struct Options {
    /// The network to run [default: all]
    scenario: Option<String>,
    /// Run each network with the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Read the networks from this TOML file, in place of netsim/networks.toml
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Run until this time after the start, such as 10ms, and judge nothing
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Write the results of the last seed as CSV and SVG into this directory
    #[arg(long, value_name = "DIRECTORY", requires = "scenario")]
    write: Option<PathBuf>,
}

/// Builds the simulator and runs networks.
///
/// # Errors
/// When it cannot be built or run.
pub fn network(options: &Options) -> Result<ExitCode> {
    let built = cargo::build_of(Profile::Quick, "--package netsim")?;
    let mut task = program(&built).args(options.scenario.as_slice());
    task = task.arg("--seeds").arg(options.seeds.to_string());
    for (option, value) in [("--file", &options.file), ("--write", &options.write)] {
        if let Some(value) = value {
            task = task.arg(option).arg(value);
        }
    }
    if let Some(until) = &options.until {
        task = task.arg("--until").arg(until);
    }
    let seeds = u32::try_from(options.seeds).unwrap_or(u32::MAX);
    let finished = task.shown().limit(LIMIT.saturating_mul(seeds)).run()?;
    // The simulator has the tasks' exit codes.
    let code = finished.status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs all networks with one seed.
///
/// # Errors
/// When they cannot be run.
pub fn check(built: &Path) -> Result<Summary> {
    let clock = Clock::start();
    let finished = program(built).limit(LIMIT).run()?;
    terminal::say(format_args!("{}", finished.stdout))?;
    let mut summary = Summary::parse(&finished.stdout)
        .with_context(|| format!("the simulator's run has no closing line: {}", finished.stderr))?;
    summary.name_after(NAMES);
    summary.steps.push(Step::of("simulated networks", &clock));
    Ok(summary)
}

/// The prefix of a network's name.
const NAMES: &str = "network/";

fn program(built: &Path) -> Task {
    Task::new(built.join("netsim"))
}
