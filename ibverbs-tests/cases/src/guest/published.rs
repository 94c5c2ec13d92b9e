//! Cards as published behind vfio-pci and an IOMMU, and the engine that balboad hosts for them.
//!
//! The emulated processor splits a driver's stores of 32 bytes. So the servers of these cards join the parts, as no
//! card does: these cases try the whole way except for those stores.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{Both, free_port, run_between, run_pair, start_server};
use harness::process::Running;
use harness::setting::Daemon;
use nix::sys::signal::Signal;
use serde_json::Value;
use verbs_programs::hostile::unanswered::IN_ERROR;

use super::cards::{bound_for, cards_of, drivers};
use super::deaths::{Held, counted, said};
use super::yama::{Scope, by_sysfs_path};
use super::{Case, Hardware, Need, Setting, ask_host, until};
use crate::perftest::STEADY_CLOCK;
use crate::stock::peers_file;
use crate::{IBVERBS_UTILS, PERFTEST};

const HARDWARE: Hardware = Hardware::Published;
/// The manifest of these cards: the model with its shell mended.
const MANIFEST: &str = r#"
format = 1
name = "published"
shell-map = "since-2026"
engine = "stock"

[source]
url = "https://github.com/fpgasystems/Coyote"
commit = "0000000000000000000000000000000000000000"
mended = ["windows", "selection"]
"#;
/// How long a program may take on an emulated processor whose host does other things.
const LIMIT: Duration = Duration::from_secs(300);
/// A watchdog that fails no QP for being slow.
const PATIENT: &str = "--watchdog 120000";
/// Counters of a card's server that are 0 unless frames were lost or refused, or the stack stands.
const HARM: [&str; 5] = [
    "stock_reception_stands",
    "stock_sending_starves",
    "stock_lost_posts",
    "stock_lost_frames",
    "stock_refused_transfers",
];

/// The family.
pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, needs: &[Need], body: fn(&Setting) -> Result<()>| {
        Case::new(name, &[&[Need::Root], needs].concat(), body)
    };
    vec![
        case("WRITE and READ", &[PERFTEST], carried),
        case("a program is killed", &[PERFTEST], killed).as_root(),
        case("a balboad is killed", &[PERFTEST], balboad_killed).as_root(),
        case("tunnel/programs", &[PERFTEST, IBVERBS_UTILS], tunnelled),
        case("tunnel/two balboads", &[PERFTEST, IBVERBS_UTILS], two_balboads),
        case("tunnel/lossy", &[PERFTEST, IBVERBS_UTILS], lossy),
        case("tunnel/verbs-data", &[], data).as_root(),
        case("tunnel/memory that does not answer", &[PERFTEST], unanswered).as_root(),
        case("tunnel/a program out of reach", &[IBVERBS_UTILS], out_of_reach),
    ]
}

/// A balboad's arguments for such cards.
fn arguments(setting: &Setting, cards: &str, options: &str) -> Result<String> {
    let manifest = setting.directory().join("published.toml");
    fs::write(&manifest, MANIFEST)?;
    let numbers = 0..cards.matches("--vfio").count();
    let manifests = numbers.map(|card| format!("--manifest {card}={} ", manifest.display()));
    Ok(format!("{cards}{}{options}", manifests.collect::<String>()))
}

/// Both cards, for the case's user, and a balboad on them.
fn cards<'a>(setting: &'a Setting, options: &str) -> Result<Daemon<'a>> {
    drivers(HARDWARE)?;
    setting.balboad(&arguments(setting, &bound_for(setting, setting.uid())?, options)?)
}

/// A counter of a card, 0 where it is not there.
fn counter(status: &Value, card: usize, name: &str) -> u64 {
    status["cards"][card]["counters"][name].as_u64().unwrap_or(0)
}

/// The transfers that the bus refused both cards.
fn refusals() -> Result<[u64; 2]> {
    let of = |card| counted(&ask_host("count", card)?, "bus_refusals");
    Ok([of(0)?, of(1)?])
}

/// Neither card was harmed, and none wrote where there is no memory for it: copies of counters went to the guard's.
fn unharmed(daemon: &Daemon<'_>, refused: [u64; 2]) -> Result<()> {
    stand_well()?;
    let status = daemon.status()?;
    for card in [0, 1] {
        for name in ["engine_quarantined_qps", "engine_wants_reset"] {
            let count = counter(&status, card, name);
            ensure!(count == 0, "{name} of card {card} is {count}");
        }
    }
    let now = refusals()?;
    ensure!(now == refused, "the bus refused {now:?} accesses, and {refused:?} before");
    Ok(())
}

/// The programs as published cards carry them, the bytes compared by one of them.
fn carried(setting: &Setting) -> Result<()> {
    let daemon = cards(setting, &format!("--tunnel off {PATIENT}"))?;
    let refused = refusals()?;
    for command in ["ib_write_bw -s 65536 -n 20", "ib_read_bw -s 65536 -n 20"] {
        run_between((&daemon, 0), (&daemon, 1), &format!("{command} {STEADY_CLOCK}"))?;
    }
    let port = free_port()?;
    let program = setting.bin.join("verbs-data");
    let side = |card: u32| {
        let task = daemon.run("").arg(&program).words("apart --one-sided --late");
        task.words(&format!("-d balboa{card} -p {port}"))
    };
    let both = run_pair(side(0), side(1).arg("127.0.0.1"), port)?;
    both.client.says("12 messages arrived as they should")?;
    let status = daemon.status()?;
    let posts = counter(&status, 1, "engine_posts");
    ensure!(posts > 0, "nothing was posted: {status:#}");
    unharmed(&daemon, refused)?;
    // Between QPs of one card this host copies.
    run_between((&daemon, 0), (&daemon, 0), &format!("ib_write_bw -n 20 {STEADY_CLOCK}"))?;
    daemon.stop()
}

/// A transfer that would take long: server on the first card, client on the second.
fn transfer(
    server: &Daemon<'_>,
    client: (&Daemon<'_>, u32),
    program: &str,
) -> Result<[Running; 2]> {
    let port = free_port()?;
    let side = |(daemon, card): (&Daemon<'_>, u32)| {
        let task = daemon.run(program).arg(STEADY_CLOCK).words("-D 60");
        task.words(&format!("-d balboa{card} -p {port}")).limit(LIMIT)
    };
    let (daemon, card) = client;
    let server = start_server(side((server, 0)), port)?;
    let mut client = side((daemon, card)).arg("127.0.0.1").start()?;
    let at = usize::try_from(card)?;
    let begun = |_: &_| daemon.status().is_ok_and(|it| counter(&it, at, "engine_posts") > 100);
    client.wait_until("it wrote", begun)?;
    Ok([server, client])
}

/// Programs die in the middle of it: nothing is left behind, and others go on.
fn killed(setting: &Setting) -> Result<()> {
    let daemon = cards(setting, &format!("--tunnel off {PATIENT}"))?;
    let refused = refusals()?;
    let before = Held::of(&daemon)?;
    for victim in [0, 1] {
        let programs = transfer(&daemon, (&daemon, 1), "ib_write_bw")?;
        programs[victim].signal(Signal::SIGKILL)?;
        programs[1 - victim].signal(Signal::SIGTERM)?;
        for program in programs {
            program.wait()?;
        }
        before.restored(&daemon)?;
    }
    run_between((&daemon, 1), (&daemon, 0), &format!("ib_read_bw -n 20 {STEADY_CLOCK}"))?;
    unharmed(&daemon, refused)?;
    daemon.stop()
}

/// A balboad on the card of that number, of those that are there.
fn with_one<'a>(
    setting: &'a Setting,
    each: &[String],
    number: usize,
    options: &str,
) -> Result<Daemon<'a>> {
    let options = format!("{options} --ip 10.77.0.{}/24", number + 1);
    let state_dir = setting.directory().join(format!("balboad{number}"));
    let cards = each.get(number).context("the machine has two cards")?;
    setting.balboad_in(&state_dir, &arguments(setting, cards, &options)?)
}

/// One of two balboads with a card each dies: the other one's QP fails by the watchdog, and its number rests until the
/// card is reset.
fn balboad_killed(setting: &Setting) -> Result<()> {
    drivers(HARDWARE)?;
    let each = cards_of(setting, setting.uid())?;
    let start = |number| with_one(setting, &each, number, "--tunnel off --watchdog 3000");
    let (peer, daemon) = (start(0)?, start(1)?);
    let [server, client] = transfer(&peer, (&daemon, 0), "ib_write_bw")?;
    peer.kill()?;
    let client = client.wait()?;
    let said = format!("{}{}", client.stdout, client.stderr);
    ensure!(!client.status.success() && said.contains("status 12"), "no RETRY_EXC: {client}");
    server.signal(Signal::SIGKILL)?;
    server.wait()?;
    let resting =
        || Ok::<_, anyhow::Error>(counter(&daemon.status()?, 0, "engine_quarantined_qps"));
    ensure!(resting()? == 1, "its number does not rest");
    let reset = setting.built("balboa").words("reset balboa0 --yes --state-dir");
    reset.arg(daemon.state_dir()).run()?.success()?;
    ensure!(resting()? == 0, "its number still rests");
    // Another balboad takes the other card over.
    let peer = start(0)?;
    run_between((&peer, 0), (&daemon, 0), &format!("ib_write_bw -n 20 {STEADY_CLOCK}"))?;
    peer.stop()?;
    daemon.stop()
}

/// Neither card stands, or has lost or refused anything.
fn stand_well() -> Result<()> {
    for card in [0, 1] {
        let counts = ask_host("count", card)?;
        for name in HARM {
            ensure!(counted(&counts, name)? == 0, "card {card}: {counts}");
        }
    }
    Ok(())
}

/// Balboads with a card each that name each other; one is stopped and there again, and the tunnel with it.
fn two_balboads(setting: &Setting) -> Result<()> {
    drivers(HARDWARE)?;
    let file = peers_file(setting, "peers", "5a")?;
    let each = cards_of(setting, setting.uid())?;
    let options = format!("--tunnel-peers {} {PATIENT}", file.display());
    let start = |number| with_one(setting, &each, number, &options);
    let refused = refusals()?;
    let (mut one, other) = (start(0)?, start(1)?);
    for _ in 0..2 {
        run_between((&other, 0), (&one, 0), "ibv_rc_pingpong -c -g 1 -n 50")?;
        for command in ["ib_send_bw -s 5001 -n 50", "ib_atomic_bw -n 50"] {
            run_between((&one, 0), (&other, 0), &format!("{command} {STEADY_CLOCK}"))?;
        }
        let sent = counter(&one.status()?, 0, "tunnel_slots_sent");
        ensure!(sent > 0, "nothing went through the tunnel");
        one.stop()?;
        one = start(0)?;
    }
    stand_well()?;
    ensure!(refusals()? == refused, "the bus refused what it did not before");
    one.stop()?;
    other.stop()
}

/// Cards that are told that their cable loses: one packet of each QP is out, by the tunnel and without.
fn lossy(setting: &Setting) -> Result<()> {
    for (tunnel, commands) in [
        ("on", ["ibv_rc_pingpong -c -g 1 -n 30", "ib_send_bw -s 5001 -n 50"]),
        ("off", ["ib_write_bw -s 65536 -n 20", "ib_read_bw -s 65536 -n 20"]),
    ] {
        let daemon = cards(setting, &format!("--tunnel {tunnel} --lossy {PATIENT}"))?;
        let refused = refusals()?;
        for command in commands {
            let clock = if command.starts_with("ib_") { STEADY_CLOCK } else { "" };
            run_between((&daemon, 0), (&daemon, 1), &format!("{command} {clock}"))?;
        }
        unharmed(&daemon, refused)?;
        daemon.stop()?;
    }
    Ok(())
}

/// Checks that slots went through the tunnel, and no harm was done.
fn slots_went(daemon: &Daemon<'_>, refused: [u64; 2]) -> Result<()> {
    unharmed(daemon, refused)?;
    let status = daemon.status()?;
    for card in [0, 1] {
        for name in ["tunnel_slots_sent", "tunnel_slots_taken", "engine_posts"] {
            ensure!(counter(&status, card, name) > 0, "{name} of card {card} is 0");
        }
    }
    Ok(())
}

fn tunnelled(setting: &Setting) -> Result<()> {
    let daemon = cards(setting, &format!("--tunnel on {PATIENT}"))?;
    let refused = refusals()?;
    let command = "ibv_rc_pingpong -c -g 1 -m 1024 -n 100";
    let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), command)?;
    for side in [server, client] {
        ensure!(!side.says("100 iters in ")?.stdout.contains("invalid data"), "other bytes");
    }
    for command in ["ib_send_bw -s 5001 -n 50", "ib_read_bw -s 5001 -n 50", "ib_atomic_bw -n 50"] {
        run_between((&daemon, 0), (&daemon, 1), &format!("{command} {STEADY_CLOCK}"))?;
    }
    slots_went(&daemon, refused)?;
    daemon.stop()
}

/// Every byte and status, regions that end, and programs that die.
fn data(setting: &Setting) -> Result<()> {
    let daemon = cards(setting, &format!("--tunnel on {PATIENT}"))?;
    let refused = refusals()?;
    for (command, says) in [
        ("lists --gid 1", "listed messages arrived"),
        ("memory --pinned --copied", "bytes moved in"),
        ("reach --tries 20", "reached in 20 of 20 before and in 0 of 20 after"),
    ] {
        let program = daemon.run("").arg(setting.bin.join("verbs-data")).words(command);
        program.limit(LIMIT).run()?.success()?.says(says)?;
    }
    let before = Held::of(&daemon)?;
    let programs = transfer(&daemon, (&daemon, 1), "ib_send_bw")?;
    for program in programs {
        program.signal(Signal::SIGKILL)?;
        program.wait()?;
    }
    before.restored(&daemon)?;
    slots_went(&daemon, refused)?;
    daemon.stop()
}

/// The IOMMU has a program's pages; a program that holds their content back from the copier is ended, and others go on.
fn unanswered(setting: &Setting) -> Result<()> {
    let daemon = cards(setting, &format!("--tunnel on {PATIENT}"))?;
    let program = setting.bin.join("verbs-attack");
    let mut ended = 0usize;
    for by in ["send", "written"] {
        let place = setting.directory().join(by);
        let task = daemon.run("").arg(&program).words(&format!("unanswered {by}"));
        let task = task.words("--memory userfault --node /dev/userfaultfd --place").arg(place);
        let mut program = task.limit(LIMIT).start()?;
        said(&mut program, IN_ERROR)?;
        ended = ended.saturating_add(1);
        let told = || daemon.log().matches("memory that it registered does not answer").count();
        until(LIMIT, "the program was ended", || Ok(told() == ended))?;
        program.signal(Signal::SIGKILL)?;
        program.wait()?;
    }
    run_between((&daemon, 0), (&daemon, 1), &format!("ib_send_bw -n 20 {STEADY_CLOCK}"))?;
    daemon.stop()
}

/// The kernel decides whether balboad may copy a program's memory, and a program out of its reach is refused.
fn out_of_reach(setting: &Setting) -> Result<()> {
    let _scope = Scope::set(2)?;
    let daemon = cards(setting, &format!("--tunnel on {PATIENT}"))?;
    by_sysfs_path(setting, &daemon, false)?;
    daemon.stop()
}
