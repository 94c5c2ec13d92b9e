//! Bring-up of a card: probe, DMA engines, reset, shell registers, addresses, interrupts, engines.
//!
//! The order is the published driver's, but for two things: PCIe relaxed ordering is turned off, and
//! no completion writeback is set up, for an engine writes its completions itself. Every value that the card answers is checked before the
//! first write that depends on it: a reference design with the same PCI identity must not be
//! written to.

use std::sync::Arc;
use std::time::Duration;

use bitstreams::{EngineKind, Manifest, MapName, Mends};
use fpga_regs::coyote::pci::{self, Bar};
use fpga_regs::coyote::shell::{self, CtrlCnfg, MemCnfg, NetworkCnfg};
use fpga_regs::coyote::static_layer;
use fpga_regs::coyote::tlb::Geometry;
use fpga_regs::coyote::vfpga::{self, Bank};
use fpga_regs::coyote::xdma::{self, Direction, EngineIdentifier, VectorMap};
use hostmem::netdev::mac_text;
use stock_engine::Faults;

use crate::address::{PortAddress, mac_register};
use crate::backend::CardBackend;
use crate::device::{Device, Window, write_gids};
use crate::engines;
use crate::error::{Error, GONE};
use crate::hosted::{self, Hosted, HostedOptions};
use crate::iova::{ARENA_END, ARENA_START, Arena};
use crate::says::Says;
use crate::shell::{Shell, SpacesOfQps, SpacesOfWindows, Translator};

/// Brings a card up that holds the bitstream of a manifest, and starts the engine in each of its
/// windows that the manifest names.
///
/// # Errors
/// [`Error::BringUp`] with the finding and the mend, or an engine's error.
pub fn bring_up(
    number: u32,
    backend: Arc<dyn CardBackend>,
    address: PortAddress,
    manifest: &Manifest,
) -> Result<Device, Error> {
    bring_up_with(number, backend, address, manifest, HostedOptions::default())
}

/// The same, with options of the engines that balboad hosts for a card.
///
/// # Errors
/// As [`bring_up`].
pub fn bring_up_with(
    number: u32,
    backend: Arc<dyn CardBackend>,
    address: PortAddress,
    manifest: &Manifest,
    options: HostedOptions,
) -> Result<Device, Error> {
    prepare(number, &*backend, manifest)?;
    reset_shell(&*backend);
    let up = bring_shell_up(number, Arc::clone(&backend), address, manifest, options);
    up.map_err(|error| gone_or(error, number, &*backend))
}

/// Brings the shell up after its reset.
fn bring_shell_up(
    number: u32,
    card: Arc<dyn CardBackend>,
    address: PortAddress,
    manifest: &Manifest,
    options: HostedOptions,
) -> Result<Device, Error> {
    let probe = Bringup { card: number, backend: &*card, manifest };
    let found = probe.begin(address)?;
    let ways = match manifest.engine {
        EngineKind::Vqe => {
            options.meetings.end(address.ip.into());
            let translator = Arc::new(SpacesOfWindows::new(found.large, found.regions));
            Ways { card: Arc::clone(&card), backend: card, translator, hosted: None }
        }
        EngineKind::Stock => {
            let hosted = probe.host(&found, Arc::clone(&card), address, &options)?;
            let spaces = Arc::<Hosted>::clone(&hosted);
            let translator = Arc::new(SpacesOfQps::new(spaces));
            let backend = Arc::<Hosted>::clone(&hosted);
            Ways { card, backend, translator, hosted: Some(hosted) }
        }
    };
    start_engines(number, ways, &found, address, manifest, options)
}

/// The back-ends and the translator of a card.
struct Ways {
    card: Arc<dyn CardBackend>,
    /// Where its engines are: another way if balboad hosts them.
    backend: Arc<dyn CardBackend>,
    translator: Arc<dyn Translator>,
    hosted: Option<Arc<Hosted>>,
}

/// Starts the engine in each window of a shell that is set up.
fn start_engines(
    number: u32,
    Ways { card, backend, translator, hosted }: Ways,
    found: &ShellLayout,
    address: PortAddress,
    manifest: &Manifest,
    options: HostedOptions,
) -> Result<Device, Error> {
    let driver = engines::driver(manifest);
    let probe = Bringup { card: number, backend: &*backend, manifest };
    let way = Arc::clone(&backend);
    let shell = Arc::new(Shell::new(number, way, found.bank, found.regions, translator));
    if let Some(hosted) = hosted {
        hosted.serve(Arc::downgrade(&shell))?;
    }
    let mut arena = Arena::new(&backend.iova_ranges()?);
    if arena.free_bytes() == 0 {
        return Err(probe.failed(
            "the IOMMU translates no address from 2^32 to 2^44, where its memory would be mapped"
                .into(),
        ));
    }
    let mut windows = Vec::new();
    let mut gids = address.gids().to_vec();
    let mut firmware = None;
    for index in 0..found.regions {
        let started = (driver.start)(number, &shell, index, &mut arena)?;
        let Some((mut engine, version)) = started else { continue };
        gids.resize(usize::from(engine.limits().gids).max(gids.len()), [0; 16]);
        write_gids(&mut *engine, &gids, &vec![0; gids.len()])?;
        firmware.get_or_insert(version);
        windows.push(Window { index, engine, kept: Vec::new() });
    }
    let Some(firmware) = firmware else {
        return Err(probe.failed(format!(
            "none of its {} vFPGAs holds {}; load a bitstream with one",
            found.regions,
            (driver.wanted)()
        )));
    };
    let engines = windows.iter().map(|it| (it.index, *it.engine.limits()));
    let said = Some(Says::of(&*backend, manifest.engine, engines));
    let identity = backend.identity();
    log::info!(
        "balboa{number}: {} at {}, by {}, {}, link {}, MAC {}, IP {}/{}, {} engines",
        identity.board,
        identity.location,
        identity.interface,
        manifest.name,
        identity.link,
        mac_text(address.mac()),
        address.ip,
        address.prefix,
        windows.len()
    );
    Ok(Device {
        number,
        card,
        backend,
        identity,
        address,
        vlans: vec![0; gids.len()],
        gids,
        firmware,
        windows,
        arena,
        shell,
        interrupts: None,
        manifest: manifest.clone(),
        said,
        options,
    })
}

/// Prepares a card for its shell: checks the function and its static layer, and sets its DMA engines running.
///
/// # Errors
/// [`Error::BringUp`] with the finding and the mend.
pub(crate) fn prepare(
    card: u32,
    backend: &dyn CardBackend,
    manifest: &Manifest,
) -> Result<(), Error> {
    let probe = Bringup { card, backend, manifest };
    probe.function()?;
    let prepared = probe
        .order_of_writes()
        .and_then(|()| probe.static_layer())
        .and_then(|()| probe.dma_engines());
    prepared.map_err(|error| gone_or(error, card, backend))?;
    probe.vectors();
    Ok(())
}

/// Whether a prepared card's shell, or the logic in its vFPGAs, differs from the manifest's.
pub(crate) fn holds_another(card: u32, backend: &dyn CardBackend, manifest: &Manifest) -> bool {
    let probe = Bringup { card, backend, manifest };
    let Ok(found) = probe.shell() else { return true };
    match manifest.engine {
        EngineKind::Stock => found.bank != Bank::Avx,
        EngineKind::Vqe => {
            !(0..found.regions).any(|index| engines::is_queue_engine(backend, index.into()))
        }
    }
}

/// Why a card did not come up whose BARs are enabled: where it left the bus meanwhile, any answer of
/// before may be half of one.
pub(crate) fn gone_or(error: Error, card: u32, backend: &dyn CardBackend) -> Error {
    gone(card, backend).err().unwrap_or(error)
}

/// Fails where a card has left the bus.
pub(crate) fn gone(card: u32, backend: &dyn CardBackend) -> Result<(), Error> {
    match backend.read32(Bar::Static, static_layer::PROBE) {
        u32::MAX => {
            let why =
                format!("{GONE}, or its BARs are not enabled; rescan the bus or program it again");
            Err(Error::BringUp { card, why })
        }
        _ => Ok(()),
    }
}

/// Resets the shell, and waits until it is settled.
pub(crate) fn reset_shell(backend: &dyn CardBackend) {
    let write = |offset, value| backend.write32(Bar::Static, offset, value);
    write(static_layer::PR_EOST, static_layer::PR_EOST_DEFAULT);
    write(static_layer::PR_EOST_RESET, 0);
    write(static_layer::PR_EOST_RESET, 1);
    std::thread::sleep(Duration::from_micros(static_layer::RESET_SETTLE_MICROS));
}

impl Device {
    /// A card that holds no image, so that it has no engine: there is nothing to do with it but to load one.
    #[must_use]
    pub fn without_image(
        number: u32,
        backend: Arc<dyn CardBackend>,
        address: PortAddress,
        manifest: Manifest,
        options: HostedOptions,
    ) -> Self {
        let shell = Arc::new(Shell::without_vfpgas(number, Arc::clone(&backend)));
        let (identity, gids) = (backend.identity(), address.gids().to_vec());
        Self {
            number,
            card: Arc::clone(&backend),
            backend,
            identity,
            address,
            vlans: vec![0; gids.len()],
            gids,
            firmware: String::new(),
            windows: Vec::new(),
            arena: Arena::new(&[]),
            shell,
            interrupts: None,
            manifest,
            said: None,
            options,
        }
    }

    /// Brings the card up anew after a reset, when no client uses it. `up` has it before its interrupts are served
    /// again.
    ///
    /// # Errors
    /// As [`bring_up`]; it then stays as dead as it was.
    pub fn renew(&mut self, up: impl FnOnce(&mut Self)) -> Result<(), Error> {
        // Of the old shell: a vector is served once.
        let served = self.interrupts.take().is_some();
        let outcome = self.bring_up_anew().map(|()| up(self));
        if served {
            if let Err(error) = self.serve_interrupts() {
                // Its transfers would wait for pages without end, and its programs for events.
                self.abandon("nobody serves its interrupts");
                return Err(error);
            }
        }
        outcome
    }

    pub(crate) fn bring_up_anew(&mut self) -> Result<(), Error> {
        self.shell.translator().end();
        // Of the old engines: the new ones open their own.
        self.windows.iter_mut().for_each(|window| window.engine.close_gsi());
        // Remaining mappings belong to former engines, or were leaked to them.
        self.backend.dma_unmap(ARENA_START, ARENA_END - ARENA_START)?;
        let backend = Arc::clone(&self.card);
        let (number, options) = (self.number, self.options.clone());
        let mut new = bring_up_with(number, backend, self.address, &self.manifest, options)?;
        // A card without engines has its own addresses only.
        let (mut gids, mut vlans) = (self.gids.clone(), self.vlans.clone());
        gids.resize(new.gids.len(), [0; 16]);
        vlans.resize(new.gids.len(), 0);
        new.set_gids(gids, vlans)?;
        *self = new;
        Ok(())
    }
}

struct Bringup<'a> {
    card: u32,
    backend: &'a dyn CardBackend,
    manifest: &'a Manifest,
}

/// The layout of the shell, as its registers say.
struct ShellLayout {
    regions: u8,
    bank: Bank,
    large: Geometry,
    small: Geometry,
}

/// Capabilities a function has at most, lest a broken list has no end.
const MAX_CAPABILITIES: usize = 48;

/// Byte offset of a capability in configuration space.
fn capability(backend: &dyn CardBackend, wanted: u8) -> Option<u16> {
    let [mut at, _] = backend.read_config(pci::CONFIG_CAPABILITIES).to_le_bytes();
    for _ in 0..MAX_CAPABILITIES {
        at &= !3;
        if at < 0x40 {
            return None;
        }
        let [id, next] = backend.read_config(at.into()).to_le_bytes();
        if id == wanted {
            return Some(at.into());
        }
        at = next;
    }
    None
}

/// Whether a function says that it is a software card, which takes software cards' images.
pub(crate) fn is_software_card(backend: &dyn CardBackend) -> bool {
    let Some(at) = capability(backend, pci::CAPABILITY_VENDOR_SPECIFIC) else { return false };
    let at = at.wrapping_add(pci::SOFTWARE_CARD_OFFSET);
    let words = [6, 4, 2, 0].map(|offset| backend.read_config(at.wrapping_add(offset)));
    words.iter().fold(0, |mark, word| mark << 16 | u64::from(*word)) == pci::SOFTWARE_CARD
}

impl Bringup<'_> {
    /// Sets a shell up that was reset: its addresses, its interrupts.
    fn begin(&self, address: PortAddress) -> Result<ShellLayout, Error> {
        let found = self.shell()?;
        self.addresses(address);
        self.interrupt(xdma::USER_INTERRUPT_ENABLE_SET, xdma::USER_INTERRUPT_VFPGAS);
        Ok(found)
    }

    /// Engines of balboad's for a published bitstream.
    fn host(
        &self,
        found: &ShellLayout,
        below: Arc<dyn CardBackend>,
        address: PortAddress,
        options: &HostedOptions,
    ) -> Result<Arc<Hosted>, Error> {
        if found.bank != Bank::Avx {
            return Err(self.failed("its shell has no AVX registers, by which alone a published bitstream takes commands; load one built with EN_AVX = 1, or a verbs queue engine".into()));
        }
        let Mends { windows, selection } = self.manifest.mends;
        let faults = Faults { windows: !windows, selection: !selection };
        if faults != Faults::default() {
            log::warn!(
                "balboa{}: its manifest does not say that the faults of old builds are mended, so less is sent at a time; see source.mended in bitstreams/README.md",
                self.card
            );
        }
        let wanted = hosted::PublishedShell { regions: found.regions, small: found.small, faults };
        Ok(Arc::new(Hosted::new(self.card, below, wanted, address, options)?))
    }

    fn failed(&self, why: String) -> Error {
        Error::BringUp { card: self.card, why }
    }

    /// Checks the function's identity, and lets it use the bus.
    fn function(&self) -> Result<(), Error> {
        let vendor = self.backend.read_config(pci::CONFIG_VENDOR);
        let device = self.backend.read_config(pci::CONFIG_DEVICE);
        if vendor == u16::MAX {
            return Err(self.failed(
                "its configuration space reads all ones: the card is gone; rescan the bus, or program it again and reset it".into(),
            ));
        }
        if vendor != pci::VENDOR_ID || !pci::is_xdma_device(device) {
            return Err(self.failed(format!(
                "the PCI function is {vendor:04x}:{device:04x}, not an XDMA shell such as {:04x}:{:04x}; name another function",
                pci::VENDOR_ID,
                pci::DEVICE_ID
            )));
        }
        let command = self.backend.read_config(pci::CONFIG_COMMAND);
        let enabled = command | pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER;
        self.backend.write_config(pci::CONFIG_COMMAND, enabled);
        Ok(())
    }

    /// Keeps the function's writes in order.
    fn order_of_writes(&self) -> Result<(), Error> {
        let Some(express) = capability(self.backend, pci::CAPABILITY_PCI_EXPRESS) else {
            return Err(self.failed(
                "its configuration space has no PCI Express capability, so relaxed ordering cannot be turned off; pass the function through with all its capabilities".into(),
            ));
        };
        let register = express.wrapping_add(pci::EXPRESS_DEVICE_CONTROL);
        let control = self.backend.read_config(register);
        // Completions and events must not overtake the payload they report.
        let wanted =
            control & !pci::DEVICE_CONTROL_RELAXED_ORDERING & !pci::DEVICE_CONTROL_READ_REQUEST
                | pci::DEVICE_CONTROL_EXTENDED_TAG
                | pci::DEVICE_CONTROL_READ_REQUEST_512;
        self.backend.write_config(register, wanted);
        let now = self.backend.read_config(register);
        if now & pci::DEVICE_CONTROL_RELAXED_ORDERING != 0 {
            return Err(self.failed(format!(
                "relaxed ordering stays on (PCI Express Device Control reads {now:#06x}); let this host write the register, or turn it off where the function comes from"
            )));
        }
        Ok(())
    }

    fn static_layer(&self) -> Result<(), Error> {
        let probe = self.backend.read32(Bar::Static, static_layer::PROBE);
        if probe != static_layer::PROBE_VALUE {
            return Err(self.failed(format!(
                "its static layer answers the probe with {probe:#010x}, not {:#010x}: it holds another design; program it with a Coyote shell",
                static_layer::PROBE_VALUE
            )));
        }
        Ok(())
    }

    /// Identifies the DMA engines and sets them running.
    fn dma_engines(&self) -> Result<(), Error> {
        for direction in Direction::BOTH {
            for channel in 0..xdma::CHANNELS {
                let base = xdma::engine(direction, channel);
                let raw = self.backend.read32(Bar::Xdma, base | xdma::ENGINE_IDENTIFIER);
                let found = EngineIdentifier::decode(raw);
                if found.identifier != xdma::identifier(direction)
                    || u64::from(found.channel) != channel
                {
                    return Err(self.failed(format!(
                        "DMA engine {channel} ({direction:?}) identifies itself as {raw:#010x}, not {:#06x} with channel {channel}; a hot reset and a rescan of the bus usually cure this",
                        xdma::identifier(direction)
                    )));
                }
                self.backend.write32(
                    Bar::Xdma,
                    base | xdma::ENGINE_CONTROL,
                    xdma::ENGINE_CONTROL_RUN.encode(),
                );
            }
        }
        Ok(())
    }

    /// Checks that the shell is the manifest's and has all features needed.
    fn shell(&self) -> Result<ShellLayout, Error> {
        let read = |offset| self.backend.read64(Bar::Shell, offset);
        let probe = read(shell::PROBE);
        if probe == u64::MAX {
            return Err(self.failed(
                "its shell reads all ones while the static layer answers; program it again".into(),
            ));
        }
        let wanted = self.manifest.probe.unwrap_or(static_layer::PROBE_VALUE);
        if probe != u64::from(wanted) {
            return Err(self.failed(format!(
                "its shell answers the probe with {probe:#x}, not {wanted:#x}: it holds another design; program it with a Coyote shell, or give the manifest of the one that it holds"
            )));
        }
        let channels = read(shell::N_CHAN);
        if channels == 0 || channels > xdma::CHANNELS {
            return Err(self.failed(format!(
                "its shell claims {channels} DMA channels, not 1 to {}; program it again",
                xdma::CHANNELS
            )));
        }
        let regions = self.regions(read(shell::N_REGIONS))?;
        let raw = read(shell::CTRL_CNFG);
        let ctrl = u32::try_from(raw).map(|word| CtrlCnfg::decode(word.into()));
        let tlbs = |ctrl| Some((ctrl, Geometry::large(ctrl)?, Geometry::small(ctrl)?));
        let (ctrl, large, small) = ctrl.ok().and_then(tlbs).ok_or_else(|| {
            self.failed(format!(
                "its shell's control configuration reads {raw:#x}, which describes no TLBs; program it again"
            ))
        })?;
        let raw = read(shell::MEM_CNFG);
        if !MemCnfg::decode(raw).host_streams {
            return Err(self.failed(format!(
                "its shell is built without host streams (memory configuration {raw:#x}), so it reaches no host memory; load a bitstream built with EN_STRM = 1"
            )));
        }
        self.rdma()?;
        Ok(ShellLayout { regions, bank: Bank::of(ctrl), large, small })
    }

    fn regions(&self, regions: u64) -> Result<u8, Error> {
        let found = u8::try_from(regions)
            .ok()
            .filter(|&regions| regions > 0 && u64::from(regions) <= vfpga::MAX_VFPGAS)
            .ok_or_else(|| {
                self.failed(format!(
                    "its shell claims {regions} vFPGAs, not 1 to {}; program it again",
                    vfpga::MAX_VFPGAS
                ))
            })?;
        match self.manifest.regions {
            Some(wanted) if wanted != found => Err(self.failed(format!(
                "its shell has {found} vFPGAs, and {} has {wanted} by its manifest; give the manifest of the bitstream that is loaded",
                self.manifest.name
            ))),
            _ => Ok(found),
        }
    }

    /// Checks that the registers which moved in 2026 read as in the manifest's map, and that RDMA is
    /// built in.
    fn rdma(&self) -> Result<(), Error> {
        let map = self.manifest.map;
        let name = MapName(map);
        // Nothing tells the maps apart for certain, but in a wrong one a flag may read as an impossible
        // value.
        for (what, register) in
            [("RDMA", shell::RDMA_CNFG.at(map)), ("TCP", shell::TCP_CNFG.at(map))]
        {
            let value = self.backend.read64(Bar::Shell, register);
            if NetworkCnfg::decode(value).encode() != value {
                return Err(self.failed(format!(
                    "its shell's register {} reads {value:#x}, which is no {what} configuration: the register map is not {name}; correct shell-map in the manifest of {}",
                    register / 8,
                    self.manifest.name
                )));
            }
        }
        let register = shell::RDMA_CNFG.at(map);
        let value = self.backend.read64(Bar::Shell, register);
        if !NetworkCnfg::decode(value).enabled {
            return Err(self.failed(format!(
                "its shell is built without RDMA: register {} reads {value:#x} in register map {name}; load a bitstream built with EN_RDMA = 1, or correct shell-map in the manifest of {}",
                register / 8,
                self.manifest.name
            )));
        }
        Ok(())
    }

    fn addresses(&self, address: PortAddress) {
        let write = |offset, value| self.backend.write64(Bar::Shell, offset, value);
        write(shell::IP_ADDRESS, u64::from(u32::from(address.ip)));
        write(shell::MAC_ADDRESS, mac_register(address.mac()));
    }

    /// Writes a register of the block of interrupts.
    fn interrupt(&self, register: u64, value: u32) {
        let offset = xdma::INTERRUPT_BLOCK.wrapping_add(register);
        self.backend.write32(Bar::Xdma, offset, value);
    }

    /// Routes user interrupt *i* to vector *i*.
    fn vectors(&self) {
        for word in 0..xdma::USER_VECTOR_MAP.count {
            let vector = |i: u8| (word as u8).wrapping_mul(4).wrapping_add(i);
            let vectors = VectorMap {
                first: vector(0),
                second: vector(1),
                third: vector(2),
                fourth: vector(3),
            };
            self.interrupt(xdma::USER_VECTOR_MAP.at(word), vectors.encode());
        }
    }
}

#[cfg(test)]
mod tests;
