//! A table beside a ring: any index that a peer names finds a place in it.

use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A lender of memory to tables.
///
/// # Safety
/// [`lend`](Self::lend) returns memory of that layout, which no other code uses before it is taken back. Any thread
/// may be the one that drops a table.
pub unsafe trait Lender: fmt::Debug + Send + Sync {
    /// Lends memory, with arbitrary contents.
    fn lend(&self, layout: Layout) -> Lent;

    /// Takes memory back that it lent and that is not used any more.
    ///
    /// # Safety
    /// The memory was returned by [`lend`](Self::lend), and is given back once.
    unsafe fn take_back(&self, memory: NonNull<u8>);
}

/// The answer of a [`Lender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// The memory.
    Memory(NonNull<u8>),
    /// The heap's memory is to be taken.
    Heap,
    /// There is none.
    None,
}

/// A table of 2^n entries whose indices are taken modulo their number, so that no look-up fails.
#[derive(Debug)]
pub struct MaskedTable<T> {
    /// The first of its entries, all of which are initialised.
    entries: NonNull<T>,
    /// One less than the number of entries, a power of two.
    mask: u32,
    /// Whose memory it is, unless it is the heap's.
    lender: Option<Arc<dyn Lender>>,
}

// SAFETY: a table owns its entries, as a box of them would, and lenders may be used by any thread.
unsafe impl<T: Send> Send for MaskedTable<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for MaskedTable<T> {}

impl<T: Default> MaskedTable<T> {
    /// Makes a table of at least that many entries, at most 2^31, of default values.
    pub fn new(entries: u32) -> Self {
        let entries = size(entries);
        let all: Box<[T]> = std::iter::repeat_with(T::default).take(entries as usize).collect();
        let entries_at = NonNull::from(Box::leak(all)).cast();
        Self { entries: entries_at, mask: entries - 1, lender: None }
    }

    /// A table in memory of a lender, as [`Self::new`]; `None` where that has none.
    pub fn lent(entries: u32, lender: Option<&Arc<dyn Lender>>) -> Option<Self> {
        let Some(lender) = lender else { return Some(Self::new(entries)) };
        let entries = size(entries);
        let memory = match lender.lend(Layout::array::<T>(entries as usize).ok()?) {
            Lent::Memory(memory) => memory.cast::<T>(),
            Lent::Heap => return Some(Self::new(entries)),
            Lent::None => return None,
        };
        for index in 0..entries as usize {
            // SAFETY: the place is one of the array that was lent, which is aligned.
            unsafe { memory.add(index).write(T::default()) };
        }
        Some(Self { entries: memory, mask: entries - 1, lender: Some(Arc::clone(lender)) })
    }

    /// All entries in order, by value.
    pub fn into_entries(mut self) -> impl Iterator<Item = T> {
        (0..=self.mask).map(move |index| std::mem::take(self.get_mut(index)))
    }
}

/// The number of entries that a table gets.
fn size(entries: u32) -> u32 {
    entries.clamp(1, 1 << 31).next_power_of_two()
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
        // SAFETY: there is one entry more than the mask, to which the index is brought down.
        unsafe { self.entries.add((index & self.mask) as usize).as_ref() }
    }

    /// The entry with an index, modulo the number of entries, to be changed.
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        // SAFETY: as in `get`; the table is borrowed as a whole.
        unsafe { self.entries.add((index & self.mask) as usize).as_mut() }
    }

    /// All entries in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        // SAFETY: there is one entry more than the mask.
        unsafe { NonNull::slice_from_raw_parts(self.entries, self.mask as usize + 1).as_ref() }
            .iter()
    }
}

impl<T> Drop for MaskedTable<T> {
    fn drop(&mut self) {
        let all = NonNull::slice_from_raw_parts(self.entries, self.mask as usize + 1);
        match &self.lender {
            // SAFETY: `new` leaked a box of that many entries.
            None => drop(unsafe { Box::from_raw(all.as_ptr()) }),
            Some(lender) => {
                // SAFETY: all entries are initialised, and not used afterwards.
                unsafe { all.as_ptr().drop_in_place() };
                // SAFETY: `lent` got the memory from this lender.
                unsafe { lender.take_back(self.entries.cast()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

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

    /// Lends memory of the heap, and notes it.
    #[derive(Debug, Default)]
    struct Noting {
        lent: Mutex<Vec<(usize, Layout)>>,
    }

    // SAFETY: the memory is new, and its layout is kept until it is taken back.
    unsafe impl Lender for Noting {
        fn lend(&self, layout: Layout) -> Lent {
            // SAFETY: no table has entries of no size here.
            let memory = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
            // SAFETY: it is that large.
            unsafe { memory.write_bytes(0xff, layout.size()) };
            self.lent.lock().unwrap().push((memory.as_ptr() as usize, layout));
            Lent::Memory(memory)
        }

        unsafe fn take_back(&self, memory: NonNull<u8>) {
            let mut lent = self.lent.lock().unwrap();
            let at = lent.iter().position(|it| it.0 == memory.as_ptr() as usize).unwrap();
            // SAFETY: it was allocated with that layout.
            unsafe { std::alloc::dealloc(memory.as_ptr(), lent.swap_remove(at).1) };
        }
    }

    #[test]
    fn lent_memory_is_initialised_and_given_back_with_all_that_was_in_it() {
        let noting = Arc::new(Noting::default());
        let lender: Arc<dyn Lender> = noting.clone();
        let mut table = MaskedTable::<Option<Arc<u8>>>::lent(5, Some(&lender)).unwrap();
        assert_eq!(noting.lent.lock().unwrap()[0].1, Layout::array::<Option<Arc<u8>>>(8).unwrap());
        assert!(table.iter().all(Option::is_none));
        let entry = Arc::new(7);
        *table.get_mut(3) = Some(Arc::clone(&entry));
        assert_eq!(table.into_entries().flatten().count(), 1);
        assert_eq!((noting.lent.lock().unwrap().len(), Arc::strong_count(&entry)), (0, 1));
    }

    /// Lends nothing.
    #[derive(Debug)]
    struct Lending(Lent);

    // SAFETY: it lends nothing. (The pointer of an answer is none here.)
    unsafe impl Send for Lending {}
    // SAFETY: as above.
    unsafe impl Sync for Lending {}

    // SAFETY: as above.
    unsafe impl Lender for Lending {
        fn lend(&self, _layout: Layout) -> Lent {
            self.0
        }

        unsafe fn take_back(&self, _memory: NonNull<u8>) {
            panic!("it lent nothing");
        }
    }

    #[test]
    fn a_lender_may_leave_it_to_the_heap_or_have_nothing() {
        let lending = |lent| -> Arc<dyn Lender> { Arc::new(Lending(lent)) };
        assert_eq!(MaskedTable::<u32>::lent(4, Some(&lending(Lent::Heap))).unwrap().mask(), 3);
        assert!(MaskedTable::<u32>::lent(4, Some(&lending(Lent::None))).is_none());
        assert_eq!(MaskedTable::<u32>::lent(4, None).unwrap().mask(), 3);
    }
}
