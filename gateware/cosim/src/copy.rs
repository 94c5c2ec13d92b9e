//! The trivial master in RTL (`gateware/rtl/balboa_copy.sv`), which copies host memory.

use crate::bus::{Config, Counts, Violation};
use crate::card::Vfpga;
use crate::ffi::{Library, LoadError};
use crate::limit::Limit;
use crate::memory::Memory;

const SOURCE: u16 = 0x00;
const DESTINATION: u16 = 0x08;
const LENGTH: u16 = 0x10;
const COUNT: u16 = 0x18;
const DONE: u16 = 0x20;
const CYCLES: u16 = 0x28;

/// Cycles after which a copy that has not ended is a failure, for each of its requests and beside them.
const PATIENCE: (u64, u64) = (20_000, 100_000);

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The first byte to read.
    pub source: u64,
    /// The first byte to write.
    pub destination: u64,
    /// Bytes of each request.
    pub length: u32,
    /// Requests.
    pub count: u32,
}

/// What a copy took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Requests and bytes, in the cycles that the logic itself counted.
    pub limit: Limit,
    /// What passed on the bus.
    pub counts: Counts,
    /// Cycles of the whole run, with those of registers.
    pub cycles: u64,
}

/// Why a copy failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// There is no logic.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The logic broke a rule.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// Something did not happen in time.
    #[error("{what} did not come within {cycles} cycles")]
    Late {
        /// What.
        what: &'static str,
        /// The cycles.
        cycles: u64,
    },
    /// The logic tells something else than passed.
    #[error("the logic says {said} of {what}, where it is {wanted}")]
    Wrong {
        /// Of what.
        what: &'static str,
        /// What it says.
        said: u64,
        /// What passed.
        wanted: u64,
    },
}

/// Runs a copy to its end.
///
/// # Errors
/// [`CopyError`].
pub fn run(
    library: &Library,
    config: Config,
    copy: &Copy,
    memory: &mut impl Memory,
) -> Result<Copied, CopyError> {
    let mut vfpga = Vfpga::new(library, config)?;
    vfpga.write(SOURCE, copy.source);
    vfpga.write(DESTINATION, copy.destination);
    vfpga.write(LENGTH, copy.length.into());
    vfpga.write(COUNT, copy.count.into());
    let (each, beside) = PATIENCE;
    let patience = each * u64::from(copy.count) + beside;
    let told =
        until(&mut vfpga, memory, patience, "the interrupt", |it| it.bus().take_interrupt())?;
    let done = register(&mut vfpga, memory, DONE)?;
    for said in [u64::from(told), done] {
        let wanted = copy.count.into();
        if said != wanted {
            return Err(CopyError::Wrong { what: "requests", said, wanted });
        }
    }
    let cycles = register(&mut vfpga, memory, CYCLES)?;
    let bytes = u64::from(copy.length) * u64::from(copy.count);
    let limit = Limit { requests: copy.count.into(), bytes, cycles };
    Ok(Copied { limit, counts: vfpga.bus().counts(), cycles: vfpga.now() })
}

fn register(vfpga: &mut Vfpga, memory: &mut impl Memory, address: u16) -> Result<u64, CopyError> {
    vfpga.ask(address);
    until(vfpga, memory, 1000, "a register's value", Vfpga::take_answer)
}

fn until<T>(
    vfpga: &mut Vfpga,
    memory: &mut impl Memory,
    cycles: u64,
    what: &'static str,
    mut is: impl FnMut(&mut Vfpga) -> Option<T>,
) -> Result<T, CopyError> {
    for _ in 0..cycles {
        vfpga.cycle(memory)?;
        if let Some(it) = is(vfpga) {
            return Ok(it);
        }
    }
    Err(CopyError::Late { what, cycles })
}
