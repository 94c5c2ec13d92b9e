//! The tunnel between two published cards: its ends, without I/O, clock or threads.
//!
//! [`fpga_regs::engine::tunnel`] defines the slots. An [`End`] is one QP's: it makes slots of its messages, and takes
//! the peer's slots, which are hostile. Its caller writes slots into the peer's ring; a [`Host`] does their accesses to
//! memory and queues. A [`Datagram`] goes from card to card as a message of an end whose host is [`Traffic`].

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod datagram;
mod end;
mod grant;
mod host;
mod mac;
pub mod param;
mod requester;
mod responder;
mod slot;
mod traffic;
mod turnover;

pub use datagram::Datagram;
pub use end::{End, Names, Pace, Work};
pub use host::Host;
pub use mac::{Direction, Key};
pub use slot::write as write_slot;
pub use traffic::Traffic;
