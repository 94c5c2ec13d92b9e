//! The programs that people run, as docs/applications.md and its pages say.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use harness::runner::Filter;
use terminal::report;

use crate::cases::Set;
use crate::{cargo, selection, setup, suites};

/// `cargo xtask apps`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Options {
    /// Run only recipes with TEXT in their name
    #[arg(value_name = "TEXT")]
    names: Vec<String>,
    /// Match TEXT with whole names only
    #[arg(long, requires = "names")]
    exact: bool,
    /// List the recipes, or those with TEXT in their name, and run nothing
    #[arg(long)]
    list: bool,
}

const EXIT_CODES: &str = "\
The last line is `N passed, N failed, N skipped`.

Exit codes: 0 every recipe did what its page in docs/ says, or was skipped for the reason that was printed; 1 one did
not, or nothing was run; 2 wrong arguments, or a TEXT that is in no name; 3 packages are missing and cannot be
installed (the line that installs them is printed).";

/// Runs the recipes; the last line is `N passed, N failed, N skipped`.
///
/// # Errors
/// When they cannot be run.
pub fn apps(options: &Options) -> Result<ExitCode> {
    let cases = Set::apps().list()?;
    let filter = Filter { parts: options.names.clone(), exact: options.exact };
    selection::all_named(&cases, &filter, Some("cargo xtask apps --list"))?;
    if options.list {
        for case in cases.iter().filter(|case| filter.takes(&case.name)) {
            terminal::say(format_args!("{}\n", case.name))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    setup::packages(setup::APPS)?;
    suites::build(cases.iter().filter(|case| filter.takes(&case.name)))?;
    let built = cargo::build()?;
    let summary = Set::apps().run(&filter, &built, "cargo xtask apps")?;
    report!("");
    cargo::conclude(summary)
}
