//! Views for the data path: rings of 64-byte blocks, doorbell records and doorbell pages.
//!
//! A view checks its place in the mapping once, when it is made. Afterwards its indices are masked
//! to the size of the ring, so that no access can fail, even by an index that a peer chose.
//!
//! How the pieces work together, producer on the left:
//!
//! ```text
//! BlockRing::write(index, wqe)                      relaxed words
//! Record::store_release_u32(PRODUCER, index + 1)    release: the entries are seen with it
//! DoorbellPage::ring(slot, hint)                    release: the record is seen with it
//!                                     DoorbellPage::read(slot)            acquire
//!                                     Record::load_acquire_u32(PRODUCER)  acquire
//!                                     BlockRing::read(index)
//! ```
//!
//! and for completions, where the last word of the entry carries the phase:
//!
//! ```text
//!                                     BlockRing::write_published(index, cqe)
//! BlockRing::block(index).written(phase)            acquire, and an order as to devices
//! WrittenBlock::load()
//! ```
//!
//! [`crate::barrier`] documents the order of these accesses towards a device.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::mapping::SharedMapping;
use crate::{Error, PAGE_BYTES, Result, barrier};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 64;

/// 64-bit words of a block.
pub const BLOCK_WORDS: usize = 8;

/// Half a block, in words and in bytes.
const HALF_BLOCK: usize = BLOCK_WORDS / 2;
const HALF_BYTES: usize = BLOCK_BYTES / 2;

/// One 64-byte block as numbers; each word is little-endian in memory.
pub type Block = [u64; BLOCK_WORDS];

/// Slots of a doorbell page.
pub const DOORBELL_SLOTS: usize = PAGE_BYTES / 8;

/// A shared word as the protocols use it; the second implementation is the model checker's.
trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        u64::from_le(AtomicU64::load(self, order))
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value.to_le(), order);
    }
}

/// Writes a block so that a reader that sees its last word sees all of it, and all earlier stores.
#[inline(always)]
fn publish_block<'a, W: Word + 'a>(word: impl Fn(usize) -> &'a W, block: &Block) {
    let [body @ .., last] = block;
    for (at, value) in body.iter().enumerate() {
        word(at).store(*value, Ordering::Relaxed);
    }
    word(BLOCK_WORDS - 1).store(*last, Ordering::Release);
}

/// Writes a block with no order; a release store that says so follows.
#[inline(always)]
fn write_block<'a, W: Word + 'a>(word: impl Fn(usize) -> &'a W, block: &Block) {
    for (at, value) in block.iter().enumerate() {
        word(at).store(*value, Ordering::Relaxed);
    }
}

/// Reads a block with no order; an acquire load that said it is there precedes.
#[inline(always)]
fn read_block<'a, W: Word + 'a>(word: impl Fn(usize) -> &'a W) -> Block {
    std::array::from_fn(|at| word(at).load(Ordering::Relaxed))
}

/// Stores a word for a reader that acquires it: a block's last word, a record's word, a doorbell slot.
#[inline(always)]
fn release(word: &impl Word, value: u64) {
    word.store(value, Ordering::Release);
}

/// Loads a word that was released.
#[inline(always)]
fn acquire(word: &impl Word) -> u64 {
    word.load(Ordering::Acquire)
}

/// The last word of a block, if it says that the block is written: then later loads see the earlier
/// writes of its writer, program or device.
#[inline(always)]
fn last_if_written(word: &impl Word, says_so: impl FnOnce(u64) -> bool) -> Option<u64> {
    let last = acquire(word);
    if !says_so(last) {
        return None;
    }
    barrier::observe_from_device();
    Some(last)
}

/// A range of 64-bit words in a mapping that can be written, checked once.
#[derive(Debug, Clone)]
struct Words {
    base: NonNull<AtomicU64>,
    // Keeps `base` mapped.
    mapping: Arc<SharedMapping>,
}

// SAFETY: the words belong to the process, are reached by atomics only, and stay mapped with us.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    fn new(
        mapping: Arc<SharedMapping>,
        object: &'static str,
        offset: usize,
        bytes: usize,
        alignment: usize,
    ) -> Result<Self> {
        mapping.must_be_writable(object)?;
        let base = mapping.span(object, offset, bytes, alignment)?.cast();
        Ok(Self { base, mapping })
    }

    /// Word `index` of the range.
    ///
    /// # Safety
    /// `index` is below the range's size in words.
    #[inline(always)]
    unsafe fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: `new` checked range and alignment for all words; they stay mapped with `self`.
        unsafe { self.base.add(index).as_ref() }
    }

    /// 32-bit half-word `index` of the range.
    ///
    /// # Safety
    /// `index` is below the range's size in 32-bit words.
    #[inline(always)]
    unsafe fn half(&self, index: usize) -> &AtomicU32 {
        // SAFETY: as in `word`. The peer's accesses are outside this program's memory model, and
        // within it a word is used as halves or as a whole by agreement of its format; on the two
        // processors supported mixed atomic accesses are single accesses all the same.
        unsafe { self.base.cast::<AtomicU32>().add(index).as_ref() }
    }
}

/// A ring of 2^n blocks of 64 bytes in shared memory.
///
/// Indices are taken modulo the number of blocks. Whole blocks are not read or written in one
/// piece, only their words are: the record or the last word orders a block.
#[derive(Debug, Clone)]
pub struct BlockRing {
    words: Words,
    mask: u32,
}

impl BlockRing {
    /// Views `blocks` blocks from `offset` (a multiple of 64) of a mapping that can be written.
    ///
    /// `blocks` is a power of two.
    pub fn new(mapping: Arc<SharedMapping>, offset: usize, blocks: u32) -> Result<Self> {
        if !blocks.is_power_of_two() {
            return Err(Error::BadSize {
                object: "ring",
                value: u64::from(blocks),
                unit: "blocks",
                rule: "their number is a power of two",
            });
        }
        let bytes = (blocks as usize).saturating_mul(BLOCK_BYTES);
        let words = Words::new(mapping, "ring", offset, bytes, BLOCK_BYTES)?;
        Ok(Self { words, mask: blocks - 1 })
    }

    /// Number of blocks.
    #[inline(always)]
    pub fn blocks(&self) -> u32 {
        self.mask + 1
    }

    /// The mapping the ring lies in.
    pub fn mapping(&self) -> &Arc<SharedMapping> {
        &self.words.mapping
    }

    /// Reads a block, word by word, with no order between them.
    ///
    /// Must follow an acquire load of the producer index in the record, which says that the block is
    /// there. For blocks that carry a phase, see [`RingBlock::written`].
    #[inline]
    pub fn read(&self, index: u32) -> Block {
        read_block(|word| self.word(index, word))
    }

    /// The block at an index, to write some words of it, or to read it once it is written.
    #[inline(always)]
    pub fn block(&self, index: u32) -> RingBlock<'_> {
        let block = (index & self.mask) as usize;
        // SAFETY: block <= mask, so the block is one of the ring's.
        let first = unsafe { self.words.base.add(block * BLOCK_WORDS) };
        RingBlock { first, ring: PhantomData }
    }

    /// Writes a block, word by word, with no order between them.
    ///
    /// To be followed by a release store that says so, of the producer index in the record.
    #[inline]
    pub fn write(&self, index: u32, block: &Block) {
        write_block(|word| self.word(index, word), block);
    }

    /// Writes a block whose last word says that it is there: completion and event entries.
    ///
    /// Words 0 to 6 first, in any order, then word 7 as a release store: a reader that sees word 7 sees the rest,
    /// and all stores before the call.
    #[inline]
    pub fn write_published(&self, index: u32, block: &Block) {
        publish_block(|word| self.word(index, word), block);
    }

    /// Copies bytes to byte `offset` of block `index` and behind it, round the end of the ring, with no order between
    /// them.
    ///
    /// To be followed as [`Self::write`]. Payload begins in the middle of a block, so it is copied by the half of that
    /// one, by whole ones, and by half of the last.
    ///
    /// # Safety
    /// So many bytes can be read at `from`.
    #[inline(always)]
    pub unsafe fn copy_in(&self, index: u32, offset: usize, from: *const u8, bytes: usize) {
        let (mut index, mut offset, mut from, mut left) = (index, offset, from, bytes);
        if offset == HALF_BYTES && left >= HALF_BYTES {
            // SAFETY: as the caller promises.
            unsafe { self.block(index).copy::<HALF_BLOCK>(HALF_BLOCK, from) };
            (index, offset) = (index.wrapping_add(1), 0);
            (from, left) = (from.wrapping_add(HALF_BYTES), left.wrapping_sub(HALF_BYTES));
            while left >= BLOCK_BYTES {
                // SAFETY: as the caller promises.
                unsafe { self.block(index).copy::<BLOCK_WORDS>(0, from) };
                index = index.wrapping_add(1);
                (from, left) = (from.wrapping_add(BLOCK_BYTES), left.wrapping_sub(BLOCK_BYTES));
            }
            if left >= HALF_BYTES {
                // SAFETY: as the caller promises.
                unsafe { self.block(index).copy::<HALF_BLOCK>(0, from) };
                offset = HALF_BYTES;
                (from, left) = (from.wrapping_add(HALF_BYTES), left.wrapping_sub(HALF_BYTES));
            }
        }
        if left > 0 {
            // SAFETY: as the caller promises.
            unsafe { self.copy_bits(index, offset, from, left) };
        }
    }

    /// As [`Self::copy_in`], of few bytes, or from anywhere on: by words where that is one's place, else one by one.
    ///
    /// # Safety
    /// As [`Self::copy_in`].
    unsafe fn copy_bits(&self, index: u32, offset: usize, from: *const u8, bytes: usize) {
        let first = (index as usize).wrapping_mul(BLOCK_BYTES).wrapping_add(offset);
        let last = self.mask as usize * BLOCK_BYTES + (BLOCK_BYTES - 1);
        let mut done = 0;
        while done < bytes {
            let at = first.wrapping_add(done) & last;
            // SAFETY: the position is masked to the bytes of the ring, whose number is a power of two.
            let place = unsafe { self.words.base.cast::<u8>().add(at) };
            let from = from.wrapping_add(done);
            if at % 8 == 0 && bytes - done >= 8 {
                // SAFETY: as the caller promises.
                let word = unsafe { from.cast::<u64>().read_unaligned() };
                // SAFETY: the place is a word of the ring's, which stays mapped with `self`.
                unsafe { place.cast::<AtomicU64>().as_ref() }.store(word, Ordering::Relaxed);
                done += 8;
            } else {
                // SAFETY: as the caller promises.
                let byte = unsafe { from.read() };
                // SAFETY: the place is a byte of the ring's; see `Words::half` on mixed accesses.
                unsafe { place.cast::<AtomicU8>().as_ref() }.store(byte, Ordering::Relaxed);
                done += 1;
            }
        }
    }

    #[inline(always)]
    fn word(&self, index: u32, word: usize) -> &AtomicU64 {
        let block = (index & self.mask) as usize;
        // SAFETY: block <= mask and word is masked to 7, so the word is one of the ring's.
        unsafe { self.words.word(block * BLOCK_WORDS + (word & (BLOCK_WORDS - 1))) }
    }
}

/// A block of a [`BlockRing`], found once.
#[derive(Debug, Clone, Copy)]
pub struct RingBlock<'a> {
    first: NonNull<AtomicU64>,
    ring: PhantomData<&'a BlockRing>,
}

impl<'a> RingBlock<'a> {
    /// The block to be read, if its last word says that it is written: completion and event entries.
    ///
    /// Later loads see the writes of its writer, a program or a device, before that word: the block, and
    /// the memory that it refers to.
    #[inline(always)]
    pub fn written(self, says_so: impl FnOnce(u64) -> bool) -> Option<WrittenBlock<'a>> {
        let last = last_if_written(self.word(BLOCK_WORDS - 1), says_so)?;
        Some(WrittenBlock { block: self, last })
    }

    /// Stores one word (its number modulo 8), with no order against others; to be followed as
    /// [`BlockRing::write`].
    #[inline(always)]
    pub fn store(self, word: usize, value: u64) {
        self.word(word).store(value.to_le(), Ordering::Relaxed);
    }

    /// Copies words from a first one on (its number modulo 8; all of them lie in the block).
    ///
    /// # Safety
    /// They can be read at `from`.
    #[inline(always)]
    unsafe fn copy<const WORDS: usize>(self, first: usize, from: *const u8) {
        for word in 0..WORDS {
            // SAFETY: as the caller promises.
            let value = unsafe { from.cast::<u64>().add(word).read_unaligned() };
            self.word(first + word).store(value, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn word(&self, word: usize) -> &AtomicU64 {
        // SAFETY: the block is whole and of a ring, which stays mapped as long as it is borrowed;
        // the number is masked to one of the block's words.
        unsafe { self.first.add(word & (BLOCK_WORDS - 1)).as_ref() }
    }
}

/// A block of a [`BlockRing`] whose last word said that it is written.
#[derive(Debug, Clone, Copy)]
pub struct WrittenBlock<'a> {
    block: RingBlock<'a>,
    last: u64,
}

impl WrittenBlock<'_> {
    /// The last word as it was when it was looked at.
    #[inline(always)]
    pub fn last(self) -> u64 {
        self.last
    }

    /// Loads the whole block; the last word is not loaded again.
    #[inline(always)]
    pub fn load(self) -> Block {
        let mut block = read_block(|word| self.block.word(word));
        block[BLOCK_WORDS - 1] = self.last;
        block
    }

    /// Loads the first words.
    #[inline(always)]
    pub fn load_first<const WORDS: usize>(self) -> [u64; WORDS] {
        const { assert!(WORDS <= BLOCK_WORDS, "a block has eight words") };
        std::array::from_fn(|word| Word::load(self.block.word(word), Ordering::Relaxed))
    }

    /// Loads one word (its number modulo 8).
    #[inline(always)]
    pub fn load_word(self, word: usize) -> u64 {
        Word::load(self.block.word(word), Ordering::Relaxed)
    }

    /// Loads one 32-bit word (byte offset / 4, modulo 16).
    #[inline(always)]
    pub fn load_half(self, half: usize) -> u32 {
        let halves = self.block.first.cast::<AtomicU32>();
        // SAFETY: as in `RingBlock::word`, of which this is a half; see `Words::half` on mixed accesses.
        let word = unsafe { halves.add(half & (2 * BLOCK_WORDS - 1)).as_ref() };
        u32::from_le(word.load(Ordering::Relaxed))
    }
}

/// A 64-byte record of words in shared memory: the truth behind a doorbell.
///
/// Word numbers are taken modulo the record (16 words of 32 bits, 8 of 64), so a wrong constant
/// cannot reach beyond it; tests of the format's constants must catch it.
#[derive(Debug, Clone)]
pub struct Record {
    words: Words,
}

impl Record {
    /// Views the 64 bytes at `offset` (a multiple of 64) of a mapping that can be written.
    pub fn new(mapping: Arc<SharedMapping>, offset: usize) -> Result<Self> {
        let words = Words::new(mapping, "doorbell record", offset, BLOCK_BYTES, BLOCK_BYTES)?;
        Ok(Self { words })
    }

    /// Loads 32-bit word `word` (byte offset / 4); later loads see all stores before it.
    #[inline]
    pub fn load_acquire_u32(&self, word: usize) -> u32 {
        u32::from_le(self.half(word).load(Ordering::Acquire))
    }

    /// Loads 32-bit word `word` (byte offset / 4) with no order: for one's own words.
    #[inline]
    pub fn load_relaxed_u32(&self, word: usize) -> u32 {
        u32::from_le(self.half(word).load(Ordering::Relaxed))
    }

    /// Stores 32-bit word `word` (byte offset / 4); a reader that sees it sees all stores before.
    #[inline]
    pub fn store_release_u32(&self, word: usize, value: u32) {
        barrier::publish_to_device();
        self.half(word).store(value.to_le(), Ordering::Release);
    }

    /// Loads 64-bit word `word` (byte offset / 8); later loads see all stores before it.
    #[inline]
    pub fn load_acquire_u64(&self, word: usize) -> u64 {
        acquire(self.word(word))
    }

    /// Loads 64-bit word `word` (byte offset / 8) with no order: for one's own words.
    #[inline]
    pub fn load_relaxed_u64(&self, word: usize) -> u64 {
        Word::load(self.word(word), Ordering::Relaxed)
    }

    /// Stores 64-bit word `word` (byte offset / 8); a reader that sees it sees all stores before.
    #[inline]
    pub fn store_release_u64(&self, word: usize, value: u64) {
        barrier::publish_to_device();
        release(self.word(word), value);
    }

    #[inline(always)]
    fn word(&self, word: usize) -> &AtomicU64 {
        debug_assert!(word < BLOCK_WORDS, "record has no 64-bit word {word}");
        // SAFETY: masked to the eight words of the record.
        unsafe { self.words.word(word & (BLOCK_WORDS - 1)) }
    }

    #[inline(always)]
    fn half(&self, word: usize) -> &AtomicU32 {
        debug_assert!(word < 2 * BLOCK_WORDS, "record has no 32-bit word {word}");
        // SAFETY: masked to the sixteen half-words of the record.
        unsafe { self.words.half(word & (2 * BLOCK_WORDS - 1)) }
    }
}

/// A page of 512 doorbell slots of 8 bytes in shared memory.
///
/// A slot is a level and a hint, never the truth: a later store may replace an earlier one unseen.
/// The record of the queue is release-stored first; the slot's store is a release store too, so
/// that a card which saw the slot change also sees that record.
#[derive(Debug, Clone)]
pub struct DoorbellPage {
    words: Words,
}

impl DoorbellPage {
    /// Views the 4096-byte page at `offset` (a multiple of 4096) of a mapping that can be written.
    pub fn new(mapping: Arc<SharedMapping>, offset: usize) -> Result<Self> {
        let words = Words::new(mapping, "doorbell page", offset, PAGE_BYTES, PAGE_BYTES)?;
        Ok(Self { words })
    }

    /// Stores a slot; slot numbers are taken modulo 512.
    ///
    /// To be followed by [`crate::Waker::wake_if_asleep`] where the grant wakes its card.
    #[inline]
    pub fn ring(&self, slot: usize, value: u64) {
        barrier::publish_to_device();
        self.word(slot).store(value.to_le(), Ordering::Release);
    }

    /// One slot, for a caller that rings it often; slot numbers are taken modulo 512.
    pub fn slot(&self, slot: usize) -> DoorbellSlot {
        let mapping = Arc::clone(&self.words.mapping);
        DoorbellSlot { at: NonNull::from(self.word(slot)), _mapping: mapping }
    }

    /// Loads a slot; records stored before the slot are seen by later loads.
    #[inline]
    pub fn read(&self, slot: usize) -> u64 {
        u64::from_le(self.word(slot).load(Ordering::Acquire))
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: masked to the 512 words of the page.
        unsafe { self.words.word(slot & (DOORBELL_SLOTS - 1)) }
    }
}

/// A slot of a [`DoorbellPage`], found once.
#[derive(Debug, Clone)]
pub struct DoorbellSlot {
    at: NonNull<AtomicU64>,
    // Keeps `at` mapped.
    _mapping: Arc<SharedMapping>,
}

// SAFETY: the slot belongs to the process, is reached by atomics only, and stays mapped with us.
unsafe impl Send for DoorbellSlot {}
// SAFETY: as above.
unsafe impl Sync for DoorbellSlot {}

impl DoorbellSlot {
    /// Stores the slot; see [`DoorbellPage::ring`].
    #[inline(always)]
    pub fn ring(&self, value: u64) {
        // SAFETY: the slot is one of a page's, which is mapped as long as `self` lives.
        let slot = unsafe { self.at.as_ref() };
        barrier::publish_to_device();
        slot.store(value.to_le(), Ordering::Release);
    }
}

#[cfg(all(test, not(miri)))]
mod model;

#[cfg(test)]
mod tests {
    #[cfg(not(miri))]
    use std::os::fd::AsFd;

    use super::*;
    #[cfg(not(miri))]
    use crate::{Access, memfd};

    fn mapping(bytes: usize) -> Arc<SharedMapping> {
        #[cfg(miri)]
        return Arc::new(SharedMapping::in_heap(bytes));
        #[cfg(not(miri))]
        {
            let fd = memfd::create("ring", bytes).unwrap();
            Arc::new(SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite).unwrap())
        }
    }

    #[test]
    fn indices_wrap_at_the_size_of_the_ring() {
        let mapping = mapping(4096);
        let ring = BlockRing::new(Arc::clone(&mapping), 1024, 4).unwrap();
        for index in 0..4 {
            ring.write(index, &[u64::from(index) + 1; 8]);
        }
        assert_eq!(ring.read(4), [1; 8]);
        assert_eq!(ring.read(u32::MAX), [4; 8]);
        assert_eq!(mapping.load_relaxed_u64(1024 - 8).unwrap(), 0);
        assert_eq!(mapping.load_relaxed_u64(1024 + 64).unwrap(), 2);
        assert_eq!(mapping.load_relaxed_u64(1024 + 256).unwrap(), 0);
        assert_eq!(ring.blocks(), 4);
    }

    #[test]
    fn bytes_are_copied_in_wherever_they_begin_and_round_the_end() {
        let mapping = mapping(4096);
        let ring = BlockRing::new(Arc::clone(&mapping), 1024, 4).unwrap();
        let bytes: Vec<u8> = (1..=250).collect();
        for offset in [0, 1, 7, 8, 31, 32, 40, 63, 64] {
            for length in [0, 1, 7, 8, 9, 31, 32, 33, 64, 65, 100, 250] {
                for source in [0, 3] {
                    (0..4).for_each(|block| ring.write(block, &[0; 8]));
                    let length = length.min(bytes.len() - source);
                    let from = bytes[source..].as_ptr();
                    // SAFETY: there are so many bytes.
                    unsafe { ring.copy_in(u32::MAX, offset, from, length) };
                    let mut all = [0; 256];
                    mapping.read_bytes(1024, &mut all).unwrap();
                    let at = |number: usize| all[(3 * 64 + offset + number) % 256];
                    let seen: Vec<u8> = (0..length).map(at).collect();
                    assert_eq!(seen, bytes[source..][..length], "{length} at {offset}");
                    assert!((length..256).all(|number| at(number) == 0), "{length} at {offset}");
                }
            }
        }
        assert_eq!(mapping.load_relaxed_u64(1024 - 8).unwrap(), 0);
        assert_eq!(mapping.load_relaxed_u64(1024 + 256).unwrap(), 0);
    }

    #[test]
    fn words_are_little_endian_in_memory() {
        let mapping = mapping(4096);
        let ring = BlockRing::new(Arc::clone(&mapping), 0, 1).unwrap();
        ring.write_published(0, &[0x0807_0605_0403_0201, 0, 0, 0, 0, 0, 0, 0x80 << 56]);
        let mut bytes = [0; 64];
        mapping.read_bytes(0, &mut bytes).unwrap();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[63], 0x80);
        assert_eq!(ring.block(0).written(|_| true).unwrap().last(), 0x80 << 56);
    }

    #[test]
    fn a_block_is_read_where_its_last_word_says_that_it_is_written() {
        let ring = BlockRing::new(mapping(4096), 0, 2).unwrap();
        assert!(ring.block(1).written(|last| last != 0).is_none());
        let block = [0x2_0000_0001, 3, 4, 5, 6, 7, 8, 9];
        ring.write_published(1, &block);
        let written = ring.block(1).written(|last| last == 9).unwrap();
        assert_eq!((written.last(), written.load()), (9, block));
        assert_eq!(written.load_first(), [0x2_0000_0001, 3]);
        assert_eq!((written.load_half(0), written.load_half(1), written.load_half(17)), (1, 2, 2));
        // The bytes that were checked are the bytes that are used, whatever the writer does meanwhile.
        ring.write_published(1, &[0; 8]);
        assert_eq!((written.last(), written.load()[7]), (9, 9));
    }

    #[test]
    fn a_view_must_lie_within_its_mapping_and_be_aligned() {
        let mapping = mapping(4096);
        for blocks in [0, 3, 65] {
            let refused = BlockRing::new(Arc::clone(&mapping), 0, blocks).unwrap_err();
            assert!(matches!(refused, Error::BadSize { .. }));
        }
        BlockRing::new(Arc::clone(&mapping), 0, 64).unwrap();
        for (offset, blocks) in [(0, 128), (64, 64), (4096, 1), (64, 1 << 31)] {
            let refused = BlockRing::new(Arc::clone(&mapping), offset, blocks).unwrap_err();
            assert!(matches!(refused, Error::OutOfRange { .. }));
        }
        assert!(matches!(BlockRing::new(mapping.clone(), 32, 1), Err(Error::Misaligned { .. })));
        assert!(matches!(Record::new(mapping.clone(), 4096), Err(Error::OutOfRange { .. })));
        assert!(matches!(Record::new(mapping.clone(), 8), Err(Error::Misaligned { .. })));
        assert!(matches!(DoorbellPage::new(mapping.clone(), 64), Err(Error::Misaligned { .. })));
        assert!(matches!(DoorbellPage::new(mapping, 4096), Err(Error::OutOfRange { .. })));
    }

    #[cfg(not(miri))]
    #[test]
    fn views_of_read_only_mappings_are_refused() {
        let fd = memfd::create("ring", 4096).unwrap();
        let mapping = Arc::new(SharedMapping::new(fd.as_fd(), 0, 4096, Access::ReadOnly).unwrap());
        assert!(matches!(BlockRing::new(mapping.clone(), 0, 1), Err(Error::ReadOnly { .. })));
        assert!(matches!(Record::new(mapping.clone(), 0), Err(Error::ReadOnly { .. })));
        assert!(matches!(DoorbellPage::new(mapping, 0), Err(Error::ReadOnly { .. })));
    }

    #[test]
    fn a_record_is_sixteen_or_eight_words() {
        let mapping = mapping(4096);
        let record = Record::new(Arc::clone(&mapping), 128).unwrap();
        record.store_release_u32(1, 0xaabb_ccdd);
        record.store_release_u32(15, 3);
        record.store_release_u64(1, 0x1122_3344_5566_7788);
        assert_eq!(record.load_acquire_u64(0), 0xaabb_ccdd << 32);
        assert_eq!(record.load_relaxed_u64(7), 3 << 32);
        assert_eq!(record.load_acquire_u32(2), 0x5566_7788);
        assert_eq!(record.load_relaxed_u32(3), 0x1122_3344);
        assert_eq!(mapping.load_relaxed_u32(128 + 60).unwrap(), 3);
    }

    #[test]
    fn doorbell_slots_wrap_within_their_page() {
        let mapping = mapping(8192);
        let page = DoorbellPage::new(Arc::clone(&mapping), 4096).unwrap();
        page.ring(511, 5);
        page.ring(512, 6);
        assert_eq!((page.read(0), page.read(511)), (6, 5));
        assert_eq!(mapping.load_relaxed_u64(4096).unwrap(), 6);
        assert_eq!(mapping.load_relaxed_u64(8184).unwrap(), 5);
        assert_eq!(mapping.load_relaxed_u64(4088).unwrap(), 0);
    }

    #[test]
    fn a_published_block_is_seen_whole_by_another_thread() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 2000 };
        let mapping = mapping(4096);
        let producer = BlockRing::new(Arc::clone(&mapping), 0, 1).unwrap();
        let consumer = producer.clone();
        let acknowledged = Record::new(mapping, 64).unwrap();
        let acknowledge = acknowledged.clone();
        let thread = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                producer.write_published(0, &[round; 8]);
                while acknowledged.load_acquire_u64(0) != round {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=ROUNDS {
            let written = loop {
                match consumer.block(0).written(|last| last == round) {
                    Some(written) => break written,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(written.load(), [round; 8]);
            acknowledge.store_release_u64(0, round);
        }
        thread.join().unwrap();
    }
}
