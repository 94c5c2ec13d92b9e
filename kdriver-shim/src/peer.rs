//! The peer of a control socket, and whether balboad serves it.

use std::os::fd::BorrowedFd;

use hostmem::process::{self, PeerCredentials, peer_credentials};
use hostmem::{Errno, PidFd};
use nix::unistd::Pid;

use crate::error::Error;
use crate::process::Process;

/// Identifies any peer.
///
/// # Errors
/// [`Error::Memory`] when the kernel does not tell.
pub fn identify(socket: BorrowedFd<'_>) -> Result<(Process, PidFd), Error> {
    let PeerCredentials { pid, uid, .. } = peer_credentials(socket)?;
    let pidfd = PidFd::of_peer(socket)?;
    let pid = pid.as_raw();
    let command = printable(&std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default());
    Ok((Process { pid, uid, command }, pidfd))
}

/// A command's name as a line of the log may have it: it is the process's own choice, in any bytes.
fn printable(name: &[u8]) -> String {
    match String::from_utf8_lossy(name).trim_end() {
        "" => "?".to_owned(),
        name => name.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
    }
}

/// Refuses peers of another user, or in another pid namespace.
///
/// # Errors
/// [`Error::Forbidden`] with the reason.
pub fn admit(process: &Process, own_uid: u32) -> Result<(), Error> {
    let Process { pid, uid, .. } = process;
    if *uid != own_uid {
        return Err(Error::Forbidden(format!(
            "this balboad serves user {own_uid} only, and you are user {uid}; start one of your own"
        )));
    }
    if *pid <= 0 {
        return Err(Error::Forbidden(
            "your process has no id where balboad runs (another pid namespace); run both in one"
                .into(),
        ));
    }
    Ok(())
}

/// Asks the kernel whether a program of balboad's own user may be served: whether its memory is within
/// reach, and, where that user is root, that it is no set-user-id program.
///
/// May never return: see [`crate::aside`].
///
/// # Errors
/// [`Error::Forbidden`] with the reason, and the mend.
pub fn examine(process: &Process) -> Result<(), Error> {
    let pid = Pid::from_raw(process.pid);
    // root's capability would override the kernel's own guard of such programs.
    if process.uid == 0 {
        match process::program_mode(pid) {
            Ok(mode) if mode & 0o6000 != 0 => {
                return Err(Error::Forbidden(
                    "root's balboad serves no set-user-id or set-group-id program".into(),
                ));
            }
            Ok(_) => {}
            Err(error) => {
                return Err(Error::Forbidden(format!(
                    "the program of process {pid} cannot be looked at: {error}"
                )));
            }
        }
    }
    process::check_reach(pid).map_err(|error| {
        let why = match error.errno() {
            Some(Errno::EACCES | Errno::EPERM) => denied(pid),
            Some(Errno::ENOENT | Errno::ESRCH) => {
                "there is no such process where balboad runs".to_owned()
            }
            _ => error.to_string(),
        };
        Error::Forbidden(format!("balboad cannot read the memory of process {pid}: {why}"))
    })
}

/// Why the kernel may have denied access to a process of the same user.
fn denied(pid: Pid) -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    match scope.trim() {
        "2" | "3" => format!(
            "kernel.yama.ptrace_scope is {}; set it to 0 or 1, or run balboad as root",
            scope.trim()
        ),
        "1" => "kernel.yama.ptrace_scope is 1 and the program did not declare balboad its tracer; set it to 0".into(),
        _ if namespace("self") != namespace(&pid.to_string()) => {
            "it is in another user namespace, whose owner balboad is not, or not dumpable".into()
        }
        _ => "it is not dumpable (set-user-id, with capabilities, or PR_SET_DUMPABLE was set), or balboad lacks CAP_SYS_PTRACE".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Process {
        let pid = nix::unistd::getpid().as_raw();
        let uid = nix::unistd::geteuid().as_raw();
        Process { pid, uid, command: "test".into() }
    }

    #[test]
    fn another_user_is_refused_by_name() {
        let stranger = Process { uid: own().uid + 1, ..own() };
        let why = admit(&stranger, own().uid).unwrap_err().to_string();
        assert!(why.contains(&format!("you are user {}", own().uid + 1)), "{why}");
        admit(&own(), own().uid).unwrap();
    }

    #[test]
    fn another_pid_namespace_is_named() {
        let unseen = Process { pid: 0, ..own() };
        let why = admit(&unseen, own().uid).unwrap_err().to_string();
        assert!(why.contains("another pid namespace"), "{why}");
    }

    #[test]
    fn a_program_within_reach_is_served_and_one_that_is_gone_is_not() {
        examine(&own()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = Process { pid: i32::try_from(child.id()).unwrap(), ..own() };
        child.wait().unwrap();
        let why = examine(&gone).unwrap_err().to_string();
        assert!(why.contains(&gone.pid.to_string()), "{why}");
    }

    #[test]
    fn a_name_in_any_bytes_is_one_that_can_be_logged() {
        assert_eq!(printable(b"a\xff\x1b[2Jb\n"), "a\u{fffd}?[2Jb");
        assert_eq!(printable(b"\n"), "?");
    }

    #[test]
    fn the_peer_of_an_own_socket_is_this_process() {
        let (ours, _theirs) = hostmem::fdpass::pair().unwrap();
        let (process, pidfd) = identify(std::os::fd::AsFd::as_fd(&ours)).unwrap();
        assert_eq!((process.pid, process.uid), (own().pid, own().uid));
        assert!(!pidfd.has_ended().unwrap());
    }
}
