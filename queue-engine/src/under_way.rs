//! The messages under way of a QP: the send WQEs that were fetched and are not complete.
//!
//! Room for them doubles as they become more. Each QP has some of its own. Further room
//! comes out of its client's share, which all QPs of one client have together; so programs can make a
//! card keep a bounded amount, with any number of QPs. Where half of a share is used,
//! room is halved as messages become fewer. A QP that gets no more goes on with the room it has: it
//! fetches when one of its own messages is complete, and waits for no other QP's.

use std::collections::VecDeque;

use fpga_regs::engine::cqe::{self, Status};
use fpga_regs::engine::wqe::{MAX_SGE, Sge};

/// Messages that every QP has room for.
const OWN_MESSAGES: usize = 32;
/// Scatter/gather elements that every QP has room for: enough for any message.
const OWN_ELEMENTS: usize = 64;
/// The first room.
const FIRST: usize = 8;

const _: () = assert!(OWN_ELEMENTS >= MAX_SGE && size_of::<InFlight>() <= 20);
const _: () = assert!(OWN_MESSAGES.is_power_of_two() && OWN_ELEMENTS.is_power_of_two());

/// Bytes that a transport may keep of a message under way.
pub const TRANSPORT_MESSAGE_BYTES: usize = 80;
/// Bytes that are kept of a message under way, besides its elements.
const MESSAGE_BYTES: usize = size_of::<InFlight>() + TRANSPORT_MESSAGE_BYTES;

/// Bytes that all that a QP has under way takes without a share.
pub(crate) const OWN_BYTES: usize = OWN_MESSAGES * MESSAGE_BYTES + OWN_ELEMENTS * size_of::<Sge>();

/// A send WQE that was fetched and is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// First block of the WQE.
    pub(crate) wqe_index: u32,
    pub(crate) length: u32,
    pub(crate) payload: LocalPayload,
    pub(crate) opcode: cqe::Opcode,
    pub(crate) signaled: bool,
    /// It was never submitted, for this reason.
    pub(crate) failed: Option<Status>,
}

/// Where the bytes of a send WQE lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalPayload {
    /// In the WQE.
    Inline,
    /// In registered memory: so many elements, the first of which has this number.
    Gather { first: u32, count: u8 },
}

/// The room that the QPs of one client use beyond their own, in bytes.
#[derive(Debug)]
pub(crate) struct Share {
    limit: usize,
    used: usize,
}

impl Share {
    /// An unused share.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: 0 }
    }

    /// Bytes that are used.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether other QPs may come to need the unused room.
    #[inline]
    fn is_scarce(&self) -> bool {
        self.used > self.limit / 2
    }

    /// Whether a QP that uses `from` bytes of it may use `to` bytes.
    fn allows(&self, from: usize, to: usize) -> bool {
        to <= from || self.used.saturating_sub(from).saturating_add(to) <= self.limit
    }

    /// Notes that a QP's use changes.
    fn change(&mut self, from: usize, to: usize) {
        self.used = self.used.saturating_sub(from).saturating_add(to);
    }
}

/// The shares of all clients, by their numbers.
#[derive(Debug)]
pub(crate) struct Shares([Share; u8::MAX as usize + 1]);

impl Shares {
    /// Unused shares of so many bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self(std::array::from_fn(|_| Share::new(limit)))
    }

    /// The share of a client.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "there is one for each number")]
    pub(crate) fn of(&mut self, client: u8) -> &mut Share {
        &mut self.0[usize::from(client)]
    }

    /// Bytes of it that are used.
    pub(crate) fn used(&self, client: u8) -> usize {
        self.0.get(usize::from(client)).map_or(0, Share::used)
    }
}

/// The send WQEs of a QP that were fetched and are not complete, oldest first.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    messages: VecDeque<InFlight>,
    /// Their elements, in the same order.
    elements: VecDeque<Sge>,
    /// Messages that were there before the oldest: its number.
    past: u64,
    /// Elements that were there before the oldest.
    past_elements: u32,
}

impl UnderWay {
    /// The oldest message.
    pub(crate) fn front(&self) -> Option<&InFlight> {
        self.messages.front()
    }

    /// The number of the oldest message, or of the next one.
    pub(crate) fn oldest(&self) -> u64 {
        self.past
    }

    /// The number of the next message.
    pub(crate) fn next(&self) -> u64 {
        self.past.wrapping_add(self.messages.len() as u64)
    }

    /// The message of that number.
    pub(crate) fn message(&self, number: u64) -> Option<&InFlight> {
        let index = usize::try_from(number.checked_sub(self.past)?).ok()?;
        self.messages.get(index).filter(|message| message.failed.is_none())
    }

    /// The elements of a payload in registered memory.
    #[inline]
    pub(crate) fn elements(&self, first: u32, count: u8) -> impl Iterator<Item = Sge> {
        let start = first.wrapping_sub(self.past_elements) as usize;
        let end = start.saturating_add(usize::from(count));
        (start..end).map_while(|index| self.elements.get(index).copied())
    }

    /// The elements of all messages.
    pub(crate) fn all_elements(&self) -> impl Iterator<Item = Sge> {
        self.elements.iter().copied()
    }

    /// Whether there is room for another message with so many elements, now or by the client's share.
    #[inline]
    pub(crate) fn has_room(&mut self, elements: usize, share: &mut Share) -> bool {
        let fits = self.messages.len() < self.messages.capacity()
            && self.elements.len().saturating_add(elements) <= self.elements.capacity();
        fits || self.grow(elements, share)
    }

    /// Makes room for another message with so many elements, if the client's share allows.
    fn grow(&mut self, elements: usize, share: &mut Share) -> bool {
        let messages = more(&self.messages, 1);
        let elements = more(&self.elements, elements);
        let (before, after) = (self.charge(), charge(messages, elements));
        if !share.allows(before, after) {
            return false;
        }
        self.messages.reserve_exact(messages.saturating_sub(self.messages.len()));
        self.elements.reserve_exact(elements.saturating_sub(self.elements.len()));
        share.change(before, self.charge());
        true
    }

    /// Its part of the client's share.
    fn charge(&self) -> usize {
        charge(self.messages.capacity(), self.elements.capacity())
    }

    /// The number of the next element.
    pub(crate) fn next_element(&self) -> u32 {
        self.past_elements.wrapping_add(self.elements.len() as u32)
    }

    /// Adds an element of the next message, for which there is room.
    pub(crate) fn add_element(&mut self, sge: Sge) {
        self.elements.push_back(sge);
    }

    /// Drops the elements of a message that is not added after all.
    pub(crate) fn drop_elements(&mut self, message: &InFlight) {
        if let LocalPayload::Gather { first, .. } = message.payload {
            self.elements.truncate(first.wrapping_sub(self.past_elements) as usize);
        }
    }

    /// Adds a message, for which there is room, behind its elements.
    pub(crate) fn push(&mut self, message: InFlight) {
        self.messages.push_back(message);
    }

    /// Takes the oldest message. Its room is given back by [`UnderWay::settle`].
    pub(crate) fn pop(&mut self) -> Option<InFlight> {
        let message = self.messages.pop_front()?;
        // The transport does not count messages that it was never given.
        self.past = self.past.wrapping_add(u64::from(message.failed.is_none()));
        if let LocalPayload::Gather { count, .. } = message.payload {
            for _ in 0..count {
                self.elements.pop_front();
            }
            self.past_elements = self.past_elements.wrapping_add(u32::from(count));
        }
        Some(message)
    }

    /// Gives room back of which three quarters are empty, where it is scarce; whether there was any, so
    /// that the transport's is to follow.
    #[inline]
    pub(crate) fn settle(&mut self, share: &mut Share) -> bool {
        if !share.is_scarce() {
            return false;
        }
        let before = self.charge();
        let messages = narrow(&mut self.messages, OWN_MESSAGES);
        let elements = narrow(&mut self.elements, OWN_ELEMENTS);
        share.change(before, self.charge());
        messages || elements
    }

    /// Gives all room back once nothing is under way, for a QP that fetches no more.
    pub(crate) fn close(&mut self, share: &mut Share) {
        if self.messages.is_empty() {
            share.change(self.charge(), 0);
            (self.messages, self.elements) = Default::default();
        }
    }

    /// Forgets everything, and begins to count anew.
    pub(crate) fn reset(&mut self, share: &mut Share) {
        share.change(self.charge(), 0);
        *self = Self::default();
    }
}

/// The part of a share that room for so many messages and elements takes.
fn charge(messages: usize, elements: usize) -> usize {
    let messages = messages.saturating_sub(OWN_MESSAGES).saturating_mul(MESSAGE_BYTES);
    let elements = elements.saturating_sub(OWN_ELEMENTS).saturating_mul(size_of::<Sge>());
    messages.saturating_add(elements)
}

/// The room that a queue needs for so many more: a power of two, so that all that is its own is used
/// before anything of a share.
fn more<T>(queue: &VecDeque<T>, count: usize) -> usize {
    let wanted = queue.len().saturating_add(count);
    match queue.capacity() {
        enough if wanted <= enough => enough,
        _ => wanted.max(FIRST).next_power_of_two(),
    }
}

/// Halves the room of a queue as long as three quarters of it are empty and it has more than it is sure
/// to keep; whether it was so.
#[inline]
pub(crate) fn narrow<T>(queue: &mut VecDeque<T>, kept: usize) -> bool {
    let mut room = queue.capacity();
    while room > kept && queue.len() <= room / 4 {
        room = (room / 2).max(kept);
    }
    let is_wide = room < queue.capacity();
    if is_wide {
        queue.shrink_to(room);
    }
    is_wide
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: InFlight = InFlight {
        wqe_index: 0,
        length: 0,
        payload: LocalPayload::Inline,
        opcode: cqe::Opcode::Send,
        signaled: true,
        failed: None,
    };

    fn sge(address: u64) -> Sge {
        Sge { address, length: 1, lkey: 2 }
    }

    /// Pushes a message with elements, if there is room.
    fn push(under_way: &mut UnderWay, share: &mut Share, elements: &[Sge]) -> bool {
        let has_room = under_way.has_room(elements.len(), share);
        if has_room {
            let (first, count) = (under_way.next_element(), elements.len() as u8);
            elements.iter().for_each(|sge| under_way.add_element(*sge));
            let payload = LocalPayload::Gather { first, count };
            under_way.push(InFlight { payload, ..MESSAGE });
        }
        has_room
    }

    #[test]
    fn a_share_is_an_end_and_comes_back() {
        let mut share = Share::new(125_000);
        let mut all: Vec<UnderWay> = (0..20).map(|_| UnderWay::default()).collect();
        let elements: Vec<Sge> = (0..MAX_SGE as u64).map(sge).collect();
        for turn in 0..1000 {
            for (n, under_way) in all.iter_mut().enumerate() {
                push(under_way, &mut share, &elements[..(turn + n) % MAX_SGE]);
                assert!(share.used <= share.limit);
            }
        }
        assert!(share.used > share.limit / 2, "{}", share.used);
        for under_way in &mut all {
            let room = (under_way.messages.capacity(), under_way.elements.capacity());
            assert!(room >= (OWN_MESSAGES / 2, OWN_ELEMENTS / 2), "{room:?}");
            while under_way.pop().is_some() {
                under_way.settle(&mut share);
            }
        }
        assert!(share.used <= share.limit / 2, "{}", share.used);
        all.iter_mut().for_each(|under_way| under_way.reset(&mut share));
        assert_eq!(share.used(), 0);
        assert!((0..1024).all(|_| push(&mut all[0], &mut share, &elements[..1])));
        assert_ne!(share.used, 0);
        all[0].reset(&mut share);
        assert_eq!((share.used, all[0].messages.capacity()), (0, 0));
    }

    #[test]
    fn every_client_has_a_share_of_its_own() {
        let mut shares = Shares::new(115_500);
        let fill = |shares: &mut Shares, client: u8| {
            let mut under_way = UnderWay::default();
            (0..1024).take_while(|n| push(&mut under_way, shares.of(client), &[sge(*n)])).count()
        };
        let clients = [1, 1, 2, 1, 16, 255, 16];
        let filled = clients.map(|client| fill(&mut shares, client));
        assert_eq!(filled, [1024, 32, 1024, 32, 1024, 1024, 32]);
        assert_eq!(
            [1, 2, 3, 15, 255].map(|c| shares.used(c) != 0),
            [true, true, false, false, true]
        );
    }

    #[test]
    fn without_a_share_a_queue_pair_has_what_is_its_own() {
        let mut share = Share::new(0);
        let mut under_way = UnderWay::default();
        let most = (0..100).take_while(|n| push(&mut under_way, &mut share, &[sge(*n)])).count();
        assert_eq!(most, OWN_MESSAGES);
        under_way.pop();
        assert!(push(&mut under_way, &mut share, &[sge(0)]));
        // However the room is used, a QP with nothing under way can send any message.
        while under_way.pop().is_some() {}
        let elements: Vec<Sge> = (0..MAX_SGE as u64).map(sge).collect();
        let most = (0..100).take_while(|_| push(&mut under_way, &mut share, &elements)).count();
        assert_eq!(most, OWN_ELEMENTS / MAX_SGE);
    }

    #[test]
    fn messages_are_found_by_their_numbers_with_their_elements() {
        let mut share = Share::new(usize::MAX);
        let mut under_way = UnderWay::default();
        let mut next = 0;
        for number in 0..10_000_u64 {
            let count = number % 5;
            let elements: Vec<Sge> = (0..count).map(|n| sge(number * 8 + n)).collect();
            assert!(push(&mut under_way, &mut share, &elements));
            // One is taken for each that comes, or three, or none.
            for _ in 0..[1, 3, 0][(number / 700 % 3) as usize] {
                next += u64::from(under_way.pop().is_some());
            }
            under_way.settle(&mut share);
            assert_eq!(under_way.oldest(), next);
            for seen in [next, (next + number) / 2, number] {
                let Some(message) = under_way.message(seen) else {
                    assert_eq!(next, number + 1);
                    continue;
                };
                let LocalPayload::Gather { first, count } = message.payload else { panic!() };
                assert_eq!(u64::from(count), seen % 5);
                let found = under_way.elements(first, count).map(|sge| sge.address);
                assert!(found.eq((0..seen % 5).map(|n| seen * 8 + n)), "message {seen}");
            }
        }
    }
}
