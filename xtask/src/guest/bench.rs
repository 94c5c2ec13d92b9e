//! `cargo xtask guest bench`: cards beside the kernel's soft-RoCE, in one virtual machine.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use harness::setting::SHARES;
use harness::vm::Hardware;
use serde_json::{Value, json};
use terminal::report;

use super::Version;
use super::vm::{self, Machine, Parts};
use crate::bench::figures::{Column, Figures, METRICS, NAMES};
use crate::bench::inside::FIGURES;
use crate::bench::{goals, machine, table};
use crate::cargo::{self, Profile};
use crate::setup;

/// How long the machine may take.
const LIMIT: Duration = Duration::from_secs(40 * 60);
/// Rounds of which the median counts.
const ROUNDS: u32 = 3;

/// `cargo xtask guest bench`.
#[derive(Debug, Args)]
pub struct Options {
    /// Boot this kernel
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Version,
    /// Write the figures to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure one round only
    #[arg(long)]
    quick: bool,
    /// Measure only cards on the machine's own network, beside soft-RoCE and TCP
    #[arg(long)]
    udp: bool,
}

/// Boots a machine, measures in it, prints one table, and writes the files that the options name.
///
/// # Errors
/// When the machine cannot be had, or a measurement fails.
pub fn bench(options: &Options) -> Result<ExitCode> {
    setup::packages(&setup::tests())?;
    let built = cargo::build_of(Profile::Release, cargo::WITH_XTASK)?;
    let parts = super::parts(options.kernel, &built)?;
    let parts = Parts { until: Instant::now() + LIMIT, ..parts };
    let host = machine::Machine::look()?;
    let rounds = if options.quick { 1 } else { ROUNDS };
    let said = measured(&parts, rounds, options.udp)?;
    let figures = Figures::read(&said["figures"])?;
    let kernel = said["kernel"].as_str().context("the machine does not tell its kernel")?;
    let judged = goals::judge_beside_rxe(&figures);
    report!(
        "\nIn a machine of QEMU's that is emulated (TCG), 2 processors, Linux {kernel}, on a {host}."
    );
    table::print(Column::GUEST, &figures, &judged, rounds);
    report!("\n{}", ratios(&figures).trim_end());
    if let Some(file) = &options.json {
        let mut machine = host.json();
        machine["guest"] = json!({ "kernel": kernel, "cores": 2, "accelerator": "tcg" });
        table::write_json(file, &machine, Column::GUEST, &figures, &judged)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The figures of cards on the machine's own network as multiples of those beside them, a line for each row.
fn ratios(figures: &Figures) -> String {
    let mut text = String::new();
    for metric in METRICS.iter().filter(|metric| metric.name.starts_with("udp_")) {
        let Some(own) = figures.median(metric.name, Column::Balboa) else { continue };
        let _ = write!(text, "{:<NAMES$}", metric.name);
        for column in [Column::Rxe, Column::Tcp] {
            if let Some(theirs) = figures.median(metric.name, column) {
                let _ = write!(text, "{:>12}", format!("{:.2} x {}", own / theirs, column.name()));
            }
        }
        text.push('\n');
    }
    text
}

/// The figures that the machine reported.
fn measured(parts: &Parts, rounds: u32, udp: bool) -> Result<Value> {
    let home = tempfile::Builder::new().prefix("balboa-guest-").tempdir()?;
    let _tidy = harness::interrupt::remove_on_signal(home.path());
    let udp = if udp { " --udp" } else { "" };
    let job = vm::job(&format!("{SHARES}/built/xtask guest inside --rounds {rounds}{udp}"));
    let machine = Machine::new(parts, Hardware::IntelIommu, home.path())?;
    let mut cards = machine.cards().serve()?;
    let mut said = None;
    machine.run(&job, &mut cards, |line| match line.strip_prefix(FIGURES) {
        Some(figures) => said = Some(figures.to_owned()),
        None => report!("  {line}"),
    })?;
    let said = said.context("nothing was measured")?;
    serde_json::from_str(&said).with_context(|| format!("no figures: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_machines_own_network_are_told_as_multiples() {
        let mut figures = Figures::default();
        for (column, value) in [(Column::Balboa, 30.0), (Column::Rxe, 20.0), (Column::Tcp, 60.0)] {
            figures.add("udp_write_bw_65536", column, value);
            figures.add("write_bw_65536", column, value);
        }
        figures.add("udp_write_rate_64", Column::Balboa, 1.0);
        figures.add("udp_write_rate_64", Column::Rxe, 4.0);
        let text = ratios(&figures);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["udp_write_bw_65536", "1.50", "x", "rxe", "0.50", "x", "tcp"]);
        assert_eq!(lines[1], ["udp_write_rate_64", "0.25", "x", "rxe"]);
        assert_eq!(lines.len(), 2);
    }
}
