//! Services on the path of a connection's packets, without I/O, clock or threads.
//!
//! A [`PacketService`] sees the payload of a reliable connection's messages. A [`Chain`] is several of them in their
//! order, found to fit together. A [`ServedQp`] runs a chain for one queue pair: it keeps their state, calls
//! each once for each packet in its turn, and stops those that exceed their work. [`Attachments`] says which queue
//! pairs of a card have which chain.
//!
//! [`natives`] are the services that are compiled in, [`Loaded`] those that were loaded beside them.

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

mod attachments;
mod chain;
mod classifier;
mod connection;
mod error;
mod inspect;
mod lane;
pub mod limit;
mod loaded;
mod native;
mod network;
mod part;
mod patterns;
mod preprocess;
mod selector;
mod service;
mod settings;
mod succession;
mod turns;

pub use attachments::{Attached, Attachments};
pub use chain::Chain;
pub use classifier::Classifier;
pub use connection::{Counters, ServedQp};
pub use error::Error;
pub use inspect::Inspect;
pub use loaded::Loaded;
pub use native::natives;
pub use part::{End, Operation, Operations, Part};
pub use patterns::{PatternsError, patterns};
pub use preprocess::{DENSE, MODULUS, Preprocess, ROW};
pub use selector::{MAX_DSCP, Selector, Side, Subject};
pub use service::{About, Budget, Halt, PacketService, Placing, Stages, Verdict};
pub use settings::Settings;
pub use succession::Succession;
pub use turns::{SharedTime, Turn, Turns};
