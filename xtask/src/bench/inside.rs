//! The part of `cargo xtask guest bench` that runs in the virtual machine: the rows of the benchmark that have a
//! meaning there.
//!
//! Not all columns have all of them. rxe sends to itself without a cable, and the host's cards were
//! plugged into a good one at boot: neither loses frames. Of rxe latency by events is not taken, for
//! `ib_send_lat -e`, which waits for an event before each poll, was seen to hang with it. Nor has it a
//! daemon to be idle. Nobody measures beside churn: on two emulated processors perftest was seen not to
//! find out, five times in a row, how fast its clock goes. Nobody registers a gigabyte, which is all the
//! machine has, and instructions are the same wherever they are counted.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::process::Task;
use harness::setting::{Daemon, Setting, Stage, Who};
use harness::vm::{self, Hardware};
use serde_json::json;
use terminal::report;

use super::figures::{Column, Figures};
use super::peers::{self, Hosts};
use super::perftest::{self, Bandwidth, Devices, Programs};
use super::{BULK, MANY, SIZES, bandwidths_of, latencies_of};

/// The line with all figures begins with this.
pub const FIGURES: &str = "figures: ";
/// Bytes of a bandwidth run, as long as that makes neither too few messages nor too many.
const BYTES: u64 = 16 << 20;
const FEWEST: u64 = 24;
const MOST: u64 = 20_000;
/// Iterations of each latency run.
const EXCHANGES: u32 = 500;
/// Messages of each of many QPs: the fewest perftest allows.
const MESSAGES_OF_MANY: u32 = 5;
/// Seconds of connecting.
const CONNECTING: u32 = 1;
/// Seconds of a run of TCP's.
const SECONDS: u32 = 2;
/// How long a balboad is watched with idle clients.
const IDLE: Duration = Duration::from_secs(5);
/// A network namespace, in which rxe has not taken RoCE's port.
const NEAR: &str = "near";

/// How much is measured.
#[derive(Debug, Args)]
pub struct Options {
    /// Measure so many rounds
    #[arg(long)]
    pub rounds: u32,
    /// Measure only cards on the machine's own network
    #[arg(long)]
    pub udp: bool,
}

/// Measures, and prints the figures in a line.
///
/// # Errors
/// When the machine lacks something, or a measurement fails.
pub fn measure(options: &Options) -> Result<()> {
    let here = std::env::current_exe()?;
    let built = here.parent().context("this program lies in no directory")?;
    let stage = Stage::new(built)?;
    let setting = stage.setting(Who::Ourselves)?;
    let programs = Programs::new(built, setting.directory());
    let on_switches = if options.udp { None } else { Some(OnSwitches::start(&setting)?) };
    let datagrams = on_the_network(&setting)?;
    let rxe = vm::rxe::soft_roce()?;
    let mut figures = Figures::default();
    for round in 1..=options.rounds {
        report!("round {round} of {}", options.rounds);
        if let Some(cards) = &on_switches {
            cards.measure(&programs, rxe, &mut figures)?;
        }
        for (column, devices) in
            [(Column::Balboa, Devices::Cabled(&datagrams)), (Column::Rxe, Devices::Kernels(rxe))]
        {
            datagrams_of(devices, column, &mut figures)
                .with_context(|| format!("datagrams of {}", column.name()))?;
        }
        tcp(&mut figures)?;
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    report!("{FIGURES}{}", json!({ "kernel": kernel.trim(), "figures": figures.json() }));
    datagrams.into_iter().try_for_each(Daemon::stop)?;
    on_switches.map_or(Ok(()), OnSwitches::stop)
}

/// Balboads whose cards are not on the machine's own network.
struct OnSwitches<'a> {
    soft: Daemon<'a>,
    vfio: Daemon<'a>,
    lossy: Daemon<'a>,
}

impl<'a> OnSwitches<'a> {
    fn start(setting: &'a Setting) -> Result<Self> {
        let soft = setting.balboad("--soft 2")?;
        let state = setting.directory().join("vfio");
        let vfio = vm::cards::cards_in(setting, &state, Hardware::IntelIommu)?;
        Ok(Self { soft, vfio, lossy: perftest::lossy(setting)? })
    }

    /// Measures their rows once, beside those of a device of the kernel's.
    fn measure(&self, programs: &Programs, rxe: &str, figures: &mut Figures) -> Result<()> {
        let all = [
            (Column::Balboa, Devices::Cards(&self.soft)),
            (Column::BalboaVfio, Devices::Cards(&self.vfio)),
            (Column::Rxe, Devices::Kernels(rxe)),
        ];
        for size in SIZES {
            for (column, devices) in all {
                bandwidths_of(|kind| bandwidth(kind, size)?.run(devices), column, size, figures)
                    .with_context(|| format!("{}, messages of {size}", column.name()))?;
            }
        }
        let lossy_run = bandwidth("write", BULK)?.run(Devices::Cards(&self.lossy));
        let lossy_run = lossy_run.context("on a cable that loses frames")?;
        figures.add("write_bw_65536_loss1", Column::Balboa, lossy_run.megabytes);
        for (column, devices) in all {
            others(programs, devices, column, figures)
                .with_context(|| format!("of {}", column.name()))?;
        }
        Ok(())
    }

    fn stop(self) -> Result<()> {
        self.vfio.stop()?;
        self.lossy.stop()?;
        self.soft.stop()
    }
}

/// Measures TCP over the machine's loopback interface beside those rows, once.
fn tcp(figures: &mut Figures) -> Result<()> {
    let bandwidth = peers::tcp_bandwidth(Hosts::Loopback, BULK, SECONDS).context("TCP")?;
    for kind in ["write", "send"] {
        figures.add(&format!("udp_{kind}_bw_65536"), Column::Tcp, bandwidth);
    }
    let latency = peers::tcp_latency(Hosts::Loopback, 2, SECONDS).context("TCP")?;
    figures.add("udp_write_lat_2_p50", Column::Tcp, latency);
    Ok(())
}

/// Two balboads with a card each at an address of the loopback network, of which each sends by UDP sockets.
fn on_the_network(setting: &Setting) -> Result<[Daemon<'_>; 2]> {
    vm::run(&format!("ip netns add {NEAR}"))?;
    vm::run(&format!("ip netns exec {NEAR} ip link set lo up"))?;
    let start = |number: usize| {
        let state_dir = setting.directory().join(format!("datagrams{number}"));
        let options = format!("--soft 1 --port udp:127.0.0.{}", number + 1);
        let within = |task: &Task| {
            Task::new("ip").words(&format!("netns exec {NEAR}")).args(task.command_line())
        };
        setting.balboad_within(&state_dir, &options, within)
    };
    Ok([start(0)?, start(1)?])
}

/// Measures the rows that compare cards on the machine's own network, once.
fn datagrams_of(devices: Devices<'_>, column: Column, figures: &mut Figures) -> Result<()> {
    for kind in ["write", "send"] {
        let run = bandwidth(kind, BULK)?.run(devices)?;
        figures.add(&format!("udp_{kind}_bw_65536"), column, run.megabytes);
    }
    let short = bandwidth("write", 64)?.run(devices)?;
    figures.add("udp_write_rate_64", column, short.messages);
    let polled = perftest::latency(devices, 2, EXCHANGES)?;
    figures.add("udp_write_lat_2_p50", column, polled.median);
    Ok(())
}

/// Everything but bandwidth by size, once.
fn others(
    programs: &Programs,
    devices: Devices<'_>,
    column: Column,
    figures: &mut Figures,
) -> Result<()> {
    let write = || bandwidth("write", BULK);
    let deep = write()?.messages(1000).depth(MANY).run(devices).context("500 outstanding")?;
    figures.add("write_bw_65536_depth500", column, deep.megabytes);
    let many = write()?.messages(MESSAGES_OF_MANY).queue_pairs(MANY).depth(1);
    let many = many.run(devices).context("500 QPs")?;
    figures.add("write_bw_65536_qp500", column, many.megabytes);
    latencies_of(devices, column, EXCHANGES, figures).context("latency")?;
    let connects = programs.connects(devices, CONNECTING).context("connecting")?;
    figures.add("connects_per_s", column, connects);
    match devices {
        Devices::Cards(daemon) => of_cards(programs, daemon, column, figures),
        Devices::Cabled(_) | Devices::Machines(..) | Devices::Kernels(_) => Ok(()),
    }
}

/// Measures the rows that only cards have, not a device of the kernel's.
fn of_cards(
    programs: &Programs,
    daemon: &Daemon<'_>,
    column: Column,
    figures: &mut Figures,
) -> Result<()> {
    let alone = perftest::latency_by_events(Devices::Cards(daemon), EXCHANGES).context("events")?;
    figures.add("send_lat_2_events_p99", column, alone.p99);
    figures.add("idle_cpu_percent", column, programs.idle_cpu(daemon, IDLE).context("idle")?);
    Ok(())
}

/// A run of as many messages as an emulated processor moves in a second or two: some 10 MB/s. A run of
/// so many seconds may be over before the other side has got to run.
fn bandwidth(kind: &'static str, size: u64) -> Result<Bandwidth> {
    let messages = (BYTES / size).clamp(FEWEST, MOST);
    Ok(Bandwidth::of(kind, size, 0).messages(u32::try_from(messages)?))
}
