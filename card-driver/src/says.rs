//! What a card says of itself, by which one shell is told from another.

use bitstreams::EngineKind;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell;

use crate::backend::CardBackend;
use crate::engine::EngineLimits;

/// What a card said that was brought up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Says {
    /// vFPGAs.
    pub regions: u64,
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
        Self {
            regions: backend.read64(Bar::Shell, shell::N_REGIONS),
            built: registers.map(|register| backend.read64(Bar::Shell, register)),
            engines: engines.filter(|_| engine == EngineKind::Vqe).collect(),
        }
    }

    /// Whether another shell says this than that.
    pub(crate) fn is_other(&self, than: &Self) -> bool {
        let built = |it: &Self| (it.regions, it.built);
        let both = !self.engines.is_empty() && !than.engines.is_empty();
        built(self) != built(than) || both && self.engines != than.engines
    }
}
