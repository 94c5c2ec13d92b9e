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
    /// The modules; without one all of gateware/rtl, which takes yosys some ten minutes
    modules: Vec<String>,
    /// Write the figures as JSON into this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs yosys, and prints the counts of its cells, and the levels of logic, as JSON.
const YOSYS: &str = include_str!("yosys.py");

/// The whole engine, which is wanted no larger than [`Kind::wanted`].
const ENGINE: &str = "balboa_engine";

/// What is counted: cells of the family xcup.
struct Kind {
    name: &'static str,
    cells: &'static [&'static str],
    /// Cells of which two are one of the others.
    halves: &'static [&'static str],
    wanted: Option<u64>,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "LUT",
        cells: &["LUT1", "LUT2", "LUT3", "LUT4", "LUT5", "LUT6"],
        halves: &[],
        wanted: Some(60_000),
    },
    Kind {
        name: "LUTRAM",
        cells: &["RAM32M16", "RAM32M", "RAM64M8", "RAM64M", "RAM128X1D", "RAM256X1D"],
        halves: &[],
        wanted: None,
    },
    Kind {
        name: "FF",
        cells: &["FDRE", "FDSE", "FDCE", "FDPE"],
        halves: &[],
        wanted: Some(80_000),
    },
    Kind { name: "BRAM36", cells: &["RAMB36E2"], halves: &["RAMB18E2"], wanted: Some(80) },
    Kind { name: "URAM", cells: &["URAM288"], halves: &[], wanted: Some(60) },
    // The most LUTs and carries between two registers or ports, without any routing: the program counts them.
    Kind { name: "levels", cells: &["levels"], halves: &[], wanted: Some(9) },
];

impl Kind {
    /// How many of it there are in counts of cells.
    fn count(&self, counts: &Value) -> u64 {
        let sum =
            |names: &[&str]| names.iter().filter_map(|name| counts[name].as_u64()).sum::<u64>();
        sum(self.cells) + sum(self.halves).div_ceil(2)
    }
}

/// Synthesizes modules one by one.
///
/// # Errors
/// When yosys cannot be had, or refuses one.
pub fn synth(options: &Options) -> Result<ExitCode> {
    let tools = Tools::synthesizer()?;
    let sources = sources()?;
    let all = match options.modules.is_empty() {
        true => modules(&sources)?,
        false => options.modules.clone(),
    };
    let mut rows = Vec::new();
    for module in &all {
        let task = tools.python().arg("-c").arg(YOSYS).arg(module).args(&sources);
        let said = task.run()?.success().with_context(|| format!("yosys, of {module}"))?;
        let last = said.stdout.lines().last().unwrap_or_default();
        let counts: Value = serde_json::from_str(last).context("yosys has no counts")?;
        let mut line = format!("{module:<20}");
        for kind in &KINDS {
            let (name, count) = (kind.name, kind.count(&counts));
            let wanted = kind.wanted.filter(|_| module == ENGINE);
            line.push_str(&format!("{count:>8} {name}"));
            rows.push(json!({
                "metric": format!("{module}, {name}"), "value": count, "unit": name,
                "wanted": wanted, "met": wanted.map(|wanted| count <= wanted),
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
