//! Software cards on the machine's own network: between two machines, which are network namespaces joined by a cable of the
//! kernel's, beside TCP on that cable.

use anyhow::Result;
use harness::machines::{Machines, WIRE};
use harness::setting::Setting;
use terminal::report;

use super::figures::{Column, Figures};
use super::peers::{self, Hosts};
use super::perftest::{self, Bandwidth, Copying, Devices, Programs};
use super::{BULK, Effort};

/// The operations that move bulk.
const BULK_KINDS: [&str; 2] = ["write", "send"];
/// MTUs of the cable, and the endings of their rows' names.
const MTUS: [(u32, &str); 2] = [(1500, ""), (9000, "_mtu9000")];

/// Measures all rows once.
///
/// # Errors
/// When this user may have no such machines, or a program fails.
pub fn measure(
    setting: &Setting,
    programs: &Programs,
    effort: Effort,
    figures: &mut Figures,
) -> Result<()> {
    for (mtu, ending) in MTUS {
        let machines = Machines::new(setting, mtu)?;
        let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE}"))?;
        let ours = Devices::Machines(&machines, &daemons);
        let mut add = |name: &str, column, value| {
            figures.add(&format!("udp_{name}{ending}"), column, value);
        };
        let place = Hosts::Machines(&machines);
        // Before and behind the compared figure: other work of the machine changes within seconds.
        let tcp_bandwidth = || peers::tcp_bandwidth(place, BULK, effort.seconds);
        let tcp_latency = || peers::tcp_latency(place, 2, effort.seconds);
        let before = tcp_bandwidth()?;
        for kind in BULK_KINDS {
            let run = Bandwidth::of(kind, BULK, effort.seconds).run(ours)?;
            add(&format!("{kind}_bw_65536"), Column::Balboa, run.megabytes);
        }
        let after = tcp_bandwidth()?;
        report!("MTU {mtu}: TCP moved {before:.0} MB/s before, {after:.0} MB/s after");
        let copying = Copying::ThreadEachOf(&machines, &daemons[0]);
        let limit = programs.copy_limit(copying, BULK, 1, effort.seconds)?;
        for kind in BULK_KINDS {
            for value in [before, after] {
                add(&format!("{kind}_bw_65536"), Column::Tcp, value);
            }
            add(&format!("{kind}_bw_65536"), Column::CopyLimit, limit);
        }
        let short = Bandwidth::of("write", 64, effort.seconds).run(ours)?;
        add("write_rate_64", Column::Balboa, short.messages);
        let before = tcp_latency()?;
        let polled = perftest::latency(ours, 2, effort.exchanges)?;
        add("write_lat_2_p50", Column::Balboa, polled.median);
        let slept = perftest::latency_by_events(ours, effort.exchanges)?;
        add("send_lat_2_events_p50", Column::Balboa, slept.median);
        let after = tcp_latency()?;
        report!("MTU {mtu}: TCP took {before:.1} us before, {after:.1} us after");
        for row in ["write_lat_2_p50", "send_lat_2_events_p50"] {
            for value in [before, after] {
                add(row, Column::Tcp, value);
            }
        }
        daemons.into_iter().try_for_each(harness::setting::Daemon::stop)?;
    }
    Ok(())
}
