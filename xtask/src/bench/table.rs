//! The figures as a table to read and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use terminal::report;

use super::figures::{Column, Figures, METRICS, NAMES};
use super::goals::{Judged, Verdict};

/// Prints the table and how many figures miss their goals.
pub fn print(columns: &[Column], figures: &Figures, judged: &[Judged], rounds: u32) {
    report!("Medians of {rounds}, rounds and peers interleaved; 1 MB = 10^6 bytes.\n");
    report!("{}", text(columns, figures, judged).trim_end());
    let count = |verdict| judged.iter().filter(|it| it.verdict == verdict).count();
    report!(
        "\n{} as wanted, {} above their floor, {} below it, {} unknown.",
        count(Verdict::Good),
        count(Verdict::BelowWanted),
        count(Verdict::BelowFloor),
        count(Verdict::Unknown)
    );
}

/// The table: a line for each metric that was measured.
pub fn text(columns: &[Column], figures: &Figures, judged: &[Judged]) -> String {
    let mut text = String::new();
    let _ = write!(text, "{:<NAMES$}{:<6}", "metric", "unit");
    for column in columns {
        let _ = write!(text, "{:>12}", column.name());
    }
    let _ = writeln!(text, "{:>8}{:>10}{:>10}  verdict", "spread", "floor", "wanted");
    for metric in METRICS {
        let medians = columns.iter().map(|column| figures.median(metric.name, *column));
        let medians: Vec<Option<f64>> = medians.collect();
        if medians.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(text, "{:<NAMES$}{:<6}", metric.name, metric.unit);
        for median in medians {
            let _ = write!(text, "{:>12}", shown(median));
        }
        let spread = figures.spread(metric.name);
        let spread = spread.map_or_else(|| "-".to_owned(), |it| format!("{:.0}%", 100.0 * it));
        let goals = judged.iter().find(|it| it.metric == metric.name);
        let _ = match goals {
            None => writeln!(text, "{spread:>8}"),
            Some(Judged { floor, wanted, verdict, .. }) => writeln!(
                text,
                "{spread:>8}{:>10}{:>10}  {}",
                shown(*floor),
                shown(*wanted),
                verdict.word()
            ),
        };
    }
    text
}

/// A figure with three digits or more.
pub fn shown(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// Writes the figures for programs.
///
/// # Errors
/// When the file cannot be written.
pub fn write_json(
    file: &Path,
    machine: &Value,
    columns: &[Column],
    figures: &Figures,
    judged: &[Judged],
) -> Result<()> {
    let all = json(machine, columns, figures, judged);
    let text = format!("{all:#}\n");
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn json(machine: &Value, columns: &[Column], figures: &Figures, judged: &[Judged]) -> Value {
    let row = |metric: &super::figures::Metric| {
        let mut row = json!({
            "metric": metric.name,
            "unit": metric.unit,
            "better": if metric.higher { "higher" } else { "lower" },
            "spread": figures.spread(metric.name),
        });
        for column in columns {
            row[column.name()] = json!(figures.median(metric.name, *column));
        }
        row
    };
    let verdict = |it: &Judged| {
        json!({
            "metric": it.metric,
            "floor": it.floor,
            "wanted": it.wanted,
            "verdict": it.verdict.word(),
        })
    };
    json!({
        "machine": machine,
        "rows": METRICS.iter().map(row).collect::<Vec<_>>(),
        "verdicts": judged.iter().map(verdict).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::goals::judge;
    use super::*;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        let values = [4000.0, 5000.5, 3000.0, 16_000.0, 6000.0];
        for (column, value) in Column::BENCH.iter().zip(values) {
            figures.add("write_bw_65536", *column, value);
        }
        for _ in 0..2 {
            figures.add("post_send_instr", Column::Balboa, 118.0);
        }
        figures
    }

    #[test]
    fn every_metric_has_a_row_and_a_peer_without_a_figure_is_null() {
        let figures = figures();
        let json = json(&json!({}), Column::BENCH, &figures, &judge(&figures));
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), METRICS.len());
        let row = |name: &str| rows.iter().find(|row| row["metric"] == name).unwrap();
        assert_eq!(row("write_bw_65536")["tcp"], 5000.5);
        assert_eq!(row("write_bw_65536")["copy_limit"], 6000.0);
        assert_eq!(row("post_send_instr")["better"], "lower");
        assert!(row("post_send_instr")["tcp"].is_null());
        assert!(row("read_bw_64")["balboa"].is_null());
    }

    #[test]
    fn the_table_shows_figures_goals_and_verdicts() {
        let figures = figures();
        let text = text(Column::BENCH, &figures, &judge(&figures));
        let line = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let bulk = "write_bw_65536 MB/s 4000 5000 3000 16000 6000 - 5000 9600 BELOW FLOOR";
        assert_eq!(line("write_bw_65536 "), bulk);
        assert_eq!(
            line("post_send_instr"),
            "post_send_instr instr 118 - - - - 0% 200 120 as wanted"
        );
        assert!(!text.contains("read_bw_64 "), "it was not measured");
    }

    #[test]
    fn every_name_stands_apart_from_its_unit() {
        let mut figures = Figures::default();
        METRICS.iter().for_each(|metric| figures.add(metric.name, Column::Balboa, 1.0));
        let text = text(Column::BENCH, &figures, &[]);
        for (metric, line) in METRICS.iter().zip(text.lines().skip(1)) {
            let words: Vec<_> = line.split_whitespace().take(3).collect();
            assert_eq!(words, [metric.name, metric.unit, "1.00"]);
        }
    }
}
