//! Software cards on the machine's own network: between two machines, which are network namespaces joined by a cable of the
//! kernel's, beside TCP on that cable.

use anyhow::Result;
use harness::machines::{Machines, WIRE};
use harness::setting::Setting;

use super::figures::{Column, Figures};
use super::peers::{self, Place};
use super::perftest::{self, Bandwidth, Devices};
use super::{BULK, Effort};

/// MTUs of the cable, and what the names of their rows end with.
const MTUS: [(u32, &str); 2] = [(1500, ""), (9000, "_mtu9000")];

/// Measures all rows once.
///
/// # Errors
/// When this user may have no such machines, or a program fails.
pub fn measure(setting: &Setting, effort: Effort, figures: &mut Figures) -> Result<()> {
    for (mtu, ending) in MTUS {
        let machines = Machines::new(setting, mtu)?;
        let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE}"))?;
        let ours = Devices::Machines(&machines, &daemons);
        let mut add = |name: &str, column, value| {
            figures.add(&format!("udp_{name}{ending}"), column, value);
        };
        let place = Place::Machines(&machines);
        let tcp = peers::tcp_bandwidth(place, BULK, effort.seconds)?;
        for kind in ["write", "send"] {
            let run = Bandwidth::of(kind, BULK, effort.seconds).run(ours)?;
            let name = format!("{kind}_bw_65536");
            add(&name, Column::Balboa, run.megabytes);
            add(&name, Column::Tcp, tcp);
        }
        let short = Bandwidth::of("write", 64, effort.seconds).run(ours)?;
        add("write_rate_64", Column::Balboa, short.messages);
        let polled = perftest::latency(ours, 2, effort.exchanges)?;
        add("write_lat_2_p50", Column::Balboa, polled.median);
        add("write_lat_2_p50", Column::Tcp, peers::tcp_latency(place, 2, effort.seconds)?);
        daemons.into_iter().try_for_each(harness::setting::Daemon::stop)?;
    }
    Ok(())
}
