//! The interfaces by which the kernel gives a card to a program: iommufd and a character device, or a container and a
//! group.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, start_server};
use harness::setting::Daemon;

use super::cards::{cards, data, devinfo, pingpong};
use super::{Case, Hardware, Kernel, Setting, for_both};
use crate::IBVERBS_UTILS;

const IOMMUFD: &str = "/dev/iommu";

/// The family.
pub(super) fn cases(hardware: Hardware, kernel: Kernel<'_>) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    if kernel.iommufd {
        cases.extend(for_both("by iommufd", &[IBVERBS_UTILS], move |it| by_iommufd(it, hardware)));
        cases.extend(for_both(
            "by a container where iommufd is hidden",
            &[IBVERBS_UTILS],
            move |it| {
                let _hidden = Hidden::new()?;
                by_a_container(it, hardware)
            },
        ));
    } else {
        cases.extend(for_both("by a container", &[IBVERBS_UTILS], move |it| {
            by_a_container(it, hardware)
        }));
    }
    cases
}

/// iommufd's node under another name, until it is dropped.
struct Hidden;

impl Hidden {
    const ELSEWHERE: &str = "/dev/iommu-elsewhere";

    fn new() -> Result<Self> {
        fs::rename(IOMMUFD, Self::ELSEWHERE).context("iommufd cannot be hidden")?;
        Ok(Self)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = fs::rename(Self::ELSEWHERE, IOMMUFD);
    }
}

fn by_iommufd(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let wanted = |name: &str| name == IOMMUFD || name.starts_with("/dev/vfio/devices/vfio");
    reached_by(&daemon, "iommufd and /dev/vfio/devices/vfio", 3, wanted)?;
    daemon.stop()
}

/// All the ways that data and events take, for where both interfaces are there everything else goes
/// by the other one.
fn by_a_container(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let group = |name: &str| {
        name.strip_prefix("/dev/vfio/").is_some_and(|it| it == "vfio" || it.parse::<u32>().is_ok())
    };
    reached_by(&daemon, "a container and /dev/vfio/", 3, group)?;
    devinfo(&daemon)?;
    pingpong(&daemon, "-e")?;
    data(setting, &daemon, "huge write --mib 16", "16 MiB arrived")?;
    daemon.stop()
}

/// The status says how the cards are reached; of the device nodes, balboad has `count` open that are
/// `wanted`, a client some of them, and neither has another.
fn reached_by(
    daemon: &Daemon<'_>,
    says: &str,
    count: usize,
    wanted: impl Fn(&str) -> bool,
) -> Result<()> {
    let status = daemon.status()?;
    for card in [0, 1] {
        let interface = status["cards"][card]["interface"].as_str().unwrap_or_default();
        ensure!(interface.starts_with(says), "the status says {interface:?}, not {says}");
    }
    let open = nodes(daemon.pid())?;
    let all = open.len() == count && open.iter().all(|name| wanted(name));
    ensure!(all, "balboad has open {open:?}");

    let port = free_port()?;
    let command = format!("ibv_rc_pingpong -g 1 -d balboa0 -p {port}");
    let server = start_server(daemon.run(&command), port)?;
    let status = daemon.status()?;
    let clients = status["clients"].as_array().context("the status lists no clients")?;
    let client = clients.iter().find(|client| client["role"] == "provider");
    let pid = client.and_then(|client| client["pid"].as_i64()).context("nobody uses a card")?;
    let open = nodes(i32::try_from(pid)?)?;
    ensure!(open.iter().all(|name| wanted(name)), "a client has open {open:?}");
    ensure!(!open.is_empty(), "a client has neither the card nor its IOMMU open");
    server.signal(nix::sys::signal::Signal::SIGKILL)?;
    server.wait().map(drop)
}

/// The device nodes of VFIO's and of iommufd's that a process has open.
fn nodes(pid: i32) -> Result<BTreeSet<String>> {
    let directory = Path::new("/proc").join(pid.to_string()).join("fd");
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(&directory)? {
        // One may be closed meanwhile.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let name = target.to_string_lossy().into_owned();
        if name.starts_with("/dev/vfio") || name.starts_with("/dev/iommu") {
            names.insert(name);
        }
    }
    Ok(names)
}
