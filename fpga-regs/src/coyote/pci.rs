//! PCI identity, base address registers and interrupt vectors.

constants! {
    /// PCI vendor: Xilinx, now AMD.
    pub const VENDOR_ID: u16 = 0x10ee;
    /// PCI device of an Alveo card with an XDMA Gen3 x16 shell, the one seen in the field.
    pub const DEVICE_ID: u16 = 0x903f;
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
    /// PCI Express Device Control: Extended Tag Field Enable.
    pub const DEVICE_CONTROL_EXTENDED_TAG: u16 = 1 << 8;
    /// PCI Express Device Control: bits of Max_Read_Request_Size.
    pub const DEVICE_CONTROL_READ_REQUEST: u16 = 7 << 12;
    /// PCI Express Device Control: a Max_Read_Request_Size of 512 bytes.
    pub const DEVICE_CONTROL_READ_REQUEST_512: u16 = 2 << 12;
    /// Byte offset in configuration space of the vendor.
    pub const CONFIG_VENDOR: u16 = 0x00;
    /// Byte offset in configuration space of the device.
    pub const CONFIG_DEVICE: u16 = 0x02;
    /// Byte offset in configuration space of the command register.
    pub const CONFIG_COMMAND: u16 = 0x04;
    /// Command register: the BARs are decoded.
    pub const COMMAND_MEMORY: u16 = 1 << 1;
    /// Command register: the card may speak first on the bus.
    pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
    /// Byte offset in configuration space of the first capability's offset.
    pub const CONFIG_CAPABILITIES: u16 = 0x34;
    /// Identifier of the PCI Express capability.
    pub const CAPABILITY_PCI_EXPRESS: u8 = 0x10;
    /// In the PCI Express capability: Device Control.
    pub const EXPRESS_DEVICE_CONTROL: u16 = 0x08;
    /// Identifier of a vendor-specific capability.
    pub const CAPABILITY_VENDOR_SPECIFIC: u8 = 0x09;
    /// Bytes of the vendor-specific capability that distinguishes a software card from an FPGA.
    pub const SOFTWARE_CARD_BYTES: u8 = 12;
    /// In that capability: where [`SOFTWARE_CARD`] is.
    pub const SOFTWARE_CARD_OFFSET: u16 = 4;
    /// The capability of a software card, 8 bytes in little-endian order: `BALBOASW`. It takes software cards' images,
    /// and no bitstream; an FPGA, which has no such capability, takes bitstreams, and no software card's image.
    pub const SOFTWARE_CARD: u64 = 0x5753_414f_424c_4142;
}

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

/// Whether the published driver accepts a device of [`VENDOR_ID`] as a card with an XDMA shell:
/// 0x9011 to 0x903f and their analogues from 0x8000 and 0x7000, by link width and speed.
#[must_use]
pub const fn is_xdma_device(device: u16) -> bool {
    let link = matches!(
        device & 0xfff,
        0x011
            | 0x012
            | 0x014
            | 0x018
            | 0x01f
            | 0x021
            | 0x022
            | 0x024
            | 0x028
            | 0x02f
            | 0x031
            | 0x032
            | 0x034
            | 0x038
            | 0x03f
    );
    link && matches!(device >> 12, 7..=9)
}
