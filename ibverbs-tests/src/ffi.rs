//! Calls into libibverbs, opened at run time as NCCL does: dlopen and dlvsym, no linking.
//!
//! The safe face of it keeps objects alive as long as others need them, and names memory only by
//! registered [`Region`]s, which own it; so a work request cannot lead the card, or an inline copy,
//! to memory that is not there.

#![expect(unsafe_code, reason = "libibverbs is a C library")]

use std::io;

mod ah;
pub mod attempt;
mod cancel;
mod connection;
mod descriptors;
mod device;
mod dm;
mod dmabuf;
mod fork;
mod library;
mod mapping;
mod null;
mod qp;
mod recv;
mod refused;
mod region;
mod srq;
mod userfault;
mod xrc;
mod xrcd;

pub use ah::Ah;
pub use cancel::When;
pub use connection::{CmEventType, EventChannel, Identifier};
pub use descriptors::descriptors_of;
pub use device::{
    AsyncEvent, Batch, Channel, Completion, Context, Cq, CqWishes, EVERYTHING, Pd, STANDARD,
    ThreadDomain,
};
pub use dm::{Dm, DmRegion};
pub use dmabuf::DmaBuf;
pub use fork::in_child;
pub use library::Library;
pub use mapping::Mapping;
pub use null::NullRegion;
pub use qp::{
    Atomic, AtomicOperation, Destination, GROUP_QPN, ListEnd, Operation, Patience, Peer, Qp,
    QpWishes, Send, Service, TO_INIT, TO_RTR, TO_RTS, Window, blank, gid_bytes,
};
pub use recv::Recv;
pub use refused::{NOT_OFFERED, NotOffered};
pub use region::{Piece, Region, Rereg};
pub use srq::Srq;
pub use xrcd::Domain;

/// A libibverbs call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {}", io::Error::from_raw_os_error(*errno))]
pub struct Failed {
    /// The call.
    pub call: &'static str,
    /// Its errno.
    pub errno: i32,
}

impl Failed {
    /// The failure that `errno` tells of.
    fn last(call: &'static str) -> Self {
        Self { call, errno: io::Error::last_os_error().raw_os_error().unwrap_or(0) }
    }

    /// For calls that return 0, or an errno, or −1 with errno set.
    fn check(call: &'static str, result: i32) -> Result<(), Self> {
        match result {
            0 => Ok(()),
            ..0 => Err(Self::last(call)),
            errno => Err(Self { call, errno }),
        }
    }
}
