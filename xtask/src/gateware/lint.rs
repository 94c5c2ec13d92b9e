//! The gateware's lint: by Verilator, slang and verible, without a warning.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use super::tools::Tools;
use super::{modules, sources, tops};
use crate::cargo::root;

/// What slang is run by: pyslang has its driver.
const SLANG: &str = include_str!("slang.py");

/// Lints all of the RTL, each module as a top of its own.
///
/// # Errors
/// With a linter's output.
pub fn lint(tools: &Tools) -> Result<String> {
    let gateware = root().join("gateware");
    let (sources, tops) = (sources()?, tops()?);
    let mut ours: Vec<PathBuf> = sources.iter().chain(&tops).cloned().collect();
    // The contract's package is generated and has a format of its own.
    let package = ours.remove(0);
    let rules = format!("--rules_config={}", gateware.join("verible.rules").display());
    let task = tools.verible("lint").arg(&rules).arg(&package).args(&ours);
    let said = task.run()?;
    ensure!(said.status.success(), "verible's linter:\n{}{}", said.stdout, said.stderr);
    let flags = format!("--flagfile={}", gateware.join("verible.flags").display());
    for path in &ours {
        let said = tools.verible("format").arg(&flags).arg("--verify").arg(path).run()?;
        ensure!(
            said.status.success(),
            "{} has not its format: cargo xtask gateware lint --write\n{}",
            path.display(),
            said.stderr
        );
    }
    let waivers = gateware.join("verilator.vlt");
    let modules = modules(&ours)?;
    for module in &modules {
        let task = tools.verilator().words("--lint-only -Wall --no-timing --top-module");
        let task = task.arg(module).arg(format!("-I{}", gateware.join("sim").display()));
        let task = task.arg(&waivers).args(sources.iter().chain(&tops));
        task.run()?.success().with_context(|| format!("Verilator, of {module}"))?;
    }
    let task = tools.python().arg("-c").arg(SLANG).args(&sources).args(&tops);
    task.run()?.success().context("slang")?;
    Ok(format!("{} files, {} modules", ours.len() + 1, modules.len()))
}

/// Gives all RTL that is written by hand its format.
///
/// # Errors
/// With verible's output.
pub fn format(tools: &Tools) -> Result<()> {
    let flags = format!("--flagfile={}", root().join("gateware/verible.flags").display());
    let ours = sources()?.into_iter().skip(1).chain(tops()?);
    let task = tools.verible("format").arg(flags).arg("--inplace").args(ours);
    task.run()?.success().context("verible's formatter").map(drop)
}
