//! Other processes: their memory, their credentials and their end.
//!
//! Memory is reached with `process_vm_readv` and `process_vm_writev`: the kernel checks that we
//! may (same user and a dumpable process, or CAP_SYS_PTRACE; Yama's ptrace_scope may narrow it to
//! declared tracers, see [`allow_ptracer`]), and it checks every address. One call costs about as
//! much as copying ten kilobytes, so callers gather whole bursts into one list.
//!
//! A process id can be used again after its process has ended, and a copy would then reach a
//! stranger. [`RemoteProcess`] tells whether an id is still its process's own, by a [`PidFd`], and
//! is asked before each copy. A process that executes another program keeps its id and its handle:
//! that its memory is another's is learnt from its socket, which closes on exec.

use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::{AccessFlags, Pid, access};

use crate::{Error, Result};

/// A range of another process's memory: `base` is an address there, `len` its size in bytes.
pub type RemoteRange = RemoteIoVec;

/// Most ranges the kernel takes in one call, on either side (IOV_MAX).
const RANGES_PER_CALL: usize = 1024;

/// Copies from another process: the remote ranges, end to end, into the local buffers, end to end.
///
/// Moves as many bytes as the shorter of the two lists has, in as few calls as the kernel's limits
/// allow, and returns their number. Ends early with [`Error::ProcessMemory`], which tells how many
/// bytes from the start were moved and why the next one was not; the bytes beyond are untouched. The
/// kernel moves whole pages until it meets one that is not there, so bytes before it in the same
/// list are moved. The local slices are advanced past the moved bytes when more than one call was
/// needed; use the buffers behind them.
pub fn read_vectored(
    pid: Pid,
    local: &mut [IoSliceMut<'_>],
    remote: &[RemoteRange],
) -> Result<usize> {
    let total = total_bytes(local.iter().map(|part| part.len()), remote);
    let mut rest = local;
    transfer(pid, total, remote, |moved, remote| {
        IoSliceMut::advance_slices(&mut rest, moved);
        let count = rest.len().min(RANGES_PER_CALL);
        process_vm_readv(pid, &mut rest[..count], remote)
    })
}

/// Copies to another process: the local buffers, end to end, into the remote ranges, end to end.
///
/// As [`read_vectored`], the other way.
pub fn write_vectored(
    pid: Pid,
    local: &mut [IoSlice<'_>],
    remote: &[RemoteRange],
) -> Result<usize> {
    let total = total_bytes(local.iter().map(|part| part.len()), remote);
    let mut rest = local;
    transfer(pid, total, remote, |moved, remote| {
        IoSlice::advance_slices(&mut rest, moved);
        let count = rest.len().min(RANGES_PER_CALL);
        process_vm_writev(pid, &rest[..count], remote)
    })
}

/// Bytes the shorter list has; sums that overflow cannot be real memory, and saturate.
fn total_bytes(local: impl Iterator<Item = usize>, remote: &[RemoteRange]) -> usize {
    let local = local.fold(0, usize::saturating_add);
    let remote = remote.iter().fold(0, |sum: usize, range| sum.saturating_add(range.len));
    local.min(remote)
}

/// Repeats calls until `total` bytes are moved or one fails.
///
/// `call` first steps its local list over the bytes of the call before, then moves as much as it can.
fn transfer(
    pid: Pid,
    total: usize,
    remote: &[RemoteRange],
    mut call: impl FnMut(usize, &[RemoteRange]) -> nix::Result<usize>,
) -> Result<usize> {
    let mut moved = 0;
    let mut step = 0;
    let mut cursor = RemoteCursor { ranges: remote, into: 0 };
    while moved < total {
        let window;
        let ranges = if cursor.into == 0 {
            &cursor.ranges[..cursor.ranges.len().min(RANGES_PER_CALL)]
        } else {
            window = cursor.window();
            &window[..]
        };
        step = match call(step, ranges) {
            // The kernel reports 0 bytes only for lists without bytes; step over such ranges.
            Ok(0) if cursor.skip_empty(ranges.len()) => 0,
            Ok(0) => return Err(stopped(pid, moved, total, Errno::EFAULT)),
            Ok(bytes) => bytes.min(total - moved),
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(stopped(pid, moved, total, errno)),
        };
        moved += step;
        cursor.advance(step);
    }
    Ok(moved)
}

fn stopped(pid: Pid, moved: usize, total: usize, errno: Errno) -> Error {
    Error::ProcessMemory { pid: pid.as_raw(), moved, total, errno }
}

/// A place in a list of remote ranges.
struct RemoteCursor<'a> {
    ranges: &'a [RemoteRange],
    /// Bytes of the first range that are done.
    into: usize,
}

impl RemoteCursor<'_> {
    /// The ranges from here on, as many as one call takes, the first one shortened.
    fn window(&self) -> Vec<RemoteRange> {
        let mut window: Vec<_> = self.ranges.iter().take(RANGES_PER_CALL).copied().collect();
        if let Some(first) = window.first_mut() {
            first.base = first.base.wrapping_add(self.into);
            first.len -= self.into;
        }
        window
    }

    fn advance(&mut self, bytes: usize) {
        self.into += bytes;
        while let [first, rest @ ..] = self.ranges {
            if self.into < first.len || self.into == 0 {
                break;
            }
            self.into -= first.len;
            self.ranges = rest;
        }
    }

    /// Steps over the next `count` ranges if all are empty and more follow.
    fn skip_empty(&mut self, count: usize) -> bool {
        let (next, rest) = self.ranges.split_at(count);
        let skip = self.into == 0 && !rest.is_empty() && next.iter().all(|range| range.len == 0);
        if skip {
            self.ranges = rest;
        }
        skip
    }
}

/// The process at the other end of a connected Unix socket, as the kernel noted at connect time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id, in our process id namespace; 0 when it has none there.
    pub pid: Pid,
    /// Effective user id, in our user namespace.
    pub uid: u32,
    /// Effective group id, in our user namespace.
    pub gid: u32,
}

/// Reads the credentials of a connected Unix socket's peer.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<PeerCredentials> {
    let found = getsockopt(&socket, sockopt::PeerCredentials)
        .map_err(Error::os("getsockopt(SO_PEERCRED)"))?;
    Ok(PeerCredentials { pid: Pid::from_raw(found.pid()), uid: found.uid(), gid: found.gid() })
}

/// Lets another process of the same user reach this one's memory where Yama restricts it.
///
/// Returns false when the kernel knows no such restriction, so that none need be lifted.
pub fn allow_ptracer(pid: Pid) -> Result<bool> {
    if !std::path::Path::new("/proc/sys/kernel/yama/ptrace_scope").exists() {
        return Ok(false);
    }
    let tracer = libc::c_ulong::try_from(pid.as_raw())
        .map_err(|_| Error::Os { call: "prctl(PR_SET_PTRACER)", errno: Errno::EINVAL })?;
    // SAFETY: prctl with this option reads one integer and touches no memory of ours.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, tracer, 0, 0, 0) };
    Errno::result(result).map_err(Error::os("prctl(PR_SET_PTRACER)"))?;
    Ok(true)
}

/// Lets processes of the same user reach this one's memory where they may not only because its user
/// may not read the program's file (mode 0711).
///
/// The kernel then makes the process not dumpable when it begins. A user that runs the program could read its text
/// by any library that it loads, so nothing is revealed that was hidden. A readable program that has made itself not
/// dumpable stays so; for an unreadable one the two cases look alike.
pub fn allow_reach_of_unreadable() {
    if access("/proc/self/exe", AccessFlags::R_OK) == Err(Errno::EACCES) {
        // If it is refused, the later access to the memory reports it.
        let _ = prctl::set_dumpable(true);
    }
}

/// Asks the kernel whether this process may reach another's memory, without reaching for any.
///
/// It is the check that copies go through, made when `/proc/PID/mem` is opened: the same but for its
/// use of the file system ids and effective capabilities, where copies go by the real ids and the
/// permitted capabilities. Another process can make it last: the kernel waits until an exec under way
/// has closed its descriptors.
///
/// # Errors
/// EACCES where it may not, ENOENT or ESRCH where there is no such process.
pub fn check_reach(pid: Pid) -> Result<()> {
    let opened = std::fs::File::open(format!("/proc/{pid}/mem"));
    opened.map(drop).map_err(|error| Error::Os {
        call: "open of its /proc/PID/mem",
        errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
    })
}

/// The mode of the program that a process runs, with its set-user-id and set-group-id bits.
///
/// The program's file system is not asked, so that one that does not answer is not waited for: the
/// mode is the one that the kernel knows, by which it has executed the program. Waits as
/// [`check_reach`] does.
///
/// # Errors
/// EACCES where this process may not look at it, ENOENT or ESRCH where there is no such process.
pub fn program_mode(pid: Pid) -> Result<u32> {
    let path = CString::new(format!("/proc/{pid}/exe")).unwrap_or_default();
    let mut found: MaybeUninit<libc::statx> = MaybeUninit::zeroed();
    // SAFETY: the path ends with its zero byte, and the result has room for the call's answer.
    let result = unsafe {
        let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
        libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_MODE, found.as_mut_ptr())
    };
    Errno::result(result).map_err(Error::os("statx of its /proc/PID/exe"))?;
    // SAFETY: all-zero is a valid value, and the call has succeeded besides.
    Ok(unsafe { found.assume_init() }.stx_mode.into())
}

/// A handle to one process, which no later process of the same id can take over.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Opens the process that has this id now; ESRCH when there is none.
    pub fn open(pid: Pid) -> Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        let raw = Errno::result(raw).map_err(Error::os("pidfd_open"))?;
        // SAFETY: the kernel has just made this descriptor for us (closed on exec by itself).
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(raw as i32) } })
    }

    /// Opens the process that connected a Unix socket.
    ///
    /// Linux 6.5 and later name that very process (SO_PEERPIDFD). Older kernels open it by its id:
    /// if it has ended in between, that may be another process, so the caller checks afterwards
    /// that the connection has not been closed.
    pub fn of_peer(socket: BorrowedFd<'_>) -> Result<Self> {
        let mut raw: libc::c_int = -1;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: value and length point to live objects of the sizes stated.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERPIDFD,
                (&raw mut raw).cast(),
                &raw mut length,
            )
        };
        match Errno::result(result) {
            // SAFETY: the kernel has just made this descriptor for us.
            Ok(_) => Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(raw) } }),
            Err(Errno::ENOPROTOOPT) => Self::open(peer_credentials(socket)?.pid),
            Err(errno) => Err(Error::Os { call: "getsockopt(SO_PEERPIDFD)", errno }),
        }
    }

    /// Whether the process has ended; the descriptor also polls readable then.
    pub fn has_ended(&self) -> Result<bool> {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::ZERO) {
                Err(Errno::EINTR) => {}
                result => return Ok(result.map_err(Error::os("poll of a pidfd"))? > 0),
            }
        }
    }
}

/// A process whose memory is reached by its id.
#[derive(Debug)]
pub struct RemoteProcess {
    pid: Pid,
    handle: PidFd,
    /// Until when, in the caller's nanoseconds, the id is its own.
    sure_until: AtomicU64,
    /// A copy from or to its memory did not return in time.
    given_up: AtomicBool,
}

/// How long the kernel's word that a process lives is good for its id, in nanoseconds.
///
/// The kernel hands out process ids in turn, at least a thousand of them for each processor, so one
/// that has just become free is not used again for as long as making thousands of processes takes.
const SURE_NS: u64 = 1_000_000;

impl RemoteProcess {
    /// Joins a process's id and a handle to it.
    pub fn new(pid: Pid, handle: PidFd) -> Self {
        let (sure_until, given_up) = Default::default();
        Self { pid, handle, sure_until, given_up }
    }

    /// Its id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether the process has ended, as the kernel says now.
    pub fn has_ended(&self) -> bool {
        self.handle.has_ended().unwrap_or(true)
    }

    /// Lets no thread reach its memory any more, because it did not answer.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Whether its memory did not answer.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Whether its memory can be reached by its id, at the time `now` of a clock of the caller's, in
    /// nanoseconds: the id is its own, and it was not given up.
    ///
    /// Asks the kernel once in a millisecond. Once false, it stays so.
    pub fn is_itself(&self, now: u64) -> bool {
        if self.is_given_up() {
            return false;
        }
        if now < self.sure_until.load(Ordering::Relaxed) {
            return true;
        }
        let lives = self.handle.has_ended().is_ok_and(|ended| !ended);
        if lives {
            self.sure_until.store(now.saturating_add(SURE_NS), Ordering::Relaxed);
        }
        lives
    }
}

/// The handle, which polls readable once the process has ended.
impl AsFd for RemoteProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The state of a thread of ours that copies from or to a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It runs, or would if a processor were free.
    Runnable,
    /// It waits until the program has changed its address space: that is locked while a large one is forked, for some tens of
    /// milliseconds for each GiB of small pages, and much longer where processors are busy.
    Locked,
    /// It waits for something else, as a file system in user space, or that is not known.
    Asleep,
}

impl Standing {
    /// The present state of a thread.
    #[must_use]
    pub fn of(thread: Pid) -> Self {
        let read = |what| std::fs::read_to_string(format!("/proc/self/task/{thread}/{what}"));
        Self::from_files(&read("stat").unwrap_or_default(), &read("wchan").unwrap_or_default())
    }

    /// The same, from the kernel's two files of it.
    fn from_files(stat: &str, wchan: &str) -> Self {
        // The state follows the name, in which anything may be.
        let state = stat.rsplit_once(") ").map(|(_, state)| state);
        if state.is_some_and(|state| state.starts_with('R')) {
            return Self::Runnable;
        }
        // The kernel leaves its functions of locks out there, and names their callers: these callers take the lock of
        // the address space, and no other.
        let asks = ["process_vm_rw", "__get_user_pages"];
        match asks.iter().any(|function| wchan.starts_with(function)) {
            true => Self::Locked,
            false => Self::Asleep,
        }
    }

    /// The part of a time in that state that counts as waiting for a program that does not answer.
    #[must_use]
    pub fn counts(self, time: Duration) -> Duration {
        match self {
            Self::Runnable => Duration::ZERO,
            Self::Locked => time / 3,
            Self::Asleep => time,
        }
    }
}

#[cfg(test)]
mod tests;
