//! Runs a program where unshare(2) fails with EPERM, as container profiles have it.

#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().context("usage: deny-namespaces COMMAND...")?;
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let rules = [(libc::SYS_unshare, Vec::new())].into_iter().collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?;
    let instructions: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&instructions)?;
    Err(Command::new(program).args(arguments).exec()).context("cannot execute the command")
}
