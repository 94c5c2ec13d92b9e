//! Memory of this program, of every kind that can be registered.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr::{NonNull, null_mut};

use super::Failed;

/// Pages of memory that no other object refers to.
///
/// A card may write into them behind the compiler's back, so their bytes are only copied in and out,
/// and no reference to them is ever made.
#[derive(Debug)]
pub struct Mapping {
    memory: NonNull<u8>,
    length: usize,
    touchable: bool,
}

impl Mapping {
    /// Zeroed memory.
    ///
    /// # Errors
    /// When there is none.
    pub fn zeroed(length: usize) -> Result<Self, Failed> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(length, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// Zeroed memory that children share.
    ///
    /// # Errors
    /// When there is none.
    pub fn shared(length: usize) -> Result<Self, Failed> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        Self::new(length, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// Zeroed memory of huge pages; the length is a multiple of theirs.
    ///
    /// # Errors
    /// When the machine has set none aside.
    pub fn huge(length: usize) -> Result<Self, Failed> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        Self::new(length, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
    }

    /// Maps a file's first bytes, shared with all other mappings; the file must not be made shorter.
    ///
    /// # Errors
    /// When the file cannot be mapped.
    pub fn sharing(file: &File, length: usize) -> Result<Self, Failed> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Self::new(length, protection, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// A large mapping of little memory: each part of so many bytes, a divisor of the length, is the same
    /// beginning of a file.
    ///
    /// # Errors
    /// When the address space has no room for them, or the file cannot be mapped.
    pub fn repeating(file: &File, part: usize, length: usize) -> Result<Self, Failed> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = Self::new(length, libc::PROT_NONE, flags, -1)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        for at in (0..length).step_by(part) {
            // SAFETY: the part lies in the mapping that was just made, which nobody knows of yet.
            let now = unsafe {
                let place = mapping.memory.as_ptr().add(at).cast();
                libc::mmap(place, part, protection, flags, file.as_raw_fd(), 0)
            };
            if now == libc::MAP_FAILED {
                return Err(Failed::last("mmap"));
            }
        }
        Ok(mapping)
    }

    /// Addresses that can be read and for which there is no memory, as many as one likes. This
    /// program does not touch them.
    ///
    /// # Errors
    /// When the address space has no room for them.
    pub fn empty(length: usize) -> Result<Self, Failed> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut mapping = Self::new(length, libc::PROT_READ, flags, -1)?;
        mapping.do_not_touch();
        Ok(mapping)
    }

    /// A private copy of a file's first bytes. This program does not touch it.
    ///
    /// # Errors
    /// When the file cannot be mapped.
    pub fn of_file(file: &File, length: usize) -> Result<Self, Failed> {
        let mut mapping = Self::zeroed(length)?;
        mapping.become_file(file)?;
        Ok(mapping)
    }

    /// Puts a private copy of a file's first bytes in the place of the memory. This program does not
    /// touch it: the file may end, or never answer.
    ///
    /// # Errors
    /// When the file cannot be mapped.
    pub fn become_file(&mut self, file: &File) -> Result<(), Failed> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        self.replace(protection, libc::MAP_PRIVATE | libc::MAP_FIXED, file.as_raw_fd())
    }

    fn new(length: usize, protection: i32, flags: i32, file: i32) -> Result<Self, Failed> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
        let memory = unsafe { libc::mmap(null_mut(), length, protection, flags, file, 0) };
        match NonNull::new(memory.cast()) {
            Some(memory) if memory.as_ptr() != libc::MAP_FAILED.cast() => {
                Ok(Self { memory, length, touchable: true })
            }
            _ => Err(Failed::last("mmap")),
        }
    }

    /// Lets this program touch it no more.
    pub(super) fn do_not_touch(&mut self) {
        self.touchable = false;
    }

    /// Its first address.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Its size in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Its first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.memory
    }

    /// Leaves the addresses without memory; nothing else comes to lie there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn take_away(&mut self) -> Result<(), Failed> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        self.replace(libc::PROT_NONE, flags, -1)
    }

    /// Moves its pages to other addresses, where they are the answer; its own addresses have zeroed memory then.
    ///
    /// # Errors
    /// When there is no room for them, or the kernel refuses.
    pub fn move_pages(&mut self) -> Result<Self, Failed> {
        let elsewhere = Self::zeroed(self.length)?;
        let (from, to) = (self.memory.as_ptr().cast(), elsewhere.memory.as_ptr());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both ranges are our own mappings, of one length, to which no reference exists; both stay mapped.
        let moved = unsafe { libc::mremap(from, self.length, self.length, flags, to) };
        if moved == libc::MAP_FAILED { Err(Failed::last("mremap")) } else { Ok(elsewhere) }
    }

    /// Makes it read-only, for every writer. This program does not touch it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn become_read_only(&mut self) -> Result<(), Failed> {
        self.do_not_touch();
        // SAFETY: the range is our own mapping, to which no reference exists, and nobody here copies to it any more.
        let result =
            unsafe { libc::mprotect(self.memory.as_ptr().cast(), self.length, libc::PROT_READ) };
        if result == 0 { Ok(()) } else { Err(Failed::last("mprotect")) }
    }

    /// Maps other memory at the same addresses, which this program does not touch.
    fn replace(&mut self, protection: i32, flags: i32, file: i32) -> Result<(), Failed> {
        let memory = self.memory.as_ptr().cast();
        self.do_not_touch();
        // SAFETY: the range is our own mapping, to which no reference exists, and nobody copies to
        // or from it any more.
        let now = unsafe { libc::mmap(memory, self.length, protection, flags, file, 0) };
        if now == libc::MAP_FAILED { Err(Failed::last("mmap")) } else { Ok(()) }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they do not fit, or this program may not touch the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_there(offset, bytes.len());
        // SAFETY: the range lies in the mapping, and `bytes` elsewhere, since no reference to the
        // mapping exists. What the card may write at the same time, it writes by the kernel's copy.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.memory.as_ptr().add(offset),
                bytes.len(),
            );
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When there are not so many, or this program may not touch the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.assert_there(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.memory.as_ptr().add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
    }

    fn assert_there(&self, offset: usize, length: usize) {
        assert!(self.touchable, "the memory was taken away, or is not to be touched");
        assert!(self.holds(offset, length), "{offset} + {length} of {}", self.length);
    }

    /// Whether a range lies in it.
    pub fn holds(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this type made the mapping, and the region that registered it keeps it until no card has a key to it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
