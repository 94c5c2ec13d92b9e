//! `cargo xtask guest systemd`: the packages in a machine with Debian 12's systemd, udev and journal.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::Task;
use harness::setting::SHARES;
use harness::vm::Hardware;
use terminal::report;

use super::Version;
use super::vm::{self, Machine};
use crate::{cargo, roots};

/// The packages of the machine, besides those that each Debian has.
const PACKAGES: [&str; 15] = [
    "base-passwd",
    "curl",
    "dbus",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "libpam-modules",
    "libpam-systemd",
    "passwd",
    "perftest",
    "procps",
    "udev",
    "util-linux",
    "systemd-sysv",
];
/// How long packing the root may take.
const LIMIT: Duration = Duration::from_secs(600);
/// Directories that are not read, and would take the machine's memory.
const LEFT_OUT: [&str; 4] =
    ["./usr/share/doc", "./usr/share/locale", "./usr/share/man", "./usr/share/perl"];
/// The first script of the machine, on the host's root: it makes a root of its own and enters it.
const ENTER: &str = include_str!("systemd-enter.sh");
/// The script that runs with the packages once systemd runs.
const SCRIPT: &str = include_str!("systemd.sh");
/// The page whose drop-in for shadow devices is tried as it stands.
const SERVICE: &str = include_str!("../../../docs/service.md");
/// The last line of the script.
const SEEN: &str = "ok   all that was to be seen was seen";

/// Builds everything, boots the machine, and tries the packages in it.
///
/// # Errors
/// When a part of it cannot be fetched, or something was not seen that should be.
pub fn boot() -> Result<ExitCode> {
    let parts = super::parts(Version::V6_1, &cargo::build()?)?;
    let root = roots::debian("bookworm", &PACKAGES)?;
    let home = tempfile::Builder::new().prefix("balboa-guest-").tempdir()?;
    let _tidy = harness::interrupt::remove_on_signal(home.path());
    let machine = Machine::new(&parts, Hardware::IntelIommu, home.path())?;
    let job = home.path().join("job");
    // Its files are root's there, though another user may have unpacked them.
    let mut pack = Task::new("tar").words("--owner=0 --group=0 --numeric-owner");
    for left_out in LEFT_OUT {
        pack = pack.arg(format!("--exclude={left_out}"));
    }
    let pack = pack.arg("-C").arg(root).arg("-cf").arg(job.join("root.tar")).arg(".");
    pack.limit(LIMIT).run()?.success()?;
    fs::write(job.join("systemd.sh"), SCRIPT)?;
    fs::write(job.join("shadow.conf"), drop_in(SERVICE)?)?;
    fs::write(job.join("trial.sh"), vm::job(&format!("sh {SHARES}/job/systemd.sh {SHARES}")))?;
    let mut cards = machine.cards().serve()?;
    let mut seen = false;
    machine.run(&ENTER.replace("SHARES", SHARES), &mut cards, |line| {
        report!("  {line}");
        seen |= line.starts_with(SEEN);
    })?;
    ensure!(seen, "not all of it was seen with systemd");
    Ok(ExitCode::SUCCESS)
}

/// The drop-in that a page gives: the last block of it that is a `[Service]`.
fn drop_in(page: &str) -> Result<&str> {
    let blocks = page.split("```\n").filter(|block| block.starts_with("[Service]\n"));
    blocks.last().context("the page has no drop-in")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drop_in_for_shadow_devices_is_found_in_its_page() {
        let found = drop_in(SERVICE).unwrap();
        assert!(found.contains("CAP_NET_ADMIN") && found.ends_with("=no\n"), "{found}");
        assert!(drop_in("```\n[Unit]\n```\n").is_err());
    }
}
