//! The image of a card.

use std::fmt;
use std::str::FromStr;

use ::stock::Build;
use bitstreams::soft::{Logic, SoftImage};
use fpga_regs::coyote::shell::{CTRL_CNFG_DEFAULT, CtrlCnfg};
use fpga_regs::coyote::vfpga::Bank;

use crate::WINDOWS;
use crate::vfpga::{is_known, names};

/// The image of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Image {
    /// A verbs queue engine in each vFPGA, over a RoCE v2 stack.
    #[default]
    Vqe,
    /// The image as published: the example's pass-through logic in each vFPGA, over the published stack, its shell
    /// mended.
    Stock,
    /// The same with an old build's shell.
    StockOld,
    /// Logic in each vFPGA over a RoCE v2 stack, some of it of other crates ([`crate::logic::offer`]).
    Named(Stands),
}

/// The logic in each vFPGA of a card, from the first on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands([Option<Logic>; WINDOWS as usize]);

impl Stands {
    /// This logic; `None` where there is none, more than a card has room for, or some that is not known here or is
    /// published, which wants another network.
    fn of(logic: &[Logic]) -> Option<Self> {
        let mut all = [None; WINDOWS as usize];
        for (place, logic) in all.get_mut(..logic.len())?.iter_mut().zip(logic) {
            *place = Some(*logic).filter(|it| is_known(*it) && *it != Logic::Stock);
            (*place)?;
        }
        (!logic.is_empty()).then_some(Self(all))
    }

    fn iter(&self) -> impl Iterator<Item = Logic> {
        self.0.iter().map_while(|logic| *logic)
    }
}

impl Image {
    /// The build of the shell in front of the published stack, where that is the card's network.
    pub(crate) fn build(self) -> Option<Build> {
        match self {
            Self::Vqe | Self::Named(_) => None,
            Self::Stock => Some(Build::Mended),
            Self::StockOld => Some(Build::Old),
        }
    }

    /// Whether it is as published.
    #[must_use]
    pub fn is_published(self) -> bool {
        self.build().is_some()
    }

    /// The number of its vFPGAs, unless fewer are asked for.
    #[must_use]
    pub fn vfpgas(self) -> u8 {
        match self {
            Self::Vqe | Self::Stock | Self::StockOld => WINDOWS,
            // At most so many.
            Self::Named(stands) => stands.iter().fold(0, |count, _| count.saturating_add(1)),
        }
    }

    /// The logic in the vFPGA of that number.
    #[must_use]
    pub fn logic(self, vfpga: u8) -> Option<Logic> {
        match self {
            Self::Vqe => Some(Logic::Vqe),
            Self::Stock | Self::StockOld => Some(Logic::Stock),
            Self::Named(Stands(all)) => all.get(usize::from(vfpga)).copied().flatten(),
        }
    }

    /// The shell's description of its control registers.
    pub(crate) fn ctrl_cnfg(self) -> CtrlCnfg {
        match self {
            Self::Vqe | Self::Named(_) => CTRL_CNFG_DEFAULT,
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

/// The image and vFPGAs of a file: the image, and in how many vFPGAs; `None` where a software card has no room for it
/// or not the logic, or it is of one vFPGA alone.
#[must_use]
pub fn fits(file: &SoftImage) -> Option<(Image, u8)> {
    if file.alone().is_some() {
        return None;
    }
    let logic = file.logic();
    let count = u8::try_from(logic.len()).ok().filter(|count| *count <= WINDOWS)?;
    let all = |wanted: Logic| logic.iter().all(|logic| *logic == wanted);
    let image = match () {
        () if all(Logic::Vqe) => Image::Vqe,
        () if all(Logic::Stock) => Image::Stock,
        () => Image::Named(Stands::of(logic)?),
    };
    Some((image, count))
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vqe => "vqe",
            Self::Stock => "stock",
            Self::StockOld => "stock-old",
            Self::Named(stands) => {
                let names: Vec<String> = stands.iter().map(|logic| logic.to_string()).collect();
                return f.write_str(&names.join(","));
            }
        })
    }
}

impl FromStr for Image {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "vqe" => return Ok(Self::Vqe),
            "stock" => return Ok(Self::Stock),
            "stock-old" => return Ok(Self::StockOld),
            _ => {}
        }
        let logic: Result<Vec<Logic>, _> = text.split(',').map(str::parse).collect();
        if let Some(stands) = logic.ok().and_then(|logic| Stands::of(&logic)) {
            return Ok(Self::Named(stands));
        }
        let names = names().into_iter().filter(|name| name != "stock");
        let names: Vec<String> = names.collect();
        Err(format!(
            "there is no image `{}`; write vqe (a verbs queue engine), stock or stock-old (as published), or what stands in each of up to {WINDOWS} vFPGAs, as {}",
            text.escape_default(),
            names.join(",")
        ))
    }
}
