//! The benchmark: software cards beside TCP and UCX, in one run on one machine.
//!
//! Every figure is the median of some rounds. Within a round, a figure of the cards and the figures that it
//! is compared with are measured one after the other, so that other work of the machine affects
//! them alike; only ratios within one run mean something on a shared machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::setting::{Daemon, Setting, Stage, Who};
use terminal::report;

use crate::cargo::Profile;
use crate::{cargo, setup};
use baseline::Baseline;
use figures::{Column, Figures};
use perftest::{Bandwidth, Carrier, Copying, Devices, Moved, Programs};

mod baseline;
mod connections;
pub mod figures;
pub mod goals;
pub mod inside;
mod instructions;
pub mod machine;
mod mpi;
mod page;
mod peers;
mod perftest;
mod plot;
mod quick;
mod sweep;
pub mod table;
mod udp;

/// `cargo xtask bench`.
#[derive(Debug, Args)]
pub struct Options {
    /// Write the figures to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Compare the figures with those of an earlier run in this file
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Measure only the main rows, in some two minutes; the page in docs/ stays as it is
    #[arg(long)]
    quick: bool,
    /// Measure only MPI programs; the page in docs/ stays as it is
    #[arg(long)]
    mpi: bool,
    /// Measure only cards on the machine's own network; the page in docs/ stays as it is
    #[arg(long, conflicts_with = "mpi")]
    udp: bool,
}

/// The packages of the measured and the measuring programs.
const PACKAGES: &[&str] = &[
    "ibverbs-providers",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "libibverbs1",
    "libopenmpi-dev",
    "openmpi-bin",
    "perftest",
    "qperf",
    "rdmacm-utils",
    "ucx-utils",
    "util-linux",
    "valgrind",
];

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: u32,
    /// Seconds of each bandwidth run.
    seconds: u32,
    /// Iterations of each latency run.
    exchanges: u32,
    /// How long balboad is watched with idle clients.
    idle: Duration,
    /// Calls whose instructions are counted.
    counted: u32,
}

const FULL: Effort = Effort {
    rounds: 5,
    seconds: 1,
    exchanges: 20_000,
    idle: Duration::from_secs(10),
    counted: 400,
};
const QUICK: Effort =
    Effort { rounds: 3, seconds: 1, exchanges: 5_000, idle: Duration::from_secs(2), counted: 100 };

/// Turns in a round in which two rates are measured that are to be compared: other work of a core moves each of them
/// further than the difference sought.
const PAIRS: u32 = 3;

/// Operations of the bandwidth rows.
const KINDS: [&str; 3] = ["write", "read", "send"];
/// Message sizes of the bandwidth rows.
const SIZES: [u64; 4] = [64, 4096, 65_536, 1_048_576];
/// Bytes of a message where one size stands for bulk transfer.
const BULK: u64 = 65_536;
/// QPs of the many-QP row, and work requests outstanding, of all QPs together, with one and with
/// many.
const MANY: u32 = 500;

/// Measures, prints one table, and writes the files that the options name.
///
/// # Errors
/// When a program is missing, or a measurement fails.
pub fn bench(options: &Options) -> Result<ExitCode> {
    // First, so that a wrong file is no waste of minutes.
    let baseline = options.baseline.as_deref().map(Baseline::read).transpose()?;
    setup::packages(PACKAGES)?;
    let effort = if options.quick { QUICK } else { FULL };
    let built = cargo::build_of(Profile::Release, cargo::PROGRAMS)?;
    let machine = machine::Machine::look()?;
    let stage = Stage::new(&built)?;
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    let setting = stage.setting(Who::Ourselves)?;
    let programs = Programs::new(&built, setting.directory());
    let mpi = mpi::Program::new(setting.directory())?;
    let clean = setting.balboad("--soft 2")?;
    let lossy = perftest::lossy(&setting)?;
    let cabled = setting.cabled_balboads()?;
    let rounds = Rounds {
        setting: &setting,
        programs: &programs,
        mpi: &mpi,
        clean: &clean,
        lossy: &lossy,
        cabled: &cabled,
        effort,
    };

    let mut figures = Figures::default();
    for round in 1..=effort.rounds {
        report!("round {round} of {}", effort.rounds);
        let measured = match (options.mpi, options.udp) {
            (true, _) => rounds.mpi.measure(&clean, &mut figures),
            (_, true) => udp::measure(&setting, &programs, effort, &mut figures),
            _ if options.quick => rounds.main_rows(round == 1, &mut figures),
            _ => rounds.one(&mut figures),
        };
        measured.with_context(|| format!("round {round}"))?;
    }
    let judged = goals::judge(&figures);
    report!("");
    report!("{machine}.");
    table::print(Column::BENCH, &figures, &judged, effort.rounds);
    if let Some(baseline) = baseline {
        report!("\n{}", baseline.compared(&figures).trim_end());
    }
    if let Some(file) = &options.json {
        table::write_json(file, &machine.json(), Column::BENCH, &figures, &judged)?;
    }
    if !options.quick && !options.mpi && !options.udp {
        report!("\nmeasuring by size, for the plot");
        let curves = sweep::measure(&clean)?;
        page::update(&machine, &figures, &judged, &curves)?;
    }
    clean.stop()?;
    lossy.stop()?;
    cabled.into_iter().try_for_each(Daemon::stop)?;
    Ok(ExitCode::SUCCESS)
}

/// WRITE, READ and SEND with messages of a size, once.
fn bandwidths_of(
    run: impl Fn(&'static str) -> Result<Moved>,
    column: Column,
    size: u64,
    figures: &mut Figures,
) -> Result<()> {
    for kind in KINDS {
        let run = run(kind)?;
        figures.add(&format!("{kind}_bw_{size}"), column, run.megabytes);
        if kind == "write" && size == 64 {
            figures.add("write_rate_64", column, run.messages);
        }
    }
    Ok(())
}

/// Latency by polling, once.
fn latencies_of(
    devices: Devices<'_>,
    column: Column,
    exchanges: u32,
    figures: &mut Figures,
) -> Result<()> {
    let polled = perftest::latency(devices, 2, exchanges)?;
    figures.add("write_lat_2_p50", column, polled.median);
    figures.add("write_lat_2_p99", column, polled.p99);
    Ok(())
}

/// The programs and devices that every round needs.
struct Rounds<'a> {
    setting: &'a Setting,
    programs: &'a Programs,
    mpi: &'a mpi::Program,
    clean: &'a Daemon<'a>,
    /// With 1 % loss on the cable.
    lossy: &'a Daemon<'a>,
    /// Joined by a cable, which makes both check every frame.
    cabled: &'a [Daemon<'a>; 2],
    effort: Effort,
}

impl Rounds<'_> {
    fn one(&self, figures: &mut Figures) -> Result<()> {
        for size in SIZES {
            self.bandwidths(size, figures)?;
        }
        self.one_and_many(figures)?;
        self.lossy(figures)?;
        self.rates(figures)?;
        self.spinners(figures)?;
        self.checked(figures)?;
        self.latencies(figures)?;
        self.mpi.measure(self.clean, figures)?;
        udp::measure(self.setting, self.programs, self.effort, figures)?;
        self.costs(figures)
    }

    /// WRITE, READ and SEND, and the peers, which know no such difference.
    fn bandwidths(&self, size: u64, figures: &mut Figures) -> Result<()> {
        let seconds = self.effort.seconds;
        let run = |kind| Bandwidth::of(kind, size, seconds).run(Devices::Cards(self.clean));
        bandwidths_of(run, Column::Balboa, size, figures)?;
        let peers = peers::bandwidths(size, seconds)?;
        let limit = (Column::CopyLimit, self.copy_limit(size, 1)?);
        for (column, megabytes) in peers.into_iter().chain([limit]) {
            for kind in KINDS {
                figures.add(&format!("{kind}_bw_{size}"), column, megabytes);
            }
            // A stream has no messages, and a copy none of its own.
            if size == 64 && !matches!(column, Column::Tcp | Column::CopyLimit) {
                figures.add("write_rate_64", column, megabytes / size as f64);
            }
        }
        Ok(())
    }

    /// The rate of the kernel's copies, the limit of the cards of one balboad.
    fn copy_limit(&self, size: u64, buffers: u32) -> Result<f64> {
        let copying = Copying::OneThread(self.clean);
        self.programs.copy_limit(copying, size, buffers, self.effort.seconds)
    }

    /// Measures many work requests outstanding on one QP, and one on each of as many QPs.
    fn one_and_many(&self, figures: &mut Figures) -> Result<()> {
        let write = || Bandwidth::of("write", BULK, self.effort.seconds);
        for (metric, run, buffers) in [
            ("write_bw_65536_depth500", write().depth(MANY), 1),
            ("write_bw_65536_qp500", write().queue_pairs(MANY).depth(1), MANY),
        ] {
            figures.add(metric, Column::Balboa, run.run(Devices::Cards(self.clean))?.megabytes);
            figures.add(metric, Column::CopyLimit, self.copy_limit(BULK, buffers)?);
        }
        Ok(())
    }

    /// Where the cable loses frames.
    fn lossy(&self, figures: &mut Figures) -> Result<()> {
        let run = Bandwidth::of("write", BULK, self.effort.seconds);
        let run = run.run(Devices::Cards(self.lossy))?;
        figures.add("write_bw_65536_loss1", Column::Balboa, run.megabytes);
        figures.add("write_bw_65536_loss1", Column::CopyLimit, self.copy_limit(BULK, 1)?);
        Ok(())
    }

    /// Where the ICRC of every frame is checked.
    fn checked(&self, figures: &mut Figures) -> Result<()> {
        let copying = Copying::ThreadEach(&self.cabled[0]);
        let limit = self.programs.copy_limit(copying, BULK, 1, self.effort.seconds)?;
        for kind in ["write", "send"] {
            let run = Bandwidth::of(kind, BULK, self.effort.seconds);
            let run = run.run(Devices::Cabled(self.cabled))?;
            let metric = format!("{kind}_bw_65536_checked");
            figures.add(&metric, Column::Balboa, run.megabytes);
            figures.add(&metric, Column::CopyLimit, limit);
        }
        Ok(())
    }

    /// Short messages: by a connection, to a shared receive queue, and as datagrams, some of which find no
    /// receive.
    fn rates(&self, figures: &mut Figures) -> Result<()> {
        for (metric, option) in
            [("send_rate_64", ""), ("send_rate_64_srq", "--use-srq"), ("send_rate_64_ud", "-c UD")]
        {
            self.rate(metric, option, figures)?;
        }
        // The costs of a queue pair's own receives and of shared ones, if the programs' turns do not decide them.
        for _ in 0..PAIRS {
            self.rate("send_rate_64_rx4096", "-r 4096", figures)?;
            self.rate("send_rate_64_srq_rx4096", "-r 4096 --use-srq", figures)?;
        }
        Ok(())
    }

    fn rate(&self, metric: &str, option: &'static str, figures: &mut Figures) -> Result<()> {
        let run = Bandwidth::of("send", 64, self.effort.seconds).option(option);
        figures.add(metric, Column::Balboa, run.run(Devices::Cards(self.clean))?.messages);
        Ok(())
    }

    /// Threads that spin on every core, and the card between them.
    fn spinners(&self, figures: &mut Figures) -> Result<()> {
        for (metric, depth) in [("spinners_4096_d1", 1), ("spinners_4096_d32", 32)] {
            for (column, by) in [(Column::Balboa, Carrier::Cards), (Column::Tcp, Carrier::Tcp)] {
                let seconds = self.effort.seconds;
                let rate = self.programs.spinners(self.clean, by, depth, seconds)?;
                figures.add(metric, column, rate);
            }
        }
        Ok(())
    }

    fn latencies(&self, figures: &mut Figures) -> Result<()> {
        self.main_latencies(figures)?;
        let beside = self.programs.latency_beside_churn(self.clean, self.effort.exchanges)?;
        figures.add("send_lat_2_events_p99_churn", Column::Balboa, beside.p99);
        let relayed = self.programs.latency_relayed(self.clean, self.effort.exchanges)?;
        figures.add("write_lat_2_p50_relayed", Column::Balboa, relayed.median);
        Ok(())
    }

    /// Latencies by polling, beside the peers', and by events.
    fn main_latencies(&self, figures: &mut Figures) -> Result<()> {
        let ours = Devices::Cards(self.clean);
        latencies_of(ours, Column::Balboa, self.effort.exchanges, figures)?;
        for (column, microseconds) in peers::latencies(2, self.effort.seconds)? {
            figures.add("write_lat_2_p50", column, microseconds);
        }
        let alone = perftest::latency_by_events(ours, self.effort.exchanges)?;
        figures.add("send_lat_2_events_p99", Column::Balboa, alone.p99);
        Ok(())
    }

    fn costs(&self, figures: &mut Figures) -> Result<()> {
        let programs = self.programs;
        let mut add = |metric: &str, value| figures.add(metric, Column::Balboa, value);
        instructions::measure(programs, self.clean, self.effort.counted, &mut add)?;
        add("reg_mr_1g_ms", programs.registration(self.clean)?);
        add("connects_per_s", programs.connects(Devices::Cards(self.clean), self.effort.seconds)?);
        let beside = programs.connects_beside_events(self.clean, self.effort.seconds)?;
        add("connects_per_s_events", beside);
        add(
            "connects_per_s_8_programs",
            programs.connects_of_many(self.clean, self.effort.seconds)?,
        );
        let by_cm = connections::measure(self.setting, self.clean)?;
        add("cm_connects_per_s", by_cm.per_second);
        add("cm_connect_us", by_cm.microseconds);
        add("idle_cpu_percent", programs.idle_cpu(self.clean, self.effort.idle)?);
        Ok(())
    }
}
