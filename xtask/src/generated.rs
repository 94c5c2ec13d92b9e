//! Files of the repository that a task makes from the code: written, or compared with the files that are there.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use terminal::report;

use crate::cargo::root;

/// `cargo xtask TASK` of a task that makes such files.
#[derive(Debug, Args)]
pub struct Options {
    /// Write nothing, and fail when a file is stale
    #[arg(long)]
    check: bool,
}

/// The files that a task makes.
pub struct Generated {
    /// The task's name.
    pub task: &'static str,
    /// Every file: its path from the workspace's root, and its text.
    pub files: Vec<(String, String)>,
    /// Files of earlier runs that it no longer makes.
    pub left_over: Vec<String>,
}

impl Generated {
    /// Writes the files, or checks them.
    ///
    /// # Errors
    /// As of [`Self::check`] when that is asked for, and when a file cannot be written.
    pub fn write_or_check(&self, options: &Options) -> Result<ExitCode> {
        if options.check {
            self.check()?;
            return Ok(ExitCode::SUCCESS);
        }
        for (path, text) in &self.files {
            let file = root().join(path);
            if let Some(directory) = file.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            report!("{path}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Fails unless each file has the content that would be written, and none is left over.
    ///
    /// # Errors
    /// With one sentence that names those that are stale.
    pub fn check(&self) -> Result<()> {
        let is_stale = |(path, text): &&(String, String)| {
            fs::read_to_string(root().join(path)).unwrap_or_default() != *text
        };
        let stale = self.files.iter().filter(is_stale).map(|(path, _)| path);
        let stale: Vec<&str> = stale.chain(&self.left_over).map(String::as_str).collect();
        ensure!(
            stale.is_empty(),
            "stale: {}; write anew with cargo xtask {}",
            stale.join(", "),
            self.task
        );
        Ok(())
    }
}
