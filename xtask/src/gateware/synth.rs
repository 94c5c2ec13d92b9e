//! Synthesis by yosys: how much of the card each module takes.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};
use terminal::report;

use super::tools::Tools;
use super::{modules, sources};

/// `cargo xtask gateware synth`.
#[derive(Debug, Args)]
pub struct Options {
    /// The modules; without one those of gateware/rtl that are to become a card as they are
    modules: Vec<String>,
    /// Write the figures as JSON into this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs yosys, and prints the counts of its cells as JSON.
const YOSYS: &str = include_str!("yosys.py");

/// A skeleton, its queues, with which yosys is busy for minutes, and its parts whose tables are read in the cycle in which
/// they are asked, as no large memory of a card is: they are synthesized by their names alone.
const SKELETON: [&str; 4] =
    ["balboa_engine", "balboa_queues", "balboa_sender", "balboa_completions"];

/// What is counted, and the cells of the family xcup that it is.
const KINDS: [(&str, &[&str]); 5] = [
    ("LUT", &["LUT1", "LUT2", "LUT3", "LUT4", "LUT5", "LUT6"]),
    ("LUTRAM", &["RAM32M16", "RAM32M", "RAM64M8", "RAM64M", "RAM128X1D", "RAM256X1D"]),
    ("FF", &["FDRE", "FDSE", "FDCE", "FDPE"]),
    ("BRAM36", &["RAMB36E2"]),
    ("URAM", &["URAM288"]),
];

/// Synthesizes modules one by one.
///
/// # Errors
/// When yosys cannot be had, or refuses one.
pub fn synth(options: &Options) -> Result<ExitCode> {
    let tools = Tools::synthesizer()?;
    let sources = sources()?;
    let all = match options.modules.is_empty() {
        true => {
            modules(&sources)?.into_iter().filter(|it| !SKELETON.contains(&it.as_str())).collect()
        }
        false => options.modules.clone(),
    };
    let mut rows = Vec::new();
    for module in &all {
        let task = tools.python().arg("-c").arg(YOSYS).arg(module).args(&sources);
        let said = task.run()?.success().with_context(|| format!("yosys, of {module}"))?;
        let last = said.stdout.lines().last().unwrap_or_default();
        let cells: Value = serde_json::from_str(last).context("yosys has no counts")?;
        let mut line = format!("{module:<20}");
        for (kind, names) in KINDS {
            let count: u64 = names.iter().filter_map(|name| cells[name].as_u64()).sum();
            line.push_str(&format!("{count:>8} {kind}"));
            rows.push(json!({
                "metric": format!("{module}, {kind}"), "value": count, "unit": kind, "wanted": null, "met": null,
            }));
        }
        report!("{line}");
    }
    if let Some(file) = &options.json {
        fs::write(file, format!("{:#}\n", json!({ "rows": rows })))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
