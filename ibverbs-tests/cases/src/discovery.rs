//! Stock programs find the cards.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use harness::namespace::Namespace;
use harness::runner::{Case, Need};
use harness::setting::{Setting, built_releases, installed_release};
use nix::sys::signal::Signal;

use super::IBVERBS_UTILS;

/// The family.
pub fn cases() -> Vec<Case> {
    let both = |name: &str, body: fn(&Setting) -> Result<()>| {
        [Case::new(name, &[IBVERBS_UTILS], body), Case::new(name, &[IBVERBS_UTILS], body).as_root()]
    };
    let mut cases = Vec::new();
    cases.extend(both("ibv_devices", devices));
    cases.extend(both("ibv_devinfo/-v", devinfo));
    cases.push(Case::new("ibv_devices/nested", &[IBVERBS_UTILS], nested));
    cases.push(Case::new("providers/each release its own", &[IBVERBS_UTILS], own_provider));
    cases.push(Case::new("a program that may not be read", &[IBVERBS_UTILS], unreadable));
    cases.push(Case::new("a loader that never ends", &[], endless_loader));
    let needs = [Need::Program("unshare", "util-linux"), Need::Program("ip", "iproute2")];
    cases.push(Case::new("a GID has the network device of its address", &needs, network_devices));
    cases
}

fn devices(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 3")?;
    let finished = daemon.run("ibv_devices").run()?.success()?;
    let listed: Vec<&str> =
        finished.stdout.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(listed == ["balboa0", "balboa1", "balboa2"], "{finished}");
    ensure!(finished.stderr.is_empty(), "libibverbs complains: {finished}");
    daemon.stop()
}

fn devinfo(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let finished = daemon.run("ibv_devinfo -v").run()?.success()?;
    ensure!(finished.stderr.is_empty(), "libibverbs complains: {finished}");
    let mut finished = finished;
    for expected in [
        "hca_id:\tbalboa0",
        "hca_id:\tbalboa1",
        "PORT_ACTIVE (4)",
        "link_layer:\t\tEthernet",
        "atomic_cap:\t\t\tATOMIC_HCA (1)",
        "GID[  0]:\t\tfe80::",
        "GID[  1]:\t\t::ffff:10.77.0.1, RoCE v2",
        "GID[  1]:\t\t::ffff:10.77.0.2, RoCE v2",
    ] {
        finished = finished.says(expected)?;
    }
    daemon.stop()
}

/// A program run by `balboa run` may use `balboa run` itself.
fn nested(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let inner = setting.bin.join("balboa");
    let task = daemon.run("").arg(inner).words("run -- ibv_devices");
    task.run()?.success()?.says("balboa0")?;
    daemon.stop()
}

/// All providers that were built are shown, and one that another release's libibverbs has loaded hands over to that
/// release's beside it, without a word. Releases of one private interface look for one file.
fn own_provider(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let shown = daemon.run("ls /dev/infiniband").run()?.success()?.stdout;
    let releases = built_releases(&setting.bin)?;
    for release in &releases {
        for name in [release.provider(), format!("libbalboa{}", release.suffix())] {
            ensure!(shown.lines().any(|line| line == name), "{name} is missing: {shown}");
        }
    }
    let installed = installed_release()?;
    for release in releases.iter().filter(|it| it.private_abi == installed.private_abi) {
        let driver = setting.directory().join(release.number.to_string()).join("driver");
        let beside = driver.parent().context("a directory")?;
        fs::create_dir(beside)?;
        let from = setting.bin.join(release.provider());
        fs::copy(from, format!("{}{}", driver.display(), installed.suffix()))?;
        fs::copy(setting.bin.join(installed.provider()), beside.join(installed.provider()))?;
        let task = daemon.run("env").arg(format!("RDMAV_DRIVERS={}", driver.display()));
        let finished = task.arg("ibv_devinfo").run()?.success()?.says("balboa0")?;
        ensure!(finished.stderr.is_empty(), "of release {}: {finished}", release.number);
    }
    daemon.stop()
}

/// A program's file that its user may execute but not read: the kernel makes the process not dumpable.
fn unreadable(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let program = setting.directory().join("devinfo");
    fs::copy("/usr/bin/ibv_devinfo", &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o111))?;
    let finished = daemon.run("").arg(&program).run()?.success()?.says("PORT_ACTIVE (4)")?;
    ensure!(finished.stderr.is_empty(), "{finished}");
    daemon.stop()
}

/// The first of two cards has an address that a network device has, too. Its GID alone names that device in sysfs.
fn network_devices(setting: &Setting) -> Result<()> {
    let network = Namespace::new(setting, 1)?;
    let state = setting.state_dir();
    let balboad = setting.built("balboad").arg("--state-dir").arg(&state).words("--soft 2");
    let mut daemon = network.task(setting, &balboad).tidy().start()?;
    daemon.wait_until("it was ready", |it| it.output().lines().any(|line| line == "ready"))?;
    for (card, gid, device) in
        [("balboa0", 1, "cards"), ("balboa0", 0, ""), ("balboa1", 1, ""), ("balboa1", 0, "")]
    {
        let file = format!("/sys/class/infiniband/{card}/ports/1/gid_attrs/ndevs/{gid}");
        let cat = setting.balboa_run(&state).arg("cat").arg(&file);
        let finished = network.task(setting, &cat).run()?.success()?;
        ensure!(finished.stdout == format!("{device}\n"), "{file}: {finished}");
    }
    daemon.signal(Signal::SIGTERM)?;
    daemon.wait()?.success()?;
    Ok(())
}

/// A program names any file as its dynamic loader. It is asked for the program's libraries for a limited time, and
/// without the rights that set-user-ID files give.
fn endless_loader(setting: &Setting) -> Result<()> {
    const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2";
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(());
    }
    let daemon = setting.balboad("--soft 1")?;
    let mut program = fs::read("/usr/bin/true")?;
    let at = program.windows(LOADER.len()).position(|bytes| bytes == LOADER).context("a loader")?;
    program[at..at + 4].copy_from_slice(b"./l\0");
    let [file, loader] = ["program", "l"].map(|name| setting.directory().join(name));
    fs::write(&file, program)?;
    fs::write(&loader, "#!/bin/sh\ngrep NoNewPrivs /proc/self/status >seen\nexec sleep 1000\n")?;
    for made in [&file, &loader] {
        fs::set_permissions(made, fs::Permissions::from_mode(0o755))?;
    }
    // The kernel takes no script for a loader.
    daemon.run("").arg(&file).run()?.code(126)?;
    let seen = fs::read_to_string(setting.directory().join("seen"))?;
    ensure!(seen.split_whitespace().last() == Some("1"), "{seen}");
    daemon.stop()
}
