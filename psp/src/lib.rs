//! PSP (the PSP Security Protocol, Google's architecture specification) between hosts that share keys, without I/O, clock or
//! threads.
//!
//! An [`Associations`] is what a host knows of its peers. It seals datagrams and opens those that come: the payload of UDP
//! is encrypted and authenticated, and the number of the queue pair that sends it is authenticated in the clear.
//! `docs/services-psp.md` says which parts of the specification it uses, and why no initialization vector comes twice.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::arithmetic_side_effects,
        reason = "tests may fail"
    )
)]

mod associations;
mod cipher;
mod epoch;
mod header;
mod keys;
pub mod param;
mod version;
mod window;

pub use associations::{Associations, Counters, Peer, Refusal};
pub use cipher::Cipher;
pub use epoch::Source;
pub use header::Header;
pub use keys::{Ends, Secret, derived};
pub use version::Version;
