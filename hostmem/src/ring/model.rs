//! The ring and doorbell protocols under loom: every interleaving of the very functions that
//! production runs, and every stale load that the memory model allows.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

use super::*;

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
}

/// A doorbell slot, as the processors supported keep it: stores to one word have one order that all
/// see, and a store makes all stores before it in that order visible, from any processor (other-multi-copy
/// atomicity). The language promises that only of read-modify-write operations, which is how the
/// model stores.
struct Slot(AtomicU64);

impl Word for Slot {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, _: Ordering) {
        self.0.swap(value, Ordering::AcqRel);
    }
}

fn words<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// Explores all interleavings with at most `preemptions` switches away from a thread that could go
/// on: enough for every known bug of such protocols, and bounded in time.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A completion entry whose phase is in its last word, on the second lap of a ring of one.
fn reader_of_phases(publish: fn(&[AtomicU64; BLOCK_WORDS], &Block)) {
    explore(3, move || {
        let ring = Arc::new(words::<BLOCK_WORDS>());
        let payload = Arc::new(AtomicU64::new(0));
        let card = {
            let (ring, payload) = (Arc::clone(&ring), Arc::clone(&payload));
            loom::thread::spawn(move || {
                payload.store(7, Ordering::Relaxed);
                publish(&ring, &[5; BLOCK_WORDS]);
            })
        };
        if last_if_written(&ring[BLOCK_WORDS - 1], |last| last == 5).is_some() {
            assert_eq!(read_block(|word| &ring[word]), [5; BLOCK_WORDS], "a torn entry");
            assert_eq!(payload.load(Ordering::Relaxed), 7, "an entry before its payload");
        }
        card.join().unwrap();
    });
}

#[test]
fn a_reader_who_sees_the_phase_sees_the_entry_and_its_payload() {
    reader_of_phases(|ring, block| publish_block(|word| &ring[word], block));
}

#[test]
#[should_panic(expected = "a torn entry")]
fn an_entry_written_without_order_is_seen_torn() {
    reader_of_phases(|ring, block| write_block(|word| &ring[word], block));
}

/// A program that posts an entry while the card reads the record, doorbell or not.
#[test]
fn a_card_who_sees_the_producer_index_sees_the_entries_before_it() {
    explore(3, || {
        let ring = Arc::new(words::<BLOCK_WORDS>());
        let record = Arc::new(AtomicU64::new(0));
        let program = {
            let (ring, record) = (Arc::clone(&ring), Arc::clone(&record));
            loom::thread::spawn(move || {
                write_block(|word| &ring[word], &[3; BLOCK_WORDS]);
                release(&*record, 1);
            })
        };
        if acquire(&*record) == 1 {
            assert_eq!(read_block(|word| &ring[word]), [3; BLOCK_WORDS], "an entry too early");
        }
        program.join().unwrap();
    });
}

/// A reader that frees an entry for the next lap while the card waits for room to write it.
#[test]
fn an_entry_is_not_overwritten_before_its_reader_has_copied_it() {
    explore(3, || {
        let ring = Arc::new(words::<BLOCK_WORDS>());
        let consumer = Arc::new(AtomicU64::new(0));
        publish_block(|word| &ring[word], &[1; BLOCK_WORDS]);
        let card = {
            let (ring, consumer) = (Arc::clone(&ring), Arc::clone(&consumer));
            loom::thread::spawn(move || {
                if acquire(&*consumer) == 1 {
                    publish_block(|word| &ring[word], &[2; BLOCK_WORDS]);
                }
            })
        };
        assert_eq!(read_block(|word| &ring[word]), [1; BLOCK_WORDS], "overwritten too early");
        release(&*consumer, 1);
        card.join().unwrap();
    });
}

/// Two queues behind one slot, rung by two threads: the later store hides the earlier one.
///
/// A card that has seen the slot change reads the records of both; in any order, once both
/// threads are done, the records it has read show all the work, or the slot differs from what it
/// saw last.
fn two_queues_behind_a_slot<S: Word + Send + Sync + 'static>(slot: fn() -> S) {
    explore(3, move || {
        let slot = Arc::new(slot());
        let records = Arc::new(words::<2>());
        let programs: Vec<_> = [0_usize, 1]
            .into_iter()
            .map(|queue| {
                let (slot, records) = (Arc::clone(&slot), Arc::clone(&records));
                loom::thread::spawn(move || {
                    release(&records[queue], 1);
                    release(&*slot, queue as u64 + 1);
                })
            })
            .collect();
        let mut seen = 0;
        let mut done = [0; 2];
        let scan = |seen: &mut u64, done: &mut [u64; 2]| {
            let value = acquire(&*slot);
            if value != *seen {
                *seen = value;
                *done = [acquire(&records[0]), acquire(&records[1])];
            }
        };
        scan(&mut seen, &mut done);
        scan(&mut seen, &mut done);
        for program in programs {
            program.join().unwrap();
        }
        let last = acquire(&*slot);
        assert!(last != seen || done == [1, 1], "lost work: {done:?} behind slot {seen}");
    });
}

#[test]
fn a_slot_that_was_overwritten_unseen_loses_no_work() {
    two_queues_behind_a_slot(|| Slot(AtomicU64::new(0)));
}

/// Why the doorbell page needs processors whose stores are seen by all others at once: by the rules
/// of the language alone the work of the thread whose store was overwritten could stay unseen.
#[test]
#[should_panic(expected = "lost work")]
fn the_language_alone_does_not_promise_that() {
    two_queues_behind_a_slot(|| AtomicU64::new(0));
}
