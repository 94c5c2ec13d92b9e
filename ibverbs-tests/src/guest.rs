//! Cases for a virtual machine: with kernels, modules and settings that the host may not have.
//!
//! `cargo xtask guest` boots the machine and runs `guest-cases` in it, as root.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use crate::process::Task;
use crate::runner::{Case, Need};
use crate::setting::Setting;

mod rdma_core;
mod yama;

/// Where the guest finds what the host shares: `built`, the programs under test, `job`, what it was
/// booted for, and `modules`.
pub const SHARES: &str = "/run/balboa-guest";
/// The line by which the guest tells that its job is done.
pub const DONE: &str = "the job is done";

/// All cases, in the order in which they run: those that want a kernel without RDMA come first.
///
/// `release` is the beginning of the release that the kernel should be of.
pub fn cases(release: &str) -> Vec<Case> {
    let mut cases = vec![boot(release)];
    cases.extend(yama::cases());
    cases.extend(rdma_core::cases());
    cases
}

/// The machine is the one that was asked for.
fn boot(release: &str) -> Case {
    let wanted = format!("{release}.");
    Case::new("boot", &[Need::Root], move |_| {
        let running = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        ensure!(running.starts_with(&wanted), "the kernel is {running}, not {wanted}");
        let written = File::create("/balboa-was-here").map(drop);
        let errno = written.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw);
        ensure!(errno == Some(Errno::EROFS), "the host's root is not read-only: {errno:?}");
        Ok(())
    })
}

/// Loads a module, after those it depends on.
///
/// # Errors
/// When the machine was not given it, or the kernel refuses it.
pub fn load(module: &str) -> Result<()> {
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

/// `name` for an ordinary user and for root.
fn for_both(
    name: &str,
    needs: &[Need],
    body: impl Fn(&Setting) -> Result<()> + Clone + 'static,
) -> [Case; 2] {
    let needs = [needs, &[Need::Root]].concat();
    [Case::new(name, &needs, body.clone()), Case::new(name, &needs, body).as_root()]
}
