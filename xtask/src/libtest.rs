//! The output of tests' own runner, and what tests say that skip themselves.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use harness::process::Finished;
use harness::summary::Summary;

/// The variable with the file to which tests that lack a tool append a line each, `NAME: REASON`.
pub const SKIPS_VARIABLE: &str = "SKIPPED_TESTS";

/// The content of a file, if it has any.
pub fn said_in(path: &Path) -> Result<String> {
    match path.exists() {
        true => fs::read_to_string(path).with_context(|| format!("read {}", path.display())),
        false => Ok(String::new()),
    }
}

/// Moves tests that the runner counted as passed, but that skipped themselves, to the skipped ones.
pub fn skip(summary: &mut Summary, lines: &str) {
    let skipped = lines.lines().filter_map(|line| line.split_once(": "));
    let before = summary.skipped.len();
    summary.skipped.extend(skipped.map(|(name, why)| (name.to_owned(), why.to_owned())));
    summary.passed = summary.passed.saturating_sub(summary.skipped.len() - before);
}

/// Counts libtest's tests: `test result: ok. 3 passed; 0 failed; 1 ignored; …`, once per program.
pub fn count(finished: &Finished) -> Summary {
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

/// The tests that failed, as libtest heads the output of each: `---- NAME stdout ----`.
pub fn failed(finished: &Finished) -> Vec<String> {
    let heads = finished.stdout.lines().filter_map(|line| line.strip_prefix("---- "));
    heads.filter_map(|head| head.strip_suffix(" stdout ----")).map(str::to_owned).collect()
}

fn skipped(summary: &mut Summary, number: usize) {
    let entry = ("a unit test".to_owned(), "it is marked as ignored".to_owned());
    summary.skipped.extend(std::iter::repeat_n(entry, number));
}

/// A run that failed without a failed test did not build, or died.
pub fn not_run(mut summary: Summary, finished: &Finished) -> Summary {
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
    fn libtest_is_counted_over_all_programs() {
        let text = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
            test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        let summary = count(&finished(101, text, ""));
        assert_eq!(summary.to_string(), "7 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn what_says_that_it_was_skipped_has_not_passed() {
        let mut summary = Summary { passed: 3, ..Summary::default() };
        skip(&mut summary, "distant::engine::a: no turns: none\ndistant::engine::b: no turns\n");
        assert_eq!(summary.to_string(), "1 passed, 0 failed, 2 skipped");
        assert_eq!(summary.skipped[0], ("distant::engine::a".into(), "no turns: none".into()));
    }
}
