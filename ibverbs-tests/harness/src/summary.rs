//! The summary of a run: counts, names, and the longest steps. It is printed at the end of the run, and read again of
//! the text of one in a virtual machine, or of the file of one by another program.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};
use terminal::report;

use crate::process;

/// How many cases of a run may fail and then pass.
const FLAKY: usize = 3;
/// The number of longest steps that are printed.
const LONGEST: usize = 10;

/// The clock of a step: time, and the processors' time for it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    worked: Duration,
}

impl Clock {
    /// Begins.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now(), worked: worked() }
    }

    /// How long ago it began.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The processor time of this thread, and of the programs that it has waited for and theirs.
fn worked() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    let time = |usage: Usage| usage.user_time() + usage.system_time();
    let ours = usage.map_or(0, |usage| time(usage).num_microseconds());
    Duration::from_micros(u64::try_from(ours).unwrap_or(0)) + process::worked()
}

/// A step with its times.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Step {
    /// The name of a case or check.
    pub name: String,
    /// From its beginning to its end.
    pub took: Duration,
    /// The processors' time for it.
    pub worked: Duration,
}

impl Step {
    /// A step that ends now.
    #[must_use]
    pub fn of(name: &str, clock: &Clock) -> Self {
        let worked = worked().saturating_sub(clock.worked);
        Self { name: name.to_owned(), took: clock.took(), worked }
    }

    /// Adds the times of another step of the name.
    pub fn add(&mut self, further: &Self) {
        self.took += further.took;
        self.worked += further.worked;
    }

    fn parse(line: &str) -> Option<Self> {
        let (took, rest) = line.strip_prefix(STEP)?.split_once(" s, ")?;
        let (worked, name) = rest.split_once(WORK)?;
        let span = |text: &str| Duration::try_from_secs_f64(text.trim().parse().ok()?).ok();
        Some(Self { name: name.to_owned(), took: span(took)?, worked: span(worked)? })
    }
}

const STEP: &str = "longest: ";
const WORK: &str = " s of processors: ";

/// The step as it is printed.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (took, worked) = (self.took.as_secs_f64(), self.worked.as_secs_f64());
        write!(f, "{STEP}{took:.1} s, {worked:.1}{WORK}{}", self.name)
    }
}

/// A case that failed and then passed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Flake {
    /// The case's name.
    pub name: String,
    /// Its output of both times.
    pub outputs: String,
}

/// The summary of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Names of those that failed.
    pub failed: Vec<String>,
    /// Names of those that were skipped, and why.
    pub skipped: Vec<(String, String)>,
    /// Those that passed when they were run once more.
    pub flaky: Vec<Flake>,
    /// The times of steps.
    pub steps: Vec<Step>,
}

impl Summary {
    /// The summary of cases that cannot run together, for a reason that is reported at once.
    #[must_use]
    pub fn skipped(name: &str, error: &anyhow::Error) -> Self {
        let reason = format!("{error:#}");
        report!("skip {name}: {reason}");
        Self { skipped: vec![(name.to_owned(), reason)], ..Self::default() }
    }

    /// Adds another run's.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.flaky.extend(other.flaky);
        self.steps.extend(other.steps);
    }

    /// Adds words before every name.
    pub fn name_after(&mut self, words: &str) {
        let names = self.failed.iter_mut().chain(self.skipped.iter_mut().map(|(name, _)| name));
        let names = names.chain(self.flaky.iter_mut().map(|flake| &mut flake.name));
        for name in names.chain(self.steps.iter_mut().map(|step| &mut step.name)) {
            name.insert_str(0, words);
        }
    }

    /// Prints the longest steps, failures, skips with their reason, flaky cases, and the closing line.
    pub fn print(&self) {
        report!("{}", self.text());
    }

    fn text(&self) -> String {
        let mut longest: Vec<&Step> = self.steps.iter().collect();
        longest.sort_by_key(|step| std::cmp::Reverse(step.took));
        let steps = longest.into_iter().take(LONGEST).map(Step::to_string);
        let failed = self.failed.iter().map(|name| format!("failed: {name}"));
        let skipped =
            self.skipped.iter().map(|(name, reason)| format!("skipped: {name}: {reason}"));
        let flaky = self.flaky.iter().map(|flake| format!("flaky: {}", flake.name));
        let lines = steps.chain(failed).chain(skipped).chain(flaky);
        lines.chain([self.to_string()]).collect::<Vec<_>>().join("\n")
    }

    /// Itself as the end of a whole run, in which more than a few that were flaky are a failure.
    #[must_use]
    pub fn judged(mut self) -> Self {
        let count = self.flaky.len();
        if count > FLAKY {
            self.failed.push(format!("{count} cases were flaky, and {FLAKY} may be"));
        }
        self
    }

    /// Ends a whole run: judges and prints it, and keeps the output of flaky cases, each in a file of a directory that
    /// then holds those of this run alone.
    #[must_use]
    pub fn conclude(self, directory: &Path) -> ExitCode {
        let summary = self.judged();
        match summary.keep(directory) {
            Ok(()) if summary.flaky.is_empty() => {}
            Ok(()) => report!("what flaky cases said both times: {}", directory.display()),
            Err(error) => report!("what flaky cases said is not kept: {error:#}"),
        }
        summary.print();
        summary.exit_code()
    }

    fn keep(&self, directory: &Path) -> Result<()> {
        if directory.exists() {
            fs::remove_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
        }
        if self.flaky.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
        for (number, flake) in self.flaky.iter().enumerate() {
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            let name: String = flake.name.chars().map(plain).take(100).collect();
            fs::write(directory.join(format!("{}-{name}", number + 1)), &flake.outputs)?;
        }
        Ok(())
    }

    /// The exit code of the run: success if a case passed and none failed.
    pub fn exit_code(&self) -> ExitCode {
        let good = self.failed.is_empty() && self.passed > 0;
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Writes it to a file, for [`Summary::read`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_vec(self)?;
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Reads the summary that [`Summary::write`] wrote.
    ///
    /// # Errors
    /// When the file is not there, or has something else.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("no summary: {}", file.display()))
    }

    /// The summary that was printed at the end of a text, if one was; the text is the output of its flaky cases.
    pub fn parse(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().collect();
        let closing = lines.iter().rposition(|line| counts(line).is_some())?;
        let (&closing, before) = lines.get(..=closing)?.split_last()?;
        let [passed, failed, skipped] = counts(closing)?;
        // What cases have said themselves stands before the longest steps.
        let end =
            before.iter().rposition(|line| Step::parse(line).is_some()).map_or(0, |at| at + 1);
        let (before, names) = before.split_at(end);
        let named = |word| names.iter().filter_map(move |line| line.strip_prefix(word));
        let skips = named("skipped: ").filter_map(|skip| skip.split_once(": "));
        let flake = |name: &str| Flake { name: name.to_owned(), outputs: text.to_owned() };
        let mut summary = Self {
            passed,
            failed: named("failed: ").map(str::to_owned).collect(),
            skipped: skips.map(|(name, why)| (name.to_owned(), why.to_owned())).collect(),
            flaky: named("flaky: ").map(flake).collect(),
            steps: before.iter().rev().map_while(|line| Step::parse(line)).collect(),
        };
        summary.steps.reverse();
        (summary.failed.len() == failed && summary.skipped.len() == skipped).then_some(summary)
    }
}

/// The numbers of a closing line.
fn counts(line: &str) -> Option<[usize; 3]> {
    let mut parts = line.split(", ");
    let mut count = |word: &str| parts.next()?.strip_suffix(word)?.trim_end().parse().ok();
    let counts = [count("passed")?, count("failed")?, count("skipped")?];
    parts.next().is_none().then_some(counts)
}

/// The closing line.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        write!(f, "{} passed, {failed} failed, {skipped} skipped", self.passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, took: u64) -> Step {
        let (took, worked) = (Duration::from_secs(took), Duration::from_millis(500));
        Step { name: name.to_owned(), took, worked }
    }

    fn flake(name: &str) -> Flake {
        Flake { name: name.to_owned(), outputs: format!("{name} first\n{name} then\n") }
    }

    #[test]
    fn the_closing_line_counts_everything() {
        let mut summary = Summary { passed: 2, ..Summary::default() };
        summary.add(Summary {
            passed: 1,
            failed: vec!["x".into()],
            skipped: vec![("y".into(), "z".into()), ("w".into(), "z".into())],
            ..Summary::default()
        });
        assert_eq!(summary.to_string(), "3 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn what_was_printed_can_be_read_again() {
        let mut summary = Summary {
            passed: 2,
            failed: vec!["x/1".into()],
            skipped: vec![("y".into(), "needs a: b".into())],
            flaky: vec![flake("f: 1, 2")],
            steps: vec![step("s, 3 s of it: a", 3)],
        };
        // A case that failed may have said the like.
        let said = "failed: a\nskipped: b: c\nflaky: d\nlongest: 9.0 s, 0.5 s of processors: e\n1 passed, 0 failed, 0 skipped";
        let printed = format!("FAIL x/1\n{said}\nok   z (1 s)\n{}\n", summary.text());
        summary.flaky[0].outputs = printed.clone();
        assert_eq!(Summary::parse(&printed), Some(summary));
        assert_eq!(Summary::parse("2 passed, 1 failed, 0 skipped"), None);
        assert_eq!(Summary::parse("ok   z (1 s)\n"), None);
    }

    #[test]
    fn what_was_written_to_a_file_can_be_read_again() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("summary");
        let mut summary = Summary { passed: 2, failed: vec!["x/1".into()], ..Summary::default() };
        summary.skipped.push(("y".into(), "needs a: b".into()));
        summary.flaky.push(flake("f"));
        summary.steps.push(step("a", 3));
        summary.write(&file).unwrap();
        assert_eq!(Summary::read(&file).unwrap(), summary);
        assert!(Summary::read(home.path()).is_err());
    }

    #[test]
    fn the_ten_longest_steps_stand_first_and_flaky_ones_before_the_closing_line() {
        let mut summary = Summary { passed: 12, flaky: vec![flake("b")], ..Summary::default() };
        summary.steps = (1..=12).map(|took| step(&format!("step {took}"), took)).collect();
        summary.skipped.push(("y".into(), "z".into()));
        let text = summary.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "longest: 12.0 s, 0.5 s of processors: step 12");
        assert_eq!(lines[9], "longest: 3.0 s, 0.5 s of processors: step 3");
        assert_eq!(lines[10..], ["skipped: y: z", "flaky: b", "12 passed, 0 failed, 1 skipped"]);
    }

    #[test]
    fn more_than_three_flaky_cases_are_a_failure() {
        let run = |count: usize| {
            let flaky = vec![flake("f"); count];
            Summary { passed: 9, flaky, ..Summary::default() }.judged()
        };
        assert_eq!(run(3).to_string(), "9 passed, 0 failed, 0 skipped");
        let four = run(4);
        assert_eq!(four.to_string(), "9 passed, 1 failed, 0 skipped");
        assert_eq!(four.failed, ["4 cases were flaky, and 3 may be"]);
    }

    #[test]
    fn what_flaky_cases_said_is_kept_of_the_last_run_alone() {
        let home = tempfile::tempdir().unwrap();
        let kept = home.path().join("flaky");
        let keep = |flaky| Summary { flaky, ..Summary::default() }.keep(&kept).unwrap();
        let names = || {
            let files = fs::read_dir(&kept).into_iter().flatten();
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        keep(vec![flake("a/b"), flake("c")]);
        assert_eq!(names().len(), 2);
        keep(vec![flake("d e/../f")]);
        assert_eq!(names(), ["1-d-e----f"]);
        let text = fs::read_to_string(kept.join("1-d-e----f")).unwrap();
        assert_eq!(text, "d e/../f first\nd e/../f then\n");
        keep(Vec::new());
        assert_eq!(names(), Vec::<String>::new());
    }

    #[test]
    fn a_step_counts_what_children_worked() {
        let clock = Clock::start();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        process::Task::new("sh").args(["-c", script]).run().unwrap().success().unwrap();
        assert!(Step::of("a", &clock).worked > Duration::ZERO);
    }

    #[test]
    fn names_get_the_same_words_before_them() {
        let mut summary = Summary {
            failed: vec!["a".into()],
            skipped: vec![("b".into(), "a".into())],
            flaky: vec![flake("c")],
            steps: vec![step("d", 1)],
            ..Summary::default()
        };
        summary.name_after("guest/");
        assert_eq!(summary.failed, ["guest/a"]);
        assert_eq!(summary.skipped[0], ("guest/b".to_owned(), "a".to_owned()));
        assert_eq!(
            (summary.flaky[0].name.as_str(), summary.steps[0].name.as_str()),
            ("guest/c", "guest/d")
        );
    }
}
