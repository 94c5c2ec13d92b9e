//! Filters of system calls, and the calls that a supervisor answers: seccomp(2).
//!
//! No memory of the program is read or written for an answer. The registers of the call have its request, and
//! its answer is a descriptor, a number or an error.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::{Error, Result};

/// One instruction of a filter: `struct sock_filter` of `linux/filter.h`.
pub type Instruction = libc::sock_filter;

// `linux/seccomp.h`: SECCOMP_IOCTL_NOTIF_RECV, _SEND, _ID_VALID and _ADDFD.
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const IS_VALID: libc::c_ulong = 0x4008_2102;
const ADD_DESCRIPTOR: libc::c_ulong = 0x4018_2103;
/// SECCOMP_ADDFD_FLAG_SEND.
const AND_ANSWER: u32 = 2;

/// A system call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    id: u64,
    /// The thread that made it, as this process numbers threads; 0 where it sees none of them.
    pub thread: Pid,
    /// Its number, of the architecture that the filter let through.
    pub number: i32,
    /// Its arguments, as they stood in the registers.
    pub arguments: [u64; 6],
}

/// The descriptor at which the calls arrive that a filter reports.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Installs a filter for this thread and all that descends from it. It needs no_new_privs.
///
/// # Errors
/// EINVAL for a bad filter; the error of an enclosing filter.
pub fn install(filter: &[Instruction]) -> Result<()> {
    set_mode_filter(filter, 0).map(drop)
}

/// Installs the filter as [`install`], with a listener for the calls that it reports. It is closed on exec.
///
/// # Errors
/// EBUSY where a filter of this thread has a listener already, EINVAL before Linux 5.0.
pub fn install_with_listener(filter: &[Instruction]) -> Result<Listener> {
    let listening = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Since Linux 5.19: no signal that the program handles interrupts a call that was received.
    let whole = listening | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let installed = set_mode_filter(filter, whole).or_else(|error| match error.errno() {
        Some(Errno::EINVAL) => set_mode_filter(filter, listening),
        _ => Err(error),
    });
    let fd = installed?;
    // SAFETY: the kernel has just made the descriptor for us, and nobody else knows it.
    Ok(Listener(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn set_mode_filter(filter: &[Instruction], flags: libc::c_ulong) -> Result<RawFd> {
    // The kernel refuses a longer one by its length.
    let len = u16::try_from(filter.len()).unwrap_or(u16::MAX).min(u16::MAX - 1);
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel reads `len` instructions behind `filter`, no more than the slice has, and writes none.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            &raw const program,
        )
    };
    let returned = Errno::result(returned).map_err(Error::os("seccomp"))?;
    RawFd::try_from(returned).map_err(|_| Error::BadKind { wanted: "a descriptor" })
}

/// Makes a socket receive no packets at all.
///
/// # Errors
/// The kernel's, for a descriptor that is no socket.
pub fn deafen(socket: BorrowedFd<'_>) -> Result<()> {
    // Of each message keep 0 bytes.
    let mut none = Instruction { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut none };
    // SAFETY: the option is a program of one instruction, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    Errno::result(done).map(drop).map_err(Error::os("setsockopt(SO_ATTACH_FILTER)"))
}

impl Listener {
    /// A listener that came from the process that installed the filter. Any other descriptor fails in each call.
    pub fn from_received(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// The next call; waits for one, so poll first.
    ///
    /// # Errors
    /// ENOENT where the thread was killed or interrupted meanwhile, EINTR.
    pub fn receive(&self) -> Result<Call> {
        let zero = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
        let mut it = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data: zero };
        self.control("ioctl(SECCOMP_IOCTL_NOTIF_RECV)", RECEIVE, &mut it)?;
        let thread = Pid::from_raw(i32::try_from(it.pid).unwrap_or(0));
        Ok(Call { id: it.id, thread, number: it.data.nr, arguments: it.data.args })
    }

    /// Whether the call still waits, so that the values read of its thread by number were that thread's.
    pub fn waits(&self, call: &Call) -> bool {
        let mut id = call.id;
        self.control("ioctl(SECCOMP_IOCTL_NOTIF_ID_VALID)", IS_VALID, &mut id).is_ok()
    }

    /// Makes a number of the program's a descriptor of this file, in place of any other; the call goes on waiting.
    ///
    /// # Errors
    /// EBADF beyond the program's RLIMIT_NOFILE, ENOENT if the call no longer waits, EINVAL before Linux 5.9.
    pub fn place(
        &self,
        call: &Call,
        file: BorrowedFd<'_>,
        number: u32,
        on_exec: OnExec,
    ) -> Result<()> {
        self.add(call, file, number, on_exec, 0).map(drop)
    }

    /// Places a descriptor as [`Self::place`], and the call returns that number. A call that no longer waits gets
    /// nothing.
    ///
    /// # Errors
    /// Those of [`Self::place`], after which the call still waits; EINVAL before Linux 5.14.
    pub fn place_and_answer(
        &self,
        call: &Call,
        file: BorrowedFd<'_>,
        number: u32,
        on_exec: OnExec,
    ) -> Result<()> {
        self.add(call, file, number, on_exec, AND_ANSWER).map(drop)
    }

    fn add(
        &self,
        call: &Call,
        file: BorrowedFd<'_>,
        number: u32,
        on_exec: OnExec,
        how: u32,
    ) -> Result<i32> {
        let newfd_flags = match on_exec {
            OnExec::Close => libc::O_CLOEXEC as u32,
            OnExec::Keep => 0,
        };
        let mut it = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32 | how,
            srcfd: file.as_raw_fd() as u32,
            newfd: number,
            newfd_flags,
        };
        self.control("ioctl(SECCOMP_IOCTL_NOTIF_ADDFD)", ADD_DESCRIPTOR, &mut it)
    }

    /// Answers a call.
    ///
    /// # Errors
    /// ENOENT if it no longer waits.
    pub fn answer(&self, call: &Call, answer: Answer) -> Result<()> {
        let (error, flags) = match answer {
            Answer::Error(errno) => ((errno as i32).wrapping_neg(), 0),
            Answer::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let mut it = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags };
        self.control("ioctl(SECCOMP_IOCTL_NOTIF_SEND)", SEND, &mut it).map(drop)
    }

    fn control<T>(&self, call: &'static str, request: libc::c_ulong, it: &mut T) -> Result<i32> {
        debug_assert_eq!(size_of::<T>() as u64, (request >> 16) & 0x3fff);
        // SAFETY: the kernel reads and writes as many bytes as the request's number says, which is the size of `T`,
        // a plain structure of integers; the descriptor lives as long as `self`.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, std::ptr::from_mut(it)) };
        Errno::result(done).map_err(Error::os(call))
    }
}

/// The fate of a placed descriptor when the program executes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExec {
    /// It is closed (SOCK_CLOEXEC, O_CLOEXEC).
    Close,
    /// It stays.
    Keep,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// This error.
    Error(Errno),
    /// The kernel's own answer: it executes the call now.
    Continue,
}
