//! The tables that perftest prints.

use anyhow::{Context as _, Result, ensure};

use crate::process::Finished;

/// The column of the latency programs' standard deviation. Where one sample is far from the others,
/// perftest takes the root of a sum that its rounding made negative.
const DEVIATION: usize = 6;

/// Perftest's complaint when other programs kept it from finding out how fast the processor's clock ticks. Then it
/// prints infinite times if it was called with `-F`, as all cases do, and else fails.
const CLOCK_UNKNOWN: &str = "Correlation coefficient r^2";

/// The rows of numbers that perftest prints, each starting with size and iterations.
///
/// # Errors
/// When a row has a field that is no number, or a size that moved nothing. Times are infinite where
/// perftest says that it could not measure them.
pub fn table(finished: &Finished) -> Result<Vec<Vec<f64>>> {
    let mut rows = Vec::new();
    let mut inside = false;
    let clock_unknown = finished.stderr.contains(CLOCK_UNKNOWN);
    for line in finished.stdout.lines() {
        if line.trim_start().starts_with("#bytes") {
            inside = true;
        } else if line.starts_with("-----") {
            inside = false;
        } else if inside && line.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            let row: Vec<f64> = line
                .split_whitespace()
                .map(str::parse)
                .collect::<Result<_, _>>()
                .with_context(|| format!("no number in {line:?}: {finished}"))?;
            let is_right = |(column, value): (usize, &f64)| {
                value.is_finite()
                    || column == DEVIATION && value.is_nan()
                    || clock_unknown && value.is_infinite()
            };
            ensure!(row.iter().enumerate().all(is_right), "{line:?} in {finished}");
            ensure!(
                row.get(1).is_some_and(|iterations| *iterations > 0.0),
                "nothing moved: {finished}"
            );
            rows.push(row);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn rows(stdout: &str) -> Result<Vec<Vec<f64>>> {
        rows_with(stdout, "")
    }

    fn rows_with(stdout: &str, stderr: &str) -> Result<Vec<Vec<f64>>> {
        let status = ExitStatus::from_raw(0);
        table(&Finished {
            command: "ib_write_bw".into(),
            status,
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    #[test]
    fn only_the_table_is_read() {
        let text = " TX depth : 128\n---------\n #bytes     #iterations    BW peak[MB/sec]\n \
            65536      5000             1862.34            1815.27\t\t   0.029044\n---------\n 7 7\n";
        assert_eq!(rows(text).unwrap(), [[65536.0, 5000.0, 1862.34, 1815.27, 0.029_044]]);
    }

    #[test]
    fn a_row_that_moved_nothing_is_an_error() {
        assert!(rows(" #bytes #iterations\n 2 0 0.0\n").is_err());
        assert!(rows(" #bytes #iterations\n 2 10 nan\n").is_err());
    }

    #[test]
    fn a_deviation_that_is_no_number_is_perftests_own_affair() {
        let row = " #bytes\n 2 100 8.69 114576.17 9.03 2630.11 -nan 114576.17 114576.17\n";
        assert_eq!(rows(row).unwrap()[0][4], 9.03);
    }

    #[test]
    fn times_are_infinite_only_where_perftest_knows_no_clock() {
        let row = " #bytes\n 2 500 inf inf inf inf -nan inf inf\n";
        let complaint = "Correlation coefficient r^2: 0.825109 < 0.9\n";
        assert!(rows(row).is_err());
        assert_eq!(rows_with(row, complaint).unwrap()[0][1], 500.0);
    }
}
