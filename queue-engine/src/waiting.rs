//! QPs that wait, by turns of their clients.

use std::collections::VecDeque;

/// Places that the list of a client keeps when it has run empty.
const KEPT: usize = 64;

/// QPs that wait, each at most once.
///
/// Clients take turns, and those of one come in the order in which they were added. So a QP's wait depends on
/// the number of clients with waiting QPs, and on its own client's QPs, not on the number of the others'.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Clients of which some wait, in the order of their turns.
    clients: VecDeque<u8>,
    /// The waiting QPs of each client, by its number.
    qpns: Vec<VecDeque<u32>>,
    len: usize,
}

impl Waiting {
    /// Bytes that a QP takes here at most.
    pub(crate) const BYTES_OF_EACH: usize = 2 * size_of::<u32>();

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds one that does not wait yet, behind the others of its client.
    pub(crate) fn push(&mut self, client: u8, qpn: u32) {
        let index = usize::from(client);
        if self.qpns.len() <= index {
            self.qpns.resize_with(index.saturating_add(1), VecDeque::new);
        }
        let Some(qpns) = self.qpns.get_mut(index) else { return };
        if qpns.is_empty() {
            self.clients.push_back(client);
        }
        qpns.push_back(qpn);
        self.len = self.len.saturating_add(1);
    }

    /// Takes the next one, of the client whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let client = self.clients.pop_front()?;
        let qpns = self.qpns.get_mut(usize::from(client))?;
        let qpn = qpns.pop_front()?;
        self.len = self.len.saturating_sub(1);
        if !qpns.is_empty() {
            self.clients.push_back(client);
        } else if qpns.capacity() > KEPT {
            *qpns = VecDeque::new();
        }
        Some(qpn)
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_whatever_each_has() {
        let mut waiting = Waiting::default();
        (0..1000).for_each(|qpn| waiting.push(3, qpn));
        waiting.push(200, 5000);
        (6000..6002).for_each(|qpn| waiting.push(1, qpn));
        assert_eq!(waiting.len(), 1003);
        let order: Vec<u32> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order[..6], [0, 5000, 6000, 1, 6001, 2]);
        assert!(order[5..].is_sorted() && order.len() == 1003);
        assert_eq!((waiting.len(), waiting.pop()), (0, None));
    }

    #[test]
    fn what_thousands_took_is_given_back() {
        let mut waiting = Waiting::default();
        (0..10_000).for_each(|qpn| waiting.push(1, qpn));
        while waiting.pop().is_some() {}
        assert!(waiting.qpns.iter().all(|qpns| qpns.capacity() <= KEPT));
        waiting.push(1, 7);
        waiting.clear();
        assert_eq!(waiting.pop(), None);
    }
}
