//! A shared word that is looked at often: its place is checked once.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::Result;
use crate::mapping::SharedMapping;

/// A 32-bit word of a mapping, to be loaded.
///
/// A load is two instructions: the checks of [`SharedMapping`]'s own loads were made when the view
/// was.
#[derive(Debug, Clone)]
pub struct SharedWord {
    at: NonNull<AtomicU32>,
    // Keeps `at` mapped; `None` for a word of this program's own.
    _mapping: Option<Arc<SharedMapping>>,
}

// SAFETY: the word belongs to the process, is reached by atomic loads only, and stays mapped.
unsafe impl Send for SharedWord {}
// SAFETY: as above.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// Views the word at `offset`, a multiple of 4.
    pub fn new(mapping: Arc<SharedMapping>, offset: usize) -> Result<Self> {
        let at = mapping.span("32-bit word", offset, 4, 4)?.cast();
        Ok(Self { at, _mapping: Some(mapping) })
    }

    /// A word of this program, in place of one that another process shares.
    pub fn constant(word: &'static AtomicU32) -> Self {
        Self { at: NonNull::from(word), _mapping: None }
    }

    /// Loads the word with no order against other accesses.
    #[inline(always)]
    pub fn load_relaxed(&self) -> u32 {
        // SAFETY: the place was checked, and is mapped as long as `self` lives or for ever.
        u32::from_le(unsafe { self.at.as_ref() }.load(Ordering::Relaxed))
    }

    /// Loads the word; later loads see all stores of its writer before the release store.
    #[inline(always)]
    pub fn load_acquire(&self) -> u32 {
        let word = self.load_relaxed();
        // As in the mapping's own loads: an acquire load of read-only memory might not be a load.
        fence(Ordering::Acquire);
        word
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{Access, Error, memfd};

    #[test]
    fn a_word_is_seen_as_it_is_stored_and_only_where_it_can_be() {
        let fd = memfd::create("word", 4096).unwrap();
        let mapping = SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadWrite).unwrap();
        let mapping = Arc::new(mapping);
        let word = SharedWord::new(Arc::clone(&mapping), 4092).unwrap();
        mapping.store_release_u32(4092, 7).unwrap();
        assert_eq!((word.load_relaxed(), word.load_acquire()), (7, 7));
        let view = |offset| SharedWord::new(Arc::clone(&mapping), offset);
        assert!(matches!(view(4096), Err(Error::OutOfRange { .. })));
        assert!(matches!(view(2), Err(Error::Misaligned { .. })));
        static OWN: AtomicU32 = AtomicU32::new(9);
        assert_eq!(SharedWord::constant(&OWN).load_acquire(), 9);
    }
}
