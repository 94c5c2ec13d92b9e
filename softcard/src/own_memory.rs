//! The card's own memory, of which each vFPGA has a part.

use std::cell::OnceCell;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use hostmem::{Access, SharedMapping, memfd};

use crate::WINDOWS;

/// Addresses from here on, both those that an MMU takes and those that it returns, are of this memory.
pub(crate) const OWN_MEMORY: u64 = 1 << 63;

/// The start of addresses without memory, of either kind: reads give zeros, and writes are lost.
pub(crate) const NULL_MEMORY: u64 = 3 << 62;

/// Bytes of it that each vFPGA has.
pub(crate) const OWN_BYTES: u32 = 4 << 20;

/// It is there from when it is first wanted on.
#[derive(Debug, Default)]
pub(crate) struct OwnMemory(OnceCell<Arc<SharedMapping>>);

/// The card's own memory from an address on.
pub(crate) struct Part<'a> {
    pub(crate) mapping: &'a Arc<SharedMapping>,
    pub(crate) offset: usize,
    /// Bytes from there on.
    pub(crate) left: u64,
}

impl OwnMemory {
    /// Makes it, where it is not there yet; whether it is there now.
    pub(crate) fn make(&self) -> bool {
        let bytes = (OWN_BYTES as usize).saturating_mul(usize::from(WINDOWS));
        if self.0.get().is_none() {
            let made = memfd::create("softcard-memory", bytes)
                .and_then(|fd| SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite));
            match made {
                Ok(mapping) => drop(self.0.set(Arc::new(mapping))),
                Err(error) => log::error!("the card has no memory of its own: {error}"),
            }
        }
        self.0.get().is_some()
    }

    /// The part at an address.
    pub(crate) fn at(&self, address: u64) -> Option<Part<'_>> {
        let offset = address.checked_sub(OWN_MEMORY)?;
        let mapping = self.0.get()?;
        let left =
            u64::try_from(mapping.len()).ok()?.checked_sub(offset).filter(|left| *left > 0)?;
        Some(Part { mapping, offset: usize::try_from(offset).ok()?, left })
    }
}
