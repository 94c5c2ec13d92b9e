//! The part of `cargo xtask guest bench` that runs in the virtual machine: the rows of the benchmark
//! that a device of the kernel's has too.

use std::fs;

use anyhow::{Context as _, Result};
use clap::Args;
use command_line::report;
use ibverbs_tests::guest::{self, Hardware};
use ibverbs_tests::setting::{Stage, Who};
use serde_json::json;

use super::figures::{Column, Figures};
use super::stock::{Bandwidth, Devices};
use super::{BULK, MANY, SIZES, bandwidths_of, latencies_of};

/// The line with all figures begins with this.
pub const FIGURES: &str = "figures: ";
/// Bytes of a bandwidth run, as long as that makes neither too few messages nor too many.
const BYTES: u64 = 16 << 20;
const FEWEST: u64 = 24;
const MOST: u64 = 20_000;
/// Iterations of each latency run.
const EXCHANGES: u32 = 500;

/// How much is measured.
#[derive(Debug, Args)]
pub struct Options {
    /// Rounds
    #[arg(long)]
    pub rounds: u32,
}

/// Measures, and prints the figures in a line.
///
/// # Errors
/// When the machine lacks something, or a measurement fails.
pub fn measure(options: &Options) -> Result<()> {
    let here = std::env::current_exe()?;
    let stage = Stage::new(here.parent().context("this program lies in no directory")?)?;
    let setting = stage.setting(Who::Ourselves)?;
    let soft = setting.balboad("--soft 2")?;
    let state = setting.directory().join("vfio");
    let vfio = guest::cards::cards_in(&setting, &state, Hardware::IntelIommu)?;
    let all = [
        (Column::Balboa, Devices::Cards(&soft)),
        (Column::BalboaVfio, Devices::Cards(&vfio)),
        (Column::Rxe, Devices::Kernels(guest::soft_roce()?)),
    ];
    let mut figures = Figures::default();
    for round in 1..=options.rounds {
        report!("round {round} of {}", options.rounds);
        for size in SIZES {
            for (column, devices) in all {
                bandwidths_of(
                    |kind| bandwidth(kind, size)?.run(devices),
                    column,
                    size,
                    &mut figures,
                )
                .with_context(|| format!("{}, messages of {size}", column.name()))?;
            }
        }
        for (column, devices) in all {
            let deep = bandwidth("write", BULK)?.messages(1000).depth(MANY).run(devices)?;
            figures.add("write_bw_65536_depth500", column, deep.megabytes);
            latencies_of(devices, column, EXCHANGES, &mut figures)
                .with_context(|| format!("{}, latency", column.name()))?;
        }
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    report!("{FIGURES}{}", json!({ "kernel": kernel.trim(), "figures": figures.json() }));
    vfio.stop()?;
    soft.stop()
}

/// A run of as many messages as an emulated processor moves in a second or two: some 10 MB/s. A run of
/// so many seconds may be over before the other side has got to run.
fn bandwidth(kind: &'static str, size: u64) -> Result<Bandwidth> {
    let messages = (BYTES / size).clamp(FEWEST, MOST);
    Ok(Bandwidth::of(kind, size, 0).messages(u32::try_from(messages)?))
}
