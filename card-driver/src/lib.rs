//! The driver of one card: a kernel driver's work, in user space.
//!
//! [`bringup::bring_up`] makes a [`device::Device`] of a PCIe function as a [`backend::CardBackend`]
//! shows it, with the engine of each of its windows behind [`engine::Engine`]. It has I/O virtual
//! addresses to give out ([`iova`]), lets the card reach memory there ([`shell`]), and serves its
//! interrupts by a thread ([`interrupts`]), which passes the engines' reports to the
//! listeners.
//!
//! It knows nothing of clients and their quotas, of sockets and of messages.
//!
//! Nothing that comes from a card is trusted: it is copied once, validated and then used, and no answer
//! makes this crate panic.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::panic))]

pub mod address;
pub mod admin;
pub mod backend;
pub mod bringup;
pub mod device;
pub mod engine;
pub mod engines;
mod error;
pub mod event_rings;
#[cfg(any(test, feature = "fake"))]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test may fail"
)]
pub mod fake;
pub mod gsi;
pub mod hosted;
pub mod interrupts;
pub mod iova;
pub mod limit;
pub mod loading;
pub mod lock;
pub mod relay;
mod remains;
pub mod says;
pub mod shell;
#[cfg(any(test, feature = "soft"))]
pub mod soft;
pub mod spaces;
pub mod spans;
pub mod translations;
pub mod vectors;
pub mod vfio;

pub use error::Error;
