//! Programs of others that the tasks use: built once, into the cache.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use terminal::report;

use crate::cache::Cache;
use crate::cargo::cargo;

/// How long fetching and building one may take.
const INSTALLATION: Duration = Duration::from_secs(45 * 60);

/// A program that is a package of the crates' registry.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// The package, and the program in it.
    pub package: &'static str,
    /// The release that is used everywhere, so that all see the same.
    pub version: &'static str,
    /// Further words of `cargo install`.
    pub options: &'static str,
}

impl Tool {
    /// The program, which is built once and kept.
    ///
    /// # Errors
    /// When it cannot be fetched or built; the last line says why.
    pub fn program(&self) -> Result<PathBuf> {
        let Self { package, version, options } = self;
        let key = format!("{package} {version} {options}");
        let kept = Cache::open("tools")?.keep(package, key.trim_end(), |root| {
            report!("installing {package} {version} (some minutes, once)");
            let command = format!("install --locked --quiet --debug --version {version} {package}");
            let task = cargo(&command).words(options).arg("--root").arg(root);
            let task = task.env("CARGO_PROFILE_DEV_DEBUG", "0");
            task.limit(INSTALLATION).run()?.success().map(drop)
        })?;
        Ok(kept.join("bin").join(package))
    }
}
