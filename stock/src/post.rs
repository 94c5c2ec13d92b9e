//! A driver's post: the two halves of a command.

use fpga_regs::coyote::vfpga::{Command, Stream};

use crate::host::Space;

/// One half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Half {
    pub(crate) command: Command,
    pub(crate) vaddr: u64,
}

impl Half {
    pub(crate) fn new(control: u64, vaddr: u64) -> Self {
        Self { command: Command::decode(control), vaddr: vaddr & VADDR }
    }

    /// The address with the stream and its number above it.
    pub(crate) fn tagged(&self) -> u64 {
        let Command { stream, dest, .. } = self.command;
        self.vaddr | u64::from(dest & 0xf) << 48 | u64::from(stream.0 & 3) << 52
    }
}

/// Bits of an address.
pub(crate) const VADDR: u64 = (1 << 48) - 1;

/// A command that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    pub(crate) first: Half,
    pub(crate) second: Half,
}

/// The kind of a post, by its active halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostKind {
    /// From or to the host, or both: it is the logic's, and the example's logic does nothing with it.
    Local {
        read: bool,
        write: bool,
    },
    Read,
    Write,
}

impl PostKind {
    /// The kind that active halves of a command make; `None` where neither is.
    pub(crate) fn of(first: Command, second: Command) -> Option<Self> {
        let is_remote = |half: Command| matches!(half.stream, Stream::Rdma | Stream::Tcp);
        match (first.start, second.start) {
            (false, false) => None,
            (true, false) if is_remote(first) => Some(Self::Read),
            (false, true) if is_remote(second) => Some(Self::Write),
            (read, write) => Some(Self::Local { read, write }),
        }
    }
}

impl Post {
    /// The QP that it is posted to.
    pub(crate) fn qpn(&self, vfpga: u8, kind: PostKind) -> u32 {
        let half = if kind == PostKind::Read { self.first } else { self.second };
        Space { vfpga, ctid: half.command.ctid }.qpn()
    }
}
