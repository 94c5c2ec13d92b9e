//! The checks of packages before they are given away.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::process::Task;
use nix::unistd::geteuid;
use terminal::report;
use verbs_sys::RELEASES;

use crate::cargo;
use crate::roots;

/// Releases of rdma-core, and of Debian, in which the packages are installed.
const INSTALLED: [(u32, &str); 2] = [(44, "bookworm"), (56, "trixie")];
/// The packages that a user's first test takes.
const USED: [&str; 3] = ["ibverbs-providers", "ibverbs-utils", "perftest"];
/// The time limit of a program in a root.
const LIMIT: Duration = Duration::from_secs(600);
/// The greatest exposure of the service, in tenths.
const EXPOSURE: u32 = 30;
/// The script that runs with the packages, in `/dist` of a root.
const SCRIPT: &str = include_str!("installed.sh");

/// Checks packages, of which the last ones are the providers'.
///
/// # Errors
/// The finding of the first check that fails.
pub fn check(built: &Path, made: &[PathBuf]) -> Result<()> {
    same(made)?;
    exposure()?;
    lint(built, made)?;
    for (release, suite) in INSTALLED {
        installed(built, made, release, suite).with_context(|| format!("rdma-core {release}"))?;
    }
    Ok(())
}

/// Built and made again from a copy of the sources in another directory, and with the crates elsewhere, they are the same.
fn same(made: &[PathBuf]) -> Result<()> {
    let place = cargo::target_directory()?.join("packaged-elsewhere");
    let (sources, home) = (place.join("sources"), place.join("home"));
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    fs::create_dir_all(&sources)?;
    fs::create_dir_all(&home)?;
    let copy = "git ls-files -z | tar --null -T - -cf - | tar -xf - -C \"$1\"";
    let copy = Task::new("sh").arg("-c").arg(copy).arg("sh").arg(&sources);
    copy.with_our_environment().directory(cargo::root()).limit(LIMIT).run()?.success()?;
    let (crates, linked) = (cargo::home()?.join("registry"), home.join("registry"));
    if !linked.exists() {
        symlink(crates, linked)?;
    }
    let built = cargo::build_for_others(&sources, &place.join("target"), &home)?;
    let again = tempfile::tempdir()?;
    for (first, second) in made.iter().zip(super::packages(&built, again.path(), &RELEASES)?) {
        ensure!(
            fs::read(first)? == fs::read(&second)?,
            "{} is another one where it is built in {}",
            first.display(),
            sources.display()
        );
    }
    report!("ok   built in another directory, the packages are the same");
    Ok(())
}

/// systemd's own judgement of the service.
fn exposure() -> Result<()> {
    if !Task::is_installed("systemd-analyze") {
        report!("skip the service's exposure: needs systemd-analyze");
        return Ok(());
    }
    let analyze = Task::new("systemd-analyze").words("security --offline=true --no-pager");
    let analyze = analyze.arg(format!("--threshold={EXPOSURE}"));
    let unit = cargo::root().join("packaging/systemd/balboad.service");
    let told = analyze.arg(unit).run()?.success()?.stdout;
    let line = told.lines().rev().find(|line| line.contains("exposure")).unwrap_or_default();
    report!("ok   {}", line.trim_start_matches(|c: char| !c.is_ascii_alphabetic()));
    Ok(())
}

/// lintian, which is unpacked beside Debian's other tools and installed nowhere.
fn lint(built: &Path, made: &[PathBuf]) -> Result<()> {
    let root = roots::debian("bookworm", &["lintian"])?;
    let shared = made.first().and_then(|it| it.parent()).context("there is no package")?;
    let lintian = within(built, &root, shared).words("lintian --fail-on error --allow-root");
    let finished = lintian.args(made).env("LC_ALL", "C").limit(LIMIT).run()?;
    for line in finished.stdout.lines().chain(finished.stderr.lines()) {
        report!("     {line}");
    }
    finished.success().context("lintian finds errors")?;
    report!("ok   lintian finds no error");
    Ok(())
}

/// Installed, used, upgraded, removed and purged in a root of their own.
fn installed(built: &Path, made: &[PathBuf], release: u32, suite: &str) -> Result<()> {
    let kept = roots::debian(suite, &USED)?;
    // Only the files that are looked for in the root have balboa's name.
    let home = tempfile::Builder::new().prefix("dist-").tempdir()?;
    let (root, dist) = (home.path().join("root"), home.path().join("dist"));
    Task::new("cp").arg("-a").arg(&kept).arg(&root).limit(LIMIT).run()?.success()?;
    fs::create_dir_all(dist.join("new"))?;
    let provider = format!("balboa-provider-{release}.deb");
    for name in ["balboa.deb", "balboa-doc.deb", &provider] {
        let from = made.iter().find(|it| it.ends_with(name)).context("a package is missing")?;
        fs::copy(from, dist.join(name))?;
        newer(from, &dist.join("new").join(name))?;
    }
    fs::write(dist.join("run"), SCRIPT)?;
    let task = within(built, &root, &dist).words("/bin/sh").arg(dist.join("run"));
    let task = task.arg(&dist).arg(format!("/usr/lib/balboa/libbalboa_provider_{release}.so"));
    let finished = task.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").limit(LIMIT).run()?;
    if !finished.status.success() {
        bail!("{}{}", finished.stdout, finished.stderr);
    }
    report!("ok   rdma-core {release}: {}", finished.stdout.lines().last().unwrap_or_default());
    Ok(())
}

/// A program in a root, as root there, for any user.
fn within(built: &Path, root: &Path, shared: &Path) -> Task {
    let program = built.join("in-root");
    let task = match geteuid().is_root() {
        true => Task::new(program),
        false => Task::new("unshare").words("--map-root-user").arg(program),
    };
    task.arg(root).arg(shared)
}

/// The same package as a later version.
fn newer(package: &Path, into: &Path) -> Result<()> {
    let root = tempfile::tempdir()?;
    Task::new("dpkg-deb").arg("-R").arg(package).arg(root.path()).run()?.success()?;
    let control = root.path().join("DEBIAN/control");
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    let text = fs::read_to_string(&control)?;
    ensure!(text.contains(&version), "{} has another version", package.display());
    fs::write(&control, text.replace(&version, "Version: 99\n"))?;
    let make = Task::new("dpkg-deb").words("--root-owner-group -Zgzip -z1 --build");
    make.arg(root.path()).arg(into).run()?.success().map(drop)
}
