//! BAR2, the XDMA core: 32-bit registers that set the engines running and route interrupts.

/// DMA channels in each direction (0 host streams, 1 card memory, 2 reconfiguration and writeback).
pub const CHANNELS: u64 = 3;

/// The direction of a DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Host to card.
    HostToCard,
    /// Card to host.
    CardToHost,
}

/// Byte offset of the register block of an engine.
#[must_use]
pub const fn engine(direction: Direction, channel: u64) -> u64 {
    let base = match direction {
        Direction::HostToCard => 0x0000,
        Direction::CardToHost => 0x1000,
    };
    base + channel * 0x100
}

/// In an engine's block, read only: [31:16] [`identifier`], [11:8] channel.
pub const ENGINE_IDENTIFIER: u64 = 0x00;
/// In an engine's block, read/write: bit 0 run, 1 interrupt on stopped, 2 interrupt on completed.
pub const ENGINE_CONTROL: u64 = 0x04;
/// The value of [`ENGINE_CONTROL`] that sets an engine running, as the published driver writes it.
pub const ENGINE_CONTROL_RUN: u32 = 0x7;

/// Bits [31:16] of [`ENGINE_IDENTIFIER`].
#[must_use]
pub const fn identifier(direction: Direction) -> u32 {
    match direction {
        Direction::HostToCard => 0x1fc0,
        Direction::CardToHost => 0x1fc1,
    }
}

/// Write 1 to set bits of the user interrupt enable mask.
pub const USER_INTERRUPT_ENABLE_SET: u64 = 0x2008;
/// The enable mask of the vFPGAs' interrupts, vectors 0 to 14.
pub const USER_INTERRUPT_VFPGAS: u32 = 0x7fff;
/// First of four words that map user interrupts to vectors, one byte an interrupt, 5 bits used.
pub const USER_VECTOR_MAP: u64 = 0x2080;
/// User interrupts that [`USER_VECTOR_MAP`] maps.
pub const USER_INTERRUPTS: u64 = 16;
