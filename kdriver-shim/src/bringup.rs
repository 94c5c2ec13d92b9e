//! Bring-up of a card: probe, DMA engines, reset, shell registers, addresses, interrupts, engines.
//!
//! The order is the published driver's. Every value that the card answers is checked before the
//! first write that depends on it: a reference design with the same PCI identity must not be
//! written to.

use std::rc::Rc;
use std::time::Duration;

use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell::{self, Map};
use fpga_regs::coyote::static_layer;
use fpga_regs::coyote::vfpga;
use fpga_regs::coyote::xdma::{self, Direction};
use fpga_regs::engine::window;

use crate::address::{PortAddress, gid_text, mac_register, mac_text};
use crate::admin::AdminEngine;
use crate::backend::CardBackend;
use crate::cards::{Card, Quarantine, Window};
use crate::engine::Engine;
use crate::error::Error;
use crate::iova::Arena;

/// Brings a card up and starts the engine in each of its windows.
///
/// # Errors
/// [`Error::BringUp`] with what was found and what to do, or an engine's error.
pub fn bring_up(
    number: u32,
    backend: Rc<dyn CardBackend>,
    address: PortAddress,
) -> Result<Card, Error> {
    let probe = Bringup { card: number, backend: &*backend };
    probe.static_layer()?;
    probe.dma_engines()?;
    probe.reset_shell();
    let regions = probe.shell(Map::default())?;
    probe.addresses(address);
    probe.interrupts();

    let mut arena = Arena::new();
    let mut windows = Vec::new();
    let mut firmware = None;
    for index in 0..regions {
        let Some(version) = probe.engine(index)? else { continue };
        let mut engine = AdminEngine::start(number, Rc::clone(&backend), index, &mut arena)?;
        write_gids(&mut engine, address)?;
        firmware.get_or_insert(version);
        windows.push(Window::new(index, Box::new(engine)));
    }
    let Some(firmware) = firmware else {
        return Err(probe.failed(
            "none of its vFPGAs holds a verbs queue engine; load a bitstream with one".into(),
        ));
    };
    let identity = backend.identity();
    log::info!(
        "balboa{number}: {} at {}, link {}, MAC {}, IP {}/{}, {} engines",
        identity.board,
        identity.location,
        identity.link,
        mac_text(address.mac()),
        address.ip,
        address.prefix,
        windows.len()
    );
    Ok(Card {
        number,
        backend,
        identity,
        address,
        firmware,
        windows,
        arena,
        quarantine: Quarantine::default(),
    })
}

/// Writes the GID table of an engine, once it has started.
///
/// # Errors
/// The engine's.
pub fn write_gids(engine: &mut dyn Engine, address: PortAddress) -> Result<(), Error> {
    for (index, gid) in (0u8..).zip(address.gids()) {
        engine.set_gid(index, Some(gid))?;
        log::debug!("{}: GID {index} is {}", engine.name(), gid_text(gid));
    }
    Ok(())
}

struct Bringup<'a> {
    card: u32,
    backend: &'a dyn CardBackend,
}

impl Bringup<'_> {
    fn failed(&self, why: String) -> Error {
        Error::BringUp { card: self.card, why }
    }

    fn static_layer(&self) -> Result<(), Error> {
        let probe = self.backend.read32(Bar::Static, static_layer::PROBE);
        if probe == u32::MAX {
            return Err(self.failed(
                "its registers read all ones: it has left the bus, or its BARs are not enabled; rescan the bus or program it again".into(),
            ));
        }
        if probe != static_layer::PROBE_VALUE {
            return Err(self.failed(format!(
                "its static layer answers the probe with {probe:#010x}, not {:#010x}: it holds another design",
                static_layer::PROBE_VALUE
            )));
        }
        Ok(())
    }

    /// Identifies the DMA engines and sets them running.
    fn dma_engines(&self) -> Result<(), Error> {
        for direction in [Direction::HostToCard, Direction::CardToHost] {
            for channel in 0..xdma::CHANNELS {
                let base = xdma::engine(direction, channel);
                let found = self.backend.read32(Bar::Xdma, base | xdma::ENGINE_IDENTIFIER);
                let fits = found >> 16 == xdma::identifier(direction)
                    && u64::from(found >> 8 & 0xf) == channel;
                if !fits {
                    return Err(self.failed(format!(
                        "DMA engine {channel} ({direction:?}) identifies itself as {found:#010x}; a hot reset and a rescan of the bus usually cure this"
                    )));
                }
                self.backend.write32(
                    Bar::Xdma,
                    base | xdma::ENGINE_CONTROL,
                    xdma::ENGINE_CONTROL_RUN,
                );
            }
        }
        Ok(())
    }

    fn reset_shell(&self) {
        let write = |offset, value| self.backend.write32(Bar::Static, offset, value);
        write(static_layer::PR_EOST, static_layer::PR_EOST_DEFAULT);
        write(static_layer::PR_EOST_RESET, 0);
        write(static_layer::PR_EOST_RESET, 1);
        std::thread::sleep(Duration::from_micros(static_layer::RESET_SETTLE_MICROS));
    }

    /// Checks the shell and returns the number of its vFPGAs.
    fn shell(&self, map: Map) -> Result<u8, Error> {
        let read = |offset| self.backend.read64(Bar::Shell, offset);
        let probe = read(shell::PROBE);
        if probe == u64::MAX {
            return Err(self.failed(
                "its shell reads all ones while the static layer answers; program it again".into(),
            ));
        }
        if probe != u64::from(static_layer::PROBE_VALUE) {
            return Err(self.failed(format!(
                "its shell answers the probe with {probe:#x}, not {:#x}: it holds another design",
                static_layer::PROBE_VALUE
            )));
        }
        let channels = read(shell::N_CHAN);
        if channels == 0 || channels > xdma::CHANNELS {
            return Err(
                self.failed(format!("its shell claims {channels} DMA channels, not 1 to 3"))
            );
        }
        let regions = read(shell::N_REGIONS);
        let regions = u8::try_from(regions)
            .ok()
            .filter(|&regions| regions > 0 && u64::from(regions) <= vfpga::MAX_VFPGAS)
            .ok_or_else(|| {
                self.failed(format!("its shell claims {regions} vFPGAs, not 1 to 15"))
            })?;
        log::debug!(
            "balboa{}: {regions} vFPGAs, control configuration {:#x}, memory configuration {:#x}, RDMA {:#x}",
            self.card,
            read(shell::CTRL_CNFG),
            read(shell::MEM_CNFG),
            read(shell::RDMA_CNFG.at(map))
        );
        Ok(regions)
    }

    fn addresses(&self, address: PortAddress) {
        let write = |offset, value| self.backend.write64(Bar::Shell, offset, value);
        write(shell::IP_ADDRESS, u64::from(u32::from(address.ip)));
        write(shell::MAC_ADDRESS, mac_register(address.mac()));
    }

    /// Routes user interrupt *i* to vector *i* and enables those of the vFPGAs.
    fn interrupts(&self) {
        for first in (0..xdma::USER_INTERRUPTS).step_by(4) {
            let vectors = [0u8, 1, 2, 3].map(|i| (first as u8).wrapping_add(i));
            let offset = xdma::USER_VECTOR_MAP.wrapping_add(first);
            self.backend.write32(Bar::Xdma, offset, u32::from_le_bytes(vectors));
        }
        self.backend.write32(
            Bar::Xdma,
            xdma::USER_INTERRUPT_ENABLE_SET,
            xdma::USER_INTERRUPT_VFPGAS,
        );
    }

    /// Checks a window's identity; the contract version as text, or `None` where no engine is.
    fn engine(&self, index: u8) -> Result<Option<String>, Error> {
        let csr = vfpga::user_csr(u64::from(index));
        let read = |register: u64| self.backend.read64(Bar::Shell, csr.wrapping_add(register));
        if read(window::MAGIC) != window::MAGIC_VALUE {
            log::info!("balboa{}: vFPGA {index} holds no queue engine", self.card);
            return Ok(None);
        }
        let [minor0, minor1, major0, major1, profile, ..] = read(window::VERSION).to_le_bytes();
        let major = u16::from_le_bytes([major0, major1]);
        let minor = u16::from_le_bytes([minor0, minor1]);
        if major != window::VERSION_MAJOR {
            return Err(self.failed(format!(
                "the engine in vFPGA {index} speaks version {major}.{minor} of the contract, this balboad version {}; install a balboad of that version",
                window::VERSION_MAJOR
            )));
        }
        if self.backend.vector(u16::from(index)).is_none() {
            return Err(self.failed(format!("vFPGA {index} has no interrupt vector")));
        }
        Ok(Some(format!("{major}.{minor}.{profile}")))
    }
}

#[cfg(test)]
mod tests;
