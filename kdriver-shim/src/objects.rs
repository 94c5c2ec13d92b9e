//! Clients' objects: contexts, domains, regions, queues, address handles, channels.
//!
//! A thing notes each part that it has taken, so that one whose creation failed half way is undone as any
//! other is ([`crate::undo`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use card_driver::iova::IovaRange;
use card_driver::spans::Span;
use fpga_regs::engine::qp::{QpState, QpType};

use crate::claims::Peer;
use crate::error::Error;
use crate::listeners::{ContextEvents, Records};

/// An open device.
#[derive(Debug)]
pub struct Context {
    /// Its number.
    pub number: u32,
    /// Card number.
    pub card: u32,
    /// The window that the client has its place in there.
    pub window: u8,
    /// The receiver of its asynchronous events.
    pub events: Arc<ContextEvents>,
}

/// A protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Pd {
    /// The context it belongs to.
    pub context: u32,
}

/// A memory region, reserved or committed.
#[derive(Debug)]
pub struct Mr {
    /// Card number.
    pub card: u32,
    /// Its protection domain.
    pub pdn: u32,
    /// First byte in the client.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Address by which work requests name the first byte.
    pub hca_va: u64,
    /// Rights.
    pub access: u32,
    /// The card's addresses of it, once it has some; whole pages.
    pub range: Option<IovaRange>,
    /// The card may reach the memory there: not of a region of no bytes, nor before and behind its life.
    pub mapped: bool,
    /// Its key, once committed.
    pub key: Option<u32>,
    /// The part of the card's own memory that it lies in.
    pub dm: Option<u32>,
}

/// A part of a card's own memory.
#[derive(Debug)]
pub struct Dm {
    /// The context it belongs to.
    pub context: u32,
    /// Card number.
    pub card: u32,
    /// Bytes.
    pub length: u32,
    /// log2 of the blocks of its passage.
    pub log2_blocks: u8,
    /// The passage for bytes between it and the client, in the client's ring memory, once there is that.
    pub passage: Option<Span>,
    /// Its number on the card, once it has one.
    pub card_dm: Option<u32>,
}

/// The regions of one client on one card that are on their way out; none, where there are none.
#[derive(Debug, Default)]
pub struct Leaving {
    /// The card.
    pub card: u32,
    /// The regions.
    pub regions: Vec<LeavingRegion>,
    /// Whether the card has forgotten their translations.
    pub forgotten: bool,
    /// The first thing that went wrong behind the keys.
    pub failure: Option<Error>,
}

/// A region whose key was ended.
#[derive(Debug)]
pub struct LeavingRegion {
    /// The region.
    pub mr: Mr,
    /// The engine's answer to the end of its key.
    pub stopped: Result<(), Error>,
    /// Bytes from the first on that are unmapped.
    pub unmapped: u64,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// The context it belongs to.
    pub context: u32,
    /// Card number.
    pub card: u32,
    /// log2 of its entries.
    pub log2_entries: u8,
    /// Its ring in the client's ring memory, once it has one.
    pub ring: Option<Span>,
    /// The ring that it had before it was resized, until its client gives that back.
    pub former: Option<Span>,
    /// Its number, once it is made.
    pub cqn: Option<u32>,
}

impl Cq {
    /// Its entries.
    #[must_use]
    pub fn entries(&self) -> u64 {
        1u64.checked_shl(u32::from(self.log2_entries)).unwrap_or(0)
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// The context it belongs to.
    pub context: u32,
    /// Card number.
    pub card: u32,
    /// Its protection domain.
    pub pdn: u32,
    /// The client's handle of the XRC domain, if it is in one, and its completion queue.
    pub xrc: Option<(u32, u32)>,
    /// Its entries.
    pub entries: u32,
    /// Its ring in the client's ring memory, once it has one.
    pub ring: Option<Span>,
    /// Its number, once it is made.
    pub srqn: Option<u32>,
}

/// A queue pair, with its receive queue where that is its own.
#[derive(Debug)]
pub struct Qp {
    /// The context it belongs to.
    pub context: u32,
    /// Card number.
    pub card: u32,
    /// Its protection domain.
    pub pdn: u32,
    /// Transport.
    pub kind: u8,
    /// Its program asked for services.
    pub has_services: bool,
    /// Completion queue of its sends.
    pub send_cqn: u32,
    /// Completion queue of its receives.
    pub receive_cqn: u32,
    /// Its send ring in the client's ring memory, once it has one.
    pub sq: Option<Span>,
    /// The shared receive queue that it uses.
    pub srqn: Option<u32>,
    /// Its own receive ring in the client's ring memory, once it has one.
    pub rq: Option<Span>,
    /// Its own receive queue, once that is made.
    pub rqn: Option<u32>,
    /// Its number, once it is made.
    pub qpn: Option<u32>,
    /// The multicast groups that it is in, by their GIDs.
    pub groups: BTreeSet<[u8; 16]>,
    /// State it was last seen in.
    pub state: QpState,
    /// The connection it speaks for, from RTR on.
    pub peer: Option<Peer>,
}

impl Qp {
    /// Whether it has a receive queue of its own: not where it uses a shared one, or only sends.
    #[must_use]
    pub fn has_own_rq(&self) -> bool {
        self.srqn.is_none() && self.kind != QpType::XrcSend.0
    }
}

/// A handle of an XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    /// The context it belongs to.
    pub context: u32,
    /// Card number.
    pub card: u32,
    /// The domain's number, once it is open.
    pub xrcdn: Option<u32>,
}

/// A handle of an XRC target.
#[derive(Debug)]
pub struct XrcTarget {
    /// Its number.
    pub number: u32,
    /// Card number.
    pub card: u32,
    /// The client's handle of its domain.
    pub xrcd: u32,
    /// The target's number among those of the card ([`crate::xrc`]), once it has it.
    pub target: Option<u32>,
    /// Its QP number, once it has it.
    pub qpn: Option<u32>,
}

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    /// Card number.
    pub card: u32,
    /// Its protection domain.
    pub pdn: u32,
    /// Its first key, once it is made.
    pub key: Option<u32>,
}

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    /// Card number.
    pub card: u32,
    /// Its protection domain.
    pub pdn: u32,
    /// Its number on the card, once it is made.
    pub card_ah: Option<u32>,
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    /// The context it belongs to.
    pub context: u32,
    /// The receiver of its records.
    pub records: Records,
}
