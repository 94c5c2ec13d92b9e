//! Two runs of the benchmark, compared row by row.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::figures::{Column, Figures, METRICS, Metric, NAMES};
use super::table::shown;

/// An earlier run, as `--json` wrote it.
#[derive(Debug)]
pub struct Baseline {
    commit: String,
    rows: HashMap<String, Row>,
}

/// A row's figures in one run.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    balboa: Option<f64>,
    tcp: Option<f64>,
    spread: Option<f64>,
}

/// The meaning of the difference of two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// No more than rounds of one run differ.
    Within,
    Better,
    Worse,
    /// Neither run has several rounds.
    NoSpread,
    /// Only one of the two runs has the row.
    OnlyBefore,
    OnlyNow,
}

impl Said {
    fn words(self) -> &'static str {
        match self {
            Self::Within => "within the spread",
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::NoSpread => "one round each: no spread",
            Self::OnlyBefore => "not measured now",
            Self::OnlyNow => "not in the baseline",
        }
    }
}

impl Baseline {
    /// Reads the file of an earlier run.
    ///
    /// # Errors
    /// When there is none, or it is of something else.
    pub fn read(file: &Path) -> Result<Self> {
        let shown = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
        let json = serde_json::from_str(&text).with_context(|| format!("{shown} is no JSON"))?;
        Self::of(&json).with_context(|| {
            format!("{shown} is no run of the benchmark; cargo xtask bench --json FILE writes one")
        })
    }

    fn of(json: &Value) -> Result<Self> {
        let mut rows = HashMap::new();
        for row in json["rows"].as_array().context("it has no rows")? {
            let metric = row["metric"].as_str().context("a row has no metric")?;
            let number = |name: &str| row[name].as_f64();
            let row = Row {
                balboa: number(Column::Balboa.name()),
                tcp: number(Column::Tcp.name()),
                spread: number("spread"),
            };
            rows.insert(metric.to_owned(), row);
        }
        let commit = json["machine"]["commit"].as_str().unwrap_or("an unknown commit").to_owned();
        Ok(Self { commit, rows })
    }

    /// The comparison with a run: a line for each row that either has.
    pub fn compared(&self, figures: &Figures) -> String {
        let mut text = format!(
            "Compared with the run of {}. Beyond the spread is what differs by more than the rounds of\n\
             either run do; where TCP moved as well, the machine did.\n\n",
            self.commit
        );
        let _ = writeln!(
            text,
            "{:<NAMES$}{:<6}{:>10}{:>10}{:>9}{:>8}{:>9}  verdict",
            "metric", "unit", "before", "now", "change", "spread", "tcp"
        );
        let (mut better, mut worse) = (0, 0);
        for metric in METRICS {
            let before = self.rows.get(metric.name).copied().unwrap_or_default();
            let now = Row {
                balboa: figures.median(metric.name, Column::Balboa),
                tcp: figures.median(metric.name, Column::Tcp),
                spread: figures.spread(metric.name),
            };
            let Some(said) = compare(metric, before, now) else { continue };
            better += u32::from(said == Said::Better);
            worse += u32::from(said == Said::Worse);
            let spread = larger_spread(metric, before, now).zip(before.balboa);
            let spread = spread.map_or("-".to_owned(), |(units, of)| per_cent(units / of, false));
            let _ = writeln!(
                text,
                "{:<NAMES$}{:<6}{:>10}{:>10}{:>9}{:>8}{:>9}  {}",
                metric.name,
                metric.unit,
                shown(before.balboa),
                shown(now.balboa),
                change(before.balboa, now.balboa),
                spread,
                change(before.tcp, now.tcp),
                said.words()
            );
        }
        let _ = writeln!(text, "\nBeyond the spread: {better} better, {worse} worse.");
        text
    }
}

/// The meaning of a row's difference; `None` where neither run has the row.
fn compare(metric: &Metric, before: Row, now: Row) -> Option<Said> {
    let (old, new) = match (before.balboa, now.balboa) {
        (None, None) => return None,
        (Some(_), None) => return Some(Said::OnlyBefore),
        (None, Some(_)) => return Some(Said::OnlyNow),
        (Some(old), Some(new)) => (old, new),
    };
    let Some(spread) = larger_spread(metric, before, now) else { return Some(Said::NoSpread) };
    if (new - old).abs() <= spread {
        return Some(Said::Within);
    }
    Some(if (new > old) == metric.higher { Said::Better } else { Said::Worse })
}

/// How far apart the rounds of either run lie, the larger, in the row's unit. Counted instructions repeat, so that one
/// round tells as much as several.
fn larger_spread(metric: &Metric, before: Row, now: Row) -> Option<f64> {
    let of = |row: Row| Some(row.spread? * row.balboa?);
    let known = [of(before), of(now)].into_iter().flatten().reduce(f64::max);
    known.or(if metric.is_counted() { Some(0.0) } else { None })
}

fn change(before: Option<f64>, now: Option<f64>) -> String {
    match before.zip(now) {
        Some((before, now)) => per_cent((now - before) / before, true),
        None => "-".to_owned(),
    }
}

fn per_cent(part: f64, signed: bool) -> String {
    match part.is_finite() {
        true if signed => format!("{:+.1}%", 100.0 * part),
        true => format!("{:.0}%", 100.0 * part),
        false => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The verdict on a row, for its line, behind the unit.
    fn line(before: &Value, figures: &Figures, metric: &str) -> String {
        let baseline = Baseline::of(&json!({ "rows": [before] })).unwrap();
        let text = baseline.compared(figures);
        let line = text.lines().find(|line| line.starts_with(&format!("{metric} ")));
        line.unwrap_or_default().split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
    }

    fn now(metric: &str, samples: &[f64]) -> Figures {
        let mut figures = Figures::default();
        samples.iter().for_each(|value| figures.add(metric, Column::Balboa, *value));
        figures
    }

    #[test]
    fn a_difference_counts_beyond_what_the_rounds_of_either_run_differ_by() {
        let before = |spread| json!({ "metric": "write_bw_64", "balboa": 100.0, "spread": spread });
        let narrow = now("write_bw_64", &[110.0, 111.0, 112.0]);
        assert_eq!(
            line(&before(0.12), &narrow, "write_bw_64"),
            "100 111 +11.0% 12% - within the spread"
        );
        assert_eq!(line(&before(0.1), &narrow, "write_bw_64"), "100 111 +11.0% 10% - better");
        let fewer = now("write_bw_64", &[88.0, 89.0, 90.0]);
        assert_eq!(line(&before(0.1), &fewer, "write_bw_64"), "100 89.0 -11.0% 10% - WORSE");
        let wide = now("write_bw_64", &[80.0, 89.0, 92.0]);
        assert_eq!(
            line(&before(0.1), &wide, "write_bw_64"),
            "100 89.0 -11.0% 12% - within the spread"
        );
    }

    #[test]
    fn more_time_is_worse_and_more_bytes_are_better() {
        let before = json!({ "metric": "write_lat_2_p50", "balboa": 5.0, "spread": 0.1 });
        let slower = now("write_lat_2_p50", &[10.0, 10.0]);
        assert_eq!(line(&before, &slower, "write_lat_2_p50"), "5.00 10.0 +100.0% 10% - WORSE");
    }

    #[test]
    fn instructions_are_compared_by_one_round_and_other_rows_are_not() {
        let before = json!({ "metric": "post_send_instr", "balboa": 117.0, "spread": null });
        let counted = line(&before, &now("post_send_instr", &[118.0]), "post_send_instr");
        assert_eq!(counted, "117 118 +0.9% 0% - WORSE");
        let before = json!({ "metric": "reg_mr_1g_ms", "balboa": 60.0, "spread": null });
        let timed = line(&before, &now("reg_mr_1g_ms", &[90.0]), "reg_mr_1g_ms");
        assert_eq!(timed, "60.0 90.0 +50.0% - - one round each: no spread");
        let several = line(&before, &now("reg_mr_1g_ms", &[90.0, 91.0, 92.0]), "reg_mr_1g_ms");
        assert_eq!(several, "60.0 91.0 +51.7% 3% - WORSE");
    }

    #[test]
    fn tcp_beside_a_row_tells_whether_the_machine_moved() {
        let before =
            json!({ "metric": "write_bw_64", "balboa": 100.0, "tcp": 50.0, "spread": 0.0 });
        let mut figures = now("write_bw_64", &[50.0, 50.0]);
        figures.add("write_bw_64", Column::Tcp, 25.0);
        assert_eq!(line(&before, &figures, "write_bw_64"), "100 50.0 -50.0% 0% -50.0% WORSE");
    }

    #[test]
    fn rows_of_one_run_alone_are_named() {
        let before = json!({ "metric": "write_bw_64", "balboa": 100.0, "spread": 0.0 });
        let figures = now("read_bw_64", &[7.0]);
        assert_eq!(line(&before, &figures, "write_bw_64"), "100 - - 0% - not measured now");
        assert_eq!(line(&before, &figures, "read_bw_64"), "- 7.00 - - - not in the baseline");
        assert_eq!(line(&before, &figures, "read_bw_4096"), "", "neither has it");
    }

    #[test]
    fn what_is_no_run_is_refused() {
        assert!(Baseline::of(&json!({ "rows": 7 })).is_err());
        assert!(Baseline::of(&json!({ "rows": [{ "balboa": 7 }] })).is_err());
        assert!(Baseline::read(Path::new("/nowhere")).is_err());
    }
}
