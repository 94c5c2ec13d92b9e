//! Mappings of sealed memory files and of device memory, and detection of a fork.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use crate::lost::LossWatch;
use crate::{Error, PAGE_BYTES, Result};

mod fork;

pub use fork::ForkCanary;

/// The accesses that a mapping allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store is refused with [`Error::ReadOnly`].
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// A range of a sealed memory file in this process's memory, shared with all processes that map it.
///
/// Offsets are bytes from the start of the mapping. Words are little-endian in memory. Every
/// accessor checks its range and alignment; views that are checked once, for the data path, are in
/// [`crate::ring`]. Other processes may change the memory between two loads.
///
/// The mapping is not inherited over a fork: a child that touches it faults. Drop unmaps it (in
/// the process that mapped it only).
#[derive(Debug)]
pub struct SharedMapping {
    base: NonNull<u8>,
    bytes: NonZeroUsize,
    access: Access,
    epoch: u64,
    /// The watch of device memory, which may go away; none of other memory.
    watch: Option<LossWatch>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is reached by atomics only.
unsafe impl Send for SharedMapping {}
// SAFETY: as above: every access through `&self` is an atomic load or store.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `bytes` bytes of a memory file from `offset`, a multiple of the page size.
    ///
    /// Refused unless the file covers the range ([`Error::FileTooSmall`]) and is sealed against
    /// shrinking ([`Error::Unsealed`]): a file cut short by its other owner would turn an access
    /// into SIGBUS. The size is read after the seal was seen, so it cannot change any more.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, bytes: usize, access: Access) -> Result<Self> {
        let seals = seals(fd);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return Err(Error::Unsealed { seals: seals.bits() });
        }
        let stat = nix::sys::stat::fstat(fd).map_err(Error::os("fstat"))?;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let too_small = Error::FileTooSmall { file_bytes, offset, bytes };
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= file_bytes => {}
            _ => return Err(too_small),
        }
        Self::map(fd, offset, bytes, access)
    }

    /// Maps `bytes` bytes of a device's memory from `offset`, a multiple of the page size.
    ///
    /// The memory may go away under its users: it then reads as ones, and [`Self::is_lost`] says so
    /// from the first access on that found it gone.
    pub fn of_device(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Self> {
        let mut mapping = Self::map(fd, offset, bytes, access)?;
        mapping.watch = Some(LossWatch::new(mapping.address(), bytes)?);
        Ok(mapping)
    }

    /// Whether the mapping is of device memory, and an access has found it gone.
    pub fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(LossWatch::is_lost)
    }

    fn map(fd: BorrowedFd<'_>, offset: u64, bytes: usize, access: Access) -> Result<Self> {
        let length = NonZeroUsize::new(bytes).filter(|n| isize::try_from(n.get()).is_ok()).ok_or(
            Error::BadSize {
                object: "mapping",
                value: bytes as u64,
                unit: "bytes",
                rule: "it has at least one and at most half the address space",
            },
        )?;
        if offset % PAGE_BYTES as u64 != 0 {
            return Err(Error::Misaligned {
                object: "mapping of a memory file",
                offset,
                alignment: PAGE_BYTES,
            });
        }
        let file_offset = i64::try_from(offset).map_err(|_| Error::BadSize {
            object: "mapping",
            value: offset,
            unit: "bytes from the start of its file",
            rule: "files have less than 2^63",
        })?;
        let epoch = fork::epoch()?;
        let protection = match access {
            Access::ReadOnly => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing we use.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, file_offset) }
            .map_err(Error::os("mmap"))?;
        let mapping = Self { base: base.cast(), bytes: length, access, epoch, watch: None };
        // SAFETY: the range is the one just mapped, and the advice does not change its contents.
        unsafe { madvise(base, bytes, MmapAdvise::MADV_DONTFORK) }
            .map_err(Error::os("madvise(MADV_DONTFORK)"))?;
        Ok(mapping)
    }

    /// Ordinary memory in place of a memory file, for the interpreter, which knows no such files.
    #[cfg(miri)]
    pub(crate) fn in_heap(bytes: usize) -> Self {
        let bytes = NonZeroUsize::new(bytes).expect("a test maps something");
        // SAFETY: the layout is not empty.
        let base = unsafe { std::alloc::alloc_zeroed(Self::heap_layout(bytes)) };
        let base = NonNull::new(base).expect("the interpreter has memory");
        Self { base, bytes, access: Access::ReadWrite, epoch: 0, watch: None }
    }

    #[cfg(miri)]
    fn heap_layout(bytes: NonZeroUsize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes.get(), PAGE_BYTES).expect("a small size")
    }

    /// Size in bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.get()
    }

    /// The accesses that the mapping allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Address of the mapping in this process, to be named to the kernel or shown.
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Whether this process is the one that made the mapping, not a forked child of it.
    pub fn is_ours(&self) -> bool {
        fork::epoch().is_ok_and(|epoch| epoch == self.epoch)
    }

    /// Loads a word with no order against other accesses.
    pub fn load_relaxed_u32(&self, offset: usize) -> Result<u32> {
        Ok(u32::from_le(self.word_u32(offset)?.load(Ordering::Relaxed)))
    }

    /// Loads a word with no order against other accesses.
    pub fn load_relaxed_u64(&self, offset: usize) -> Result<u64> {
        Ok(u64::from_le(self.word_u64(offset)?.load(Ordering::Relaxed)))
    }

    /// Loads a word; later loads see all stores of its writer before the release store.
    pub fn load_acquire_u32(&self, offset: usize) -> Result<u32> {
        let word = self.load_relaxed_u32(offset)?;
        // An acquire load of memory that is mapped read-only is not promised to be a mere load;
        // a relaxed one followed by this fence is, and orders as much.
        fence(Ordering::Acquire);
        Ok(word)
    }

    /// Loads a word; later loads see all stores of its writer before the release store.
    pub fn load_acquire_u64(&self, offset: usize) -> Result<u64> {
        let word = self.load_relaxed_u64(offset)?;
        fence(Ordering::Acquire);
        Ok(word)
    }

    /// Stores a word with no order against other accesses.
    pub fn store_relaxed_u32(&self, offset: usize, value: u32) -> Result<()> {
        self.must_be_writable("shared word")?;
        self.word_u32(offset)?.store(value.to_le(), Ordering::Relaxed);
        Ok(())
    }

    /// Stores a word with no order against other accesses.
    pub fn store_relaxed_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.must_be_writable("shared word")?;
        self.word_u64(offset)?.store(value.to_le(), Ordering::Relaxed);
        Ok(())
    }

    /// Stores a word; a reader that acquire-loads it sees all stores before.
    pub fn store_release_u32(&self, offset: usize, value: u32) -> Result<()> {
        self.must_be_writable("shared word")?;
        self.word_u32(offset)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Stores a word; a reader that acquire-loads it sees all stores before.
    pub fn store_release_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.must_be_writable("shared word")?;
        self.word_u64(offset)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Copies bytes out of the mapping, from any offset, with no order between them.
    ///
    /// Aligned 8-byte words are each read in one piece.
    pub fn read_bytes(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.span("bytes", offset, into.len(), 1)?;
        let head = head_bytes(offset, into.len());
        let (first, rest) = into.split_at_mut(head);
        let mut at = offset;
        for byte in first {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        let mut words = rest.chunks_exact_mut(8);
        for chunk in &mut words {
            let word = self.aligned_word(at).load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_ne_bytes());
            at += 8;
        }
        for byte in words.into_remainder() {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// Copies bytes into the mapping, to any offset, with no order between them.
    ///
    /// Aligned 8-byte words are each written in one piece.
    pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.must_be_writable("bytes")?;
        self.span("bytes", offset, from.len(), 1)?;
        let head = head_bytes(offset, from.len());
        let (first, rest) = from.split_at(head);
        let mut at = offset;
        for &byte in first {
            self.byte(at).store(byte, Ordering::Relaxed);
            at += 1;
        }
        let mut words = rest.chunks_exact(8);
        for chunk in &mut words {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.aligned_word(at).store(u64::from_ne_bytes(word), Ordering::Relaxed);
            at += 8;
        }
        for &byte in words.remainder() {
            self.byte(at).store(byte, Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// Forgets where pages of the memory file are: they are looked up again at their next access. Their
    /// bytes stay.
    ///
    /// To unmap many pages that were used takes long, and forgetting them a piece at a time does not.
    pub fn forget_pages(&self, offset: usize, bytes: usize) -> Result<()> {
        let at = self.span("pages", offset, bytes, PAGE_BYTES)?;
        // SAFETY: the range is within the mapping, whose pages are those of a shared file: to drop
        // their mappings changes nothing that can be read there.
        unsafe { madvise(at.cast(), bytes, MmapAdvise::MADV_DONTNEED) }
            .map_err(Error::os("madvise(MADV_DONTNEED)"))
    }

    /// Checks that an object lies within the mapping and is aligned, and returns where it is.
    pub(crate) fn span(
        &self,
        object: &'static str,
        offset: usize,
        bytes: usize,
        alignment: usize,
    ) -> Result<NonNull<u8>> {
        if offset % alignment != 0 {
            return Err(Error::Misaligned { object, offset: offset as u64, alignment });
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len() => {
                // SAFETY: offset <= len, so the result lies within the mapping or at its end.
                Ok(unsafe { self.base.add(offset) })
            }
            _ => Err(Error::OutOfRange { object, offset, bytes, mapping_bytes: self.len() }),
        }
    }

    /// Refuses a store to a read-only mapping, which would end in SIGSEGV.
    pub(crate) fn must_be_writable(&self, object: &'static str) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly { object }),
        }
    }

    fn word_u32(&self, offset: usize) -> Result<&AtomicU32> {
        let at = self.span("32-bit word", offset, 4, 4)?;
        // SAFETY: `span` checked the range; the base is page-aligned and the offset a multiple of
        // four; the mapping lives as long as `self`; all accesses to it are atomic.
        Ok(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
    }

    fn word_u64(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.span("64-bit word", offset, 8, 8)?;
        // SAFETY: as in `word_u32`, with an offset that is a multiple of eight.
        Ok(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// The byte at an offset whose range was checked before.
    fn byte(&self, offset: usize) -> &AtomicU8 {
        debug_assert!(offset < self.len());
        // SAFETY: the callers have checked the whole range with `span`.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(offset)) }
    }

    /// The word at an offset whose range and alignment were checked before.
    fn aligned_word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0 && offset + 8 <= self.len());
        // SAFETY: the callers have checked the whole range with `span`, and step from a multiple
        // of eight in steps of eight.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

/// Seals of a memory file; none for a descriptor that cannot be sealed.
pub(crate) fn seals(fd: BorrowedFd<'_>) -> SealFlag {
    fcntl(fd, FcntlArg::F_GET_SEALS).map_or(SealFlag::empty(), SealFlag::from_bits_retain)
}

/// Bytes before the first aligned 8-byte word of a range, at most the range.
fn head_bytes(offset: usize, bytes: usize) -> usize {
    (offset.wrapping_neg() % 8).min(bytes)
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // Before another mapping can have the address.
        self.watch = None;
        #[cfg(miri)]
        // SAFETY: `in_heap` made it with this layout; files cannot be mapped there.
        unsafe {
            std::alloc::dealloc(self.base.as_ptr(), Self::heap_layout(self.bytes));
        }
        // A forked child never had the mapping; something else may be at its address by now.
        if cfg!(not(miri)) && self.is_ours() {
            // SAFETY: the range is the one `new` mapped, and views of it hold an `Arc` of us.
            let unmapped = unsafe { munmap(self.base.cast(), self.bytes.get()) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

#[cfg(test)]
mod tests;
