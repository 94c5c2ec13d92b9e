//! Admin commands: how the driver makes, changes and destroys the engine's objects.
//!
//! A command takes 1 to 4 consecutive blocks of the admin submission ring and begins with a
//! [`Header`]; its own fields follow from byte 0x10. Each is answered by one [`Completion`] with its
//! tag. Answers larger than that are written to the command's response buffer before the completion.

use super::counters::Counters;
use super::key::Access;
use super::qp::QpType;

constants! {
    /// Blocks of the largest command.
    pub const MAX_BLOCKS: usize = 4;
    /// log2 of the bytes of the largest alignment of device memory.
    pub const MAX_LOG2_DM_ALIGNMENT: u8 = 16;
    /// log2 of the blocks that one command copies from or to device memory.
    pub const MAX_LOG2_DM_BLOCKS: u8 = 10;
    /// The highest number of a VLAN.
    pub const MAX_VLAN: u16 = 4094;
    /// Address handles of a protection domain that were destroyed and still have datagrams to send.
    pub const MAX_ENDED_AHS: u32 = 128;
}

open_enum! {
    /// A command's operation.
    pub struct Opcode(u8) {
        /// [`CreateCq`]; `result` is the CQN.
        CreateCq = 1,
        /// [`ResizeCq`]; `result` is the index behind the last entry of the old ring.
        ResizeCq = 2,
        /// [`Destroy`] of a completion queue.
        DestroyCq = 3,
        /// [`CreateRq`]; `result` is the RQN.
        CreateRq = 4,
        /// [`ModifyRq`].
        ModifyRq = 5,
        /// [`Destroy`] of a receive queue.
        DestroyRq = 6,
        /// [`CreateQp`]; `result` is the QPN, `generation` its generation.
        CreateQp = 7,
        /// [`ModifyQp`], followed by [`super::qp::Attributes`]; `generation` is the QP's generation.
        ModifyQp = 8,
        /// [`Destroy`]-shaped query of a QP; the response is [`super::qp::Attributes`].
        QueryQp = 9,
        /// [`Destroy`] of a QP: answered when no completion and no DMA of it can follow.
        DestroyQp = 10,
        /// [`CreateKey`]; `result` is the key.
        CreateKey = 11,
        /// [`Destroy`] of a key: answered when no DMA under it can follow.
        DestroyKey = 12,
        /// [`CreateAh`]; `result` is the address handle.
        CreateAh = 13,
        /// [`Destroy`] of an address handle.
        DestroyAh = 14,
        /// [`SetGid`].
        SetGid = 15,
        /// [`SetNeighbour`].
        SetNeighbour = 16,
        /// [`Destroy`]-shaped query of the port; the response is [`PortAttributes`].
        QueryPort = 17,
        /// [`Destroy`]-shaped query of the card's counters; the response is u64s in [`COUNTERS`]' order.
        QueryCounters = 18,
        /// [`ModifyKey`]: answered when no DMA under the key's former state can follow.
        ModifyKey = 19,
        /// [`SetLink`]: every engine of the card reports the change by an event.
        SetLink = 20,
        /// [`AllocDm`]; `result` is the number of the part.
        AllocDm = 21,
        /// [`Destroy`] of a part of the device memory.
        FreeDm = 22,
        /// [`CopyDm`].
        CopyDm = 23,
        /// [`ModerateCq`].
        ModerateCq = 24,
        /// [`Membership`] that begins; one that is there already is no error.
        AttachMulticast = 25,
        /// [`Membership`] that ends.
        DetachMulticast = 26,
        /// [`Destroy`]-shaped query of an address handle; `result` is 1 if the MAC address for its datagrams is known,
        /// otherwise 0.
        QueryAh = 27,
    }
}

open_enum! {
    /// The status of a command.
    pub struct AdminStatus(u8) {
        /// Done.
        Success = 0,
        /// Unknown or unsupported command, or a feature the engine does not offer.
        Unsupported = 1,
        /// A field is out of range, or the attributes do not fit the transition.
        Invalid = 2,
        /// No such object.
        NotFound = 3,
        /// Others still use the object.
        Busy = 4,
        /// A table is full.
        NoResources = 5,
        /// An address does not lie in memory the card can reach.
        BadAddress = 6,
        /// The transition does not exist from the state the QP is in.
        BadState = 7,
    }
}

layout! {
    /// The first 16 bytes of every command.
    pub struct Header: 1 {
        /// The command.
        opcode @ 0x00: Opcode,
        /// Blocks of the command, 1 to 4.
        blocks @ 0x01: u8,
        /// Comes back in the completion.
        tag @ 0x02: u16,
        /// IOVA for an answer that does not fit the completion, 64-byte aligned; 0 for none.
        response @ 0x08: u64,
    }
}

layout! {
    /// The answer to a command.
    pub struct Completion: 1 {
        /// The command's tag.
        tag @ 0x00: u16,
        /// The command's opcode.
        opcode @ 0x02: Opcode,
        /// How it ended.
        status @ 0x03: AdminStatus,
        /// Number of the object made.
        result @ 0x04: u32,
        /// Generation of the QP made or changed.
        generation @ 0x08: u8,
        /// Bit 0: the phase.
        phase @ 0x3f: u8,
    }
}

layout! {
    /// Makes a completion queue. Ring memory: record, then 2^`log2_entries` zeroed entries.
    pub struct CreateCq: 1 in Header {
        /// IOVA of the ring memory.
        ring @ 0x10: u64,
        /// log2 of the entries.
        log2_entries @ 0x18: u8,
        /// Number of the client: its doorbell page, 1 to 15, or a higher number if its doorbells come by `RELAY_PAGE`.
        page @ 0x19: u8,
        /// Completion vector: number of the event ring for its completions.
        vector @ 0x1a: u8,
    }
}

layout! {
    /// Moves a completion queue to a new ring. Ring memory: as that of [`CreateCq`].
    pub struct ResizeCq: 1 in Header {
        /// IOVA of the new ring memory.
        ring @ 0x10: u64,
        /// log2 of the new entries.
        log2_entries @ 0x18: u8,
        /// Number of the completion queue.
        cqn @ 0x1c: u32,
    }
}

layout! {
    /// Says how many completions an armed completion queue waits for, and how long.
    pub struct ModerateCq: 1 in Header {
        /// Number of the completion queue.
        cqn @ 0x10: u32,
        /// Completions that raise the event; 0 for no moderation.
        count @ 0x14: u16,
        /// Microseconds after the first of them at which it is raised anyway; 0 for no moderation.
        period @ 0x16: u16,
    }
}

open_enum! {
    /// The users of a receive queue.
    pub struct RqKind(u8) {
        /// One QP.
        Private = 0,
        /// Any number of QPs (SRQ).
        Shared = 1,
        /// XRC targets.
        Xrc = 2,
    }
}

layout! {
    /// Makes a receive queue. Ring memory: record, then 2^`log2_entries` entries of `stride` blocks.
    pub struct CreateRq: 1 in Header {
        /// IOVA of the ring memory.
        ring @ 0x10: u64,
        /// log2 of the entries.
        log2_entries @ 0x18: u8,
        /// Number of the client: its doorbell page, 1 to 15, or a higher number if its doorbells come by `RELAY_PAGE`.
        page @ 0x19: u8,
        /// log2 of the blocks from one entry to the next, 0 to 3.
        log2_stride @ 0x1a: u8,
        /// The queue pairs that it serves.
        kind @ 0x1b: RqKind,
        /// Protection domain of its SGEs.
        pdn @ 0x1c: u32,
        /// XRC: completion queue.
        cqn @ 0x20: u32,
        /// XRC: domain.
        xrcdn @ 0x24: u32,
    }
}

layout! {
    /// Sets the limit of a shared receive queue.
    pub struct ModifyRq: 1 in Header {
        /// Number of the receive queue.
        rqn @ 0x10: u32,
        /// Entries below which one event is raised; 0 for none.
        limit @ 0x14: u32,
    }
}

layout! {
    /// Makes a QP in RESET. Ring memory: record, then 2^`log2_sq_blocks` blocks.
    pub struct CreateQp: 1 in Header {
        /// IOVA of the send ring memory.
        sq_ring @ 0x10: u64,
        /// log2 of the blocks of the send ring.
        log2_sq_blocks @ 0x18: u8,
        /// Number of the client: its doorbell page, 1 to 15, or a higher number if its doorbells come by `RELAY_PAGE`.
        page @ 0x19: u8,
        /// Transport.
        kind @ 0x1a: QpType,
        /// Protection domain.
        pdn @ 0x1c: u32,
        /// Completion queue of the send queue.
        send_cqn @ 0x20: u32,
        /// Completion queue of the receive queue.
        receive_cqn @ 0x24: u32,
        /// Receive queue.
        rqn @ 0x28: u32,
        /// XRC domain.
        xrcdn @ 0x2c: u32,
    }
}

layout! {
    /// Changes a QP; [`super::qp::Attributes`] stand in the two blocks behind this one.
    pub struct ModifyQp: 1 in Header {
        /// The QP.
        qpn @ 0x10: u32,
    }
}

layout! {
    /// Names one object: every destroy, and every query.
    pub struct Destroy: 1 in Header {
        /// Number of the object, or the key.
        number @ 0x10: u32,
    }
}

open_enum! {
    /// The object of a key.
    pub struct KeyKind(u8) {
        /// A memory region.
        Region = 0,
        /// A type-1 memory window, unbound.
        Window1 = 1,
        /// A type-2 memory window, unbound.
        Window2 = 2,
        /// A memory region in device memory.
        DeviceMemory = 3,
        /// A null memory region: at any address, reads give zeros and writes are lost.
        /// The engine ignores [`CreateKey::va`], `length` and `iova`; of the rights it has at most LOCAL_WRITE.
        Null = 4,
    }
}

layout! {
    /// Makes a key for memory that was mapped before.
    pub struct CreateKey: 1 in Header {
        /// First address as work requests name it.
        va @ 0x10: u64,
        /// Bytes.
        length @ 0x18: u64,
        /// IOVA of the first byte; in device memory its offset in the part.
        iova @ 0x20: u64,
        /// Protection domain.
        pdn @ 0x28: u32,
        /// Rights.
        access @ 0x2c: Access,
        /// The kind of memory that it names.
        kind @ 0x30: KeyKind,
        /// In device memory: the part.
        dm @ 0x34: u32,
    }
}

layout! {
    /// Gives out a part of the device memory, zeroed.
    pub struct AllocDm: 1 in Header {
        /// Bytes.
        length @ 0x10: u32,
        /// log2 of the alignment of its first byte's offset in the device memory, up to
        /// [`MAX_LOG2_DM_ALIGNMENT`].
        log2_alignment @ 0x14: u8,
    }
}

open_enum! {
    /// The direction of a copy.
    pub struct DmDirection(u8) {
        /// From the host's memory to the card's.
        ToCard = 0,
        /// From the card's memory to the host's.
        ToHost = 1,
    }
}

layout! {
    /// Copies bytes between the host and a part of the device memory.
    pub struct CopyDm: 1 in Header {
        /// IOVA of the host's blocks, the first of which has the place of `offset` modulo 64 in its block.
        host @ 0x10: u64,
        /// First byte in the part.
        offset @ 0x18: u32,
        /// Bytes.
        length @ 0x1c: u32,
        /// The part.
        dm @ 0x20: u32,
        /// log2 of the host's blocks, up to [`MAX_LOG2_DM_BLOCKS`].
        log2_blocks @ 0x24: u8,
        /// The direction.
        direction @ 0x25: DmDirection,
    }
}

layout! {
    /// Gives a key of a region other memory, another domain and other rights; it keeps its number.
    pub struct ModifyKey: 1 in Header {
        /// First address as work requests name it.
        va @ 0x10: u64,
        /// Bytes.
        length @ 0x18: u64,
        /// IOVA of the first byte.
        iova @ 0x20: u64,
        /// Protection domain.
        pdn @ 0x28: u32,
        /// Rights.
        access @ 0x2c: Access,
        /// The key.
        key @ 0x30: u32,
    }
}

layout! {
    /// Makes an address handle. Its number is never 0.
    ///
    /// Refused as [`AdminStatus::Invalid`]: a GID of another kind than the local one, and one that is neither a
    /// peer's nor a multicast group's. Nobody need answer there: datagrams that find nobody are lost, and complete.
    pub struct CreateAh: 2 in Header {
        /// Protection domain.
        pdn @ 0x10: u32,
        /// Local GID table index.
        sgid_index @ 0x14: u8,
        /// Hop limit, or time to live.
        hop_limit @ 0x15: u8,
        /// Traffic class, or type of service.
        traffic_class @ 0x16: u8,
        /// Service level.
        sl @ 0x17: u8,
        /// The most that goes there, as `static_rate` of [`super::qp::Attributes`].
        static_rate @ 0x18: u8,
        /// Number of the client that is to use it, as in [`CreateQp`].
        page @ 0x1a: u8,
        /// Flow label, 20 bits.
        flow_label @ 0x1c: u32,
        /// GID of the peer, network order.
        dgid @ 0x40: [u8; 16],
    }
}

layout! {
    /// Names a QP in a multicast group. The QP stays in it, in any state, until it is taken out or
    /// destroyed.
    pub struct Membership: 1 in Header {
        /// The QP.
        qpn @ 0x10: u32,
        /// GID of the group, network order: an address of ff00::/8, or one of 224.0.0.0/4 in its mapped
        /// form.
        group @ 0x20: [u8; 16],
    }
}

layout! {
    /// Writes one entry of the GID table.
    pub struct SetGid: 1 in Header {
        /// Index.
        index @ 0x10: u8,
        /// 1: valid (RoCE v2); 0: empty.
        valid @ 0x11: u8,
        /// Number of the VLAN that it is in, up to 4094; 0 for none.
        vlan @ 0x12: u16,
        /// The GID, network order.
        gid @ 0x20: [u8; 16],
    }
}

layout! {
    /// Writes one neighbour: the MAC address of an IP address.
    pub struct SetNeighbour: 1 in Header {
        /// MAC address.
        mac @ 0x10: [u8; 6],
        /// 1: valid; 0: forget.
        valid @ 0x16: u8,
        /// IP address as a GID, network order.
        gid @ 0x20: [u8; 16],
    }
}

layout! {
    /// Takes the card's port off its cable, for all its engines, or puts it back.
    ///
    /// A port that was taken off is down, with any state of the cable: its frames do not leave, and frames
    /// that come by the cable are lost. Frames of the card to itself go on. Stopping an engine changes nothing of
    /// that; a reset of the function puts the port back.
    pub struct SetLink: 1 in Header {
        /// 1: as the cable says; 0: down.
        up @ 0x10: u8,
    }
}

layout! {
    /// The answer to a port query.
    pub struct PortAttributes: 1 {
        /// MAC address.
        mac @ 0x00: [u8; 6],
        /// 1: link up.
        link_up @ 0x06: u8,
        /// Largest path MTU as `ibv_mtu`.
        max_mtu @ 0x07: u8,
        /// Current path MTU as `ibv_mtu`.
        active_mtu @ 0x08: u8,
        /// Link rate in 10^6 bit/s; 0 where there is none to state.
        rate @ 0x0c: u32,
    }
}

/// The card's counters in the order of the query's response, one u64 each.
///
/// Names are those of rxe's and mlx5's `hw_counters` where they have one.
pub const COUNTERS: &[&str] = Counters::NAMES;
