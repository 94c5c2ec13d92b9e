//! The calls of an identifier's owner, and the events that it gets.

use core::net::IpAddr;

use crate::binding::Offer;
use crate::service::PortSpace;
use crate::types::{BindingId, Id, Owner, Path, Route, Transport};
use crate::wire::{Mad, RejectReason, Rejected, SidrStatus};

/// A datagram to be sent: from queue pair 1 to queue pair 1, with the Q_Key
/// [`crate::param::QKEY`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The owner for which it is sent; `None` if it is an answer that concerns no object of an owner.
    pub owner: Option<Owner>,
    /// The addresses, and the path between them.
    pub route: Route,
    /// Its bytes.
    pub datagram: Box<Mad>,
}

/// An event for the owner of an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The owner of the identifier.
    pub owner: Owner,
    /// The identifier.
    pub id: Id,
    /// The event.
    pub kind: EventKind,
}

/// An event of a connection or resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A listener is asked for a connection; the identifier is a new one of the listener's owner.
    ConnectRequest(Box<ConnectRequest>),
    /// The peer accepts; [`crate::Manager::ready`] says that this side can receive.
    ConnectResponse(Box<ConnectResponse>),
    /// Both sides are ready.
    Established {
        /// The peer's private data; empty if a packet of the connection was the sign.
        private_data: Box<[u8]>,
    },
    /// The peer refuses, or ends the connection by a refusal.
    Rejected(Box<Rejection>),
    /// A REQ, REP or SIDR_REQ was never answered.
    Unreachable,
    /// The connection ends.
    Disconnected {
        /// The message that reports the end.
        by: Farewell,
        /// The private data of the peer.
        private_data: Box<[u8]>,
    },
    /// No packet of the connection can be under way any more.
    TimeWaitExit,
    /// A listener is asked where its datagrams go; the identifier is a new one of its owner.
    ResolveRequest(Box<ResolveRequest>),
    /// The peer said where its datagrams go, or that it does not serve.
    Resolved(Box<Resolved>),
}

/// How the end of a connection shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Farewell {
    /// The peer asks for it; [`crate::Manager::disconnect`] agrees.
    Dreq,
    /// The peer agrees.
    Drep,
    /// The peer does not answer.
    Silence,
}

/// A request for a connection, as the side sees it that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The binding that listens.
    pub listener: BindingId,
    /// The path, seen from here.
    pub path: Path,
    /// The port of the side that asks.
    pub source_port: u16,
    /// The transport service of the connection.
    pub transport: Transport,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The peer's GUID.
    pub remote_ca_guid: u64,
    /// READs and atomics that the peer would like to have served at a time.
    pub responder_resources: u8,
    /// READs and atomics that the peer serves at a time.
    pub initiator_depth: u8,
    /// Retries of the queue pair here.
    pub retry_count: u8,
    /// Retries of the queue pair here after RNR NAKs.
    pub rnr_retry_count: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The private data of the peer.
    pub private_data: Box<[u8]>,
}

/// The peer's consent to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The peer's GUID.
    pub remote_ca_guid: u64,
    /// READs and atomics that the peer has under way at most.
    pub responder_resources: u8,
    /// READs and atomics that the peer serves at a time.
    pub initiator_depth: u8,
    /// Retries of the queue pair here after RNR NAKs.
    pub rnr_retry_count: u8,
    /// Whether the peer has end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The private data of the peer.
    pub private_data: Box<[u8]>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: RejectReason,
    /// The message that is refused.
    pub message: Rejected,
    /// More about the reason.
    pub info: Box<[u8]>,
    /// The private data of the peer.
    pub private_data: Box<[u8]>,
}

/// The question where datagrams go, as the side sees it that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveRequest {
    /// The binding that listens.
    pub listener: BindingId,
    /// The route between the two ends, seen from here.
    pub route: Route,
    /// The port of the side that asks.
    pub source_port: u16,
    /// The private data of the peer.
    pub private_data: Box<[u8]>,
}

/// The answer where datagrams go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// How it went.
    pub status: SidrStatus,
    /// The queue pair that serves.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// The private data of the peer.
    pub private_data: Box<[u8]>,
}

/// A connection to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The path.
    pub path: Path,
    /// The port space of the service.
    pub space: PortSpace,
    /// The port here.
    pub source_port: u16,
    /// The port of the service.
    pub destination_port: u16,
    /// The transport service of the connection.
    pub transport: Transport,
    /// The queue pair here.
    pub qpn: u32,
    /// Whether it has a shared receive queue.
    pub srq: bool,
    /// READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it would like to have under way.
    pub initiator_depth: u8,
    /// Whether it has end-to-end flow control.
    pub flow_control: bool,
    /// Retries of both queue pairs, at most 7.
    pub retry_count: u8,
    /// Retries of the peer's queue pair after RNR NAKs, at most 7.
    pub rnr_retry_count: u8,
    /// How long either side may take to answer: 4.096 µs · 2^code.
    pub response_timeout: u8,
    /// How often a message that is not answered is sent again, at most 15.
    pub max_cm_retries: u8,
    /// The private data: 56 bytes at most.
    pub private_data: &'a [u8],
}

/// The consent to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept<'a> {
    /// The queue pair here.
    pub qpn: u32,
    /// Whether it has a shared receive queue.
    pub srq: bool,
    /// READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that it has under way at most.
    pub initiator_depth: u8,
    /// Whether it has end-to-end flow control.
    pub flow_control: bool,
    /// Retries of the peer's queue pair after RNR NAKs, at most 7.
    pub rnr_retry_count: u8,
    /// The private data: 196 bytes at most.
    pub private_data: &'a [u8],
}

/// The question where the datagrams of a service go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve<'a> {
    /// The path between the two ends.
    pub path: Path,
    /// The port space of the service.
    pub space: PortSpace,
    /// The port here.
    pub source_port: u16,
    /// The port of the service.
    pub destination_port: u16,
    /// How long the peer may take to answer: 4.096 µs · 2^code.
    pub response_timeout: u8,
    /// How often the question is sent again, at most 15.
    pub max_cm_retries: u8,
    /// The private data: 180 bytes at most.
    pub private_data: &'a [u8],
}

/// The answer where datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// How it went.
    pub status: SidrStatus,
    /// The queue pair that serves.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// The private data: 136 bytes at most.
    pub private_data: &'a [u8],
}

impl ConnectRequest {
    /// The address of the side that asks.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.path.route.remote.ip()
    }

    /// The offer that a listener must have to get this request.
    #[must_use]
    pub fn offer(&self) -> Offer {
        Offer::Connections(self.transport)
    }
}
