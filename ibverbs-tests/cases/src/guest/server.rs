//! A card that is driven through VFIO, and an ordinary server: a card on the machine's own network, at the other end of the
//! VFIO card's cable.
//!
//! Both are in one machine, whose network device the cable is plugged into. These cases come before rdma_rxe, which would
//! take RoCE's port.

use anyhow::{Context as _, Result, ensure};
use harness::agent::ADDRESSES;
use harness::pair::{Both, both_say, listening, run_between};
use harness::setting::Daemon;

use super::cards::cards;
use super::{Case, Hardware, Need, Setting, load, program, run};
use crate::PERFTEST;
use crate::counters::counters;
use crate::interop::{DATA, FEW, checked_data, checked_perftest, checked_unreliable_data};
use crate::rdmacm::{RDMACM_UTILS, to_the_end};

/// The machine's network device.
const DEVICE: &str = "eth0";

/// The family.
pub(super) fn cases() -> Vec<Case> {
    vec![
        case("data", &[], data),
        case("perftest", &[PERFTEST], perftest),
        case("rdmacm/rping", &[RDMACM_UTILS], rping),
    ]
}

/// The card behind VFIO, and the one on the machine's own network.
struct Ends<'a> {
    card: Daemon<'a>,
    server: Daemon<'a>,
}

fn case(
    name: &str,
    needs: &[Need],
    body: impl Fn(&Ends<'_>) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let needs = [&[Need::Root], needs].concat();
    let body = move |setting: &Setting| on_network(setting, &body);
    Case::new(format!("ordinary server/{name}"), &needs, body)
}

/// Gives the machine's device its addresses for the time of a case: rxe's cases begin with a device that has none.
fn on_network(setting: &Setting, body: impl FnOnce(&Ends<'_>) -> Result<()>) -> Result<()> {
    load("virtio_net")?;
    let [_, address] = ADDRESSES;
    for command in [
        // The kernel would make sure of a link-local address for a second or two.
        format!("ip link set {DEVICE} addrgenmode none"),
        format!("ip addr add fe80::2/64 dev {DEVICE} nodad"),
        format!("ip addr add {address}/24 dev {DEVICE}"),
        // virtio-net tells its device of a new group later, by a worker, and until then the group's packets are dropped.
        format!("ip link set {DEVICE} allmulticast on up"),
    ] {
        run(&command)?;
    }
    let outcome = between(setting, body);
    run(&format!("ip addr flush dev {DEVICE}"))?;
    run(&format!("ip link set {DEVICE} down addrgenmode eui64"))?;
    outcome
}

/// Brings both ends up, runs a case, and sees that their frames went over the cable and were whole.
fn between(setting: &Setting, body: impl FnOnce(&Ends<'_>) -> Result<()>) -> Result<()> {
    let card = cards(setting, Hardware::IntelIommuRxe)?;
    let state_dir = setting.directory().join("server");
    let server = setting.balboad_in(&state_dir, &format!("--soft 1 --port udp:{DEVICE}"))?;
    let ends = Ends { card, server };
    body(&ends)?;
    for daemon in [&ends.card, &ends.server] {
        let own = counters(daemon, 0)?;
        ensure!(own["sent_pkts"] > 0 && own["rcvd_pkts"] > 0, "nothing came over: {own:?}");
        ensure!(own["rx_icrc_encapsulated"] == 0, "frames had a bad ICRC: {own:?}");
    }
    let own = counters(&ends.server, 0)?;
    ensure!(own["port_balboads_known"] == 0, "the card is taken for a UDP port: {own:?}");
    ends.card.stop()?;
    ends.server.stop()
}

/// Runs a command with the server on the VFIO card and the client on the other one, then the other way round.
fn both_roles(ends: &Ends<'_>, command: &str) -> Result<[Both; 2]> {
    let (name, words) = command.split_once(' ').unwrap_or((command, ""));
    let line = format!("{} {words}", program(name).display());
    let first = run_between((&ends.card, 0), (&ends.server, 0), &line);
    let first = first.with_context(|| format!("{command}: the server on the VFIO card"))?;
    let second = run_between((&ends.server, 0), (&ends.card, 0), &line);
    Ok([first, second.with_context(|| format!("{command}: the client on the VFIO card"))?])
}

/// Every operation of connections and of datagrams, byte by byte, by IPv4 and by link-local addresses.
fn data(ends: &Ends<'_>) -> Result<()> {
    for gid in 0..2 {
        checked_data(both_roles(ends, &format!("{DATA} --gid {gid}"))?)?;
    }
    checked_unreliable_data(|command| both_roles(ends, command))
}

fn perftest(ends: &Ends<'_>) -> Result<()> {
    FEW.iter().try_for_each(|command| checked_perftest(both_roles(ends, command)?))
}

fn rping(ends: &Ends<'_>) -> Result<()> {
    let [cards, servers] = ADDRESSES;
    let ends = [(&ends.card, cards, &ends.server), (&ends.server, servers, &ends.card)];
    ends.into_iter().try_for_each(|(daemon, address, other)| {
        let line = |role| format!("rping {role} -a {address} -v -V -C 10 -S 4000");
        let server = listening(daemon, daemon.run(&line("-s")), "listeners")?;
        let both = to_the_end(daemon, server, other.run(&line("-c")));
        both_say(&both.with_context(|| format!("to {address}"))?, "ping data: rdma-ping-9: ")
    })
}
