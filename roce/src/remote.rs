//! Memory that a peer names.

use crate::wire::reth;

/// A range of registered memory, as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    pub rkey: u32,
    /// The virtual address of its first byte.
    pub va: u64,
    pub length: u32,
}

impl From<reth::Repr> for RemoteRange {
    fn from(header: reth::Repr) -> Self {
        Self { rkey: header.rkey, va: header.va, length: header.dma_length }
    }
}
