//! Runs the table of cases, counts, and says how each failure is repeated.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use nix::unistd::geteuid;
use terminal::report;

use crate::process::Task;
use crate::setting::{Root, SHARES, Setting, Stage, Who};
use crate::suites::Suite;

/// Something a case needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program, and the Debian package it comes with.
    Program(&'static str, &'static str),
    /// An option that some releases of a program have, below `/usr/bin`, and not others.
    Flag(&'static str, &'static str),
    /// A file, and the Debian package it comes with.
    File(&'static str, &'static str),
    /// A library that its package has or leaves out, below the libraries' directory, and that package.
    Library(&'static str, &'static str),
    /// What is built of a suite's source.
    Suite(&'static Suite),
    /// To be root.
    Root,
    /// Free memory, MiB.
    Memory(u64),
    /// Free huge pages, of the usual size.
    HugePages(u64),
    /// scapy in its Python environment.
    Scapy,
    /// A device node that an ordinary user can open, or that root can make such a one of.
    Node(&'static str),
    /// In a virtual machine: a module that its kernel can load.
    Module(&'static str),
}

impl Need {
    /// Why it is not met, if it is not.
    fn missing(self, root: Option<&Root>) -> Option<String> {
        match self {
            Self::Program(program, package) if root.is_some_and(|it| !it.has(program)) => {
                Some(format!("needs {program}, of {package}, which the root has not"))
            }
            Self::Program(..) if root.is_some() => None,
            Self::Program(program, package) => (!Task::is_installed(program))
                .then(|| format!("needs {program}: apt-get install {package}")),
            Self::File(file, package) => (!Path::new(file).exists())
                .then(|| format!("needs {file}: apt-get install {package}")),
            Self::Library(library, package) => {
                let root = root.map_or(Path::new("/"), |root| &root.path);
                let place = format!("usr/lib/{}-linux-gnu/{library}", std::env::consts::ARCH);
                (!root.join(place).exists()).then(|| format!("needs a {package} with {library}"))
            }
            Self::Flag(program, flag) => {
                let root = root.map_or(Path::new("/"), |root| &root.path);
                let names = std::fs::read(root.join("usr/bin").join(program)).unwrap_or_default();
                let has = names.windows(flag.len()).any(|it| it == flag.as_bytes());
                (!has).then(|| format!("needs a {program} with {flag}"))
            }
            Self::Suite(suite) => suite.built().is_none().then(|| suite.missing()),
            Self::Root => (!geteuid().is_root()).then(|| "needs to be run by root".to_owned()),
            Self::Scapy => crate::scapy::python().is_none().then(|| {
                "needs scapy, which cargo xtask test installs from PyPI where it can".to_owned()
            }),
            Self::Node(node) => crate::nodes::cannot_open(Path::new(node)),
            Self::Module(module) => {
                let file = Path::new(SHARES).join("modules");
                (!file.join(format!("{module}.ko")).exists())
                    .then(|| format!("needs a kernel with {module} as a module"))
            }
            Self::HugePages(needed) => {
                let free = meminfo("HugePages_Free:");
                (free < needed).then(|| {
                    format!("needs {needed} huge pages, {free} are free: sysctl vm.nr_hugepages={needed}")
                })
            }
            Self::Memory(needed) => {
                let available = meminfo("MemAvailable:") / 1024;
                (available < needed)
                    .then(|| format!("needs {needed} MiB of free memory, {available} MiB are free"))
            }
        }
    }
}

/// What the kernel says of its memory: pages, or KiB.
fn meminfo(name: &str) -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// What a case does.
pub type Body = Box<dyn Fn(&Setting) -> Result<()>>;

/// One line of the table.
pub struct Case {
    /// Its name, unique; the words of a family are parted by `/`.
    pub name: String,
    /// What it needs.
    pub needs: Vec<Need>,
    /// Who runs it.
    pub who: Who,
    /// What it does.
    pub body: Body,
}

impl Case {
    /// A case that an ordinary user runs.
    pub fn new(
        name: impl Into<String>,
        needs: &[Need],
        body: impl Fn(&Setting) -> Result<()> + 'static,
    ) -> Self {
        Self { name: name.into(), needs: needs.to_vec(), who: Who::User, body: Box::new(body) }
    }

    /// The same, run by root; its name says so.
    #[must_use]
    pub fn as_root(mut self) -> Self {
        self.name.push_str("/root");
        self.needs.push(Need::Root);
        self.who = Who::Root;
        self
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Names of those that failed.
    pub failed: Vec<String>,
    /// Names of those that were skipped, and why.
    pub skipped: Vec<(String, String)>,
}

impl Summary {
    /// Of cases that cannot be run together, for a reason that is said at once.
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
    }

    /// Prints failures, skips with their reason, and the closing line.
    pub fn print(&self) {
        for name in &self.failed {
            report!("failed: {name}");
        }
        for (name, reason) in &self.skipped {
            report!("skipped: {name}: {reason}");
        }
        report!("{self}");
    }

    /// What the run ends with: success where something passed and nothing failed.
    pub fn exit_code(&self) -> ExitCode {
        let good = self.failed.is_empty() && self.passed > 0;
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// The summary that was printed at the end of a text, if one was.
    pub fn parse(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().collect();
        let closing = lines.iter().rposition(|line| counts(line).is_some())?;
        let (&closing, before) = lines.get(..=closing)?.split_last()?;
        let [passed, failed, skipped] = counts(closing)?;
        let failures = before.iter().filter_map(|line| line.strip_prefix("failed: "));
        let skips =
            before.iter().filter_map(|line| line.strip_prefix("skipped: ")?.split_once(": "));
        let summary = Self {
            passed,
            failed: failures.map(str::to_owned).collect(),
            skipped: skips.map(|(name, why)| (name.to_owned(), why.to_owned())).collect(),
        };
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

/// Which cases to run.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Texts of which a name has one; all cases when empty.
    pub parts: Vec<String>,
    /// Whether a name must be one of them instead.
    pub exact: bool,
}

impl Filter {
    /// Whether a case of this name is meant.
    pub fn takes(&self, name: &str) -> bool {
        let matches = |part: &String| if self.exact { name == part } else { name.contains(part) };
        self.parts.is_empty() || self.parts.iter().any(matches)
    }
}

/// Runs cases with the programs in `built`, printing a line for each; `repeat` is the command that
/// runs a case again when `NAME --exact` is added to it.
///
/// # Errors
/// When the programs cannot be laid out.
pub fn run(cases: &[Case], filter: &Filter, built: &Path, repeat: &str) -> Result<Summary> {
    run_within(None, cases, filter, built, repeat)
}

/// The same, with verbs programs in a root directory of their own.
///
/// # Errors
/// When the programs cannot be laid out.
pub fn run_within(
    root: Option<&Root>,
    cases: &[Case],
    filter: &Filter,
    built: &Path,
    repeat: &str,
) -> Result<Summary> {
    let stage = Stage::new(built)?.within(root);
    let _tidy = crate::interrupt::remove_on_signal(stage.path());
    let mut summary = Summary::default();
    for case in cases.iter().filter(|case| filter.takes(&case.name)) {
        if let Some(reason) = case.needs.iter().find_map(|need| need.missing(root)) {
            report!("skip {}: {reason}", case.name);
            summary.skipped.push((case.name.clone(), reason));
            continue;
        }
        let started = Instant::now();
        let outcome = stage.setting(case.who).and_then(|setting| (case.body)(&setting));
        let seconds = started.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => {
                report!("ok   {} ({seconds:.1} s)", case.name);
                summary.passed += 1;
            }
            Err(error) => {
                report!("FAIL {} ({seconds:.1} s)\n{error:#}", case.name);
                report!("repeat: {repeat} '{}' --exact", case.name);
                summary.failed.push(case.name.clone());
            }
        }
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_counts_everything() {
        let mut summary = Summary { passed: 2, ..Summary::default() };
        summary.add(Summary {
            passed: 1,
            failed: vec!["x".into()],
            skipped: vec![("y".into(), "z".into()), ("w".into(), "z".into())],
        });
        assert_eq!(summary.to_string(), "3 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn what_was_printed_can_be_read_again() {
        let summary = Summary {
            passed: 2,
            failed: vec!["x/1".into()],
            skipped: vec![("y".into(), "needs a: b".into())],
        };
        let printed =
            "ok   z (1 s)\nfailed: x/1\nskipped: y: needs a: b\n2 passed, 1 failed, 1 skipped\n";
        assert_eq!(Summary::parse(printed), Some(summary));
        assert_eq!(Summary::parse("2 passed, 1 failed, 0 skipped"), None);
        assert_eq!(Summary::parse("ok   z (1 s)\n"), None);
    }

    #[test]
    fn a_flag_is_needed_of_a_program_that_names_it() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("usr/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("measure"), b"\x7fELF\0  --often=<n>\0").unwrap();
        let root = Root { path: root.path().to_owned() };
        assert_eq!(Need::Flag("measure", "--often").missing(Some(&root)), None);
        for (program, flag) in [("measure", "--seldom"), ("other", "--often")] {
            let missing = Need::Flag(program, flag).missing(Some(&root));
            assert_eq!(missing, Some(format!("needs a {program} with {flag}")));
        }
    }

    #[test]
    fn a_filter_takes_parts_or_whole_names() {
        let filter = |exact| Filter { parts: vec!["bw/-b".into()], exact };
        assert!(filter(false).takes("ib_write_bw/-b/root"));
        assert!(!filter(true).takes("ib_write_bw/-b/root"));
        assert!(Filter::default().takes("anything"));
    }

    #[test]
    fn names_are_unique_and_root_is_in_the_name() {
        let guests = |iommufd| {
            let kernel = crate::guest::Kernel { release: "6.12", iommufd };
            let of = |hardware| crate::guest::cases(hardware, kernel);
            crate::guest::Hardware::ALL.into_iter().flat_map(of).collect()
        };
        for cases in [crate::cases::all(), guests(false), guests(true)] {
            let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
            let says_so = |case: &Case| (case.who == Who::Root) == case.name.ends_with("/root");
            assert!(cases.iter().all(says_so));
        }
    }
}
