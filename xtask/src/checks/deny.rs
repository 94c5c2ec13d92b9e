//! Licences, bans and sources of all crates, by cargo-deny and the lists in deny.toml.

use anyhow::Result;
use harness::process::Task;

use super::Lacking;
use crate::cargo::{LIMIT, root};
use crate::tool::Tool;

const DENY: Tool = Tool { package: "cargo-deny", version: "0.20.2", options: "" };

/// Runs cargo-deny.
///
/// # Errors
/// [`Lacking`] when it cannot be had; its findings.
pub fn check() -> Result<()> {
    let program = Lacking::unless_installed(DENY)?;
    let task =
        Task::new(program).words("check -D warnings --hide-inclusion-graph licenses bans sources");
    task.with_our_environment().directory(root()).limit(LIMIT).run()?.success().map(drop)
}
