//! The QPs that complete on a completion queue, found by number.

use std::sync::Arc;

use hostmem::MaskedTable;

use crate::qp::Queues;

/// QPs by number, in an open-addressed table at most half full.
///
/// A look-up is a mask, two loads and a comparison. Numbers are drawn at random or counted up, so
/// their low bits spread them.
#[derive(Debug)]
pub(crate) struct QpTable {
    slots: MaskedTable<Option<Arc<Queues>>>,
    used: u32,
}

/// The fewest slots, a power of two.
const SMALLEST: u32 = 4;

impl QpTable {
    /// Makes an empty table.
    pub(crate) fn new() -> Self {
        Self { slots: MaskedTable::new(SMALLEST), used: 0 }
    }

    /// Finds a QP that stands where the search for it begins, as most do; `None` may mean that it
    /// stands elsewhere.
    #[inline(always)]
    pub(crate) fn get_first(&self, qpn: u32) -> Option<&Queues> {
        self.slots.get(qpn).as_deref().filter(|queues| queues.qpn() == qpn)
    }

    /// Finds a QP.
    #[inline(always)]
    pub(crate) fn get(&self, qpn: u32) -> Option<&Queues> {
        let mut at = qpn;
        // An empty slot ends the search: half of them are.
        while let Some(queues) = self.slots.get(at).as_deref() {
            if queues.qpn() == qpn {
                return Some(queues);
            }
            at = at.wrapping_add(1);
        }
        None
    }

    /// Adds a QP whose number is not in the table.
    pub(crate) fn insert(&mut self, queues: Arc<Queues>) {
        self.used = self.used.saturating_add(1);
        if self.used > self.slots.mask().div_ceil(2) {
            self.rebuild(self.slots.mask().saturating_add(1).saturating_mul(2), |_| true);
        }
        self.place(queues);
    }

    /// Takes a QP out.
    pub(crate) fn remove(&mut self, qpn: u32) {
        self.rebuild(self.slots.mask().saturating_add(1), |queues| queues.qpn() != qpn);
        self.used = self.iter().count() as u32;
    }

    /// All QPs, in the order of their slots, which the numbers alone decide.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queues> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    fn rebuild(&mut self, slots: u32, keep: impl Fn(&Queues) -> bool) {
        let old = std::mem::replace(&mut self.slots, MaskedTable::new(slots));
        for queues in old.into_entries().flatten().filter(|queues| keep(queues)) {
            self.place(queues);
        }
    }

    fn place(&mut self, queues: Arc<Queues>) {
        let mut at = queues.qpn();
        while self.slots.get(at).is_some() {
            at = at.wrapping_add(1);
        }
        *self.slots.get_mut(at) = Some(queues);
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
            table.insert(queues(qpn, 0));
        }
        for &qpn in &numbers {
            assert_eq!(table.get(qpn).unwrap().qpn(), qpn);
        }
        for (i, &qpn) in numbers.iter().enumerate() {
            table.remove(qpn);
            assert!(table.get(qpn).is_none());
            assert_eq!(table.iter().count(), numbers.len() - i - 1);
            assert!(numbers[i + 1..].iter().all(|&qpn| table.get(qpn).is_some()));
        }
        assert!(table.slots.mask() < 512);
    }
}
