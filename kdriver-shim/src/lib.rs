//! The daemon balboad: serves client processes on cards, owns their objects there, routes events.
//!
//! A work request never passes through here; everything rare does. [`server::Server`] is one thread
//! around an epoll set. It answers the messages of `shim_abi` by acting on the objects of a
//! [`clients::Client`] through the [`card_driver::engine::Engine`] of the card window the client is
//! pinned to. A thread for each card, of [`card_driver::interrupts`], carries the engines' reports to the
//! clients' channels, in [`listeners`].
//!
//! `card-driver` drives cards, `host-view` shows them in the host; neither knows of clients.
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

pub mod args;
pub mod aside;
pub mod cards;
pub mod channels;
pub mod claims;
pub mod clients;
pub mod cm;
pub mod config;
pub mod ending;
pub mod error;
pub mod events;
pub mod flasher;
pub mod freed;
pub mod grants;
pub mod host_ports;
pub mod images;
pub mod key_source;
pub mod lease;
pub mod leaving;
pub mod listeners;
pub mod machine;
pub mod metrics;
pub mod numbers;
pub mod objects;
pub mod peer;
pub mod poller;
pub mod process;
pub mod protection;
pub mod quota;
pub mod reception;
pub mod remains;
pub mod rings;
pub mod server;
pub mod service;
pub mod session;
pub mod shared_keys;
pub mod state_dir;
pub mod status;
pub mod surroundings;
pub mod tunnel;
pub mod undo;
pub mod xrc;
