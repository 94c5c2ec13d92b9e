//! Many frames in one datagram, between two ports that both know them.
//!
//! A port that takes them has a second socket beside its own, at the same path with [`SUFFIX`] behind. A peer that finds
//! no socket there, as beside QEMU or an older card, sends frames one by one. So nothing is agreed on, and a program that
//! ends and comes again as another one is sent what that one takes.
//!
//! A datagram begins with a header of [`HEADER`] bytes: the number of its frames, and the length of each, as 16-bit
//! little-endian words; those of frames that are not there are 0. The frames follow, one behind the other.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use hostmem::fdpass;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockType, UnixAddr, recv, recvmsg, sendmsg};
use smallvec::SmallVec;

use super::{FRAME_CAPACITY, Frame, FramePool, MIN_FRAME};
use crate::socket::{Bound, Remote};

/// What follows a port's path in that of its second socket.
const SUFFIX: &str = ".bursts";

/// Bytes of the header.
const HEADER: usize = 64;

/// Frames of a datagram at most.
const MOST_FRAMES: usize = HEADER / 2 - 1;

/// Bytes of a datagram at most, as many as the kernel finds place for without looking for it.
const MOST_BYTES: usize = 1 << 16;

/// How long, in nanoseconds, frames leave one by one before the peer's second socket is looked for again.
const LOOK_AGAIN_NS: u64 = 100_000_000;

/// The second socket of a port, and that of its peer.
pub(super) struct Bursts {
    socket: Bound,
    remote: Remote,
    /// The time until which the peer is taken not to have one.
    absent_until: u64,
}

/// The fate of a datagram that has arrived.
pub(super) enum Datagram {
    /// Its frames were appended: so many.
    Frames(usize),
    /// It was none of ours, and was dropped.
    Bad,
    /// A signal came before it.
    Interruption,
    /// There is none.
    Nothing,
}

impl Bursts {
    /// Binds the second socket of the port at `local`, whose peer is at `remote`.
    ///
    /// # Errors
    /// As for the first one.
    pub(super) fn open(local: &Path, remote: &Path) -> io::Result<Self> {
        let remote = Remote::new(&beside(remote))?;
        let socket = Bound::new(&beside(local), SockType::Datagram)?;
        fdpass::refuse_descriptors(socket.as_fd()).map_err(io::Error::other)?;
        Ok(Self { socket, remote, absent_until: 0 })
    }

    /// The peer's second socket, if it may have one.
    pub(super) fn peer(&mut self, now: u64) -> Option<UnixAddr> {
        if self.absent_until > now {
            return None;
        }
        let found = self.remote.address().ok();
        if found.is_none() {
            self.miss(now);
        }
        found
    }

    /// Takes the peer to have no second socket for a while.
    pub(super) fn miss(&mut self, now: u64) {
        self.absent_until = now.saturating_add(LOOK_AGAIN_NS);
    }

    /// Appends the frames of the next datagram.
    pub(super) fn receive(&self, pool: &FramePool, into: &mut VecDeque<Frame>) -> Datagram {
        let mut header = [0; HEADER];
        // With MSG_TRUNC the returned length is that of the datagram.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        let peeked = self.take(&mut header, flags | MsgFlags::MSG_PEEK);
        let (total, lengths) = match peeked {
            Ok(total) => (total, lengths(&header, total)),
            Err(Errno::EINTR) => return Datagram::Interruption,
            Err(_) => return Datagram::Nothing,
        };
        let Some(lengths) = lengths else {
            // What was peeked at is the next datagram.
            let _ = self.take(&mut header, flags);
            return Datagram::Bad;
        };
        let mut frames: SmallVec<[Frame; 16]> = lengths.iter().map(|_| pool.take()).collect();
        let mut parts: SmallVec<[IoSliceMut<'_>; 32]> = SmallVec::new();
        parts.push(IoSliceMut::new(&mut header));
        for (frame, length) in frames.iter_mut().zip(&lengths) {
            frame.set_len(*length);
            parts.push(IoSliceMut::new(frame.as_mut_slice()));
        }
        let socket = self.socket.as_fd().as_raw_fd();
        let received = recvmsg::<()>(socket, &mut parts, None, flags).map(|message| message.bytes);
        drop(parts);
        if received == Ok(total) {
            into.extend(frames);
            return Datagram::Frames(lengths.len());
        }
        frames.into_iter().for_each(|frame| pool.put(frame));
        match received {
            Err(Errno::EINTR) => Datagram::Interruption,
            Err(_) => Datagram::Nothing,
            Ok(_) => Datagram::Bad,
        }
    }

    fn take(&self, into: &mut [u8], flags: MsgFlags) -> nix::Result<usize> {
        recv(self.socket.as_fd().as_raw_fd(), into, flags)
    }
}

impl AsFd for Bursts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The path of the second socket of the port at a path.
fn beside(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

/// Sends frames from the front of a burst in one datagram; how many it has, and whether it was sent.
///
/// The first is not shorter than [`MIN_FRAME`], nor is any that goes with it.
pub(super) fn send(
    socket: impl AsFd,
    burst: &VecDeque<Frame>,
    peer: &UnixAddr,
) -> (usize, nix::Result<usize>) {
    let mut header = [0; HEADER];
    let mut parts: SmallVec<[IoSlice<'_>; 32]> = SmallVec::new();
    let (mut total, mut count) = (HEADER, 0_u16);
    let (number, words) = header.split_at_mut(2);
    for (frame, word) in burst.iter().zip(words.chunks_exact_mut(2)) {
        let bytes = frame.as_slice();
        total = total.saturating_add(bytes.len());
        let fits = bytes.len() >= MIN_FRAME && (total <= MOST_BYTES || count == 0);
        let Some(length) = u16::try_from(bytes.len()).ok().filter(|_| fits) else { break };
        word.copy_from_slice(&length.to_le_bytes());
        parts.push(IoSlice::new(bytes));
        count = count.saturating_add(1);
    }
    number.copy_from_slice(&count.to_le_bytes());
    parts.insert(0, IoSlice::new(&header));
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let sent = sendmsg(socket.as_fd().as_raw_fd(), &parts, &[], flags, Some(peer));
    (usize::from(count), sent)
}

/// The lengths of a datagram's frames, by its header; `None` where it is no datagram of so many bytes that a port sends.
fn lengths(header: &[u8; HEADER], total: usize) -> Option<SmallVec<[usize; MOST_FRAMES]>> {
    let mut words = header.chunks_exact(2).map(|word| match word {
        [low, high] => usize::from(u16::from_le_bytes([*low, *high])),
        _ => 0,
    });
    let count = words.next().filter(|count| (1..=MOST_FRAMES).contains(count))?;
    let lengths: SmallVec<[usize; MOST_FRAMES]> = words.by_ref().take(count).collect();
    let is_frame = |length: &usize| (MIN_FRAME..=FRAME_CAPACITY).contains(length);
    let sum = lengths.iter().fold(HEADER, |sum, length| sum.saturating_add(*length));
    let is_right = lengths.iter().all(is_frame) && words.all(|word| word == 0) && sum == total;
    is_right.then_some(lengths)
}
