//! A card on the machine's own network, and the kernel's rdma_rxe: each has an end of a cable of the kernel's, the card's
//! in a network of its own.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::agent;
use harness::machines::{IPV4, Machines, WIRE};
use harness::pair::{Both, both_say, free_port, listening, run_pair_in};
use harness::process::Task;
use harness::setting::Daemon;
use harness::vm;

use super::{Case, Need, Setting, load, program, run, task};
use crate::counters::counters;
use crate::interop::{
    DATA, PERFTESTS, UNRELIABLE_PINGPONGS, checked_data, checked_perftest, checked_pingpong,
    checked_unreliable_data,
};
use crate::pingpong::MTUS;
use crate::rdmacm::{RDMACM_UTILS, to_the_end};
use crate::udp::marked::reacts;
use crate::{IBVERBS_UTILS, PERFTEST};

/// The kernel's RDMA device.
const RXE: &str = "rxe1";
/// The network namespace of the card.
const FAR: &str = "far";
/// The kernel's address, and the card's.
const OURS: &str = "10.78.0.1";
const CARDS: &str = "10.78.0.2";
/// The kernel's faults for datagrams on a bad network: most overtake some that are delayed.
const BAD: &str = "netem limit 100000 delay 1ms loss 1% reorder 98% corrupt 0.5%";
/// The same of a network that damages none.
const LOSSY: &str = "netem limit 100000 delay 1ms loss 1% reorder 98%";

/// What a kernel lets go, slower than any card, and the queue before that, which drops nothing of a card's.
const NARROW: &str = "rate 40mbit burst 16k limit 4m";
const MARKING: &str = "limit 10240 target 900ms interval 1s ce_threshold 1ms";
/// Each packet says "congestion experienced", and waits for the one before it.
const MARKED: &str = "ib_send_bw -F -x 1 -u 18 -s 4096 -t 1 -n 400 --tclass 3";
/// How many notifications of those rxe is to bear.
const NOTIFICATIONS: u64 = 1_000;

/// The family.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![case("data", &[], data), case("bad network", &[PERFTEST], bad_network)];
    for mtu in MTUS {
        let name = format!("ibv_rc_pingpong/-m {mtu}");
        cases.push(case(&name, &[IBVERBS_UTILS], move |card| {
            let command = format!("ibv_rc_pingpong -c -e -g 1 -m {mtu} -n 50");
            checked_pingpong(card.both_roles(&command)?)
        }));
    }
    cases.push(case("unreliable pingpongs", &[IBVERBS_UTILS], |card| {
        let roles = UNRELIABLE_PINGPONGS.iter().map(|command| card.both_roles(command));
        let roles = roles.collect::<Result<Vec<_>>>()?;
        roles.iter().flatten().try_for_each(|both| both_say(both, "50 iters in "))
    }));
    cases.push(case("perftest", &[PERFTEST], |card| {
        PERFTESTS.iter().try_for_each(|command| checked_perftest(card.both_roles(command)?))
    }));
    for (program, says) in [
        ("rping ROLE ADDRESS -v -V -C 10 -S 4000", "ping data: rdma-ping-9: "),
        ("ucmatose ROLE ADDRESS -c 5 -C 20 -S 5000", "return status 0"),
        ("udaddy ROLE ADDRESS -c 5 -C 10 -S 1000", "return status 0"),
    ] {
        let name = format!("rdmacm/{}", program.split(' ').next().unwrap_or_default());
        let body = move |card: &Card<'_>| card.connect(program, says);
        cases.push(case(&name, &[RDMACM_UTILS], body));
    }
    let needs = [Need::Program("unshare", "util-linux"), Need::Module("veth")];
    cases.push(Case::new("udp/two cards/bad network", &needs, two_cards).as_root());
    let needs = [&needs[..], &[PERFTEST]].concat();
    cases.push(Case::new("udp/two cards/a queue that marks", &needs, marking_queue).as_root());
    cases.push(case("notifications", &[PERFTEST, IBVERBS_UTILS], notifications));
    cases
}

/// Every operation of connections, byte by byte, between two cards whose kernels lose bursts of datagrams and delay others
/// behind the next ones.
fn two_cards(setting: &Setting) -> Result<()> {
    for module in ["veth", "sch_netem"] {
        load(module)?;
    }
    let machines = Machines::new(setting, 1500)?;
    for side in 0..2 {
        machines.tool(side, &format!("tc qdisc add dev {WIRE} root {LOSSY}"))?;
    }
    let daemons = machines.balboads(&format!("--soft 1 --port udp:{WIRE}"))?;
    let sent_again = |daemon| Ok::<_, anyhow::Error>(counters(daemon, 0)?["retransmitted_pkts"]);
    // A message goes as one burst, which netem loses or delays whole: now and then a round loses none of a card's that
    // it has to send again.
    for round in 0.. {
        ensure!(round < 10, "a card had nothing to send again in {round} rounds");
        for gid in 0..2 {
            let program = program("verbs-data").display().to_string();
            let command = format!("{program} apart --timeout 18 --gid {gid} --bad-cable");
            let both = machines.run_between(&daemons, &command, IPV4[0])?;
            both_say(&both, "210 messages arrived as they should")?;
        }
        if sent_again(&daemons[0])? > 0 && sent_again(&daemons[1])? > 0 {
            break;
        }
    }
    daemons.into_iter().try_for_each(Daemon::stop)
}

/// Cards whose kernels let less go than they send, and mark what has waited for long.
fn marking_queue(setting: &Setting) -> Result<()> {
    for module in ["veth", "sch_tbf"] {
        load(module)?;
    }
    let rate = format!("tc qdisc add dev {WIRE} root handle 1: tbf {NARROW}");
    let queue = format!("tc qdisc add dev {WIRE} parent 1: fq_codel {MARKING}");
    reacts(setting, &[&rate, &queue])
}

/// rxe sends packets that are marked from the start, and is notified of a thousand: it goes on.
fn notifications(card: &Card<'_>) -> Result<()> {
    let notified = || Ok::<_, anyhow::Error>(counters(&card.daemon, 0)?["np_cnp_sent"]);
    let mut rounds = 0;
    while notified()? < NOTIFICATIONS {
        ensure!(rounds < 10, "{} notifications in {rounds} rounds", notified()?);
        checked_perftest(card.both_roles(MARKED)?)?;
        rounds += 1;
    }
    println!("{} notifications in {rounds} rounds", notified()?);
    checked_pingpong(card.both_roles("ibv_rc_pingpong -c -e -g 1 -n 50")?)
}

fn case(
    name: &str,
    needs: &[Need],
    body: impl Fn(&Card<'_>) -> Result<()> + Send + Sync + 'static,
) -> Case {
    let needs = [&[Need::Program("rdma", "iproute2"), Need::Module("veth")], needs].concat();
    let body = move |setting: &Setting| on_wire(setting, &body);
    Case::new(format!("udp/{name}"), &needs, body).as_root()
}

/// A card on its machine.
struct Card<'a> {
    daemon: Daemon<'a>,
}

/// Brings both ends up, runs a case, and sees that the kernel's datagrams were right and were believed.
fn on_wire(setting: &Setting, body: impl FnOnce(&Card<'_>) -> Result<()>) -> Result<()> {
    lay_wire()?;
    let options = format!("--soft 1 --port udp:{WIRE}");
    let daemon = setting.balboad_within(&setting.directory().join("far"), &options, far)?;
    let card = Card { daemon };
    body(&card)?;
    let own = counters(&card.daemon, 0)?;
    ensure!(own["sent_pkts"] > 0 && own["rcvd_pkts"] > 0, "nothing went over the cable: {own:?}");
    // It numbers them, and every one was believed, but where damage was made.
    ensure!(own["port_frames_numbered"] > 0, "nothing had a number: {own:?}");
    ensure!(own["port_balboads_known"] == 0, "rxe is taken for a balboad: {own:?}");
    card.daemon.stop()
}

/// The cable and rxe at its end, once for all cases.
fn lay_wire() -> Result<()> {
    if Path::new("/sys/class/infiniband").join(RXE).exists() {
        return Ok(());
    }
    for module in ["veth", "ib_uverbs", "rdma_ucm", "crc32_generic", "rdma_rxe"] {
        load(module)?;
    }
    // Link-local addresses would be made sure of for a second or two.
    for which in ["all", "default"] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{which}/accept_dad"), "0")?;
    }
    let mtu = vm::MTU;
    let far = format!("ip netns exec {FAR} ip");
    for command in [
        format!("ip netns add {FAR}"),
        format!("ip link add {WIRE} mtu {mtu} type veth peer name {WIRE} mtu {mtu} netns {FAR}"),
        format!("ip addr add {OURS}/24 dev {WIRE}"),
        format!("ip link set {WIRE} up"),
        format!("{far} link set lo up"),
        format!("{far} link set {WIRE} addrgenmode none"),
        format!("{far} addr add fe80::2/64 dev {WIRE} nodad"),
        format!("{far} addr add {CARDS}/24 dev {WIRE}"),
        format!("{far} link set {WIRE} up"),
        format!("rdma link add {RXE} type rxe netdev {WIRE}"),
    ] {
        run(&command)?;
    }
    Ok(())
}

/// A program that runs where the card is.
fn far(program: &Task) -> Task {
    Task::new("ip").words(&format!("netns exec {FAR}")).args(program.command_line())
}

fn data(card: &Card<'_>) -> Result<()> {
    checked_data(card.both_roles(DATA)?)?;
    // Right behind those of IPv4: after a silence of a quarter of a minute Linux may skip so many numbers of datagrams that
    // the card drops one, which nobody sends again.
    checked_unreliable_data(|command| card.both_roles(command))?;
    checked_data(card.both_roles(&format!("{DATA} --gid 0"))?)
}

/// Connections where the kernel loses datagrams, damages some, and has others overtake each other.
fn bad_network(card: &Card<'_>) -> Result<()> {
    let far = format!("ip netns exec {FAR} ");
    load("sch_netem")?;
    for place in ["", &far] {
        run(&format!("{place}tc qdisc add dev {WIRE} root {BAD}"))?;
    }
    let outcome =
        ["ib_write_bw -F -x 1 -u 18 -s 65536 -n 20", "ib_send_bw -F -x 1 -u 18 -s 65536 -n 20 -e"]
            .iter()
            .try_for_each(|command| checked_perftest(card.both_roles(command)?))
            .and_then(|()| {
                // As everywhere against rxe on a bad cable.
                let release = run("uname -r")?;
                let keyless =
                    if release.starts_with("6.1.") { "" } else { " --keyless-empty-reads" };
                checked_data(card.both_roles(&format!("{DATA} --bad-cable{keyless}"))?)
            });
    for place in ["", &far] {
        run(&format!("{place}tc qdisc del dev {WIRE} root"))?;
    }
    outcome
}

impl Card<'_> {
    /// Runs a command with the server on the card and the client on rxe, then the other way round.
    fn both_roles(&self, command: &str) -> Result<[Both; 2]> {
        let (name, words) = command.split_once(' ').unwrap_or((command, ""));
        let on_card = |port: u16, more: &str| {
            let task = self.daemon.run("").arg(program(name)).words(words);
            far(&task.words(&format!("-d balboa0 -p {port} {more}")))
        };
        let on_rxe =
            |port: u16, more: &str| task(command).words(&format!("-d {RXE} -p {port} {more}"));
        let port = free_port()?;
        let there = self.daemon.pid().to_string();
        let first = run_pair_in(&there, on_card(port, ""), on_rxe(port, CARDS), port);
        let first = first.with_context(|| format!("{command}: the server on the card"))?;
        let port = free_port()?;
        let second = run_pair_in("self", on_rxe(port, ""), on_card(port, OURS), port);
        Ok([first, second.with_context(|| format!("{command}: the server on rxe"))?])
    }

    /// The same with programs of rdma_cm: on the card balboad connects, on rxe the kernel.
    fn connect(&self, program: &str, says: &str) -> Result<()> {
        let is_rping = program.starts_with("rping");
        let line = |is_server: bool, address: &str| {
            let role = match (is_rping, is_server) {
                (true, true) => "-s -a",
                (true, false) => "-c -a",
                (false, true) => "-b",
                (false, false) => "-s",
            };
            program.replace("ROLE", role).replace("ADDRESS", address)
        };
        let on_card = |line: String| far(&self.daemon.run(&line));
        let server = listening(&self.daemon, on_card(line(true, CARDS)), "listeners")?;
        let first = to_the_end(&self.daemon, server, task(&line(false, CARDS)));
        both_say(&first.context("the server on the card")?, says)?;
        let server = agent::start_listener(task(&line(true, OURS)))?;
        let second = to_the_end(&self.daemon, server, on_card(line(false, OURS)));
        both_say(&second.context("the server on rxe")?, says)
    }
}
