//! Who is at the other end of a control socket, and whether balboad serves them.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use hostmem::process::{PeerCredentials, peer_credentials, read_vectored};
use hostmem::{Errno, PidFd, RemoteRange};
use nix::unistd::Pid;

use crate::clients::Process;
use crate::error::Error;

/// Identifies a peer, whoever it is.
///
/// # Errors
/// [`Error::Memory`] when the kernel does not tell.
pub fn identify(socket: BorrowedFd<'_>) -> Result<(Process, PidFd), Error> {
    let PeerCredentials { pid, uid, .. } = peer_credentials(socket)?;
    let pidfd = PidFd::of_peer(socket)?;
    let pid = pid.as_raw();
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = match command.trim_end() {
        "" => "?".to_owned(),
        // The name is the process's own choice: nothing in it may disturb the log.
        name => name.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
    };
    Ok((Process { pid, uid, command }, pidfd))
}

/// Refuses peers of another user, and set-uid programs where balboad is root's.
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
    // root's capability would override the kernel's own guard of such programs.
    if own_uid == 0 {
        match std::fs::metadata(format!("/proc/{pid}/exe")) {
            Ok(exe) if exe.mode() & 0o6000 != 0 => {
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
    Ok(())
}

/// Reads a word of the client, to see at once whether its memory is within reach.
///
/// # Errors
/// [`Error::Forbidden`] with the reason, and what to do about it.
pub fn probe(process: &Process, address: u64, expected: u64) -> Result<(), Error> {
    let pid = process.pid;
    let mut word = [0u8; 8];
    let base = usize::try_from(address).unwrap_or(0);
    let range = RemoteRange { base, len: word.len() };
    let read = read_vectored(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut word)], &[range]);
    let why = match read {
        Ok(_) if u64::from_ne_bytes(word) == expected => return Ok(()),
        Ok(_) => "another value stands there; is the process in another pid namespace?".to_owned(),
        Err(error) => match error.errno() {
            Some(Errno::EPERM) => denied(pid),
            Some(Errno::ESRCH) => "there is no such process where balboad runs".to_owned(),
            _ => error.to_string(),
        },
    };
    Err(Error::Forbidden(format!("balboad cannot read the memory of process {pid}: {why}")))
}

/// Why the kernel may have denied access to a process of the same user.
fn denied(pid: i32) -> String {
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
    fn the_probe_reads_what_stands_there() {
        let word = 0x1234_5678_9abc_def0u64;
        let at = &raw const word as u64;
        probe(&own(), at, word).unwrap();
        assert!(probe(&own(), at, 1).unwrap_err().to_string().contains("another value"));
        assert!(probe(&own(), 8, 1).is_err());
    }

    #[test]
    fn the_peer_of_an_own_socket_is_this_process() {
        let (ours, _theirs) = hostmem::fdpass::pair().unwrap();
        let (process, pidfd) = identify(std::os::fd::AsFd::as_fd(&ours)).unwrap();
        assert_eq!((process.pid, process.uid), (own().pid, own().uid));
        assert!(!pidfd.has_ended().unwrap());
    }
}
