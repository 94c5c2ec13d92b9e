//! A vFPGA's control registers and TLB windows.

use std::rc::Rc;
use std::sync::Arc;

use fpga_regs::coyote::shell::CtrlCnfg;
use fpga_regs::coyote::vfpga::{self as v, IsrLen, IsrWrite, Migration, VirtualAddress};

use crate::bus::Bus;
use crate::isr::{Event, Isr};
use crate::mmu::{MemoryDirection, Mmu, Pages, Unit};
use crate::published::IsrCopy;

/// The data and the write strobes of one beat of eight bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) data: u64,
    /// Bit *i* says that byte *i* is meant.
    pub(crate) strobe: u8,
}

impl Beat {
    /// The new value of a register that holds `old`.
    pub(crate) fn over(self, old: u64) -> u64 {
        let mut mask = 0u64;
        for byte in (0..8u32).filter(|byte| self.strobe & 1 << byte != 0) {
            mask |= 0xff << (byte & 7).wrapping_mul(8);
        }
        self.data & mask | old & !mask
    }
}

/// The shell's part of a vFPGA.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) unit: Unit,
    pub(crate) isr: Isr,
    /// The words of an entry as last written, of both TLB windows.
    small: [u64; 2],
    large: [u64; 2],
    writeback: [u64; 4],
    /// Offloads and syncs done.
    migrations: [u32; 2],
    tcp: [u64; 4],
}

impl Control {
    /// After a reset; `None` where the shapes of its TLBs make no sense.
    pub(crate) fn new(
        number: u8,
        ctrl_cnfg: CtrlCnfg,
        bus: &Rc<Bus>,
        isr: Arc<IsrCopy>,
    ) -> Option<Self> {
        let mmu = Mmu::new(ctrl_cnfg, fpga_regs::engine::window::CTID)?.of_vfpga(number);
        Some(Self {
            unit: Unit::new(mmu, Rc::clone(bus)),
            isr: Isr::new(isr),
            small: [0; 2],
            large: [0; 2],
            writeback: [0; 4],
            migrations: [0; 2],
            tcp: [0; 4],
        })
    }

    fn staged(&mut self, pages: Pages) -> &mut [u64; 2] {
        match pages {
            Pages::Small => &mut self.small,
            Pages::Large => &mut self.large,
        }
    }

    /// Reads a word of a TLB window.
    pub(crate) fn read_tlb(&self, pages: Pages, offset: u64) -> u64 {
        let [first, second] = match pages {
            Pages::Small => self.small,
            Pages::Large => self.large,
        };
        match offset {
            v::TLB_WORD_0 => first,
            v::TLB_WORD_1 => second,
            _ => 0,
        }
    }

    /// Writes a word of a TLB window; the second one executes the entry.
    pub(crate) fn write_tlb(&mut self, pages: Pages, offset: u64, beat: Beat) {
        let [first, second] = self.staged(pages);
        match offset {
            v::TLB_WORD_0 => *first = beat.over(*first),
            v::TLB_WORD_1 => {
                *second = beat.over(*second);
                let words = *self.staged(pages);
                self.unit.write_entry(pages, words);
            }
            _ => {}
        }
    }

    /// Reads the control register at `offset` of its bank.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        match offset {
            v::ISR => self.isr.read(),
            v::ISR_PID => self.isr.pid,
            v::ISR_VADDR => self.isr.vaddr,
            v::ISR_LEN => self.isr.length,
            v::COUNT_INVALIDATIONS => self.isr.counts[0],
            v::COUNT_PAGE_FAULTS => self.isr.counts[1],
            v::COUNT_NOTIFICATIONS => self.isr.counts[2],
            v::OFFL_STAT => u64::from(self.migrations[0]),
            v::SYNC_STAT => u64::from(self.migrations[1]),
            // The ports to the stack, which the queue engine does not use, always take all commands.
            v::NET_ARP | v::RDMA_CTX_0 | v::RDMA_CONN_0 => 1,
            _ => {
                let kept = |array: fpga_regs::Array, words: &[u64; 4]| {
                    let index = usize::try_from(array.index(offset)?).ok()?;
                    words.get(index).copied()
                };
                let writeback = kept(v::WBACK, &self.writeback);
                writeback.or_else(|| kept(v::TCP, &self.tcp)).unwrap_or(0)
            }
        }
    }

    /// Writes the control register at `offset` of its bank; `true` when the interrupt is to be
    /// signalled.
    ///
    /// Work requests of the stock command path are for logic that takes them: the queue engine
    /// does not, and they are lost.
    pub(crate) fn write(&mut self, offset: u64, beat: Beat) -> bool {
        match offset {
            v::ISR => return self.answer(IsrWrite::decode(beat.over(0))),
            v::ISR_PID => self.isr.pid = beat.over(self.isr.pid),
            v::ISR_VADDR => self.isr.vaddr = beat.over(self.isr.vaddr),
            v::ISR_LEN => self.isr.length = beat.over(self.isr.length),
            v::OFFL_CTRL => return self.migrate(0, Event::Offload, beat),
            v::SYNC_CTRL => return self.migrate(1, Event::Sync, beat),
            _ => {
                let kept = [(v::WBACK, &mut self.writeback), (v::TCP, &mut self.tcp)];
                for (array, words) in kept {
                    let index = array.index(offset).and_then(|index| usize::try_from(index).ok());
                    if let Some(word) = index.and_then(|index| words.get_mut(index)) {
                        *word = beat.over(*word);
                    }
                }
            }
        }
        false
    }

    /// The driver's answers to events, and its invalidations.
    fn answer(&mut self, isr: IsrWrite) -> bool {
        let mut signal = false;
        if isr.clear_pending {
            signal |= self.isr.clear();
        }
        for (restart, direction) in
            [(isr.restart_read, MemoryDirection::Read), (isr.restart_write, MemoryDirection::Write)]
        {
            if restart {
                self.unit.mmu.borrow_mut().restart(direction, isr.success);
            }
        }
        if isr.lock {
            self.unit.mmu.borrow_mut().toggle_lock();
        } else if isr.invalidate {
            let start = VirtualAddress::decode(self.isr.vaddr).vaddr;
            // No transfer to the pages is under way: those that wait have not found theirs yet.
            self.unit.forget(start, IsrLen::decode(self.isr.length).length.into());
            if isr.invalidate_last {
                signal |= self.isr.raise(Event::Invalidated);
            }
        }
        signal
    }

    /// Moves nothing, for there is no card memory, and reports the last of a row all the same.
    fn migrate(&mut self, which: usize, event: Event, beat: Beat) -> bool {
        let command = Migration::decode(beat.over(0));
        let done = self.migrations.get_mut(which);
        match done {
            Some(done) if command.start => {
                *done = done.wrapping_add(1);
                command.last && self.isr.raise(event)
            }
            _ => false,
        }
    }

    /// Queues the page faults of which the driver has not been told; `true` when the interrupt is to
    /// be signalled.
    pub(crate) fn tell_faults(&mut self) -> bool {
        let news = self.unit.mmu.borrow_mut().take_news();
        let mut signal = false;
        for fault in news.into_iter().flatten() {
            signal |= self.isr.raise(Event::PageFault(fault));
        }
        signal
    }
}
