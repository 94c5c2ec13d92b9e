//! Reports of a broken card, without a cause in it: for the tests of drivers.

use fpga_regs::engine::event::Event;

use crate::card::Card;
use crate::isr;
use crate::mmu::{Fault, MemoryDirection};
use crate::vfpga::Occupant;

/// A report without a cause in a vFPGA.
#[derive(Clone, Copy, Debug)]
pub enum Unfounded {
    /// A page fault.
    PageFault {
        /// The transfer writes.
        write: bool,
        /// The address without an entry.
        vaddr: u64,
        /// Bytes of the transfer.
        length: u32,
    },
    /// An event of its queue engine's, in the event ring of that number.
    Event(u8, Event),
}

impl Card {
    /// Reports it as if there were a reason.
    pub(crate) fn report(&mut self, now: u64, index: usize, unfounded: Unfounded) {
        let Some(vfpga) = self.vfpgas.get_mut(index) else { return };
        match unfounded {
            Unfounded::PageFault { write, vaddr, length } => {
                let direction = if write { MemoryDirection::Write } else { MemoryDirection::Read };
                let ctid = fpga_regs::engine::window::CTID;
                let fault = Fault { direction, ctid, vaddr, length };
                if vfpga.control.isr.raise(isr::Event::PageFault(fault)) {
                    self.shell.signal(index);
                }
            }
            Unfounded::Event(ring, event) => {
                match &mut vfpga.logic {
                    Occupant::Engine(engine) => engine.raise_in(now, ring, event),
                    Occupant::PassThrough(_) | Occupant::Other(_) => {}
                }
                self.raise_interrupts();
            }
        }
    }
}
