//! The card's own memory: which part of it was given out, and its way to and from the host.

use std::collections::BTreeMap;
use std::ops::Range;

use fpga_regs::engine::admin::{
    AdminStatus, AllocDm, CopyDm, DmDirection, MAX_LOG2_DM_ALIGNMENT, MAX_LOG2_DM_BLOCKS,
};
use fpga_regs::{BLOCK_BYTES, Block};

use crate::memory::{Ring, Rings, aligned_ring};
use crate::numbers::{ByNumber, Numbers, Random, free_all, take};

/// Bytes of the largest part. All of it is zeroed at once, for which others wait.
pub(crate) const LARGEST: u32 = 1 << 20;
/// Parts at a time: their places are looked through for a free one.
const PARTS: u32 = 1024;
/// Bits of the number of a part.
const NUMBER_BITS: u32 = 24;

const LOG2_BLOCK: u32 = BLOCK_BYTES.ilog2();

/// A part that was given out.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Its first block.
    first: u32,
    bytes: u32,
    /// Keys that name it.
    keys: u32,
}

/// The card's own memory, as far as it is the engine's.
#[derive(Debug)]
pub(crate) struct DeviceMemory<M: Rings> {
    bytes: u32,
    /// The address of its first byte, as the card names it, and its blocks; from the first part on.
    own: Option<(u64, M::Ring)>,
    parts: ByNumber<Part>,
    numbers: Numbers,
    /// The first block of each part, and the one behind it.
    places: BTreeMap<u32, u32>,
}

impl<M: Rings> DeviceMemory<M> {
    /// Bytes of a part in the tables.
    pub(crate) const BYTES_OF_EACH: usize = size_of::<(u32, Part)>() + size_of::<(u32, u32)>();

    /// Device memory of so many bytes, all of which are free.
    pub(crate) fn new(bytes: u32) -> Self {
        Self {
            bytes,
            own: None,
            parts: ByNumber::default(),
            numbers: Numbers::new(NUMBER_BITS, 0, PARTS),
            places: BTreeMap::new(),
        }
    }

    /// Takes all parts back.
    pub(crate) fn clear(&mut self) {
        free_all(&mut self.parts, &mut self.numbers);
        self.places.clear();
    }

    /// Gives a part out, zeroed; answers its number.
    pub(crate) fn alloc(
        &mut self,
        command: &AllocDm,
        memory: &M,
        random: &mut impl Random,
    ) -> Result<u32, AdminStatus> {
        let &AllocDm { length, log2_alignment } = command;
        let sound = (1..=LARGEST.min(self.bytes)).contains(&length);
        if !sound || log2_alignment > MAX_LOG2_DM_ALIGNMENT {
            return Err(AdminStatus::Invalid);
        }
        let blocks = length.div_ceil(BLOCK_BYTES as u32);
        let alignment = 1u32.wrapping_shl(u32::from(log2_alignment).saturating_sub(LOG2_BLOCK));
        let first = self.find(blocks, alignment).ok_or(AdminStatus::NoResources)?;
        if self.own.is_none() {
            self.own = memory.own();
        }
        let (_, own) = self.own.as_ref().ok_or(AdminStatus::NoResources)?;
        let number = self.numbers.draw(random).ok_or(AdminStatus::NoResources)?;
        let behind = first.saturating_add(blocks);
        (first..behind).for_each(|block| own.write(block, &[0; 8]));
        self.places.insert(first, behind);
        self.parts.insert(number, Part { first, bytes: length, keys: 0 });
        Ok(number)
    }

    /// The first of so many free blocks.
    fn find(&self, blocks: u32, alignment: u32) -> Option<u32> {
        let mut first = 0u32;
        for (&taken, &behind) in &self.places {
            if first.checked_add(blocks)? <= taken {
                return Some(first);
            }
            first = behind.checked_next_multiple_of(alignment)?;
        }
        let end = first.checked_add(blocks)?;
        (end <= self.bytes.wrapping_shr(LOG2_BLOCK)).then_some(first)
    }

    /// Takes a part back that no key names.
    pub(crate) fn free(&mut self, number: u32) -> Result<(), AdminStatus> {
        let part = self.parts.get(&number).ok_or(AdminStatus::NotFound)?;
        if part.keys > 0 {
            return Err(AdminStatus::Busy);
        }
        self.places.remove(&part.first);
        take(&mut self.parts, number);
        self.numbers.free(number);
        Ok(())
    }

    /// Where `length` bytes from `offset` of a part lie, as the card names them.
    pub(crate) fn address(
        &self,
        number: u32,
        offset: u64,
        length: u64,
    ) -> Result<u64, AdminStatus> {
        let part = self.parts.get(&number).ok_or(AdminStatus::NotFound)?;
        let end = offset.checked_add(length).ok_or(AdminStatus::Invalid)?;
        if end > u64::from(part.bytes) {
            return Err(AdminStatus::Invalid);
        }
        let (base, _) = self.own.as_ref().ok_or(AdminStatus::NoResources)?;
        let before = u64::from(part.first).wrapping_shl(LOG2_BLOCK);
        base.checked_add(before).and_then(|at| at.checked_add(offset)).ok_or(AdminStatus::Invalid)
    }

    /// Notes that a key names a part, or no longer does.
    pub(crate) fn count_key(&mut self, number: u32, named: bool) {
        if let Some(part) = self.parts.get_mut(&number) {
            let keys = part.keys;
            part.keys = if named { keys.saturating_add(1) } else { keys.saturating_sub(1) };
        }
    }

    /// Copies bytes between a part and blocks of the host.
    pub(crate) fn copy(&self, command: &CopyDm, memory: &M) -> Result<(), AdminStatus> {
        let &CopyDm { host, offset, length, dm, log2_blocks, direction } = command;
        let part = self.parts.get(&dm).ok_or(AdminStatus::NotFound)?;
        let end = offset.checked_add(length).ok_or(AdminStatus::Invalid)?;
        let within = offset & (BLOCK_BYTES as u32).wrapping_sub(1);
        let bytes = within.checked_add(length).ok_or(AdminStatus::Invalid)?;
        let blocks = bytes.div_ceil(BLOCK_BYTES as u32);
        let sound = matches!(direction, DmDirection::ToCard | DmDirection::ToHost);
        let fits =
            log2_blocks <= MAX_LOG2_DM_BLOCKS && blocks <= 1u32.wrapping_shl(log2_blocks.into());
        if end > part.bytes || !fits || !sound {
            return Err(AdminStatus::Invalid);
        }
        let host = aligned_ring(memory, host, log2_blocks).ok_or(AdminStatus::BadAddress)?;
        let (_, own) = self.own.as_ref().ok_or(AdminStatus::NoResources)?;
        let first = part.first.saturating_add(offset.wrapping_shr(LOG2_BLOCK));
        for index in 0..blocks {
            let at = first.saturating_add(index);
            if direction == DmDirection::ToHost {
                host.write(index, &own.read(at));
                continue;
            }
            let before = index.wrapping_shl(LOG2_BLOCK);
            let range = within.saturating_sub(before)..bytes.saturating_sub(before);
            own.write(at, &merged(own.read(at), host.read(index), &range));
        }
        Ok(())
    }
}

/// A block with the bytes of another in a range.
fn merged(old: Block, new: Block, range: &Range<u32>) -> Block {
    let mut at = 0u32;
    let mut block = old;
    for (word, from) in block.iter_mut().zip(new) {
        let mut bytes = word.to_le_bytes();
        for (byte, from) in bytes.iter_mut().zip(from.to_le_bytes()) {
            if range.contains(&at) {
                *byte = from;
            }
            at = at.saturating_add(1);
        }
        *word = u64::from_le_bytes(bytes);
    }
    block
}
