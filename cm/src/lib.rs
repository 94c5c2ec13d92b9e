//! The connection manager of RoCE v2 (specification, chapter 12), without I/O, clock, threads or randomness.
//!
//! A [`Manager`] connects queue pairs: it speaks in management datagrams from queue pair 1 to queue
//! pair 1 with the peer's connection manager, any kernel's or vendor's, and finds services by the
//! addresses and ports of RDMA CM (annex A11). One serves all cards of a machine.
//!
//! * [`Manager::input`] takes a datagram; [`Manager::poll_transmit`] yields those to send.
//! * [`Manager::poll_event`] yields what the owners of connections and listeners are to know. A
//!   connection is an [`Id`], and belongs to an [`Owner`], a number of the caller's.
//! * Time is an [`Instant`] argument; [`Manager::next_deadline`] says when to call
//!   [`Manager::poll`]. Random numbers come from a source that [`Manager::new`] is given.
//! * [`Manager::qp_attributes`] has what brings a queue pair to a connection's states.
//!
//! # The side that asks
//!
//! [`Manager::connect`]; then the event `ConnectResponse`; bring the queue pair to RTS;
//! [`Manager::ready`]; the connection is there. At its end [`Manager::disconnect`], the event
//! `Disconnected`, and `TimeWaitExit` when the queue pair can be used again; [`Manager::destroy`] at
//! any time.
//!
//! # The side that is asked
//!
//! [`Manager::bind`] and [`Manager::listen`]; the event `ConnectRequest` with a new [`Id`]; bring the
//! queue pair to RTS; [`Manager::accept`]; the event `Established`. [`Manager::reject`] refuses.
//!
//! # Datagrams
//!
//! [`Manager::resolve`] on one side and [`Manager::answer`] on the other tell where datagrams of a
//! service go.
//!
//! The states are data: [`State`], and the table in `machine.rs`. `docs/cm.md` numbers the rules;
//! comments cite the number where a rule is met, and tests where it is shown. Every limit and constant
//! lies in [`param`].
//!
//! # The caller's loop
//!
//! After each call drain `poll_transmit` and `poll_event`: what they hold is bounded by the calls
//! made since then, and not otherwise.

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

mod binding;
mod connection;
mod counters;
mod event;
mod machine;
mod manager;
pub mod param;
pub mod presence;
mod qp;
mod random;
mod service;
mod types;

pub use binding::{Bind, Offer};
pub use counters::{Counters, MESSAGES};
pub use event::{
    Accept, Answer, Connect, ConnectRequest, ConnectResponse, Event, EventKind, Farewell,
    Rejection, Resolve, ResolveRequest, Resolved, Transmit,
};
pub use machine::State;
pub use manager::Manager;
pub use param::Limits;
pub use qp::{QpAttributes, QpTarget};
pub use service::{PortSpace, ServiceId};
pub use types::{
    Address, BindingId, Error, Id, Instant, Owner, Path, PortAttributes, Route, Transport,
};
