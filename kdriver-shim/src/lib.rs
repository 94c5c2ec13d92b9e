//! balboad: brings cards up, owns their resources, serves client processes, routes events.
//!
//! A work request never passes through here; everything rare does. [`server::Server`] is one thread
//! around an epoll set. It answers the messages of `shim_abi` by acting on the objects of a
//! [`clients::Client`] through the [`engine::Engine`] of the card window the client is pinned to. What
//! the engines report is carried to the clients' channels by a thread for each card, in
//! [`interrupts`] and [`listeners`].
//!
//! Nothing that comes from a card, a client or the command line is trusted: it is copied once,
//! validated and then used, and no input makes this crate panic.

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
pub mod args;
pub mod aside;
pub mod backend;
pub mod bringup;
pub mod cards;
pub mod channels;
pub mod claims;
pub mod clients;
pub mod device;
pub mod ending;
pub mod engine;
pub mod engines;
pub mod error;
pub mod event_ring;
pub mod events;
#[cfg(test)]
mod fake;
pub mod grants;
pub mod interrupts;
pub mod iova;
pub mod leaving;
pub mod listeners;
pub mod lock;
pub mod numbers;
pub mod objects;
pub mod peer;
pub mod poller;
pub mod process;
pub mod quota;
pub mod rings;
pub mod server;
pub mod session;
pub mod shell;
pub mod soft;
pub mod spans;
pub mod state_dir;
pub mod status;
pub mod translations;
pub mod vectors;
pub mod vfio;
