//! Logic in RTL as libraries that the simulation loads.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use harness::process::Task;
use terminal::report;

use super::plants::Plant;
use super::tools::Tools;
use super::{LIMIT, sources};
use crate::cargo::{root, target_directory};
use crate::setup;

/// The top modules for the simulation, `gateware/sim/NAME_top.sv`, and the definitions for the C++ around them.
const TOPS: [(&str, &str); 3] = [("copy", ""), ADAPTOR, ENGINE];
const ADAPTOR: (&str, &str) = ("coyote", "");
const ENGINE: (&str, &str) = ("engine", "-DVFPGA_PORT_N");
/// The ports that all of them have.
const PORTS: &str = "vfpga_ports.svh";
/// Runtime of Verilator's models.
const RUNTIME: [&str; 2] = ["verilated.cpp", "verilated_threads.cpp"];
const FLAGS: &str = "-std=gnu++20 -O2 -fPIC -w -DVM_COVERAGE=0 -DVM_SC=0 -DVM_TIMING=0 -DVM_TRACE=0 -DVM_TRACE_FST=0 \
                     -DVM_TRACE_VCD=0 -DVM_TRACE_SAIF=0 -DVERILATOR=1 -DVL_TIME_CONTEXT";

/// Builds the libraries, as far as they are older than their sources, and gives their directory.
///
/// # Errors
/// When a tool cannot be had, or the RTL does not build.
pub fn libraries(tools: &Tools) -> Result<PathBuf> {
    // Cases against virtual machines need them beside the simulation's own test.
    static ONE_AFTER_THE_OTHER: Mutex<()> = Mutex::new(());
    let _one = ONE_AFTER_THE_OTHER.lock().unwrap_or_else(PoisonError::into_inner);
    setup::packages(setup::GATEWARE)?;
    let directory = target_directory()?.join("gateware");
    for top in TOPS {
        library(tools, top, &sources()?, &directory)?;
    }
    Ok(directory)
}

/// The engine's library alone, which records waves, in a directory of its own.
///
/// # Errors
/// As [`libraries`].
pub fn recording(tools: &Tools) -> Result<PathBuf> {
    setup::packages(setup::WAVES)?;
    let directory = target_directory()?.join("gateware-waves");
    let (top, ports) = ENGINE;
    let waves = format!("{ports} -UVM_TRACE -DVM_TRACE=1 -UVM_TRACE_FST -DVM_TRACE_FST=1");
    library(tools, (top, &waves), &sources()?, &directory)?;
    Ok(directory)
}

/// The same with a bug in the RTL, in a directory of its own.
///
/// # Errors
/// As [`libraries`], and when the bug does not fit the RTL.
pub fn planted(tools: &Tools, plant: &Plant) -> Result<PathBuf> {
    setup::packages(setup::GATEWARE)?;
    let directory = target_directory()?.join("gateware-planted").join(plant.name);
    let sources = plant.apply(&sources()?, &directory)?;
    let top = if plant.is_of_adaptor() { ADAPTOR } else { ENGINE };
    library(tools, top, &sources, &directory)?;
    Ok(directory)
}

/// Builds one library. The text of all that it is made from is kept beside it, and it is made again once that differs.
fn library(
    tools: &Tools,
    (top, ports): (&str, &str),
    sources: &[PathBuf],
    directory: &Path,
) -> Result<()> {
    let simulation = root().join("gateware/sim");
    let glue = simulation.join("vfpga.cpp");
    let records = ports.contains("VM_TRACE_FST=1");
    let mut made_from =
        format!("{FLAGS} {ports}\n{}\n", include_str!("../../../gateware/tools.txt"));
    let mut rtl = sources.to_vec();
    rtl.push(simulation.join(format!("{top}_top.sv")));
    let shared = ["vfpga.h", PORTS].map(|name| simulation.join(name));
    for path in rtl.iter().chain([&glue]).chain(&shared) {
        made_from.push_str(&fs::read_to_string(path)?);
    }
    let (library, key) = (format!("lib{top}.so"), directory.join(format!("{top}.made-from")));
    if directory.join(&library).exists()
        && fs::read_to_string(&key).is_ok_and(|kept| kept == made_from)
    {
        return Ok(());
    }
    report!("building the logic {top} (Verilator, then g++)");
    let made = directory.join(top);
    let _ = fs::remove_dir_all(&made);
    fs::create_dir_all(&made)?;
    let prefix = format!("V{top}_top");
    let task = tools.verilator().words("--cc --assert -O3 --x-assign unique --x-initial unique");
    let task = task.words(if records { "--trace-fst --trace-structs" } else { "" });
    let task = task.words("--no-timing -Wall -Wno-fatal --Mdir").arg(&made);
    let task = task.arg(format!("-I{}", simulation.display()));
    let task = task.arg("--top-module").arg(format!("{top}_top")).args(&rtl);
    task.run()?.success().context("Verilator does not build the logic")?;
    let mut parts = vec![glue];
    let runtime = RUNTIME.iter().chain(records.then_some(&"verilated_fst_c.cpp"));
    parts.extend(runtime.map(|part| tools.verilator_include().join(part)));
    for entry in fs::read_dir(&made)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "cpp") {
            parts.push(path);
        }
    }
    parts.sort();
    let task = Task::new("g++").with_our_environment().directory(&made).words(FLAGS).words(ports);
    let task =
        task.arg(format!("-DVFPGA_TOP={prefix}")).arg(format!("-DVFPGA_HEADER=\"{prefix}.h\""));
    let task = task.arg("-I").arg(&made).arg("-I").arg(tools.verilator_include());
    let task = task.arg("-I").arg(tools.verilator_include().join("vltstd"));
    let task = task.arg("-I").arg(&simulation).words("-shared -o").arg(&library).args(&parts);
    let task = task.words(if records { "-llz4 -lz" } else { "" });
    task.limit(LIMIT).run()?.success().context("the simulation does not compile")?;
    fs::rename(made.join(&library), directory.join(&library))?;
    fs::remove_dir_all(&made)?;
    fs::write(&key, made_from)?;
    Ok(())
}
