//! Runs the table of cases, counts, and says how each failure is repeated.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};

use anyhow::{Result, anyhow};
use nix::unistd::geteuid;
use terminal::report;

use crate::process::Task;
use crate::setting::{Root, SHARES, Setting, Stage, Who};
use crate::suites::Suite;
use crate::summary::{Clock, Flake, Step, Summary};

/// A need of a case.
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
    /// Programs that are built of a suite's source.
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
    /// A module that the kernel of a virtual machine can load.
    Module(&'static str),
    /// The queue engine in RTL as a library, beside the directory of the programs.
    Rtl,
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
            Self::Rtl => rtl()
                .is_none()
                .then(|| "needs the simulation's library: cargo xtask gateware build".to_owned()),
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

/// The library of the engine in RTL, if it lies beside the directory of the program that runs.
fn rtl() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let library = program.parent()?.parent()?.join("gateware/libengine.so");
    library.exists().then_some(library)
}

/// The kernel's figure about its memory: pages, or KiB.
fn meminfo(name: &str) -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The runs of the test command that include a case or check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Every run.
    Always,
    /// The full run alone.
    Full,
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "default",
            Self::Full => "full",
        })
    }
}

/// The body of a case.
pub type Body = Box<dyn Fn(&Setting) -> Result<()> + Send + Sync>;

/// One line of the table.
pub struct Case {
    /// Its name, unique; the words of a family are parted by `/`.
    pub name: String,
    /// Its needs.
    pub needs: Vec<Need>,
    /// The user that runs it.
    pub who: Who,
    /// The runs of the test command that include it.
    pub when: When,
    /// Whether no other case may run beside it: it judges time, or counts of the whole machine.
    pub alone: bool,
    /// Its body.
    pub body: Body,
}

impl Case {
    /// A case that an ordinary user runs.
    pub fn new(
        name: impl Into<String>,
        needs: &[Need],
        body: impl Fn(&Setting) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (name, needs, body) = (name.into(), needs.to_vec(), Box::new(body));
        Self { name, needs, who: Who::User, when: When::Always, alone: false, body }
    }

    /// The same, with no other case beside it.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
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

/// A selection of cases.
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

/// How many cases run at once where they may: most of a case is waiting.
const SIDE_BY_SIDE: usize = 3;

/// Runs cases one after the other with the programs in `built`, printing a line for each; `repeat` is the command that
/// runs a case again when `NAME --exact` is added to it. One that fails is run once more, when nothing else runs.
///
/// # Errors
/// When the programs cannot be laid out.
pub fn run(cases: &[Case], filter: &Filter, built: &Path, repeat: &str) -> Result<Summary> {
    run_by(1, None, cases, filter, built, repeat)
}

/// The same with some cases at once where all allow it, and with verbs programs in a root directory of their own if one
/// is given.
///
/// # Errors
/// When the programs cannot be laid out.
pub fn run_side_by_side(
    root: Option<&Root>,
    cases: &[Case],
    filter: &Filter,
    built: &Path,
    repeat: &str,
) -> Result<Summary> {
    run_by(SIDE_BY_SIDE, root, cases, filter, built, repeat)
}

fn run_by(
    workers: usize,
    root: Option<&Root>,
    cases: &[Case],
    filter: &Filter,
    built: &Path,
    repeat: &str,
) -> Result<Summary> {
    let stage = Stage::new(built)?.within(root);
    let needs_rtl = |case: &Case| case.needs.iter().any(|need| matches!(need, Need::Rtl));
    let mut wanted = cases.iter().filter(|case| filter.takes(&case.name));
    let stage = match rtl().filter(|_| wanted.any(needs_rtl)) {
        Some(library) => stage.with_rtl(&library)?,
        None => stage,
    };
    let _tidy = crate::interrupt::remove_on_signal(stage.path());
    let machine = Machine::default();
    let summary = Mutex::new(Summary::default());
    let waiting = Mutex::new(cases.iter().filter(|case| filter.takes(&case.name)));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(case) = next() {
            let of_case = one(case, &stage, root, repeat, &machine);
            summary.lock().unwrap_or_else(PoisonError::into_inner).add(of_case);
        }
    };
    std::thread::scope(|scope| {
        (1..workers).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    Ok(summary.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs one case, or says why it cannot be run.
fn one(
    case: &Case,
    stage: &Stage,
    root: Option<&Root>,
    repeat: &str,
    machine: &Machine,
) -> Summary {
    if let Some(reason) = case.needs.iter().find_map(|need| need.missing(root)) {
        report!("skip {}: {reason}", case.name);
        let skipped = vec![(case.name.clone(), reason)];
        return Summary { skipped, ..Summary::default() };
    }
    let act = || stage.setting(case.who).and_then(|setting| (case.body)(&setting));
    let repeat = format!("{repeat} '{}' --exact", case.name);
    machine.twice_at_most(&case.name, &repeat, case.alone, act)
}

/// The machine, which cases share or have alone.
#[derive(Debug, Default)]
pub struct Machine(RwLock<()>);

impl Machine {
    /// Runs a case, and once more, alone, if it failed; reports and counts the outcome. `repeat` is the command that
    /// does it again.
    pub fn twice_at_most(
        &self,
        name: &str,
        repeat: &str,
        alone: bool,
        act: impl Fn() -> Result<()>,
    ) -> Summary {
        let mut summary = Summary::default();
        let (first, mut step) = self.once(name, alone, &act);
        let seconds = step.took.as_secs_f32();
        if let Err(first) = first {
            let first = format!("FAIL {name} ({seconds:.1} s)\n{first:#}");
            report!("{first}\n     it is run once more, alone");
            let (second, further) = self.once(name, true, &act);
            let seconds = further.took.as_secs_f32();
            step.add(&further);
            match second {
                Ok(()) => {
                    let second = format!("ok   {name} ({seconds:.1} s), when it was run once more");
                    report!("{second}");
                    summary.passed += 1;
                    let outputs = format!("{first}\n{second}\n");
                    summary.flaky.push(Flake { name: name.to_owned(), outputs });
                }
                Err(error) => {
                    report!("FAIL {name} ({seconds:.1} s)\n{error:#}");
                    report!("repeat: {repeat}");
                    summary.failed.push(name.to_owned());
                }
            }
        } else {
            report!("ok   {name} ({seconds:.1} s)");
            summary.passed += 1;
        }
        summary.steps.push(step);
        summary
    }

    fn once(&self, name: &str, alone: bool, act: impl Fn() -> Result<()>) -> (Result<()>, Step) {
        let timed = || {
            let clock = Clock::start();
            let outcome = catch_unwind(AssertUnwindSafe(&act)).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                Err(anyhow!("it panicked: {}", text.unwrap_or_default()))
            });
            (outcome, Step::of(name, &clock))
        };
        if alone {
            let _alone = self.0.write().unwrap_or_else(PoisonError::into_inner);
            timed()
        } else {
            let _beside_others = self.0.read().unwrap_or_else(PoisonError::into_inner);
            timed()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn cases_run_side_by_side_and_what_wants_to_be_alone_is() {
        let machine = Machine::default();
        let both = Barrier::new(2);
        let meets = || {
            both.wait();
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| machine.twice_at_most("a", "it", false, meets));
            machine.twice_at_most("b", "it", false, meets);
        });
        let busy = AtomicBool::new(false);
        let alone = || {
            anyhow::ensure!(!busy.swap(true, Ordering::SeqCst), "another one runs");
            std::thread::yield_now();
            busy.store(false, Ordering::SeqCst);
            Ok(())
        };
        let many = |alone_too| {
            let each = |_| machine.twice_at_most("c", "it", alone_too, alone).failed.len();
            (0..200).map(each).sum::<usize>()
        };
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| many(true));
            assert_eq!((many(true), beside.join().unwrap()), (0, 0));
        });
    }

    #[test]
    fn a_case_that_fails_is_run_once_more_and_passes_if_it_does_then() {
        let tries = |fail: u32| {
            let count = Cell::new(0);
            let act = || {
                count.set(count.get() + 1);
                anyhow::ensure!(count.get() > fail, "try {} went wrong", count.get());
                Ok(())
            };
            let machine = Machine::default();
            (machine.twice_at_most("a/b", "it --only a/b", false, act), count.get())
        };
        let (summary, count) = tries(0);
        assert_eq!((summary.to_string().as_str(), count), ("1 passed, 0 failed, 0 skipped", 1));
        assert!(summary.flaky.is_empty());
        let (summary, count) = tries(1);
        assert_eq!((summary.to_string().as_str(), count), ("1 passed, 0 failed, 0 skipped", 2));
        let flake = &summary.flaky[0];
        assert_eq!(flake.name, "a/b");
        assert!(flake.outputs.contains("try 1 went wrong\nok   a/b"), "{}", flake.outputs);
        let (summary, count) = tries(2);
        assert_eq!((summary.failed, count), (vec!["a/b".to_owned()], 2));
        assert!(summary.flaky.is_empty());
        assert_eq!(summary.steps.len(), 1);
    }

    #[test]
    fn a_case_that_panics_has_failed() {
        let act = || panic!("no case {}", 7);
        let summary = Machine::default().twice_at_most("a/b", "it --only a/b", false, act);
        assert_eq!(summary.failed, ["a/b"]);
        let count = Cell::new(0);
        let act = || {
            count.set(count.get() + 1);
            assert_ne!(count.get(), 1, "it goes wrong once");
            Ok(())
        };
        let summary = Machine::default().twice_at_most("a/b", "it --only a/b", false, act);
        let outputs = &summary.flaky[0].outputs;
        assert!(outputs.contains("it panicked: ") && outputs.contains("it goes wrong once"));
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
}
