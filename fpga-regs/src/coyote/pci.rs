//! PCI identity, base address registers and interrupt vectors.

/// PCI vendor: Xilinx, now AMD.
pub const VENDOR_ID: u16 = 0x10ee;
/// PCI device of an Alveo card with an XDMA Gen3 x16 shell, the one seen in the field.
pub const DEVICE_ID: u16 = 0x903f;

/// A base address register of the card, by its PCI number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bar {
    /// BAR0: static layer, 32-bit registers.
    Static,
    /// BAR2: XDMA core, MSI-X table and pending bits.
    Xdma,
    /// BAR4: shell registers and the windows of the vFPGAs.
    Shell,
}

impl Bar {
    /// The PCI number of the register (each of them is 64 bits wide and takes two numbers).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Static => 0,
            Self::Xdma => 2,
            Self::Shell => 4,
        }
    }

    /// Bytes the register decodes.
    #[must_use]
    pub const fn size(self) -> u64 {
        match self {
            Self::Static => 1 << 20,
            Self::Xdma => 64 << 10,
            Self::Shell => 256 << 20,
        }
    }
}

/// Entries of the MSI-X table.
pub const MSIX_TABLE_ENTRIES: u16 = 32;
/// Byte offset of the MSI-X table in [`Bar::Xdma`].
pub const MSIX_TABLE_OFFSET: u64 = 0x8000;
/// Byte offset of the MSI-X pending bits in [`Bar::Xdma`].
pub const MSIX_PBA_OFFSET: u64 = 0x8fe0;
/// Vector that reports the end of a reconfiguration; vector *i* below it belongs to vFPGA *i*.
pub const RECONFIGURATION_VECTOR: u16 = 15;

/// PCI Express Device Control: Enable Relaxed Ordering.
///
/// Bring-up clears it: completions and events must not overtake the payload they report.
pub const DEVICE_CONTROL_RELAXED_ORDERING: u16 = 1 << 4;
