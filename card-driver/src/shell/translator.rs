//! The record of which pages of a card's address spaces have memory, and where.

use super::Shell;
use crate::error::Error;
use crate::spaces::Recall;
use crate::translations::Purpose;

/// The pages of memory in the address spaces of a card's vFPGAs, and their registration in the card by its shell.
///
/// There are address spaces of windows, one for each vFPGA, and those of queue pairs. On a card whose windows have one,
/// the calls about a queue pair's do nothing.
pub trait Translator: Send + Sync {
    /// The window of a vFPGA's TLB that it fills, by its offset in the shell's BAR.
    fn tlb(&self, vfpga: u8) -> u64;

    /// Whether memory withdrawn from an address space stays reachable beyond the engine in the window: its end is not
    /// the card's.
    fn outlives_engines(&self) -> bool;

    /// Notes that a range has memory for a vFPGA, and inserts ahead the entries that its purpose needs.
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

    /// Ends a queue pair's address space: on return no DMA to any memory can follow, with any requests still out; where
    /// it is to begin `anew`, few are.
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

    /// Makes the card forget the pages of queue pairs that are to be closed, and waits for transfers on their way to
    /// them.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm.
    fn shut(&self, _shell: &Shell, _vfpga: u8) -> Result<(), Error> {
        Ok(())
    }

    /// Closes the pages of queue pairs whose keys and rights no longer allow access: on return no transfer to them is
    /// on its way.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm.
    fn lapse(&self, _shell: &Shell, _vfpga: u8) -> Result<(), Error> {
        Ok(())
    }

    /// Removes the entries of pages from which rights were taken away: on return the card asks for the remaining ones
    /// anew, and no other transfer is on its way.
    ///
    /// # Errors
    /// [`Error::Dead`] when the card does not confirm.
    fn recall(&self, _shell: &Shell, _vfpga: u8, _of: Recall) -> Result<(), Error> {
        Ok(())
    }

    /// Removes the entries that led to memory without an owner, for there may be some now: the card asks for them
    /// again.
    fn surface(&self, _shell: &Shell, _vfpga: u8) {}

    /// Tells the other cards of this process that the card forgets its queue pairs, and lets go of the card.
    fn end(&self) {}
}
