//! The queue engine's transport over the command registers of a published card; without I/O, clock or threads.
//!
//! A published card has no engine. It carries WRITEs and READs that a driver posts into registers, counts their ends, and
//! reports nothing else (`docs/stock-card.md` lists its properties, `docs/stock-engine.md` the measures against them).
//! [`Posts`] makes a transport of that for one vFPGA: it cuts messages into posts that cannot block others, detects
//! their ends by the counters, and gives up a peer that is silent. [`Pages`] decides on the entries of the vFPGA's TLB:
//! memory of programs for the QPs that may reach it, and a *sink* in its place if there is none (any more), for a
//! refused page would stop the card.
//!
//! [`Carrier`] sends messages through the tunnel (`docs/tunnel.md`) where the peer has its other end, in slots that it
//! posts, and long ones from memory of one program to that of the other, to which [`Windows`] of their address spaces
//! lead meanwhile. Datagrams go through the tunnel, too, by a queue pair that it keeps to each other card: [`Meetings`]
//! lets the cards of a process agree on it, and on the queue pairs that take packets; in the [`Exchange`] of a card
//! datagrams wait for their way.
//!
//! The driver calls [`Carrier::advance`] while [`Carrier::is_waiting`], and acts on [`Posts::lost`],
//! [`Carrier::connected_link`] and [`Carrier::ended_link`].

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod carrier;
mod ends;
mod exchange;
mod gid;
mod link;
mod links;
mod local;
mod meeting;
mod memory;
mod pages;
pub mod param;
mod posts;
mod sockets;
mod space;
mod verbs;
mod windows;

pub use carrier::{Carrier, TunnelTally};
pub use exchange::Exchange;
pub use local::Local;
pub use meeting::Meetings;
pub use memory::Memory;
pub use pages::{Gone, Pages};
pub use posts::{Budget, EngineTally, Faults, Locate, Posts, Registers, Settings};
pub use sockets::DatagramTally;
pub use tunnel::{Host, Key};
pub use windows::{Window, Windows};

/// The address by which a QP's posts name local memory that the card's bus has at `iova`: no program has memory there.
#[must_use]
pub const fn local_address(iova: u64) -> u64 {
    iova | param::LOCAL
}
