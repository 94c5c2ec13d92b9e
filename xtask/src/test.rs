//! Everything that is checked, counted.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use ibverbs_tests::cases::{self, release};
use ibverbs_tests::process::Finished;
use ibverbs_tests::runner::{self, Case, Filter, Summary};
use ibverbs_tests::scapy;
use ibverbs_tests::setting::installed_release;
use terminal::report;

use crate::cargo::{LIMIT, build, cargo, has_subcommand};
use crate::{checks, conformance, crates, guest, nccl, roots, selection, setup, stack};

/// `cargo xtask test`.
#[derive(Debug, Args)]
pub struct Options {
    /// Run only end-to-end cases with TEXT in their name, and no other check; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Take --only for whole names
    #[arg(long, requires = "only")]
    exact: bool,
    /// List the end-to-end cases and run nothing
    #[arg(long)]
    list: bool,
    /// Boot this kernel for the guest's cases; may be repeated
    #[arg(long = "kernel", value_enum, default_value = "6.1", conflicts_with = "only")]
    kernels: Vec<guest::Version>,
    /// Test with this release of rdma-core as well, in a root directory of its own; may be repeated
    #[arg(long = "rdma-core", value_name = "RELEASE", value_parser = roots::parse)]
    rdma_core: Vec<u32>,
    /// Fail where a check cannot be run for want of its tool, instead of counting a skip
    #[arg(long, conflicts_with = "only")]
    require_checks: bool,
    /// Simulate N random networks instead of 2,000
    #[arg(long, value_name = "N", conflicts_with = "only")]
    seeds: Option<u64>,
}

/// What tells the simulations of the RoCE stack how many random networks to try.
const SEEDS_VARIABLE: &str = "ROCE_SIM_SEEDS";

/// Runs the tests; the last line is `N passed, N failed, N skipped`.
///
/// # Errors
/// When they cannot be run.
pub fn test(options: &Options) -> Result<ExitCode> {
    let cases = cases::all();
    let of_releases: Vec<Case> =
        options.rdma_core.iter().flat_map(|it| release::cases(*it)).collect();
    let names = [selection::names(&cases), selection::names(&of_releases)].concat();
    let filter = Filter { parts: options.only.clone(), exact: options.exact };
    selection::all_named(&names, &filter, Some("cargo xtask test --list"))?;
    if options.list {
        for name in names {
            terminal::say(format_args!("{name}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    setup::packages(&setup::tests())?;
    let mut summary = Summary::default();
    if options.only.is_empty() {
        summary.add(checks::all(options.require_checks));
        summary.add(unit_tests(options.seeds)?);
    }
    if let Err(error) = scapy::install() {
        report!("scapy cannot be installed: {error:#}");
    }
    let built = build()?;
    report!("end-to-end tests");
    summary.add(runner::run(&cases, &filter, &built, "cargo xtask test --only")?);
    for release in &options.rdma_core {
        summary.add(of_release(*release, &filter, &built)?);
    }
    if options.only.is_empty() {
        let installed = installed_release()?.number;
        let further = options.rdma_core.iter().filter(|release| **release != installed);
        for release in std::iter::once(&installed).chain(further) {
            summary.add(conformance::check(*release, &built)?);
        }
        summary.add(nccl::check(&built)?);
        summary.add(crates::check(&built)?);
        summary.add(stack::check(&built)?);
        for kernel in &options.kernels {
            summary.add(guest::run_cases(*kernel, &Filter::default(), &built)?);
        }
    }

    report!("");
    summary.print();
    Ok(summary.exit_code())
}

/// The cases of another release of rdma-core; skipped where its packages cannot be fetched.
fn of_release(release: u32, filter: &Filter, built: &Path) -> Result<Summary> {
    let cases = release::cases(release);
    if !cases.iter().any(|case| filter.takes(&case.name)) {
        return Ok(Summary::default());
    }
    match roots::fetch(release) {
        Ok(root) => {
            let repeat = format!("cargo xtask test --rdma-core {release} --only");
            runner::run_within(Some(&root), &cases, filter, built, &repeat)
        }
        Err(error) => Ok(Summary::skipped(&format!("release {release}"), &error)),
    }
}

/// All unit and crate tests, by nextest where it is installed, and the documentation's examples.
fn unit_tests(seeds: Option<u64>) -> Result<Summary> {
    let nextest = has_subcommand("nextest");
    let mut summary = if nextest {
        let command = "nextest run --workspace --locked --no-fail-fast --color never";
        of_nextest(&run_tests(command, seeds)?)
    } else {
        // Not --lib, which runs libraries' tests also where their manifest says `test = false`: those of the other
        // providers, which are one source, and would find the first one's stand-in for libibverbs.
        let command = "test --workspace --locked --no-fail-fast --tests";
        of_libtest(&run_tests(command, seeds)?)
    };
    summary.add(of_libtest(&run_tests("test --workspace --locked --no-fail-fast --doc", None)?));
    Ok(summary)
}

fn run_tests(command: &str, seeds: Option<u64>) -> Result<Finished> {
    let started = Instant::now();
    let mut task = cargo(command);
    let mut line = format!("cargo {command}");
    if let Some(seeds) = seeds {
        task = task.env(SEEDS_VARIABLE, seeds.to_string());
        task = task.limit(LIMIT + Duration::from_secs(seeds));
        line = format!("{SEEDS_VARIABLE}={seeds} {line}");
    }
    let finished = task.run()?;
    let seconds = started.elapsed().as_secs_f32();
    if finished.status.success() {
        report!("ok   {line} ({seconds:.0} s)");
    } else {
        report!("FAIL {line} ({seconds:.0} s)");
        report!("{}", format!("{}{}", finished.stdout, finished.stderr).trim_end());
        report!("repeat: {line}");
    }
    Ok(finished)
}

/// Counts what nextest ran: `Summary [ 1.2s] 34 tests run: 33 passed (1 slow), 1 failed, 2 skipped`.
fn of_nextest(finished: &Finished) -> Summary {
    let mut summary = Summary::default();
    let line = finished.stderr.lines().rev().find(|line| line.trim_start().starts_with("Summary"));
    let counts = line.and_then(|line| line.split_once("run:")).map_or("", |(_, counts)| counts);
    for count in counts.split(',') {
        let mut words = count.split_whitespace();
        let number = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        match words.next() {
            Some("passed") => summary.passed += number,
            Some("skipped") => skipped(&mut summary, number),
            Some(how) => {
                (0..number).for_each(|_| summary.failed.push(format!("a unit test ({how})")))
            }
            None => {}
        }
    }
    not_run(summary, finished)
}

/// Counts what libtest ran: `test result: ok. 3 passed; 0 failed; 1 ignored; …`, once per program.
fn of_libtest(finished: &Finished) -> Summary {
    let mut summary = Summary::default();
    let results = finished.stdout.lines().filter_map(|line| line.strip_prefix("test result: "));
    for count in results.flat_map(|result| result.split([';', '.'])) {
        let mut words = count.split_whitespace();
        let number = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        match words.next() {
            Some("passed") => summary.passed += number,
            Some("failed") => (0..number).for_each(|_| summary.failed.push("a unit test".into())),
            Some("ignored") => skipped(&mut summary, number),
            _ => {}
        }
    }
    not_run(summary, finished)
}

fn skipped(summary: &mut Summary, number: usize) {
    let entry = ("a unit test".to_owned(), "it is marked as ignored".to_owned());
    summary.skipped.extend(std::iter::repeat_n(entry, number));
}

/// A run that failed without a failed test did not build, or died.
fn not_run(mut summary: Summary, finished: &Finished) -> Summary {
    if !finished.status.success() && summary.failed.is_empty() {
        summary.failed.push(finished.command.clone());
    }
    summary
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn finished(code: i32, stdout: &str, stderr: &str) -> Finished {
        Finished {
            command: "cargo".into(),
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        }
    }

    #[test]
    fn nextest_is_counted() {
        let text = "     Summary [   3.1s] 40 tests run: 37 passed (2 slow), 1 failed, 2 timed out, 5 skipped";
        let summary = of_nextest(&finished(100, "", text));
        assert_eq!(summary.to_string(), "37 passed, 3 failed, 5 skipped");
    }

    #[test]
    fn libtest_is_counted_over_all_programs() {
        let text = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
            test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        let summary = of_libtest(&finished(101, text, ""));
        assert_eq!(summary.to_string(), "7 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn tests_that_do_not_build_count_as_a_failure() {
        let broken = finished(101, "", "error: could not compile");
        assert_eq!(of_nextest(&broken).failed, ["cargo"]);
        assert_eq!(of_libtest(&broken).failed, ["cargo"]);
    }
}
