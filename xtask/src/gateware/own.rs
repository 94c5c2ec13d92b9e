//! The tests of the crate `queue-engine`, over the engine in RTL.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use harness::summary::{Clock, Summary};
use terminal::report;

use super::LIMIT;
use crate::cargo::{cargo, target_directory};
use crate::libtest;

/// The target of the crate `cosim`, and the variable that names the engine's library to it.
const TARGET: &str = "queue_engine";
const LIBRARY: &str = "GATEWARE_ENGINE";

/// Runs them over the engine in a directory of libraries. Tests that do not apply to it are skipped by the reason that they
/// have in common.
///
/// # Errors
/// When they cannot be run.
pub fn tests(logic: &Path) -> Result<Summary> {
    let clock = Clock::start();
    let skips = target_directory()?.join("gateware-skipped-tests");
    if skips.exists() {
        fs::remove_file(&skips).with_context(|| format!("remove {}", skips.display()))?;
    }
    // The workspace's features are those of the run of all unit tests, whose builds this one takes.
    let task = cargo(&format!("test --workspace --locked --no-fail-fast --test {TARGET}"));
    let task = task.env(LIBRARY, logic.join("libengine.so")).env(libtest::SKIPS_VARIABLE, &skips);
    let finished = task.limit(LIMIT).run()?;
    let mut summary = libtest::count(&finished);
    let failed = libtest::failed(&finished);
    if failed.len() == summary.failed.len() {
        summary.failed = failed;
    }
    let reasons = reasons(&libtest::said_in(&skips)?);
    let skipped: usize = reasons.values().sum();
    summary.passed = summary.passed.saturating_sub(skipped);
    let (passed, seconds) = (summary.passed, clock.took().as_secs_f32());
    let word = if summary.failed.is_empty() { "ok  " } else { "FAIL" };
    report!(
        "{word} the queue engine's own tests: {passed} passed, {skipped} do not apply ({seconds:.0} s)"
    );
    if !summary.failed.is_empty() {
        report!("{}\n{}", finished.stdout.trim_end(), finished.stderr.trim_end());
    }
    for (reason, count) in reasons {
        let tests = if count == 1 { "test" } else { "tests" };
        summary.skipped.push((format!("{count} {tests} of queue-engine"), reason));
    }
    summary.name_after("gateware/");
    Ok(summary)
}

/// The reasons for which tests skipped themselves, and how many did for each.
fn reasons(lines: &str) -> BTreeMap<String, usize> {
    let mut reasons = BTreeMap::new();
    for (_, reason) in lines.lines().filter_map(|line| line.split_once(": ")) {
        *reasons.entry(reason.to_owned()).or_default() += 1;
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_were_skipped_are_counted_by_their_reason() {
        let lines = "q::a: no UD\nq::b: no XRC: none\nq::c: no UD\n";
        let counted: Vec<_> = reasons(lines).into_iter().collect();
        assert_eq!(counted, [("no UD".to_owned(), 2), ("no XRC: none".to_owned(), 1)]);
    }
}
