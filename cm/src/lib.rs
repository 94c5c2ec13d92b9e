//! The connection manager of RoCE v2 (specification, chapter 12), without I/O, clock, threads or randomness.
//!
//! A [`Manager`] connects queue pairs: it speaks in management datagrams from queue pair 1 to queue
//! pair 1 with the peer's connection manager, any kernel's or vendor's, and finds services by the
//! addresses and ports of RDMA CM (annex A11). One serves all cards of a machine.
//!
//! * [`Manager::input`] takes a datagram; [`Manager::poll_transmit`] yields those to send.
//! * [`Manager::poll_event`] yields the events for the owners of connections and listeners. A
//!   connection is an [`Id`], and belongs to an [`Owner`], a number of the caller's.
//! * Time is an [`Instant`] argument; [`Manager::next_deadline`] says when to call
//!   [`Manager::poll`]. Random numbers come from a source that [`Manager::new`] is given.
//! * [`Manager::qp_attributes`] has the attributes that bring a queue pair to a connection's states.
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
//! After each call drain `poll_transmit` and `poll_event`: only the number of calls since then bounds
//! their contents.
//!
//! # A whole exchange
//!
//! Two managers, whose datagrams are handed over at once: one listens, the other one connects.
//!
//! ```
//! use cm::*;
//! let (now, port, transport) = (Instant(1_000_000_000), 1, Transport::Rc);
//! let address = [1, 2].map(|number| Address::untagged([10, 0, 0, number].into()));
//! let mut managers = [1, 2].map(|number: u64| {
//!     let mut random = number;
//!     let numbers = move || { random = random.wrapping_mul(6_364_136_223_846_793_005) + 1; random };
//!     let mut manager = Manager::new(Limits::default(), Box::new(numbers));
//!     manager.set_port(port, PortAttributes { ca_guid: number, ack_delay: 15, mtu: 5 });
//!     manager
//! });
//! let (space, ip) = (PortSpace::Tcp, address[1].ip());
//! let bind = Bind { space, address: ip, vlan: 0, port: 7174, reuse: false, only_ipv6: false };
//! let (listener, _) = managers[1].bind(Owner(2), bind).unwrap();
//! managers[1].listen(listener, Offer::Connections(transport), 1).unwrap();
//! let asks = Connect {
//!     path: Path::along(Route::between(port, address[0], address[1]), 3, 7), space, source_port: 40_000,
//!     destination_port: 7174, transport, qpn: 0x11, srq: false, responder_resources: 1, initiator_depth: 1,
//!     flow_control: true, retry_count: 7, rnr_retry_count: 7, response_timeout: 20, max_cm_retries: 15,
//!     private_data: b"hello",
//! };
//! managers[0].connect(now, Owner(1), &asks).unwrap();
//! 'connected: for here in [0, 1].into_iter().cycle() {
//!     while let Some(sent) = managers[here].poll_transmit() {
//!         let route = Route::between(port, address[1 - here], address[here]);
//!         managers[1 - here].input(now, &route, param::QPN, &sent.datagram[..]);
//!     }
//!     while let Some(Event { id, kind, .. }) = managers[here].poll_event() {
//!         match kind {
//!             EventKind::ConnectRequest(request) if request.private_data.starts_with(b"hello") => {
//!                 // Both queue pairs go to RTS, with the attributes that `qp_attributes` gives.
//!                 let accept = Accept { qpn: 0x22, srq: false, responder_resources: 1, initiator_depth: 1,
//!                     flow_control: true, rnr_retry_count: 7, private_data: b"" };
//!                 managers[here].accept(now, id, &accept).unwrap();
//!             }
//!             EventKind::ConnectResponse(_) => managers[here].ready(now, id, b"").unwrap(),
//!             EventKind::Established { .. } => break 'connected,
//!             other => panic!("{other:?}"),
//!         }
//!     }
//! }
//! ```

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
