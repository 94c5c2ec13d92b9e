//! Memory that does not answer its reader or writer.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use verbs_sys::current::verbs as v;

use super::fuse::{self, silent_file};
use super::{ATTACKING, Opened, PATIENCE, stay};
use crate::data::link::ACCESS;
use crate::ffi::{Mapping, Operation, Patience, Recv, Region, Send};
use crate::mortal::say;

/// The line of a program when its objects are in error.
pub const IN_ERROR: &str = "in error";

/// The kind of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryKind {
    /// A file of a file system of the program's own.
    Fuse,
    /// The program's, whose faults it is told of.
    Userfault,
}

impl MemoryKind {
    /// The device node that such memory is made with.
    #[must_use]
    pub fn node(self) -> &'static str {
        match self {
            Self::Fuse => "/dev/fuse",
            Self::Userfault => "/dev/userfaultfd",
        }
    }
}

/// The use of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Use {
    /// It is sent.
    Send,
    /// It is received into.
    Receive,
    /// It is written elsewhere.
    Write,
    /// It is written to by the peer.
    Written,
    /// It is read into.
    Read,
    /// It is read by the peer.
    Offered,
}

impl Use {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Send, Self::Receive, Self::Write, Self::Written, Self::Read, Self::Offered];

    fn operation(self) -> Operation {
        match self {
            Self::Send | Self::Receive => Operation::Send,
            Self::Write | Self::Written => Operation::Write,
            Self::Read | Self::Offered => Operation::Read,
        }
    }

    /// Whether the memory is of the side that posts the send request.
    fn is_local(self) -> bool {
        matches!(self, Self::Send | Self::Write | Self::Read)
    }
}

/// The object that keeps memory from answering. Made while the program has one thread.
enum Silence {
    File(File),
    Node(PathBuf),
}

impl Silence {
    fn new(kind: MemoryKind, place: &Path, node: &Path) -> Result<Self> {
        Ok(match kind {
            MemoryKind::Fuse => Self::File(silent_file(place, node)?),
            MemoryKind::Userfault => Self::Node(node.to_owned()),
        })
    }

    /// Lets memory answer no more; the descriptor is to be kept.
    fn fall(&self, memory: &mut Mapping) -> Result<Option<OwnedFd>> {
        match self {
            Self::File(file) => {
                memory.become_file(file)?;
                Ok(None)
            }
            Self::Node(node) => Ok(Some(memory.withhold(node)?)),
        }
    }
}

/// Lets a card copy from such memory, or to it; says `in error` once the work request has failed.
///
/// # Errors
/// When a step of it is refused, or the work request succeeds.
pub fn used(kind: MemoryKind, by: Use, place: &Path, node: &Path) -> Result<()> {
    let silence = Silence::new(kind, place, node)?;
    let place = Opened::open("balboa0", 64)?;
    // To register it would be to wait for it.
    let silent = Region::new(&place.pd, fuse::SIZE, ACCESS, false)?;
    let _faults = silent.change(|memory| silence.fall(memory))?;
    let plain = Region::new(&place.pd, fuse::SIZE, ACCESS, false)?;
    let (local, remote) = match by.is_local() {
        true => (&silent, &plain),
        false => (&plain, &silent),
    };
    let (left, right) = (place.qp(4)?, place.qp(4)?);
    for (own, other) in [(&left, &right), (&right, &left)] {
        let peer = place.peer(other.number());
        own.init(ACCESS)?;
        own.receive_from(&peer)?;
        own.send_to(&peer, Patience::default())?;
    }
    let whole = |region: &Rc<Region>| vec![region.piece(0, fuse::SIZE)];
    right.post_recv(&Recv { wr_id: 1, pieces: whole(remote) })?;
    let request = Send {
        wr_id: 0,
        operation: by.operation(),
        pieces: whole(local),
        remote: (remote.address(), remote.rkey()),
        immediate: 0,
        flags: v::IBV_SEND_SIGNALED,
    };
    left.post_send(&[request]).map_err(|(failed, _)| failed)?;
    say(ATTACKING);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match place.cq.poll()? {
            Some(done) if done.wr_id == 0 => {
                ensure!(done.status != v::IBV_WC_SUCCESS, "it succeeds: {done:?}");
                break;
            }
            _ if Instant::now() > deadline => bail!("no completion within {PATIENCE:?}"),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    say(IN_ERROR);
    stay()
}
