//! Rounds of random deaths, as many as one likes.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;

use crate::{cargo, cases, setup};

/// `cargo xtask chaos`.
#[derive(Debug, Args)]
pub struct Options {
    /// Run N rounds
    #[arg(long, value_name = "N", default_value_t = 200)]
    rounds: u64,
    /// Begin with this seed, which each round increases by one [default: a random one]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Kill a program with 10,000 QPs and 2,000 regions instead, while it makes or holds them
    #[arg(long)]
    many: bool,
}

/// Runs the rounds.
///
/// # Errors
/// At the first round after which not everything is well.
pub fn chaos(options: &Options) -> Result<ExitCode> {
    setup::packages(&setup::tests())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = options.seed.unwrap_or(now.as_secs());
    cases::chaos(&cargo::build()?, options.rounds, seed, options.many)?;
    Ok(ExitCode::SUCCESS)
}
