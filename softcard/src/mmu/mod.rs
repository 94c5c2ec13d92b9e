//! The MMU of a vFPGA: every address that the card puts on the bus comes out of it.
//!
//! A transfer whose page has no TLB entry waits. The driver is told by a page fault, inserts an
//! entry, and lets the card go on; or it refuses, and the transfer fails. One fault of each
//! direction is outstanding at a time, as in the shell's pipelines.

mod tlb;
mod unit;

use fpga_regs::coyote::shell::CtrlCnfg;
use fpga_regs::coyote::tlb::{Entry, Geometry};

use crate::own_memory::{NULL_MEMORY, OWN_BYTES, OWN_MEMORY};
use tlb::Tlb;
pub use unit::Unit;

/// The direction of a transfer from or to host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryDirection {
    /// A transfer from host memory.
    Read,
    /// A transfer to host memory.
    Write,
}

/// A transfer that met no TLB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) direction: MemoryDirection,
    pub(crate) ctid: u8,
    pub(crate) vaddr: u64,
    pub(crate) length: u32,
}

/// The result for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// It is `bus` on the bus, and `bytes` from there on follow one another.
    Found { bus: u64, bytes: u64 },
    /// The driver was told; to be asked again once it has answered.
    Waits,
    /// The driver says that there is nothing.
    Refused,
}

/// The page that was found last.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    /// First byte, and bytes; none of them before the first hit.
    vaddr: u64,
    bytes: u64,
    bus: u64,
}

/// The wait of one direction of transfers.
#[derive(Debug, Default)]
struct Pipeline {
    waiting: Option<Fault>,
    /// The driver's refusal, which stands for the page until the transfers have been told.
    refused: Option<Fault>,
    last: Last,
}

/// The counters of the MMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MmuCounters {
    /// Look-ups that found no entry, those of waiting transfers included.
    pub(crate) misses: u64,
    /// Faults the driver was told of.
    pub(crate) faults: u64,
    /// Faults the driver refused.
    pub(crate) refusals: u64,
    /// Entries inserted.
    pub(crate) insertions: u64,
    /// Entries removed.
    pub(crate) removals: u64,
}

impl MmuCounters {
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            misses: self.misses.saturating_add(other.misses),
            faults: self.faults.saturating_add(other.faults),
            refusals: self.refusals.saturating_add(other.refusals),
            insertions: self.insertions.saturating_add(other.insertions),
            removals: self.removals.saturating_add(other.removals),
        }
    }
}

/// One of the two TLBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Small pages.
    Small,
    /// Large pages.
    Large,
}

/// The two TLBs of a vFPGA and the transfers that wait for them.
#[derive(Debug)]
pub(crate) struct Mmu {
    /// The address space of the vFPGA's one engine.
    ctid: u8,
    /// First address of the vFPGA's part of the card's own memory, which has no pages.
    own: u64,
    small: Tlb,
    large: Tlb,
    locked: bool,
    read: Pipeline,
    write: Pipeline,
    /// A fault that the driver has not been told of.
    news: [Option<Fault>; 2],
    pub(crate) counters: MmuCounters,
}

/// Pages whose translation has become invalid.
#[derive(Debug, PartialEq, Eq)]
struct Gone {
    start: u64,
    bytes: u64,
}

impl Mmu {
    /// TLBs without an entry; `None` where the shapes make no sense.
    pub(crate) fn new(ctrl_cnfg: CtrlCnfg, ctid: u8) -> Option<Self> {
        Some(Self {
            ctid,
            own: OWN_MEMORY,
            small: Tlb::new(Geometry::small(ctrl_cnfg)?),
            large: Tlb::new(Geometry::large(ctrl_cnfg)?),
            locked: false,
            read: Pipeline::default(),
            write: Pipeline::default(),
            news: [None; 2],
            counters: MmuCounters::default(),
        })
    }

    /// The same, as the MMU of the vFPGA of that number.
    pub(crate) fn of_vfpga(self, number: u8) -> Self {
        let before = u64::from(OWN_BYTES).saturating_mul(number.into());
        Self { own: OWN_MEMORY.saturating_add(before), ..self }
    }

    /// Goes over to an address space, for logic whose transfers name one.
    pub(crate) fn enter(&mut self, ctid: u8) {
        if self.ctid != ctid {
            self.ctid = ctid;
            self.forget_last();
        }
    }

    fn pipeline(&mut self, direction: MemoryDirection) -> &mut Pipeline {
        match direction {
            MemoryDirection::Read => &mut self.read,
            MemoryDirection::Write => &mut self.write,
        }
    }

    /// Where `vaddr` is on the bus, for a transfer of `length` bytes from there on.
    #[inline]
    pub(crate) fn translate(
        &mut self,
        direction: MemoryDirection,
        vaddr: u64,
        length: u32,
    ) -> Translation {
        let Last { vaddr: start, bytes, bus } = match direction {
            MemoryDirection::Read => self.read.last,
            MemoryDirection::Write => self.write.last,
        };
        let within = vaddr.wrapping_sub(start);
        if within < bytes {
            return Translation::Found {
                bus: bus.wrapping_add(within),
                bytes: bytes.wrapping_sub(within),
            };
        }
        self.look_up(direction, vaddr, length)
    }

    fn look_up(&mut self, direction: MemoryDirection, vaddr: u64, length: u32) -> Translation {
        if vaddr >= NULL_MEMORY {
            return Translation::Found { bus: vaddr, bytes: u64::MAX.wrapping_sub(vaddr) };
        }
        if let Some(within) = vaddr.checked_sub(OWN_MEMORY) {
            return match u64::from(OWN_BYTES).checked_sub(within) {
                None | Some(0) => Translation::Refused,
                Some(bytes) => Translation::Found { bus: self.own.saturating_add(within), bytes },
            };
        }
        if self.locked {
            return Translation::Waits;
        }
        let ctid = self.ctid;
        let found = [&mut self.large, &mut self.small].into_iter().find_map(|tlb| {
            let bytes = tlb.geometry().page_bytes();
            tlb.look_up(vaddr, ctid).map(|bus| (bus, bytes))
        });
        if let Some((bus, bytes)) = found {
            let within = vaddr & bytes.wrapping_sub(1);
            let last = Last { vaddr: vaddr.wrapping_sub(within), bytes, bus };
            self.pipeline(direction).last = last;
            return Translation::Found {
                bus: bus.wrapping_add(within),
                bytes: bytes.wrapping_sub(within),
            };
        }
        let page_bits = self.large.geometry().page_bits;
        self.counters.misses = self.counters.misses.saturating_add(1);
        let pipeline = self.pipeline(direction);
        if pipeline.refused.is_some_and(|fault| (fault.vaddr ^ vaddr) >> page_bits == 0) {
            return Translation::Refused;
        }
        if pipeline.waiting.is_none() {
            let fault = Fault { direction, ctid, vaddr, length };
            pipeline.waiting = Some(fault);
            if let Some(place) = self.news.get_mut(direction as usize) {
                *place = Some(fault);
            }
            self.counters.faults = self.counters.faults.saturating_add(1);
        }
        Translation::Waits
    }

    /// Whether there are faults that the driver is to be told of.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.iter().any(Option::is_some)
    }

    /// Takes the faults that the driver is to be told of.
    pub(crate) fn take_news(&mut self) -> [Option<Fault>; 2] {
        std::mem::take(&mut self.news)
    }

    /// The driver's answer to the outstanding fault of a direction.
    pub(crate) fn restart(&mut self, direction: MemoryDirection, success: bool) {
        let pipeline = self.pipeline(direction);
        let fault = pipeline.waiting.take();
        if !success && fault.is_some() {
            pipeline.refused = fault;
            self.counters.refusals = self.counters.refusals.saturating_add(1);
        }
    }

    /// Forgets refusals, which all transfers for the page have been told.
    pub(crate) fn settle(&mut self) {
        self.read.refused = None;
        self.write.refused = None;
    }

    /// Gives up waiting transfers, for an engine that stops.
    pub(crate) fn stop(&mut self) {
        self.read = Pipeline::default();
        self.write = Pipeline::default();
        self.news = [None; 2];
    }

    /// Whether transfers must wait for the driver.
    pub(crate) fn waits(&self) -> bool {
        self.locked || self.read.waiting.is_some() || self.write.waiting.is_some()
    }

    pub(crate) fn toggle_lock(&mut self) {
        self.locked = !self.locked;
    }

    fn forget_last(&mut self) {
        self.read.last = Last::default();
        self.write.last = Last::default();
    }

    /// Executes an entry written to a TLB window; answers the pages whose former translation no longer
    /// holds.
    fn write_entry(&mut self, pages: Pages, words: [u64; 2]) -> Option<Gone> {
        let tlb = match pages {
            Pages::Small => &mut self.small,
            Pages::Large => &mut self.large,
        };
        let entry = Entry::decode(words, tlb.geometry());
        let gone = Gone { start: entry.vaddr, bytes: tlb.geometry().page_bytes() };
        let changed = if entry.valid {
            self.counters.insertions = self.counters.insertions.saturating_add(1);
            tlb.insert(&entry)
        } else {
            self.counters.removals = self.counters.removals.saturating_add(1);
            tlb.remove(&entry);
            true
        };
        // A translation that was evicted still holds; one that was changed does not.
        if changed {
            self.forget_last();
        }
        changed.then_some(gone)
    }
}

#[cfg(test)]
mod tests;
