//! The unit tests and the documentation's examples: one command each; failed ones are run once more by name.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, Result};
use harness::process::Finished;
use harness::runner::{Filter, When};
use harness::summary::{Clock, Flake, Step, Summary};
use nix::sys::statvfs::statvfs;
use terminal::report;

use crate::cargo::{LIMIT, cargo, has_subcommand, target_directory};
use crate::libtest;

/// The variables with the number of random networks that simulations of the RoCE stack try, and with the part of their
/// inputs, places or moments that tests of very many try (`trial::share`).
const SEEDS_VARIABLE: &str = "ROCE_SIM_SEEDS";
const SHARE_VARIABLE: &str = "TEST_SHARE";
/// Where tests keep their files if so many bytes are free there and nobody says another place: tests of balboad make many
/// small ones, for which a file system on a disk takes as long as for all the rest.
const IN_MEMORY: &str = "/dev/shm";
const ROOM: u64 = 1 << 30;
const PLACE_VARIABLE: &str = "TMPDIR";
/// If more fail than this they are not run once more: that is no flake.
const AGAIN: usize = 10;

/// The amounts of random inputs that the tests try.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Random networks.
    pub seeds: u64,
    /// The divisor of what tests of very many try: one of so many is tried.
    pub share: u64,
}

impl Rounds {
    fn variables(self) -> [(&'static str, String); 2] {
        [(SEEDS_VARIABLE, self.seeds.to_string()), (SHARE_VARIABLE, self.share.to_string())]
    }
}

/// A runner of tests, and the reading of its output.
#[derive(Clone, Copy, Debug)]
struct Runner {
    command: &'static str,
    count: fn(&Finished) -> Summary,
    failed: fn(&Finished) -> Vec<String>,
    /// The command's further arguments for one test.
    alone: fn(&str) -> Vec<String>,
}

const NEXTEST: Runner = Runner {
    command: "nextest run --workspace --locked --no-fail-fast --color never --status-level fail",
    count: of_nextest,
    failed: failed_of_nextest,
    alone: |test| {
        let (binary, name) = test.split_once(' ').unwrap_or_default();
        let expression = format!("binary_id(={binary}) & test(={name})");
        vec!["--success-output=immediate".into(), "-E".into(), expression]
    },
};
// Not --lib, which runs libraries' tests also where their manifest says `test = false`: those of the other
// providers, which are one source, and would find the first one's stand-in for libibverbs.
const LIBTEST: Runner = Runner {
    command: "test --workspace --locked --no-fail-fast --tests",
    count: libtest::count,
    failed: libtest::failed,
    alone: |test| ["--", "--exact", test].map(str::to_owned).to_vec(),
};
const EXAMPLES: Runner =
    Runner { command: "test --workspace --locked --no-fail-fast --doc", ..LIBTEST };

const TESTS: &str = "unit tests";
const DOCUMENTED: &str = "the documentation's examples";

/// The names of the two, and the runs that include each.
pub const NAMES: [(&str, When); 2] = [(TESTS, When::Always), (DOCUMENTED, When::Full)];

/// All unit and crate tests, by nextest where it is installed, and the documentation's examples, as a filter takes them.
///
/// # Errors
/// When they cannot be run.
pub fn run(rounds: Rounds, filter: &Filter) -> Result<Summary> {
    let mut summary = Summary::default();
    if filter.takes(TESTS) {
        let runner = if has_subcommand("nextest") { NEXTEST } else { LIBTEST };
        summary.add(runner.run(TESTS, Some(rounds))?);
    }
    if filter.takes(DOCUMENTED) {
        summary.add(EXAMPLES.run(DOCUMENTED, None)?);
    }
    Ok(summary)
}

impl Runner {
    /// Runs all tests, and once more, each alone, those that fail.
    fn run(&self, name: &str, rounds: Option<Rounds>) -> Result<Summary> {
        let clock = Clock::start();
        let skips = skips()?;
        if skips.exists() {
            fs::remove_file(&skips).with_context(|| format!("remove {}", skips.display()))?;
        }
        let finished = self.task(&[], rounds)?;
        let mut summary = (self.count)(&finished);
        libtest::skip(&mut summary, &libtest::said_in(&skips)?);
        let failed = (self.failed)(&finished);
        // Where not every failure has a name, something is wrong that is no test's.
        if (1..=AGAIN).contains(&failed.len()) && failed.len() == summary.failed.len() {
            summary.failed.clear();
            for test in &failed {
                let arguments = (self.alone)(test);
                let second = self.task(&arguments, rounds)?;
                let counted = (self.count)(&second);
                let passed = counted.failed.is_empty() && counted.passed > 0;
                again(&mut summary, test, [said(&finished), said(&second)], passed);
            }
        }
        summary.steps.push(Step::of(name, &clock));
        Ok(summary)
    }

    /// Runs the command with further arguments.
    fn task(&self, arguments: &[String], rounds: Option<Rounds>) -> Result<Finished> {
        let clock = Clock::start();
        let mut task = cargo(self.command).args(arguments).env(libtest::SKIPS_VARIABLE, skips()?);
        let mut line = String::new();
        if env::var_os(PLACE_VARIABLE).is_none() && has_room(IN_MEMORY) {
            task = task.env(PLACE_VARIABLE, IN_MEMORY);
        }
        if let Some(rounds) = rounds {
            task = task.limit(LIMIT + Duration::from_secs(rounds.seeds));
            for (variable, value) in rounds.variables() {
                line.push_str(&format!("{variable}={value} "));
                task = task.env(variable, value);
            }
        }
        let finished = task.run()?;
        let seconds = clock.took().as_secs_f32();
        line.push_str(&finished.command);
        if finished.status.success() {
            report!("ok   {line} ({seconds:.0} s)");
        } else {
            report!("FAIL {line} ({seconds:.0} s)\n{}\nrepeat: {line}", said(&finished));
        }
        Ok(finished)
    }
}

/// Whether there is such a file system with room for the tests' files.
fn has_room(path: &str) -> bool {
    statvfs(path).is_ok_and(|it| it.blocks_available().saturating_mul(it.fragment_size()) >= ROOM)
}

/// Where tests say that they were skipped.
fn skips() -> Result<PathBuf> {
    Ok(target_directory()?.join("skipped-tests"))
}

fn said(finished: &Finished) -> String {
    format!("{}{}", finished.stdout, finished.stderr).trim_end().to_owned()
}

/// Counts a test that failed and was run once more.
fn again(summary: &mut Summary, test: &str, [first, second]: [String; 2], passed: bool) {
    if passed {
        summary.passed += 1;
        let outputs = format!("{first}\n--- alone\n{second}\n");
        summary.flaky.push(Flake { name: format!("the test {test}"), outputs });
    } else {
        summary.failed.push(format!("the test {test}"));
    }
}

/// Counts nextest's tests: `Summary [ 1.2s] 34 tests run: 33 passed (1 slow), 1 failed, 2 skipped`.
fn of_nextest(finished: &Finished) -> Summary {
    let mut summary = Summary::default();
    let line = finished.stderr.lines().rev().find(|line| line.trim_start().starts_with("Summary"));
    let counts = line.and_then(|line| line.split_once("run:")).map_or("", |(_, counts)| counts);
    for count in counts.split(',') {
        let mut words = count.split_whitespace();
        let number = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        match words.next() {
            Some("passed") => summary.passed += number,
            // Those that were not asked for, where one is run alone, have no reason.
            Some("skipped") => {}
            Some(how) => {
                (0..number).for_each(|_| summary.failed.push(format!("a unit test ({how})")))
            }
            None => {}
        }
    }
    libtest::not_run(summary, finished)
}

/// The tests that failed, as nextest lists them behind its summary: `FAIL [ 0.1s] (2/34) CRATE::BINARY NAME`.
fn failed_of_nextest(finished: &Finished) -> Vec<String> {
    let lines = finished.stderr.lines();
    let lines = lines.skip_while(|line| !line.trim_start().starts_with("Summary")).skip(1);
    let mut failed: Vec<String> = lines
        .filter(|line| line.contains('['))
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, binary) = (words.next()?, words.next()?);
            Some(format!("{binary} {name}"))
        })
        .collect();
    failed.sort();
    failed.dedup();
    failed
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
        assert_eq!(summary.to_string(), "37 passed, 3 failed, 0 skipped");
    }

    #[test]
    fn what_nextest_lists_behind_its_summary_is_run_again_by_its_name() {
        let text = "        FAIL [   0.004s] (   3/2176) roce sim::lost\n  stderr ---\n    it was [lost]\n\
            ────────────\n     Summary [   3.1s] 40 tests run: 38 passed, 1 failed, 1 timed out, 0 skipped\n\
            \u{20}       FAIL [   0.004s] (   3/2176) roce::sim lost::every_one\n\
            \u{20}    TIMEOUT [  60.001s] (  17/2176) xtask::bin/xtask test::tests::x\nerror: test run failed\n";
        let failed = failed_of_nextest(&finished(100, "", text));
        assert_eq!(failed, ["roce::sim lost::every_one", "xtask::bin/xtask test::tests::x"]);
        let arguments = (NEXTEST.alone)(&failed[1]);
        assert_eq!(arguments[1..], ["-E", "binary_id(=xtask::bin/xtask) & test(=test::tests::x)"]);
    }

    #[test]
    fn what_libtest_heads_is_run_again_by_its_name() {
        let text = "failures:\n\n---- a::b stdout ----\nthread panicked\n\n---- src/lib.rs - c (line 3) stdout ----\n\n\
            failures:\n    a::b\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n";
        let failed = libtest::failed(&finished(101, text, ""));
        assert_eq!(failed, ["a::b", "src/lib.rs - c (line 3)"]);
        assert_eq!((LIBTEST.alone)(&failed[1]), ["--", "--exact", "src/lib.rs - c (line 3)"]);
    }

    #[test]
    fn a_test_that_passes_alone_is_flaky_and_one_that_does_not_has_failed() {
        let mut summary = Summary { passed: 3, ..Summary::default() };
        let said = || ["why".to_owned(), "well".to_owned()];
        again(&mut summary, "roce::sim lost", said(), true);
        again(&mut summary, "roce::sim late", said(), false);
        assert_eq!(summary.to_string(), "4 passed, 1 failed, 0 skipped");
        assert_eq!(summary.failed, ["the test roce::sim late"]);
        let flake = Flake {
            name: "the test roce::sim lost".into(),
            outputs: "why\n--- alone\nwell\n".into(),
        };
        assert_eq!(summary.flaky, [flake]);
    }

    #[test]
    fn tests_that_do_not_build_count_as_a_failure() {
        let broken = finished(101, "", "error: could not compile");
        assert_eq!(of_nextest(&broken).failed, ["cargo"]);
        assert_eq!(libtest::count(&broken).failed, ["cargo"]);
    }
}
