//! Licences, bans and sources of all crates, by cargo-deny; deny.toml says what is allowed.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use harness::process::Task;
use terminal::report;

use super::Lacking;
use crate::cache::Cache;
use crate::cargo::{cargo, root};

const PACKAGE: &str = "cargo-deny";
/// The release that is used everywhere, so that all see the same findings.
const VERSION: &str = "0.20.2";
/// How long fetching and building it may take.
const INSTALLATION: Duration = Duration::from_secs(45 * 60);

/// Runs cargo-deny.
///
/// # Errors
/// [`Lacking`] when it cannot be had; what it finds.
pub fn check() -> Result<()> {
    let program = program().map_err(|error| {
        // What cargo shows ends with its reason.
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default();
        Lacking(format!("{PACKAGE} {VERSION} cannot be installed: {reason}"))
    })?;
    let task =
        Task::new(program).words("check -D warnings --hide-inclusion-graph licenses bans sources");
    task.with_our_environment().directory(root()).limit(INSTALLATION).run()?.success().map(drop)
}

/// The program, built once into the cache and kept there.
fn program() -> Result<PathBuf> {
    let key = format!("{PACKAGE} {VERSION}");
    let kept = Cache::open("tools")?.keep(PACKAGE, &key, |root| {
        report!("installing {key} (some minutes, once)");
        let command = format!("install --locked --quiet --debug --version {VERSION} {PACKAGE}");
        let task = cargo(&command).arg("--root").arg(root).env("CARGO_PROFILE_DEV_DEBUG", "0");
        task.limit(INSTALLATION).run()?.success().map(drop)
    })?;
    Ok(kept.join("bin").join(PACKAGE))
}
