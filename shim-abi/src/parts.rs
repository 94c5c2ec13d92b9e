//! The parts of requests and responses.

use super::{Deserialize, Serialize};

/// A file, by device and inode as `fstat` tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    /// The device that it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// The attributes of a new QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateQp {
    /// Protection domain.
    pub pdn: u32,
    /// `fpga_regs::engine::qp::QpType`.
    pub kind: u8,
    /// Completion queue of its sends.
    pub send_cqn: u32,
    /// Completion queue of its receives.
    pub receive_cqn: u32,
    /// log2 of the blocks of its send ring.
    pub log2_sq_blocks: u8,
    /// The shared receive queue that it takes its receives from. Without one it has a receive queue of
    /// its own, unless it only sends (XRC): then neither this nor its receive completion queue is looked at.
    pub srqn: Option<u32>,
    /// log2 of the entries of its own receive ring.
    pub log2_rq_entries: u8,
    /// log2 of the blocks of an entry of that.
    pub log2_rq_stride: u8,
    /// The client's name for it, in its asynchronous events; never used for another.
    pub cookie: u64,
    /// Services for it alone, if it is a reliable connection.
    pub chain: Option<ServiceChain>,
}

/// The queue pairs of a card that services are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceUsers {
    /// The one of that number.
    Qp(u32),
    /// All reliable connections with the peer of that address, network order.
    Peer([u8; 16]),
    /// All reliable connections of the client that is the process of that number, as balboad sees it.
    Process(u32),
    /// All reliable connections that send with that DSCP, 0 to 63.
    Dscp(u8),
}

/// The ends of messages at which services stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceSide {
    /// Both.
    #[default]
    Both,
    /// The end that asks: responses of its READs as they come, its SENDs and WRITEs as they leave.
    Requester,
    /// The end that is asked: SENDs and WRITEs as they come, its responses to READs as they leave.
    Responder,
}

/// Services for queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceChain {
    /// Their names, in the order in which packets that come meet them.
    pub services: Vec<String>,
    /// Their settings: names and values, each of [`crate::MAX_SETTING`] bytes at most.
    pub settings: Vec<(String, Vec<u8>)>,
    /// The ends of messages at which they stand.
    pub side: ServiceSide,
}

/// An event channel, and how far the process has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmReader {
    /// The channel.
    pub channel: CmToken,
    /// The number of the last event that it has read; 0 before the first.
    pub read: u64,
    /// The number of an event that it has taken from the socket and not read; 0 where there is none.
    pub held: u64,
}

/// An event of the connection manager's, as it comes by a channel's socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmEvent {
    /// Its number, larger than that of all before it on the channel.
    pub number: u64,
    /// The bytes with which the kernel would answer GET_EVENT, with room for all of them.
    pub output: Vec<u8>,
    /// The answers to librdmacm's next commands.
    pub ahead: Option<CmAhead>,
}

/// Answers to questions about an identifier that were not asked yet.
///
/// The process that is given them may use each instead of asking, any number of times, as long as it has sent no command
/// that names the identifier since it read the event, but those of [`CmQuestion`], and the word at [`crate::CM_ERA`] is
/// `era`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmAhead {
    /// The identifier.
    pub id: u32,
    /// The value of the word when they were true.
    pub era: u32,
    /// Questions, and the answers' bytes as [`Response::CmAnswer`](crate::Response::CmAnswer) would have them.
    pub answers: Vec<(CmQuestion, Vec<u8>)>,
}

/// A command that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmQuestion {
    /// QUERY_ROUTE.
    Route,
    /// INIT_QP_ATTR, for that state of verbs'.
    QpAttributes(u32),
}

/// The progress of an image on its way into a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlashState {
    /// None was asked for since balboad started.
    Idle,
    /// Programs that have the card open are waited for.
    Leaving,
    /// The card is taking it.
    Loading {
        /// Bytes that it has taken.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// The card was brought up with the image's identity.
    Done,
    /// Why it is not there, and what the card has.
    Failed(String),
    /// The card was brought up with the image's identity, which it had before, too, so that success cannot be seen.
    Unseen,
}

/// The receive queue of one QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveRing {
    /// Its number.
    pub rqn: u32,
    /// The offset of its rings in the client's ring memory.
    pub ring: u64,
}

/// The destination of an address handle's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressVector {
    /// Index of the local GID.
    pub sgid_index: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// The most that goes there, a code of `ibv_rate`; 0 for the port's rate.
    pub static_rate: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// GID of the peer, network order.
    pub dgid: [u8; 16],
}

/// Names an event channel of the connection manager: 16 random bytes that only processes with the channel know.
pub type CmToken = [u8; 16];

/// A card as `balboa run` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardInfo {
    /// Card number.
    pub card: u32,
    /// Device name, `balboaN`.
    pub name: String,
    /// Node GUID, host order.
    pub node_guid: u64,
    /// Firmware version.
    pub firmware: String,
    /// Board name.
    pub board: String,
    /// The port.
    pub port: PortInfo,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Link is up.
    pub link_up: bool,
    /// Largest path MTU as `ibv_mtu`.
    pub max_mtu: u8,
    /// Current path MTU as `ibv_mtu`.
    pub active_mtu: u8,
    /// MAC address.
    pub mac: [u8; 6],
    /// GID table, network order, all RoCE v2; empty slots are zero.
    pub gids: Vec<[u8; 16]>,
    /// The VLAN that each GID is in; 0 for none.
    pub vlans: Vec<u16>,
    /// P_Key table.
    pub pkeys: Vec<u16>,
}

/// A context: limits, and the way to the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextInfo {
    /// Number of the context.
    pub context: u32,
    /// The card.
    pub card: CardInfo,
    /// The engine's limits.
    pub limits: Limits,
    /// The way to the card's doorbells.
    pub grant: Grant,
    /// The client's ring memory; the same for all contexts of the process.
    pub rings: RingMemory,
}

/// The limits of an engine, by its window and balboad's quotas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// `fpga_regs::engine::window::Capabilities` bits.
    pub capabilities: u64,
    /// QPs.
    pub qps: u32,
    /// Receive queues, shared ones and those of QPs together.
    pub rqs: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Protection domains.
    pub pds: u32,
    /// Address handles.
    pub ahs: u32,
    /// Multicast groups of the card's that QPs can be in.
    pub groups: u32,
    /// QPs in one of them.
    pub qps_per_group: u32,
    /// Places of the client's QPs in multicast groups.
    pub memberships: u32,
    /// Memory windows.
    pub mws: u32,
    /// log2 of the largest CQ.
    pub log2_cq_entries: u8,
    /// log2 of the largest send ring, in blocks.
    pub log2_sq_blocks: u8,
    /// log2 of the largest receive ring, in entries.
    pub log2_rq_entries: u8,
    /// SGEs of a work request.
    pub max_sge: u8,
    /// Inline bytes of a work request.
    pub max_inline: u16,
    /// READs a QP answers at a time.
    pub max_rd_atomic: u8,
    /// READs a QP has under way at a time.
    pub max_init_rd_atomic: u8,
    /// Bytes of the largest message.
    pub max_message: u32,
    /// Bytes of the largest region.
    pub max_mr_bytes: u64,
    /// Bytes of the largest part of the card's own memory; 0 where it has none.
    pub max_dm_bytes: u32,
    /// Completion vectors, at least 1.
    pub comp_vectors: u8,
    /// The lowest rate that a QP can be held to, in kb/s; 0 where it cannot.
    pub least_rate: u32,
    /// The highest, which is the port's.
    pub most_rate: u32,
}

/// The way to a card's doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The client's number in its window: that of its doorbell page, or a higher one.
    pub page: u8,
    /// The descriptors come with this message.
    pub first: bool,
    /// The kind of doorbell page, by which the client knows the descriptors.
    pub access: DoorbellAccess,
    /// Byte offset of the card's state word in the process's ring memory ([`card_state`](crate::card_state)).
    pub state: u32,
}

/// The descriptors by which a client reaches its doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DoorbellAccess {
    /// A memfd of exactly the page, an eventfd, and the memfd of the page, read only, that balboad's
    /// card thread writes. A card that sleeps is woken by the eventfd, while the asleep word is not 0;
    /// for receives alone only while it is 1. balboad lets the card reach the client's memory.
    Page {
        /// Byte offset of the u32 asleep word in the card thread's page.
        asleep: u32,
        /// Byte offset of the robust mutex in that page that dies with the card thread.
        liveness: u32,
        /// Byte offset of the u32 in that page that counts the microseconds, modulo 2^32, in which the
        /// card thread worked.
        worked: u32,
    },
    /// As [`DoorbellAccess::Page`], of a page that balboad forwards to the card, for whose doorbell pages there are too
    /// many processes. It is balboad that sleeps, and is woken by the eventfd; its asleep word is in one more
    /// memfd, read only, that comes behind those.
    Relay {
        /// Byte offset of the u32 asleep word in that.
        asleep: u32,
        /// As in [`DoorbellAccess::Page`], in the card thread's page.
        liveness: u32,
        /// As in [`DoorbellAccess::Page`], in the card thread's page.
        worked: u32,
    },
    /// The card: the function's VFIO descriptor, of which the page is to be mapped, the descriptor of
    /// its IOMMU, with which the client maps the memory that it registers, at the addresses that
    /// [`Response::Reserved`](crate::Response::Reserved) names, and the memfd of a page, read only, that begins with a robust
    /// mutex that dies with balboad.
    Device {
        /// Byte offset of the page in the function's descriptor.
        offset: u64,
        /// The I/O address space where the IOMMU is iommufd's; otherwise it is a VFIO container.
        ioas: Option<u32>,
    },
}

/// The client's ring memory: a sealed memfd, made and sized by balboad, one for each process.
///
/// Its first [`CARD_STATES_BYTES`](crate::CARD_STATES_BYTES) tell of each card whether the process
/// still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingMemory {
    /// Bytes.
    pub length: u64,
    /// Its descriptor comes with this message, last.
    pub first: bool,
}

/// The answer of the host at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinged {
    /// The card that asked.
    pub card: u32,
    /// Its address, network order.
    pub source: [u8; 16],
    /// The program that answered.
    pub who: Who,
    /// Nanoseconds from the question to the answer, or to the end of the wait; 0 if there was no question.
    pub nanoseconds: u64,
}

/// The program that answered the question for a balboad's presence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// A balboad.
    Balboad {
        /// Its version, printable.
        version: String,
        /// The code of its port's path MTU: 1 is 256 bytes, 5 is 4096.
        mtu: u8,
        /// Its further abilities: bit 0, it numbers the segments that it sends.
        flags: u8,
    },
    /// A connection manager that is none of a balboad's.
    Other {
        /// The status of its answer (InfiniBand Architecture Specification, 12.11.2).
        status: u8,
    },
    /// The address is on the link, and no connection manager answered.
    Silent,
    /// Nobody on the link has the address.
    Nobody,
}

/// The settings of a port's priorities, in the words of IEEE 802.1Q.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qos {
    /// The priority of each of the 64 DSCPs, where they tell that of a packet; otherwise its 802.1Q tag does.
    pub dscp: Option<Vec<u8>>,
    /// The traffic class of each priority.
    pub classes: [u8; 8],
    /// The traffic classes that go before all others, a bit each.
    pub strict: u8,
    /// The percentages of the others.
    pub weights: [u8; 8],
    /// The priorities with flow control, a bit each.
    pub pfc: u8,
}
