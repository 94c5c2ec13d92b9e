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
//!   payload ([`FramePayload`]), on retransmission too. The caller fetches the bytes and appends the
//!   invariant CRC ([`wire::icrc`]).
//! * Time is an [`Instant`] argument; [`Stack::next_timeout`] says when to call
//!   [`Stack::handle_timeout`].
//! * The stack asks the layer above through the [`ResponderMemory`] trait for the memory that incoming requests
//!   may reach: by their R_Key, or as the next receive request.
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
//! transmitted. A placement that is not known at the commit ([`Placed::Later`]) has its own queue pair wait for [`Stack::settle`],
//! and no other.
//!
//! # A whole exchange
//!
//! Two ports and a cable between them: one writes into the other's memory. ARP is among the frames.
//!
//! ```
//! use std::task::Poll;
//! use roce::*;
//!
//! struct Memory([u8; 64]); // A peer may access it by the key 7.
//! impl ResponderMemory for Memory {
//!     fn check_remote(&mut self, _: Target, at: RemoteRange, _: RemoteAccess) -> Poll<Result<(), AccessDenied>> {
//!         let fits = at.rkey == 7 && at.va.checked_add(at.length).is_some_and(|end| end <= 64);
//!         Poll::Ready(fits.then_some(()).ok_or(AccessDenied::Memory))
//!     }
//!     fn take_receive(&mut self, _: Target) -> Poll<Result<TakenReceive, ReceiveError>> {
//!         Poll::Ready(Err(ReceiveError::Empty))
//!     }
//! }
//! let (now, qpn, psn, mtu_max) = (Instant(0), Qpn::new(0x11).unwrap(), Psn::new(0), PathMtu::Mtu1024);
//! let mut ports = [1, 2].map(|number| {
//!     let (mac, ipv4) = (MacAddr([2, 0, 0, 0, 0, number]), [10, 0, 0, number].into());
//!     let mut stack = Stack::new(StackConfig { mac, ipv4, mtu_max, icrc_policy: IcrcPolicy::CheckAll });
//!     stack.create_qp(qpn, Service::Rc, 0).unwrap();
//!     let path = AddressVector::new(1, Gid::from_ipv4([10, 0, 0, 3 - number].into()));
//!     let (init, rtr) = (QpAttributes::to_init(AccessFlags::REMOTE_WRITE), QpAttributes::to_rtr(path, mtu_max, qpn, psn));
//!     [init, rtr, QpAttributes::to_rts(psn)].iter().for_each(|change| stack.modify_qp(now, qpn, change).unwrap());
//!     (stack, Memory([0; 64]))
//! });
//! ports[0].0.post_send(now, qpn, SendRequest::write(5, 8, 7)).unwrap();
//! while ports[0].0.poll_event() != Some(Event::SendsCompleted { qpn, through: 0 }) {
//!     let [(from, _), (to, memory)] = &mut ports;
//!     while let Some(transmit) = from.poll_transmit(now) {
//!         let mut frame = transmit.to_frame(transmit.payload.map_or(b"", |_| b"hello")).unwrap();
//!         let mut placements = Vec::new();
//!         assert!(to.receive(now, &mut frame, 0, memory, &mut placements).is_ready());
//!         for placement in &placements {
//!             let Sink::Remote { va, .. } = placement.sink else { unreachable!("only WRITEs are posted") };
//!             memory.0[va as usize..][..placement.range.len()].copy_from_slice(&frame[placement.range.clone()]);
//!         }
//!         to.commit(now, &vec![Placed::Copied; placements.len()]);
//!     }
//!     from.frames_made();
//!     ports.reverse();
//! }
//! assert_eq!(ports[1].1.0[8..13], *b"hello");
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

mod api;
mod arriving;
mod attributes;
mod completer;
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
mod priority;
mod probe;
mod psn;
pub mod qos;
mod qp;
mod rate;
mod ready;
mod reliable;
mod requester;
mod responder;
mod service;
mod services;
mod stack;
mod table;
mod timer;
mod types;
mod unanswered;
mod unreliable;
pub mod window;

pub use api::{
    AccessDenied, ReceiveError, RemoteAccess, RemoteRange, ResponderMemory, TakenReceive,
};
pub use api::{
    AtomicOperation, DatagramRequest, Event, FramePayload, GRH_LENGTH, IcrcPolicy, Kept, Operation,
    Placed, Placement, QpEvent, ReceiveKind, ReceiveStatus, ReceivedFrame, SendRequest, SendStatus,
    Sink, Source, Target, Transmit, XrcSrq,
};
pub use attributes::{AccessFlags, AddressVector, QpAttributes, QpSnapshot};
pub use congestion::NotificationPoint;
pub use counters::{Counters, QpCounters};
pub use error::{Error, OutOfRange, PostError};
pub use fpga_regs::engine::qp::QpState;
pub use header::HeaderBuffer;
pub use priority::{PRIORITIES, Priorities, Trust};
pub use psn::Psn;
pub use rate::LineRate;
pub use service::Service;
pub use services::{Checked, Part, PartKind, Services, Verdict};
pub use stack::{Owner, Stack, StackConfig};
pub use types::{Address, Gid, GidTable, Instant, MacAddr, PathMtu, Qpn};
