//! Host memory behind the bus.

use std::collections::BTreeMap;
use std::task::Poll;

use fpga_regs::Block;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// The direction of a transfer, as the logic sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From host memory into the logic.
    Read,
    /// From the logic into host memory.
    Write,
}

/// Whether the driver maps memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It does.
    Mapped,
    /// It does not: it is to tell the logic of the fault ([`Memory::refuse`]), and refuses it.
    Refused,
    /// It does not, and has told the logic of the fault.
    Told,
}

/// Host memory as the driver maps it for a vFPGA, by virtual addresses.
///
/// Where it takes longer than a cycle ([`Poll::Pending`]), the same is asked for again in the next one.
pub trait Memory {
    /// Whether the driver maps all of these bytes. Where it does not, it refuses the fault.
    fn reaches(&mut self, direction: Direction, address: u64, length: u32) -> Poll<Reached>;

    /// Tells the logic that the driver is about to refuse the fault of a transfer at an address.
    fn refuse(&mut self, _direction: Direction, _address: u64) -> Poll<()> {
        Poll::Ready(())
    }

    /// Reads bytes. Those that are not mapped any more are all ones, as behind a PCIe bus.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Poll<()>;

    /// Writes bytes. Those that are not mapped any more are lost.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Poll<()>;
}

/// The block in the first 64 of some bytes.
///
/// # Panics
/// If there are fewer.
#[must_use]
pub fn block_of(bytes: &[u8]) -> Block {
    std::array::from_fn(|word| {
        u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * word + byte]))
    })
}

/// Pages of host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages(BTreeMap<u64, Vec<u8>>);

impl Pages {
    /// Maps the pages that have these bytes; new ones are zeroed.
    pub fn map(&mut self, address: u64, length: u64) {
        for number in numbers(address, length) {
            self.0.entry(number).or_insert_with(|| vec![0; PAGE_BYTES as usize]);
        }
    }

    /// Takes the pages away that have these bytes.
    pub fn unmap(&mut self, address: u64, length: u64) {
        for number in numbers(address, length) {
            self.0.remove(&number);
        }
    }

    /// Reads bytes.
    pub fn load(&mut self, address: u64, into: &mut [u8]) {
        self.each(address, into.len(), |part, page| match page {
            Some(page) => into[part].copy_from_slice(page),
            None => into[part].fill(0xff),
        });
    }

    /// Writes bytes.
    pub fn store(&mut self, address: u64, bytes: &[u8]) {
        self.each(address, bytes.len(), |part, page| {
            if let Some(page) = page {
                page.copy_from_slice(&bytes[part]);
            }
        });
    }

    /// Whether all of these bytes are mapped.
    #[must_use]
    pub fn has(&self, address: u64, length: u32) -> bool {
        numbers(address, length.into()).all(|number| self.0.contains_key(&number))
    }

    /// Does something to the part of each page that these bytes have: `None` where there is no page.
    fn each(
        &mut self,
        address: u64,
        length: usize,
        mut act: impl FnMut(std::ops::Range<usize>, Option<&mut [u8]>),
    ) {
        let mut done = 0;
        while done < length {
            let at = address.wrapping_add(done as u64);
            let offset = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - offset).min(length - done);
            let page = self.0.get_mut(&(at / PAGE_BYTES));
            act(done..done + count, page.map(|page| &mut page[offset..offset + count]));
            done += count;
        }
    }
}

impl Memory for Pages {
    fn reaches(&mut self, _: Direction, address: u64, length: u32) -> Poll<Reached> {
        Poll::Ready(if self.has(address, length) { Reached::Mapped } else { Reached::Refused })
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Poll<()> {
        self.load(address, into);
        Poll::Ready(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Poll<()> {
        self.store(address, bytes);
        Poll::Ready(())
    }
}

/// The numbers of the pages that have these bytes.
fn numbers(address: u64, length: u64) -> impl Iterator<Item = u64> {
    let last = address.saturating_add(length.max(1) - 1);
    address / PAGE_BYTES..=last / PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_across_pages_are_those_that_were_written_and_others_read_as_ones() {
        let mut memory = Pages::default();
        memory.map(PAGE_BYTES, 2 * PAGE_BYTES);
        let written: Vec<u8> = (0..200).collect();
        memory.store(2 * PAGE_BYTES - 100, &written);
        let mut read = [0; 200];
        memory.load(2 * PAGE_BYTES - 100, &mut read);
        assert_eq!(read[..], written[..]);
        assert!(memory.has(PAGE_BYTES, 8192));
        assert!(!memory.has(PAGE_BYTES, 8193));
        memory.unmap(2 * PAGE_BYTES, 1);
        memory.load(2 * PAGE_BYTES - 100, &mut read);
        assert_eq!((&read[..100], &read[100..]), (&written[..100], &[0xff; 100][..]));
    }
}
