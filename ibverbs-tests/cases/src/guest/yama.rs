//! Software cards where Yama restricts the access to other processes' memory.
//!
//! `balboa run` gives an ordinary user's program a user namespace of its own, which that user's
//! balboad owns with all capabilities, so that Yama has nothing to say. A program that finds the
//! cards without it declares balboad its tracer.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{Both, free_port, run_pair};
use harness::process::Task;
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting, installed_release};

use super::for_both;
use crate::IBVERBS_UTILS;

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// The family: every scope that can be left again.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for scope in [0, 1, 2] {
        let name = format!("ptrace_scope {scope}/balboa run");
        cases.extend(for_both(&name, &[IBVERBS_UTILS], move |setting| {
            let _scope = Scope::set(scope)?;
            super::two_cards(setting)
        }));
        let name = format!("ptrace_scope {scope}/no user namespace");
        cases.push(Case::new(name, &[IBVERBS_UTILS, Need::Root], move |setting| {
            let _scope = Scope::set(scope)?;
            let daemon = setting.balboad("--soft 2")?;
            by_sysfs_path(setting, &daemon, scope < 2)?;
            daemon.stop()
        }));
    }
    cases
}

/// The scope, until it is dropped.
pub(super) struct Scope;

impl Scope {
    pub(super) fn set(scope: u8) -> Result<Self> {
        let write = || fs::write(SCOPE, scope.to_string());
        write().with_context(|| format!("cannot set {SCOPE} to {scope}"))?;
        Ok(Self)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let _ = fs::write(SCOPE, "0");
    }
}

/// A program that finds the cards by `SYSFS_PATH`, as in a container.
pub(super) fn by_sysfs_path(setting: &Setting, daemon: &Daemon<'_>, served: bool) -> Result<()> {
    let tree = Tree::new(setting)?;
    let port = free_port()?;
    let pingpong = |card: u32| {
        let command = format!("-c -g 1 -n 100 -d balboa{card} -p {port}");
        tree.task(setting, daemon, "ibv_rc_pingpong").words(&command)
    };
    if served {
        let both = run_pair(pingpong(0), pingpong(1).arg("127.0.0.1"), port)?;
        let Both { server, client } = both;
        server.says("100 iters in ")?;
        client.says("100 iters in ")?;
    } else {
        // Only processes with CAP_SYS_PTRACE may trace then: balboad must report that, and the remedy.
        let finished = pingpong(0).run()?;
        ensure!(!finished.status.success(), "it was served: {finished}");
        finished.complains("ptrace_scope is 2; set it to 0 or 1")?;
    }
    Ok(())
}

/// The smallest tree in which libibverbs finds the cards where the kernel knows no RDMA.
struct Tree<'a> {
    root: &'a Path,
}

impl<'a> Tree<'a> {
    fn new(setting: &'a Setting) -> Result<Self> {
        let root = setting.directory();
        let classes = root.join("class");
        fs::create_dir_all("/dev/infiniband")?;
        for card in [0, 1] {
            let node = format!("uverbs{}", 900 + card);
            let device = classes.join("infiniband_verbs").join(&node);
            fs::create_dir_all(classes.join(format!("infiniband/balboa{card}")))?;
            fs::create_dir_all(&device)?;
            fs::write(device.join("ibdev"), format!("balboa{card}\n"))?;
            fs::write(device.join("dev"), "1:7\n")?;
            fs::write(device.join("abi_version"), "1\n")?;
            let link = Path::new("/dev/infiniband").join(node);
            if !link.is_symlink() {
                symlink("/dev/full", link)?;
            }
        }
        fs::write(classes.join("infiniband_verbs/abi_version"), "6\n")?;
        let release = installed_release()?;
        let plugin = format!("libbalboa{}", release.suffix());
        symlink(setting.bin.join(release.provider()), root.join(plugin))?;
        Ok(Self { root })
    }

    fn task(&self, setting: &Setting, daemon: &Daemon<'_>, program: &str) -> Task {
        let task = setting.task(program).env("SYSFS_PATH", self.root);
        task.env("RDMAV_DRIVERS", self.root.join("libbalboa"))
            .env("BALBOA_STATE_DIR", daemon.state_dir())
    }
}
