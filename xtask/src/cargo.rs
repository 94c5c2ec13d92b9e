//! Cargo, as the one that runs us.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ibverbs_tests::process::{Finished, Task};
use terminal::report;

/// How long a build or a run of all unit tests may take.
pub const LIMIT: Duration = Duration::from_secs(45 * 60);

/// `cargo WORDS` in the workspace's root.
pub fn cargo(words: &str) -> Task {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Task::new(program).words(words).with_our_environment().directory(root()).limit(LIMIT)
}

/// Whether cargo has a subcommand.
pub fn has_subcommand(name: &str) -> bool {
    cargo(&format!("{name} --version")).run().is_ok_and(|it| it.status.success())
}

/// The workspace's root.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// Builds everything for release and answers where the programs are.
///
/// # Errors
/// When the build fails.
pub fn build() -> Result<PathBuf> {
    report!("building (cargo build --release --workspace)");
    cargo("build --release --workspace --locked --quiet").shown().run()?.success()?;
    Ok(target_directory()?.join("release"))
}

/// Where cargo puts what it builds.
///
/// # Errors
/// When cargo does not tell.
pub fn target_directory() -> Result<PathBuf> {
    let metadata: Finished = cargo("metadata --format-version 1 --no-deps").run()?.success()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata.stdout)?;
    let directory = metadata["target_directory"].as_str();
    directory.map(PathBuf::from).context("cargo metadata names no target directory")
}
