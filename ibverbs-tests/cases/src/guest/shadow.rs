//! `balboad --shadow`: cards that the kernel shows, with the package installed as users install it,
//! and not one environment variable.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{Both, free_port, run_pair};
use harness::setting::{Daemon, installed_release};
use harness::vm::package::{DRIVERS, install};

use super::{Case, Need, Setting, Task, load, run, task, until};
use crate::{IBVERBS_UTILS, PERFTEST};

/// Where balboad serves root, and programs of root's look for it.
const STATE: &str = "/run/balboa";
const RDMA: Need = Need::Program("rdma", "iproute2");
const PING: Need = Need::Program("ping", "iputils-ping");
/// The file systems of two shares on top of each other: installed files go to memory.
const OVERLAY: Need = Need::Module("overlay");
/// The line of `ibv_devinfo` where our provider answers; rxe's shows another vendor.
const OURS: &str = "vendor_id:\t\t\t0x10ee";
/// The time that the kernel may take for deferred work.
const SOON: Duration = Duration::from_secs(60);

/// The cases of a kernel that must not show a card; they need one that has loaded no RDMA yet.
pub(super) fn refusals() -> Vec<Case> {
    let rxe = Need::Module("rdma_rxe");
    let with = |name: &str, needs: &[Need], body: fn(&Setting) -> Result<()>| {
        Case::new(format!("shadow/refused/{name}"), &[&[rxe], needs].concat(), body)
    };
    let case = |name, body| with(name, &[], body);
    vec![
        case("without TAP devices", |it| refused(it, "modprobe tun")).as_root(),
        case("to an ordinary user", not_permitted),
        case("without RDMA", |it| {
            load("tun")?;
            refused(it, "the kernel has no rdma_rxe: modprobe rdma_rxe")
        })
        .as_root(),
        case("without rdma_rxe", |it| {
            load("ib_uverbs")?;
            refused(it, "the kernel has no rdma_rxe: modprobe rdma_rxe")
        })
        .as_root(),
        case("while UDP 4791 is taken", port_taken).as_root(),
        with("while another device has its name", &[RDMA], name_taken).as_root(),
    ]
}

/// The family.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut root = |name: &str, needs: &[Need], body: fn(&Setting) -> Result<()>| {
        let needs = [&[OVERLAY, RDMA, IBVERBS_UTILS], needs].concat();
        let case = Case::new(format!("shadow/{name}"), &needs, move |setting| {
            install()?;
            body(setting)
        });
        cases.push(case.as_root());
    };
    root("the kernel shows the cards", &[], shown);
    root("ibv_devinfo", &[], devinfo);
    root("ibv_rc_pingpong", &[], |it| pingpong(it, ""));
    root("ibv_rc_pingpong/-e", &[], |it| pingpong(it, "-e"));
    root("verbs-data/sweep", &[], data);
    root("verbs-data/memory", &[], memory);
    root("perftest", &[PERFTEST], perftest);
    root("GIDs follow ip addr", &[], gids_follow);
    root("links follow balboa link", &[], link_follows);
    root("GIDs follow ip addr/IPv6", &[], gids_follow_ipv6);
    root("a neighbour answers ping, and is answered", &[PING], neighbour);
    root("no user speaks for a card's connection", &[], forged);
    root("a device that was renamed gets its name back", &[], renamed);
    root("a device that was given another Ethernet address gets its own back", &[], readdressed);
    root("balboad tells when its device was taken away", &[], taken_away);
    root("programs do not keep balboad from ending", &[PERFTEST], killed);
    root("a killed balboad's programs are told, and the next one works at once", &[], succeeded);
    root("balboad tells when rxe's provider would win", &[], rxe_wins);
    root("the package leaves nothing behind", &[], removed);
    cases
}

/// balboad does not come up, and says why in one sentence.
fn refused(setting: &Setting, sentence: &str) -> Result<()> {
    let task = setting.built("balboad").words("--soft 1 --shadow --state-dir");
    let finished = task.arg(setting.state_dir()).run()?.code(1)?;
    let said: Vec<&str> =
        finished.stderr.lines().filter(|line| line.starts_with("balboad: ")).collect();
    ensure!(
        said.len() == 1 && said.iter().all(|line| line.contains(sentence)),
        "it did not say {sentence:?} in one line: {finished}"
    );
    ensure!(!Path::new("/sys/class/net/balboa0").exists(), "it left a network device behind");
    Ok(())
}

fn not_permitted(setting: &Setting) -> Result<()> {
    load("tun")?;
    refused(setting, "run balboad as root, or with CAP_NET_ADMIN")
}

fn port_taken(setting: &Setting) -> Result<()> {
    load("tun")?;
    load("ib_uverbs")?;
    load("crc32_generic")?;
    let taken =
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 4791)).context("UDP 4791 was taken before")?;
    let loaded = load("rdma_rxe");
    ensure!(loaded.is_err(), "rdma_rxe was loaded without its port");
    refused(setting, "UDP port 4791 is taken by another program")?;
    drop(taken);
    load("rdma_rxe")?;
    let daemon = shadowed(setting, "--soft 1")?;
    daemon.stop()
}

fn name_taken(setting: &Setting) -> Result<()> {
    for module in ["tun", "ib_uverbs", "crc32_generic", "rdma_rxe"] {
        load(module)?;
    }
    run("ip tuntap add dev other mode tap")?;
    run("ip link set other up")?;
    run("rdma link add balboa0 type rxe netdev other")?;
    let outcome = refused(setting, "rdma link delete balboa0");
    run("rdma link delete balboa0")?;
    run("ip link delete other")?;
    outcome?;
    shadowed(setting, "--soft 1")?.stop()
}

/// Starts balboad at its default place.
fn shadowed<'a>(setting: &'a Setting, arguments: &str) -> Result<Daemon<'a>> {
    setting.balboad_in(Path::new(STATE), &format!("--shadow {arguments}"))
}

/// A GID as sysfs shows it.
fn kernels_gid(card: u32, index: usize) -> Result<String> {
    let path = format!("/sys/class/infiniband/balboa{card}/ports/1/gids/{index}");
    Ok(fs::read_to_string(&path).context(path)?.trim().to_owned())
}

fn shown(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2 --ip 1=10.99.0.7/16")?;
    let links = run("rdma link show")?;
    for wanted in [
        "link balboa0/1 state ACTIVE physical_state LINK_UP netdev balboa0",
        "link balboa1/1 state ACTIVE physical_state LINK_UP netdev balboa1",
    ] {
        ensure!(links.contains(wanted), "no {wanted:?}: {links}");
    }
    let addresses = run("ip addr show dev balboa1")?;
    for wanted in ["mtu 4200", "link/ether 02:00:0a:63:00:07", "inet 10.99.0.7/16", "state U"] {
        ensure!(addresses.contains(wanted), "no {wanted:?}: {addresses}");
    }
    let guid = fs::read_to_string("/sys/class/infiniband/balboa1/node_guid")?;
    ensure!(guid.trim() == "0000:0aff:fe63:0007", "the node GUID is {guid}");
    ensure!(kernels_gid(0, 0)?.starts_with("fe80:"), "GID 0 is {}", kernels_gid(0, 0)?);
    ensure!(kernels_gid(0, 1)?.ends_with("ffff:0a4d:0001"), "GID 1 is {}", kernels_gid(0, 1)?);
    let status = daemon.status()?;
    let shadow = &status["cards"][1]["shadow"];
    ensure!(shadow["netdev"] == "balboa1" && shadow["trouble"].is_null(), "it says {shadow}");
    daemon.stop()?;
    ensure!(!Path::new("/sys/class/infiniband/balboa0").exists(), "the device stays");
    ensure!(!Path::new("/sys/class/net/balboa0").exists(), "the network device stays");
    Ok(())
}

/// The output of `ibv_devinfo` about a card, read from nothing but the kernel's devices.
fn devinfo_of(card: u32) -> Result<String> {
    run(&format!("ibv_devinfo -v -d balboa{card}"))
}

fn devinfo(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    let said = devinfo_of(1)?;
    for wanted in [
        OURS,
        "node_guid:\t\t\t0000:0aff:fe4d:0002",
        "max_mtu:\t\t4096 (5)",
        "active_mtu:\t\t4096 (5)",
        "GID[  0]:\t\tfe80::aff:fe4d:2, RoCE v2",
        "GID[  1]:\t\t::ffff:10.77.0.2, RoCE v2",
    ] {
        ensure!(said.contains(wanted), "no {wanted:?}: {said}");
    }
    let devices = run("ibv_devices")?;
    ensure!(devices.contains("balboa0") && devices.contains("balboa1"), "{devices}");
    daemon.stop()
}

/// Runs a command line on card 0 as server and on card 1 as client, as a user of the machine would.
fn between(command: &str) -> Result<Both> {
    let port = free_port()?;
    let side = |card: u32| task(command).words(&format!("-d balboa{card} -p {port}"));
    run_pair(side(0), side(1).arg("127.0.0.1"), port)
}

fn pingpong(setting: &Setting, how: &str) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    let both = between(&format!("ibv_rc_pingpong -c -m 4096 -g 1 -n 100 {how}"))?;
    both.server.says("100 iters in ")?;
    both.client.says("100 iters in ")?;
    daemon.stop()
}

fn data(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    let sweep = task("verbs-data sweep --from balboa0 --to balboa1");
    sweep.run()?.success()?.says("messages arrived")?;
    daemon.stop()
}

/// Also of huge pages: a machine of its own can be given some. Of dma-bufs Linux 6.1 makes none here, and those of 6.12
/// are refused.
fn memory(setting: &Setting) -> Result<()> {
    fs::write("/proc/sys/vm/nr_hugepages", "4").context("cannot set huge pages aside")?;
    let daemon = shadowed(setting, "--soft 2")?;
    let moved = task("verbs-data memory --from balboa0 --to balboa1").run()?.success()?;
    moved.says("one of them of huge pages")?;
    daemon.stop()
}

fn perftest(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    for command in [
        "ib_write_bw -F -n 200 -x 1 -m 4096",
        "ib_read_bw -F -n 200 -x 1",
        "ib_send_bw -F -n 200 -x 1 -e",
        "ib_write_lat -F -n 200 -x 1",
        "ib_send_lat -F -n 200 -x 0",
    ] {
        between(command)?.client.says("#bytes")?;
    }
    daemon.stop()
}

fn gids_follow(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    run("ip addr add 10.88.0.1/24 dev balboa0")?;
    run("ip addr add 10.88.0.2/24 dev balboa1")?;
    for (card, gid) in [(0, "::ffff:10.88.0.1"), (1, "::ffff:10.88.0.2")] {
        until(SOON, "the card had the new address", || {
            Ok(devinfo_of(card)?.contains(&format!("GID[  2]:\t\t{gid}, RoCE v2")))
        })?;
        ensure!(kernels_gid(card, 2)?.contains("ffff:0a58:"), "the kernel has another at index 2");
    }
    between("ibv_rc_pingpong -c -m 1024 -g 2 -n 100")?.client.says("100 iters in ")?;
    let state_dir = daemon.state_dir().display();
    let refused =
        task(&format!("balboa addr --state-dir {state_dir} balboa0 add 10.99.0.1")).run()?;
    refused.code(1)?.complains("use `ip addr add ADDRESS/PREFIX dev balboa0`")?;
    run("ip addr del 10.77.0.1/24 dev balboa0")?;
    until(SOON, "the card had lost the old address", || Ok(!devinfo_of(0)?.contains("10.77.0.1")))?;
    let lost = between("ibv_rc_pingpong -m 1024 -g 1 -n 100");
    ensure!(lost.is_err(), "an address that was taken away still serves");
    between("ibv_rc_pingpong -c -m 1024 -g 2 -n 100")?.client.says("100 iters in ")?;
    daemon.stop()
}

fn link_follows(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    let state_dir = daemon.state_dir().display();
    let carrier = || fs::read_to_string("/sys/class/net/balboa0/carrier");
    let steps = [("down", "0", "state DOWN"), ("up", "1", "state ACTIVE")];
    for (to, expected, shown) in steps {
        run(&format!("balboa link --state-dir {state_dir} balboa0 {to}"))?;
        until(SOON, "the network device knew of its cable", || Ok(carrier()?.trim() == expected))?;
        until(
            SOON,
            "the RDMA device did",
            || Ok(run("rdma link show balboa0/1")?.contains(shown)),
        )?;
    }
    between("ibv_rc_pingpong -c -m 1024 -g 1 -n 100")?.client.says("100 iters in ")?;
    daemon.stop()
}

fn gids_follow_ipv6(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    for card in [0, 1] {
        // Without asking the others first whether the address is free.
        run(&format!("ip addr add fd00:77::{card}1/64 dev balboa{card} nodad"))?;
    }
    let shows = |card, gid: &str| -> Result<bool> {
        Ok(devinfo_of(card)?.contains(&format!("{gid}, RoCE v2")))
    };
    until(SOON, "the cards had the new addresses", || {
        Ok(shows(0, "fd00:77::1")? && shows(1, "fd00:77::11")?)
    })?;
    ensure!(kernels_gid(0, 2)?.starts_with("fd00:0077:"), "the kernel has another at index 2");
    between("ibv_rc_pingpong -c -m 4096 -g 2 -n 100")?.client.says("100 iters in ")?;
    run("ip addr del fd00:77::1/64 dev balboa0")?;
    until(SOON, "the card had lost the address", || Ok(!shows(0, "fd00:77::1")?))?;
    let kept = shows(0, "fe80::aff:fe4d:1")? && shows(0, "::ffff:10.77.0.1")?;
    ensure!(kept, "{}", devinfo_of(0)?);
    daemon.stop()
}

/// The destination QP of the only queue pair that is connected, once there is one.
fn connected_to(daemon: &Daemon<'_>) -> Result<u32> {
    let found = std::cell::Cell::new(None);
    until(SOON, "a queue pair was connected", || {
        let status = daemon.status()?;
        let clients = status["clients"].as_array().into_iter().flatten();
        let qps = clients.flat_map(|it| it["queue_pairs"].as_array().into_iter().flatten());
        let mut connected = qps.filter(|it| it["state"] == "RTS");
        found.set(connected.next().and_then(|it| it["dest_qpn"].as_u64()));
        Ok(found.get().is_some())
    })?;
    Ok(u32::try_from(found.get().context("there was one")?)?)
}

/// Every user may send UDP datagrams to the RoCE port of a card's peer, from the card's address.
fn forged(setting: &Setting) -> Result<()> {
    let end = |name: &str| setting.directory().join(name).display().to_string();
    let (ours, theirs) = (end("ours"), end("theirs"));
    let daemon = shadowed(setting, &format!("--soft 1 --port unix:{ours},{theirs}"))?;
    let other = setting.balboad(&format!("--soft 1 --ip 10.77.0.9 --port unix:{theirs},{ours}"))?;
    let port = free_port()?;
    let words = format!("-m 1024 -g 1 -n 100000000 -d balboa0 -p {port}");
    let server = harness::pair::start_server(Task::new("ibv_rc_pingpong").words(&words), port)?;
    let client = other.run("ibv_rc_pingpong").words(&words).arg("127.0.0.1").tidy().start()?;
    let dest_qpn = connected_to(&daemon)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let send = |qpn: u32| -> Result<()> {
        // A WRITE's header, of which only the queue pair's number matters here.
        let mut packet = [0; 32];
        packet[0] = 0x0a;
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        socket.send_to(&packet, "10.77.0.9:4791")?;
        Ok(())
    };
    let counter = |daemon: &Daemon<'_>, name: &str| -> Result<u64> {
        let status = daemon.status()?;
        status["cards"][0]["counters"][name].as_u64().with_context(|| format!("no {name}"))
    };
    send(dest_qpn)?;
    until(SOON, "it was refused", || Ok(counter(&daemon, "host_frames_forged")? == 1))?;
    // One for a queue pair that the card is not connected to passes, and shows that the way is there.
    send(dest_qpn ^ 1)?;
    let bad = || counter(&other, "rx_icrc_encapsulated");
    until(SOON, "the other one arrived", || Ok(bad()? == 1))?;
    drop((server, client));
    other.stop()?;
    daemon.stop()
}

/// A card of another balboad at the other end of a cable: it answers our kernel's ping, our kernel answers its
/// questions, and both exchange data.
fn neighbour(setting: &Setting) -> Result<()> {
    let end = |name: &str| setting.directory().join(name).display().to_string();
    let (ours, theirs) = (end("ours"), end("theirs"));
    let daemon = shadowed(setting, &format!("--soft 1 --port unix:{ours},{theirs}"))?;
    let other = setting.balboad(&format!("--soft 1 --ip 10.77.0.9 --port unix:{theirs},{ours}"))?;
    run("ping -c 3 -W 5 10.77.0.9")?;
    let port = free_port()?;
    let words = format!("-c -m 4096 -g 1 -n 100 -d balboa0 -p {port}");
    let server = Task::new("ibv_rc_pingpong").words(&words);
    let client = other.run("ibv_rc_pingpong").words(&words).arg("127.0.0.1");
    run_pair(server, client, port)?.client.says("100 iters in ")?;
    let counter = |daemon: &Daemon<'_>, name: &str| -> Result<u64> {
        let status = daemon.status()?;
        status["cards"][0]["counters"][name].as_u64().with_context(|| format!("no {name}"))
    };
    ensure!(counter(&other, "icmp_replies")? == 3, "their card did not answer three times");
    ensure!(counter(&daemon, "icmp_replies")? == 0, "our card answered in the kernel's place");
    ensure!(counter(&daemon, "arp_replies")? >= 1, "our card did not answer ARP");
    ensure!(counter(&daemon, "drop_unknown_qp")? == 0, "our card was given the kernel's packets");
    other.stop()?;
    daemon.stop()
}

fn renamed(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 1")?;
    run("rdma dev set balboa0 name rocex1")?;
    // As udev's rules do it, it comes with other news.
    run("ip addr add 10.88.0.1/24 dev balboa0")?;
    until(SOON, "the device had its name back", || {
        Ok(run("rdma link show")?.contains("link balboa0/1"))
    })?;
    devinfo_of(0)?;
    daemon.stop()
}

fn readdressed(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    run("ip link set dev balboa0 address 02:00:00:00:00:99")?;
    let own = "02:00:0a:4d:00:01";
    until(SOON, "it had its address back", || {
        Ok(fs::read_to_string("/sys/class/net/balboa0/address")?.trim() == own)
    })?;
    until(SOON, "the card had its GIDs back", || {
        let said = devinfo_of(0)?;
        Ok(said.contains("fe80::aff:fe4d:1,") && said.contains("::ffff:10.77.0.1,"))
    })?;
    between("ibv_rc_pingpong -c -m 1024 -g 1 -n 100")?.client.says("100 iters in ")?;
    daemon.stop()
}

fn taken_away(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    run("rdma link delete balboa0")?;
    run("ip link set dev balboa0 mtu 4100")?;
    let trouble = |card: usize| -> Result<serde_json::Value> {
        Ok(daemon.status()?["cards"][card]["shadow"]["trouble"].clone())
    };
    let told =
        |it: &serde_json::Value| it.as_str().is_some_and(|it| it.contains("restart balboad"));
    until(SOON, "the status told", || Ok(told(&trouble(0)?)))?;
    run("ip link delete balboa1")?;
    until(SOON, "it told of the other one", || Ok(told(&trouble(1)?)))?;
    daemon.stop()?;
    let daemon = shadowed(setting, "--soft 2")?;
    ensure!(trouble_of_none(&daemon)?, "the mend does not mend");
    daemon.stop()
}

/// No card has any trouble.
fn trouble_of_none(daemon: &Daemon<'_>) -> Result<bool> {
    let status = daemon.status()?;
    let cards = status["cards"].as_array().context("no cards")?;
    Ok(cards.iter().all(|card| card["shadow"]["trouble"].is_null()))
}

/// Waits for the end of its process, which frees the state directory; the kernel's remaining work is not waited for.
fn succeeded(setting: &Setting) -> Result<()> {
    let mut daemon = shadowed(setting, "--soft 2")?;
    for _ in 0..3 {
        let mut watch = Task::new("ibv_asyncwatch").words("-d balboa0").start()?;
        watch.wait_until("it watched", |it| it.output().contains("async event FD"))?;
        daemon.kill()?;
        daemon = shadowed(setting, "--soft 2")?;
        let told = watch.wait()?;
        ensure!(told.stdout.contains("IBV_EVENT_DEVICE_FATAL"), "it was not told: {told}");
        between("ibv_rc_pingpong -c -m 1024 -g 1 -n 100")?.client.says("100 iters in ")?;
    }
    daemon.stop()
}

/// A program that has the device open must not hold the network device, whose end the kernel would
/// wait for.
fn killed(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    let port = free_port()?;
    let server = Task::new("ib_write_bw").words(&format!("-F -x 1 -d balboa0 -p {port}"));
    let server = harness::pair::start_server(server, port)?;
    daemon.kill()?;
    until(SOON, "the devices had gone", || Ok(!Path::new("/sys/class/net/balboa0").exists()))?;
    let daemon = shadowed(setting, "--soft 2")?;
    drop(server);
    daemon.stop()
}

fn rxe_wins(setting: &Setting) -> Result<()> {
    let ours = Path::new(DRIVERS).join("balboa.driver");
    let packaged = fs::read_to_string(&ours)?;
    fs::write(&ours, "driver balboa\ndriver rxe\n")?;
    let outcome = (|| {
        let daemon = shadowed(setting, "--soft 1")?;
        let said = devinfo_of(0)?;
        ensure!(!said.contains(OURS), "rxe's provider did not win: {said}");
        let trouble = daemon.status()?["cards"][0]["shadow"]["trouble"].clone();
        let trouble = trouble.as_str().context("the status tells no trouble")?;
        ensure!(trouble.contains("programs get rxe's provider"), "the status says {trouble}");
        let shown = setting.built("balboa").words("status --state-dir").arg(STATE).run()?;
        shown.success()?.says("programs get rxe's provider")?;
        fs::write(&ours, &packaged)?;
        ensure!(devinfo_of(0)?.contains(OURS), "the mend does not mend");
        daemon.stop()
    })();
    fs::write(&ours, packaged)?;
    outcome
}

fn removed(_: &Setting) -> Result<()> {
    ensure!(!Path::new(DRIVERS).join("rxe.driver").exists(), "rxe's own file was not diverted");
    let number = installed_release()?.number;
    run(&format!("dpkg --force-unsafe-io --no-triggers --purge balboa-provider-{number} balboa"))?;
    let left = fs::read_to_string(Path::new(DRIVERS).join("rxe.driver"))?;
    ensure!(left.contains("driver rxe"), "rxe's own file came back as {left:?}");
    for path in ["/usr/share/balboa", "/usr/lib/balboa", "/etc/libibverbs.d/balboa.driver"] {
        ensure!(!Path::new(path).exists(), "{path} stays");
    }
    Ok(())
}
