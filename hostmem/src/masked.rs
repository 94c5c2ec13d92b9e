//! A table beside a ring: indices that a peer named find a place in it, whatever they are.

/// A table of 2^n entries whose indices are taken modulo their number, so that no look-up fails.
#[derive(Debug)]
pub struct MaskedTable<T> {
    entries: Box<[T]>,
    /// One less than the number of entries, a power of two.
    mask: u32,
}

impl<T: Default> MaskedTable<T> {
    /// Makes a table of at least that many entries, at most 2^31, of default values.
    pub fn new(entries: u32) -> Self {
        let entries = entries.clamp(1, 1 << 31).next_power_of_two();
        let all = std::iter::repeat_with(T::default).take(entries as usize);
        Self { entries: all.collect(), mask: entries - 1 }
    }
}

impl<T> MaskedTable<T> {
    /// One less than the number of entries.
    #[inline(always)]
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// The entry with an index, modulo the number of entries.
    #[inline(always)]
    pub fn get(&self, index: u32) -> &T {
        // SAFETY: `new` made one entry more than the mask, to which the index is brought down.
        unsafe { self.entries.get_unchecked((index & self.mask) as usize) }
    }

    /// The entry with an index, modulo the number of entries, to be changed.
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        // SAFETY: as in `get`.
        unsafe { self.entries.get_unchecked_mut((index & self.mask) as usize) }
    }

    /// All entries in order, by value.
    pub fn into_entries(self) -> impl Iterator<Item = T> {
        self.entries.into_iter()
    }

    /// All entries in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_finds_an_entry() {
        for (asked, made) in [(0, 1), (1, 1), (5, 8), (8, 8)] {
            let mut table = MaskedTable::<u32>::new(asked);
            assert_eq!((table.iter().len(), table.mask()), (made, made as u32 - 1));
            *table.get_mut(u32::MAX) = 7;
            assert_eq!(*table.get(made as u32 - 1), 7);
        }
    }
}
