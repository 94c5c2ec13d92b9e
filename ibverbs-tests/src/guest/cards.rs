//! Cards behind vfio-pci and an IOMMU: the driver as it drives the FPGA.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{Case, Hardware, Need, Setting, for_both, load};
use crate::cases::{IBVERBS_UTILS, PERFTEST};
use crate::pair::{Both, free_port, run_between, start_server};
use crate::process::{Running, Task};
use crate::setting::Daemon;

/// How long a transfer that is broken off may take to end.
const LONG: Duration = Duration::from_secs(60);
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
        data(it, daemon, "errors --pinned", "18 errors came")
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
    cases.extend(deaths(hardware));
    cases
}

/// Ends that come without warning. The last one takes a card away for good.
fn deaths(hardware: Hardware) -> Vec<Case> {
    let case = |name: &str, body: fn(&Setting, Hardware) -> Result<()>| {
        Case::new(name, &[PERFTEST], move |setting| body(setting, hardware)).as_root()
    };
    vec![
        case("a client is killed in mid-transfer", client_killed),
        case("balboad is killed in mid-transfer", balboad_killed),
        case("a card dies in mid-transfer", card_killed),
    ]
}

/// Bytes that a process has locked in memory, as containers count them, and pinned, as iommufd does.
fn locked(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok::<_, anyhow::Error>(kib.with_context(|| format!("no {name}"))? * 1024)
    };
    Ok(bytes("VmLck:")? + bytes("VmPin:")?)
}

/// A transfer that would take long: server on the first card, client on the second.
fn transfer(daemon: &Daemon<'_>) -> Result<(Running, Running)> {
    let port = free_port()?;
    let side = |card: u32| {
        let command = format!("ib_write_bw -F -D 60 -s 65536 -d balboa{card} -p {port}");
        daemon.run(&command).limit(LONG)
    };
    let server = start_server(side(0), port)?;
    let client = side(1).arg("127.0.0.1").start()?;
    let moved = || -> Result<u64> {
        let status = daemon.status()?;
        Ok(status["cards"][1]["counters"]["sent_pkts"].as_u64().unwrap_or(0))
    };
    let before = moved()?;
    until("packets were sent", || Ok(moved()? > before + 1000))?;
    Ok((server, client))
}

/// Waits until something is so.
fn until(what: &str, is: impl Fn() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !is()? {
        ensure!(started.elapsed() < LONG, "it took too long until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn without_clients(daemon: &Daemon<'_>) -> Result<bool> {
    let status = daemon.status()?;
    let clients = status["clients"].as_array().context("the status lists no clients")?;
    Ok(clients.iter().all(|client| client["role"] == "tool"))
}

/// Nothing of a killed client is left: no object, no mapping, no locked memory.
fn client_killed(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let before = locked(daemon.pid())?;
    let (server, client) = transfer(&daemon)?;
    client.signal(Signal::SIGKILL)?;
    server.signal(Signal::SIGKILL)?;
    client.wait()?;
    server.wait()?;
    until("balboad had let the clients go", || without_clients(&daemon))?;
    let after = locked(daemon.pid())?;
    ensure!(after == before, "balboad has {after} bytes locked, and had {before}");
    pingpong(&daemon, "")?;
    daemon.stop()
}

/// The programs end, and do not hang; another balboad takes the cards over.
fn balboad_killed(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let (server, client) = transfer(&daemon)?;
    daemon.kill()?;
    let ended = client.limited(LONG).wait()?;
    ensure!(!ended.status.success(), "a client without balboad was content: {ended}");
    // Its peer waits for a word over TCP, which ends with the client.
    server.limited(LONG).wait()?;
    let daemon = cards(setting, hardware)?;
    pingpong(&daemon, "-e")?;
    daemon.stop()
}

/// The programs are told and end; balboad says so and goes on with the other card.
fn card_killed(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let (server, client) = transfer(&daemon)?;
    super::have_host("kill", 1)?;
    let ended = client.limited(LONG).wait()?;
    ensure!(!ended.status.success(), "a client without its card was content: {ended}");
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    until("balboad knew", || {
        let status = daemon.status()?;
        let windows = status["cards"][1]["windows"].as_array().cloned().unwrap_or_default();
        Ok(windows.iter().any(|window| window["dead"].is_string()))
    })?;
    let command = "ibv_rc_pingpong -c -g 1 -n 100";
    run_between((&daemon, 0), (&daemon, 0), command)?;
    // Closing the dead card takes the kernel long: it waits for the card to come out of a reset.
    daemon.stop_within(4 * LONG)
}

/// The cards of the machine, by their PCI addresses.
pub(super) fn functions() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let entry = entry?;
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if CARD == [read("vendor").trim(), read("device").trim()] {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "the machine has no cards");
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
    functions()?.iter().flat_map(|function| neighbours(function)).try_for_each(|it| unbind(&it))
}

/// What shares a card's IOMMU group and has a driver of the kernel's.
pub(super) fn neighbours(function: &str) -> Vec<String> {
    let group = fs::read_dir(format!("/sys/bus/pci/devices/{function}/iommu_group/devices"));
    let names = group.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|it| driver(it).as_deref() == Some("virtio-pci")).collect()
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
    let mut arguments = String::new();
    for function in functions()? {
        for node in bind(setting, &function)? {
            chown(&node, Some(uid), None).with_context(|| node.clone())?;
        }
        arguments.push_str(&format!("--vfio {function} "));
    }
    Ok(arguments)
}

/// Binds both cards, gives them to the case's user, and starts a balboad on them.
pub(super) fn cards(setting: &Setting, hardware: Hardware) -> Result<Daemon<'_>> {
    drivers(hardware)?;
    setting.balboad(&bound_for(setting, setting.uid())?)
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
