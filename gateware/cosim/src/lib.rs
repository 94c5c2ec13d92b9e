//! Gateware in simulation: what stands around the logic in RTL, cycle by cycle.
//!
//! [`Bus`] is host memory behind the shell's ports and a PCIe bus, without I/O, clock or threads; a seed decides all that
//! is random. [`limit`] measures what it allows. [`card::Vfpga`] is logic in RTL behind those ports, out of a library that
//! `cargo xtask gateware build` makes; no crate needs that library to build. [`pair`] joins two engines in RTL at their
//! ports N, and [`messages`] has them execute work requests, with [`lockstep`] beside them; [`payload`] asks one of them
//! for many pieces of memory at once, [`claims`] for many receives, and has messages of many queue pairs under way
//! ([`banks`]), [`stopping`] takes a ring away amid a command, [`tables`] fills a table and has tables lose bits, [`told`]
//! tells it of seeds and of refused faults, and [`speed`] measures it. [`coyote`] tries the adaptor to the shell's records.
//! [`rtl`] is such an engine as logic of a software card, [`contract`] a driver of such cards, and [`driver`] has the
//! project's own refuse page faults of one.

#![deny(unsafe_code)]

mod alone;
pub mod banks;
pub mod bus;
pub mod card;
pub mod claims;
pub mod contract;
pub mod copy;
pub mod coverage;
pub mod coyote;
pub mod driver;
#[expect(unsafe_code, reason = "the C side of what Verilator makes")]
pub mod ffi;
pub mod host;
pub mod limit;
pub mod lockstep;
pub mod memory;
pub mod messages;
pub mod pair;
pub mod payload;
pub mod port;
pub mod random;
pub mod rtl;
pub mod speed;
pub mod stopping;
pub mod tables;
pub mod told;

pub use bus::{Bus, Config};
pub use memory::{Direction, Memory, Pages, Reached};
