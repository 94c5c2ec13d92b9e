//! Bandwidth and latency by message size, for the plot.

use anyhow::Result;
use harness::setting::Daemon;

use super::figures::Column;
use super::peers;
use super::perftest::{self, Devices};

/// A curve: its name, and (message size in bytes, value).
#[derive(Clone, Debug)]
pub struct Curve {
    /// For the legend.
    pub name: &'static str,
    /// Points, sizes rising.
    pub points: Vec<(u64, f64)>,
}

/// All curves.
#[derive(Clone, Debug)]
pub struct Curves {
    /// 10^6 bytes per second.
    pub bandwidth: Vec<Curve>,
    /// µs, one way.
    pub latency: Vec<Curve>,
}

/// Message sizes, up to the most that iperf3 writes at a time.
const BANDWIDTH_SIZES: [u64; 8] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];
const LATENCY_SIZES: [u64; 8] = [2, 64, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];
/// Bytes that a latency run exchanges at most, and exchanges it makes at most.
const LATENCY_BYTES: u64 = 1 << 30;
const LATENCY_EXCHANGES: u64 = 5000;

/// Measures all of it once.
///
/// # Errors
/// When a measurement fails.
pub fn measure(daemon: &Daemon<'_>) -> Result<Curves> {
    Ok(Curves { bandwidth: bandwidth(daemon)?, latency: latency(daemon)? })
}

fn bandwidth(daemon: &Daemon<'_>) -> Result<Vec<Curve>> {
    let mut curves = [
        ("balboa WRITE", None),
        ("balboa READ", None),
        ("balboa SEND", None),
        ("TCP", Some(Column::Tcp)),
        ("UCX over TCP", Some(Column::UcxTcp)),
        ("UCX over shared memory", Some(Column::UcxShm)),
    ]
    .map(|(name, column)| (Curve { name, points: Vec::new() }, column));
    for size in BANDWIDTH_SIZES {
        let mut ours = Vec::new();
        for kind in ["write", "read", "send"] {
            ours.push(
                perftest::Bandwidth::of(kind, size, 1).run(Devices::Cards(daemon))?.megabytes,
            );
        }
        let theirs = peers::bandwidths(size, 1)?;
        let mut ours = ours.into_iter();
        for (curve, column) in &mut curves {
            let value = match column {
                None => ours.next(),
                Some(column) => theirs.iter().find(|(it, _)| it == column).map(|(_, value)| *value),
            };
            curve.points.extend(value.map(|value| (size, value)));
        }
    }
    Ok(curves.map(|(curve, _)| curve).to_vec())
}

fn latency(daemon: &Daemon<'_>) -> Result<Vec<Curve>> {
    let names = ["balboa WRITE", "TCP", "UCX over TCP", "UCX over shared memory"];
    let mut curves = names.map(|name| Curve { name, points: Vec::new() });
    for size in LATENCY_SIZES {
        let exchanges = (LATENCY_BYTES / size).min(LATENCY_EXCHANGES);
        let ours =
            perftest::latency(Devices::Cards(daemon), size, u32::try_from(exchanges)?)?.median;
        let theirs = peers::latencies(size, 1)?.map(|(_, value)| value);
        for (curve, value) in curves.iter_mut().zip(std::iter::once(ours).chain(theirs)) {
            curve.points.push((size, value));
        }
    }
    Ok(curves.to_vec())
}
