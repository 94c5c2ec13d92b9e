//! RoCE v2, Reliable Connection, Unreliable Connection and Unreliable Datagram, without I/O, clock, threads or randomness.
//!
//! A [`Stack`] is the transport of one card port. It owns every queue pair (QP) of that port and
//! speaks in Ethernet frames, but it never sends one, never reads a clock and never touches
//! payload:
//!
//! * [`Stack::receive`] takes received frames and answers with [`Placement`]s: which bytes of
//!   which frame belong where. The caller executes a burst of them as one vectored copy and tells
//!   the outcome to [`Stack::commit`]; only then do acknowledgements and completions that depend
//!   on them become visible.
//! * [`Stack::poll_transmit`] yields one frame at a time: complete headers and a reference to the
//!   payload ([`Payload`]), on retransmission too. The caller fetches the bytes and appends the
//!   invariant CRC ([`wire::icrc`]).
//! * Time is an [`Instant`] argument; [`Stack::next_timeout`] says when to call
//!   [`Stack::handle_timeout`].
//! * What the layer above must decide about incoming requests, keys and receive requests, is asked
//!   through the [`Verbs`] trait.
//!
//! The rules are those of the InfiniBand Architecture Specification, volume 1, chapter 9 (transport
//! layer) and annex A17 (RoCE v2). `docs/transport.md` says which pages number them; comments cite the number where a
//! rule is met, and tests where it is shown. Every limit and constant lies in [`param`].
//!
//! # The caller's loop
//!
//! Feed a burst of frames to `receive`, execute all placements, `commit`, `handle_timeout`,
//! drain `poll_event`, then `poll_transmit` up to a budget, fetch the payloads, `frames_made`, append the ICRC, send, and sleep until a
//! frame arrives or `next_timeout` is due. While placements await their `commit` nothing is
//! transmitted.

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
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects,
        reason = "tests may panic"
    )
)]

pub mod wire;

mod api;
mod arriving;
mod attributes;
mod comp;
mod congestion;
mod control;
mod counters;
mod credit;
mod datagram;
mod drops;
mod error;
mod groups;
mod header;
mod incoming;
mod log;
mod message;
mod neighbour;
pub mod opcode;
mod owed;
pub mod param;
mod path;
mod probe;
mod psn;
mod qp;
mod reliable;
mod req;
mod resp;
mod service;
mod services;
mod stack;
mod state;
mod table;
mod timer;
mod types;
mod unanswered;
mod unreliable;
pub mod window;

pub use api::{AccessDenied, ReceiveError, RemoteAccess, RemoteRange, TakenReceive, Verbs};
pub use api::{
    AtomicOperation, DatagramRequest, Event, GRH_LENGTH, IcrcPolicy, Kept, Operation, Payload,
    Placed, Placement, QpEvent, ReceiveKind, ReceiveStatus, ReceivedFrame, SendRequest, SendStatus,
    Sink, Source, Target, Transmit, XrcSrq,
};
pub use attributes::{AccessFlags, AddressVector, QpAttributes, QpSnapshot};
pub use counters::{Counters, QpCounters};
pub use error::{Error, PostError};
pub use header::HeaderBuffer;
pub use psn::Psn;
pub use service::Service;
pub use services::{Checked, Services, Verdict};
pub use stack::{Owner, Stack, StackConfig};
pub use state::QpState;
pub use types::{Address, Gid, GidTable, Instant, MacAddr, PathMtu, Qpn};
