//! Packages: missing ones are installed where that is allowed, and named where it is not.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;
use harness::summary::Summary;
use nix::unistd::geteuid;
use terminal::report;

/// The packages of the distribution's programs in the demo.
pub const DEMO: &[&str] =
    &["ibverbs-providers", "ibverbs-utils", "iperf3", "libibverbs1", "perftest", "util-linux"];
/// The packages that the attacks need.
pub const ATTACK: &[&str] = &["ibverbs-providers", "libibverbs1", "util-linux"];
/// The packages of applications.
pub const APPS: &[&str] = &[
    "gcc",
    "ibverbs-providers",
    "iproute2",
    "libc6-dev",
    "libfabric-bin",
    "libibverbs1",
    "libmpich-dev",
    "libopenmpi-dev",
    "libucx-dev",
    "mpich",
    "openmpi-bin",
    "ucx-utils",
    "util-linux",
];
/// The packages that builds of applications' test suites need beside [`APPS`].
pub const SUITES: &[&str] = &[
    "autoconf",
    "automake",
    "debian-archive-keyring",
    "g++",
    "libfabric-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "libtool",
    "make",
];
/// The packages that a build of rdma-core's source needs.
pub const RDMA_CORE: &[&str] = &[
    "cmake",
    "cython3",
    "gcc",
    "libc6-dev",
    "libnl-3-dev",
    "libnl-route-3-dev",
    "libsystemd-dev",
    "libudev-dev",
    "make",
    "pkg-config",
    "python3-dev",
];
/// The packages that the tests need beside [`APPS`]; [`tests`] has both.
const TEST: &[&str] = &[
    "ethtool",
    "g++",
    "ibverbs-utils",
    "iperf",
    "iperf3",
    "iputils-ping",
    "libibverbs-dev",
    "make",
    "nftables",
    "perftest",
    "python3-venv",
    "qperf",
    "rdmacm-utils",
    "tshark",
    "verilator",
    "xz-utils",
];
/// The packages that fetching other releases' packages needs.
pub const CONFORMANCE: &[&str] = &["debian-archive-keyring", "util-linux"];
/// The packages that NCCL's own transport needs.
pub const NCCL: &[&str] =
    &["debian-archive-keyring", "g++", "ibverbs-providers", "libibverbs1", "util-linux"];
/// The packages that building the crates of verbs, and running their tests, needs.
pub const CRATES: &[&str] = &[
    "cmake",
    "g++",
    "ibverbs-providers",
    "libclang-dev",
    "libibverbs-dev",
    "libnl-route-3-dev",
    "make",
    "pkg-config",
    "rdmacm-utils",
    "util-linux",
];
/// The packages that fetching and compiling the published card's stack needs.
pub const STACK: &[&str] = &["g++", "git"];
/// The packages that the gateware's tools and their products need.
pub const GATEWARE: &[&str] = &["g++", "python3-venv"];
/// The packages that recording its waves needs beside them.
pub const WAVES: &[&str] = &["g++", "liblz4-dev", "zlib1g-dev"];
/// The packages that numpy, which judges services, needs.
pub const SERVICES: &[&str] = &["python3-venv"];
/// The packages that building the guest's own kernel needs.
pub const KERNEL: &[&str] =
    &["bc", "bison", "flex", "gcc", "libc6-dev", "libelf-dev", "libssl-dev", "make", "xz-utils"];
/// The packages that generating the bindings needs.
pub const BINDINGS: &[&str] = &["libclang-dev"];

/// Every list of packages that a task installs.
pub const ALL: [&[&str]; 15] = [
    DEMO,
    ATTACK,
    APPS,
    SUITES,
    RDMA_CORE,
    TEST,
    CONFORMANCE,
    NCCL,
    CRATES,
    STACK,
    GATEWARE,
    WAVES,
    SERVICES,
    KERNEL,
    BINDINGS,
];

/// The packages that the end-to-end tests need, on this machine and in a virtual one.
#[must_use]
pub fn tests() -> Vec<&'static str> {
    [TEST, APPS, CONFORMANCE].concat()
}

/// How long an installation may take.
const INSTALLATION: Duration = Duration::from_secs(20 * 60);

/// What is missing, and that we may not or cannot get.
#[derive(Debug)]
pub struct Missing {
    what: String,
    line: String,
}

impl Missing {
    /// What is missing, in words, and the line that gets it.
    pub fn new(what: &str, line: &str) -> Self {
        Self { what: what.to_owned(), line: line.to_owned() }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  {}", self.what, self.line)
    }
}

impl std::error::Error for Missing {}

/// Sees to it that Debian packages are installed.
///
/// # Errors
/// [`Missing`] when they are not and neither root nor password-less sudo is at hand; another error
/// when the installation fails.
pub fn packages(wanted: &[&str]) -> Result<()> {
    let missing: Vec<&str> = wanted.iter().copied().filter(|it| !is_installed(it)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    let line = format!("sudo apt-get update && sudo apt-get install -y {names}");
    let missing = || Missing::new("packages are missing; install them with", &line);
    let prefix = if geteuid().is_root() {
        ""
    } else if has_sudo() {
        "sudo -n "
    } else {
        return Err(missing().into());
    };
    ensure!(Task::is_installed("apt-get"), missing());
    report!("installing {names}");
    for command in ["update --quiet=2".to_owned(), install_command(&names)] {
        let all = format!("{prefix}apt-get {command}");
        let mut words = all.split_whitespace();
        let task = Task::new(words.next().unwrap_or_default()).args(words).with_our_environment();
        let task = task.env("DEBIAN_FRONTEND", "noninteractive").limit(INSTALLATION);
        let finished = task.run()?;
        finished.success().with_context(|| format!("cannot install them; try {line}"))?;
    }
    Ok(())
}

/// Counts steps whose tools cannot be had: of what is [`Missing`] they are skips, unless they are required; what is there and
/// is not what it has to be, or does not install, fails them.
pub fn without(names: &[impl AsRef<str>], error: &anyhow::Error, require: bool) -> Summary {
    let mut summary = Summary::default();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if error.is::<Missing>() && !require {
        names.iter().for_each(|name| summary.add(Summary::skipped(name, error)));
    } else {
        report!("FAIL {}: {error:#}", names.join(", "));
        summary.failed.extend(names.into_iter().map(str::to_owned));
    }
    summary
}

fn install_command(names: &str) -> String {
    // sudo passes no environment on, so the question that tshark asks is answered here too.
    format!("install -y --no-install-recommends --quiet=2 -o Dpkg::Use-Pty=0 {names}")
}

fn is_installed(package: &str) -> bool {
    let query = Task::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).run();
    query.is_ok_and(|it| it.status.success() && it.stdout.trim() == "installed")
}

fn has_sudo() -> bool {
    Task::is_installed("sudo")
        && Task::new("sudo").words("-n true").run().is_ok_and(|it| it.status.success())
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    const STEPS: [&str; 2] = ["a step", "another"];

    /// The steps that are skipped, and those that fail.
    fn counted(error: &anyhow::Error, require: bool) -> [usize; 2] {
        let summary = without(&STEPS, error, require);
        assert_eq!(summary.passed, 0);
        [summary.skipped.len(), summary.failed.len()]
    }

    #[test]
    fn a_missing_tool_is_a_skip_with_the_line_that_gets_it_unless_it_is_required() {
        let missing =
            Err::<(), _>(Missing::new("it is missing; get it with", "apt-get install it"));
        let error = missing.context("the lint").unwrap_err();
        assert_eq!(counted(&error, false), [2, 0]);
        let summary = without(&STEPS, &error, false);
        assert!(summary.skipped.iter().all(|(_, reason)| reason.ends_with("apt-get install it")));
        assert_eq!(counted(&error, true), [0, 2]);
    }

    #[test]
    fn a_tool_that_is_there_and_does_not_install_fails() {
        let error = anyhow!("the hashes do not match");
        assert_eq!([false, true].map(|require| counted(&error, require)), [[0, 2]; 2]);
    }
}
