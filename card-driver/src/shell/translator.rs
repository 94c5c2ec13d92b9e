//! The record of which pages of a card's address spaces have memory, and where.

use super::Shell;
use crate::error::Error;
use crate::spaces::Recall;
use crate::translations::Purpose;

/// The pages of memory in the address spaces of a card's vFPGAs, and the telling of the card by its shell.
///
/// There are those of windows, one for each vFPGA, and those of queue pairs. Where each window has one, what concerns a
/// queue pair's is nothing to do.
pub trait Translator: Send + Sync {
    /// The window of a vFPGA's TLB that it fills, by its offset in the shell's BAR.
    fn tlb(&self, vfpga: u8) -> u64;

    /// Whether what is out of an address space outlives the engine in the window: its end is not the card's.
    fn outlives_engines(&self) -> bool;

    /// Notes that a range has memory for a vFPGA, and inserts what its purpose wants inserted ahead.
    fn map(&self, shell: &Shell, vfpga: u8, start: u64, length: u64, purpose: Purpose);

    /// Takes ranges, each by its first byte and its bytes, back from a vFPGA: the pages that are left
    /// without memory, a row of them. `true` once its TLB has none left and no transfer to them is
    /// under way; after `false` another call is due. Faults there are refused from the first call on.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm: the memory is not to be used for anything
    /// else.
    fn unmap(&self, shell: &Shell, vfpga: u8, ranges: &[(u64, u64)]) -> Result<bool, Error>;

    /// The entries with which a transfer of `length` bytes at `vaddr` goes on that met no page; none where it is refused. The
    /// vFPGA's state is held.
    fn mend(&self, vfpga: u8, ctid: u8, vaddr: u64, length: u32) -> Vec<[u64; 2]>;

    /// Has a queue pair's address space lead to no memory any more: on return no DMA to any can follow, whatever of it is
    /// still out; where it is to begin `anew`, little is.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm.
    fn end_space(&self, _shell: &Shell, _vfpga: u8, _qpn: u32, _anew: bool) -> Result<(), Error> {
        Ok(())
    }

    /// Waits for a moment, before a queue pair is connected, until nothing is out of it or on its way to it.
    fn settle(&self, _vfpga: u8, _qpn: u32) {}

    /// Why a vFPGA has refused the last command, where there is more to say than its status.
    fn reason(&self, _vfpga: u8) -> Option<String> {
        None
    }

    /// Tells the card of pages that were opened for queue pairs, ahead of their first use.
    fn fill(&self, _shell: &Shell, _vfpga: u8) {}

    /// Has the card forget the pages of queue pairs that are to be closed, and waits for what is on its way to them.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm.
    fn shut(&self, _shell: &Shell, _vfpga: u8) -> Result<(), Error> {
        Ok(())
    }

    /// Takes from queue pairs what keys and rights do not give them any more: on return nothing of it is on its way.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm.
    fn lapse(&self, _shell: &Shell, _vfpga: u8) -> Result<(), Error> {
        Ok(())
    }

    /// Has the pages be asked for again that queue pairs have of what rights were taken away from: on return the card
    /// reaches what is left of those, and nothing else is on its way.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm.
    fn recall(&self, _shell: &Shell, _vfpga: u8, _of: Recall) -> Result<(), Error> {
        Ok(())
    }

    /// Has the pages be asked for again that led to nobody's memory, for there may be some now.
    fn surface(&self, _shell: &Shell, _vfpga: u8) {}

    /// Tells the other cards of this process that the card forgets its queue pairs, and has no more to do with the card
    /// from then on.
    fn end(&self) {}
}
