//! The QPs that complete on a completion queue, found by number.

use std::sync::Arc;

use crate::qp::Queues;

/// A QP on a completion queue.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its queues.
    pub queues: Arc<Queues>,
    /// Its send queue completes here.
    pub sends: bool,
    /// Its receive queue completes here.
    pub receives: bool,
}

/// QPs by number, in an open-addressed table at most half full.
///
/// A look-up is a mask, two loads and a comparison, so a last-hit cache would gain nothing. Numbers
/// are drawn at random or counted up, so their low bits spread them.
#[derive(Debug)]
pub(crate) struct QpTable {
    slots: Vec<Option<Entry>>,
    used: usize,
}

/// The fewest slots, a power of two.
const SMALLEST: usize = 4;

impl QpTable {
    /// Makes an empty table.
    pub(crate) fn new() -> Self {
        Self { slots: vec![None; SMALLEST], used: 0 }
    }

    /// Where the search for a number begins, and the mask of slot indices.
    #[inline(always)]
    fn start(&self, qpn: u32) -> (usize, usize) {
        let mask = self.slots.len().wrapping_sub(1);
        (qpn as usize & mask, mask)
    }

    /// Finds a QP.
    #[inline(always)]
    pub(crate) fn get(&self, qpn: u32) -> Option<&Entry> {
        let (at, mask) = self.start(qpn);
        match self.slots.get(at)? {
            Some(entry) if entry.queues.qpn() == qpn => Some(entry),
            Some(_) => self.find(at, mask, qpn),
            None => None,
        }
    }

    /// Finds a QP that does not stand where the search for it begins.
    #[inline(never)]
    fn find(&self, at: usize, mask: usize, qpn: u32) -> Option<&Entry> {
        let mut at = at.wrapping_add(1) & mask;
        // An empty slot ends the search: half of them are.
        loop {
            match self.slots.get(at)? {
                Some(entry) if entry.queues.qpn() == qpn => return Some(entry),
                Some(_) => at = at.wrapping_add(1) & mask,
                None => return None,
            }
        }
    }

    /// Adds a QP whose number is not in the table.
    pub(crate) fn insert(&mut self, entry: Entry) {
        self.used = self.used.saturating_add(1);
        if self.used.saturating_mul(2) > self.slots.len() {
            self.rebuild(self.slots.len().saturating_mul(2), |_| true);
        }
        self.place(entry);
    }

    /// Takes a QP out.
    pub(crate) fn remove(&mut self, qpn: u32) {
        self.rebuild(self.slots.len(), |entry| entry.queues.qpn() != qpn);
        self.used = self.iter().count();
    }

    /// All QPs, in the order of their slots, which the numbers alone decide.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().flatten()
    }

    fn rebuild(&mut self, slots: usize, keep: impl Fn(&Entry) -> bool) {
        let old = std::mem::replace(&mut self.slots, vec![None; slots]);
        for entry in old.into_iter().flatten().filter(keep) {
            self.place(entry);
        }
    }

    fn place(&mut self, entry: Entry) {
        let (mut at, mask) = self.start(entry.queues.qpn());
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.is_none() {
                *slot = Some(entry);
                return;
            }
            at = at.wrapping_add(1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::tests::queues;

    #[test]
    fn every_number_is_found_until_it_is_removed() {
        let mut table = QpTable::new();
        // Multiples of the table's size collide as much as numbers can.
        let numbers: Vec<u32> = (0..200).map(|i| i * 4096 % 0xff_ffff + i % 3).collect();
        for &qpn in &numbers {
            assert!(table.get(qpn).is_none());
            table.insert(Entry { queues: queues(qpn, 0), sends: true, receives: true });
        }
        for &qpn in &numbers {
            assert_eq!(table.get(qpn).unwrap().queues.qpn(), qpn);
        }
        for (i, &qpn) in numbers.iter().enumerate() {
            table.remove(qpn);
            assert!(table.get(qpn).is_none());
            assert_eq!(table.iter().count(), numbers.len() - i - 1);
            assert!(numbers[i + 1..].iter().all(|&qpn| table.get(qpn).is_some()));
        }
        assert!(table.slots.len() <= 512);
    }
}
