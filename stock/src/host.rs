//! The host memory that the card reaches.

/// An address space: a cThread of a vFPGA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Space {
    /// The vFPGA.
    pub vfpga: u8,
    /// Its address space, which is also the low part of a QP's number.
    pub ctid: u8,
}

impl Space {
    /// The address space that a QP's number names.
    #[must_use]
    pub const fn of_qp(qpn: u32) -> Self {
        Self { vfpga: (qpn >> 6 & 0xf) as u8, ctid: (qpn & 0x3f) as u8 }
    }

    /// The QP of the address space.
    #[must_use]
    pub fn qpn(self) -> u32 {
        u32::from(self.vfpga & 0xf) << 6 | u32::from(self.ctid & 0x3f)
    }
}

/// The outcome of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reach {
    /// All bytes have moved.
    Done,
    /// Its page is not there yet, or its bytes have not come: the same is asked again, and nothing else before.
    Waits,
    /// The driver says that there is nothing, and lets the card go on.
    Refused,
}

/// Host memory, as the card's DMA reaches it through the MMUs of its vFPGAs.
pub trait Host {
    /// Reads all of `into`.
    fn read(&mut self, space: Space, vaddr: u64, into: &mut [u8]) -> Reach;

    /// Writes all of `from`.
    fn write(&mut self, space: Space, vaddr: u64, from: &[u8]) -> Reach;

    /// Writes a counter's value to an address of the bus, which no MMU translates.
    fn write_back(&mut self, bus: u64, value: u32);
}
