//! The gateware: lint, simulation and synthesis of the RTL in `gateware/`, by tools that pip brings into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use harness::process::Task;
use harness::summary::{Clock, Step, Summary};
use terminal::report;

use crate::cargo::{self, Profile, conclude, root};
use crate::setup;

mod build;
mod cards;
mod demo;
mod ends;
mod lint;
mod own;
mod plants;
mod synth;
mod tools;

use plants::{PLANTS, Plant};
use tools::Tools;

/// How long a run of the simulation or of a compiler may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// `cargo xtask gateware`.
#[derive(Debug, Subcommand)]
pub enum Gateware {
    /// Lint the RTL by Verilator, slang and verible
    Lint {
        /// Write the format before that
        #[arg(long)]
        write: bool,
    },
    /// Build the RTL as libraries for the simulation, in target/gateware
    Build,
    /// Lint, build, and try the RTL cycle by cycle
    Test(Test),
    /// Run perftest, ibv_rc_pingpong, checks of each byte, and ends amid transfers, between software cards whose engines
    /// are RTL
    Demo(demo::Demo),
    /// Run a program by `balboa run` beside two such cards, balboa0 and balboa1
    Sim(cards::Sim),
    /// Synthesize each module by yosys, for the parts of an Alveo U55C
    Synth(synth::Options),
}

/// `cargo xtask gateware test`.
#[derive(Debug, Args)]
pub struct Test {
    /// Try the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Write the figures in cycles as JSON into this file
    #[arg(long, value_name = "FILE")]
    cycles: Option<PathBuf>,
    /// Plant a bug in the RTL, in place of the lint, and see the simulation fail; `list` names the bugs, `all` plants one
    /// after the other and fails where one is not found
    #[arg(long, value_name = "NAME|list|all")]
    plant: Option<String>,
}

/// Seeds of the full run of the tests.
const FEW: u64 = 200;

/// Runs a task of the gateware's.
///
/// # Errors
/// When a step fails; a tool that cannot be had is a skip of a test, and fails the others.
pub fn gateware(task: &Gateware) -> Result<ExitCode> {
    match task {
        Gateware::Lint { write } => {
            let tools = Tools::get()?;
            if *write {
                lint::format(&tools)?;
            }
            report!("gateware: {}: nothing to say", lint::lint(&tools)?);
            Ok(ExitCode::SUCCESS)
        }
        Gateware::Build => {
            let directory = libraries()?;
            report!("{}", directory.display());
            Ok(ExitCode::SUCCESS)
        }
        Gateware::Test(options) => match &options.plant {
            Some(name) => plant(options, name),
            None => conclude(test(options, None, false)?),
        },
        Gateware::Demo(options) => demo::demo(options),
        Gateware::Sim(options) => cards::sim(options),
        Gateware::Synth(options) => synth::synth(options),
    }
}

/// Builds the libraries of the RTL, and gives their directory.
///
/// # Errors
/// When a tool cannot be had, or the RTL does not build.
pub fn libraries() -> Result<PathBuf> {
    build::libraries(&Tools::get()?)
}

/// The steps of [`test()`].
const NAMES: [&str; 3] =
    ["gateware: lint", "gateware: simulation", "gateware: the queue engine's own tests"];

/// The names of what [`check`] counts.
pub fn names() -> impl Iterator<Item = String> {
    NAMES.map(str::to_owned).into_iter().chain(demo::names())
}

/// Tries the RTL with a few seeds, and programs between cards that have it; steps whose tools are missing are skips, unless
/// they are required.
///
/// # Errors
/// When the simulation, or the cards, cannot be run.
pub fn check(programs: &Path, require: bool) -> Result<Summary> {
    let mut summary =
        test(&Test { seeds: FEW, cycles: None, plant: None }, Some(programs), require)?;
    summary.add(match libraries() {
        Ok(logic) => demo::check(programs, &logic)?,
        Err(error) => setup::without(&demo::names(), &error, require),
    });
    Ok(summary)
}

fn test(options: &Test, programs: Option<&Path>, require: bool) -> Result<Summary> {
    let mut summary = Summary::default();
    let tools = match Tools::get() {
        Ok(tools) => tools,
        Err(error) => return Ok(setup::without(&NAMES, &error, require)),
    };
    let clock = Clock::start();
    match lint::lint(&tools) {
        Ok(said) => {
            report!("ok   {}: {said}", NAMES[0]);
            summary.passed += 1;
        }
        Err(error) => {
            report!("FAIL {}: {error:#}", NAMES[0]);
            summary.failed.push(NAMES[0].to_owned());
        }
    }
    summary.steps.push(Step::of(NAMES[0], &clock));
    let clock = Clock::start();
    let logic = match build::libraries(&tools) {
        Ok(logic) => logic,
        Err(error) => {
            summary.add(setup::without(&NAMES[1..], &error, require));
            return Ok(summary);
        }
    };
    summary.add(simulate(options, programs, &logic, None)?);
    summary.steps.push(Step::of(NAMES[1], &clock));
    let clock = Clock::start();
    summary.add(own::tests(&logic)?);
    summary.steps.push(Step::of(NAMES[2], &clock));
    Ok(summary)
}

/// Tries RTL with a bug in it: fails as the simulation does.
fn plant(options: &Test, name: &str) -> Result<ExitCode> {
    if name == "list" {
        for plant in PLANTS {
            report!("{:<24}{}", plant.name, plant.says);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let one = PLANTS.iter().find(|plant| plant.name == name);
    ensure!(one.is_some() || name == "all", "there is no plant {name}; see --plant list");
    let (tools, programs) = (Tools::get()?, programs()?);
    let find = |plant: &Plant| {
        let logic = build::planted(&tools, plant)?;
        simulate(options, Some(&programs), &logic, Some(plant))
    };
    if let Some(plant) = one {
        return conclude(find(plant)?);
    }
    let mut missed = Vec::new();
    for plant in PLANTS {
        let found = !find(plant)?.failed.is_empty();
        report!("{} {}: {}", if found { "found " } else { "MISSED" }, plant.name, plant.says);
        missed.extend((!found).then_some(plant.name));
    }
    ensure!(missed.is_empty(), "nothing fails with these bugs: {}", missed.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Builds the simulation's own program, and gives its directory.
fn programs() -> Result<PathBuf> {
    cargo::build_of(Profile::Quick, "--package cosim")
}

/// Runs the simulation's own program, all of it, or what a plant is tried by.
fn simulate(
    options: &Test,
    programs: Option<&Path>,
    logic: &Path,
    plant: Option<&Plant>,
) -> Result<Summary> {
    let built = match programs {
        Some(programs) => programs.to_owned(),
        None => self::programs()?,
    };
    let mut task = Task::new(built.join("cosim")).arg("--logic").arg(logic);
    task = task.arg("--seeds").arg(options.seeds.to_string());
    if let Some(plant) = plant {
        task = task.arg(if plant.is_of_adaptor() { "--adaptor" } else { "--engine" });
    }
    if let Some(file) = &options.cycles {
        task = task.arg("--cycles").arg(std::path::absolute(file)?);
    }
    let finished = task.limit(LIMIT).run()?;
    terminal::say(format_args!("{}", finished.stdout))?;
    let mut summary = Summary::parse(&finished.stdout).with_context(|| {
        format!("the simulation's run has no closing line: {}", finished.stderr)
    })?;
    summary.name_after("gateware/");
    Ok(summary)
}

/// All RTL that a card can have, in the order in which it is read: packages first, the contract's before all.
fn sources() -> Result<Vec<PathBuf>> {
    let root = root();
    let mut all = vec![root.join("contract/balboa_card_pkg.sv")];
    let own = files(&root.join("gateware/rtl"))?;
    let is_package = |path: &PathBuf| path.to_string_lossy().ends_with("_pkg.sv");
    all.extend(own.iter().filter(|path| is_package(path)).cloned());
    all.extend(files(&root.join("gateware/rtl/prim"))?);
    all.extend(own.iter().filter(|path| !is_package(path)).cloned());
    Ok(all)
}

/// The top modules for the simulation.
fn tops() -> Result<Vec<PathBuf>> {
    files(&root().join("gateware/sim"))
}

/// The SystemVerilog of a directory, by name.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let entries = fs::read_dir(directory);
    for entry in entries.with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "sv") {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// The modules of files: each has the name of its file, and packages are none.
fn modules(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(path)?;
        if text.lines().any(|line| line.starts_with(&format!("module {name}"))) {
            all.push(name);
        }
    }
    Ok(all)
}
