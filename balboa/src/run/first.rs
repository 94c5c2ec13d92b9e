//! The first process of a pid namespace, as of a container: a process that has lost its parent becomes its child. A
//! balboad and a supervisor of RDMA netlink, left beside the program, would become the program's children, and a
//! program that waits for all its children would wait for ever, for they wait for the program. So this process stays,
//! and the program is another.

use std::io;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// The addend to the number of a signal that ends a program, in its exit code, as in shells.
const BY_SIGNAL: i32 = 128;

/// Whether this is such a process.
pub fn is_first() -> bool {
    getpid() == Pid::from_raw(1)
}

/// Runs the program, hands it the signals that this process is sent, and reaps all other children; its exit code. With this
/// process everything of its namespace ends.
///
/// # Errors
/// The program cannot be executed, or the kernel refuses.
pub fn stay(command: &mut Command) -> io::Result<u8> {
    hostmem::signal::heed(libc::SIGCHLD);
    let program = command.spawn()?;
    let program = Pid::from_raw(i32::try_from(program.id()).map_err(io::Error::other)?);
    // Behind the start, for the program would have them blocked, too. The first process is not ended by a signal that it
    // has not asked for.
    let signals = SigSet::all();
    signals.thread_block()?;
    let asked = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    loop {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == program => return Ok(code_of(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                    return Ok(code_of(BY_SIGNAL.saturating_add(signal as i32)));
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let Some(told) = asked.read_signal()? else { continue };
        let signal = i32::try_from(told.ssi_signo).unwrap_or_default();
        if is_the_programs(signal, told.ssi_code) {
            // Not yet reaped, so that the number is no other's.
            let _ = hostmem::signal::send(program, signal);
        }
    }
}

/// Whether a signal is handed to the program.
fn is_the_programs(signal: i32, code: i32) -> bool {
    match signal {
        libc::SIGCHLD => false,
        // When a terminal hangs up, the kernel tells its session's leader alone.
        libc::SIGHUP | libc::SIGCONT => true,
        // The terminal has sent its other signals to the program as well.
        _ => code != libc::SI_KERNEL,
    }
}

fn code_of(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_handed_what_it_was_not_sent_itself() {
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGRTMIN(), libc::SIGRTMAX()] {
            assert!(is_the_programs(signal, libc::SI_USER));
        }
        assert!(is_the_programs(libc::SIGHUP, libc::SI_KERNEL));
        assert!(!is_the_programs(libc::SIGINT, libc::SI_KERNEL));
        assert!(!is_the_programs(libc::SIGCHLD, libc::SI_USER));
    }
}
