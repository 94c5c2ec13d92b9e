//! A card that is driven through VFIO, and the kernel's rdma_rxe, at the two ends of one cable.
//!
//! Both are in one machine: the card is a PCIe device of it, and rxe is on the network device that the
//! card's cable is plugged into. The programs' own TCP connections stay within the machine.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use harness::agent::{self, End};
use harness::pair::{Both, both_say, free_port, listening, run_pair};
use harness::setting::Daemon;

use super::cards::cards;
use super::{Case, Hardware, Need, Setting, program, task};
use crate::counters::counters;
use crate::interop::{ADDRESS, DATA, PERFTESTS, checked_data, checked_perftest, checked_pingpong};
use crate::pingpong::MTUS;
use crate::rdmacm::{RDMACM_UTILS, to_the_end};
use crate::{IBVERBS_UTILS, PERFTEST};

/// The card's address.
const CARD: &str = "10.77.0.1";

/// The family.
pub(super) fn cases() -> Vec<Case> {
    let pingpongs = MTUS.map(|mtu| {
        let name = format!("ibv_rc_pingpong/-m {mtu}");
        case(&name, &[IBVERBS_UTILS], move |daemon| pingpong(daemon, mtu))
    });
    let mut cases = Vec::from(pingpongs);
    cases.push(case("perftest", &[PERFTEST], perftest));
    cases.push(case("verbs-data", &[], data));
    cases.push(case("rdmacm/rping", &[RDMACM_UTILS], rping));
    cases
}

fn case(
    name: &str,
    needs: &[Need],
    body: impl Fn(&Daemon<'_>) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let needs = [&[Need::Program("rdma", "iproute2")], needs].concat();
    Case::new(name, &needs, move |setting| on_cable(setting, &body)).as_root()
}

/// Brings both ends up, runs a case, and sees that its frames went over the cable and were whole.
fn on_cable(setting: &Setting, body: impl FnOnce(&Daemon<'_>) -> Result<()>) -> Result<()> {
    agent::rxe_on_cable(ADDRESS)?;
    let daemon = cards(setting, Hardware::IntelIommuRxe)?;
    body(&daemon)?;
    let own = counters(&daemon, 0)?;
    let bad = own["rx_icrc_encapsulated"];
    ensure!(bad == 0, "{bad} frames of the kernel had a bad ICRC: {own:?}");
    ensure!(own["sent_pkts"] > 0 && own["rcvd_pkts"] > 0, "nothing went over the cable: {own:?}");
    daemon.stop()
}

/// Runs a command with the server on the card and the client on rxe, then the other way round.
fn both_roles(daemon: &Daemon<'_>, command: &str) -> Result<[Both; 2]> {
    let (name, words) = command.split_once(' ').unwrap_or((command, ""));
    let on_card = |port: u16| {
        let task = daemon.run("").arg(program(name)).words(words);
        task.words(&format!("-d balboa0 -p {port}"))
    };
    let on_rxe = |port: u16| task(command).words(&format!("-d {} -p {port}", End::Rxe.device()));
    let host = Ipv4Addr::LOCALHOST.to_string();
    let port = free_port()?;
    let first = run_pair(on_card(port), on_rxe(port).arg(&host), port);
    let first = first.with_context(|| format!("{command}: the server on the card"))?;
    let port = free_port()?;
    let second = run_pair(on_rxe(port), on_card(port).arg(&host), port);
    Ok([first, second.with_context(|| format!("{command}: the server on rxe"))?])
}

fn pingpong(daemon: &Daemon<'_>, mtu: u32) -> Result<()> {
    checked_pingpong(both_roles(daemon, &format!("ibv_rc_pingpong -c -e -g 1 -m {mtu} -n 50"))?)
}

fn perftest(daemon: &Daemon<'_>) -> Result<()> {
    PERFTESTS.iter().try_for_each(|command| checked_perftest(both_roles(daemon, command)?))
}

fn data(daemon: &Daemon<'_>) -> Result<()> {
    checked_data(both_roles(daemon, DATA)?)
}

/// On the card balboad connects, though the kernel of the same machine has a connection manager, by which
/// the other side connects.
fn rping(daemon: &Daemon<'_>) -> Result<()> {
    let line = |role, address| format!("rping {role} -a {address} -v -V -C 10 -S 4000");
    let server = listening(daemon, daemon.run(&line("-s", CARD)), "listeners")?;
    let first = to_the_end(daemon, server, task(&line("-c", CARD)));
    let first = first.context("the server on the card")?;
    let rxe = ADDRESS.to_string();
    let server = agent::start_listener(task(&line("-s", &rxe)))?;
    let second = to_the_end(daemon, server, daemon.run(&line("-c", &rxe)));
    let second = second.context("the server on rxe")?;
    [first, second].iter().try_for_each(|both| both_say(both, "ping data: rdma-ping-9: "))
}
