//! The starter of a balboad that outlives its caller, and inherits nothing from it.
//!
//! It is a process of its own ([`super::start`]), which ends when balboad is ready: balboad's parent is then the system's
//! first process, and a program that waits for its children or for the end of an output does not wait for balboad.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use nix::fcntl::{Flock, OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::SigSet;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, geteuid, setsid};
use shim_abi::LEASE_VARIABLE;

use super::command;
use super::start::RETRY;
use super::turn;
use crate::args;
use crate::client::ToolClient;

/// How long balboad may take until it is ready.
const READY: Duration = Duration::from_secs(60);
/// How long another one that starts it is waited for.
const TURN: Duration = Duration::from_secs(90);
/// balboad's exit code when another serves the directory.
const RUNNING: i32 = 3;
/// The name in the state directory of the file whose lock is the turn to start one. It is never removed: other
/// processes would not see a lock on a removed file. A directory cannot be locked on NFS.
const STARTING: &str = "balboad.starting";
/// The log's name in the state directory.
const LOG: &str = "balboad.log";
/// The variables that balboad keeps of the environment: the places of programs and of the user's files, and the level
/// of its log.
const KEPT: [&str; 6] = ["PATH", "HOME", "TZ", "RUST_LOG", "RUST_BACKTRACE", "TMPDIR"];

/// Starts a balboad, unless one serves the directory by the time that it is this process's turn.
///
/// # Errors
/// In one sentence, why none is ready.
pub fn start(arguments: &args::StartBalboad) -> anyhow::Result<()> {
    detach();
    let dir = shim_abi::state_dir(arguments.state_dir.path(), geteuid().as_raw());
    let balboad = program()?;
    let directory = claim(&dir)?;
    let _turn = turn(&directory, &dir)?;
    let begun = Instant::now();
    loop {
        if ToolClient::connect(&dir, Duration::ZERO).is_ok() {
            return Ok(());
        }
        let log = log(&directory)?;
        let mut command = command(&balboad, &dir, &arguments.options);
        let child = command.stderr(log.try_clone()?).spawn();
        let mut child = child.with_context(|| format!("cannot execute {}", balboad.display()))?;
        match wait(&mut child)? {
            Outcome::Ready => return Ok(()),
            // A balboad ends there, or another process starts one.
            Outcome::Ended(status) if status.code() == Some(RUNNING) && begun.elapsed() < READY => {
                sleep(RETRY);
            }
            // Its output has gone: nobody asked for a balboad that serves.
            Outcome::Ended(status) if status.success() => bail!(
                "balboad ended without serving, as --help, --version and --check-config have it; leave such an option out"
            ),
            Outcome::Ended(status) => bail!("balboad did not start ({status}): {}", last_line(log)),
            Outcome::Late => {
                let _ = child.kill().and_then(|()| child.wait());
                let seconds = READY.as_secs();
                bail!(
                    "balboad was not ready within {seconds} s, and was ended; the last line of {}: {}",
                    dir.join(LOG).display(),
                    last_line(log)
                );
            }
        }
    }
}

/// Lets go of all that this process has inherited from its starter, for its children inherit it: descriptors, the
/// session with its terminal, blocked and ignored signals, and the processors that a launcher has pinned a program to.
pub(super) fn detach() {
    let names = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> =
        names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // This process has opened no file yet, so none of them is its own.
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        let _ = nix::unistd::close(fd);
    }
    // Refused where this leads its session already.
    let _ = setsid();
    let _ = SigSet::empty().thread_set_mask();
    // The standard library ignores SIGPIPE, but not in the programs that it starts.
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        hostmem::signal::heed(signal);
    }
    let mut all = CpuSet::new();
    for processor in 0..CpuSet::count() {
        let _ = all.set(processor);
    }
    // The kernel leaves out those that there are not, or that its groups forbid.
    let _ = sched_setaffinity(Pid::from_raw(0), &all);
}

/// The file of balboad.
fn program() -> anyhow::Result<PathBuf> {
    let name = "balboad";
    let beside = super::beside_us(name);
    let path = env::var_os("PATH");
    beside.or_else(|dir| {
        command::find(OsStr::new(name), path.as_deref()).map_err(|_| {
            anyhow!(
                "the program balboad is neither beside this program ({}) nor in PATH: build the whole workspace (cargo build --release --workspace) or install the package balboa",
                dir.display()
            )
        })
    })
}

/// The state directory, made where it is missing, if it is this user's alone to write to.
fn claim(dir: &Path) -> anyhow::Result<File> {
    let told =
        |what| format!("{what} the state directory {}; --state-dir names another", dir.display());
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| told("cannot make"));
        }
        _ => {}
    }
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(dir);
    let directory = opened.with_context(|| told("cannot open"))?;
    let found = directory.metadata()?;
    if found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        bail!("{}: it is not yours alone to write to", told("cannot use"));
    }
    Ok(directory)
}

/// This process's turn to start one, until it is dropped.
fn turn(directory: &File, dir: &Path) -> anyhow::Result<Flock<File>> {
    let file = file(directory, STARTING, OFlag::empty())?;
    let turn = turn::wait(file, TURN)
        .with_context(|| format!("cannot lock {}", dir.join(STARTING).display()))?;
    turn.with_context(|| {
        let (dir, seconds) = (dir.display(), TURN.as_secs());
        format!("another balboa run has been starting balboad in {dir} for {seconds} s")
    })
}

/// balboad's log, emptied.
fn log(directory: &File) -> anyhow::Result<File> {
    file(directory, LOG, OFlag::O_TRUNC | OFlag::O_APPEND)
}

/// A file of the state directory, made where it is missing. Its lock can be had for oneself on NFS, too, for it may be
/// written to.
fn file(directory: &File, name: &str, flags: OFlag) -> anyhow::Result<File> {
    let flags = flags | OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR);
    Ok(File::from(opened.with_context(|| format!("cannot open {name} in the state directory"))?))
}

fn command(balboad: &Path, dir: &Path, options: &[OsString]) -> Command {
    let mut command = Command::new(balboad);
    command.arg("--state-dir").arg(dir).args(options).env_clear();
    command.envs(KEPT.iter().filter_map(|name| Some((name, env::var_os(name)?))));
    command.env(LEASE_VARIABLE, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The outcome of a balboad's start.
#[derive(Debug)]
enum Outcome {
    Ready,
    Ended(ExitStatus),
    Late,
}

/// Waits until it says that it is ready, or has ended.
fn wait(child: &mut Child) -> anyhow::Result<Outcome> {
    let begun = Instant::now();
    let mut said = Vec::new();
    let mut out = child.stdout.take();
    while begun.elapsed() < READY {
        match &mut out {
            Some(pipe) => match read(pipe, READY.saturating_sub(begun.elapsed()))? {
                Some(bytes) if bytes.is_empty() => out = None,
                Some(bytes) => said.extend(bytes),
                None => return Ok(Outcome::Late),
            },
            None => match child.try_wait()? {
                Some(status) => return Ok(Outcome::Ended(status)),
                None => sleep(RETRY),
            },
        }
        if said == b"ready\n" {
            return Ok(Outcome::Ready);
        }
        // A balboad that prints more is about to end: it was asked for its help.
        said.truncate(16);
    }
    Ok(Outcome::Late)
}

/// The next bytes, none at the end; `None` where that takes longer.
fn read(pipe: &mut ChildStdout, patience: Duration) -> anyhow::Result<Option<Vec<u8>>> {
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, timeout)? == 0 {
        return Ok(None);
    }
    let mut bytes = vec![0; 4096];
    let count = pipe.read(&mut bytes)?;
    bytes.truncate(count);
    Ok(Some(bytes))
}

/// The last line of the log, without the name of its module.
fn last_line(mut log: File) -> String {
    let end = log.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut tail = Vec::new();
    let _ = log.seek(SeekFrom::Start(end.saturating_sub(4096)));
    let _ = log.take(4096).read_to_end(&mut tail);
    let tail = String::from_utf8_lossy(&tail).into_owned();
    let line = tail.lines().rfind(|line| !line.trim().is_empty());
    let line = line.map(|line| line.strip_prefix("balboad: ").unwrap_or(line));
    line.unwrap_or("it has logged nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::fcntl::FlockArg;

    use super::*;

    #[test]
    fn the_turn_is_a_files_and_one_processs() {
        let dir = tempfile::tempdir().unwrap();
        let directory = File::open(dir.path()).unwrap();
        let held = turn(&directory, dir.path()).unwrap();
        let again = file(&directory, STARTING, OFlag::empty()).unwrap();
        let (again, errno) = Flock::lock(again, FlockArg::LockExclusiveNonblock).unwrap_err();
        assert_eq!(errno, Errno::EWOULDBLOCK);
        // NFS locks no directory for one alone, because none can be opened to be written to.
        Flock::lock(directory, FlockArg::LockExclusiveNonblock).unwrap();
        drop(held);
        Flock::lock(again, FlockArg::LockExclusiveNonblock).unwrap();
    }
}
