//! scapy, an ICRC implementation that is not ours, in a Python environment outside the tree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::process::Task;

/// The requirement for pip.
const REQUIREMENT: &str = "scapy>=2.6,<3";
/// How long a download may take.
const DOWNLOAD: Duration = Duration::from_secs(300);

/// Where the environment is kept between runs.
fn directory() -> Option<PathBuf> {
    Some(crate::cache::directory()?.join("scapy"))
}

/// The environment's Python, if scapy can be imported with it.
pub fn python() -> Option<PathBuf> {
    let python = directory()?.join("bin/python");
    let import = Task::new(&python).words("-c").arg("import scapy.contrib.roce");
    let works = python.exists() && import.run().is_ok_and(|it| it.status.success());
    works.then_some(python)
}

/// Makes the environment, if it is not there.
///
/// # Errors
/// When there is no place for it, or python3-venv or the package index are missing.
pub fn install() -> Result<PathBuf> {
    if let Some(python) = python() {
        return Ok(python);
    }
    let directory = directory().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let make = Task::new("/usr/bin/python3").words("-m venv --clear").arg(&directory);
    make.limit(DOWNLOAD).run()?.success()?;
    let pip = directory.join("bin/pip");
    let pip = Task::new(pip).with_our_environment().words("install --quiet").arg(REQUIREMENT);
    pip.limit(DOWNLOAD).run()?.success()?;
    python().context("scapy was installed but cannot be imported")
}

/// ICRCs that were compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Frames of IPv4 that agree.
    pub ipv4: usize,
    /// Frames of IPv6 that agree.
    pub ipv6: usize,
    /// Kinds of frames of which some were compared: `0a` is opcode 0x0a, `11:60` an
    /// acknowledgement of syndrome 0x60.
    pub kinds: BTreeSet<String>,
}

/// Compares ICRCs of a capture: about `limit` of them, and some of every kind.
///
/// # Errors
/// At the first that differs.
pub fn compare_icrcs(python: &Path, capture: &Path, limit: usize) -> Result<Compared> {
    let script = include_str!("../../scripts/icrc.py");
    let task = Task::new(python).arg("-c").arg(script).arg(capture).arg(limit.to_string());
    let finished = task.limit(DOWNLOAD).run()?.success()?;
    let mut lines = finished.stdout.lines();
    let mut numbers =
        lines.next().unwrap_or("").split_whitespace().filter_map(|word| word.parse().ok());
    let (ipv4, ipv6) = numbers
        .next()
        .zip(numbers.next())
        .with_context(|| format!("no numbers in what icrc.py says: {finished}"))?;
    let kinds = lines.next().unwrap_or("").split_whitespace().map(str::to_owned).collect();
    Ok(Compared { ipv4, ipv6, kinds })
}
