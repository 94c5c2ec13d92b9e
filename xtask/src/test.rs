//! Everything that is checked, counted.

use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::Result;
use clap::Args;
use harness::runner::Filter;
use harness::setting::installed_release;
use terminal::report;

use crate::cargo::{PROGRAMS, Profile, conclude};
use crate::cases::Set;
use crate::{guest, roots, selection, setup};

mod plan;
mod unit;

use plan::{Part, Run, Wanted};
use unit::Rounds;

/// `cargo xtask test`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Run everything; with --only, only those cases
    #[arg(long)]
    full: bool,
    /// Run programs built as they are shipped, which takes more than twice as long to build
    #[arg(long)]
    shipped: bool,
    /// Run only end-to-end cases with TEXT in their name, and no other check; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Match --only with whole names only
    #[arg(long, requires = "only")]
    exact: bool,
    /// List everything, mark the names that only --full runs, and run nothing
    #[arg(long)]
    list: bool,
    /// Run all cases of the virtual machine with this kernel; may be repeated
    #[arg(long = "kernel", value_enum, conflicts_with = "only")]
    kernels: Vec<guest::Version>,
    /// Test with this release of rdma-core as well, in a root directory of its own; may be repeated
    #[arg(long = "rdma-core", value_name = "RELEASE", value_parser = roots::parse)]
    rdma_core: Vec<u32>,
    /// Fail when the tool of a check is missing, instead of counting a skip
    #[arg(long, conflicts_with = "only")]
    require_checks: bool,
    /// Simulate N random networks instead of 250, or 1,000 with --full
    #[arg(long, value_name = "N", conflicts_with = "only")]
    seeds: Option<u64>,
}

const HELP: &str = "\
A failed case is run once more, alone. If it passes then, it counts as passed and is printed in a line \
`flaky: NAME` above the last one; more than three such lines are a failure. target/flaky has the output \
of both runs. The last line is `N passed, N failed, N skipped`.";

/// The random rounds of the default run, and of the full one.
const FEW: Rounds = Rounds { seeds: 250, share: 7 };
const ALL: Rounds = Rounds { seeds: 1_000, share: 1 };

/// Runs the tests; the last line is `N passed, N failed, N skipped`.
///
/// # Errors
/// When they cannot be run.
pub fn test(options: &Options) -> Result<ExitCode> {
    if !options.only.is_empty() {
        return only(options);
    }
    if options.list {
        return list();
    }
    let wanted = Wanted {
        full: options.full,
        kernels: options.kernels.clone(),
        releases: options.rdma_core.clone(),
    };
    let plan = plan::of(&wanted, Part::names)?;
    setup::packages(&setup::tests())?;
    let run = Run {
        profile: profile(options),
        full: options.full,
        require_checks: options.require_checks,
        rounds: rounds(options),
        packages: plan::programs(&wanted, &plan, installed_release()?.number),
        built: OnceLock::new(),
    };
    let summary = run.all(&plan)?;
    report!("");
    conclude(summary)
}

fn rounds(options: &Options) -> Rounds {
    let rounds = if options.full { ALL } else { FEW };
    Rounds { seeds: options.seeds.unwrap_or(rounds.seeds), ..rounds }
}

fn profile(options: &Options) -> Profile {
    if options.shipped { Profile::Release } else { Profile::Quick }
}

/// Runs end-to-end cases, and those of other releases of rdma-core.
fn only(options: &Options) -> Result<ExitCode> {
    let releases = &options.rdma_core;
    let mut cases = Set::here().list()?;
    for release in releases {
        cases.extend(Set::release(*release).list()?);
    }
    let filter = Filter { parts: options.only.clone(), exact: options.exact };
    selection::all_named(&cases, &filter, Some("cargo xtask test --list"))?;
    if options.list {
        for case in cases.iter().filter(|case| filter.takes(&case.name)) {
            terminal::say(format_args!("{}\n", case.name))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    setup::packages(&setup::tests())?;
    let run = Run {
        profile: profile(options),
        full: false,
        require_checks: false,
        rounds: FEW,
        packages: PROGRAMS.to_owned(),
        built: OnceLock::new(),
    };
    let releases = releases.iter().copied().map(Part::Release);
    let parts = std::iter::once(Part::Cases).chain(releases);
    let summary = run.all(&parts.map(|part| (part, filter.clone())).collect::<Vec<_>>())?;
    report!("");
    conclude(summary)
}

/// Lists everything with the run that it is in.
fn list() -> Result<ExitCode> {
    for part in plan::all() {
        for (name, when) in part.names()? {
            terminal::say(format_args!("{:<8} {name}\n", when.to_string()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
