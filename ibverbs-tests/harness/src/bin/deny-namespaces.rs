//! Runs a program as Docker's default seccomp profile has it without CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_SYS_NICE, as far
//! as a program here could notice (moby/profiles, seccomp/default.json, of 2023 and newer).

#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// System calls that fail with EPERM for all arguments.
const REFUSED: [i64; 32] = [
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fsconfig,
    libc::SYS_fspick,
    libc::SYS_chroot,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_open_by_handle_at,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_mbind,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_syslog,
];
/// Flags of clone(2) that make a namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWCGROUP,
];

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().context("usage: deny-namespaces COMMAND...")?;
    let mut rules: Vec<(i64, Vec<SeccompRule>)> =
        REFUSED.into_iter().map(|call| (call, Vec::new())).collect();
    let makes = |flag: i32| -> Result<SeccompRule> {
        let flag = flag as u32 as u64;
        let (argument, set) = (SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag));
        Ok(SeccompRule::new(vec![SeccompCondition::new(0, argument, set, flag)?])?)
    };
    rules.push((libc::SYS_clone, NAMESPACES.into_iter().map(makes).collect::<Result<_>>()?));
    apply(rules, libc::EPERM)?;
    // The C library takes the older call then.
    apply(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)?;
    Err(Command::new(program).args(arguments).exec()).context("cannot execute the command")
}

fn apply(rules: Vec<(i64, Vec<SeccompRule>)>, errno: i32) -> Result<()> {
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    let refuse = SeccompAction::Errno(errno as u32);
    let rules = rules.into_iter().collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?;
    let instructions: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&instructions)?)
}
