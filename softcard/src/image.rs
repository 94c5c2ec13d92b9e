//! What a card is programmed with.

use std::fmt;
use std::str::FromStr;

use ::stock::Build;
use bitstreams::soft::{Logic, SoftImage};
use fpga_regs::coyote::shell::{CTRL_CNFG_DEFAULT, CtrlCnfg};
use fpga_regs::coyote::vfpga::Bank;

use crate::WINDOWS;

/// The image of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Image {
    /// A verbs queue engine in each vFPGA, over a RoCE v2 stack.
    #[default]
    Vqe,
    /// As published: the example's pass-through logic in each vFPGA, over the published stack, its shell mended.
    Stock,
    /// The same with an old build's shell.
    StockOld,
}

impl Image {
    /// Of which sources the shell in front of the published stack is, where that is the card's network.
    pub(crate) fn build(self) -> Option<Build> {
        match self {
            Self::Vqe => None,
            Self::Stock => Some(Build::Mended),
            Self::StockOld => Some(Build::Old),
        }
    }

    /// Whether it is as published.
    #[must_use]
    pub fn is_published(self) -> bool {
        self.build().is_some()
    }

    /// What the shell says of its control registers.
    pub(crate) fn ctrl_cnfg(self) -> CtrlCnfg {
        match self {
            Self::Vqe => CTRL_CNFG_DEFAULT,
            Self::Stock | Self::StockOld => {
                CtrlCnfg { avx: true, writeback: true, ..CTRL_CNFG_DEFAULT }
            }
        }
    }

    /// The bank of control registers that there is.
    pub(crate) fn bank(self) -> Bank {
        Bank::of(self.ctrl_cnfg())
    }
}

impl From<Logic> for Image {
    fn from(logic: Logic) -> Self {
        match logic {
            Logic::Vqe => Self::Vqe,
            Logic::Stock => Self::Stock,
        }
    }
}

/// What a file makes of a card: the image, and in how many vFPGAs; `None` where a software card has no room for it, or
/// it is of one vFPGA alone.
#[must_use]
pub fn fits(file: &SoftImage) -> Option<(Image, u8)> {
    if file.alone().is_some() {
        return None;
    }
    let count = u8::try_from(file.logic().len()).ok().filter(|count| *count <= WINDOWS)?;
    // It has the same logic in all of them.
    Some((Image::from(*file.logic().first()?), count))
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vqe => "vqe",
            Self::Stock => "stock",
            Self::StockOld => "stock-old",
        })
    }
}

impl FromStr for Image {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "vqe" => Ok(Self::Vqe),
            "stock" => Ok(Self::Stock),
            "stock-old" => Ok(Self::StockOld),
            _ => Err(format!(
                "there is no image `{}`; write vqe (a verbs queue engine), stock or stock-old (as published)",
                text.escape_default()
            )),
        }
    }
}
