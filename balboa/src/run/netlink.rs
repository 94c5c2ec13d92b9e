//! RDMA netlink as the program sees it: of the devices that stand in its `/sys/class`.
//!
//! A filter of system calls ([`super::filter`]) tells a supervisor of the program's RDMA netlink sockets, which answers
//! them ([`supervisor`]). The supervisor is a process of its own, for this one becomes the program: this program again,
//! which starts itself once more and ends, so that the program has no child that it does not know. It ends with the last
//! process behind the filter. Where there can be none, the sockets are refused, as on a kernel without RDMA.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use host_view::rdma_netlink::Devices;
use hostmem::fdpass::{self, Wait};
use hostmem::seccomp::{self, Listener};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

use self::supervisor::Supervisor;
use super::{filter, starter};
use crate::args;

mod supervisor;

/// How many descriptors of a program are RDMA netlink sockets at most.
const NUMBERS: u32 = 32;
/// They lie below this, so that the program's table of descriptors stays small (a page is 512).
const END: u32 = 4096;
/// The first kernel with all features that the supervisor needs (`SECCOMP_ADDFD_FLAG_SEND`), and that copies pages on
/// fork which devices reach (since 5.12).
const KERNEL: (u32, u32) = (5, 14);
/// Seconds that a supervisor may take until it is ready.
const READY: i64 = 10;
/// Its message once it is ready.
const IS_READY: &[u8] = b"ready";
/// The message that the listener comes with.
const LISTENER: &[u8] = b"listener";

/// Installs the filter by which RDMA netlink sockets of this process and its descendants are answered from the tree for
/// `/sys/class`, or refused where the kernel or the surrounding sandbox does not let them be answered.
///
/// # Errors
/// When the kernel refuses any filter. It needs no_new_privs.
pub fn install(class: &Path) -> hostmem::Result<()> {
    let Ok((supervisor, numbers)) = start(class) else {
        return seccomp::install(&filter::refusing());
    };
    match seccomp::install_with_listener(&filter::answering(&numbers)) {
        Ok(listener) => {
            // If the supervisor has ended since, the kernel lets calls without a listener fail.
            let _ = fdpass::send(supervisor.as_fd(), LISTENER, &[listener.as_fd()], Wait::AsSocket);
            Ok(())
        }
        // A filter around this has a listener already, as within `balboa run`, or forbids one.
        Err(_) => seccomp::install(&filter::refusing()),
    }
}

/// Starts a supervisor, which waits for its listener at the other end.
fn start(class: &Path) -> anyhow::Result<(OwnedFd, Range<u32>)> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    ensure!(version(&release).is_some_and(|it| it >= KERNEL), "Linux {release} is too old");
    let numbers = numbers(getrlimit(Resource::RLIMIT_NOFILE)?.0).context("a low limit")?;
    let (ours, theirs) = fdpass::pair()?;
    // A call on a watched number waits for the supervisor, which waits for just that.
    ensure!(
        u32::try_from(ours.as_raw_fd())? < numbers.start,
        "so many descriptors are open that one has a number that is watched"
    );
    setsockopt(&ours, sockopt::ReceiveTimeout, &TimeVal::seconds(READY))?;
    let ended = again(&numbers, class, Stdio::from(theirs)).arg("--detach").status()?;
    ensure!(ended.success(), "the process that starts the supervisor failed: {ended}");
    let mut said = [0; IS_READY.len()];
    let received = fdpass::receive(ours.as_fd(), &mut said, Wait::AsSocket)?;
    ensure!(said == IS_READY && received.bytes == said.len(), "the supervisor has ended");
    Ok((ours, numbers))
}

/// This program again, as a supervisor.
fn again(numbers: &Range<u32>, class: &Path, socket: Stdio) -> Command {
    // Its own file, wherever that is by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg("answer-netlink").arg(numbers.start.to_string()).arg(numbers.end.to_string());
    command.arg(class);
    command.arg0("balboa").env_clear().stdin(socket).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The supervisor's part: it supervises the program that is at the other end of its standard input.
///
/// # Errors
/// When there is none.
pub fn answer(arguments: &args::AnswerNetlink) -> anyhow::Result<()> {
    let numbers = arguments.first..arguments.end;
    starter::detach();
    let socket = io::stdin();
    if arguments.detach {
        let socket = Stdio::from(socket.as_fd().try_clone_to_owned()?);
        again(&numbers, &arguments.class, socket).spawn()?;
        return Ok(());
    }
    // It ends with the program, which may end in its own time where a whole group of processes is told to.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        hostmem::signal::ignore(signal);
    }
    let own = fs::read_link("/proc/self")?;
    let is_ours = own.to_str() == Some(&*std::process::id().to_string());
    ensure!(is_ours, "/proc tells of processes by other numbers");
    std::env::set_current_dir("/")?;
    fdpass::send(socket.as_fd(), IS_READY, &[], Wait::AsSocket)?;
    let mut said = [0; LISTENER.len()];
    let received = fdpass::receive(socket.as_fd(), &mut said, Wait::AsSocket)?;
    let Some(listener) = received.fds.into_iter().next() else { bail!("no program") };
    let devices = Devices::below(arguments.class.clone());
    Ok(Supervisor::new(Listener::from_received(listener), numbers, devices).serve()?)
}

/// The highest numbers that a descriptor can have; none where so many are too many for the limit.
fn numbers(limit: u64) -> Option<Range<u32>> {
    let end = u32::try_from(limit).unwrap_or(END).min(END);
    (end >= NUMBERS * 2).then(|| end - NUMBERS..end)
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.trim().split(|it: char| !it.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_and_low_limits_do_without() {
        assert_eq!(version("6.1.0-28-amd64\n"), Some((6, 1)));
        assert_eq!(version("5.14-rc1"), Some((5, 14)));
        assert_eq!(version("next"), None);
        assert!(version("5.9.1").unwrap() < KERNEL && version("10.0").unwrap() > KERNEL);
        assert_eq!(numbers(1024), Some(992..1024));
        assert_eq!(numbers(u64::MAX), Some(END - NUMBERS..END));
        assert_eq!(numbers(63), None);
    }
}
