//! Wheels of Python, pinned by their hashes in a list of ours, in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use harness::process::Task;
use terminal::report;

use crate::cache::Cache;
use crate::cargo::root;
use crate::setup;

/// The distribution's Python.
pub const PYTHON: &str = "/usr/bin/python3";
/// How long a download may take.
const DOWNLOAD: Duration = Duration::from_secs(10 * 60);

/// The directory of installed wheels.
#[derive(Debug)]
pub struct Wheels(PathBuf);

impl Wheels {
    /// The wheels of a list, a file of the tree, in a part of the cache; `again` is the command that gets them. They need
    /// these Debian packages.
    ///
    /// # Errors
    /// When they cannot be had: with the line that gets them.
    pub fn listed(part: &str, list: &str, packages: &[&str], again: &str) -> Result<Self> {
        let path = root().join(list);
        let wanted = fs::read_to_string(&path)?;
        // Some wheels are of one release of Python.
        let python = Task::new(PYTHON).arg("--version").run()?.success()?.stdout;
        let key = format!("{}\n{wanted}", python.trim());
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let fill = |into: &Path| {
            setup::packages(packages)?;
            install(&path, into)
        };
        let kept = Cache::open(part)?.keep(&name, &key, fill);
        kept.map(Self).map_err(|error| {
            if error.is::<setup::Missing>() {
                return error;
            }
            // What pip shows ends with its reason.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default();
            anyhow!("the wheels of {list} cannot be installed ({reason}); with pip's index in reach: {again}")
        })
    }

    /// Where their modules are.
    pub fn site(&self) -> PathBuf {
        self.0.join("site")
    }
}

/// Installs a list into a directory, by a pip that goes again: not every Python has one.
fn install(list: &Path, into: &Path) -> Result<()> {
    report!("installing the wheels of {} (once)", list.display());
    let environment = into.join("pip");
    Task::new(PYTHON).words("-m venv").arg(&environment).limit(DOWNLOAD).run()?.success()?;
    let pip = Task::new(environment.join("bin/pip")).with_our_environment();
    let pip = pip.words("install --quiet --disable-pip-version-check --no-compile --no-deps");
    let pip = pip.words("--require-hashes --only-binary :all: --target").arg(into.join("site"));
    pip.arg("-r").arg(list).limit(DOWNLOAD).run()?.success()?;
    fs::remove_dir_all(&environment)?;
    Ok(())
}
