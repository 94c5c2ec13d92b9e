//! What a virtual machine has: modules of its kernel, and programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use crate::process::Task;
use crate::setting::SHARES;

/// Loads a module, after those it depends on; one that is there or built in stays as
/// it is.
///
/// # Errors
/// When the machine was not given it, or the kernel refuses it.
pub fn load(module: &str) -> Result<()> {
    if !Path::new("/proc/modules").exists() {
        // A kernel without modules has everything built in that it was configured for.
        return Ok(());
    }
    let directory = Path::new(SHARES).join("modules");
    let needs = fs::read_to_string(directory.join("needs")).context("no modules are shared")?;
    load_after_needed(&directory, &needs, &module.replace('-', "_"))
}

fn load_after_needed(directory: &Path, needs: &str, module: &str) -> Result<()> {
    if Path::new("/sys/module").join(module).exists() {
        return Ok(());
    }
    let prefix = format!("{module}:");
    let line = needs.lines().find_map(|line| line.strip_prefix(&prefix));
    let line = line.with_context(|| format!("the machine has no module {module}"))?;
    for needed in line.split_whitespace() {
        load_after_needed(directory, needs, needed)?;
    }
    let file = File::open(directory.join(format!("{module}.ko")))?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno).with_context(|| format!("the kernel refuses module {module}")),
    }
}

/// Where a program is: among those under test, or where the system has it.
pub(crate) fn program(name: &str) -> PathBuf {
    let built = Path::new(SHARES).join("built").join(name);
    if built.exists() { built } else { name.into() }
}

/// A program by its command line.
pub(crate) fn task(line: &str) -> Task {
    let (name, words) = line.split_once(' ').unwrap_or((line, ""));
    Task::new(program(name)).words(words)
}

/// Runs a command line that succeeds; what it writes.
pub(crate) fn run(line: &str) -> Result<String> {
    Ok(task(line).run()?.success()?.stdout)
}
