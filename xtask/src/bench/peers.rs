//! The same machine without us: TCP, and UCX.

use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::machines::{IPV4, Machines};
use harness::pair::{free_port, start_server, start_server_in};
use harness::process::{Finished, Running, Task};
use serde_json::Value;

use super::figures::Column;

/// How long any one run may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The hosts of the two programs.
#[derive(Clone, Copy, Debug)]
pub enum Hosts<'a> {
    /// Programs of this machine, by its loopback interface.
    Loopback,
    /// From the second of two machines to the first.
    Machines(&'a Machines<'a>),
}

impl Hosts<'_> {
    /// The server's address.
    fn address(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::Machines(_) => IPV4[0],
        }
    }

    fn start_server(self, server: Task, port: u16) -> Result<Running> {
        match self {
            Self::Loopback => start_server(server.limit(LIMIT), port),
            Self::Machines(machines) => {
                let server = machines.task(0, &server).limit(LIMIT);
                start_server_in(&machines.process(0), server, port)
            }
        }
    }

    fn run_client(self, client: Task) -> Result<Finished> {
        let client = match self {
            Self::Loopback => client,
            Self::Machines(machines) => machines.task(1, &client),
        };
        client.limit(LIMIT).run()?.success()
    }
}

/// 10^6 bytes per second of each peer with messages of a size.
///
/// # Errors
/// When a peer fails.
pub fn bandwidths(size: u64, seconds: u32) -> Result<[(Column, f64); 3]> {
    let tcp = tcp_bandwidth(Hosts::Loopback, size, seconds)?;
    let ucx = |over: Ucx| -> Result<f64> {
        let messages = f64::from(seconds) / over.bandwidth_guess(size);
        Ok(over.run("tag_bw", size, messages)?.rate * size as f64 / 1e6)
    };
    Ok([(Column::Tcp, tcp), (Column::UcxTcp, ucx(Ucx::TCP)?), (Column::UcxShm, ucx(Ucx::SHM)?)])
}

/// One-way latency of each peer with messages of a size, µs.
///
/// # Errors
/// When a peer fails.
pub fn latencies(size: u64, seconds: u32) -> Result<[(Column, f64); 3]> {
    let tcp = tcp_latency(Hosts::Loopback, size, seconds)?;
    let ucx = |over: Ucx| -> Result<f64> {
        let exchanges = f64::from(seconds) / over.latency_guess(size) / 2.0;
        Ok(over.run("tag_lat", size, exchanges)?.median)
    };
    Ok([(Column::Tcp, tcp), (Column::UcxTcp, ucx(Ucx::TCP)?), (Column::UcxShm, ucx(Ucx::SHM)?)])
}

/// 10^6 bytes per second of TCP with messages of a size, by the better of two programs.
///
/// # Errors
/// When one fails.
pub fn tcp_bandwidth(place: Hosts<'_>, size: u64, seconds: u32) -> Result<f64> {
    Ok(iperf3(place, size, seconds)?.max(qperf(place, "tcp_bw", size, seconds)?) / 1e6)
}

/// One-way latency of TCP with messages of a size, µs.
///
/// # Errors
/// When the program fails.
pub fn tcp_latency(place: Hosts<'_>, size: u64, seconds: u32) -> Result<f64> {
    Ok(qperf(place, "tcp_lat", size, seconds)? / 1e3)
}

/// Bytes per second.
fn iperf3(place: Hosts<'_>, size: u64, seconds: u32) -> Result<f64> {
    let (port, address) = (free_port()?, place.address());
    let server = Task::new("iperf3").words(&format!("-s -1 -B {address} -p {port}"));
    let _server = place.start_server(server, port)?;
    let command = format!("-c {address} -p {port} -l {size} -t {seconds} -J");
    let client = place.run_client(Task::new("iperf3").words(&command))?;
    let report: Value = serde_json::from_str(&client.stdout)?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.with_context(|| format!("no rate: {client}"))? / 8.0)
}

/// Bytes per second, or nanoseconds, as the test has it.
fn qperf(place: Hosts<'_>, test: &str, size: u64, seconds: u32) -> Result<f64> {
    let (port, address) = (free_port()?, place.address());
    let _server = place.start_server(Task::new("qperf").words(&format!("-lp {port}")), port)?;
    let command = format!("{address} -lp {port} -uu -m {size} -t {seconds} {test}");
    let client = place.run_client(Task::new("qperf").words(&command))?;
    let value = client.stdout.lines().find_map(|line| line.split_once('=')).map(|(_, it)| it);
    let number = value.and_then(|it| it.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no figure: {client}"))
}

/// A way for UCX to go.
#[derive(Clone, Copy, Debug)]
struct Ucx {
    /// UCX_TLS.
    transports: &'static str,
    /// The rough cost of a message: µs, and bytes per µs. Decides how many are sent.
    cost: (f64, f64),
    /// The rough cost of an exchange one way.
    delay: (f64, f64),
}

/// The figures that ucx_perftest prints.
#[derive(Clone, Copy, Debug)]
struct Said {
    /// µs.
    median: f64,
    /// Messages per second.
    rate: f64,
}

impl Ucx {
    const TCP: Self = Self { transports: "tcp", cost: (3.0, 4000.0), delay: (5.0, 2000.0) };
    const SHM: Self =
        Self { transports: "posix,cma", cost: (0.2, 15_000.0), delay: (0.4, 10_000.0) };

    /// Seconds that a message takes, roughly.
    fn bandwidth_guess(self, size: u64) -> f64 {
        (self.cost.0 + size as f64 / self.cost.1) / 1e6
    }

    fn latency_guess(self, size: u64) -> f64 {
        (self.delay.0 + size as f64 / self.delay.1) / 1e6
    }

    fn run(self, test: &str, size: u64, messages: f64) -> Result<Said> {
        let port = free_port()?;
        let task = || {
            Task::new("ucx_perftest")
                .env("UCX_TLS", self.transports)
                .env("UCX_NET_DEVICES", "lo")
                // Without one Debian 13's takes itself for a program of MPI's.
                .at_terminal()
                .limit(LIMIT)
        };
        let server = start_server(task().words(&format!("-p {port}")), port)?;
        let messages = messages.max(100.0) as u64;
        let warm_up = messages / 10;
        let command =
            format!("127.0.0.1 -p {port} -t {test} -s {size} -n {messages} -w {warm_up} -f -v");
        let client = task().words(&command).run()?.success()?;
        drop(server);
        said(&client)
    }
}

/// The last line: iterations, with spaces before a small number, then percentile and averages of
/// latency, bandwidth and rate.
fn said(client: &Finished) -> Result<Said> {
    let line = client.stdout.lines().last().unwrap_or_default();
    let columns: Vec<f64> = line.split(',').filter_map(|word| word.trim().parse().ok()).collect();
    match *columns.as_slice() {
        [_, median, _, _, _, _, _, rate] => Ok(Said { median, rate }),
        _ => anyhow::bail!("no figures: {client}"),
    }
}
