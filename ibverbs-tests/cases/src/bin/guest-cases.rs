//! Runs the guest's cases, in the guest; `cargo xtask guest` starts it there.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use cases::agent::{self, End};
use cases::guest;
use cases::runner::{self, Filter};
use cases::vm::{self, Hardware, Kernel};
use clap::{Parser, Subcommand};

/// Runs cases in a virtual machine, or loads kernel modules there.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run cases; the last line is `N passed, N failed, N skipped`
    Run {
        /// The kernel, as `cargo xtask guest` names it
        #[arg(long)]
        kernel: String,
        /// What the machine has, as `cargo xtask guest` names it
        #[arg(long, value_parser = hardware)]
        hardware: Hardware,
        /// What its release begins with
        #[arg(long)]
        release: String,
        /// It has iommufd
        #[arg(long)]
        iommufd: bool,
        /// It was booted before, with the same cards
        #[arg(long)]
        again: bool,
        /// Run only cases with TEXT in their name; may be repeated
        #[arg(long, value_name = "TEXT")]
        only: Vec<String>,
        /// Take --only for whole names
        #[arg(long)]
        exact: bool,
    },
    /// Do what standard input asks for, with an RDMA device on the first network device
    Agent {
        /// What the device is: rxe, or card, a software card of the installed package
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

fn main() -> Result<ExitCode> {
    match Arguments::parse().task {
        Task::Run { kernel, hardware, release, iommufd, again, only, exact } => {
            let repeat = format!("cargo xtask guest test --kernel {kernel} --only");
            let filter = Filter { parts: only, exact };
            let kernel = Kernel { release: &release, iommufd };
            let cases = if again { guest::cases_of_second_boot } else { guest::cases };
            let cases = cases(hardware, kernel);
            let summary = runner::run(&cases, &filter, &programs()?, &repeat)?;
            summary.print();
            let good = summary.failed.is_empty();
            Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Task::Agent { end, address } => {
            agent::agent(end, address)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Load { modules } => {
            modules.iter().try_for_each(|module| vm::load(module))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn hardware(name: &str) -> Result<Hardware, String> {
    Hardware::named(name).ok_or_else(|| format!("there is no hardware {name}"))
}

fn end(name: &str) -> Result<End, String> {
    End::named(name).ok_or_else(|| format!("there is no end {name}"))
}

/// Where the programs under test are: beside this one.
fn programs() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    here.parent().map(PathBuf::from).context("this program lies in no directory")
}
