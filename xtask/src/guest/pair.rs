//! `cargo xtask guest pair`: two virtual machines on one cable.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use harness::agent::{ADDRESSES, Cable, End, PAIRS};
use harness::process::Task;
use harness::runner::Filter;
use harness::suites::{MPI, MPI_COMPILERS};
use harness::summary::Summary;
use harness::vm::Hardware;
use terminal::report;

use super::Version;
use super::vm::{self, Booting, Machine, Parts};
use crate::cases::Set;

/// The names of all cases.
///
/// # Errors
/// When they do not build.
pub fn names(_: Version) -> Result<Vec<String>> {
    Set::pairs().names()
}

/// The names of those that the test command runs too.
///
/// # Errors
/// When they do not build.
pub fn in_test(version: Version) -> Result<Vec<String>> {
    match version {
        Version::V6_1 => Set::few_of_pairs().names(),
        // The list of this kernel is long, and all cases on all kernels are here.
        Version::V6_12 => Set::one_of_pairs().names(),
        // It has no rxe.
        Version::Iommufd => Ok(Vec::new()),
    }
}

/// Runs those, each pair's within the limit of a kernel's machines.
///
/// # Errors
/// When the machines cannot be laid out.
pub fn run_few(version: Version, filter: &Filter, parts: &Parts) -> Result<Summary> {
    let few = in_test(version)?;
    run_pairs(version, &|name| filter.takes(name) && few.iter().any(|it| it == name), parts)
}

/// Runs the cases of all pairs, each pair's within the limit of a kernel's machines.
///
/// # Errors
/// When the machines cannot be laid out.
pub fn run_cases(version: Version, filter: &Filter, built: &Path) -> Result<Summary> {
    super::with_parts(version, filter, built, names, |parts| {
        run_pairs(version, &|name| filter.takes(name), parts)
    })
}

/// Boots two machines for each kind of pair that has cases to run.
fn run_pairs(version: Version, takes: &dyn Fn(&str) -> bool, parts: &Parts) -> Result<Summary> {
    let mut summary = Summary::default();
    for ends in PAIRS {
        let mut names = Set::pair(ends).names()?;
        names.retain(|name| takes(name));
        if !names.is_empty() {
            let until = Instant::now() + vm::LIMIT;
            let parts = Parts { until, ..parts.clone() };
            summary.add(run_pair(version, ends, names, &parts)?);
        }
    }
    Ok(summary)
}

fn run_pair(
    version: Version,
    ends: [End; 2],
    names: Vec<String>,
    parts: &Parts,
) -> Result<Summary> {
    let home = tempfile::Builder::new().prefix("balboa-guest-").tempdir()?;
    let _tidy = harness::interrupt::remove_on_signal(home.path());
    let repeat = format!("cargo xtask guest pair --kernel {} --only", version.name());
    let filter = Filter { parts: names, exact: true };
    let outcome = boot(home.path(), ends, parts).and_then(|[first, second]| {
        let cases = Set::pair(ends).with_line(first.line()).with_line(second.line());
        let outcome = cases.run(&filter, &parts.built, &repeat);
        second.ended(first.ended(outcome))
    });
    outcome.or_else(|error| {
        let [first, second] = ends;
        report!("FAIL pair {}, {first} and {second}\n{error:#}", version.name());
        let failed = vec![format!("pair/{first} and {second}/the machines themselves")];
        Ok(Summary { failed, ..Summary::default() })
    })
}

/// Starts both machines, which boot once their lines are taken up.
fn boot(home: &Path, ends: [End; 2], parts: &Parts) -> Result<[Booting; 2]> {
    let cable = Cable { near: home.join("end0"), far: home.join("end1") };
    let start = |number: usize, cable: &Cable| {
        let directory = home.join(format!("machine{number}"));
        fs::create_dir(&directory)?;
        let job = vm::agent_job(ends[number], ADDRESSES[number]);
        let machine = Machine::new(parts, Hardware::Plain, &directory)?;
        compile_mpi(&directory.join("job"))?;
        machine
            .serve(&job, cable, ADDRESSES[number], None)
            .with_context(|| format!("machine {number}"))
    };
    Ok([start(0, &cable)?, start(1, &cable.turned())?])
}

/// Compiles the MPI program for a machine, by each compiler for it that this one has.
fn compile_mpi(job: &Path) -> Result<()> {
    let (source, text) = MPI;
    fs::write(job.join(source), text)?;
    for (compiler, _, program) in MPI_COMPILERS {
        if Task::is_installed(compiler) {
            let task = Task::new(compiler).with_our_environment().directory(job);
            task.words("-O2 -o").arg(program).arg(source).run()?.success()?;
        }
    }
    Ok(())
}
