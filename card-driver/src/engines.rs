//! The engines that drive the logic in vFPGAs, and which of them a bitstream wants.

use std::sync::Arc;

use bitstreams::{EngineKind, Manifest};
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::engine::window;

use crate::admin::AdminEngine;
use crate::backend::CardBackend;
use crate::engine::Engine;
use crate::error::Error;
use crate::iova::Arena;
use crate::shell::Shell;

/// The engine in a vFPGA, and its version for people; `None` without an engine.
pub type Started = Result<Option<(Box<dyn Engine>, String)>, Error>;

/// The means to find and start engines of one kind.
pub struct EngineDriver {
    /// The expected engine of a vFPGA, for people.
    pub wanted: fn() -> String,
    /// Starts the engine in a vFPGA of a card. Fails with [`Error::BringUp`], which
    /// has the finding and the mend, or as the engine does.
    pub start: fn(u32, &Arc<Shell>, u8, &mut Arena) -> Started,
}

/// A verbs queue engine, which is driven by its window of registers.
const QUEUE_ENGINE: EngineDriver =
    EngineDriver { wanted: wanted_queue_engine, start: start_queue_engine };

/// The driver for the engine of a bitstream.
#[must_use]
pub fn driver(manifest: &Manifest) -> EngineDriver {
    match manifest.engine {
        // An engine that balboad hosts for a card without one reads the same.
        EngineKind::Vqe | EngineKind::Stock => QUEUE_ENGINE,
    }
}

fn wanted_queue_engine() -> String {
    let magic = window::MAGIC_VALUE;
    format!("a verbs queue engine (their windows do not begin with {magic:#x})")
}

/// Whether a verbs queue engine is seen in a vFPGA of a card; one that is hosted for a card is seen in its window.
pub(crate) fn is_queue_engine(backend: &dyn CardBackend, vfpga: u64) -> bool {
    let magic = user_csr(vfpga).wrapping_add(window::MAGIC);
    backend.read64(Bar::Shell, magic) == window::MAGIC_VALUE
}

fn start_queue_engine(card: u32, shell: &Arc<Shell>, vfpga: u8, arena: &mut Arena) -> Started {
    let failed = |why| Error::BringUp { card, why };
    if !is_queue_engine(&**shell.backend(), u64::from(vfpga)) {
        log::info!("balboa{card}: vFPGA {vfpga} holds no queue engine");
        return Ok(None);
    }
    let csr = user_csr(u64::from(vfpga));
    let read = |register: u64| shell.backend().read64(Bar::Shell, csr.wrapping_add(register));
    let [minor0, minor1, major0, major1, profile, ..] = read(window::VERSION).to_le_bytes();
    let major = u16::from_le_bytes([major0, major1]);
    let minor = u16::from_le_bytes([minor0, minor1]);
    if major != window::VERSION_MAJOR {
        return Err(failed(format!(
            "the engine in vFPGA {vfpga} speaks version {major}.{minor} of the contract, this balboad version {}; install a balboad of that version",
            window::VERSION_MAJOR
        )));
    }
    let offers = window::Capabilities::from_bits_retain(read(window::CAPABILITIES));
    if offers.contains(window::Capabilities::DRIVER_CONTEXTS) {
        return Err(failed(format!(
            "the engine in vFPGA {vfpga} leaves its connections to the shell's stack (capabilities {:#x} with DRIVER_CONTEXTS), whose contexts this balboad does not write; load an image whose engine has a transport of its own",
            offers.bits()
        )));
    }
    if shell.backend().vector(u16::from(vfpga)).is_none() {
        return Err(failed(format!("vFPGA {vfpga} has no interrupt vector")));
    }
    let engine = AdminEngine::start(card, Arc::clone(shell), vfpga, arena)?;
    Ok(Some((Box::new(engine), format!("{major}.{minor}.{profile}"))))
}
