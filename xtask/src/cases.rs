//! The cases, which are a program of their own: built, listed and run.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::agent::{Cable, End};
use harness::process::Task;
use harness::runner::{Filter, When};
use harness::setting::Root;
use harness::summary::Summary;
use harness::vm::{Hardware, Kernel};
use serde::Deserialize;

use crate::cargo::{cargo, target_directory};

/// A case, as it is listed.
#[derive(Clone, Debug, Deserialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Whether it is in the full run of the test command alone.
    full: bool,
    /// The names of the suites that it needs.
    pub suites: Vec<String>,
}

impl Listed {
    /// The runs of the test command that include it.
    pub fn when(&self) -> When {
        if self.full { When::Full } else { When::Always }
    }
}

impl AsRef<str> for Listed {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// A selection of cases, in the options of the program.
#[derive(Clone, Debug)]
pub struct Set(Vec<String>);

impl Set {
    fn new<T: ToString>(words: impl IntoIterator<Item = T>) -> Self {
        Self(words.into_iter().map(|word| word.to_string()).collect())
    }

    /// Those of this machine.
    pub fn here() -> Self {
        Self::new(["here"])
    }

    /// Those of another release of rdma-core.
    pub fn release(number: u32) -> Self {
        Self::new(["release", &number.to_string()])
    }

    /// The recipes of the documents.
    pub fn apps() -> Self {
        Self::new(["apps"])
    }

    /// The attacks, each watched so many seconds before, while and after it.
    pub fn attack(seconds: u64) -> Self {
        Self::new(["attack", "--seconds", &seconds.to_string()])
    }

    /// Those in a virtual machine; `again` are those of its second boot.
    pub fn guest(hardware: Hardware, kernel: Kernel<'_>, again: bool) -> Self {
        let mut set =
            Self::new(["guest", "--hardware", hardware.name(), "--release", kernel.release]);
        set.0.extend(kernel.iommufd.then(|| "--iommufd".to_owned()));
        set.0.extend(again.then(|| "--again".to_owned()));
        set
    }

    /// Those of this machine against a virtual one.
    pub fn against() -> Self {
        Self::new(["against"])
    }

    /// Those of all pairs of virtual machines.
    pub fn pairs() -> Self {
        Self::new(["pairs"])
    }

    /// Those that the test command runs of the pairs.
    pub fn few_of_pairs() -> Self {
        Self::new(["pairs", "--few"])
    }

    /// The one that the test command runs of the pairs with every kernel.
    pub fn one_of_pairs() -> Self {
        Self::new(["pairs", "--one"])
    }

    /// Those of a pair.
    pub fn pair([first, second]: [End; 2]) -> Self {
        Self::new(["pairs", "--end", first.name(), "--end", second.name()])
    }

    /// The same with verbs programs in a root directory of their own.
    #[must_use]
    pub fn within(mut self, root: &Root) -> Self {
        self.0.extend(["--root".to_owned(), root.path.display().to_string()]);
        self
    }

    /// The same with the line to an agent.
    #[must_use]
    pub fn with_line(mut self, line: &Path) -> Self {
        self.0.extend(["--line".to_owned(), line.display().to_string()]);
        self
    }

    /// The same with our end of a cable to the machine, and a TCP port of this one that leads to it.
    #[must_use]
    pub fn on_cable(mut self, cable: &Cable, port: u16) -> Self {
        let [near, far] = [&cable.near, &cable.far].map(|end| end.display().to_string());
        let words = ["--near", &near, "--far", &far, "--port", &port.to_string()];
        self.0.extend(words.map(str::to_owned));
        self
    }

    /// The words by which a program is told of the set.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Its cases.
    ///
    /// # Errors
    /// When the program does not build.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let listed = program()?.arg("list").args(&self.0).run()?.success()?;
        let line = |line: &str| serde_json::from_str(line).with_context(|| line.to_owned());
        listed.stdout.lines().map(line).collect()
    }

    /// The names of its cases.
    ///
    /// # Errors
    /// As [`Set::list`].
    pub fn names(&self) -> Result<Vec<String>> {
        Ok(self.list()?.into_iter().map(|case| case.name).collect())
    }

    /// Runs those that a filter takes with the programs in `built`; `repeat` is the command that runs a case again when
    /// `NAME --exact` is added to it.
    ///
    /// # Errors
    /// When they cannot be run, which the program has told.
    pub fn run(&self, filter: &Filter, built: &Path, repeat: &str) -> Result<Summary> {
        let home = tempfile::Builder::new().prefix("balboa-cases-").tempdir()?;
        let _tidy = harness::interrupt::remove_on_signal(home.path());
        let summary = home.path().join("summary");
        let mut task = program()?.arg("run").arg("--built").arg(built);
        task = task.arg("--repeat").arg(repeat).arg("--summary").arg(&summary);
        for part in &filter.parts {
            // In one word, for a name may begin with a dash.
            task = task.arg(format!("--only={part}"));
        }
        if filter.exact {
            task = task.arg("--exact");
        }
        shown(task.args(&self.0)).run()?.success().context("the cases cannot be run")?;
        Summary::read(&summary)
    }
}

/// Kills and stops programs and balboads at random.
///
/// # Errors
/// At the first round after which not everything is well, which the program has told.
pub fn chaos(built: &Path, rounds: u64, seed: u64, many: bool) -> Result<()> {
    let task = program()?.arg("chaos").arg("--built").arg(built);
    let task = task.words(&format!("--rounds {rounds} --seed {seed}"));
    let task = if many { task.arg("--many") } else { task };
    shown(task).run()?.success().map(drop)
}

/// A program with our standard output, no time limit, and an end with ours.
fn shown(task: Task) -> Task {
    task.shown().tidy().limit(Duration::MAX)
}

/// The program, which is built first.
fn program() -> Result<Task> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = match BUILT.get() {
        Some(built) => built,
        None => {
            cargo("build --package cases --locked --quiet").shown().run()?.success()?;
            let built = target_directory()?.join("debug/cases");
            BUILT.get_or_init(|| built)
        }
    };
    Ok(Task::new(built).with_our_environment().directory(std::env::current_dir()?))
}
