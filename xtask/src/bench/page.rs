//! docs/performance.md: its measured part is written by the benchmark, the rest by people.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use terminal::report;

use super::figures::{Column, Figures};
use super::goals::Judged;
use super::machine::Machine;
use super::sweep::{Curve, Curves};
use super::{plot, table};
use crate::cargo::root;

const PAGE: &str = "docs/performance.md";
const PLOT: &str = "docs/performance.svg";
/// The lines around the measured part.
const BEGIN: &str = "<!-- measured by cargo xtask bench: begin -->";
const END: &str = "<!-- measured by cargo xtask bench: end -->";

/// Writes the plot, and the figures into the page.
///
/// # Errors
/// When a file cannot be written, or the page has lost its marks.
pub fn update(
    machine: &Machine,
    figures: &Figures,
    judged: &[Judged],
    curves: &Curves,
) -> Result<()> {
    let (page, plot) = (root().join(PAGE), root().join(PLOT));
    let old = fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
    let new = replaced(&old, &measured(machine, figures, judged, curves))?;
    fs::write(&page, new).with_context(|| format!("cannot write {PAGE}"))?;
    fs::write(&plot, plot::svg(curves)).with_context(|| format!("cannot write {PLOT}"))?;
    report!("wrote {PAGE} and {PLOT}");
    Ok(())
}

/// The page with its measured part replaced.
fn replaced(page: &str, measured: &str) -> Result<String> {
    let without_marks = || format!("{PAGE} lacks the line {BEGIN} or, after it, {END}");
    let (before, rest) = page.split_once(BEGIN).with_context(without_marks)?;
    let (_, after) = rest.split_once(END).with_context(without_marks)?;
    Ok(format!("{before}{BEGIN}\n{measured}{END}{after}"))
}

fn measured(machine: &Machine, figures: &Figures, judged: &[Judged], curves: &Curves) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\nA {machine}.\n\n```text");
    text.push_str(&table::text(Column::BENCH, figures, judged));
    text.push_str("```\n\nFloor and wanted in words:\n\n");
    for goal in judged {
        let _ = writeln!(text, "- `{}`: {}", goal.metric, goal.goals);
    }
    text.push_str("\n![Bandwidth and latency by message size](performance.svg)\n");
    by_size(&mut text, "MB/s by message size in bytes", &curves.bandwidth);
    by_size(&mut text, "Latency in \u{b5}s by message size in bytes", &curves.latency);
    text
}

fn by_size(text: &mut String, title: &str, curves: &[Curve]) {
    let Some(first) = curves.first() else { return };
    let _ = write!(text, "\n| {title} |");
    for curve in curves {
        let _ = write!(text, " {} |", curve.name);
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(curves.len()));
    for (row, (size, _)) in first.points.iter().enumerate() {
        let _ = write!(text, "| {size} |");
        for curve in curves {
            let value = curve.points.get(row).map(|point| point.1);
            let _ = write!(text, " {} |", table::shown(value));
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_measured_part_is_replaced() {
        let page = format!("# Title\n{BEGIN}\nold\n{END}\ntext\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("# Title\n{BEGIN}\nnew\n{END}\ntext\n"));
        assert_eq!(replaced(&new, "new\n").unwrap(), new);
        assert!(replaced("# Title\n", "new\n").is_err());
    }

    #[test]
    fn the_project_has_the_page_with_its_marks() {
        let page = fs::read_to_string(root().join(PAGE)).unwrap();
        assert!(replaced(&page, "").is_ok());
    }
}
