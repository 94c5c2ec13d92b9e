//! Shared receive queues: requests that complete at whichever QP has a message.

use hostmem::FutexMutex;

use crate::error::Result;
use crate::rq::{ReceivePlace, ReceiveQueue};

/// A shared receive queue as the program's side sees it.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    /// Its number.
    pub srqn: u32,
    /// The queue of posted requests.
    pub queue: ReceiveQueue,
    /// Its QPs complete on any completion queues, whose pollers know nothing of each other.
    retiring: FutexMutex<()>,
}

impl SharedReceiveQueue {
    /// Makes a queue that takes requests.
    pub(crate) fn new(place: ReceivePlace, max_sge: u32, single_threaded: bool) -> Result<Self> {
        let srqn = place.rqn;
        let queue = ReceiveQueue::new(place, max_sge, single_threaded)?;
        queue.set_gate(0);
        Ok(Self { srqn, queue, retiring: FutexMutex::new(()) })
    }

    /// Takes back a work request: its completion carries its tag.
    ///
    /// Returns the program's name for it; `None` where no such request is outstanding.
    #[inline(always)]
    pub(crate) fn retire(&self, tag: u32) -> Option<u64> {
        let _one = self.retiring.lock();
        self.queue.retire(tag)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use hostmem::{BlockRing, Record};

    use super::*;
    use crate::doorbell::CardPath;
    use crate::doorbell::tests::{memory, path};

    /// A shared receive queue of so many entries.
    pub(crate) fn shared(entries: u32, path: &Arc<CardPath>) -> Arc<SharedReceiveQueue> {
        let memory = memory(8192);
        let place = ReceivePlace {
            rqn: 9,
            generation: 0,
            ring: BlockRing::new(memory.clone(), 64, entries).unwrap(),
            log2_stride: 0,
            record: Record::new(memory, 0).unwrap(),
            path: path.clone(),
            lender: None,
        };
        Arc::new(SharedReceiveQueue::new(place, 3, false).unwrap())
    }

    pub(crate) fn post(shared: &SharedReceiveQueue, wr_id: u64) -> Result<(), i32> {
        let mut batch = shared.queue.begin()?;
        let pushed = batch.push(wr_id, &[]);
        batch.finish();
        pushed
    }

    #[test]
    fn as_many_requests_are_taken_as_have_completed_from_whichever_thread() {
        let shared = shared(8, &path().0);
        (0..8).for_each(|wr_id| post(&shared, wr_id).unwrap());
        assert_eq!(post(&shared, 8), Err(libc::ENOMEM));
        let retired = std::thread::scope(|scope| {
            let retire = |tags: [u32; 4]| {
                let shared = &shared;
                scope.spawn(move || tags.map(|tag| shared.retire(tag)))
            };
            [retire([1, 7, 3, 5]), retire([6, 0, 4, 2])].map(|it| it.join().unwrap())
        });
        assert_eq!(retired[0], [1, 7, 3, 5].map(Some));
        assert_eq!(retired[1], [6, 0, 4, 2].map(Some));
        (8..16).for_each(|wr_id| post(&shared, wr_id).unwrap());
        assert_eq!(post(&shared, 16), Err(libc::ENOMEM));
    }
}
