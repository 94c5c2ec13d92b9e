//! Attacks on a balboad, by their names, as long as one likes.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use harness::runner::Filter;
use terminal::report;

use crate::cases::Set;
use crate::{cargo, selection, setup};

/// `cargo xtask attack`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Options {
    /// Run only attacks with TEXT in their name; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Match --only with whole names only
    #[arg(long, requires = "only")]
    exact: bool,
    /// List the attacks, or those with TEXT in their name, and run nothing
    #[arg(long)]
    list: bool,
    /// Watch for N seconds before, during and after each attack
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

const EXIT_CODES: &str = "\
The last line is `N passed, N failed, N skipped`.

Exit codes: 0 every attack kept to its limits, or was skipped for the reason that was printed; 1 one did not,
or nothing was run; 2 wrong arguments, or a TEXT that is in no name; 3 packages are missing and cannot be
installed (the line that installs them is printed).";

/// Runs the attacks; the last line is `N passed, N failed, N skipped`.
///
/// # Errors
/// When they cannot be run.
pub fn attack(options: &Options) -> Result<ExitCode> {
    let attacks = Set::attack(options.seconds);
    let cases = attacks.list()?;
    let filter = Filter { parts: options.only.clone(), exact: options.exact };
    selection::all_named(&cases, &filter, Some("cargo xtask attack --list"))?;
    if options.list {
        for case in cases.iter().filter(|case| filter.takes(&case.name)) {
            terminal::say(format_args!("{}\n", case.name))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    setup::packages(setup::ATTACK)?;
    let built = cargo::build()?;
    let summary = attacks.run(&filter, &built, "cargo xtask attack --only")?;
    report!("");
    cargo::conclude(summary)
}
