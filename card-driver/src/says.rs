//! What a card says of itself, by which one shell is told from another.

use bitstreams::EngineKind;
use bitstreams::shell::Face;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell;

use crate::backend::CardBackend;
use crate::engine::EngineLimits;

/// What a card said that was brought up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Says {
    /// What its manifest says of it, too.
    pub face: Face,
    /// Registers that are in the same place in both maps.
    built: [u64; 5],
    /// What queue engines offer; none where balboad hosts them.
    engines: Vec<(u8, EngineLimits)>,
}

impl Says {
    /// What one says whose engines, each in its vFPGA, offer this.
    pub(crate) fn of(
        backend: &dyn CardBackend,
        engine: EngineKind,
        engines: impl Iterator<Item = (u8, EngineLimits)>,
    ) -> Self {
        let registers =
            [shell::PROBE, shell::N_CHAN, shell::CTRL_CNFG, shell::MEM_CNFG, shell::PR_CNFG];
        let regions = backend.read64(Bar::Shell, shell::N_REGIONS);
        Self {
            face: Face { regions, engine },
            built: registers.map(|register| backend.read64(Bar::Shell, register)),
            engines: engines.filter(|_| engine == EngineKind::Vqe).collect(),
        }
    }

    /// Whether another shell says this than the one that said that before.
    pub(crate) fn is_other(&self, than: &Self) -> bool {
        let both = !self.engines.is_empty() && !than.engines.is_empty();
        self.face.is_seen_behind(&than.face)
            || self.built != than.built
            || both && self.engines != than.engines
    }
}
