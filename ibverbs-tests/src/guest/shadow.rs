//! `balboad --shadow`: cards that the kernel shows, with the package installed as users install it,
//! and not one environment variable.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::package::{DRIVERS, install};
use super::{Case, Need, SHARES, Setting, Task, load};
use crate::cases::{IBVERBS_UTILS, PERFTEST};
use crate::pair::{Both, free_port, run_pair};
use crate::setting::Daemon;

/// Where balboad serves root, and programs of root's look for it.
const STATE: &str = "/run/balboa";
const RDMA: Need = Need::Program("rdma", "iproute2");
const PING: Need = Need::Program("ping", "iputils-ping");
/// The file systems of two shares on top of each other: what is installed goes to memory.
const OVERLAY: Need = Need::Module("overlay");
/// What `ibv_devinfo` says where our provider answers; rxe's says another vendor.
const OURS: &str = "vendor_id:\t\t\t0x10ee";
/// How long the kernel may take to do what it does by and by.
const SOON: Duration = Duration::from_secs(20);

/// What keeps the kernel from showing a card; these want a kernel that has loaded no RDMA yet.
pub(super) fn refusals() -> Vec<Case> {
    let rxe = Need::Module("rdma_rxe");
    let case = |name: &str, body: fn(&Setting) -> Result<()>| {
        Case::new(format!("shadow/refused/{name}"), &[rxe], body)
    };
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
    root("perftest", &[PERFTEST], perftest);
    root("GIDs follow ip addr", &[], gids_follow);
    root("a neighbour answers ping, and is answered", &[PING], neighbour);
    root("a device that was renamed gets its name back", &[], renamed);
    root("programs do not keep balboad from ending", &[PERFTEST], killed);
    root("balboad tells when rxe's provider would win", &[], rxe_wins);
    root("the package leaves nothing behind", &[], removed);
    cases
}

/// Runs a command line of root's.
fn run(line: &str) -> Result<String> {
    let (program, words) = line.split_once(' ').unwrap_or((line, ""));
    Ok(Task::new(program).words(words).run()?.success()?.stdout)
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

/// Starts balboad where everybody looks for it.
fn shadowed<'a>(setting: &'a Setting, arguments: &str) -> Result<Daemon<'a>> {
    setting.balboad_in(Path::new(STATE), &format!("--shadow {arguments}"))
}

/// Waits until something is so.
fn until(what: &str, is: impl Fn() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !is()? {
        ensure!(started.elapsed() < SOON, "it took too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
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

/// What `ibv_devinfo` says of a card, and of nothing else than the kernel's devices.
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
    let (program, words) = command.split_once(' ').unwrap_or((command, ""));
    let side = |card: u32| {
        let built = Path::new(SHARES).join("built").join(program);
        let task = if built.exists() { Task::new(built) } else { Task::new(program) };
        task.words(words).words(&format!("-d balboa{card} -p {port}"))
    };
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
    let program = Path::new(SHARES).join("built/verbs-data");
    let task = Task::new(program).words("sweep --from balboa0 --to balboa1");
    task.run()?.success()?.says("messages arrived")?;
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
        until("the card had the new address", || {
            Ok(devinfo_of(card)?.contains(&format!("GID[  2]:\t\t{gid}, RoCE v2")))
        })?;
        ensure!(kernels_gid(card, 2)?.contains("ffff:0a58:"), "the kernel has another at index 2");
    }
    between("ibv_rc_pingpong -c -m 1024 -g 2 -n 100")?.client.says("100 iters in ")?;
    run("ip addr del 10.77.0.1/24 dev balboa0")?;
    until("the card had lost the old address", || Ok(!devinfo_of(0)?.contains("10.77.0.1")))?;
    let lost = between("ibv_rc_pingpong -m 1024 -g 1 -n 100");
    ensure!(lost.is_err(), "an address that was taken away still serves");
    between("ibv_rc_pingpong -c -m 1024 -g 2 -n 100")?.client.says("100 iters in ")?;
    daemon.stop()
}

/// A card of another balboad at the other end of a cable: its card answers our kernel's ping, our
/// kernel answers what it asks, and both exchange data.
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
    until(
        "the device had its name back",
        || Ok(run("rdma link show")?.contains("link balboa0/1")),
    )?;
    devinfo_of(0)?;
    daemon.stop()
}

/// A program that has the device open must not hold the network device, whose end the kernel would
/// wait for.
fn killed(setting: &Setting) -> Result<()> {
    let daemon = shadowed(setting, "--soft 2")?;
    let port = free_port()?;
    let server = Task::new("ib_write_bw").words(&format!("-F -x 1 -d balboa0 -p {port}"));
    let server = crate::pair::start_server(server, port)?;
    daemon.kill()?;
    until("the devices had gone", || Ok(!Path::new("/sys/class/net/balboa0").exists()))?;
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
    run("dpkg --force-unsafe-io --purge balboa")?;
    let left = fs::read_to_string(Path::new(DRIVERS).join("rxe.driver"))?;
    ensure!(left.contains("driver rxe"), "rxe's own file came back as {left:?}");
    for path in ["/usr/share/balboa", "/usr/lib/balboa", "/etc/libibverbs.d/balboa.driver"] {
        ensure!(!Path::new(path).exists(), "{path} stays");
    }
    Ok(())
}
