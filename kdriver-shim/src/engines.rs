//! The engines that drive the logic in vFPGAs, and which of them a bitstream wants.

use std::sync::Arc;

use bitstreams::{EngineKind, Manifest};
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::engine::window;

use crate::admin::AdminEngine;
use crate::engine::Engine;
use crate::error::Error;
use crate::iova::Arena;
use crate::shell::Shell;

/// An engine in a vFPGA, and what it says of its version, for people.
pub type Started = (Box<dyn Engine>, String);

/// Whether the engine of a bitstream can be driven.
///
/// # Errors
/// Why not, and what to do.
pub fn check(manifest: &Manifest) -> Result<(), String> {
    match manifest.engine {
        EngineKind::Vqe => Ok(()),
        EngineKind::Stock => Err(format!(
            "{} wants the engine `stock`, by its manifest, which this balboad does not drive; load a bitstream with a verbs queue engine",
            manifest.name
        )),
    }
}

/// What is looked for in a vFPGA, for people.
#[must_use]
pub fn wanted(kind: EngineKind) -> String {
    match kind {
        EngineKind::Vqe => format!(
            "a verbs queue engine (their windows do not begin with {:#x})",
            window::MAGIC_VALUE
        ),
        EngineKind::Stock => "the shell's command registers".into(),
    }
}

/// Starts the engine in a vFPGA; `None` where none is.
///
/// # Errors
/// [`Error::BringUp`] with what was found and what to do, or the engine's.
pub fn start(
    kind: EngineKind,
    card: u32,
    shell: &Arc<Shell>,
    vfpga: u8,
    arena: &mut Arena,
) -> Result<Option<Started>, Error> {
    match kind {
        EngineKind::Vqe => start_queue_engine(card, shell, vfpga, arena),
        EngineKind::Stock => Ok(None),
    }
}

/// Starts a verbs queue engine, which is driven by its window of registers.
fn start_queue_engine(
    card: u32,
    shell: &Arc<Shell>,
    vfpga: u8,
    arena: &mut Arena,
) -> Result<Option<Started>, Error> {
    let failed = |why| Error::BringUp { card, why };
    let csr = user_csr(u64::from(vfpga));
    let read = |register: u64| shell.backend().read64(Bar::Shell, csr.wrapping_add(register));
    if read(window::MAGIC) != window::MAGIC_VALUE {
        log::info!("balboa{card}: vFPGA {vfpga} holds no queue engine");
        return Ok(None);
    }
    let [minor0, minor1, major0, major1, profile, ..] = read(window::VERSION).to_le_bytes();
    let major = u16::from_le_bytes([major0, major1]);
    let minor = u16::from_le_bytes([minor0, minor1]);
    if major != window::VERSION_MAJOR {
        return Err(failed(format!(
            "the engine in vFPGA {vfpga} speaks version {major}.{minor} of the contract, this balboad version {}; install a balboad of that version",
            window::VERSION_MAJOR
        )));
    }
    if shell.backend().vector(u16::from(vfpga)).is_none() {
        return Err(failed(format!("vFPGA {vfpga} has no interrupt vector")));
    }
    let engine = AdminEngine::start(card, Arc::clone(shell), vfpga, arena)?;
    Ok(Some((Box::new(engine), format!("{major}.{minor}.{profile}"))))
}
