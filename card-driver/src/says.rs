//! A card's description of itself, which distinguishes one shell from another.

use bitstreams::{EngineKind, shell as bitstream};
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell;

use crate::backend::CardBackend;
use crate::engine::EngineLimits;

/// The description that a card gave of itself when it was brought up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Says {
    /// vFPGAs.
    pub regions: u64,
    /// Registers that are in the same place in both maps.
    built: [u64; 5],
    /// The limits of its queue engines; none where balboad hosts them. A card does not tell its driver, so that they
    /// count only where both descriptions have some.
    engines: Vec<(u8, EngineLimits)>,
}

impl Says {
    /// The description of a card whose engines, each in its vFPGA, have these limits.
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

    /// Whether another shell says this than the one that said that before.
    pub(crate) fn is_other(&self, than: &Self) -> bool {
        let both = !self.engines.is_empty() && !than.engines.is_empty();
        bitstream::is_seen_behind(self.regions, than.regions)
            || self.built != than.built
            || both && self.engines != than.engines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeCard;

    #[test]
    fn a_card_that_has_refused_two_shells_with_other_engines_is_not_taken_for_one_with_the_second()
    {
        let (card, more) = (FakeCard::new(2), FakeCard::new(3));
        let engines = |qps| [(0, EngineLimits { qps, ..EngineLimits::default() })].into_iter();
        let kept = Says::of(&card, EngineKind::Vqe, engines(1));
        // A published one that it has refused: nothing in it is looked at.
        let published = Says::of(&card, EngineKind::Stock, engines(1));
        assert!(!published.is_other(&kept) && !kept.is_other(&published));
        assert!(Says::of(&more, EngineKind::Stock, engines(1)).is_other(&kept));
        // An engine that is found behind the second is compared with the last one.
        assert!(Says::of(&card, EngineKind::Vqe, engines(2)).is_other(&kept));
    }
}
