//! Runs a program in the root directory of another release, on this machine's kernel: its own loader, libraries
//! and programs, and of this machine /dev, /proc, /sys and one directory more.
//!
//! The root is not that of a chroot, in which `balboa run` could make no namespace.

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Parser;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, getegid, geteuid, pivot_root, setgroups, setresgid, setresuid};

/// Directories of this machine.
const SHARED: [&str; 3] = ["/dev", "/proc", "/sys"];
const NOTHING: Option<&str> = None;

#[derive(Debug, Parser)]
struct Arguments {
    /// Become this user and its group, which only root can
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// The root directory
    root: PathBuf,
    /// The directory of this machine that the root directory shows as well
    shared: PathBuf,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<std::ffi::OsString>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let here = std::env::current_dir()?;
    enter_namespace().context("cannot make a namespace to mount in")?;
    let quiet = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NOTHING, "/", NOTHING, quiet, NOTHING).context("cannot keep mounts to ourselves")?;
    let root = arguments.root.as_path();
    bind(root, root)?;
    for shared in SHARED.iter().map(Path::new).chain([arguments.shared.as_path()]) {
        bind(shared, &root.join(shared.strip_prefix("/").unwrap_or(shared)))?;
    }
    std::env::set_current_dir(root)?;
    pivot_root(".", ".").context("cannot change the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("cannot leave the old root")?;
    std::env::set_current_dir(&here).or_else(|_| std::env::set_current_dir("/"))?;
    if let Some(user) = arguments.user {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        setgroups(&[])?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
    }
    // Becoming another user has undone it.
    set_pdeathsig(Signal::SIGKILL)?;
    let mut words = arguments.command.into_iter();
    let program = words.next().context("no command")?;
    let error = Command::new(&program).args(words).exec();
    Err(error).with_context(|| format!("cannot execute {}", program.to_string_lossy()))
}

/// Enters a mount namespace, and for an ordinary user a user namespace around it, in which it keeps its user.
fn enter_namespace() -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    if uid.is_root() {
        return Ok(unshare(CloneFlags::CLONE_NEWNS)?);
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    Ok(fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?)
}

fn bind(from: &Path, over: &Path) -> Result<()> {
    fs::create_dir_all(over).with_context(|| format!("cannot make {}", over.display()))?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), over, NOTHING, flags, NOTHING)
        .with_context(|| format!("cannot show {} at {}", from.display(), over.display()))
}
