//! The configuration space of the card: identity, BARs, and the capabilities.
//!
//! Identity, BARs and the MSI-X table are the published card's (`fpga_regs::coyote::pci`); where
//! its sources leave a value open, it is the default of the vendor's DMA core. There is no legacy
//! interrupt and no expansion ROM. Unlike a real card it has a vendor-specific capability, by which
//! a driver knows a software card before it loads anything into it.

use fpga_regs::coyote::pci::{
    Bar, CAPABILITY_VENDOR_SPECIFIC, DEVICE_ID, MSIX_PBA_OFFSET, MSIX_TABLE_ENTRIES,
    MSIX_TABLE_OFFSET, SOFTWARE_CARD, SOFTWARE_CARD_BYTES, SOFTWARE_CARD_OFFSET, VENDOR_ID,
};

/// Bytes of the space: that of a PCI Express function.
pub(crate) const BYTES: usize = 4096;

/// Class code: memory controller, other.
const CLASS: [u8; 3] = [0x00, 0x80, 0x05];
/// Subsystem: the DMA core's default.
const SUBSYSTEM_ID: u16 = 0x0007;

const COMMAND: usize = 0x04;
const COMMAND_MEMORY: u8 = 1 << 1;
const COMMAND_MASTER: u8 = 1 << 2;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const BARS: usize = 0x10;
const CAPABILITY_POINTER: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;

const PM: usize = 0x40;
const PM_CONTROL: usize = PM + 4;
const PM_STATE: u8 = 0b11;
const MSIX: usize = 0x60;
const PCIE: usize = 0x70;
const SOFTWARE: usize = 0xb0;
const SOFTWARE_MARK: usize = SOFTWARE + SOFTWARE_CARD_OFFSET as usize;
const DEVICE_CONTROL: usize = PCIE + 0x08;
/// The bit in the upper byte of Device Control.
const INITIATE_FLR: u8 = 1 << 7;

/// The configuration space.
#[derive(Debug)]
pub(crate) struct ConfigSpace {
    bytes: Box<[u8; BYTES]>,
    /// Bits that a write changes.
    writable: Box<[u8; BYTES]>,
    /// Whether it says that it is a software card.
    pub(crate) is_marked: bool,
}

/// A space being laid out.
struct Layout<'a>(&'a mut ConfigSpace);

impl Layout<'_> {
    /// Puts little-endian bytes in place, and the bits of them that can be written.
    fn put<const N: usize>(&mut self, offset: usize, value: [u8; N], writable: [u8; N]) {
        let places = self.0.bytes.iter_mut().zip(self.0.writable.iter_mut()).skip(offset);
        for ((byte, mask), (value, bits)) in places.zip(value.into_iter().zip(writable)) {
            *byte = value;
            *mask = bits;
        }
    }

    fn u16(&mut self, offset: usize, value: u16, writable: u16) {
        self.put(offset, value.to_le_bytes(), writable.to_le_bytes());
    }

    fn u32(&mut self, offset: usize, value: u32, writable: u32) {
        self.put(offset, value.to_le_bytes(), writable.to_le_bytes());
    }

    fn bar(&mut self, bar: Bar) {
        const MEMORY_64: u32 = 0b100;
        const PREFETCHABLE: u32 = 0b1000;
        // BAR2 was seen below 4 GiB behind a bridge: it is not prefetchable.
        let flags = match bar {
            Bar::Static | Bar::Shell => MEMORY_64 | PREFETCHABLE,
            Bar::Xdma => MEMORY_64,
        };
        let mask = bar.size().wrapping_neg();
        let offset = BARS.saturating_add(usize::from(bar.number()).saturating_mul(4));
        self.u32(offset, flags, mask as u32);
        self.u32(offset.saturating_add(4), 0, (mask >> 32) as u32);
    }

    fn capability(&mut self, offset: usize, id: u8, next: usize) {
        self.put(offset, [id, next as u8], [0; 2]);
    }

    fn header(&mut self) {
        self.u16(0x00, VENDOR_ID, 0);
        self.u16(0x02, DEVICE_ID, 0);
        // Memory space, bus master, parity error response, SERR#, interrupt disable.
        self.u16(COMMAND, 0, 0x0546);
        self.u16(STATUS, STATUS_CAPABILITIES, 0);
        self.put(0x09, CLASS, [0; 3]);
        self.put(0x0c, [0x00], [0xff]);
        for bar in [Bar::Static, Bar::Xdma, Bar::Shell] {
            self.bar(bar);
        }
        self.u16(0x2c, VENDOR_ID, 0);
        self.u16(0x2e, SUBSYSTEM_ID, 0);
        self.put(CAPABILITY_POINTER, [PM as u8], [0]);
        self.put(INTERRUPT_LINE, [0x00], [0xff]);
    }

    fn capabilities(&mut self) {
        // Power management, version 3: D0 and D3hot, and no reset on the way between them.
        self.capability(PM, 0x01, MSIX);
        self.u16(PM + 2, 0x0003, 0);
        self.u16(PM_CONTROL, 1 << 3, u16::from(PM_STATE));

        self.capability(MSIX, 0x11, PCIE);
        // Enable and function mask can be written; the size is encoded as one less.
        self.u16(MSIX + 2, MSIX_TABLE_ENTRIES.wrapping_sub(1), 0xc000);
        let bir = u32::from(Bar::Xdma.number());
        self.u32(MSIX + 4, MSIX_TABLE_OFFSET as u32 | bir, 0);
        self.u32(MSIX + 8, MSIX_PBA_OFFSET as u32 | bir, 0);

        let is_marked = self.0.is_marked;
        if is_marked {
            self.capability(SOFTWARE, CAPABILITY_VENDOR_SPECIFIC, 0);
            self.put(SOFTWARE + 2, [SOFTWARE_CARD_BYTES], [0]);
            self.put(SOFTWARE_MARK, SOFTWARE_CARD.to_le_bytes(), [0; 8]);
        }

        self.capability(PCIE, 0x10, if is_marked { SOFTWARE } else { 0 });
        // Version 2, endpoint.
        self.u16(PCIE + 0x02, 0x0002, 0);
        // Device: payloads to 1,024 bytes, extended tags, role-based errors, function-level reset.
        self.u32(PCIE + 0x04, 0x1000_8023, 0);
        // Errors reported, relaxed ordering, payload, tags, no-snoop, reads of at most 512 bytes.
        self.u16(DEVICE_CONTROL, 0x2810, 0x79ff);
        // Link: 8 GT/s, 16 lanes; and so negotiated.
        self.u32(PCIE + 0x0c, 0x0000_0103, 0);
        self.u16(PCIE + 0x10, 0, 0x00c3);
        self.u16(PCIE + 0x12, 0x0103, 0);
        // Device 2: completion timeout ranges B and C, which can be switched off.
        self.u32(PCIE + 0x24, 0x0000_0016, 0);
        self.u16(PCIE + 0x28, 0, 0x001f);
        // Link 2: 2.5 to 8 GT/s.
        self.u32(PCIE + 0x2c, 0x0000_000e, 0);
        self.u16(PCIE + 0x30, 0x0003, 0x000f);
    }
}

impl ConfigSpace {
    /// The space as it is after a reset, of a card that says that it is a software card, or plays an FPGA.
    pub(crate) fn new(is_marked: bool) -> Self {
        let (bytes, writable) = (Box::new([0; BYTES]), Box::new([0; BYTES]));
        let mut space = Self { bytes, writable, is_marked };
        let mut layout = Layout(&mut space);
        layout.header();
        layout.capabilities();
        space
    }

    /// Copies bytes that lie wholly in the space.
    pub(crate) fn read(&self, offset: usize, count: usize) -> Option<&[u8]> {
        self.bytes.get(offset..offset.checked_add(count)?)
    }

    /// Writes the writable bits of bytes that lie wholly in the space; whether that asks for a function-level reset,
    /// which is the caller's to do.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        let places = self.bytes.iter_mut().zip(self.writable.iter()).enumerate().skip(offset);
        let mut reset = false;
        for ((at, (byte, mask)), new) in places.zip(data) {
            *byte = (*byte & !mask) | (new & mask);
            reset |= at == DEVICE_CONTROL + 1 && new & INITIATE_FLR != 0;
        }
        // There are no states between D0 and D3hot.
        if let Some(state) = self.bytes.get_mut(PM_CONTROL) {
            if matches!(*state & PM_STATE, 1 | 2) {
                *state &= !PM_STATE;
            }
        }
        reset
    }

    fn command(&self, bit: u8) -> bool {
        let awake = self.bytes.get(PM_CONTROL).is_some_and(|state| state & PM_STATE == 0);
        awake && self.bytes.get(COMMAND).is_some_and(|command| command & bit != 0)
    }

    /// Whether the BARs decode: memory space is enabled and the function is in D0.
    pub(crate) fn decodes(&self) -> bool {
        self.command(COMMAND_MEMORY)
    }

    /// Whether the card may read, write and interrupt the host: it is a bus master, in D0.
    pub(crate) fn masters(&self) -> bool {
        self.command(COMMAND_MASTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u16_at(space: &ConfigSpace, offset: usize) -> u16 {
        u16::from_le_bytes(space.read(offset, 2).unwrap().try_into().unwrap())
    }

    fn u32_at(space: &ConfigSpace, offset: usize) -> u32 {
        u32::from_le_bytes(space.read(offset, 4).unwrap().try_into().unwrap())
    }

    #[test]
    fn the_card_identifies_itself() {
        let space = ConfigSpace::new(true);
        assert_eq!(u32_at(&space, 0), 0x903f_10ee);
        assert_eq!(u32_at(&space, 8), 0x0580_0000);
        assert_eq!(u32_at(&space, 0x2c), 0x0007_10ee);
        assert_eq!(space.read(0x0e, 1), Some(&[0][..]), "header type 0, one function");
        assert_eq!(space.read(0x3d, 1), Some(&[0][..]), "no legacy interrupt");
    }

    #[test]
    fn writing_all_ones_tells_the_size_and_kind_of_each_bar() {
        let mut space = ConfigSpace::new(true);
        let sizes: Vec<u64> = (0..6)
            .step_by(2)
            .map(|number| {
                let offset = BARS + 4 * number;
                space.write(offset, &[0xff; 8]);
                u64::from(u32_at(&space, offset)) | u64::from(u32_at(&space, offset + 4)) << 32
            })
            .collect();
        let encoded = |bytes: u64, flags: u64| bytes.wrapping_neg() | flags;
        assert_eq!(sizes, [encoded(1 << 20, 12), encoded(64 << 10, 4), encoded(256 << 20, 12)]);
        space.write(0x30, &[0xff; 4]);
        assert_eq!(u32_at(&space, 0x30), 0, "no expansion ROM");
    }

    #[test]
    fn a_bar_keeps_the_address_it_is_given() {
        let mut space = ConfigSpace::new(true);
        space.write(BARS + 16, &0x0000_0380_1000_0000u64.to_le_bytes());
        assert_eq!(u32_at(&space, BARS + 16), 0x1000_000c);
        assert_eq!(u32_at(&space, BARS + 20), 0x380);
    }

    #[test]
    fn the_capabilities_are_power_management_msix_pcie_and_the_mark_of_a_software_card() {
        let space = ConfigSpace::new(true);
        let mut next = usize::from(space.read(CAPABILITY_POINTER, 1).unwrap()[0]);
        let mut found = Vec::new();
        while next != 0 {
            found.push(space.read(next, 1).unwrap()[0]);
            next = usize::from(space.read(next + 1, 1).unwrap()[0]);
        }
        assert_eq!(found, [0x01, 0x11, 0x10, 0x09]);
        let mark = space.read(SOFTWARE, 12).unwrap();
        assert_eq!((mark[2], &mark[4..]), (12, &b"BALBOASW"[..]));
        assert_ne!(u16_at(&space, STATUS) & STATUS_CAPABILITIES, 0);
        assert_eq!(u16_at(&space, MSIX + 2), 31);
        assert_eq!(u32_at(&space, MSIX + 4), 0x8002);
        assert_eq!(u32_at(&space, MSIX + 8), 0x8fe2);
        assert_ne!(u32_at(&space, PCIE + 4) & 1 << 28, 0, "function-level reset");
        assert_eq!(u32_at(&space, 0x100), 0, "no extended capability");
        // One that plays an FPGA has no mark.
        let space = ConfigSpace::new(false);
        assert_eq!(u16_at(&space, PCIE), 0x0010, "the last one");
        assert_eq!((u32_at(&space, SOFTWARE), u32_at(&space, SOFTWARE_MARK)), (0, 0));
    }

    #[test]
    fn the_command_register_says_what_the_card_may_do() {
        let mut space = ConfigSpace::new(true);
        assert!(!space.decodes() && !space.masters());
        space.write(COMMAND, &[0x02]);
        assert!(space.decodes() && !space.masters());
        space.write(COMMAND, &[0xff, 0xff]);
        assert!(space.decodes() && space.masters());
        assert_eq!(u16_at(&space, COMMAND), 0x0546);
        space.write(PM_CONTROL, &[0x03]);
        assert!(!space.decodes() && !space.masters(), "D3hot");
        space.write(PM_CONTROL, &[0x01]);
        assert!(space.decodes() && space.masters(), "there is no D1");
    }

    #[test]
    fn relaxed_ordering_is_on_until_it_is_cleared() {
        use fpga_regs::coyote::pci::DEVICE_CONTROL_RELAXED_ORDERING as RELAXED;
        let mut space = ConfigSpace::new(true);
        let control = u16_at(&space, DEVICE_CONTROL);
        assert_ne!(control & RELAXED, 0);
        assert!(!space.write(DEVICE_CONTROL, &(control & !RELAXED).to_le_bytes()));
        assert_eq!(u16_at(&space, DEVICE_CONTROL), control & !RELAXED);
    }

    #[test]
    fn only_the_bit_that_initiates_it_asks_for_a_reset_and_it_reads_back_zero() {
        let mut space = ConfigSpace::new(true);
        assert!(!space.write(DEVICE_CONTROL, &[0xff, 0x7f]));
        assert!(space.write(DEVICE_CONTROL, &[0x10, 0xa8]));
        assert!(space.write(DEVICE_CONTROL + 1, &[0x80]));
        assert!(space.write(PCIE, &[0xff; 16]));
        assert_eq!(u16_at(&space, DEVICE_CONTROL) & 0x8000, 0);
    }

    #[test]
    fn what_leaves_the_space_is_neither_read_nor_written() {
        let mut space = ConfigSpace::new(true);
        assert_eq!(space.read(BYTES - 1, 2), None);
        assert_eq!(space.read(usize::MAX, 2), None);
        assert_eq!(space.read(BYTES, 0), Some(&[][..]));
        space.write(BYTES - 1, &[0xff; 8]);
        assert!(space.read(0, 4096).is_some());
        for offset in 0..BYTES {
            space.write(offset, &[0xff]);
        }
        assert_eq!(u32_at(&space, 0), 0x903f_10ee);
    }
}
