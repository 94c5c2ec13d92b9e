//! A kernel with iommufd and VFIO character devices, which Debian's have not, from Debian's source.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;
use terminal::report;

use super::linux::{CONFIG, Linux, Version};
use crate::apt::Apt;
use crate::setup;

/// The source package, of the suite where it is; it holds a tar file of its own name.
const SOURCE: &str = "linux-source-6.12";
const SUITE: &str = "trixie";
/// How long the build may take on a slow machine.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Builds the kernel and keeps it, unless one is kept.
///
/// # Errors
/// When the source cannot be fetched, or does not build.
pub fn kernel() -> Result<ExitCode> {
    setup::packages(setup::KERNEL)?;
    let cache = super::cache()?;
    if let Some(linux) = Linux::kept(&cache, Version::Iommufd) {
        report!("it is there: {}", linux.image().display());
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let apt = Apt::open(cache.place("apt"), &super::SUITES)?;
    let home = tempfile::Builder::new().prefix("build-").tempdir_in(cache.place("."))?;
    let _tidy = harness::interrupt::remove_on_signal(home.path());
    report!("fetching {SOURCE}");
    apt.unpack(&format!("{SOURCE}/{SUITE}"), home.path())?;
    // Others may use the cache while this builds.
    drop((apt, cache));
    let tar = home.path().join(format!("usr/src/{SOURCE}.tar.xz"));
    Task::new("tar").arg("-xf").arg(&tar).directory(home.path()).limit(LIMIT).run()?.success()?;
    let tree = home.path().join(SOURCE);
    configure(&tree)?;
    report!("building (some ten minutes on two cores)");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make(&tree, &format!("-j{jobs} bzImage"))?;
    let linux = Linux::keep_built(&super::cache()?, &tree.join("arch/x86/boot/bzImage"))?;
    let minutes = started.elapsed().as_secs() / 60;
    report!("built in {minutes} min: {}", linux.image().display());
    Ok(ExitCode::SUCCESS)
}

/// The smallest configuration, with the settings of [`CONFIG`] added.
fn configure(tree: &Path) -> Result<()> {
    make(tree, "tinyconfig")?;
    let path = tree.join(".config");
    let mut text = fs::read_to_string(&path)?;
    text.push_str(CONFIG);
    fs::write(&path, text)?;
    make(tree, "olddefconfig")?;
    let made = fs::read_to_string(&path)?;
    let missing: Vec<&str> =
        CONFIG.lines().filter(|wanted| !made.lines().any(|line| line == *wanted)).collect();
    ensure!(missing.is_empty(), "the source no longer has {}", missing.join(", "));
    Ok(())
}

/// Runs make, with a lower priority than other programs of the machine.
fn make(tree: &Path, words: &str) -> Result<()> {
    let make = Task::new("nice").words("-n 5 make").words(words).directory(tree).limit(LIMIT);
    make.run()?.success().map(drop).with_context(|| format!("make {words} failed"))
}
