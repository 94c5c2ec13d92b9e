//! `cargo xtask guest pair`: two virtual machines on one cable.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use cases::guest_pair::{self, Side};
use harness::agent::{ADDRESSES, Cable, End, PAIRS};
use harness::process::{Running, Task};
use harness::runner::{self, Filter};
use harness::suites::{MPI, MPI_COMPILERS};
use harness::summary::Summary;
use harness::vm::Hardware;
use terminal::report;

use super::Version;
use super::vm::{self, Machine, Parts};

/// The names of all cases.
pub fn names(_: Version) -> Vec<String> {
    PAIRS.into_iter().flat_map(guest_pair::names).collect()
}

/// The names of those that the test command runs too.
pub fn in_test(version: Version) -> Vec<String> {
    match version {
        Version::V6_1 => guest_pair::in_test(),
        // The list of this kernel is long, and all cases on all kernels are here.
        Version::V6_12 => vec![guest_pair::on_every_kernel()],
        // It has no rxe.
        Version::Iommufd => Vec::new(),
    }
}

/// Runs those, each pair's within the limit of a kernel's machines.
///
/// # Errors
/// When the machines cannot be laid out.
pub fn run_few(version: Version, filter: &Filter, parts: &Parts) -> Result<Summary> {
    let few = in_test(version);
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
        if guest_pair::names(ends).iter().any(|name| takes(name)) {
            let until = Instant::now() + vm::LIMIT;
            let parts = Parts { until, ..parts.clone() };
            summary.add(run_pair(version, ends, takes, &parts)?);
        }
    }
    Ok(summary)
}

fn run_pair(
    version: Version,
    ends: [End; 2],
    takes: &dyn Fn(&str) -> bool,
    parts: &Parts,
) -> Result<Summary> {
    let home = tempfile::Builder::new().prefix("balboa-guest-").tempdir()?;
    let _tidy = harness::interrupt::remove_on_signal(home.path());
    let (running, sides) = match boot(home.path(), ends, parts) {
        Ok(booted) => booted,
        Err(error) => {
            let [first, second] = ends;
            report!("FAIL pair {}, {first} and {second}\n{error:#}", version.name());
            let failed = vec![format!("pair/{first} and {second}/the machines themselves")];
            return Ok(Summary { failed, ..Summary::default() });
        }
    };
    let sides = Arc::new(sides);
    let repeat = format!("cargo xtask guest pair --kernel {} --only", version.name());
    let mut cases = guest_pair::cases(&sides);
    cases.retain(|case| takes(&case.name));
    let summary = runner::run(&cases, &Filter::default(), &parts.built, &repeat)?;
    for (side, running) in sides.iter().zip(running) {
        side.machine.end()?;
        running.limited(vm::END).wait()?.success()?;
    }
    Ok(summary)
}

/// Boots both machines at once.
fn boot(home: &Path, ends: [End; 2], parts: &Parts) -> Result<([Running; 2], [Side; 2])> {
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
    let served = [start(0, &cable)?, start(1, &cable.turned())?];
    let [first, second] = served.map(vm::Booting::ready);
    let ((first, first_machine), (second, second_machine)) = (first?, second?);
    let sides = [
        Side { end: ends[0], machine: first_machine },
        Side { end: ends[1], machine: second_machine },
    ];
    Ok(([first, second], sides))
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
