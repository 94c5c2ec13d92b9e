//! The figures of a run: by metric and column, and the spread of the rounds.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The column of a figure: the stack that it was measured of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Software cards.
    Balboa,
    /// TCP over the loopback interface.
    Tcp,
    /// UCX over TCP.
    UcxTcp,
    /// UCX over shared memory and cross-memory attach.
    UcxShm,
    /// A loop of nothing but the copies that cards make.
    CopyLimit,
    /// Software cards of the host, behind VFIO in a virtual machine.
    BalboaVfio,
    /// The kernel's soft-RoCE.
    Rxe,
}

impl Column {
    /// Those of `cargo xtask bench`, in the order of the table.
    pub const BENCH: &[Self] =
        &[Self::Balboa, Self::Tcp, Self::UcxTcp, Self::UcxShm, Self::CopyLimit];
    /// Those of `cargo xtask guest bench`.
    pub const GUEST: &[Self] = &[Self::Balboa, Self::BalboaVfio, Self::Rxe, Self::Tcp];

    /// Its name, in the table and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Balboa => "balboa",
            Self::Tcp => "tcp",
            Self::UcxTcp => "ucx_tcp",
            Self::UcxShm => "ucx_shm",
            Self::CopyLimit => "copy_limit",
            Self::BalboaVfio => "balboa_vfio",
            Self::Rxe => "rxe",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether more is better.
    pub higher: bool,
}

impl Metric {
    /// Whether it is counted and not timed, so that each round has the same.
    pub fn is_counted(&self) -> bool {
        self.unit == "instr"
    }
}

const fn metric(name: &'static str, unit: &'static str, higher: bool) -> Metric {
    Metric { name, unit, higher }
}

/// Every row, in the order of the table. MB are 10^6 bytes.
pub const METRICS: &[Metric] = &[
    metric("write_bw_64", "MB/s", true),
    metric("write_bw_4096", "MB/s", true),
    metric("write_bw_65536", "MB/s", true),
    metric("write_bw_1048576", "MB/s", true),
    metric("read_bw_64", "MB/s", true),
    metric("read_bw_4096", "MB/s", true),
    metric("read_bw_65536", "MB/s", true),
    metric("read_bw_1048576", "MB/s", true),
    metric("send_bw_64", "MB/s", true),
    metric("send_bw_4096", "MB/s", true),
    metric("send_bw_65536", "MB/s", true),
    metric("send_bw_1048576", "MB/s", true),
    metric("write_lat_2_p50", "us", false),
    metric("write_lat_2_p99", "us", false),
    metric("write_lat_2_p50_relayed", "us", false),
    metric("send_lat_2_events_p99", "us", false),
    metric("send_lat_2_events_p99_churn", "us", false),
    metric("write_rate_64", "M/s", true),
    metric("send_rate_64", "M/s", true),
    metric("send_rate_64_srq", "M/s", true),
    metric("send_rate_64_ud", "M/s", true),
    metric("send_rate_64_rx4096", "M/s", true),
    metric("send_rate_64_srq_rx4096", "M/s", true),
    metric("spinners_4096_d1", "1/s", true),
    metric("spinners_4096_d32", "1/s", true),
    metric("write_bw_65536_depth500", "MB/s", true),
    metric("write_bw_65536_qp500", "MB/s", true),
    metric("write_bw_65536_loss1", "MB/s", true),
    metric("write_bw_65536_checked", "MB/s", true),
    metric("send_bw_65536_checked", "MB/s", true),
    metric("udp_write_bw_65536", "MB/s", true),
    metric("udp_send_bw_65536", "MB/s", true),
    metric("udp_write_lat_2_p50", "us", false),
    metric("udp_send_lat_2_events_p50", "us", false),
    metric("udp_write_rate_64", "M/s", true),
    metric("udp_write_bw_65536_mtu9000", "MB/s", true),
    metric("udp_send_bw_65536_mtu9000", "MB/s", true),
    metric("udp_write_lat_2_p50_mtu9000", "us", false),
    metric("udp_send_lat_2_events_p50_mtu9000", "us", false),
    metric("udp_write_rate_64_mtu9000", "M/s", true),
    metric("mpi_lat_1", "us", false),
    metric("mpi_lat_4096", "us", false),
    metric("mpi_lat_65536", "us", false),
    metric("mpi_bw_4096", "MB/s", true),
    metric("mpi_bw_65536", "MB/s", true),
    metric("mpi_bw_4194304", "MB/s", true),
    metric("post_send_instr", "instr", false),
    metric("post_send_inline_instr", "instr", false),
    metric("post_send_list8_instr", "instr", false),
    metric("post_recv_instr", "instr", false),
    metric("post_srq_recv_instr", "instr", false),
    metric("poll_cq_instr", "instr", false),
    metric("poll_recv_instr", "instr", false),
    metric("poll_srq_recv_instr", "instr", false),
    metric("wr_post_instr", "instr", false),
    metric("wr_post_list8_instr", "instr", false),
    metric("start_poll_instr", "instr", false),
    metric("reg_mr_1g_ms", "ms", false),
    metric("connects_per_s", "1/s", true),
    metric("connects_per_s_events", "1/s", true),
    metric("connects_per_s_8_programs", "1/s", true),
    metric("cm_connects_per_s", "1/s", true),
    metric("cm_connect_us", "us", false),
    metric("idle_cpu_percent", "%", false),
];

/// The width of a table's column of names: that of the longest, and a space.
pub const NAMES: usize = {
    let (mut widest, mut rest) = (0, METRICS);
    while let [metric, others @ ..] = rest {
        let width = metric.name.len();
        (widest, rest) = (if width > widest { width } else { widest }, others);
    }
    widest + 1
};

/// The figures measured, round by round.
#[derive(Debug, Default)]
pub struct Figures {
    samples: BTreeMap<(String, Column), Vec<f64>>,
}

impl Figures {
    /// Notes one round's figure.
    pub fn add(&mut self, metric: &str, column: Column, value: f64) {
        self.samples.entry((metric.to_owned(), column)).or_default().push(value);
    }

    /// All that was noted, to be read by [`Self::read`].
    pub fn json(&self) -> Value {
        let one = |((metric, column), samples): (&(String, Column), &Vec<f64>)| json!({ "metric": metric, "column": column.name(), "samples": samples });
        self.samples.iter().map(one).collect()
    }

    /// Reads the figures that [`Self::json`] wrote.
    ///
    /// # Errors
    /// When it is something else.
    pub fn read(value: &Value) -> Result<Self> {
        let mut figures = Self::default();
        for one in value.as_array().context("no list of figures")? {
            let metric = one["metric"].as_str().context("a figure without a metric")?;
            let mut columns = Column::BENCH.iter().chain(Column::GUEST).copied();
            let column = columns.find(|column| one["column"] == column.name());
            let column = column.with_context(|| format!("{metric}: no such column"))?;
            for sample in one["samples"].as_array().context("a figure without samples")? {
                let sample = sample.as_f64().with_context(|| format!("{metric}: no number"))?;
                figures.add(metric, column, sample);
            }
        }
        Ok(figures)
    }

    fn samples(&self, metric: &str, column: Column) -> &[f64] {
        let key = (metric.to_owned(), column);
        self.samples.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The median of all rounds; `None` where there is no such figure.
    pub fn median(&self, metric: &str, column: Column) -> Option<f64> {
        median(self.samples(metric, column))
    }

    /// How far apart the rounds of ours lie: (largest − smallest) / median; `None` of fewer than two.
    pub fn spread(&self, metric: &str) -> Option<f64> {
        let samples = self.samples(metric, Column::Balboa);
        if samples.len() < 2 {
            return None;
        }
        let median = median(samples)?;
        let largest = samples.iter().copied().fold(f64::MIN, f64::max);
        let smallest = samples.iter().copied().fold(f64::MAX, f64::min);
        let spread = (largest - smallest) / median;
        Some(if spread.is_finite() { spread } else { 0.0 })
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_mind_one_bad_round() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[5.0, 900.0, 4.0, 6.0, 5.5]), Some(5.5));
    }

    #[test]
    fn the_spread_is_of_our_rounds_alone() {
        let mut figures = Figures::default();
        for value in [9.0, 10.0, 12.0] {
            figures.add("write_bw_64", Column::Balboa, value);
            figures.add("write_bw_64", Column::Tcp, value * value);
        }
        assert_eq!(figures.spread("write_bw_64"), Some(0.3));
        assert_eq!(figures.spread("read_bw_64"), None);
        assert_eq!(figures.median("write_bw_64", Column::Tcp), Some(100.0));
    }

    #[test]
    fn figures_that_were_written_are_read_again() {
        let mut figures = Figures::default();
        for value in [9.5, 10.0, 12.0] {
            figures.add("write_bw_64", Column::Balboa, value);
            figures.add("write_bw_64", Column::Rxe, value * value);
        }
        let read = Figures::read(&figures.json()).unwrap();
        assert_eq!(read.samples, figures.samples);
        assert!(Figures::read(&json!([{ "metric": "x", "column": "y", "samples": [] }])).is_err());
    }

    #[test]
    fn a_figure_that_is_always_zero_has_no_spread() {
        let mut figures = Figures::default();
        figures.add("idle_cpu_percent", Column::Balboa, 0.0);
        assert_eq!(figures.spread("idle_cpu_percent"), None, "of one round");
        figures.add("idle_cpu_percent", Column::Balboa, 0.0);
        assert_eq!(figures.spread("idle_cpu_percent"), Some(0.0));
    }
}
