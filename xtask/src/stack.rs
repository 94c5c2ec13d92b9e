//! The published card's RoCE stack, its authors' code, compiled natively: the fuzz target `differential` compares the
//! model in `stock/` with it.
//!
//! The program that drives it is `stack/harness.cpp`. Sources and builds stay in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::process::{Task, last_lines};
use harness::runner::{self, Case, Filter};
use harness::setting::Setting;
use harness::summary::Summary;
use terminal::report;

use crate::cache::Cache;
use crate::cargo::{self, PROGRAMS, Profile, build_of};
use crate::selection::{self, Selection};
use crate::setup;

/// The fuzz target, and the variable that names the program for it.
pub const TARGET: &str = "differential";
pub const PROGRAM: &str = "BALBOA_STACK";

/// A public repository, at one commit.
struct Source {
    name: &'static str,
    from: &'static str,
    commit: &'static str,
}

const STACK: Source = Source {
    name: "fpga-network-stack",
    from: "https://github.com/fpgasystems/fpga-network-stack",
    commit: "77df57fdddcf2b7dc6b652f8ee4634ecc6cabf9b",
};
/// The synthesizer's integers.
const INTEGERS: Source = Source {
    name: "HLS_arbitrary_Precision_Types",
    from: "https://github.com/Xilinx/HLS_arbitrary_Precision_Types",
    commit: "200a9aecaadf471592558540dc5a88256cbf880f",
};
const SOURCES: [Source; 2] = [STACK, INTEGERS];

const HARNESS: &str = include_str!("stack/harness.cpp");
const STREAM: &str = include_str!("stack/hls_stream.h");
/// The stack's own template of its constants, and their values as the published card is built.
const TEMPLATE: &str = "hls/rocev2/rocev2_config.hpp.in";
const VALUES: [(&str, &str); 3] =
    [("${DATA_WIDTH}", "64"), ("${ROCE_STACK_MAX_QPS}", "500"), ("${PMTU_BYTES}", "4096")];
/// Headers that its files ask for, with constants that are among those.
const SAME: [&str; 2] = ["ipv4_config.hpp", "udp_config.hpp"];
/// How a case is run again, with its name.
const REPEAT: &str = "cargo xtask stack --only";
const FLAGS: &str = "-std=gnu++17 -O2 -w";

/// How long fetching may take, the compiler, and the inputs of the test command.
const FETCH: Duration = Duration::from_secs(5 * 60);
const COMPILATION: Duration = Duration::from_secs(15 * 60);
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// `cargo xtask stack`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    selection: Selection,
}

/// Runs the stack's code beside software cards.
///
/// # Errors
/// When its sources cannot be had, or do not compile.
pub fn stack(options: &Options) -> Result<ExitCode> {
    let cases = cases(&built()?);
    let filter = options.selection.filter();
    selection::all_named(&selection::names(&cases), &filter, None)?;
    let programs = build_of(Profile::Quick, PROGRAMS)?;
    let summary = runner::run(&cases, &filter, &programs, REPEAT)?;
    report!("");
    cargo::conclude(summary)
}

/// Holds the model against the stack, with the inputs of the test command; where the stack cannot be had it is skipped.
///
/// # Errors
/// When the fuzzer cannot be run.
pub fn check(programs: &Path) -> Result<Summary> {
    let name = format!("the published card's model against its stack ({TARGET})");
    let harness = match built() {
        Ok(harness) => harness,
        Err(error) => return Ok(Summary::skipped(&name, &error)),
    };
    let task = Task::new(programs.join("fuzz-random")).arg(TARGET).arg("--budget");
    let finished = task.with_our_environment().env(PROGRAM, &harness).limit(LIMIT).run()?;
    let mut summary = Summary::default();
    if finished.status.success() {
        report!("ok   {name}: {}", finished.stdout.trim_end());
        summary.passed = 1;
    } else {
        report!("FAIL {name}\n{}", last_lines(finished.stderr.trim_end(), 120).join("\n"));
        report!("with {PROGRAM}={}", harness.display());
        summary.failed.push(name);
    }
    summary.add(runner::run(&cases(&harness), &Filter::default(), programs, REPEAT)?);
    Ok(summary)
}

/// The stack's code and a card on the machine's own network, which WRITE and READ each other's memory.
fn cases(stack: &Path) -> [Case; 1] {
    let stack = stack.to_owned();
    let name = "the published card's stack/beside --port udp";
    [Case::new(name, &[], move |setting| beside_udp(setting, &stack))]
}

fn beside_udp(setting: &Setting, stack: &Path) -> Result<()> {
    let copy = setting.directory().join("stack");
    fs::copy(stack, &copy)?;
    // Of the loopback network, and no other case's.
    let [a, b, ..] = std::process::id().to_le_bytes();
    let [card, theirs] = [a & 0xfe, a | 1].map(|last| format!("127.130.{b}.{last}"));
    let daemon = setting.balboad(&format!("--soft 1 --port udp:{card}"))?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("their-stack --gid 0");
    let task = task.arg("--address").arg(theirs).arg("--program").arg(copy).limit(LIMIT);
    task.run()?.success()?.says("28 messages arrived as they should")?;
    daemon.stop()
}

/// Sees to it that the program lies in the cache.
///
/// # Errors
/// When the sources cannot be had, or do not compile.
pub fn built() -> Result<PathBuf> {
    let cache = Cache::open("stack")?;
    let commits = SOURCES.map(|source| source.commit).join("\n");
    let values = VALUES.map(|(name, value)| format!("{name}={value}")).join("\n");
    let key = [&commits, FLAGS, &values, HARNESS, STREAM].join("\n");
    if let Some(directory) = cache.kept("built", &key) {
        return Ok(directory.join("harness"));
    }
    setup::packages(setup::STACK)?;
    let sources = cache.keep("sources", &commits, |into| {
        SOURCES.iter().try_for_each(|source| fetch(source, &into.join(source.name)))
    })?;
    let directory = cache.keep("built", &key, |into| compile(&sources, into))?;
    Ok(directory.join("harness"))
}

/// Gets the files of a commit from a copy of the repository in the cache, or from where it is public.
fn fetch(source: &Source, into: &Path) -> Result<()> {
    let Source { name, from, commit } = source;
    let copies = harness::cache::directory().context("no cache")?.join("sources");
    let copy = copies.join(name);
    let from = if copy.is_dir() { copy.as_path() } else { Path::new(from) };
    report!("fetching {name} from {}", from.display());
    fs::create_dir(into)?;
    let git = |words: &str| {
        let task = Task::new("git").with_our_environment().env("GIT_TERMINAL_PROMPT", "0");
        task.directory(into).words(words).limit(FETCH)
    };
    let fetched = git("init --quiet").run()?.success().and_then(|_| {
        git("fetch --quiet --depth 1").arg(from).arg(commit).run()?.success()?;
        git("checkout --quiet --detach").arg(commit).run()?.success()
    });
    fetched.map(drop).with_context(|| {
        format!(
            "no commit {commit} of {name}; put a clone, or a link to one, at {}",
            copy.display()
        )
    })
}

/// Compiles the stack, with the program that drives it, into a directory.
fn compile(sources: &Path, into: &Path) -> Result<()> {
    let stack = sources.join(STACK.name);
    report!("compiling the published card's stack");
    let template = fs::read_to_string(stack.join(TEMPLATE))?;
    let constants = VALUES.iter().fold(template, |text, (name, value)| text.replace(name, value));
    fs::write(into.join("rocev2_config.hpp"), constants)?;
    for name in SAME {
        fs::write(into.join(name), "#include \"rocev2_config.hpp\"\n")?;
    }
    fs::write(into.join("hls_stream.h"), STREAM)?;
    fs::write(into.join("harness.cpp"), HARNESS)?;
    let mut task = Task::new("g++").with_our_environment().directory(into).words(FLAGS);
    let integers = sources.join(INTEGERS.name).join("include");
    for directory in [into, &integers, &stack.join("hls")] {
        task = task.arg("-I").arg(directory);
    }
    let task = task.words("harness.cpp -o harness").limit(COMPILATION);
    task.run()?.success().context("the stack does not compile").map(drop)
}
