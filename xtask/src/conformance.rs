//! pyverbs, rdma-core's own tests of verbs, of several releases, on a software card, unmodified.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use harness::runner::{Filter, Machine};
use harness::setting::{Daemon, Root, Setting, Stage, Who};
use harness::summary::Summary;
use serde::Deserialize;
use terminal::report;

use crate::{cargo, roots, selection, setup};

mod page;

/// How long the tests of one module may take.
const MODULE_LIMIT: Duration = Duration::from_secs(5 * 60);
/// Runs the tests of a module, with the release's Python.
const RUN: &str = include_str!("conformance/run.py");
const PYTHON: &str = "/usr/bin/python3";
/// The card's.
const ADDRESS: &str = "10.77.0.1";

/// `cargo xtask conformance`.
#[derive(Debug, Args)]
pub struct Options {
    /// Run only the tests of this release of rdma-core; may be repeated
    #[arg(long = "release", value_name = "RELEASE", value_parser = roots::parse)]
    releases: Vec<u32>,
    /// Run only modules with TEXT in their name; the page in docs/ stays as it is
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Write the counts to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The outcome of a test; of several, the last in this order counts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It is there, and nothing became of it: its module's process ended before.
    Found,
    Passed,
    Skipped,
    Failed,
    Error,
}

/// One test: its outcome, and the reason.
#[derive(Debug)]
struct Judged {
    outcome: Outcome,
    text: String,
}

/// The tests by their names, `tests.test_MODULE.Class.test_NAME`.
type Tests = BTreeMap<String, Judged>;

/// A line of the runner's.
#[derive(Debug, Deserialize)]
struct Said {
    kind: Outcome,
    test: String,
    text: String,
}

/// How many tests of a release ended how.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
struct Counts {
    #[serde(serialize_with = "as_text")]
    release: u32,
    passed: usize,
    skipped: usize,
    failed: usize,
    errors: usize,
}

/// A release is a name, not a number to reckon with.
fn as_text<S: serde::Serializer>(release: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(release)
}

impl Counts {
    /// Whether nothing is wrong.
    fn are_good(&self) -> bool {
        self.passed > 0 && self.failed == 0 && self.errors == 0
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, skipped, failed, errors, .. } = self;
        write!(f, "{passed} passed, {skipped} skipped, {failed} failed, {errors} errors")
    }
}

/// Runs the tests, and writes the page in docs/ and the counts.
///
/// # Errors
/// When the tests cannot be fetched or run.
pub fn conformance(options: &Options) -> Result<ExitCode> {
    setup::packages(setup::CONFORMANCE)?;
    let all = roots::RELEASES.map(|(number, _)| number);
    let wanted = if options.releases.is_empty() { &all[..] } else { &options.releases };
    let mut releases = Vec::new();
    for release in wanted {
        // Where it was not asked for, a source that is not there is no failure.
        let missing = roots::missing(*release).filter(|_| options.releases.is_empty());
        if let Some(missing) = missing {
            report!("skip pyverbs of rdma-core {release}: {missing}");
            continue;
        }
        let root = roots::fetch(*release)?;
        let modules = modules(&root.path)?;
        releases.push((*release, root, modules));
    }
    let filter = Filter { parts: options.only.iter().cloned().collect(), exact: false };
    let mut names: Vec<&String> = releases.iter().flat_map(|(_, _, modules)| modules).collect();
    names.sort_unstable();
    names.dedup();
    selection::all_named(&names, &filter, None)?;
    // A module may be of some releases alone.
    releases.retain(|(_, _, modules)| modules.iter().any(|module| filter.takes(module)));
    let built = cargo::build()?;
    let mut run = Vec::new();
    for (release, root, _) in releases {
        report!("pyverbs of rdma-core {release}");
        let tests = run_all(&root, &filter, &built)?;
        let counts = count(release, &tests);
        report!("{counts}");
        run.push((counts, tests));
    }
    if options.only.is_none() {
        page::update(&run)?;
    }
    let (counts, _): (Vec<Counts>, Vec<Tests>) = run.into_iter().unzip();
    if let Some(file) = &options.json {
        let text = serde_json::json!({ "releases": counts }).to_string();
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    report!("");
    counts.iter().for_each(|it| report!("rdma-core {}: {it}", it.release));
    Ok(if counts.iter().all(Counts::are_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the tests of a release, which count as one; where they cannot be fetched it is skipped.
///
/// # Errors
/// When they cannot be run.
pub fn check(release: u32, built: &Path) -> Result<Summary> {
    let name = format!("pyverbs of rdma-core {release}");
    let root = match roots::fetch(release) {
        Ok(root) => root,
        Err(error) => return Ok(Summary::skipped(&name, &error)),
    };
    let repeat = format!("cargo xtask conformance --release {release}");
    Ok(Machine::default().twice_at_most(&name, &repeat, true, || {
        let counts = count(release, &run_all(&root, &Filter::default(), built)?);
        ensure!(counts.are_good(), "{counts}");
        report!("     {counts}");
        Ok(())
    }))
}

/// Runs the tests of the modules that are wanted, and shows which do not pass.
fn run_all(root: &Root, only: &Filter, built: &Path) -> Result<Tests> {
    let stage = Stage::new(built)?.within(Some(root));
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    let setting = stage.setting(Who::User)?;
    let daemon = setting.balboad("--soft 2")?;
    let mut tests = Tests::new();
    for module in modules(&root.path)?.iter().filter(|module| only.takes(module)) {
        tests.append(&mut run(&setting, &daemon, module)?);
    }
    daemon.stop()?;
    for (name, judged) in tests.iter().filter(|(_, it)| it.outcome >= Outcome::Failed) {
        report!("{name}:\n{}", judged.text.trim_end());
    }
    Ok(tests)
}

/// The modules that have tests.
fn modules(root: &Path) -> Result<Vec<String>> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(root.join(roots::TESTS))? {
        let name = entry?.file_name();
        let module = name.to_str().and_then(|name| name.strip_suffix(".py"));
        modules.extend(module.filter(|module| module.starts_with("test_")).map(str::to_owned));
    }
    modules.sort();
    Ok(modules)
}

/// Runs the tests of a module, in a process of their own.
fn run(setting: &Setting, daemon: &Daemon<'_>, module: &str) -> Result<Tests> {
    let said = setting.directory().join(module);
    let task = daemon.run(PYTHON).arg("-c").arg(RUN).arg(Path::new("/").join(roots::TESTS));
    let task = task.arg(module).arg(MODULE_LIMIT.as_secs().to_string());
    let task = task.arg(&said).arg(ADDRESS).words("--dev balboa0");
    let finished = task.env("PYTHONDONTWRITEBYTECODE", "1").limit(MODULE_LIMIT * 2).run()?;
    let text = fs::read_to_string(&said).unwrap_or_default();
    let mut tests = judged(&text).with_context(|| format!("no outcomes of {finished}"))?;
    ensure!(!tests.is_empty(), "{module} ended before its first test: {finished}");
    let ended = tests.values_mut().filter(|judged| judged.outcome == Outcome::Found);
    for test in ended {
        *test = Judged { outcome: Outcome::Error, text: format!("not run to its end: {finished}") };
    }
    Ok(tests)
}

/// The tests that a module's lines speak of, each with its worst outcome.
fn judged(lines: &str) -> Result<Tests> {
    let mut tests = Tests::new();
    for line in lines.lines() {
        let Said { kind, test, text } = serde_json::from_str(line)?;
        let judged = Judged { outcome: kind, text };
        match tests.get_mut(&test) {
            Some(known) if known.outcome >= kind => {}
            Some(known) => *known = judged,
            None => drop(tests.insert(test, judged)),
        }
    }
    Ok(tests)
}

fn count(release: u32, tests: &Tests) -> Counts {
    let of = |outcome| tests.values().filter(|judged| judged.outcome == outcome).count();
    Counts {
        release,
        passed: of(Outcome::Passed),
        skipped: of(Outcome::Skipped),
        failed: of(Outcome::Failed),
        errors: of(Outcome::Error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_outcome_of_a_test_counts_and_none_is_an_error_of_its_own() {
        let lines = r#"{"kind": "found", "test": "a", "text": ""}
            {"kind": "found", "test": "b", "text": ""}
            {"kind": "found", "test": "c", "text": ""}
            {"kind": "failed", "test": "a", "text": "why"}
            {"kind": "skipped", "test": "a", "text": "not here"}
            {"kind": "passed", "test": "b", "text": ""}"#;
        let tests = judged(lines).unwrap();
        assert_eq!(tests["a"].text, "why");
        assert_eq!(tests["c"].outcome, Outcome::Found);
        let counts = count(44, &tests);
        assert_eq!((counts.passed, counts.skipped, counts.failed, counts.errors), (1, 0, 1, 0));
        let told = serde_json::to_string(&counts).unwrap();
        assert_eq!(told, r#"{"release":"44","passed":1,"skipped":0,"failed":1,"errors":0}"#);
        assert!(judged("no JSON").is_err());
    }
}
