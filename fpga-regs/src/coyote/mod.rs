//! The Coyote shell as published: the registers of a card's bring-up.
//!
//! Source: the public Coyote driver and shell RTL of 2026-08. Register numbers are kept beside the
//! byte offsets because the RTL and the kernel driver speak of numbers.

pub(crate) mod map;
pub mod pci;
pub mod shell;
pub mod static_layer;
pub mod tlb;
pub mod vfpga;
pub mod xdma;

use crate::{Constant, RegisterBlock};

/// Every block of registers of the shell, in the order of the documents.
pub const BLOCKS: &[&RegisterBlock] = &[
    static_layer::STATIC_LAYER,
    xdma::DMA_ENGINE,
    xdma::INTERRUPTS,
    xdma::MSIX_TABLE,
    shell::SHELL,
    vfpga::CNFG,
    vfpga::PLAIN_COUNTERS,
    vfpga::AVX_COUNTERS,
    vfpga::TLB_WINDOW,
];

/// Numbers of the shell that belong to no register.
pub const CONSTANTS: &[&[Constant]] =
    &[pci::CONSTANTS, static_layer::CONSTANTS, xdma::CONSTANTS, vfpga::CONSTANTS, tlb::CONSTANTS];
