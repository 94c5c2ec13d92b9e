//! Services on the path of packets, against implementations that are not ours, and searches that know no automaton.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use harness::summary::{Clock, Step, Summary};
use terminal::report;

use crate::cargo::{self, cargo};
use crate::setup;
use crate::wheels::{PYTHON, Wheels};

/// `cargo xtask services`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Have numpy judge the rows and words of N seeds
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
}

const HELP: &str = "\
The last line is `N passed, N failed, N skipped`. The cases that move messages through services between cards are
`cargo xtask test --only services/` and `--only psp/`.";

/// Seeds of the full run of the tests.
const FEW: u64 = 2;
/// The list of what judges.
const LIST: &str = "services/tests/numpy.txt";
/// The variables with the Python that has numpy, and with the number of seeds.
const PYTHON_VARIABLE: &str = "SERVICES_PYTHON";
const SEEDS_VARIABLE: &str = "SERVICES_SEEDS";

/// What judges a service.
#[derive(Clone, Copy, Debug)]
struct Judge {
    name: &'static str,
    /// Its tests, in cargo's options.
    tests: &'static str,
    numpy: bool,
}

const JUDGES: [Judge; 5] = [
    Judge {
        name: "services: preprocess against numpy",
        tests: "--package services --test preprocess",
        numpy: true,
    },
    Judge {
        name: "services: classifier against numpy",
        tests: "--package services --test classifier",
        numpy: true,
    },
    Judge {
        name: "services: inspect against searches of whole messages",
        tests: "--package services --test inspect",
        numpy: false,
    },
    Judge {
        name: "services: what holds of each",
        tests: "--package services --test invariants",
        numpy: false,
    },
    Judge {
        name: "services: PSP against recorded vectors",
        tests: "--package psp --test vectors --test invariants",
        numpy: false,
    },
];

/// Judges the services.
///
/// # Errors
/// When the judges cannot be run.
pub fn services(options: &Options) -> Result<ExitCode> {
    let summary = judge(options.seeds, false)?;
    report!("");
    cargo::conclude(summary)
}

/// The names of what [`check`] counts.
pub fn names() -> impl Iterator<Item = &'static str> {
    JUDGES.iter().map(|judge| judge.name)
}

/// Judges the services with a few seeds; where numpy is missing its part is skipped, unless it is required.
///
/// # Errors
/// When the judges cannot be run.
pub fn check(require: bool) -> Result<Summary> {
    judge(FEW, require)
}

fn judge(seeds: u64, require: bool) -> Result<Summary> {
    let numpy = Wheels::listed("services", LIST, setup::SERVICES, "cargo xtask services");
    let mut summary = Summary::default();
    for judge in JUDGES {
        // Optimized: numpy is, and the words are many.
        let mut task = cargo("test --profile quick --locked --quiet").words(judge.tests);
        match &numpy {
            Ok(wheels) if judge.numpy => {
                task = task.env(PYTHON_VARIABLE, PYTHON).env(SEEDS_VARIABLE, seeds.to_string());
                task = task.env("PYTHONPATH", wheels.site()).env("PYTHONDONTWRITEBYTECODE", "1");
            }
            Err(error) if judge.numpy => {
                summary.add(setup::without(&[judge.name], error, require));
                continue;
            }
            _ => {}
        }
        let clock = Clock::start();
        let finished = task.run()?;
        if finished.status.success() {
            report!("ok   {}", judge.name);
            summary.passed += 1;
        } else {
            report!("FAIL {}\n{finished}", judge.name);
            summary.failed.push(judge.name.to_owned());
        }
        summary.steps.push(Step::of(judge.name, &clock));
    }
    Ok(summary)
}
