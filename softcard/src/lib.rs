//! The software card: the hardware behind a card's registers, where there is none.
//!
//! A [`Runtime`] runs any number of cards on one thread and joins them by cables. A [`CardHandle`]
//! is a driver's view of a PCIe function: its BARs, its interrupt vectors, its DMA mappings, and
//! grants of doorbell pages. Behind the registers sit queue engines over a RoCE v2 stack, whose ports
//! send real frames.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::panic, clippy::arithmetic_side_effects, reason = "tests may fail"))]

// The tests' logic of another crate has that name for this one.
#[cfg(test)]
extern crate self as softcard;

mod address_map;
mod asks;
mod attached;
mod bars;
mod bus;
mod card;
mod clock;
mod command;
mod congestion;
mod datapath;
mod dma;
mod error;
mod handle;
mod image;
mod interrupts;
mod isr;
mod latch;
mod link;
pub mod logic;
mod made;
mod mmu;
mod network;
mod overseer;
mod own_memory;
pub mod port;
mod processes;
mod protection;
mod published;
mod reconfig;
mod run;
mod runtime;
mod scratch;
pub mod sealing;
pub mod serve;
mod shell;
pub mod socket;
mod spin;
mod stock;
mod tally;
mod transfer;
mod unfounded;
mod vfpga;
mod views;
mod wait;
mod worked;
mod xdma;

pub use congestion::Congestion;
pub use error::Error;
pub use handle::{CardHandle, PageGrant};
pub use image::{Image, fits};
pub use link::{Link, UdpLink, UdpOptions};
pub use overseer::LOCKED as STANDS_FOR_PROGRAMS;
pub use port::FaultSpec;
pub use protection::Protection;
pub use published::InterruptHandler;
pub use reconfig::Spoil;
pub use runtime::{CardConfig, Runtime, RuntimeConfig};
pub use unfounded::Unfounded;
pub use vfpga::{
    AH_BYTES, CQ_BYTES, DM_BYTES, MEMBERSHIP_BYTES, MR_BYTES, MW_BYTES, QP_BYTES, RQ_BYTES,
    UNDER_WAY_BYTES,
};

/// Windows of a card, each an engine with [`fpga_regs::engine::window::DOORBELL_PAGES`] pages.
pub const WINDOWS: u8 = 4;
