//! Registers of a device: BARs mapped into this process.
//!
//! | accessor | transaction |
//! |---|---|
//! | [`Mmio::read32`], [`Mmio::read64`] | one non-posted read of 4 or 8 bytes; earlier writes arrive first, and later loads see the device's writes to memory before its answer |
//! | [`Mmio::write256`] | one posted write of 32 bytes, where the way to the device leaves it whole, in the same order; needs AVX |
//! | [`Mmio::write32`], [`Mmio::write64`] | one posted write of 4 or 8 bytes, after every earlier load and store of this thread in memory that the device can reach |
//!
//! The accesses are volatile and of one instruction each: none is left out, split or merged. A
//! device that has gone reads as ones.

use std::os::fd::BorrowedFd;
use std::ptr::{read_volatile, write_volatile};
use std::sync::Arc;

use crate::{Access, Result, SharedMapping, barrier};

/// A mapped part of a BAR.
#[derive(Debug, Clone)]
pub struct Mmio {
    mapping: Arc<SharedMapping>,
}

impl Mmio {
    /// Maps `bytes` bytes of a device's descriptor from `offset`, both whole pages.
    pub fn new(device: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self> {
        let mapping = SharedMapping::of_device(device, offset, bytes, Access::ReadWrite)?;
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Whether an access found the device gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// Reads 32 bits at a multiple of 4.
    pub fn read32(&self, offset: usize) -> Result<u32> {
        let at = self.mapping.span("register", offset, 4, 4)?;
        // SAFETY: `span` checked range and alignment; the mapping lives as long as `self`.
        let value = unsafe { read_volatile(at.as_ptr().cast::<u32>()) };
        barrier::observe_from_device();
        Ok(u32::from_le(value))
    }

    /// Reads 64 bits at a multiple of 8.
    pub fn read64(&self, offset: usize) -> Result<u64> {
        let at = self.mapping.span("register", offset, 8, 8)?;
        // SAFETY: as in `read32`.
        let value = unsafe { read_volatile(at.as_ptr().cast::<u64>()) };
        barrier::observe_from_device();
        Ok(u64::from_le(value))
    }

    /// Writes 32 bits at a multiple of 4.
    pub fn write32(&self, offset: usize, value: u32) -> Result<()> {
        let at = self.mapping.span("register", offset, 4, 4)?;
        barrier::publish_to_device();
        // SAFETY: as in `read32`; the mapping was made for writing.
        unsafe { write_volatile(at.as_ptr().cast::<u32>(), value.to_le()) };
        Ok(())
    }

    /// Writes 64 bits at a multiple of 8.
    pub fn write64(&self, offset: usize, value: u64) -> Result<()> {
        let at = self.mapping.span("register", offset, 8, 8)?;
        barrier::publish_to_device();
        // SAFETY: as in `write32`.
        unsafe { write_volatile(at.as_ptr().cast::<u64>(), value.to_le()) };
        Ok(())
    }

    /// Writes 256 bits at a multiple of 32, words in the order of their addresses, by one store.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] where the processor has no such store; beside those of the others.
    pub fn write256(&self, offset: usize, words: [u64; 4]) -> Result<()> {
        let at = self.mapping.span("register", offset, 32, 32)?;
        let words = words.map(u64::to_le);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx") {
            barrier::publish_to_device();
            // SAFETY: `span` checked range and alignment, the mapping was made for writing and lives as long as `self`;
            // the processor has AVX, and every register whose upper half is cleared is named.
            unsafe {
                std::arch::asm!(
                    "vmovdqu ymm0, ymmword ptr [{0}]",
                    "vmovdqa ymmword ptr [{1}], ymm0",
                    "vzeroupper",
                    in(reg) words.as_ptr(),
                    in(reg) at.as_ptr(),
                    out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                    out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                    out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                    out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                    options(nostack, preserves_flags),
                );
            }
            return Ok(());
        }
        let _ = (at, words);
        Err(crate::Error::Unsupported("stores of 32 bytes (AVX)"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::{Error, PAGE_BYTES};

    /// A file as long as `bytes`, which can be cut short under its mapping, as device memory can go.
    fn file(bytes: u64) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    #[test]
    fn registers_are_little_endian_and_checked() {
        let file = file(4096);
        let mmio = Mmio::new(file.as_fd(), 0, PAGE_BYTES).unwrap();
        mmio.write64(8, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(mmio.read32(8).unwrap(), 0x5566_7788);
        mmio.write32(12, 1).unwrap();
        assert_eq!(mmio.read64(8).unwrap(), 0x1_5566_7788);
        assert!(matches!(mmio.read32(4096), Err(Error::OutOfRange { .. })));
        assert!(matches!(mmio.read64(4), Err(Error::Misaligned { .. })));
    }

    #[test]
    fn a_wide_store_has_its_words_in_order() {
        let file = file(4096);
        let mmio = Mmio::new(file.as_fd(), 0, PAGE_BYTES).unwrap();
        match mmio.write256(64, [1, 2, 3, 4]) {
            Ok(()) => {
                let read = [64, 72, 80, 88].map(|at| mmio.read64(at).unwrap());
                assert_eq!(read, [1, 2, 3, 4]);
            }
            Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
        }
        assert!(matches!(mmio.write256(72, [0; 4]), Err(Error::Misaligned { .. })));
    }

    #[test]
    fn memory_that_has_gone_reads_as_ones_and_swallows_writes() {
        let file = file(8192);
        let mmio = Mmio::new(file.as_fd(), 0, 2 * PAGE_BYTES).unwrap();
        let other = Mmio::new(file.as_fd(), 0, PAGE_BYTES).unwrap();
        mmio.write32(4096, 7).unwrap();
        file.set_len(4096).unwrap();
        assert!(!mmio.is_lost());
        assert_eq!(mmio.read64(4096).unwrap(), u64::MAX);
        assert!(mmio.is_lost());
        mmio.write32(4100, 1).unwrap();
        assert_eq!(mmio.read32(0).unwrap(), 0, "the other page is still there");
        assert!(!other.is_lost(), "another mapping lost nothing");
    }
}
