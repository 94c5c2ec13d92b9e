//! The machines' routes and addresses, while queue pairs use them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use harness::machines::{IPV4, IPV6, Machines, WIRE};
use harness::process::Running;
use harness::setting::Setting;

use super::{counter, has, pings, stop, until};

/// The other cable between the two, and the addresses by which they reach each other there.
const DETOUR: &str = "detour";
const GATES: [&str; 2] = ["10.96.0.1", "10.96.0.2"];
/// The number of packets that shows that traffic goes on.
const MANY: u64 = 2000;

/// A route that moves to another cable takes the traffic there, and back; without any route the queue pair fails by its
/// retries.
pub(super) fn rerouted(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let other = machines.process(1);
    let peer = format!("type veth peer name {DETOUR} mtu 1500 netns {other}");
    machines.ip(0, &format!("link add {DETOUR} mtu 1500 {peer}"))?;
    for (side, gate) in GATES.iter().enumerate() {
        machines.ip(side, &format!("addr add {gate}/24 dev {DETOUR}"))?;
        machines.ip(side, &format!("link set {DETOUR} up"))?;
    }
    // Each goes to the other's address by the other cable, from its own address as before.
    let route = |verb: &str| -> Result<()> {
        for side in 0..2 {
            let (own, to, gate) = (IPV4[side], IPV4[1 - side], GATES[1 - side]);
            let words = format!("route {verb} {to}/32 via {gate} dev {DETOUR} src {own}");
            machines.ip(side, &words)?;
        }
        Ok(())
    };

    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    let port = harness::pair::free_port()?;
    // A packet that no cable took is sent again in time, however slow the machine.
    let command = format!("ib_send_bw -F -x 0 -D 170 -u 18 -p {port}");
    let waiting = machines.run(0, &daemons[0], &command);
    let waiting = harness::pair::start_server_in(&machines.process(0), waiting, port)?;
    let sending = machines.run(1, &daemons[1], &format!("{command} {}", IPV4[0]));
    let mut sending = sending.start()?;
    let passes_by = |sending: &mut Running, device: &str| -> Result<()> {
        let before = received(&machines, device)?;
        let passed = |_: &Running| received(&machines, device).is_ok_and(|it| it > before + MANY);
        sending.wait_until(&format!("data passed by {device}"), passed)
    };
    passes_by(&mut sending, WIRE)?;
    route("add")?;
    passes_by(&mut sending, DETOUR)?;
    // What asks anew finds the way, too.
    pings(&machines, &daemons, IPV4[0])?;
    route("del")?;
    passes_by(&mut sending, WIRE)?;

    let refused = counter(&daemons[1], "port_frames_no_peer")?;
    machines.ip(1, &format!("route add unreachable {}/32", IPV4[0]))?;
    let failed = sending.wait()?;
    ensure!(!failed.status.success(), "{failed}");
    let said = format!("{}{}", failed.stdout, failed.stderr);
    // IBV_WC_RETRY_EXC_ERR.
    ensure!(said.contains("Failed status 12"), "{failed}");
    let now = counter(&daemons[1], "port_frames_no_peer")?;
    ensure!(now > refused, "no datagram was refused for want of a route: {}", daemons[1].status()?);
    drop(waiting);
    stop(daemons)
}

/// A queue pair whose address is removed fails by its retries; other addresses stay in use, and so is that one once it is
/// back.
pub(super) fn address_removed(setting: &Setting, more: &str) -> Result<()> {
    let machines = Machines::new(setting, 1500)?;
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE} {more}"))?;
    let client = &daemons[1];
    let port = harness::pair::free_port()?;
    let command = format!("ib_send_bw -F -x 0 -D 170 -u 14 -p {port}");
    let waiting = machines.run(0, &daemons[0], &command);
    let waiting = harness::pair::start_server_in(&machines.process(0), waiting, port)?;
    let sending = machines.run(1, client, &format!("{command} {}", IPV4[0]));
    let mut sending = sending.start()?;
    let sent = || counter(client, "port_frames_sent").unwrap_or(0);
    sending.wait_until("data passed", |_| sent() > MANY)?;
    machines.ip(1, &format!("addr del {}/24 dev {WIRE}", IPV4[1]))?;
    let failed = sending.wait()?;
    ensure!(!failed.status.success(), "{failed}");
    let said = format!("{}{}", failed.stdout, failed.stderr);
    // IBV_WC_RETRY_EXC_ERR.
    ensure!(said.contains("Failed status 12"), "{failed}");
    drop(waiting);
    until(client, "without the address", &|card| !has(card, IPV4[1]))?;
    pings(&machines, &daemons, IPV6[0])?;
    machines.ip(1, &format!("addr add {}/24 dev {WIRE}", IPV4[1]))?;
    until(client, "with the address again", &|card| has(card, IPV4[1]))?;
    pings(&machines, &daemons, IPV4[0])?;
    stop(daemons)
}

/// Packets that the first machine has received by a device.
fn received(machines: &Machines<'_>, device: &str) -> Result<u64> {
    let table = fs::read_to_string(format!("/proc/{}/net/dev", machines.process(0)))?;
    let mut lines = table.lines();
    let words = lines.find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
    let packets = words.and_then(|words| words.split_whitespace().nth(1)?.parse().ok());
    packets.with_context(|| format!("no {device}: {table}"))
}
