//! The card back-end over a PCIe function behind VFIO.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::static_layer;
use fpga_regs::coyote::vfpga;
use fpga_regs::coyote::xdma;
use fpga_regs::engine::window;
use hostmem::{DmaMemory, EventFd, Liveness, Mmio, PAGE_BYTES, memfd};
use vfio::device::Region;
use vfio::{Device, PciAddress, Sysfs};

use crate::backend::{CardBackend, DoorbellGrant, GrantKind, Identity, Takes};
use crate::bringup::is_software_card;
use crate::error::{Error, GONE};

/// A card behind VFIO.
#[derive(Debug)]
pub struct VfioBackend {
    device: Device,
    bars: [BarMap; 3],
    vectors: Vec<EventFd>,
    /// Signalled when the kernel wants the function back.
    wanted_back: EventFd,
    /// Signalled when a program's memory did not answer a copy for this card.
    given_up: EventFd,
    /// See [`Life`].
    life: OwnedFd,
    /// See [`CardBackend::dma_piece`].
    piece: u64,
    /// It says that it is a software card.
    software: bool,
}

/// The sign of life for clients of cards behind VFIO: a lock that the thread holds which made this, until it is
/// dropped.
#[derive(Debug)]
pub struct Life {
    page: OwnedFd,
    _held: Liveness,
}

impl Life {
    /// Holds the lock.
    ///
    /// # Errors
    /// [`Error::Memory`] when there is no memory, or no descriptor, for it.
    pub fn hold() -> Result<Self, Error> {
        let (page, writer) = memfd::create_read_only_for_others("balboad-life", PAGE_BYTES)?;
        Ok(Self { page, _held: Liveness::hold(Arc::new(writer), 0)? })
    }
}

/// A BAR: its mappable parts are mapped, the rest goes through the function's descriptor.
#[derive(Debug)]
struct BarMap {
    region: Region,
    areas: Vec<Area>,
}

#[derive(Debug)]
struct Area {
    start: u64,
    length: u64,
    mmio: Mmio,
}

impl VfioBackend {
    /// Opens a card, lets it reach memory and sets its interrupts up. Clients are to map their memory in
    /// pieces of `piece` bytes.
    ///
    /// # Errors
    /// [`Error::Backend`] with the reason and the mend.
    pub fn open(address: PciAddress, life: &Life, piece: u64) -> Result<Self, Error> {
        let sysfs = Sysfs::default();
        let function = sysfs.function(address).map_err(backend)?;
        function.must_be_a_card().map_err(backend)?;
        let device = Device::open(&sysfs, address).map_err(backend)?;
        let map = |bar| BarMap::new(&device, bar);
        let bars = [map(Bar::Static)?, map(Bar::Xdma)?, map(Bar::Shell)?];
        let vectors = Self::interrupts(&device)?;
        let wanted_back = EventFd::new()?;
        device.signal_request(wanted_back.as_fd()).map_err(backend)?;
        let life = duplicate(life.page.as_fd())?;
        let software = false;
        let given_up = EventFd::new()?;
        let mut backend =
            Self { device, bars, vectors, wanted_back, given_up, life, piece, software };
        backend.software = is_software_card(&backend);
        Ok(backend)
    }

    fn interrupts(device: &Device) -> Result<Vec<EventFd>, Error> {
        let wanted = xdma::USER_INTERRUPTS;
        let there = device.vectors().map_err(backend)?;
        if u64::from(there) < wanted {
            return Err(Error::Backend(format!(
                "{} has {there} interrupt vectors, not {wanted} or more: it holds another design",
                device.address()
            )));
        }
        let mut vectors = Vec::new();
        for _ in 0..wanted {
            vectors.push(EventFd::new()?);
        }
        let descriptors: Vec<BorrowedFd<'_>> =
            vectors.iter().map(|vector| vector.as_fd()).collect();
        device.signal(&descriptors).map_err(backend)?;
        Ok(vectors)
    }

    fn bar(&self, bar: Bar) -> &BarMap {
        let [static_layer, xdma, shell] = &self.bars;
        match bar {
            Bar::Static => static_layer,
            Bar::Xdma => xdma,
            Bar::Shell => shell,
        }
    }

    /// Reads a register past any mapping; a card that has gone reads as ones.
    fn read<const N: usize>(&self, bar: &BarMap, offset: u64) -> [u8; N] {
        let mut bytes = [0xff; N];
        if let Err(error) = self.device.read(&bar.region, offset, &mut bytes) {
            log::debug!("reading register {offset:#x}: {error}");
            return [0xff; N];
        }
        bytes
    }

    fn write(&self, bar: &BarMap, offset: u64, bytes: &[u8]) {
        if let Err(error) = self.device.write(&bar.region, offset, bytes) {
            log::debug!("writing register {offset:#x}: {error}");
        }
    }
}

impl BarMap {
    fn new(device: &Device, bar: Bar) -> Result<Self, Error> {
        let region = device.bar(bar.number()).map_err(backend)?;
        if region.size < bar.size() {
            return Err(Error::Backend(format!(
                "{}: BAR{} has {:#x} bytes, not {:#x}: it holds another design",
                device.address(),
                bar.number(),
                region.size,
                bar.size()
            )));
        }
        let mut areas = Vec::new();
        for &(start, length) in &region.areas {
            let bytes = usize::try_from(length).unwrap_or(usize::MAX);
            let offset = region.offset.saturating_add(start);
            areas.push(Area { start, length, mmio: Mmio::new(device.fd(), offset, bytes)? });
        }
        Ok(Self { region, areas })
    }

    /// The mapping that a register of `bytes` bytes lies in, and its offset there.
    fn mapped(&self, offset: u64, bytes: u64) -> Option<(&Mmio, usize)> {
        self.areas.iter().find_map(|area| {
            let into = offset.checked_sub(area.start)?;
            let inside = into.checked_add(bytes)? <= area.length;
            inside.then(|| usize::try_from(into).ok()).flatten().map(|into| (&area.mmio, into))
        })
    }
}

fn backend(error: vfio::Error) -> Error {
    let why = error.to_string();
    match error {
        vfio::Error::Memlock { .. } => Error::Limit(why),
        _ => Error::Backend(why),
    }
}

impl CardBackend for VfioBackend {
    fn read32(&self, bar: Bar, offset: u64) -> u32 {
        let bar = self.bar(bar);
        match bar.mapped(offset, 4) {
            Some((mmio, at)) => mmio.read32(at).unwrap_or(u32::MAX),
            None => u32::from_le_bytes(self.read(bar, offset)),
        }
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) {
        let bar = self.bar(bar);
        match bar.mapped(offset, 4) {
            Some((mmio, at)) => {
                let written = mmio.write32(at, value);
                debug_assert!(written.is_ok(), "{written:?}");
            }
            None => self.write(bar, offset, &value.to_le_bytes()),
        }
    }

    fn read64(&self, bar: Bar, offset: u64) -> u64 {
        let bar = self.bar(bar);
        match bar.mapped(offset, 8) {
            Some((mmio, at)) => mmio.read64(at).unwrap_or(u64::MAX),
            None => u64::from_le_bytes(self.read(bar, offset)),
        }
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) {
        let bar = self.bar(bar);
        match bar.mapped(offset, 8) {
            Some((mmio, at)) => {
                let written = mmio.write64(at, value);
                debug_assert!(written.is_ok(), "{written:?}");
            }
            None => self.write(bar, offset, &value.to_le_bytes()),
        }
    }

    fn write_wide(&self, offset: u64, words: [u64; 4]) {
        let bar = self.bar(Bar::Shell);
        match bar.mapped(offset, 32) {
            Some((mmio, at)) => {
                let written = mmio.write256(at, words);
                debug_assert!(written.is_ok(), "{written:?}");
            }
            // A store that the kernel splits posts nothing; the caller has made sure that the registers are mapped.
            None => log::error!("{}: the command registers are not mapped", self.device.address()),
        }
    }

    fn read_config(&self, offset: u16) -> u16 {
        self.device.read_config(offset).unwrap_or_else(|error| {
            log::debug!("reading configuration space at {offset:#x}: {error}");
            u16::MAX
        })
    }

    fn write_config(&self, offset: u16, value: u16) {
        if let Err(error) = self.device.write_config(offset, value) {
            log::debug!("writing configuration space at {offset:#x}: {error}");
        }
    }

    fn vector(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.vectors.get(usize::from(vector)).map(|vector| vector.as_fd())
    }

    fn wanted_back(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wanted_back.as_fd())
    }

    fn given_up(&self) -> Option<BorrowedFd<'_>> {
        Some(self.given_up.as_fd())
    }

    fn dma_map(&self, iova: u64, length: u64, memory: DmaMemory) -> Result<(), Error> {
        // A program's is mapped by that program, before its region has a key.
        let DmaMemory::Shared { mapping, offset } = memory else { return Ok(()) };
        let address = u64::try_from(mapping.address()).unwrap_or(u64::MAX).saturating_add(offset);
        self.device.iommu().map(address, iova, length, true).map_err(backend)
    }

    fn dma_unmap(&self, iova: u64, length: u64) -> Result<(), Error> {
        self.device.iommu().unmap(iova, length).map(drop).map_err(backend)
    }

    fn dma_piece(&self) -> u64 {
        self.piece
    }

    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error> {
        self.device.iommu().ranges().map_err(backend)
    }

    fn grant_kind(&self) -> GrantKind {
        GrantKind::Device
    }

    fn grant_page(&self, window: u8, page: u8) -> Result<DoorbellGrant, Error> {
        let at = u64::from(page)
            .saturating_mul(window::PAGE_BYTES)
            .saturating_add(vfpga::user_csr(u64::from(window)));
        let shell = self.bar(Bar::Shell);
        if shell.mapped(at, window::PAGE_BYTES).is_none() {
            return Err(Error::Backend(format!(
                "doorbell page {page} of window {window} cannot be mapped on this machine"
            )));
        }
        let iommu = self.device.iommu();
        Ok(DoorbellGrant::Device {
            function: duplicate(self.device.fd())?,
            offset: shell.region.offset.saturating_add(at),
            iommu: duplicate(iommu.fd().as_fd())?,
            ioas: iommu.ioas(),
            life: duplicate(self.life.as_fd())?,
        })
    }

    /// Nothing: the holder of the function reaches all of its pages, and is trusted not to use this one.
    fn revoke_page(&self, _window: u8, _page: u8) {}

    /// An FPGA, which does not say that it is a software card, would take such a card's image for a bitstream.
    fn takes(&self) -> Takes {
        if self.software { Takes::SoftImages } else { Takes::Bitstreams }
    }

    fn reset(&self) -> Result<(), Error> {
        // The kernel would wait a minute for it to come back, and its caller with it.
        if self.read32(Bar::Static, static_layer::PROBE) == u32::MAX {
            return Err(Error::Backend(format!("{}: {GONE}", self.device.address())));
        }
        self.device.reset().map_err(backend)
    }

    fn identity(&self) -> Identity {
        Identity {
            board: if self.software { "Balboa software card" } else { "Coyote card" }.into(),
            location: self.device.address().to_string(),
            link: "its own port".into(),
            icrc_policy: None,
            congestion: None,
            seals: false,
            interface: self.device.interface().to_string(),
        }
    }

    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    fd.try_clone_to_owned().map_err(|error| Error::Backend(format!("dup of a card: {error}")))
}
