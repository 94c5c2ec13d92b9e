//! BAR2, the XDMA core: the registers that set the DMA engines running and route interrupts.
//!
//! The engines take their descriptors from the card, so the host writes none: it only has to set
//! them running. Their scatter-gather blocks, 0x4000 above, are not used.

use super::pci::{Bar, MSIX_PBA_OFFSET, MSIX_TABLE_ENTRIES, MSIX_TABLE_OFFSET};
use crate::registers::Place;

constants! {
    /// DMA channels in each direction (0 host streams, 1 card memory, 2 reconfiguration and writeback).
    pub const CHANNELS: u64 = 3;
    /// Byte offset of [`INTERRUPTS`].
    pub const INTERRUPT_BLOCK: u64 = 0x2000;
    /// The upper half of [`IRQ_IDENTIFIER`].
    pub const IRQ_IDENTIFIER_VALUE: u32 = 0x1fc2_0000;
    /// The vFPGAs' interrupts, vectors 0 to 14.
    pub const USER_INTERRUPT_VFPGAS: u32 = 0x7fff;
    /// The interrupt of reconfiguration, vector 15.
    pub const USER_INTERRUPT_RECONFIGURATION: u32 = 0x8000;
    /// User interrupts that [`USER_VECTOR_MAP`] maps.
    pub const USER_INTERRUPTS: u64 = 16;
}

/// The direction of a DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Host to card.
    HostToCard,
    /// Card to host.
    CardToHost,
}

impl Direction {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::HostToCard, Self::CardToHost];
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

/// The value of [`ENGINE_CONTROL`] that sets an engine running, as the published driver writes it.
pub const ENGINE_CONTROL_RUN: EngineControl =
    EngineControl { run: true, irq_stopped: true, irq_completed: true };

/// The value of [`ENGINE_IDENTIFIER`] for an engine of a direction.
#[must_use]
pub const fn identifier(direction: Direction) -> u16 {
    match direction {
        Direction::HostToCard => 0x1fc0,
        Direction::CardToHost => 0x1fc1,
    }
}

registers! {
    /// A DMA engine. Identifiers: 0x1fc0 host to card, 0x1fc1 card to host.
    pub const DMA_ENGINE {
        title: "DMA engine",
        word: u32,
        bytes: 0x100,
        places: [
            Place::row("host to card", Bar::Xdma, 0x0000, 0x100, CHANNELS),
            Place::row("card to host", Bar::Xdma, 0x1000, 0x100, CHANNELS),
        ],
        source: "Coyote driver pci_xdma.c; XDMA product guide, channel register space",
    }

    /// The engine's identity.
    ENGINE_IDENTIFIER @ 0x00: RO as EngineIdentifier {
        /// Channel.
        channel[11:8]: u8,
        /// Direction.
        identifier[31:16]: u16,
    };
    /// Sets the engine running.
    ENGINE_CONTROL @ 0x04: RW as EngineControl {
        /// It runs.
        run[0]: bool,
        /// Interrupt when it stopped.
        irq_stopped[1]: bool,
        /// Interrupt when it completed a descriptor.
        irq_completed[2]: bool,
    };
    /// Sets bits of the control register.
    ENGINE_CONTROL_SET @ 0x08: W1S like EngineControl;
    /// Clears bits of the control register.
    ENGINE_CONTROL_CLEAR @ 0x0c: W1C like EngineControl;
    /// State of the engine.
    ENGINE_STATUS @ 0x40: RO as EngineStatus {
        /// It is busy.
        busy[0]: bool,
    };
    /// State of the engine; this one is also cleared by reading it.
    ENGINE_STATUS_CLEAR @ 0x44: RO like EngineStatus;
    /// Descriptors completed.
    ENGINE_COMPLETED @ 0x48: RO unit("descriptors");
    /// Alignments the engine wants.
    ENGINE_ALIGNMENTS @ 0x4c: RO reset(0x0001_0140);
}

registers! {
    /// Enables user interrupts and routes them to vectors.
    pub const INTERRUPTS {
        title: "Interrupt block",
        word: u32,
        bytes: 0x100,
        places: [Place::once(Bar::Xdma, INTERRUPT_BLOCK)],
        source: "Coyote driver pci_xdma.c; XDMA product guide, interrupt register space",
    }

    /// The block's identity.
    IRQ_IDENTIFIER @ 0x00: RO reset(IRQ_IDENTIFIER_VALUE as u64);
    /// User interrupts that are enabled.
    USER_INTERRUPT_ENABLE @ 0x04: RW;
    /// Enables user interrupts.
    USER_INTERRUPT_ENABLE_SET @ 0x08: W1S;
    /// Disables user interrupts.
    USER_INTERRUPT_ENABLE_CLEAR @ 0x0c: W1C;
    /// Channel interrupts that are enabled.
    CHANNEL_INTERRUPT_ENABLE @ 0x10: RW;
    /// Enables channel interrupts.
    CHANNEL_INTERRUPT_ENABLE_SET @ 0x14: W1S;
    /// Disables channel interrupts.
    CHANNEL_INTERRUPT_ENABLE_CLEAR @ 0x18: W1C;
    /// User interrupts that are requested and enabled.
    USER_REQUEST @ 0x40: RO;
    /// Channel interrupts that are requested and enabled.
    CHANNEL_REQUEST @ 0x44: RO;
    /// User interrupts that are requested.
    USER_PENDING @ 0x48: RO;
    /// Channel interrupts that are requested.
    CHANNEL_PENDING @ 0x4c: RO;
    /// Vectors of user interrupts, four a word.
    USER_VECTOR_MAP[4; 4] @ 0x80: RW as VectorMap {
        /// Vector of interrupt 4 n.
        first[4:0]: u8,
        /// Vector of interrupt 4 n + 1.
        second[12:8]: u8,
        /// Vector of interrupt 4 n + 2.
        third[20:16]: u8,
        /// Vector of interrupt 4 n + 3.
        fourth[28:24]: u8,
    };
    /// Vectors of channel interrupts, four a word.
    CHANNEL_VECTOR_MAP[2; 4] @ 0xa0: RW like VectorMap;
}

registers! {
    /// The table of messages; the owner of the function's interrupts writes it, not the driver.
    pub const MSIX_TABLE {
        title: "MSI-X table",
        word: u32,
        bytes: 0x200,
        places: [Place::once(Bar::Xdma, MSIX_TABLE_OFFSET)],
        source: "PCI Express Base Specification, MSI-X capability and table structure",
    }

    /// Message address, low half.
    MSIX_ADDRESS_LOW[32; 0x10] @ 0x0: RW;
    /// Message address, high half.
    MSIX_ADDRESS_HIGH[32; 0x10] @ 0x4: RW;
    /// Message data.
    MSIX_DATA[32; 0x10] @ 0x8: RW;
    /// Vector control.
    MSIX_CONTROL[32; 0x10] @ 0xc: RW reset(1) as MsixControl {
        /// The vector is masked.
        masked[0]: bool,
    };
}

const _: () = assert!(MSIX_TABLE_OFFSET + MSIX_TABLE_ENTRIES as u64 * 16 <= MSIX_PBA_OFFSET);
