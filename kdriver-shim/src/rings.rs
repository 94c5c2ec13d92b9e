//! A client's ring memory: one sealed memfd, and an allocator inside it.
//!
//! The memfd is sparse: pages cost memory from their first use until their ring is freed, when a
//! hole is punched, a piece at a time where the ring is large. Some of the smallest rings are wiped
//! instead, and keep their page for the next: a program that makes and destroys queue pairs then has
//! no page made anew. Allocation is in whole pages, which are zero unless the client has written to
//! them while they were free. The client maps all of the memfd and may scribble where it likes: that
//! harms its own queues only.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use card_driver::spans::{FreeSpans, Span};
use hostmem::fdpass::duplicate;
use hostmem::{Access, SharedMapping, memfd};
use nix::fcntl::{FallocateFlags, fallocate};
use shim_abi::CARD_STATES_BYTES;

use crate::error::{Error, RINGS};

/// Bytes of a client's ring memory.
pub const RING_MEMORY_BYTES: u64 = 1 << 30;

/// Bytes of it that rings can have.
pub const RING_BYTES: u64 = RING_MEMORY_BYTES - CARD_STATES_BYTES;

/// Bytes whose pages are given back to the kernel at a time: others wait for as much.
const PIECE: u64 = 4 << 20;

const PAGE: u64 = 4096;
/// Rings of a page that are kept for the next, at most: they are given back in one turn.
const KEPT: usize = (PIECE / PAGE) as usize;
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
const BLOCK: u64 = 64;

/// A client's ring memory.
#[derive(Debug)]
pub struct RingMemory {
    fd: OwnedFd,
    mapping: Arc<SharedMapping>,
    free: FreeSpans,
    /// Spans that were given back and may still have pages.
    used: VecDeque<Span>,
    /// Rings of a page that were given back and wiped.
    kept: Vec<Span>,
    /// Bytes that [`Self::empty_some`] has been at.
    emptied: u64,
}

impl RingMemory {
    /// Makes ring memory for one client.
    ///
    /// # Errors
    /// [`Error::Memory`] when the memfd cannot be made or mapped.
    pub fn new() -> Result<Self, Error> {
        let bytes = usize::try_from(RING_MEMORY_BYTES)
            .map_err(|_| Error::Unsupported("ring memory needs a 64-bit system".into()))?;
        let fd = memfd::create("balboad-rings", bytes)?;
        let mapping = Arc::new(SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite)?);
        let free = FreeSpans::new(Span { start: CARD_STATES_BYTES, length: RING_BYTES });
        let (used, kept) = Default::default();
        Ok(Self { fd, mapping, free, used, kept, emptied: 0 })
    }

    /// Another descriptor of the memfd, to be handed to the client.
    ///
    /// # Errors
    /// [`Error::Os`] when descriptors run out.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        duplicate(self.fd.as_fd()).map_err(Error::os("dup of a descriptor"))
    }

    /// The memory in balboad's own address space.
    #[must_use]
    pub fn mapping(&self) -> &Arc<SharedMapping> {
        &self.mapping
    }

    /// Tells the client by a state word whether it has lost the card whose that is.
    pub fn set_lost(&self, word: u32, lost: bool) {
        let offset = shim_abi::card_state(word).and_then(|offset| usize::try_from(offset).ok());
        let stored = offset.map(|offset| self.mapping.store_release_u32(offset, lost.into()));
        debug_assert!(matches!(stored, Some(Ok(()))), "there is no state word {word}");
    }

    /// Bytes a ring of `blocks` blocks behind its record takes.
    #[must_use]
    pub fn ring_bytes(blocks: u64) -> Option<u64> {
        blocks.checked_add(1)?.checked_mul(BLOCK)?.checked_next_multiple_of(PAGE)
    }

    /// Takes space of `bytes` bytes, a multiple of the page.
    ///
    /// # Errors
    /// [`Error::Quota`] when there is none of that size in one piece; perhaps there is once
    /// [`Self::tidy`] has nothing left to do.
    pub fn allocate(&mut self, bytes: u64) -> Result<Span, Error> {
        let kept = (bytes == PAGE).then(|| self.kept.pop()).flatten();
        if let Some(span) = kept.or_else(|| self.free.take(bytes, PAGE, 0)) {
            return Ok(span);
        }
        // The rest may lie around them.
        std::mem::take(&mut self.kept).into_iter().for_each(|kept| self.free(kept));
        self.free.take(bytes, PAGE, 0).ok_or(Error::Quota {
            card: None,
            resource: RINGS,
            used: RING_BYTES.saturating_sub(self.free.free_bytes()),
            asked: bytes,
            limit: RING_BYTES,
        })
    }

    /// Gives back space that the card no longer uses; [`Self::tidy`] frees that of a large ring.
    pub fn release(&mut self, span: Span) {
        if span.length > PIECE {
            self.used.push_back(span);
        } else if span.length == PAGE && self.kept.len() < KEPT && self.wipe(span).is_ok() {
            self.kept.push(span);
        } else {
            self.free(span);
        }
    }

    fn wipe(&self, page: Span) -> hostmem::Result<()> {
        self.mapping.write_bytes(usize::try_from(page.start).unwrap_or(usize::MAX), &ZEROS)
    }

    /// Releases many spans, as [`Self::release`] one: all of them come free with [`Self::tidy`].
    pub fn release_all(&mut self, spans: Vec<Span>) {
        self.used.extend(spans);
    }

    /// Whether there is space that was given back and is not free yet.
    #[must_use]
    pub fn is_untidy(&self) -> bool {
        !self.used.is_empty()
    }

    /// Frees one piece that a client has given back.
    pub fn tidy(&mut self) {
        let Some(Span { start, length }) = self.used.pop_front() else { return };
        let piece = length.min(PIECE);
        self.free(Span { start, length: piece });
        if length > piece {
            let (start, length) = (start.saturating_add(piece), length.saturating_sub(piece));
            self.used.push_front(Span { start, length });
        }
    }

    /// Goes on with the end of all this memory, which takes long where it ends all at once; whether
    /// that was the last piece. Must be called when neither balboad nor the card uses it any more. The kernel
    /// gets back all of it but the part that the client still has mapped.
    pub fn empty_some(&mut self, is_mapped: bool) -> bool {
        let start = self.emptied.min(RING_MEMORY_BYTES);
        let length = RING_MEMORY_BYTES.saturating_sub(start).min(PIECE);
        if length > 0 && is_mapped {
            // Both are below RING_MEMORY_BYTES and fit; the rest goes with the mapping.
            let [start, length] = [start, length].map(|n| usize::try_from(n).unwrap_or(0));
            let _ = self.mapping.forget_pages(start, length);
        } else if length > 0 {
            // The rest goes with the memfd.
            let _ = self.punch(Span { start, length });
        }
        self.emptied = start.saturating_add(length);
        self.emptied >= RING_MEMORY_BYTES
    }

    fn free(&mut self, span: Span) {
        if let Err(error) = self.punch(span) {
            log::warn!("ring memory at {:#x} stays allocated: {error}", span.start);
        }
        self.free.give(span);
    }

    fn punch(&self, span: Span) -> Result<(), Error> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // Both are below RING_MEMORY_BYTES and fit.
        let [start, length] = [span.start, span.length].map(|n| i64::try_from(n).unwrap_or(0));
        fallocate(&self.fd, flags, start, length).map_err(Error::os("fallocate of ring memory"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn a_ring_is_zero_where_an_earlier_one_was() {
        let mut rings = RingMemory::new().unwrap();
        let bytes = RingMemory::ring_bytes(64).unwrap();
        assert_eq!(bytes, 8192);
        let first = rings.allocate(bytes).unwrap();
        rings.mapping().store_relaxed_u64(first.start as usize + 4096, 7).unwrap();
        rings.release(first);
        let second = rings.allocate(bytes).unwrap();
        assert_eq!(second, first);
        assert_eq!(rings.mapping().load_relaxed_u64(first.start as usize + 4096).unwrap(), 0);
    }

    #[test]
    fn small_rings_keep_their_pages_up_to_a_limit_and_while_there_is_other_space() {
        let mut rings = RingMemory::new().unwrap();
        let pages = |rings: &RingMemory| fstat(&rings.fd).unwrap().st_blocks / 8;
        let used = |rings: &mut RingMemory, count: usize| -> Vec<Span> {
            let taken = (0..count).map(|_| rings.allocate(PAGE).unwrap());
            let taken: Vec<_> = taken.collect();
            for span in &taken {
                let at = span.start as usize + 8;
                assert_eq!(rings.mapping().load_relaxed_u64(at), Ok(0));
                rings.mapping().store_relaxed_u64(at, 7).unwrap();
            }
            taken
        };
        let first = used(&mut rings, 2 * KEPT);
        assert_eq!(pages(&rings), 2 * KEPT as i64);
        first.into_iter().for_each(|span| rings.release(span));
        assert_eq!(pages(&rings), KEPT as i64);
        let second = used(&mut rings, KEPT);
        assert_eq!(pages(&rings), KEPT as i64, "no page is made anew");
        assert_eq!(second.iter().map(|span| span.start).collect::<BTreeSet<_>>().len(), KEPT);
        second.into_iter().for_each(|span| rings.release(span));
        assert_eq!(rings.allocate(RING_BYTES).unwrap().length, RING_BYTES);
        assert_eq!(pages(&rings), 0);
    }

    #[test]
    fn a_large_ring_is_freed_piece_by_piece() {
        let mut rings = RingMemory::new().unwrap();
        let bytes = RingMemory::ring_bytes(1 << 22).unwrap();
        let ring = rings.allocate(bytes).unwrap();
        let others = rings.free.free_bytes();
        let word = (ring.start + bytes) as usize - 4096;
        rings.mapping().store_relaxed_u64(word, 7).unwrap();
        rings.release(ring);
        let mut freed = others;
        while rings.is_untidy() {
            assert_eq!(rings.free.free_bytes(), freed);
            rings.tidy();
            freed = (freed + PIECE).min(others + bytes);
        }
        assert_eq!(rings.free.free_bytes(), RING_BYTES);
        assert_eq!(rings.mapping().load_relaxed_u64(word).unwrap(), 0);
        assert_eq!(rings.allocate(RING_BYTES).unwrap().length, RING_BYTES);
    }

    /// KiB of a mapping that are mapped in this process.
    fn resident_kib(mapping: &SharedMapping) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let from = format!("{:x}-", mapping.address());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&from));
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn all_of_it_is_emptied_piece_by_piece() {
        let mut rings = RingMemory::new().unwrap();
        let words: Vec<usize> = (0..8).map(|n| n << 27).collect();
        words.iter().for_each(|at| rings.mapping().store_relaxed_u64(*at, 7).unwrap());
        assert!(resident_kib(rings.mapping()) >= 8 * 4);
        // As long as the client may have it mapped, it is only forgotten here.
        let pieces = (1..).find(|_| rings.empty_some(true)).unwrap();
        assert_eq!(pieces, RING_MEMORY_BYTES / PIECE);
        assert_eq!(resident_kib(rings.mapping()), 0);
        assert!(words.iter().all(|at| rings.mapping().load_relaxed_u64(*at) == Ok(7)));
        rings.emptied = 0;
        let pieces = (1..).find(|_| rings.empty_some(false)).unwrap();
        assert_eq!(pieces, RING_MEMORY_BYTES / PIECE);
        assert!(words.iter().all(|at| rings.mapping().load_relaxed_u64(*at) == Ok(0)));
    }

    #[test]
    fn the_largest_completion_queue_fits_and_two_of_half_the_memory_do_not() {
        let mut rings = RingMemory::new().unwrap();
        rings.allocate(RingMemory::ring_bytes(1 << 22).unwrap()).unwrap();
        let refused = rings.allocate(RING_MEMORY_BYTES).unwrap_err();
        assert!(refused.to_string().contains("bytes of rings"), "{refused}");
        assert_eq!(RingMemory::ring_bytes(u64::MAX), None);
    }
}
