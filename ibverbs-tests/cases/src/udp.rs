//! Cards on the machine's own network (`--port udp`): between two balboads of one machine, and between two machines, all
//! of it by an ordinary user.

use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result, ensure};
use harness::machines::{IPV4, IPV6, Machines, WIRE};
use harness::pair::{Both, both_say, run_between};
use harness::process::Running;
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use serde_json::Value;

use super::pingpong::on_bad_cable;
use super::rdmacm::RDMACM_UTILS;
use super::{IBVERBS_UTILS, PERFTEST};

mod captured;
pub(crate) mod marked;
mod narrow;
mod rerouted;

const UNSHARE: Need = Need::Program("unshare", "util-linux");
const IP: Need = Need::Program("ip", "iproute2");
const ETHTOOL: Need = Need::Program("ethtool", "ethtool");

/// An MTU for a path MTU of 1024, and one for 4096.
const MTUS: [u32; 2] = [1500, 9000];

/// Command lines of both sides, and the last line that both print.
const PROGRAMS: [(&str, Need, &str); 15] = [
    ("ibv_rc_pingpong -c -g 0 -n 200", IBVERBS_UTILS, "200 iters in"),
    ("ibv_rc_pingpong -c -g 1 -n 200 -e", IBVERBS_UTILS, "200 iters in"),
    ("ibv_uc_pingpong -g 0 -n 200", IBVERBS_UTILS, "200 iters in"),
    ("ibv_ud_pingpong -g 0 -n 200 -s 1000", IBVERBS_UTILS, "200 iters in"),
    ("ibv_srq_pingpong -g 0 -n 200", IBVERBS_UTILS, "200 iters in"),
    ("ibv_xsrq_pingpong -g 0 -n 200", IBVERBS_UTILS, "success"),
    ("ib_write_bw -F -x 0 -b -n 200", PERFTEST, "65536 "),
    ("ib_write_bw -F -x 1 -q 8 -n 100", PERFTEST, "65536 "),
    ("ib_read_bw -F -x 0 -n 200", PERFTEST, "65536 "),
    ("ib_send_bw -F -x 0 -b -n 200", PERFTEST, "65536 "),
    ("ib_send_bw -F -x 0 -c UC -n 200", PERFTEST, "65536 "),
    ("ib_send_bw -F -x 0 -c UD -s 1024 -n 200", PERFTEST, "1024 "),
    ("ib_send_bw -F -x 0 -c XRC -n 200", PERFTEST, "65536 "),
    ("ib_atomic_bw -F -x 0 -n 200", PERFTEST, "8 "),
    ("ib_write_lat -F -x 0 -n 200", PERFTEST, "2 "),
];

/// The room for arriving datagrams that an older kernel grants.
pub(crate) const SMALL: &str = "--port-room 208";

/// Messages of every kind at each path MTU up to 1024.
const NARROW: u32 = 210;

/// Where data is checked: the MTU, and options of both balboads.
const DATA: [(&str, u32, &str); 3] =
    [("MTU 1500", 1500, ""), ("MTU 9000", 9000, ""), ("strict", 1500, "--icrc strict")];

/// A case with cards that are given more options.
type Body = fn(&Setting, &str) -> Result<()>;

/// Those of two machines that no list above has.
const MORE: [(&str, &[Need], Body); 12] = [
    ("a published card", &[UNSHARE, IP], published),
    ("data/loss and reordering", &[UNSHARE, IP], data_on_bad_network),
    ("data/damage", &[UNSHARE, IP], damage),
    ("multicast", &[UNSHARE, IP], multicast),
    ("rdma_cm", &[RDMACM_UTILS, UNSHARE, IP], rdma_cm),
    ("loss and reordering", &[IBVERBS_UTILS, PERFTEST, UNSHARE, IP], bad_network),
    ("data/without segmentation", &[UNSHARE, IP, ETHTOOL], without_segmentation),
    ("IPv6 only", &[RDMACM_UTILS, UNSHARE, IP], ipv6_only),
    ("link-local addresses", &[IBVERBS_UTILS, UNSHARE, IP], link_local),
    ("a route that moves", &[PERFTEST, RDMACM_UTILS, UNSHARE, IP], rerouted::rerouted),
    (
        "an address that is removed",
        &[PERFTEST, RDMACM_UTILS, UNSHARE, IP],
        rerouted::address_removed,
    ),
    ("a balboad is killed", &[PERFTEST, UNSHARE, IP], killed),
];

/// The family: the cases that send data once more with the room of an older kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (command, need, says) in [
        ("ibv_rc_pingpong -c -g 0 -n 500", IBVERBS_UTILS, "500 iters in"),
        ("ib_write_bw -F -b -n 500", PERFTEST, "65536 "),
        ("ib_send_bw -F -c UD -s 4096 -n 500", PERFTEST, "4096 "),
    ] {
        let name = format!("udp/one machine/{command}");
        cases.push(Case::new(name, &[need], move |setting| one_machine(setting, command, says)));
    }
    cases.push(Case::new("udp/one machine/balboa ping", &[], ping));
    cases.extend(between_machines("udp", ""));
    cases.extend(between_machines("udp/208 KiB", SMALL));
    type Whole = fn(&Setting) -> Result<()>;
    let more: [(&str, &[Need], Whole); 4] = [
        ("addresses and links come and go", &[IBVERBS_UTILS, UNSHARE, IP], comings_and_goings),
        ("a narrow route", &[IBVERBS_UTILS, PERFTEST, RDMACM_UTILS, UNSHARE, IP], narrow::narrow),
        ("a network that marks", &[marked::NFT, PERFTEST, UNSHARE, IP], marked::marks),
        ("what cannot be", &[UNSHARE, IP], refused),
    ];
    for (name, needs, body) in more {
        cases.push(Case::new(format!("udp/{name}"), needs, body));
    }
    cases.extend(captured::cases());
    cases
}

/// The cases of two machines whose cards have more options, with the beginning of their names.
fn between_machines(family: &'static str, more: &'static str) -> Vec<Case> {
    let mut cases = Vec::new();
    for mtu in MTUS {
        for (command, need, says) in PROGRAMS {
            let name = format!("{family}/MTU {mtu}/{command}");
            let body = move |setting: &Setting| two_machines(setting, mtu, command, says, more);
            cases.push(Case::new(name, &[need, UNSHARE, IP], body));
        }
    }
    for (name, mtu, options) in DATA {
        let body =
            move |setting: &Setting| data_between(setting, mtu, &format!("{options} {more}"));
        cases.push(Case::new(format!("{family}/data/{name}"), &[UNSHARE, IP], body));
    }
    let body = move |setting: &Setting| incast(setting, more);
    cases.push(Case::new(format!("{family}/incast"), &[PERFTEST, UNSHARE, IP], body));
    for (name, needs, body) in MORE {
        let body = move |setting: &Setting| body(setting, more);
        cases.push(Case::new(format!("{family}/{name}"), needs, body));
    }
    cases
}

/// Two balboads of one machine at the first two of some addresses that no other case has, and those.
pub(super) fn near(setting: &Setting) -> Result<([Daemon<'_>; 2], [String; 3])> {
    let addresses = addresses();
    let start = |number: usize| {
        let state_dir = setting.directory().join(format!("near{number}"));
        let address = &addresses[number];
        setting.balboad_in(&state_dir, &format!("--soft 1 --port udp:{address}"))
    };
    Ok(([start(0)?, start(1)?], addresses))
}

/// Addresses of the loopback network that none of the 20 cases before has, nor a run whose process has other low 16 bits.
pub(crate) fn addresses() -> [String; 3] {
    static CASES: AtomicU8 = AtomicU8::new(0);
    let first = CASES.fetch_add(3, Ordering::Relaxed);
    [0, 1, 2].map(|it| address_of(std::process::id(), first.wrapping_add(it)))
}

/// A process's address of such a number, of which the low six bits count.
fn address_of(process: u32, number: u8) -> String {
    let [a, b, ..] = process.to_le_bytes();
    // Not of 127.0.0.0/16, which other programs use.
    format!("127.{}.{b}.{}", 64 | a & 0x3f, a & 0xc0 | number & 0x3f)
}

/// Between them, without any namespace or capability.
fn one_machine(setting: &Setting, command: &str, says: &str) -> Result<()> {
    let (daemons, _) = near(setting)?;
    let both = run_between((&daemons[0], 0), (&daemons[1], 0), command)?;
    both_say(&both, says)?;
    nothing_lost(&daemons)?;
    stop(daemons)
}

/// Pings to the other balboad's address, and to one that no host has.
fn ping(setting: &Setting) -> Result<()> {
    let (daemons, [_, other, nobodys]) = near(setting)?;
    let ping = |address: &str| {
        let task = setting.built("balboa").words("ping --count 1 --state-dir");
        task.arg(daemons[0].state_dir()).arg(address).run()
    };
    ping(&other)?.code(0)?.says(&format!("{other}: balboad "))?;
    ping(&nobodys)?.code(4)?.says("proves nothing about an RNIC")?;
    stop(daemons)
}

fn two_machines(setting: &Setting, mtu: u32, command: &str, says: &str, more: &str) -> Result<()> {
    let machines = Machines::new(setting, mtu)?;
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    // Where a balboad has no processor for a while, little room is soon full: perftest's RC waits longer there.
    let patient = if more == SMALL && is_connected(command) { " -u 18" } else { "" };
    let both = machines.run_between(&daemons, &format!("{command}{patient}"), IPV4[0])?;
    both_say(&both, says)?;
    nothing_lost(&daemons)?;
    stop(daemons)
}

/// Whether a command is one of perftest's for reliable connections.
fn is_connected(command: &str) -> bool {
    command.starts_with("ib_") && !command.contains("-c ")
}

/// Programs that know nothing but the machines' addresses.
fn rdma_cm(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    for address in [IPV4[0], IPV6[0]] {
        pings(&machines, &daemons, address)?;
        for program in ["ucmatose -c 3 -C 10 -S 5000", "udaddy -c 3 -C 10 -S 500"] {
            let side = |number: usize, option: &str| {
                let command = format!("{program} {option} {address}");
                machines.run(number, &daemons[number], &command)
            };
            let server = harness::pair::listening(&daemons[0], side(0, "-b"), "listeners")?;
            let client = harness::pair::beside(&server, side(1, "-s"))
                .with_context(|| format!("{program} {address}"))?;
            client.says("return status 0")?;
            server.wait()?.success()?;
        }
    }
    stop(daemons)
}

/// Data that is checked, and transfers, where datagrams are lost and overtake each other.
fn bad_network(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let fault = "--fault loss=1% --fault reorder=1%";
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {fault} {more}"))?;
    for (command, says) in [
        ("ibv_rc_pingpong -c -g 0 -n 1000", "1000 iters in"),
        ("ibv_rc_pingpong -c -g 1 -n 1000 -e", "1000 iters in"),
        ("ib_write_bw -F -x 0 -q 4 -n 200", "65536 "),
        ("ib_read_bw -F -x 1 -n 200", "65536 "),
    ] {
        let both = on_bad_cable(|| machines.run_between(&daemons, command, IPV4[0]))?;
        both_say(&both, says)?;
    }
    stop(daemons)
}

/// Every operation, byte by byte.
fn data_between(setting: &Setting, mtu: u32, options: &str) -> Result<()> {
    let machines = Machines::new(setting, mtu)?;
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {options}"))?;
    data(setting, &machines, &daemons, mtu)?;
    nothing_lost(&daemons)?;
    stop(daemons)
}

/// The same where some datagrams are lost, and some overtake others.
fn data_on_bad_network(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let fault = "--fault loss=1%,reorder=1%";
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {fault} {more}"))?;
    bad_data(setting, &machines, &daemons)?;
    stop(daemons)
}

/// Damaged datagrams are dropped and counted, and their messages arrive by others.
fn damage(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let fault = "--fault corrupt=2%";
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {fault} {more}"))?;
    bad_data(setting, &machines, &daemons)?;
    for daemon in &daemons {
        let bad = counter(daemon, "rx_icrc_encapsulated")?;
        ensure!(bad > 0, "no datagram had a wrong ICRC: {}", daemon.status()?);
    }
    stop(daemons)
}

/// Every operation of connections, byte by byte, by both kinds of addresses.
fn bad_data(setting: &Setting, machines: &Machines<'_>, daemons: &[Daemon<'_>; 2]) -> Result<()> {
    for gid in 0..2 {
        let program = setting.bin.join("verbs-data");
        let command = format!("{} apart --gid {gid} --bad-cable", program.display());
        let both = machines.run_between(daemons, &command, IPV4[0])?;
        both_say(&both, &format!("{NARROW} messages arrived as they should"))?;
    }
    Ok(())
}

/// Many queue pairs send to one machine at once.
fn incast(setting: &Setting, options: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {options}"))?;
    let command = "ib_write_bw -F -x 0 -u 18 -q 500 -t 4 -s 65536 -n 8";
    both_say(&machines.run_between(&daemons, command, IPV4[0])?, "65536 ")?;
    nothing_lost(&daemons)?;
    stop(daemons)
}

/// Datagrams to groups, and no more groups than a port can be in.
fn multicast(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 9000)?;
    for side in 0..2 {
        // Of the group's kind that its first GID is.
        machines.ip(side, &format!("addr add fe80::{}/64 dev {WIRE} nodad", side + 1))?;
        machines.ip(side, &format!("route add 239.0.0.0/8 dev {WIRE}"))?;
    }
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    let command = setting.bin.join("verbs-data multicast-apart --all-groups");
    let both = machines.run_between(&daemons, &command.display().to_string(), IPV4[0])?;
    both_say(&both, "192 copies arrived in their groups")?;
    both_say(&both, "224 groups and no more")?;
    stop(daemons)
}

/// Cards as published have one address, and their packets are long.
fn published(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 9000)?;
    let options = "--soft-image stock --tunnel off --watchdog 120000 --rnic-peers";
    let [own, other] = IPV4;
    // An RNIC on the one side, and a published card on the other.
    let rnic = machines.balboad(0, &format!("--soft 1 --port udp:{WIRE} {more}"))?;
    let card =
        machines.balboad(1, &format!("--soft 1 --port udp:{other} {options} {own} {more}"))?;
    let daemons = [rnic, card];
    let command = setting.bin.join("verbs-data apart --gid 0 --one-sided --timeout 18");
    let both = machines.run_between(&daemons, &command.display().to_string(), own)?;
    both_say(&both, "12 messages arrived as they should")?;
    stop(daemons)
}

/// Every operation, byte by byte, where each datagram passes by itself.
fn without_segmentation(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 9000)?;
    for side in 0..2 {
        let off = "gro off gso off tx-udp-segmentation off rx-udp-gro-forwarding off";
        machines.tool(side, &format!("ethtool -K {WIRE} {off}"))?;
    }
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    data(setting, &machines, &daemons, 9000)?;
    nothing_lost(&daemons)?;
    // The kernel numbers the segments that it cuts, and the other end finds that out.
    let numbered = counter(&daemons[0], "port_frames_numbered")?;
    ensure!(numbered > 0, "no datagram had a number: nothing was cut");
    stop(daemons)
}

fn data(
    setting: &Setting,
    machines: &Machines<'_>,
    daemons: &[Daemon<'_>; 2],
    mtu: u32,
) -> Result<()> {
    let program = setting.bin.join("verbs-data");
    // At every path MTU up to the widest.
    let [connected, unreliable, datagrams] =
        if mtu < 4192 { [NARROW, 168, 52] } else { [350, 280, 64] };
    // By IPv4, whose identification the invariant CRC covers, and by IPv6.
    for (options, count) in [
        ("--gid 0", connected),
        ("--gid 1", connected),
        ("--gid 0 --service uc", unreliable),
        ("--gid 0 --service ud", datagrams),
    ] {
        let command = format!("{} apart {options}", program.display());
        let Both { server, client } = machines.run_between(daemons, &command, IPV4[0])?;
        for side in [server, client] {
            side.says(&format!("{count} messages arrived as they should"))?;
        }
    }
    Ok(())
}

fn ipv6_only(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    for (side, address) in IPV4.iter().enumerate() {
        machines.ip(side, &format!("addr del {address}/24 dev {WIRE}"))?;
    }
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    for (daemon, address) in daemons.iter().zip(IPV6) {
        ensure!(daemon.status()?["cards"][0]["gids"][0] == address);
    }
    pings(&machines, &daemons, IPV6[0])?;
    let command = setting.bin.join("verbs-data apart --gid 0");
    let both = machines.run_between(&daemons, &command.display().to_string(), IPV6[0])?;
    both_say(&both, &format!("{NARROW} messages arrived as they should"))?;
    // The cards' Ethernet addresses do not follow from the common part of their IP addresses.
    let guid =
        |daemon: &Daemon<'_>| -> Result<Value> { Ok(daemon.status()?["cards"][0]["mac"].clone()) };
    ensure!(guid(&daemons[0])? != guid(&daemons[1])?, "both have one Ethernet address");
    stop(daemons)
}

/// From one machine's link-local address to the other's.
fn link_local(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    for side in 0..2 {
        machines.ip(side, &format!("addr add fe80::{}/64 dev {WIRE} nodad", side + 1))?;
    }
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    let both = machines.run_between(&daemons, "ibv_rc_pingpong -c -n 200 -g 0", IPV4[0])?;
    both_say(&both, "GID fe80::")?;
    both_say(&both, "200 iters in")?;
    stop(daemons)
}

/// Data by rping, which knows nothing but an address.
fn pings(machines: &Machines<'_>, daemons: &[Daemon<'_>; 2], address: &str) -> Result<()> {
    let side = |number: usize, role: &str| {
        let command = format!("rping {role} -v -V -C 10 -a {address}");
        machines.run(number, &daemons[number], &command)
    };
    let server = harness::pair::listening(&daemons[0], side(0, "-s"), "listeners")?;
    harness::pair::beside(&server, side(1, "-c"))?.says("ping data: rdma-ping")?;
    server.wait()?.success().map(drop)
}

/// Waits until the first card is so.
fn until(daemon: &Daemon<'_>, what: &str, is: &dyn Fn(&Value) -> bool) -> Result<()> {
    for _ in 0..600 {
        if is(&daemon.status()?["cards"][0]) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    anyhow::bail!("not {what}: {}", daemon.status()?)
}

/// Whether an address is among a card's GIDs.
fn has(card: &Value, address: &str) -> bool {
    card["gids"].to_string().contains(address)
}

/// GIDs and the port's state are the machine's as they are now.
fn comings_and_goings(setting: &Setting) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let daemon = machines.balboad(0, &format!("--soft 1 --port udp:{WIRE}"))?;
    let until = |what: &str, is: &dyn Fn(&Value) -> bool| until(&daemon, what, is);
    until("both addresses", &|card| has(card, IPV4[0]) && has(card, IPV6[0]))?;
    machines.ip(0, &format!("addr add 10.98.0.7/24 dev {WIRE}"))?;
    until("the new address", &|card| has(card, "10.98.0.7") && has(card, IPV4[0]))?;
    machines.ip(0, &format!("addr del 10.98.0.7/24 dev {WIRE}"))?;
    until("without it", &|card| !has(card, "10.98.0.7") && has(card, IPV4[0]))?;
    let mut watch = machines.run(0, &daemon, "ibv_asyncwatch -d balboa0").start()?;
    watch.wait_until("it watched", |it| it.output().contains("async event FD"))?;
    let told = |watch: &mut Running, event: &str, count: usize| {
        watch.wait_until(event, |it| it.output().matches(event).count() >= count)
    };
    machines.ip(0, &format!("link set {WIRE} down"))?;
    until("down", &|card| card["link_up"] == false)?;
    told(&mut watch, "IBV_EVENT_PORT_ERR", 1)?;
    machines.ip(0, &format!("link set {WIRE} up"))?;
    until("up", &|card| card["link_up"] == true)?;
    told(&mut watch, "IBV_EVENT_PORT_ACTIVE", 1)?;
    machines.ip(0, &format!("link del {WIRE}"))?;
    until("gone", &|card| card["link_up"] == false && !has(card, IPV4[0]))?;
    let other = machines.process(1);
    machines.ip(0, &format!("link add {WIRE} type veth peer name {WIRE} netns {other}"))?;
    machines.ip(0, &format!("addr add {}/24 dev {WIRE}", IPV4[0]))?;
    machines.ip(0, &format!("link set {WIRE} up"))?;
    machines.ip(1, &format!("link set {WIRE} up"))?;
    until("back", &|card| card["link_up"] == true && has(card, IPV4[0]))?;
    told(&mut watch, "IBV_EVENT_PORT_ERR", 2)?;
    told(&mut watch, "IBV_EVENT_PORT_ACTIVE", 2)?;
    drop(watch);
    // A card that is reset while its device is down is down, too, when it is back.
    machines.ip(0, &format!("link set {WIRE} down"))?;
    until("down", &|card| card["link_up"] == false)?;
    let reset = setting.built("balboa").words("reset balboa0 --yes --state-dir");
    reset.arg(daemon.state_dir()).run()?.success()?;
    until("down after its reset", &|card| card["link_up"] == false)?;
    machines.ip(0, &format!("link set {WIRE} up"))?;
    until("up after its reset", &|card| card["link_up"] == true && has(card, IPV4[0]))?;
    // What is the machine's is not changed here.
    let balboa = setting.built("balboa").words("addr balboa0 add 10.1.1.1 --state-dir");
    let refused = balboa.arg(daemon.state_dir()).run()?.code(1)?;
    refused.complains("ip addr add ADDRESS/PREFIX dev wire")?;
    daemon.stop()
}

/// The end of the other machine's balboad is told within the retries of a queue pair, that of the own one at once, and a
/// new one is another.
fn killed(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let options = format!("--soft 1 --port udp:{WIRE} {more}");
    for victim in 0..2 {
        let [server, client] = machines.balboads(&options)?;
        let port = harness::pair::free_port()?;
        let command = format!("ib_send_bw -F -x 0 -D 60 -p {port}");
        let waiting = machines.run(0, &server, &command);
        let waiting = harness::pair::start_server_in(&machines.process(0), waiting, port)?;
        let mut sending = machines.run(1, &client, &format!("{command} {}", IPV4[0])).start()?;
        let sent = |daemon: &Daemon<'_>| counter(daemon, "port_frames_sent").unwrap_or(0);
        sending.wait_until("data passed", |_| sent(&client) > 1000)?;
        let left = match victim {
            0 => server.kill().map(|()| client)?,
            _ => client.kill().map(|()| server)?,
        };
        let failed = sending.wait()?;
        ensure!(!failed.status.success(), "{failed}");
        drop(waiting);
        let anew = machines.balboad(victim, &options)?;
        let daemons = if victim == 0 { [anew, left] } else { [left, anew] };
        let both = machines.run_between(&daemons, "ib_send_bw -F -x 0 -n 200", IPV4[0])?;
        both_say(&both, "65536 ")?;
        stop(daemons)?;
    }
    Ok(())
}

/// An address or option that cannot be used is told in one sentence.
fn refused(setting: &Setting) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    machines.ip(0, "link add bare type veth peer name small")?;
    machines.ip(0, "link set small mtu 500 up")?;
    machines.ip(0, "addr add 10.97.0.1/24 dev small")?;
    let state_dir = setting.directory().join("refused");
    let balboad = |arguments: &str| {
        let task = setting.built("balboad").arg("--state-dir").arg(&state_dir).words(arguments);
        machines.task(0, &task).run()
    };
    for (arguments, code, says) in [
        ("--soft 1 --port udp:bare", 1, "bare has no address"),
        (
            "--soft 1 --port udp:small",
            1,
            "has an MTU of 500, and a card needs 576; raise it: ip link set",
        ),
        ("--soft 1 --port udp:nothing", 1, "no network device nothing"),
        ("--soft 1 --port udp:10.1.2.3", 1, "10.1.2.3 is no address of this machine"),
        ("--soft 1 --port udp", 1, "no route leads out of this machine"),
        ("--soft 1 --port udp:::ffff:10.99.0.1", 2, "write 10.99.0.1"),
        (
            "--soft 1 --port udp:10.99.0.1/24",
            2,
            "more than an address, and the rest of it is the machine's",
        ),
        ("--soft 2 --port 0=udp:wire --port 1=udp:wire", 2, "an address is one card's"),
        (
            "--soft 2 --port 0=udp:wire --port 1=udp:10.99.0.1",
            1,
            "10.99.0.1 of wire; an address is one card's",
        ),
        ("--soft 1 --icrc strict", 2, "no card stands on the machine's own network"),
        ("--soft 1 --port udp:wire --ip 10.1.1.1", 2, "leave --ip out"),
        ("--soft 1 --port udp:wire --shadow", 2, "leave --shadow out"),
        ("--soft 1 --vfio 3b:00.0 --port 1=udp:wire", 2, "card 1 is behind VFIO"),
    ] {
        balboad(arguments)?.code(code)?.complains(says).with_context(|| arguments.to_owned())?;
    }
    let first = machines.balboad(0, &format!("--soft 1 --port udp:{WIRE}"))?;
    balboad("--soft 1 --port udp:wire")?.code(1)?.complains("another program has UDP port 4791")?;
    first.stop()
}

/// A counter of the only card.
fn counter(daemon: &Daemon<'_>, name: &str) -> Result<u64> {
    let status = daemon.status()?;
    let counters = &status["cards"][0]["counters"];
    Ok(counters[name].as_u64().unwrap_or(0))
}

/// No datagram found no room: no more of them were under way than there was room for. A sender that has given its peer
/// up, which had no processor for 100 ms, keeps to no window.
fn nothing_lost(daemons: &[Daemon<'_>; 2]) -> Result<()> {
    let [one, other] = daemons;
    for (daemon, sender) in [(one, other), (other, one)] {
        let lost = counter(daemon, "port_frames_lost")?;
        let given_up = counter(sender, "port_balboads_given_up")?;
        ensure!(
            lost == 0 || given_up > 0,
            "{lost} datagrams found no room at a socket: {}",
            daemon.status()?
        );
    }
    Ok(())
}

fn stop(daemons: [Daemon<'_>; 2]) -> Result<()> {
    daemons.into_iter().try_for_each(Daemon::stop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::address_of;

    #[test]
    fn processes_and_cases_have_addresses_of_their_own() {
        let of = |process: u32| (0..64).map(move |number| address_of(process, number));
        let all: BTreeSet<String> = (1000..2000).flat_map(of).collect();
        assert_eq!(all.len(), 64_000);
    }
}
