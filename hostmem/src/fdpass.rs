//! Messages over a Unix socket that carries file descriptors with them.
//!
//! Over a socket that keeps the bounds of messages, one arrives whole with all its descriptors, or not at all: a
//! message that does not fit is an error, and its descriptors are closed, so that a peer cannot fill the process's
//! table by refused messages. Over a stream socket [`receive`] takes what has arrived, up to its buffer, and
//! [`send_some`] sends as much as there is room for. Received descriptors are closed on exec. Nothing here raises
//! SIGPIPE.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockType, getsockopt, setsockopt, shutdown, socketpair,
    sockopt,
};

use crate::{Error, Result};

/// Most descriptors one message carries.
pub const MAX_FDS: usize = 16;

/// Whether a call may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// As the socket's own mode says: a blocking socket waits.
    AsSocket,
    /// Never: [`Error::would_block`] is true for the error returned instead.
    Never,
}

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message, now at the start of the caller's buffer; 0 when the peer has closed.
    pub bytes: usize,
    /// Descriptors that came with it, in the sender's order.
    pub fds: Vec<OwnedFd>,
}

/// Makes a connected pair of sockets that keep message bounds (SOCK_SEQPACKET), closed on exec.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(Error::os("socketpair"))
}

/// The writer of messages that another process only reads; closed, it is seen by the reader as the end.
///
/// The reader's end is never ready to be written, as a file of the kernel's that is only read is not: programs wait
/// for both at once. A socket tells that it has no room while the bytes sent by it fill a quarter of its buffer,
/// and the reader's bytes lie at the writer, which does not take them. (The read end of a pipe is like that by
/// itself; but the reader of a pipe holds the lock that its writer needs for as long as its memory makes it
/// wait.)
#[derive(Debug)]
pub struct Writer(OwnedFd);

/// Makes a pair of sockets as [`pair`] does, of which one only writes, and the other only reads and is never ready to be
/// written until the writer is gone.
pub fn one_way() -> Result<(Writer, OwnedFd)> {
    let (ours, theirs) = pair()?;
    // The kernel gives the least there is.
    setsockopt(&theirs, sockopt::SndBuf, &0).map_err(Error::os("setsockopt(SO_SNDBUF)"))?;
    let room = getsockopt(&theirs, sockopt::SndBuf).map_err(Error::os("getsockopt(SO_SNDBUF)"))?;
    // It takes more memory than it has bytes.
    send(theirs.as_fd(), &vec![0; (room / 4).max(1)], &[], Wait::Never)?;
    // Nothing more comes from there: descriptors above all, which would be ours to close.
    shutdown(ours.as_raw_fd(), Shutdown::Read).map_err(Error::os("shutdown(SHUT_RD)"))?;
    Ok((Writer(ours), theirs))
}

impl Writer {
    /// Writes nothing any more: both see the end.
    pub fn end(&self) {
        // A socket that is shut down already is as wanted.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Writer {
    /// Takes the bytes that lie here, after the end: if a socket is closed with bytes in it, its reader gets ECONNRESET
    /// before its unread data.
    fn drop(&mut self) {
        self.end();
        // It does not matter if there are none, or if they are cut off.
        let _ = receive(self.0.as_fd(), &mut [0], Wait::Never);
    }
}

/// Another descriptor of the same file, closed on exec, to be handed on.
pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    fd.try_clone_to_owned().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

/// Room for the control data of `MAX_FDS` descriptors, aligned as the kernel's headers need.
#[repr(C, align(8))]
struct Control {
    bytes: [MaybeUninit<u8>; Self::BYTES],
}

impl Control {
    // SAFETY: CMSG_SPACE is arithmetic on its argument.
    const BYTES: usize =
        unsafe { libc::CMSG_SPACE((MAX_FDS * size_of::<RawFd>()) as u32) } as usize;

    fn new() -> Self {
        Self { bytes: [MaybeUninit::zeroed(); Self::BYTES] }
    }
}

const _: () = assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());

/// Sends one message with up to [`MAX_FDS`] descriptors, which stay the caller's.
///
/// The message has at least one byte: an empty one would look like the end of the stream. Errors
/// are the system's: EPIPE when the peer has closed, EMSGSIZE when the message is longer than the
/// socket takes, EAGAIN when it would have to wait.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: Wait,
) -> Result<()> {
    let sent = send_with(socket, message, fds, wait)?;
    if sent != message.len() {
        return Err(Error::Truncated { what: "message", capacity: sent, unit: "bytes" });
    }
    Ok(())
}

/// Sends as many bytes as a stream socket has room for, at least one, and returns how many bytes.
///
/// The descriptors go with the first byte. Otherwise as [`send`] without waiting.
pub fn send_some(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
    send_with(socket, message, fds, Wait::Never)
}

fn send_with(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: Wait,
) -> Result<usize> {
    if message.is_empty() {
        return Err(bad_size("message", 0, "bytes", "it has at least one"));
    }
    if fds.len() > MAX_FDS {
        return Err(bad_size("message", fds.len(), "descriptors", "it carries at most 16"));
    }
    let mut control = Control::new();
    let mut part =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut header = header(&mut part);
    if !fds.is_empty() {
        let bytes = size_of_val(fds);
        header.msg_control = control.bytes.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE is arithmetic; the result is at most `Control::BYTES`.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes as u32) } as _;
        // SAFETY: the control buffer has room for one header and `bytes` bytes of descriptors, and
        // is aligned for the header; `CMSG_FIRSTHDR` is not null for a buffer of that size.
        // BorrowedFd is a transparent RawFd, so the slice is an array of those.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(first), bytes);
        }
    }
    let flags = libc::MSG_NOSIGNAL | wait_flag(wait);
    // SAFETY: the header points to the message and the control data, which outlive the call.
    retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) })
        .map_err(Error::os("sendmsg"))
}

/// Receives one message into the caller's buffer.
///
/// A message longer than the buffer, or with more than [`MAX_FDS`] descriptors, is thrown away
/// and reported as [`Error::Truncated`]; so are its descriptors, which are closed.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: Wait) -> Result<Received> {
    let mut control = Control::new();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut header = header(&mut part);
    header.msg_control = control.bytes.as_mut_ptr().cast();
    header.msg_controllen = Control::BYTES as _;
    let flags = libc::MSG_CMSG_CLOEXEC | wait_flag(wait);
    // SAFETY: the header points to the buffer and the control room, which outlive the call.
    let bytes = retry(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })
        .map_err(Error::os("recvmsg"))?;
    // SAFETY: the kernel has just filled the header's control data.
    let fds = unsafe { take_fds(&header) };
    if header.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > MAX_FDS {
        return Err(Error::Truncated {
            what: "control data",
            capacity: MAX_FDS,
            unit: "descriptors",
        });
    }
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(Error::Truncated { what: "message", capacity: buffer.len(), unit: "bytes" });
    }
    Ok(Received { bytes, fds })
}

/// Whether descriptors come with the next message, which stays where it is.
///
/// This process does not refer to them afterwards. The receiver of a descriptor may be the last process that has it,
/// and has to close it then, which takes as long as its creator likes (a file system in user space, a TCP connection
/// that lingers): a thread that must not wait does not receive such a message at all.
///
/// # Errors
/// [`Error::would_block`] is true where there is no message.
pub fn brings_descriptors(socket: BorrowedFd<'_>) -> Result<bool> {
    let mut nothing = [0; 0];
    let mut part = libc::iovec { iov_base: nothing.as_mut_ptr().cast(), iov_len: 0 };
    let mut header = header(&mut part);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the header points to a buffer of no bytes and has no control room.
    retry(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })
        .map_err(Error::os("recvmsg(MSG_PEEK)"))?;
    Ok(header.msg_flags & libc::MSG_CTRUNC != 0)
}

/// Whether descriptors may lie in the messages that a socket of ours has not received yet.
///
/// False is certain. Where the kernel does not tell (before 5.6, or without /proc) it is true.
pub fn may_hold_descriptors(socket: BorrowedFd<'_>) -> bool {
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", socket.as_raw_fd()));
    let lines = told.as_deref().unwrap_or_default().lines();
    lines.filter_map(|line| line.strip_prefix("scm_fds:")).map(str::trim).next() != Some("0")
}

/// `include/uapi/asm-generic/socket.h`, the same on x86-64 and aarch64.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes the kernel refuse descriptors that others send to a Unix socket of ours, with EPERM; a listening one's
/// connections have that from the first moment, those that are made from now on.
///
/// False where the kernel cannot (before 6.16).
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> Result<bool> {
    let none: libc::c_int = 0;
    // SAFETY: the option is an integer, of the size stated.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const none).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match Errno::result(result) {
        Ok(_) => Ok(true),
        Err(Errno::ENOPROTOOPT) => Ok(false),
        Err(errno) => Err(Error::Os { call: "setsockopt(SO_PASSRIGHTS)", errno }),
    }
}

/// Whether the kernel refuses descriptors that others send to a Unix socket of ours.
pub fn refuses_descriptors(socket: BorrowedFd<'_>) -> bool {
    let mut passes: libc::c_int = 1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: there is room for an integer, of the size stated.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut passes).cast(),
            &raw mut length,
        )
    };
    result == 0 && passes == 0
}

/// Whether the peer of a Unix socket has read everything that was sent to it.
pub fn is_read(socket: BorrowedFd<'_>) -> Result<bool> {
    Ok(unread(socket)? == 0)
}

/// Memory that the kernel keeps for unread messages to the peer of a Unix socket, in bytes: for each message more
/// than its length.
pub fn unread(socket: BorrowedFd<'_>) -> Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the ioctl writes one integer, to where it is told.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    Errno::result(result).map_err(Error::os("ioctl(SIOCOUTQ)"))?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Takes possession of all descriptors in a received header's control data.
///
/// # Safety
/// The header was filled by `recvmsg`, its control data is still there, and this is the first call
/// for it.
unsafe fn take_fds(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote well-formed control data and set its length; the macros walk it and
    // end with null. Each descriptor in it is new in our table and nobody else's.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data: *const RawFd = libc::CMSG_DATA(at).cast();
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    fds
}

/// A message header with one part, no address and no control data.
fn header(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all-zero is a valid header: null pointers with zero lengths.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header
}

fn wait_flag(wait: Wait) -> i32 {
    match wait {
        Wait::AsSocket => 0,
        Wait::Never => libc::MSG_DONTWAIT,
    }
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
    loop {
        match Errno::result(call()) {
            Err(Errno::EINTR) => {}
            result => return result.map(|bytes| bytes as usize),
        }
    }
}

fn bad_size(object: &'static str, value: usize, unit: &'static str, rule: &'static str) -> Error {
    Error::BadSize { object, value: value as u64, unit, rule }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use nix::unistd::{close, pipe, read, write};

    use super::*;

    #[test]
    fn a_message_arrives_with_its_descriptors_in_order() {
        let (one, two) = pair().unwrap();
        let pipes: Vec<_> = (0..MAX_FDS).map(|_| pipe().unwrap()).collect();
        let writers: Vec<_> = pipes.iter().map(|(_, writer)| writer.as_fd()).collect();
        send(one.as_fd(), b"hello", &writers, Wait::AsSocket).unwrap();

        let mut buffer = [0; 16];
        let received = receive(two.as_fd(), &mut buffer, Wait::AsSocket).unwrap();
        assert_eq!(&buffer[..received.bytes], b"hello");
        assert_eq!(received.fds.len(), MAX_FDS);
        for (number, (fd, (reader, _))) in received.fds.iter().zip(&pipes).enumerate() {
            let flags = fcntl(fd, FcntlArg::F_GETFD).unwrap();
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            write(fd, &[number as u8]).unwrap();
            let mut byte = [0xff];
            read(reader, &mut byte).unwrap();
            assert_eq!(byte, [number as u8]);
        }
    }

    #[test]
    fn message_bounds_are_kept_and_the_end_is_seen() {
        let (one, two) = pair().unwrap();
        send(one.as_fd(), b"a", &[], Wait::Never).unwrap();
        send(one.as_fd(), b"bc", &[], Wait::Never).unwrap();
        drop(one);
        let mut buffer = [0; 16];
        for expected in [1, 2, 0, 0] {
            let received = receive(two.as_fd(), &mut buffer, Wait::AsSocket).unwrap();
            assert_eq!((received.bytes, received.fds.len()), (expected, 0));
        }
        let gone = send(two.as_fd(), b"x", &[], Wait::AsSocket).unwrap_err();
        assert_eq!(gone.errno(), Some(Errno::EPIPE));
    }

    /// Whether a descriptor can be read or written, and whether it has ended.
    fn ready(fd: &OwnedFd) -> PollFlags {
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::ZERO).unwrap();
        fds[0].revents().unwrap()
    }

    #[test]
    fn who_only_reads_is_never_ready_to_write() {
        let (writer, reader) = one_way().unwrap();
        assert_eq!(ready(&reader), PollFlags::empty());
        for record in [b"one", b"two"] {
            send(writer.as_fd(), record, &[], Wait::Never).unwrap();
        }
        assert_eq!(ready(&reader), PollFlags::POLLIN);
        let mut buffer = [0; 8];
        assert_eq!(read(&reader, &mut buffer), Ok(3), "records keep their bounds");
        assert_eq!(ready(&reader), PollFlags::POLLIN);
        assert!(!is_read(writer.as_fd()).unwrap());
        assert_eq!(read(&reader, &mut buffer), Ok(3));
        assert_eq!(ready(&reader), PollFlags::empty());
        assert!(is_read(writer.as_fd()).unwrap());
        // A larger buffer of its own does it no good: nothing can be written.
        setsockopt(&reader, sockopt::SndBuf, &(1 << 20)).unwrap();
        let said = send(reader.as_fd(), b"x", &[reader.as_fd()], Wait::Never).unwrap_err();
        assert_eq!(said.errno(), Some(Errno::EPIPE));
    }

    #[test]
    fn who_only_reads_is_never_ready_to_write_while_the_writer_waits_for_room() {
        let (writer, reader) = one_way().unwrap();
        while send(writer.as_fd(), &[0; 1024], &[], Wait::Never).is_ok() {
            assert_eq!(ready(&reader), PollFlags::POLLIN);
        }
        let mut fds = [PollFd::new(writer.as_fd(), PollFlags::POLLOUT)];
        assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(0));
        while ready(&reader) == PollFlags::POLLIN {
            read(&reader, &mut [0; 1024]).unwrap();
        }
        assert_eq!(ready(&reader), PollFlags::empty());
        assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(1));
    }

    #[test]
    fn the_end_of_the_writer_is_seen_behind_what_is_unread() {
        let (writer, reader) = one_way().unwrap();
        send(writer.as_fd(), b"last", &[], Wait::Never).unwrap();
        drop(writer);
        let ended = ready(&reader);
        assert!(ended.contains(PollFlags::POLLIN | PollFlags::POLLHUP), "{ended:?}");
        assert!(!ended.contains(PollFlags::POLLERR), "{ended:?}");
        let mut buffer = [0; 8];
        for expected in [4, 0, 0] {
            assert_eq!(read(&reader, &mut buffer), Ok(expected));
        }
    }

    #[test]
    fn who_reads_of_a_writer_that_was_killed_is_told_so_once_before_what_is_unread() {
        let (writer, reader) = one_way().unwrap();
        send(writer.as_fd(), b"last", &[], Wait::Never).unwrap();
        close(writer.as_fd().as_raw_fd()).unwrap();
        std::mem::forget(writer);
        let ended = ready(&reader);
        let flags = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        assert!(ended.contains(flags), "{ended:?}");
        let mut buffer = [0; 8];
        assert_eq!(read(&reader, &mut buffer), Err(Errno::ECONNRESET));
        for expected in [4, 0, 0] {
            assert_eq!(read(&reader, &mut buffer), Ok(expected));
        }
        let ended = ready(&reader);
        assert!(!ended.contains(PollFlags::POLLERR), "{ended:?}");
    }

    #[test]
    fn what_the_peer_has_not_read_is_known() {
        let (one, two) = pair().unwrap();
        assert!(is_read(one.as_fd()).unwrap());
        for _ in 0..2 {
            send(one.as_fd(), b"x", &[two.as_fd()], Wait::Never).unwrap();
        }
        for expected in [false, true] {
            receive(two.as_fd(), &mut [0; 4], Wait::Never).unwrap();
            assert_eq!(is_read(one.as_fd()).unwrap(), expected);
        }
    }

    #[test]
    fn descriptors_are_seen_before_they_are_received() {
        let (one, two) = pair().unwrap();
        assert!(brings_descriptors(two.as_fd()).unwrap_err().would_block());
        assert!(!may_hold_descriptors(two.as_fd()));
        let (reader, writer) = pipe().unwrap();
        send(one.as_fd(), b"plain", &[], Wait::Never).unwrap();
        send(one.as_fd(), b"x", &[writer.as_fd()], Wait::Never).unwrap();
        drop(writer);
        assert!(may_hold_descriptors(two.as_fd()));
        assert!(!brings_descriptors(two.as_fd()).unwrap());
        receive(two.as_fd(), &mut [0; 8], Wait::Never).unwrap();
        for _ in 0..2 {
            assert!(brings_descriptors(two.as_fd()).unwrap());
        }
        assert!(!is_read(one.as_fd()).unwrap(), "the message is still there");
        drop(two);
        assert!(all_writers_are_closed(&reader));
    }

    #[test]
    fn descriptors_are_refused_where_the_kernel_can() {
        let (one, two) = pair().unwrap();
        let (reader, _writer) = pipe().unwrap();
        assert!(!refuses_descriptors(two.as_fd()));
        let refuses = refuse_descriptors(two.as_fd()).unwrap();
        assert_eq!(refuses_descriptors(two.as_fd()), refuses);
        let sent = send(one.as_fd(), b"x", &[reader.as_fd()], Wait::Never);
        assert_eq!(sent.err().and_then(|error| error.errno()), refuses.then_some(Errno::EPERM));
        send(one.as_fd(), b"y", &[], Wait::Never).unwrap();
    }

    #[test]
    fn a_call_that_must_not_wait_says_so() {
        let (one, two) = pair().unwrap();
        assert!(receive(two.as_fd(), &mut [0; 4], Wait::Never).unwrap_err().would_block());
        let full = loop {
            if let Err(error) = send(one.as_fd(), &[0; 4096], &[], Wait::Never) {
                break error;
            }
        };
        assert!(full.would_block());
    }

    /// Whether the last writer of a pipe is gone, which its reader sees as end of file.
    fn all_writers_are_closed(reader: &OwnedFd) -> bool {
        read(reader, &mut [0]) == Ok(0)
    }

    #[test]
    fn descriptors_of_a_message_that_is_too_long_are_closed() {
        let (one, two) = pair().unwrap();
        let (reader, writer) = pipe().unwrap();
        send(one.as_fd(), b"too long", &[writer.as_fd()], Wait::AsSocket).unwrap();
        drop(writer);
        let refused = receive(two.as_fd(), &mut [0; 4], Wait::AsSocket).unwrap_err();
        assert!(matches!(refused, Error::Truncated { capacity: 4, .. }));
        assert!(all_writers_are_closed(&reader));
    }

    #[test]
    fn descriptors_that_are_too_many_are_all_closed() {
        let (one, two) = pair().unwrap();
        let (reader, writer) = pipe().unwrap();
        let fds = [writer.as_raw_fd(); MAX_FDS + 5];
        let control = [ControlMessage::ScmRights(&fds)];
        let parts = [std::io::IoSlice::new(b"x")];
        sendmsg::<()>(one.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();
        close(writer).unwrap();
        let refused = receive(two.as_fd(), &mut [0; 4], Wait::AsSocket).unwrap_err();
        assert!(matches!(refused, Error::Truncated { what: "control data", .. }), "{refused}");
        assert!(all_writers_are_closed(&reader));
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let (one, _two) = pair().unwrap();
        let too_many = [one.as_fd(); MAX_FDS + 1];
        assert!(matches!(
            send(one.as_fd(), b"x", &too_many, Wait::AsSocket),
            Err(Error::BadSize { value: 17, .. })
        ));
        assert!(matches!(
            send(one.as_fd(), b"", &[], Wait::AsSocket),
            Err(Error::BadSize { value: 0, .. })
        ));
    }
}
