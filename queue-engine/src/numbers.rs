//! Numbers for objects and keys: drawn at random, and rested before they are used again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A source of random bits: the kernel's generator, or a seeded one in tests.
pub trait Random {
    /// 32 random bits.
    fn next_u32(&mut self) -> u32;
}

/// A table by object number.
pub(crate) type ByNumber<T> = HashMap<u32, T, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers that are random already; no other side can choose them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0.wrapping_shr(32)
    }
}

/// Freed numbers that are not given out again yet.
const RESTING: usize = 4096;

/// The numbers of one kind of object.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Bits a drawn number has.
    bits: u32,
    /// Set in every number above those bits.
    prefix: u32,
    /// Numbers in use, and resting ones.
    taken: HashSet<u32, BuildHasherDefault<NumberHasher>>,
    resting: VecDeque<u32>,
    limit: usize,
}

impl Numbers {
    /// Numbers of `bits` random bits below `prefix`, at most `limit` in use at a time.
    ///
    /// Numbers whose random part is 0, 1 or all ones are never drawn: QPNs 0 and 1 have a meaning of
    /// their own, and all ones is multicast.
    pub(crate) fn new(bits: u32, prefix: u32, limit: u32) -> Self {
        Self {
            bits,
            prefix,
            taken: HashSet::default(),
            resting: VecDeque::new(),
            limit: limit.min(Self::most(bits)) as usize,
        }
    }

    /// The most numbers of `bits` random bits that may be in use at a time, so that together with
    /// the resting ones they fill at most half of the space.
    pub(crate) const fn most(bits: u32) -> u32 {
        (1u32.wrapping_shl(bits) >> 1).saturating_sub(RESTING as u32)
    }

    /// Draws a number, or `None` when the limit is reached.
    pub(crate) fn draw(&mut self, random: &mut impl Random) -> Option<u32> {
        if self.taken.len().saturating_sub(self.resting.len()) >= self.limit {
            return None;
        }
        let mask = 1u32.wrapping_shl(self.bits).wrapping_sub(1);
        // Half of the space is free at least, so this ends soon.
        loop {
            let low = random.next_u32() & mask;
            if low > 1 && low < mask && self.taken.insert(low | self.prefix) {
                return Some(low | self.prefix);
            }
        }
    }

    /// Gives a number back; it rests until as many others were freed. One that was not drawn, as QP 1's, is
    /// nothing to it.
    pub(crate) fn free(&mut self, number: u32) {
        if !self.taken.contains(&number) {
            return;
        }
        self.resting.push_back(number);
        if self.resting.len() > RESTING {
            if let Some(rested) = self.resting.pop_front() {
                self.taken.remove(&rested);
            }
        }
    }
}

/// Takes an object out of a table, and gives room back of which seven eighths are empty: a table keeps
/// its objects in itself.
pub(crate) fn take<T>(table: &mut ByNumber<T>, number: u32) -> Option<T> {
    let object = table.remove(&number)?;
    if table.len() < table.capacity() / 8 {
        table.shrink_to(table.len().saturating_mul(2));
    }
    Some(object)
}

/// Empties a table and lets its numbers rest.
pub(crate) fn free_all<T>(table: &mut ByNumber<T>, numbers: &mut Numbers) {
    let mut all: Vec<u32> = std::mem::take(table).into_keys().collect();
    all.sort_unstable();
    for number in all {
        numbers.free(number);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small seeded generator (xorshift), for tests only.
    #[derive(Clone, Debug)]
    pub(crate) struct Seeded(pub u32);

    impl Random for Seeded {
        fn next_u32(&mut self) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 17;
            self.0 ^= self.0 << 5;
            self.0
        }
    }

    #[test]
    fn a_freed_number_rests_while_thousands_are_drawn() {
        let mut random = Seeded(7);
        // A space so small that without rest a number would come again at once.
        let mut numbers = Numbers::new(14, 0x30_0000, 100);
        let mut freed = HashMap::new();
        for round in 0..60_000 {
            let next = numbers.draw(&mut random).unwrap();
            assert!((0x30_0002..0x30_3fff).contains(&next), "{next:#x} has a meaning of its own");
            if let Some(before) = freed.insert(next, round) {
                assert!(round - before > RESTING, "{next:#x} did not rest");
            }
            numbers.free(next);
        }
    }

    #[test]
    fn an_emptied_table_lets_its_numbers_rest() {
        let mut random = Seeded(7);
        let mut numbers = Numbers::new(14, 0, 1000);
        let mut table = ByNumber::default();
        for _ in 0..1000 {
            table.insert(numbers.draw(&mut random).unwrap(), ());
        }
        let before: HashSet<u32> = table.keys().copied().collect();
        free_all(&mut table, &mut numbers);
        assert!(table.is_empty());
        for _ in 0..1000 {
            assert!(!before.contains(&numbers.draw(&mut random).unwrap()));
        }
    }

    #[test]
    fn a_table_gives_the_room_back_that_it_had() {
        let mut table = ByNumber::default();
        for turn in 0..3 {
            table.extend((0..10_000).map(|number| (number, turn)));
            for number in 0..10_000 {
                assert_eq!(take(&mut table, number), Some(turn));
                assert!(table.capacity() <= 16 * table.len().max(4), "{}", table.len());
            }
            assert_eq!(take(&mut table, 0), None);
        }
    }

    #[test]
    fn the_limit_counts_numbers_in_use_only() {
        let mut random = Seeded(7);
        let mut numbers = Numbers::new(16, 0, 2);
        let first = numbers.draw(&mut random).unwrap();
        assert!(numbers.draw(&mut random).is_some());
        assert_eq!(numbers.draw(&mut random), None);
        numbers.free(first);
        assert!(numbers.draw(&mut random).is_some());
    }
}
