//! Cargo, as the one that runs us.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::process::{Finished, Task};
use harness::summary::Summary;
use terminal::report;

/// How long a build or a run of all unit tests may take.
pub const LIMIT: Duration = Duration::from_secs(45 * 60);

/// `cargo WORDS` in the workspace's root.
pub fn cargo(words: &str) -> Task {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Task::new(program).words(words).with_our_environment().directory(root()).limit(LIMIT)
}

/// Whether cargo has a subcommand.
pub fn has_subcommand(name: &str) -> bool {
    cargo(&format!("{name} --version")).run().is_ok_and(|it| it.status.success())
}

/// The programs that are in packages, and the one by which packages are tried in roots of their own.
const SHIPPED: [&str; 5] = ["balboa", "balboad", "balboa-perf", "softcard", "in-root"];

/// The workspace's root.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// How programs are built, by its name in the workspace's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The profile of the packages.
    Release,
    /// The profile of tests, built in less than half of the time, nearly as fast.
    Quick,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quick => "quick",
        }
    }
}

/// The programs that cases run, in cargo's options.
pub const PROGRAMS: &str =
    "--workspace --exclude cases --exclude xtask --exclude fuzz --exclude netsim --exclude cosim";
/// The same with the cases, for virtual machines run those themselves.
pub const WITH_CASES: &str =
    "--workspace --exclude xtask --exclude fuzz --exclude netsim --exclude cosim";
/// The programs that cases run, and this one, which measures in a virtual machine.
pub const WITH_XTASK: &str =
    "--workspace --exclude cases --exclude fuzz --exclude netsim --exclude cosim";
/// All with the cases, the fuzzer, the simulator of networks, and that of the RTL.
pub const WITH_SIMULATORS: &str = "--workspace --exclude xtask";

/// Builds the programs that cases run, and gives their directory.
///
/// # Errors
/// When the build fails.
pub fn build() -> Result<PathBuf> {
    build_of(Profile::Quick, PROGRAMS)
}

/// The same with the cases.
///
/// # Errors
/// When the build fails.
pub fn build_with_cases() -> Result<PathBuf> {
    build_of(Profile::Quick, WITH_CASES)
}

/// Builds packages, as cargo's options name them, and answers where the programs are.
///
/// # Errors
/// When the build fails.
pub fn build_of(profile: Profile, packages: &str) -> Result<PathBuf> {
    let name = profile.name();
    let words = format!("build --profile {name} {packages}");
    report!("building (cargo {words})");
    cargo(&words).words("--locked --quiet").shown().run()?.success()?;
    Ok(target_directory()?.join(name))
}

/// Ends a run of cases: prints the counts, and keeps the output of cases that failed and then passed.
///
/// # Errors
/// When cargo does not tell where it puts things.
pub fn conclude(summary: Summary) -> Result<ExitCode> {
    Ok(summary.conclude(&target_directory()?.join("flaky")))
}

/// Builds the programs to be given away, and those that check them, for release in `sources`, into `target`, and gives
/// their directory: the same bytes for all places of the two and of cargo's crates, as long as the compiler is the
/// same.
///
/// # Errors
/// When the build fails.
pub fn build_for_others(sources: &Path, target: &Path, home: &Path) -> Result<PathBuf> {
    report!("building in {}", sources.display());
    // Panics name their place in the source as it was given. Debug data names the directory that the compiler
    // ran in, where no link is left, and link-time optimization orders its output by a hash over that as well.
    let registry = home.join("registry");
    let registry = registry.canonicalize().unwrap_or(registry);
    let sources = &sources.canonicalize()?;
    let remap = [(sources.as_path(), "."), (target, "target"), (home, "cargo")];
    let remap = remap.into_iter().chain([(registry.as_path(), "cargo/registry")]);
    let flags: Vec<String> =
        remap.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect();
    let mut task = cargo("build --release --workspace --locked --quiet --lib");
    for program in SHIPPED {
        task = task.arg("--bin").arg(program);
    }
    let task = task.directory(sources).shown().env("CARGO_HOME", home);
    let task = task.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    task.env("CARGO_TARGET_DIR", target).run()?.success()?;
    Ok(target.join("release"))
}

/// Where cargo keeps the crates.
///
/// # Errors
/// When neither `CARGO_HOME` nor `HOME` says it.
pub fn home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    home.or_else(usual).context("neither CARGO_HOME nor HOME is set")
}

/// The directory of cargo's builds.
///
/// # Errors
/// When cargo does not tell.
pub fn target_directory() -> Result<PathBuf> {
    let metadata: Finished = cargo("metadata --format-version 1 --no-deps").run()?.success()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata.stdout)?;
    let directory = metadata["target_directory"].as_str();
    directory.map(PathBuf::from).context("cargo metadata names no target directory")
}
