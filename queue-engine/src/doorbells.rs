//! Doorbell pages: which queues to look at again.

use fpga_regs::engine::doorbell::{self, QueueKind, SlotValue};
use fpga_regs::engine::window::DOORBELL_PAGES;
use smallvec::SmallVec;

/// A doorbell page, written by the process it was granted to.
pub trait DoorbellPage {
    /// The value of slot number `slot`, below [`doorbell::SLOTS`].
    fn load(&self, slot: usize) -> u64;
}

/// A queue that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) kind: QueueKind,
    pub(crate) number: u32,
}

/// Queues of one page that a scan adds at most before it leaves the rest of the page to the next one, in the middle
/// of a slot too: a client that rings for all its queues does not delay the others.
const MOST_OF_PAGE: usize = 32;

/// A slot with queues behind it.
#[derive(Debug)]
struct Slot {
    /// Below [`doorbell::SLOTS`].
    index: u16,
    /// The value when it was last looked at.
    seen: u64,
    queues: SmallVec<[Queue; 2]>,
    /// How many of the queues, from the first on, are still to be heard of that change: the last of them comes next.
    unheard: u32,
}

impl Slot {
    /// Adds at most `most` of the rung queues; answers with their number.
    fn hear(&mut self, most: usize, rung: &mut Vec<Queue>) -> usize {
        let end = self.unheard as usize;
        let begin = end.saturating_sub(most);
        let heard = self.queues.get(begin..end).unwrap_or_default();
        rung.extend(heard.iter().rev());
        let count = heard.len();
        self.unheard = begin as u32;
        count
    }

    /// Takes a queue out.
    fn remove(&mut self, queue: Queue) {
        let Some(place) = self.queues.iter().position(|other| is_same(other, queue)) else {
            return;
        };
        self.queues.remove(place);
        if place < self.unheard as usize {
            self.unheard = self.unheard.saturating_sub(1);
        }
    }
}

#[derive(Debug)]
struct Page<D> {
    memory: D,
    /// The slots in the order of their indices: a scan walks the page once.
    slots: Vec<Slot>,
    /// Where the next scan begins.
    next: usize,
}

impl<D: DoorbellPage> Page<D> {
    /// Adds the queues behind the slots that changed, as many as a page may have at a time.
    fn scan(&mut self, rung: &mut Vec<Queue>) {
        let mut most = MOST_OF_PAGE;
        let begin = self.next.min(self.slots.len());
        let (before, behind) = self.slots.split_at_mut(begin);
        for (first, part) in [(begin, behind), (0, before)] {
            for (place, slot) in (first..).zip(part) {
                // A change before all are heard is found behind them, so it does not begin the scan anew.
                if slot.unheard == 0 {
                    let value = self.memory.load(slot.index.into());
                    if value == slot.seen {
                        continue;
                    }
                    slot.seen = value;
                    slot.unheard = slot.queues.len() as u32;
                }
                most = most.saturating_sub(slot.hear(most, rung));
                if most == 0 {
                    self.next = place.saturating_add(usize::from(slot.unheard == 0));
                    return;
                }
            }
        }
        self.next = 0;
    }
}

/// The doorbell pages of an engine.
#[derive(Debug)]
pub(crate) struct Doorbells<D> {
    pages: [Option<Page<D>>; DOORBELL_PAGES as usize],
}

impl<D: DoorbellPage> Doorbells<D> {
    /// Bytes of a slot with a queue behind it.
    pub(crate) const BYTES_OF_EACH: usize = size_of::<Slot>();

    pub(crate) fn new() -> Self {
        Self { pages: [const { None }; DOORBELL_PAGES as usize] }
    }

    fn page(&mut self, page: u8) -> Option<&mut Option<Page<D>>> {
        self.pages.get_mut(usize::from(page).checked_sub(1)?)
    }

    /// The page in which a client's slots are.
    fn page_of(&mut self, client: u8) -> Option<&mut Page<D>> {
        self.page(doorbell::page_of(client))?.as_mut()
    }

    /// Puts a page in place; `false` where there is no such page or it is in use.
    pub(crate) fn open(&mut self, page: u8, memory: D) -> bool {
        match self.page(page) {
            Some(place @ None) => {
                *place = Some(Page { memory, slots: Vec::new(), next: 0 });
                true
            }
            _ => false,
        }
    }

    /// Removes a page, and the scans of it.
    pub(crate) fn close(&mut self, page: u8) {
        if let Some(place) = self.page(page) {
            *place = None;
        }
    }

    /// Stops looking at any slot; the pages stay in place.
    pub(crate) fn clear(&mut self) {
        for page in self.pages.iter_mut().flatten() {
            page.slots.clear();
        }
    }

    /// Whether the page in which a client's slots are is in place.
    pub(crate) fn is_open(&self, client: u8) -> bool {
        usize::from(doorbell::page_of(client))
            .checked_sub(1)
            .and_then(|i| self.pages.get(i))
            .is_some_and(Option::is_some)
    }

    /// The generation, or the next one where it stands in the slot of the QP's number already. The slot may still have
    /// a doorbell of a QP that had the number before, and a doorbell of its successor must change it.
    pub(crate) fn fresh_generation(&self, client: u8, qpn: u32, generation: u8) -> u8 {
        let page = usize::from(doorbell::page_of(client)).checked_sub(1);
        let page = page.and_then(|index| self.pages.get(index)?.as_ref());
        let standing = page.map(|page| page.memory.load(doorbell::slot(QueueKind::Send, qpn)));
        let is_taken = standing.is_some_and(|value| {
            let value = SlotValue::decode(value);
            value.number == qpn && value.generation == generation
        });
        generation.wrapping_add(is_taken.into())
    }

    /// Begins to look at a queue's slot.
    pub(crate) fn add(&mut self, client: u8, queue: Queue) {
        let Some(page) = self.page_of(client) else { return };
        let index = doorbell::slot(queue.kind, queue.number) as u16;
        match page.slots.binary_search_by_key(&index, |slot| slot.index) {
            Ok(found) => {
                if let Some(slot) = page.slots.get_mut(found) {
                    slot.queues.push(queue);
                }
            }
            Err(place) => {
                let seen = page.memory.load(index.into());
                let queues = SmallVec::from_elem(queue, 1);
                page.slots.insert(place, Slot { index, seen, queues, unheard: 0 });
            }
        }
    }

    /// Stops looking at a queue's slot.
    pub(crate) fn remove(&mut self, client: u8, queue: Queue) {
        let Some(page) = self.page_of(client) else { return };
        let index = doorbell::slot(queue.kind, queue.number) as u16;
        let Ok(place) = page.slots.binary_search_by_key(&index, |slot| slot.index) else { return };
        let Some(slot) = page.slots.get_mut(place) else { return };
        slot.remove(queue);
        if slot.queues.is_empty() {
            page.slots.remove(place);
        }
    }

    /// Adds to `rung` the queues behind slots that changed since they were last looked at: all of
    /// them, or of a page with many so many that a later scan is due for the rest.
    pub(crate) fn scan(&mut self, rung: &mut Vec<Queue>) {
        for page in self.pages.iter_mut().flatten() {
            page.scan(rung);
        }
    }
}

fn is_same(one: &Queue, other: Queue) -> bool {
    #[cfg(test)]
    tests::COMPARED.with(|compared| compared.set(compared.get() + 1));
    *one == other
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;
    use std::rc::Rc;

    use super::*;

    thread_local! {
        /// How often this thread has compared two queues.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A page whose slots all read the same.
    #[derive(Clone, Default)]
    struct Alike(Rc<Cell<u64>>);

    impl DoorbellPage for Alike {
        fn load(&self, _: usize) -> u64 {
            self.0.get()
        }
    }

    /// Numbers are drawn at random: an odd multiplier spreads these as far.
    fn queue(n: u32) -> Queue {
        Queue { kind: QueueKind::Send, number: n.wrapping_mul(0x9e37_79b1) & 0xff_ffff }
    }

    const QUEUES: u32 = 8192;
    const BEHIND_A_SLOT: usize = QUEUES as usize / doorbell::SLOTS_PER_KIND;

    #[test]
    fn the_end_of_a_queue_concerns_those_behind_its_slot_and_no_others() {
        let mut doorbells = Doorbells::new();
        assert!(doorbells.open(1, Alike::default()));
        (0..QUEUES).for_each(|n| doorbells.add(1, queue(n)));
        for n in 0..QUEUES {
            COMPARED.set(0);
            doorbells.remove(1, queue(n));
            assert!((1..2 * BEHIND_A_SLOT).contains(&COMPARED.get()), "{}", COMPARED.get());
        }
        assert!(doorbells.pages[0].as_ref().is_some_and(|page| page.slots.is_empty()));
    }

    #[test]
    fn who_rings_for_thousands_of_queues_is_heard_by_turns() {
        let mut doorbells = Doorbells::new();
        let (many, few) = (Alike::default(), Alike::default());
        assert!(doorbells.open(1, many.clone()) && doorbells.open(2, few.clone()));
        (0..QUEUES).for_each(|n| doorbells.add(1, queue(n)));
        doorbells.add(2, queue(QUEUES));
        many.0.set(1);
        let mut heard = HashSet::new();
        for turn in 0.. {
            few.0.set(turn + 1);
            let mut rung = Vec::new();
            doorbells.scan(&mut rung);
            assert!(rung.contains(&queue(QUEUES)), "the other page is heard in each turn");
            assert!(rung.len() <= MOST_OF_PAGE + 1, "{}", rung.len());
            if rung.len() == 1 {
                break;
            }
            heard.extend(rung.iter().map(|queue| queue.number));
        }
        assert_eq!(heard.len(), QUEUES as usize + 1, "all are heard in the end");
    }

    #[test]
    fn thousands_of_queues_behind_one_slot_are_heard_by_turns_and_each_change_of_it_by_all() {
        let mut doorbells = Doorbells::new();
        let page = Alike::default();
        assert!(doorbells.open(1, page.clone()));
        let of_slot = |n: u32| Queue {
            kind: QueueKind::Completion,
            number: n * doorbell::SLOTS_PER_KIND as u32,
        };
        (0..1000).for_each(|n| doorbells.add(1, of_slot(n)));
        let mut scan = || {
            let mut rung = Vec::new();
            doorbells.scan(&mut rung);
            assert!(rung.len() <= MOST_OF_PAGE, "{}", rung.len());
            rung
        };
        let scans = 1000_usize.div_ceil(MOST_OF_PAGE);
        let mut heard = Vec::new();
        // It changes over and over: those that come last are heard all the same, and then all of them again.
        for value in (1..).take(scans) {
            page.0.set(value);
            heard.extend(scan());
        }
        let numbers: HashSet<u32> = heard.iter().map(|queue| queue.number).collect();
        assert_eq!((numbers.len(), heard.len()), (1000, 1000));
        let again: HashSet<u32> =
            (0..scans).flat_map(|_| scan()).map(|queue| queue.number).collect();
        assert_eq!((again.len(), scan().len()), (1000, 0));
    }

    #[test]
    fn a_queue_that_ends_while_its_slot_is_heard_takes_no_other_with_it() {
        let mut doorbells = Doorbells::new();
        let page = Alike::default();
        assert!(doorbells.open(1, page.clone()));
        let of_slot =
            |n: u32| Queue { kind: QueueKind::Send, number: n * doorbell::SLOTS_PER_KIND as u32 };
        (0..600).for_each(|n| doorbells.add(1, of_slot(n)));
        page.0.set(1);
        let mut heard = Vec::new();
        doorbells.scan(&mut heard);
        // One that was heard, and one that was not.
        let [old, new] = [*heard.first().unwrap(), of_slot(0)];
        assert!(!heard.contains(&new));
        [old, new].into_iter().for_each(|queue| doorbells.remove(1, queue));
        (0..600_usize.div_ceil(MOST_OF_PAGE)).for_each(|_| doorbells.scan(&mut heard));
        let numbers: HashSet<u32> = heard.iter().map(|queue| queue.number).collect();
        assert_eq!((numbers.len(), heard.len()), (599, 599));
        assert!(!numbers.contains(&new.number));
    }
}
