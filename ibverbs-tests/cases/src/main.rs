//! Lists the cases, and runs them: here, or in the virtual machine. `cargo xtask` starts it.

#![forbid(unsafe_code)]

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cases::chaos::rounds::{self, Chaos};
use cases::guest_pair::Side;
use cases::{apps, attack, guest, guest_pair, interop, release};
use clap::{Args, Parser, Subcommand};
use harness::agent::{self, Cable, End, Machine, PAIRS};
use harness::interrupt;
use harness::runner::{self, Case, Filter, Need, When};
use harness::setting::{Root, Stage, Who};
use harness::summary::Summary;
use harness::vm::{self, Hardware, Kernel};
use serde_json::json;
use terminal::{report, say};

/// Lists cases and runs them.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// List cases, in a line of JSON each
    List {
        #[command(subcommand)]
        set: Set,
    },
    /// Run cases; the last line is `N passed, N failed, N skipped`
    Run {
        #[command(flatten)]
        how: How,
        #[command(subcommand)]
        set: Set,
    },
    /// Kill and stop programs and balboads at random
    Chaos {
        /// Directory of the programs under test
        #[arg(long)]
        built: PathBuf,
        /// Number of rounds
        #[arg(long)]
        rounds: u64,
        /// Seed of the first round
        #[arg(long)]
        seed: u64,
        /// Kill programs that hold many objects
        #[arg(long)]
        many: bool,
    },
    /// Execute the commands of standard input, with an RDMA device on the first network device
    Agent {
        /// The kind of the device: rxe, or card, a software card of the installed package
        #[arg(long, value_parser = end)]
        end: End,
        /// The device's IPv4 address; its subnet is of 24 bits
        #[arg(long)]
        address: Ipv4Addr,
    },
    /// Load kernel modules, after those they depend on
    Load {
        /// Their names
        #[arg(required = true)]
        modules: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct How {
    /// Run only cases with TEXT in their name; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Match --only with whole names only
    #[arg(long)]
    exact: bool,
    /// Directory of the programs under test [default: this program's]
    #[arg(long)]
    built: Option<PathBuf>,
    /// Print this command and a case's name as the way to run the case again
    #[arg(long)]
    repeat: String,
    /// Write the results to a file instead of printing them
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
}

/// A set of cases.
#[derive(Debug, Subcommand)]
enum Set {
    /// The cases of this machine
    Here,
    /// The cases of another release of rdma-core
    Release {
        /// The release
        number: u32,
        /// The root directory that has it
        #[arg(long)]
        root: Option<PathBuf>,
    },
    /// The recipes of the documents
    Apps,
    /// The attacks
    Attack {
        /// Seconds to watch before, during and after each attack
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// The cases in a virtual machine
    Guest {
        /// The machine's hardware, as `cargo xtask guest` names it
        #[arg(long, value_parser = hardware)]
        hardware: Hardware,
        /// The first characters of its kernel's release
        #[arg(long)]
        release: String,
        /// Expect a kernel with iommufd
        #[arg(long)]
        iommufd: bool,
        /// Expect a machine that was booted before, with the same cards
        #[arg(long)]
        again: bool,
    },
    /// The cases of this machine against a virtual one
    Against {
        #[command(flatten)]
        peer: Option<Peer>,
    },
    /// The cases of pairs of virtual machines, which run in one of the two
    Pairs {
        /// Run only those of the test command
        #[arg(long)]
        few: bool,
        /// Run only those that the test command runs with every kernel
        #[arg(long, conflicts_with = "few")]
        one: bool,
        /// The devices of the machines at their ends of the cable
        #[arg(long = "end", value_parser = end)]
        ends: Vec<End>,
        /// The lines to their agents
        #[arg(long = "line")]
        lines: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Peer {
    /// The line to the machine's agent
    #[arg(long, required = false)]
    line: PathBuf,
    /// Our end of the cable to it
    #[arg(long, required = false)]
    near: PathBuf,
    /// Its end
    #[arg(long, required = false)]
    far: PathBuf,
    /// The TCP port of this machine that leads to the same one there
    #[arg(long, required = false)]
    port: u16,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().task {
        Task::List { set } => set.list()?,
        Task::Run { how, set } => return how.run(&set),
        Task::Chaos { built, rounds, seed, many } => chaos(&built, rounds, seed, many)?,
        Task::Agent { end, address } => agent::agent(end, address)?,
        Task::Load { modules } => modules.iter().try_for_each(|module| vm::load(module))?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Set {
    /// The cases, but those that need a machine to be reached.
    fn cases(&self) -> Vec<Case> {
        match self {
            Self::Here => cases::all(),
            Self::Release { number, .. } => release::cases(*number),
            Self::Apps => apps::all(),
            Self::Attack { seconds } => attack::cases(attack::long(*seconds)),
            Self::Guest { hardware, release, iommufd, again } => {
                let kernel = Kernel { release, iommufd: *iommufd };
                let cases = if *again { guest::cases_of_second_boot } else { guest::cases };
                cases(*hardware, kernel)
            }
            Self::Against { .. } | Self::Pairs { .. } => Vec::new(),
        }
    }

    fn list(&self) -> Result<()> {
        let names = match self {
            Self::Against { .. } => interop::names(),
            Self::Pairs { few: true, .. } => guest_pair::in_test(),
            Self::Pairs { one: true, .. } => vec![guest_pair::on_every_kernel()],
            Self::Pairs { ends, .. } if !ends.is_empty() => {
                guest_pair::names(ends.as_slice().try_into().context("a pair has two ends")?)
            }
            Self::Pairs { .. } => PAIRS.into_iter().flat_map(guest_pair::names).collect(),
            _ => Vec::new(),
        };
        for name in names {
            say(format_args!("{}\n", json!({ "name": name, "full": true, "suites": [] })))?;
        }
        for Case { name, when, needs, .. } in self.cases() {
            let suite = |need: &Need| if let Need::Suite(it) = need { Some(it.name) } else { None };
            let suites: Vec<&str> = needs.iter().filter_map(suite).collect();
            let line = json!({ "name": name, "full": when == When::Full, "suites": suites });
            say(format_args!("{line}\n"))?;
        }
        Ok(())
    }
}

impl How {
    fn run(self, set: &Set) -> Result<ExitCode> {
        let Self { only, exact, built, repeat, summary: file } = self;
        let filter = Filter { parts: only, exact };
        let built = built.map_or_else(beside, Ok)?;
        let run = |cases: &[Case]| runner::run(cases, &filter, &built, &repeat);
        let side_by_side = |root: Option<&Root>| {
            runner::run_side_by_side(root, &set.cases(), &filter, &built, &repeat)
        };
        let summary = match set {
            Set::Here => side_by_side(None)?,
            Set::Release { root, .. } => {
                let path = root.clone().context("no root directory has the release")?;
                side_by_side(Some(&Root { path }))?
            }
            Set::Against { peer } => {
                let Peer { line, near, far, port } = peer.as_ref().context("no machine")?;
                let machine = Machine::new(agent::reach(line)?)?;
                let cable = Cable { near: near.clone(), far: far.clone() };
                let peer = Arc::new(interop::Peer { machine, cable, port: *port });
                let summary = run(&interop::cases(&peer))?;
                peer.machine.end()?;
                summary
            }
            Set::Pairs { ends, lines, .. } => {
                let sides = sides(ends, lines)?;
                let summary = run(&guest_pair::cases(&sides))?;
                sides.iter().try_for_each(|side| side.machine.end())?;
                summary
            }
            _ => run(&set.cases())?,
        };
        conclude(&summary, file.as_deref())
    }
}

/// The machines of a pair, once both have their agents.
fn sides(ends: &[End], lines: &[PathBuf]) -> Result<Arc<[Side; 2]>> {
    // Neither boots before its line is taken up.
    let streams = lines.iter().map(|line| agent::reach(line)).collect::<Result<Vec<_>>>()?;
    let sides = ends.iter().zip(streams).map(|(&end, stream)| {
        let machine = Machine::new(stream).with_context(|| format!("the machine with {end}"))?;
        Ok(Side { end, machine })
    });
    let sides: Vec<Side> = sides.collect::<Result<_>>()?;
    let sides: [Side; 2] = sides.try_into().ok().context("a pair has two ends and two lines")?;
    Ok(Arc::new(sides))
}

/// Hands on the summary of a run.
fn conclude(summary: &Summary, file: Option<&Path>) -> Result<ExitCode> {
    let Some(file) = file else {
        summary.print();
        let good = summary.failed.is_empty();
        return Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    };
    summary.write(file)?;
    Ok(ExitCode::SUCCESS)
}

fn chaos(built: &Path, rounds: u64, seed: u64, many: bool) -> Result<()> {
    let stage = Stage::new(built)?;
    let _tidy = interrupt::remove_on_signal(stage.path());
    let setting = stage.setting(Who::User)?;
    report!("{rounds} rounds from seed {seed}");
    if many {
        rounds::at_scale(&setting, seed, rounds)?;
        report!("{rounds} programs killed");
        return Ok(());
    }
    report!("{}", Chaos::new(&setting).run(seed, rounds)?);
    Ok(())
}

fn hardware(name: &str) -> Result<Hardware, String> {
    Hardware::named(name).ok_or_else(|| format!("there is no hardware {name}"))
}

fn end(name: &str) -> Result<End, String> {
    End::named(name).ok_or_else(|| format!("there is no end {name}"))
}

/// Where the programs under test are: beside this one.
fn beside() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    here.parent().map(PathBuf::from).context("this program lies in no directory")
}
