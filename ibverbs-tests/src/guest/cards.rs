//! Cards behind vfio-pci and an IOMMU: the driver as it drives the FPGA.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::{Case, Hardware, Need, Setting, for_both, load};
use crate::cases::rdmacm::{self, RDMACM_UTILS, to_the_end};
use crate::cases::{IBVERBS_UTILS, PERFTEST};
use crate::pair::{Both, both_say, listening, run_between};
use crate::process::Task;
use crate::setting::Daemon;

/// A card's vendor and device, as sysfs shows them.
const CARD: [&str; 2] = ["0x10ee", "0x903f"];

/// The family.
pub(super) fn cases(hardware: Hardware) -> Vec<Case> {
    let mut cases = vec![
        Case::new("balboa bind and unbind", &[], move |it| bind_and_unbind(it, hardware)).as_root(),
        Case::new("what is in the way is told", &[], move |it| refusals(it, hardware)).as_root(),
    ];
    let mut both = |name: &str, needs: &[Need], body: fn(&Setting, &Daemon<'_>) -> Result<()>| {
        cases.extend(for_both(name, needs, move |setting| {
            let daemon = cards(setting, hardware)?;
            body(setting, &daemon)?;
            daemon.stop()
        }));
    };
    both("ibv_devinfo", &[IBVERBS_UTILS], |_, daemon| devinfo(daemon));
    both("ibv_rc_pingpong", &[IBVERBS_UTILS], |_, daemon| pingpong(daemon, ""));
    both("ibv_rc_pingpong/-e", &[IBVERBS_UTILS], |_, daemon| pingpong(daemon, "-e"));
    both("verbs-data/sweep", &[], |it, daemon| data(it, daemon, "sweep", "850 messages arrived"));
    both("verbs-data/16 MiB", &[], |it, daemon| {
        data(it, daemon, "huge write --mib 16", "16 MiB arrived")?;
        data(it, daemon, "huge read --mib 16", "16 MiB arrived")?;
        data(it, daemon, "huge send --mib 16", "16 MiB arrived")
    });
    both("verbs-data/errors", &[], |it, daemon| {
        data(it, daemon, "errors --pinned", "23 errors came")
    });
    both("verbs-data/memory", &[], |it, daemon| {
        data(it, daemon, "memory --pinned", "bytes moved in")
    });
    both("rdmacm/rping", &[RDMACM_UTILS], |_, daemon| {
        let pings = "-a 10.77.0.1 -v -V -C 10 -S 4000";
        let server = listening(daemon, daemon.run(&format!("rping -s {pings}")), "listeners")?;
        let client = daemon.run(&format!("rping -c {pings} -I 10.77.0.2"));
        both_say(&to_the_end(daemon, server, client)?, "ping data: rdma-ping-9: ")
    });
    both("rdmacm/ib_write_bw -R", &[PERFTEST], |_, daemon| {
        rdmacm::perftest(daemon, "ib_write_bw -R -s 65536 -n 40")
    });
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_send_lat"] {
        cases.extend(for_both(program, &[PERFTEST], move |setting| {
            let daemon = cards(setting, hardware)?;
            perftest(&daemon, &format!("{program} -F -n 200"))?;
            daemon.stop()
        }));
    }
    cases.push(
        Case::new("ib_send_bw/-e", &[PERFTEST], move |setting| {
            let daemon = cards(setting, hardware)?;
            perftest(&daemon, "ib_send_bw -F -e -n 200 -s 65536")?;
            daemon.stop()
        })
        .as_root(),
    );
    cases
}

/// The cards of the machine, by their PCI addresses.
pub(super) fn functions() -> Result<Vec<String>> {
    let found = plugged_in()?;
    ensure!(!found.is_empty(), "the machine has no cards");
    Ok(found)
}

/// The cards that are in the machine now, by their PCI addresses.
pub(super) fn plugged_in() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let entry = entry?;
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if CARD == [read("vendor").trim(), read("device").trim()] {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Loads what the machine's IOMMU and cards want.
pub(super) fn drivers(hardware: Hardware) -> Result<()> {
    load("vfio_iommu_type1")?;
    load("vfio_pci")?;
    // The paravirtual one has no interrupt remapping.
    let unsafe_interrupts = if hardware == Hardware::VirtioIommu { "Y" } else { "N" };
    for module in ["vfio_iommu_type1", "iommufd"] {
        let parameter = format!("/sys/module/{module}/parameters/allow_unsafe_interrupts");
        if Path::new(&parameter).exists() {
            fs::write(parameter, unsafe_interrupts)?;
        }
    }
    functions()?.iter().flat_map(|function| neighbours(function)).try_for_each(|neighbour| {
        // The kernel waits here for a driver that is just looking at it.
        override_driver(&neighbour, "none")?;
        if driver(&neighbour).is_some() { unbind(&neighbour) } else { Ok(()) }
    })
}

/// What shares a card's slot, and with it its IOMMU group. Told by the address: behind a paravirtual IOMMU a
/// device gets its group only when a driver looks at it.
pub(super) fn neighbours(function: &str) -> Vec<String> {
    let Some((slot, _)) = function.rsplit_once('.') else { return Vec::new() };
    let found = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let names = found.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != function && name.starts_with(&format!("{slot}."))).collect()
}

/// Lets only one driver have a function; any, where the name is empty.
pub(super) fn override_driver(function: &str, driver: &str) -> Result<()> {
    let path = format!("/sys/bus/pci/devices/{function}/driver_override");
    fs::write(&path, format!("{driver}\n")).with_context(|| path.clone())
}

/// The driver of a function.
pub(super) fn driver(function: &str) -> Option<String> {
    let link = fs::read_link(format!("/sys/bus/pci/devices/{function}/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Takes a function from its driver.
pub(super) fn unbind(function: &str) -> Result<()> {
    let path = format!("/sys/bus/pci/devices/{function}/driver/unbind");
    fs::write(&path, function).with_context(|| path.clone())
}

/// `balboa bind ADDRESS`, by root, whoever the case's user is; returns the nodes that it says another
/// user is to be given.
pub(super) fn bind(setting: &Setting, function: &str) -> Result<Vec<String>> {
    let task = Task::new(setting.bin.join("balboa")).arg("bind").arg(function);
    let said = task.run()?.success()?.says(&format!("{function} is bound to vfio-pci"))?;
    let nodes = said.stdout.lines().find_map(|line| line.split_once("chown USER "));
    let (_, nodes) = nodes.with_context(|| format!("it does not tell the nodes: {said}"))?;
    Ok(nodes.split_whitespace().map(str::to_owned).collect())
}

/// Binds both cards and gives them to a user; returns balboad's arguments.
pub(super) fn bound_for(setting: &Setting, uid: u32) -> Result<String> {
    Ok(cards_of(setting, uid)?.concat())
}

/// The same, with the arguments of a balboad for each card alone.
pub(super) fn cards_of(setting: &Setting, uid: u32) -> Result<Vec<String>> {
    let bound = |function: String| {
        for node in bind(setting, &function)? {
            chown(&node, Some(uid), None).with_context(|| node.clone())?;
        }
        Ok(format!("--vfio {function} "))
    };
    functions()?.into_iter().map(bound).collect()
}

/// Binds both cards, gives them to the case's user, and starts a balboad on them.
pub(super) fn cards(setting: &Setting, hardware: Hardware) -> Result<Daemon<'_>> {
    cards_in(setting, &setting.state_dir(), hardware)
}

/// The same, on a state directory.
///
/// # Errors
/// When the cards cannot be had, or balboad does not come up.
pub fn cards_in<'a>(
    setting: &'a Setting,
    state_dir: &Path,
    hardware: Hardware,
) -> Result<Daemon<'a>> {
    drivers(hardware)?;
    setting.balboad_in(state_dir, &bound_for(setting, setting.uid())?)
}

fn bind_and_unbind(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let function = functions()?.remove(0);
    let driver = || {
        let link = fs::read_link(format!("/sys/bus/pci/devices/{function}/driver"));
        link.ok().map(|it| it.file_name().unwrap_or_default().to_string_lossy().into_owned())
    };
    let balboa = |words: &str| setting.built("balboa").words(words).arg(&function).run();
    balboa("bind")?.success()?.says("next: balboad --vfio")?;
    ensure!(driver().as_deref() == Some("vfio-pci"), "bound to {:?}", driver());
    balboa("bind")?.success()?;
    balboa("unbind")?.success()?;
    ensure!(driver().is_none(), "still bound to {:?}", driver());
    balboa("unbind")?.code(1)?.complains("there is nothing to undo").map(drop)
}

fn refusals(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let functions = functions()?;
    let refused = |function: &str, sentence: &str| -> Result<()> {
        let balboad = setting.built("balboad").arg("--state-dir");
        let task = balboad.arg(setting.directory().join("other")).arg("--vfio").arg(function);
        task.run()?.code(1)?.complains(sentence).map(drop)
    };
    let _ = setting.built("balboa").arg("unbind").arg(&functions[0]).run()?;
    refused(&functions[0], "run balboa bind")?;
    refused("0000:00:00.0", "not a Coyote card")?;
    refused("00ff:00:00.0", "there is no PCI function")?;
    let daemon = cards(setting, hardware)?;
    refused(&functions[0], "is in use")?;
    // Another user's program gets no card.
    let task = Task::new(setting.bin.join("balboa")).args(["run", "--state-dir"]);
    let task = task.arg(daemon.state_dir()).args(["--", "ibv_devices"]);
    let stranger = task.user(Some(crate::setting::NOBODY)).run()?;
    ensure!(!stranger.status.success(), "another user was served: {stranger}");
    daemon.stop()
}

pub(super) fn devinfo(daemon: &Daemon<'_>) -> Result<()> {
    let finished = daemon.run("ibv_devinfo -v").run()?.success()?;
    ensure!(finished.stderr.is_empty(), "libibverbs complains: {finished}");
    let said = finished.says("hca_id:\tbalboa0")?.says("hca_id:\tbalboa1")?;
    said.says("PORT_ACTIVE (4)")?.says("::ffff:10.77.0.2, RoCE v2")?;
    let status = daemon.status()?;
    let trust = status["cards"][0]["trust"].as_str().unwrap_or_default();
    ensure!(trust.starts_with("one domain"), "the status hides who is trusted: {trust}");
    Ok(())
}

pub(super) fn pingpong(daemon: &Daemon<'_>, events: &str) -> Result<()> {
    let command = format!("ibv_rc_pingpong -c -g 1 -m 1024 -n 200 {events}");
    let Both { server, client } = run_between((daemon, 0), (daemon, 1), &command)?;
    for side in [server, client] {
        let side = side.says("200 iters in ")?;
        ensure!(!side.stdout.contains("invalid data"), "{side}");
    }
    Ok(())
}

pub(super) fn data(
    setting: &Setting,
    daemon: &Daemon<'_>,
    command: &str,
    says: &str,
) -> Result<()> {
    let program = daemon.run("").arg(setting.bin.join("verbs-data")).words(command);
    program.run()?.success()?.says(says).map(drop)
}

fn perftest(daemon: &Daemon<'_>, command: &str) -> Result<()> {
    let Both { client, .. } = run_between((daemon, 0), (daemon, 1), command)?;
    // The figures are left alone: the clock of an emulated processor is not steady enough for them.
    let all = |line: &str| line.split_whitespace().nth(1) == Some("200");
    ensure!(client.stdout.lines().any(all), "perftest shows no row of 200 iterations: {client}");
    Ok(())
}
