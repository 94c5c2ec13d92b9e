//! Memory that is free behind clients and connections by the thousand, and is given back to the kernel now and then.

use std::time::Instant;

use cm::Manager;

/// Freed memory is given back to the kernel when ended clients may have had so many bytes of it.
const GIVE_BACK: u64 = 4 << 20;

/// Memory that may have become free since the allocator last gave memory back to the kernel.
#[derive(Debug, Default)]
pub struct Freed {
    /// Bytes that ended clients had at most.
    bytes: u64,
    /// Connections without a program that there were at most since there were none.
    lingered: usize,
}

impl Freed {
    /// Counts freed bytes, at most so many, and has the allocator give free memory back if they are many.
    pub fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= GIVE_BACK {
            self.bytes = 0;
            let begun = Instant::now();
            hostmem::heap::give_back();
            log::debug!("freed memory is given back: {:?}", begun.elapsed());
        }
    }

    /// Notes the number of connections without a program. Thousands of connections that lose their programs end behind
    /// them, all at about the same time.
    pub fn linger(&mut self, connections: usize) {
        self.lingered = self.lingered.max(connections);
        if connections == 0 && self.lingered > 0 {
            let ended = std::mem::take(&mut self.lingered).saturating_mul(Manager::BYTES_OF_ID);
            self.add(u64::try_from(ended).unwrap_or(u64::MAX));
        }
    }
}
