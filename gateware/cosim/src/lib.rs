//! Gateware in simulation: what stands around the logic in RTL, cycle by cycle.
//!
//! [`Bus`] is host memory behind the shell's ports and a PCIe bus, without I/O, clock or threads; a seed decides all that
//! is random. [`limit`] measures what it allows.

#![forbid(unsafe_code)]

pub mod bus;
pub mod limit;
pub mod memory;
pub mod random;

pub use bus::{Bus, Config};
pub use memory::{Direction, Memory, Pages};
