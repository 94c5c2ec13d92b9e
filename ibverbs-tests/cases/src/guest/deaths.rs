//! Sudden ends of cards, of balboad and of programs: all others are told, none hangs, and nothing is left behind.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::pair::{free_port, run_between, start_server};
use harness::process::{Running, Task};
use harness::setting::Daemon;
use nix::sys::signal::Signal;

use super::cards::{cards, drivers, functions, pingpong, plugged_in};
use super::{Case, Hardware, Setting, ask_host, have_host, until};
use crate::footprint::Footprint;
use crate::{IBVERBS_UTILS, PERFTEST};

/// How long a transfer that is broken off may take to end.
const LONG: Duration = Duration::from_secs(60);
/// Cards of the machine.
const CARDS: [usize; 2] = [0, 1];
/// The calls that programs are in when their cards die, by the names of `verbs-mortal survive`.
const CALLS: [&str; 4] = ["poll", "cq-event", "async-event", "epoll"];

/// The family. Behind a paravirtual IOMMU no card dies or is taken out: QEMU ends where it cannot unmap
/// something from a server that has gone.
pub(super) fn cases(hardware: Hardware) -> Vec<Case> {
    let case = |name: &str, body: fn(&Setting, Hardware) -> Result<()>| {
        Case::new(name, &[PERFTEST], move |setting| body(setting, hardware)).as_root()
    };
    let mut cases = vec![
        case("memory that a forked child writes, too", forked),
        case("a client is killed in mid-transfer", client_killed),
        case("balboad is killed in mid-transfer", balboad_killed),
    ];
    if hardware == Hardware::IntelIommu {
        cases.push(case("cards are reset in mid-transfer", cards_reset));
        cases.push(case("the kernel wants a card back in mid-transfer", card_wanted_back));
        // The last one: it leaves no cards.
        cases.push(case("cards die and are taken out in mid-transfer", cards_lost));
    }
    cases
}

/// The cases of the boot that brings cards back that died or were taken out.
pub(super) fn cases_of_second_boot(hardware: Hardware) -> Vec<Case> {
    if hardware != Hardware::IntelIommu {
        return Vec::new();
    }
    let body = move |setting: &Setting| {
        let daemon = cards(setting, hardware)?;
        pingpong(&daemon, "")?;
        pingpong(&daemon, "-e")?;
        daemon.stop()
    };
    vec![Case::new("the cards are back", &[IBVERBS_UTILS], body).as_root()]
}

/// Resources held for a balboad without clients: by itself, by the kernel, and by the cards' servers.
#[derive(Debug)]
pub(super) struct Held {
    footprint: Footprint,
    locked: u64,
    cards: Vec<String>,
}

impl Held {
    pub(super) fn of(daemon: &Daemon<'_>) -> Result<Self> {
        let cards = held_by_cards()?;
        Ok(Self { footprint: Footprint::of(daemon)?, locked: locked(daemon.pid())?, cards })
    }

    /// Waits until the same resources are held again.
    pub(super) fn restored(&self, daemon: &Daemon<'_>) -> Result<()> {
        self.footprint.restored(daemon)?;
        self.same(daemon)
    }

    /// The same of another balboad.
    fn same(&self, daemon: &Daemon<'_>) -> Result<()> {
        let locked = locked(daemon.pid())?;
        ensure!(
            locked == self.locked,
            "balboad has {locked} bytes locked, and had {}",
            self.locked
        );
        let cards = held_by_cards()?;
        ensure!(cards == self.cards, "the cards hold {cards:?}, and held {:?}", self.cards);
        Ok(())
    }
}

/// The resources that the cards' servers hold for the machine: maps of its memory, files behind them, interrupts.
fn held_by_cards() -> Result<Vec<String>> {
    let held = |card| -> Result<String> {
        let counts = ask_host("count", card)?;
        let kept = ["clients", "dma_maps", "mapped_files", "interrupt_eventfds"]
            .map(|name| Ok(format!("{name}={}", counted(&counts, name)?)));
        Ok(kept.into_iter().collect::<Result<Vec<_>>>()?.join(" "))
    };
    CARDS.into_iter().map(held).collect()
}

/// One of a card's counts.
pub(super) fn counted(counts: &str, name: &str) -> Result<u64> {
    let mut words = counts.split_whitespace();
    let count = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    count.and_then(|count| count.parse().ok()).with_context(|| format!("no {name}: {counts}"))
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
struct Transfer {
    server: Running,
    client: Running,
}

impl Transfer {
    fn start(daemon: &Daemon<'_>) -> Result<Self> {
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
        until(LONG, "packets were sent", || Ok(moved()? > before + 1000))?;
        Ok(Self { server, client })
    }

    /// The client ends by itself, and is not content. Its peer waits for a word of it over TCP.
    fn breaks_off(self) -> Result<()> {
        let ended = self.client.limited(LONG).wait()?;
        ensure!(!ended.status.success(), "a client without its card was content: {ended}");
        self.server.signal(Signal::SIGKILL)?;
        self.server.wait().map(drop)
    }
}

/// Programs that have work outstanding on both cards, each in another call; `of` is the death that they are to survive.
fn survivors(daemon: &Daemon<'_>, of: &str) -> Result<Vec<Running>> {
    let start = |call: &&str| {
        let mut program = daemon.mortal(&format!("survive {call} {of}")).limit(2 * LONG).start()?;
        said(&mut program, "waiting")?;
        Ok(program)
    };
    CALLS.iter().map(start).collect()
}

/// Each has been told, has got back all that was outstanding, and has nothing left of the cards.
fn were_told(programs: &mut [Running]) -> Result<()> {
    programs.iter_mut().try_for_each(|program| said(program, "told"))
}

/// Waits until each program has worked with the cards that are there now.
fn work_again(programs: Vec<Running>) -> Result<()> {
    for mut program in programs {
        said(&mut program, "again")?;
        program.wait()?.success()?;
    }
    Ok(())
}

pub(super) fn said(running: &mut Running, word: &str) -> Result<()> {
    let line = |it: &Running| it.output().lines().any(|line| line.starts_with(word));
    running.wait_until(&format!("it said {word}"), line)
}

/// The kernel copies pages that a card has pinned for a child.
fn forked(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let before = Held::of(&daemon)?;
    let said = "54 transfers beside a child that had the same memory";
    daemon.mortal("copies").limit(LONG).run()?.success()?.says(said)?;
    before.restored(&daemon)?;
    daemon.stop()
}

fn client_killed(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let before = Held::of(&daemon)?;
    let Transfer { server, client } = Transfer::start(&daemon)?;
    for side in [client, server] {
        side.signal(Signal::SIGKILL)?;
        side.wait()?;
    }
    before.restored(&daemon)?;
    pingpong(&daemon, "")?;
    daemon.stop()
}

/// The programs end, and do not hang, and leave the cards; another balboad takes the cards over, and
/// those of the programs that go on work with it.
fn balboad_killed(setting: &Setting, hardware: Hardware) -> Result<()> {
    drivers(hardware)?;
    let idle = held_by_cards()?;
    let daemon = cards(setting, hardware)?;
    let before = locked(daemon.pid())?;
    let mut programs = survivors(&daemon, "")?;
    let pids = pids_of_clients(&daemon)?;
    let transfer = Transfer::start(&daemon)?;
    daemon.kill()?;
    transfer.breaks_off()?;
    were_told(&mut programs)?;
    for pid in pids {
        let locked = locked(pid)?;
        ensure!(locked == 0, "a program without cards has {locked} bytes locked");
    }
    until(LONG, "the cards were closed", || Ok(held_by_cards()? == idle))?;
    let daemon = cards(setting, hardware)?;
    work_again(programs)?;
    until(LONG, "the programs had gone", || Ok(pids_of_clients(&daemon)?.is_empty()))?;
    pingpong(&daemon, "-e")?;
    let locked = locked(daemon.pid())?;
    ensure!(locked == before, "balboad has {locked} bytes locked, and the one before had {before}");
    // Into how many maps a balboad's memory falls depends on where it lies, but none of either is left.
    daemon.stop()?;
    until(LONG, "the cards were closed again", || Ok(held_by_cards()? == idle))
}

fn pids_of_clients(daemon: &Daemon<'_>) -> Result<Vec<i32>> {
    let status = daemon.status()?;
    let clients = status["clients"].as_array().context("the status lists no clients")?;
    let verbs = clients.iter().filter(|client| client["role"] == "provider");
    verbs.map(|client| Ok(i32::try_from(client["pid"].as_i64().context("no pid")?)?)).collect()
}

/// One card is taken out while it works. The other one's server is killed: its registers read as ones, and
/// nothing is written any more. QEMU does not connect to a server twice, so the second boot brings it back.
fn cards_lost(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let mut programs = survivors(&daemon, "--card")?;
    let transfer = Transfer::start(&daemon)?;
    have_host("kill", 0)?;
    let [dead, works] = functions()?.try_into().map_err(|it| anyhow::anyhow!("cards {it:?}"))?;
    let first = asking_back(&format!("1 > /sys/bus/pci/devices/{works}/remove"))?;
    transfer.breaks_off()?;
    were_told(&mut programs)?;
    for program in programs {
        program.signal(Signal::SIGKILL)?;
        program.wait()?;
    }
    first.wait()?.success()?;
    // To close a card that does not answer would take the kernel a minute, unless it takes it out.
    asking_back(&format!("1 > /sys/bus/pci/devices/{dead}/remove"))?.wait()?.success()?;
    let_go(&daemon, 2)?;
    let left = plugged_in()?;
    ensure!(left.is_empty(), "the kernel still has {left:?}");
    let locked = locked(daemon.pid())?;
    ensure!(locked == 0, "balboad without cards has {locked} bytes locked");
    daemon.stop()
}

/// Cards that are reset behind balboad's back have forgotten everything. It brings them up anew once
/// the programs have left them.
fn cards_reset(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let before = Held::of(&daemon)?;
    let mut programs = survivors(&daemon, "--card")?;
    let transfer = Transfer::start(&daemon)?;
    for function in functions()? {
        let path = format!("/sys/bus/pci/devices/{function}/reset");
        fs::write(&path, "1").with_context(|| path.clone())?;
    }
    transfer.breaks_off()?;
    were_told(&mut programs)?;
    work_again(programs)?;
    before.restored(&daemon)?;
    pingpong(&daemon, "-e")?;
    daemon.stop()
}

/// A card that works is to be given to another driver: its programs are told, the other card's go on, and
/// balboad lets go of it. Then another balboad has it.
fn card_wanted_back(setting: &Setting, hardware: Hardware) -> Result<()> {
    let daemon = cards(setting, hardware)?;
    let before = Held::of(&daemon)?;
    let transfer = Transfer::start(&daemon)?;
    let function = functions()?.remove(1);
    let unbinding = asking_back(&format!("{function} > /sys/bus/pci/drivers/vfio-pci/unbind"))?;
    transfer.breaks_off()?;
    unbinding.wait()?.success()?;
    let_go(&daemon, 1)?;
    run_between((&daemon, 0), (&daemon, 0), "ibv_rc_pingpong -c -g 1 -n 100")?;
    daemon.stop()?;
    let daemon = cards(setting, hardware)?;
    before.same(&daemon)?;
    pingpong(&daemon, "-e")?;
    daemon.stop()
}

/// Writes to a file of sysfs, for which the kernel acts once the last holder of a card has let go; the process ends
/// then.
pub(super) fn asking_back(words: &str) -> Result<Running> {
    Task::new("sh").arg("-c").arg(format!("echo {words}")).limit(LONG).start()
}

/// Waits until balboad has so many cards less.
pub(super) fn let_go(daemon: &Daemon<'_>, cards: usize) -> Result<()> {
    until(LONG, "balboad had let go of a card", || {
        let status = daemon.status()?;
        let left = status["cards"].as_array().context("the status lists no cards")?.len();
        Ok(left + cards == CARDS.len())
    })
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn a_count_is_found_by_its_whole_name() {
        let counts = "clients=1 dma_maps=17 mapped_files=2 maps=3";
        assert_eq!(counted(counts, "maps").unwrap(), 3);
        assert_eq!(counted(counts, "dma_maps").unwrap(), 17);
        assert!(counted(counts, "files").is_err());
    }
}
