//! Stock programs find the cards.

use anyhow::{Result, ensure};

use super::IBVERBS_UTILS;
use crate::runner::Case;
use crate::setting::Setting;

/// The family.
pub fn cases() -> Vec<Case> {
    let both = |name: &str, body: fn(&Setting) -> Result<()>| {
        [Case::new(name, &[IBVERBS_UTILS], body), Case::new(name, &[IBVERBS_UTILS], body).as_root()]
    };
    let mut cases = Vec::new();
    cases.extend(both("ibv_devices", devices));
    cases.extend(both("ibv_devinfo/-v", devinfo));
    cases.push(Case::new("ibv_devices/nested", &[IBVERBS_UTILS], nested));
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
