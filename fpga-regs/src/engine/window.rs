//! The engine's window: identity, capabilities and queue registers of page 0.
//!
//! Registers are 64 bits wide. The interconnect turns one 8-byte store into a burst to the end of
//! its 64-byte line with only the first beat's strobes set, so a register with a side effect stands
//! alone in its line and acts only on a strobed write. No read has a side effect.

use crate::coyote::pci::Bar;
use crate::coyote::vfpga::{
    CONTROL_WINDOW_BASE, CONTROL_WINDOW_STRIDE, MAX_VFPGAS, USER_CSR_OFFSET,
};
use crate::registers::{Access, Place, RegisterBlock};

constants! {
    /// Bytes of an engine's window.
    pub const WINDOW_BYTES: u64 = 64 << 10;
    /// The address space (ctid) of the shell's MMU that an engine uses.
    pub const CTID: u8 = 0;
    /// Fatal code: the driver refused the page of a ring, or memory did not answer.
    pub const FATAL_RING_UNREACHABLE: u32 = 1;
    /// Fatal code: a table of the engine's objects lost what it held, which was not used.
    pub const FATAL_TABLE_FLIPPED: u32 = 2;
    /// Bytes of a page of the window.
    pub const PAGE_BYTES: u64 = 4096;
    /// Doorbell pages of a window; they are pages 1 to 15.
    pub const DOORBELL_PAGES: u8 = 15;
    /// The driver's own doorbell page, by which it rings for queue pair 1, and for clients that have none: those
    /// with the numbers 16 to 255.
    pub const RELAY_PAGE: u8 = 15;
    /// The bytes `BALBVQE1` in memory order.
    pub const MAGIC_VALUE: u64 = u64::from_le_bytes(*b"BALBVQE1");
    /// The contract's major version; another one is not understood.
    pub const VERSION_MAJOR: u16 = 1;
    /// The contract's minor version; a higher one only adds. 1: `armed_for_any` is read. 2: `SEED`, `FAULT_REFUSED`,
    /// `LIMIT_NUMBERS`, `IGNORED`, `PAYLOAD_READ` and `PAYLOAD_WRITTEN`, with the capabilities of what an engine needs of
    /// its driver.
    pub const VERSION_MINOR: u16 = 2;
    /// log2 of the largest admin ring, of blocks and of entries.
    pub const MAX_LOG2_ADMIN: u8 = 12;
    /// log2 of the entries of the largest event ring.
    pub const MAX_LOG2_EVENTS: u8 = 16;
    /// Event rings of a window at most.
    pub const MAX_EVENT_RINGS: u8 = 8;
}

registers! {
    /// Identity, capabilities, and the driver's own rings.
    pub const WINDOW {
        title: "Engine window, page 0",
        word: u64,
        bytes: PAGE_BYTES,
        places: [Place::row(
            "vFPGA",
            Bar::Shell,
            CONTROL_WINDOW_BASE + USER_CSR_OFFSET,
            CONTROL_WINDOW_STRIDE,
            MAX_VFPGAS,
        )],
        source: "this contract",
    }

    /// [`MAGIC_VALUE`]: a verbs queue engine stands behind the window.
    MAGIC @ 0x000: RO reset(MAGIC_VALUE);
    /// The version of the contract.
    VERSION @ 0x008: RO as Version {
        /// A higher minor version only adds.
        minor[15:0]: u16,
        /// Another major version is not understood.
        major[31:16]: u16,
        /// The kind of device behind the window.
        profile[39:32]: Profile,
    };
    /// The features of the engine.
    CAPABILITIES @ 0x010: RO as CapabilityWord {
        /// The offers.
        capabilities[63:0]: Capabilities,
    };
    /// The number of objects at a time.
    LIMIT_QP_CQ @ 0x018: RO as LimitQpCq {
        /// Queue pairs.
        qps[31:0]: u32,
        /// Completion queues.
        cqs[63:32]: u32,
    };
    /// The number of objects at a time.
    LIMIT_KEY_RQ @ 0x020: RO as LimitKeyRq {
        /// Keys.
        keys[31:0]: u32,
        /// Receive queues.
        rqs[63:32]: u32,
    };
    /// How large queues and their entries can be.
    LIMIT_QUEUES @ 0x028: RO as LimitQueues {
        /// log2 of the entries of a completion queue.
        log2_cq_entries[7:0]: u8,
        /// log2 of the blocks of a send ring.
        log2_sq_blocks[15:8]: u8,
        /// log2 of the entries of a receive ring.
        log2_rq_entries[23:16]: u8,
        /// Scatter/gather elements of an entry.
        max_sge[31:24]: u8,
        /// Inline data of a send WQE.
        max_inline[47:32]: u16 unit("bytes"),
        /// READs a QP answers at a time.
        max_reads_answered[55:48]: u8,
        /// READs a QP has under way at a time.
        max_reads_under_way[63:56]: u8,
    };
    /// How large messages and tables can be.
    LIMIT_PORT @ 0x030: RO as LimitPort {
        /// The largest message.
        max_message[31:0]: u32 unit("bytes"),
        /// Entries of the GID table.
        gids[39:32]: u8,
        /// Entries of the P_Key table.
        pkeys[47:40]: u8,
        /// Address handles.
        ahs[63:48]: u16,
    };
    /// The size of the card's own memory for programs.
    LIMIT_DM @ 0x038: RO as LimitDm {
        /// All of it.
        bytes[31:0]: u32 unit("bytes"),
        /// The largest part.
        largest[63:32]: u32 unit("bytes"),
    };
    /// Starts and stops the engine. Reads answer 0; with both bits, `reset` alone counts.
    CONTROL @ 0x040: WO as Control {
        /// Start with the ring registers as they are. Nothing happens while the engine runs, after a
        /// fatal stop, or when a ring cannot be: see [`STATUS`].
        enable[0]: bool,
        /// Stop, forget every object, clear the ring registers. No DMA follows once [`STATUS`] reads 0.
        reset[1]: bool,
    };
    /// The state of the engine.
    STATUS @ 0x080: RO reset(0) as Status {
        /// The engine runs.
        enabled[0]: bool,
        /// The engine stopped for the reason in `fatal_code`; only a reset helps.
        fatal[1]: bool,
        /// An event was lost because the first ring was full; stays until [`EVENT_OVERFLOW_CLEAR`].
        event_overflow[2]: bool,
        /// The same of the rings behind it: bit n is that of ring n + 1.
        further_overflows[14:8]: u8,
        /// Why the engine stopped; 0 while `fatal` is clear.
        fatal_code[63:32]: u32,
    };
    /// The clock of every timestamp. It starts when the card does and does not wrap.
    TIMESTAMP @ 0x0c0: RO unit("ns");
    /// The number of multicast groups at a time, and of QPs in one.
    LIMIT_MULTICAST @ 0x0c8: RO as LimitMulticast {
        /// Groups.
        groups[15:0]: u16,
        /// QPs in one of them.
        qps_per_group[31:16]: u16,
    };
    /// The limit of event rings.
    LIMIT_EVENTS @ 0x0d0: RO as LimitEvents {
        /// Event rings, up to [`MAX_EVENT_RINGS`]; 0, the value of engines without this register, is 1.
        rings[7:0]: u8,
    };
    /// The rates that queue pairs can be held to, which a path's is within, too; 0 where they are not offered.
    LIMIT_RATE @ 0x0d8: RO as LimitRate {
        /// The lowest.
        min[31:0]: u32 unit("kb/s"),
        /// The highest: the port's own rate. Those above it hold nothing back.
        max[63:32]: u32 unit("kb/s"),
    };
    /// How the numbers of queue pairs are drawn; 0 is the value of engines without this register.
    LIMIT_NUMBERS @ 0x0e0: RO as LimitNumbers {
        /// Bits of a QPN below the vFPGA's number.
        qpn_bits[7:0]: u8,
        /// How many of them cannot be guessed.
        qpn_random[15:8]: u8,
    };
    /// Stores to the window that changed nothing since the shell's reset; each count wraps. 0 is the value of engines that
    /// do not count them.
    IGNORED @ 0x0e8: RO as Ignored {
        /// Those that were not of a whole register which can be written, or of a slot of a queue.
        stores[31:0]: u32,
        /// Those of slots behind which the page's client has no queue.
        doorbells[63:32]: u32,
    };
    /// Payload that came from host memory since the shell's reset, as its beats brought it: of SENDs, of WRITEs, and of the
    /// READs that a peer asked for, each time that the transport fetched it. 0 is the value of engines that do not count it.
    PAYLOAD_READ @ 0x0f0: RO unit("bytes");
    /// Payload that went to host memory since the shell's reset: of receives, of the WRITEs of peers, and of the engine's own
    /// READs. 0 is the value of engines that do not count it.
    PAYLOAD_WRITTEN @ 0x0f8: RO unit("bytes");
    /// IOVA of the admin submission ring, 64-byte aligned.
    ADMIN_SQ_BASE @ 0x100: RW reset(0) unit("bytes");
    /// log2 of the blocks of the admin submission ring, up to [`MAX_LOG2_ADMIN`].
    ADMIN_SQ_SIZE @ 0x108: RW reset(0) unit("log2 of blocks");
    /// IOVA of the admin completion ring, 64-byte aligned, zeroed by the driver.
    ADMIN_CQ_BASE @ 0x110: RW reset(0) unit("bytes");
    /// log2 of the entries of the admin completion ring, up to [`MAX_LOG2_ADMIN`].
    ADMIN_CQ_SIZE @ 0x118: RW reset(0) unit("log2 of entries");
    /// Tells the engine how far commands are written. Ignored while the engine is stopped.
    ADMIN_DOORBELL @ 0x140: WO as AdminDoorbell {
        /// Producer index of the admin submission ring, in blocks, counting on for ever.
        producer[31:0]: u32 unit("blocks"),
    };
    /// IOVA of the event rings, one behind the other, 64-byte aligned, zeroed by the driver.
    EVENT_BASE @ 0x180: RW reset(0) unit("bytes");
    /// log2 of the entries of each event ring, up to [`MAX_LOG2_EVENTS`].
    EVENT_SIZE @ 0x188: RW reset(0) unit("log2 of entries");
    /// The number of event rings in use, up to `rings` of [`LIMIT_EVENTS`]; 0 is 1.
    EVENT_RINGS @ 0x190: RW reset(0) unit("rings");
    /// Unread events of a ring from which on further completions wait in the engine, so that none is lost. 0 is no
    /// limit: completions of a full ring are then lost.
    EVENT_COMPLETIONS @ 0x198: RW reset(0) unit("events");
    /// Tells the engine how far events were read.
    EVENT_CONSUMER @ 0x1c0: WO as EventConsumer {
        /// Consumer index of the event ring, in entries, counting on for ever.
        consumer[31:0]: u32 unit("entries"),
        /// Number of the event ring; the first is 0.
        ring[39:32]: u8,
    };
    /// Any write clears the overflow bit of one event ring in [`STATUS`].
    EVENT_OVERFLOW_CLEAR @ 0x200: WO as EventOverflowClear {
        /// Number of the event ring.
        ring[39:32]: u8,
    };
    /// A random number of the driver's, from which the engine draws the numbers of its objects. The first value other than
    /// 0 counts that comes between a reset of the shell and the first start of the engine; all others are ignored.
    SEED @ 0x240: WO;
    /// Tells the engine of a page fault that the driver is about to refuse; reads tell which of its notes it has not used.
    FAULT_REFUSED @ 0x280: WR write FaultRefused {
        /// The address of the fault, as `ISR_VADDR` gave it.
        address[47:0]: u64,
        /// It was a write.
        is_write[63]: bool,
    } read FaultNotes {
        /// A note of a refused read is not used yet.
        has_read[0]: bool,
        /// A note of a refused write is not used yet.
        has_write[1]: bool,
    };
}

impl Capabilities {
    /// What an engine needs of its driver, which is no feature for programs.
    pub const OF_THE_DRIVER: Self =
        Self::SEED.union(Self::FAULT_REFUSED).union(Self::DRIVER_CONTEXTS);
}

impl FaultNotes {
    /// Whether the note of that direction is not used.
    #[must_use]
    pub const fn has(self, is_write: bool) -> bool {
        if is_write { self.has_write } else { self.has_read }
    }
}

impl Status {
    /// The event rings that have lost events: bit n is that of ring n.
    #[must_use]
    pub const fn overflows(self) -> u8 {
        self.further_overflows << 1 | self.event_overflow as u8
    }

    /// With these event rings as those that have lost events.
    #[must_use]
    pub const fn with_overflows(self, rings: u8) -> Self {
        Self { event_overflow: rings & 1 != 0, further_overflows: rings >> 1, ..self }
    }
}

/// Fails compilation when a register with a side effect shares its 64-byte line.
const fn check_lines(block: &RegisterBlock) {
    let mut i = 0;
    while i < block.registers.len() {
        let register = &block.registers[i];
        let mut k = 0;
        while k < block.registers.len() {
            let other = &block.registers[k];
            let share = i != k && register.offset / 64 == other.offset / 64;
            let acts = !matches!(register.access, Access::RO | Access::RW);
            assert!(!(share && acts), "a register with a side effect shares its line");
            k += 1;
        }
        i += 1;
    }
}
const _: () = check_lines(WINDOW);

/// [`CONTROL`] with [`Control::enable`].
pub const CONTROL_ENABLE: u64 = Control { enable: true, reset: false }.encode();
/// [`CONTROL`] with [`Control::reset`].
pub const CONTROL_RESET: u64 = Control { enable: false, reset: true }.encode();
/// [`STATUS`] with [`Status::enabled`].
pub const STATUS_ENABLED: u64 = Status { enabled: true, ..Status::decode(0) }.encode();
/// [`STATUS`] with [`Status::fatal`].
pub const STATUS_FATAL: u64 = Status { fatal: true, ..Status::decode(0) }.encode();
/// [`STATUS`] with [`Status::event_overflow`].
pub const STATUS_EVENT_OVERFLOW: u64 =
    Status { event_overflow: true, ..Status::decode(0) }.encode();

open_enum! {
    /// The kind of engine behind the window.
    pub struct Profile(u8) {
        /// The engine is on the card (gateware, or the software card).
        Vqe = 1,
        /// The engine is the driver's, on the command registers of a published bitstream.
        Stock = 2,
    }
}

flags! {
    /// The features of the engine; the provider advertises exactly these.
    pub struct Capabilities(u64) {
        /// Reliable Connection.
        RC = 1 << 0,
        /// Unreliable Connection.
        UC = 1 << 1,
        /// Unreliable Datagram.
        UD = 1 << 2,
        /// Extended Reliable Connection.
        XRC = 1 << 3,
        /// Multicast groups of Unreliable Datagram.
        MULTICAST = 1 << 4,
        /// Queue pair 1, which is the driver's.
        GSI = 1 << 5,
        /// SEND and receive queues.
        SEND = 1 << 8,
        /// RDMA WRITE.
        WRITE = 1 << 9,
        /// RDMA READ.
        READ = 1 << 10,
        /// Immediate data.
        IMMEDIATE = 1 << 11,
        /// Compare-and-swap and fetch-and-add.
        ATOMIC = 1 << 12,
        /// SEND with invalidate, local invalidate.
        INVALIDATE = 1 << 13,
        /// Memory windows.
        MEMORY_WINDOW = 1 << 14,
        /// Shared receive queues.
        SRQ = 1 << 16,
        /// CQ resize.
        RESIZE_CQ = 1 << 17,
        /// RNR NAK is sent and obeyed.
        RNR = 1 << 18,
        /// Device memory.
        DEVICE_MEMORY = 1 << 19,
        /// Moderation of completion events.
        MODERATION = 1 << 20,
        /// Null memory regions.
        NULL_MR = 1 << 21,
        /// Queue pairs keep to a rate of their own, and to that of their path.
        RATE_LIMIT = 1 << 22,
        /// Numbers are drawn from the driver's `SEED`. They can be guessed if it gives none.
        SEED = 1 << 32,
        /// The engine has to be told of page faults that the driver refuses, by `FAULT_REFUSED`.
        FAULT_REFUSED = 1 << 33,
        /// The shell's own stack carries the connections: the driver writes the context of a QP into the shell before
        /// `ModifyQp` to RTR and to RTS.
        DRIVER_CONTEXTS = 1 << 34,
    }
}
