//! The program that `balboa perf` runs: one of libibverbs', for it has to load the provider as others do.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::json;
use terminal::{complain, say};
use verbs_programs::ffi::{Context, Library};
use verbs_programs::perf::{self, Figures, LARGE, Plan, SHORT, SMALL};

/// Measures how fast two cards move messages. `balboa perf` is the way to run it.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Post the messages from this card
    #[arg(long, default_value = "balboa0")]
    from: String,
    /// Post them to this card
    #[arg(long, default_value = "balboa1")]
    to: String,
    /// Use the GIDs of this index [default: the first that is an IPv4 address on both cards, else 0]
    #[arg(long, value_name = "INDEX")]
    gid: Option<u8>,
    /// Measure each of the nine figures for so many seconds
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = match terminal::parse("balboa perf", "command", terminal::USAGE) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match perf(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain("balboa perf", format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn perf(arguments: Arguments) -> Result<()> {
    let Arguments { from, to, gid, seconds, json } = arguments;
    let gid_index = gid.map_or_else(|| gid_of_both([&from, &to]), Ok)?;
    let time = Duration::try_from_secs_f64(seconds).context("--seconds")?;
    let plan = Plan { devices: [from, to], gid_index, time };
    if json {
        let mut all = Vec::new();
        perf::measure(&plan, |figures| {
            all.push(figures.json());
            Ok(())
        })?;
        let [from, to] = &plan.devices;
        let whole = json!({
            "format": 1,
            "from": from,
            "to": to,
            "gid_index": gid_index,
            "latency_bytes": SHORT,
            "bandwidth_bytes": LARGE,
            "messages_bytes": SMALL,
            "operations": all,
        });
        return Ok(say(format_args!("{whole:#}\n"))?);
    }
    say(format_args!("{}\n", head(&plan)))?;
    perf::measure(&plan, |figures| Ok(say(format_args!("{}\n", row(figures)))?))
}

/// The first index at which both devices have an IPv4 address, else that of their link-local ones.
fn gid_of_both(devices: [&str; 2]) -> Result<u8> {
    let library = Library::open()?;
    let mut tables = Vec::new();
    for device in devices {
        let context = Context::open(library, device)?;
        let port = context.port().with_context(|| format!("the port of {device}"))?;
        let entries = u8::try_from(port.gid_tbl_len).unwrap_or(u8::MAX);
        tables.push((0..entries).map(|index| Ok(context.gid(index)?)).collect::<Result<Vec<_>>>()?);
    }
    let is_mapped = |gid: &[u8; 16]| gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let both = |index: &usize| tables.iter().all(|it| it.get(*index).is_some_and(is_mapped));
    let found = (0..tables[0].len()).find(both).unwrap_or(0);
    Ok(u8::try_from(found)?)
}

fn head(plan: &Plan) -> String {
    let [from, to] = &plan.devices;
    format!(
        "{from} to {to}, GID index {}; latency of {SHORT} bytes from post to completion, bandwidth by {} KiB, messages of \
         {SMALL} bytes\n{:<9} {:>11} {:>11} {:>16} {:>18}",
        plan.gid_index,
        LARGE / 1024,
        "operation",
        "p50 (us)",
        "p99 (us)",
        "bandwidth (MB/s)",
        "messages (M/s)",
    )
}

fn row(figures: &Figures) -> String {
    let [p50, p99] = figures.latency.map(|it| it.as_secs_f64() * 1e6);
    format!(
        "{:<9} {p50:>11.2} {p99:>11.2} {:>16.0} {:>18.3}",
        figures.operation,
        figures.bytes_per_second / 1e6,
        figures.messages_per_second / 1e6,
    )
}
