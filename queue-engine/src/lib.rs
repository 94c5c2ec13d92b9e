//! Verbs semantics of the rings: fetch, keys, gather and scatter, receive matching, completions,
//! flushing and events.
//!
//! An [`Engine`] is one verbs queue engine of the contract in [`fpga_regs::engine`]. It owns no
//! thread, no socket and no clock: time is an argument in nanoseconds, host memory is a trait
//! ([`Rings`]), and so is the carrier of messages ([`Transport`]). Packets, PSNs and ACKs lie
//! below the transport; payload never passes through the engine, which only says where it lies
//! ([`Piece`]).
//!
//! Ring contents, doorbells and admin commands are hostile: entries are copied once, checked, used.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::panic, clippy::arithmetic_side_effects, reason = "tests may fail"))]

mod admin;
mod cq;
mod device_memory;
mod doorbells;
mod engine;
mod events;
mod fetch;
mod flush;
mod handles;
mod keys;
mod memory;
mod numbers;
mod qp;
mod registers;
mod resolve;
mod rings;
mod rq;
mod transport;
mod under_way;
mod waiting;
mod xrc;

pub use doorbells::DoorbellPage;
pub use engine::{Engine, EngineConfig};
pub use memory::{Piece, Record, Ring, Rings};
pub use numbers::Random;
pub use resolve::{Payload, Unreachable};
pub use transport::{
    LocalGid, Message, ReceiveError, ReceiveKind, ReceivedMessage, RemoteAccess, RemoteRange,
    TakenReceive, Transport, TransportError, TransportEvent, WqeOperation, XrcRequest,
};
pub use under_way::TRANSPORT_MESSAGE_BYTES;
