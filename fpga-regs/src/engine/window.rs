//! The engine's window: identity, capabilities and queue registers of page 0.
//!
//! Registers are 64 bits wide. The interconnect turns one 8-byte store into a burst to the end of
//! its 64-byte line with only the first beat's strobes set, so a register with a side effect stands
//! alone in its line and acts only on a strobed write. No read has a side effect.

/// Bytes of an engine's window.
pub const WINDOW_BYTES: u64 = 64 << 10;
/// Bytes of a page of the window.
pub const PAGE_BYTES: u64 = 4096;
/// Doorbell pages of a window; they are pages 1 to 15.
pub const DOORBELL_PAGES: u8 = 15;

/// Read only: [`MAGIC_VALUE`].
pub const MAGIC: u64 = 0x000;
/// The bytes `BALBVQE1` in memory order.
pub const MAGIC_VALUE: u64 = u64::from_le_bytes(*b"BALBVQE1");
/// Read only: [15:0] minor, [31:16] major contract version, [39:32] [`Profile`].
pub const VERSION: u64 = 0x008;
/// The contract's major version; another one is not understood.
pub const VERSION_MAJOR: u16 = 1;
/// The contract's minor version; a higher one only adds.
pub const VERSION_MINOR: u16 = 0;
/// Read only: [`Capabilities`].
pub const CAPABILITIES: u64 = 0x010;
/// Read only: [31:0] queue pairs, [63:32] completion queues.
pub const LIMIT_QP_CQ: u64 = 0x018;
/// Read only: [31:0] keys, [63:32] receive queues.
pub const LIMIT_KEY_RQ: u64 = 0x020;
/// Read only: [7:0] log2 of CQ entries, [15:8] log2 of SQ blocks, [23:16] log2 of RQ entries,
/// [31:24] SGEs of an entry, [47:32] inline bytes, [55:48] READs a QP answers at a time,
/// [63:56] READs a QP has under way at a time.
pub const LIMIT_QUEUES: u64 = 0x028;
/// Read only: [31:0] bytes of the largest message, [39:32] GID table entries, [47:40] P_Key table
/// entries, [63:48] address handles.
pub const LIMIT_PORT: u64 = 0x030;

/// Write: [`CONTROL_ENABLE`] or [`CONTROL_RESET`].
pub const CONTROL: u64 = 0x040;
/// [`CONTROL`]: start with the queue registers as they are.
pub const CONTROL_ENABLE: u64 = 1;
/// [`CONTROL`]: stop, forget every object; no DMA follows once [`STATUS`] reads 0.
pub const CONTROL_RESET: u64 = 2;

/// Read only: [`STATUS_ENABLED`], [`STATUS_FATAL`], [`STATUS_EVENT_OVERFLOW`]; [63:32] fatal code.
pub const STATUS: u64 = 0x080;
/// [`STATUS`]: the engine runs.
pub const STATUS_ENABLED: u64 = 1;
/// [`STATUS`]: the engine stopped for the reason in [63:32]; only a reset helps.
pub const STATUS_FATAL: u64 = 2;
/// [`STATUS`]: an event was lost because the ring was full; sticky until [`EVENT_OVERFLOW_CLEAR`].
pub const STATUS_EVENT_OVERFLOW: u64 = 4;
/// Read only: nanoseconds since the engine came up, the clock of every timestamp.
pub const TIMESTAMP: u64 = 0x0c0;

/// IOVA of the admin submission ring, 64-byte aligned.
pub const ADMIN_SQ_BASE: u64 = 0x100;
/// log2 of the blocks of the admin submission ring.
pub const ADMIN_SQ_SIZE: u64 = 0x108;
/// IOVA of the admin completion ring, 64-byte aligned, zeroed by the driver.
pub const ADMIN_CQ_BASE: u64 = 0x110;
/// log2 of the entries of the admin completion ring.
pub const ADMIN_CQ_SIZE: u64 = 0x118;
/// Write only: [31:0] producer index of the admin submission ring, in blocks.
pub const ADMIN_DOORBELL: u64 = 0x140;
/// IOVA of the event ring, 64-byte aligned, zeroed by the driver.
pub const EVENT_BASE: u64 = 0x180;
/// log2 of the entries of the event ring.
pub const EVENT_SIZE: u64 = 0x188;
/// Write only: [31:0] consumer index of the event ring.
pub const EVENT_CONSUMER: u64 = 0x1c0;
/// Write only: any value clears [`STATUS_EVENT_OVERFLOW`].
pub const EVENT_OVERFLOW_CLEAR: u64 = 0x200;

open_enum! {
    /// What stands behind the window.
    pub struct Profile(u8) {
        /// The engine is on the card (gateware, or the software card).
        Vqe = 1,
        /// The engine is the driver's, on the command registers of a published bitstream.
        Stock = 2,
    }
}

flags! {
    /// What the engine offers; the provider advertises exactly that.
    pub struct Capabilities(u64) {
        /// Reliable Connection.
        RC = 1 << 0,
        /// Unreliable Connection.
        UC = 1 << 1,
        /// Unreliable Datagram.
        UD = 1 << 2,
        /// Extended Reliable Connection.
        XRC = 1 << 3,
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
    }
}
