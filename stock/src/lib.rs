//! A strict model of the published card: its command registers, and its RoCE stack, BALBOA, with their faults; without
//! I/O, clock or threads.
//!
//! A [`Card`] has the AVX banks of its vFPGAs and one stack behind them. In each vFPGA stands the published example's
//! logic, which forwards the network's accesses to host memory, and reports nothing to the driver.
//!
//! * [`Card::store`] and [`Card::load`] are the accesses of a driver to a bank, with the sizes that they had on the bus.
//! * [`Card::receive`] takes frames, [`Card::transmit`] gives the ones to send.
//! * [`Card::work`] does the work that is due at a time, and reaches host memory through [`Host`]. Memory that is not
//!   there yet stalls it, and the next call goes on where it stopped.
//! * [`Card::next_timeout`] says when it is due though nothing comes.
//!
//! `docs/stock-card.md` lists the model's faults, which a good card would not have, each with a number, the published
//! file in which it was read, and a test. Comments cite the number where the code has the fault. It is a model for
//! tests of drivers and engines: where the sources leave something open, it takes the worse case for them.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod arp;
mod bank;
mod build;
mod card;
mod flow;
mod host;
mod opcode;
pub mod param;
mod post;
mod receive;
mod retransmit;
mod split;
mod tables;
mod tally;
mod timer;
mod transmit;
mod wire;

pub use build::Build;
pub use card::Card;
pub use host::{Host, Reach, Space};
pub use tally::{CardTally, Parked};
pub use wire::Identity;
