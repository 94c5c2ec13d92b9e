//! Memory that a card reaches by DMA.

use std::sync::Arc;

use crate::{RemoteProcess, SharedMapping};

/// Memory behind a range of a card's addresses.
#[derive(Clone, Debug)]
pub enum DmaMemory {
    /// Memory mapped in this process: rings.
    Shared {
        /// The mapping.
        mapping: Arc<SharedMapping>,
        /// Byte offset of the range in it.
        offset: u64,
    },
    /// Memory of another process, which programs register.
    Process {
        /// The process; one and the same for all its ranges.
        process: Arc<RemoteProcess>,
        /// First byte there.
        address: u64,
    },
}
