//! The map of BAR4.

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::{self, Bank};
use fpga_regs::engine::window;

use crate::WINDOWS;
use crate::mmu::Pages;

/// Where in BAR4 an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Shell(u64),
    Tlb(usize, Pages, u64),
    /// Page 0 of a window.
    User(usize, u64),
    /// A slot of a doorbell page.
    Doorbell(u8, u8, usize),
    /// A control register, in one of the two banks.
    Cnfg(Bank, usize, u64),
    Nowhere,
}

/// The register or memory at an offset in BAR4.
pub(crate) fn target(offset: u64) -> Target {
    if let Some(inside) = offset.checked_sub(vfpga::AVX_BASE) {
        let index = u8::try_from(inside / vfpga::CONTROL_WINDOW_STRIDE);
        return match index {
            Ok(index) if index < WINDOWS => {
                Target::Cnfg(Bank::Avx, index.into(), inside % vfpga::CONTROL_WINDOW_STRIDE)
            }
            _ => Target::Nowhere,
        };
    }
    let Some(inside) = offset.checked_sub(vfpga::CONTROL_WINDOW_BASE) else {
        return Target::Shell(offset);
    };
    let number = inside / vfpga::CONTROL_WINDOW_STRIDE;
    let within = inside % vfpga::CONTROL_WINDOW_STRIDE;
    let number = match u8::try_from(number) {
        Ok(number) if number < WINDOWS => number,
        _ => return Target::Nowhere,
    };
    let index = usize::from(number);
    if let Some(register) = within.checked_sub(vfpga::CNFG_OFFSET) {
        return Target::Cnfg(Bank::Plain, index, register);
    }
    if let Some(register) = within.checked_sub(vfpga::USER_CSR_OFFSET) {
        if register < window::PAGE_BYTES {
            return Target::User(index, register);
        }
        let page = u8::try_from(register / window::PAGE_BYTES).unwrap_or(0);
        return Target::Doorbell(number, page, (register % window::PAGE_BYTES / 8) as usize);
    }
    match within.checked_sub(vfpga::SMALL_TLB_OFFSET) {
        Some(word) => Target::Tlb(index, Pages::Small, word),
        None => Target::Tlb(index, Pages::Large, within),
    }
}

/// The vFPGA whose interrupt register is at that offset, of a card with such a bank.
pub(crate) fn isr_at(bank: Bank, bar: Bar, offset: u64) -> Option<usize> {
    match target(offset) {
        Target::Cnfg(its, index, vfpga::ISR) if bar == Bar::Shell && its == bank => Some(index),
        _ => None,
    }
}
