//! Fuzz targets, for longer than the test command has time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::process::Task;
use terminal::report;

use crate::cargo::{LIMIT, cargo, root, target_directory};
use crate::selection::NoName;
use crate::stack;

/// `cargo xtask fuzz`.
#[derive(Debug, Args)]
pub struct Options {
    /// The target to fuzz, of those that --list prints
    #[arg(required_unless_present = "list")]
    target: Option<String>,
    /// Fuzz for N minutes
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,
    /// Begin with this seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// List the targets and run nothing
    #[arg(long)]
    list: bool,
}

/// The compiler's options that tell libFuzzer which code an input reached; stable options all of them.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1 --cfg fuzzing";

/// Time for a build, and for an engine to end after its time.
const EXTRA: Duration = Duration::from_secs(120);

/// Runs a target under libFuzzer, or under the seeded random engine where that cannot be built.
///
/// # Errors
/// [`NoName`], or when nothing can be built.
pub fn fuzz(options: &Options) -> Result<ExitCode> {
    cargo("build --package fuzz --locked --quiet").shown().run()?.success()?;
    let random = target_directory()?.join("debug/fuzz-random");
    let list = Task::new(&random).arg("--list").run()?.success()?.stdout;
    if options.list {
        terminal::say(format_args!("{list}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = options.target.clone().unwrap_or_default();
    if !list.lines().any(|line| line.split_whitespace().next() == Some(&name)) {
        let told = format!("there is no fuzz target {name:?}; cargo xtask fuzz --list names them");
        return Err(NoName(told).into());
    }
    let stack = if name == stack::TARGET { Some(stack::built()?) } else { None };
    let status = match build_coverage() {
        Ok(program) => run_coverage(&program, &name, stack.as_deref(), options)?,
        Err(error) => {
            let why = format!("{error:#}");
            let why =
                why.lines().find(|line| line.contains("error")).unwrap_or("it does not build");
            report!("no coverage-guided engine here ({why}): the seeded random engine runs");
            run_random(&random, &name, stack.as_deref(), options)?
        }
    };
    Ok(if status { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the targets with libFuzzer, apart from everything else.
fn build_coverage() -> Result<PathBuf> {
    let version = Task::new("rustc").arg("-vV").with_our_environment().run()?.success()?.stdout;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc names no host")?;
    let directory = target_directory()?.join("fuzz");
    // With --target, the flags are for the targets and not for build scripts.
    let words = format!(
        "build --package fuzz --bin fuzz-coverage --features coverage --release --locked --quiet --target {host}"
    );
    cargo(&words)
        .arg("--target-dir")
        .arg(&directory)
        .env("RUSTFLAGS", COVERAGE)
        // Link-time optimization and coverage do not go together.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .run()?
        .success()?;
    Ok(directory.join(host).join("release/fuzz-coverage"))
}

/// Runs libFuzzer, with a corpus that stays, and findings in `target/fuzz/findings/TARGET/`.
fn run_coverage(
    program: &Path,
    name: &str,
    stack: Option<&Path>,
    options: &Options,
) -> Result<bool> {
    let home = target_directory()?.join("fuzz");
    let corpus = home.join("corpus").join(name);
    let findings = home.join("findings").join(name);
    for directory in [&corpus, &findings] {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let kept = root().join("fuzz/regressions").join(name);
    let seconds = options.minutes * 60;
    report!("libFuzzer, {} minutes; findings go to {}", options.minutes, findings.display());
    let mut task = target(program, stack)
        .env("FUZZ_TARGET", name)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-seed={}", options.seed))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg("-print_final_stats=1")
        .arg("-max_len=4096")
        // Structured inputs are of use from a few hundred bytes on.
        .arg("-len_control=0")
        .arg("-timeout=60")
        .arg("-rss_limit_mb=4096")
        .arg(&corpus)
        .limit(Duration::from_secs(seconds) + EXTRA);
    if kept.is_dir() {
        task = task.arg(&kept);
    }
    let finished = task.run()?;
    for line in finished.stderr.lines() {
        let wanted = ["DONE", "stat::", "panicked", "SUMMARY", "Test unit written"];
        if wanted.iter().any(|word| line.contains(word)) {
            report!("{line}");
        }
    }
    if !finished.status.success() {
        report!("{finished}");
        report!(
            "repeat: cargo run -p fuzz --bin fuzz-random -- {name} --input FILE; a failure that is mended stays in fuzz/regressions/{name}/"
        );
    }
    Ok(finished.status.success())
}

/// A target's program, with the published card's stack, which one of them is for.
fn target(program: &Path, stack: Option<&Path>) -> Task {
    let task = Task::new(program).with_our_environment();
    match stack {
        Some(stack) => task.env(stack::PROGRAM, stack),
        None => task,
    }
}

fn run_random(program: &Path, name: &str, stack: Option<&Path>, options: &Options) -> Result<bool> {
    let seconds = options.minutes * 60;
    let finished = target(program, stack)
        .words(&format!("{name} --seconds {seconds} --seed {}", options.seed))
        .limit(Duration::from_secs(seconds) + EXTRA + LIMIT)
        .run()?;
    report!("{}", finished.stdout.trim_end());
    if !finished.status.success() {
        report!("{}", finished.stderr.trim_end());
    }
    Ok(finished.status.success())
}
