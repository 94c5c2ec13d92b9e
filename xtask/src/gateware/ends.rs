//! Programs, cards and balboads that end amid transfers by cards of RTL: the other side has its errors, the RTL is quiet
//! soon, and the next program's bytes arrive.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::process::Running;
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use terminal::report;

use super::cards::{CARDS, Cycles, LIMIT, check_beside};

/// Cycles within which a card is quiet behind an end.
const QUIET: u64 = 1_000_000;
/// The time between two looks at a card's cycles.
const LOOK: Duration = Duration::from_millis(500);
/// Exit codes of verbs-mortal: it saw its card die, its peer go.
const CARD_DIED: i32 = 3;
const PEER_GONE: i32 = 4;
/// What works behind an end.
const NEXT: (&str, &str) = ("lists", "120 listed messages arrived");

/// What brings an end about, and looks at what comes of it.
pub type End = fn(&Setting) -> Result<()>;

/// Each end, by its name.
pub const ENDS: [(&str, End); 4] = [
    ("a program is killed amid its transfers", program_killed),
    ("a card is reset amid transfers", card_reset),
    ("balboad is killed amid transfers", balboad_killed),
    ("a card's logic is replaced amid transfers", logic_replaced),
];

/// Two programs, one on each card, that send each other messages.
fn pair(setting: &Setting, daemon: &Daemon<'_>) -> Result<[Running; 2]> {
    let places = ["meet", "never"].map(|name| setting.directory().join(name));
    let [meet, stop] = places.each_ref().map(|path| path.display());
    let words = format!("pair {meet} {stop}");
    let lead = daemon.mortal(&format!("{words} --lead")).limit(LIMIT).start()?;
    let follow = daemon.mortal(&words).limit(LIMIT).start()?;
    Ok([running(lead)?, running(follow)?])
}

/// A program's peer is killed, and it is told by its messages.
fn program_killed(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(CARDS)?;
    let [lead, follow] = pair(setting, &daemon)?;
    let before = Cycles::of(&daemon)?;
    follow.signal(Signal::SIGKILL)?;
    follow.wait()?;
    lead.wait()?.code(PEER_GONE)?;
    works_on(setting, &daemon, &before)?;
    daemon.stop()
}

/// A command of balboa's, with the state directory behind it, ends balboa0: its program is told, and so is the peer's, by
/// its messages.
fn card_died(setting: &Setting, command: &str) -> Result<()> {
    let daemon = setting.balboad(CARDS)?;
    let [lead, follow] = pair(setting, &daemon)?;
    let before = Cycles::of(&daemon)?;
    let task = setting.built("balboa").words(command).arg(daemon.state_dir());
    task.limit(LIMIT).run()?.success()?;
    lead.wait()?.code(CARD_DIED)?;
    follow.wait()?.code(PEER_GONE)?;
    works_on(setting, &daemon, &before)?;
    daemon.stop()
}

fn card_reset(setting: &Setting) -> Result<()> {
    card_died(setting, "reset balboa0 --yes --state-dir")
}

fn logic_replaced(setting: &Setting) -> Result<()> {
    let make = setting.built("balboa").words("image make --soft vqe -o vqe.soft");
    make.run()?.success()?;
    let apply = "flash apply balboa0 vqe.soft --allow-unsigned --force-disconnect --yes";
    card_died(setting, &format!("{apply} --state-dir"))
}

/// The next balboad serves the same directory.
fn balboad_killed(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad(CARDS)?;
    let both = pair(setting, &daemon)?;
    daemon.kill()?;
    for program in both {
        program.wait()?.code(CARD_DIED)?;
    }
    let daemon = setting.balboad(CARDS)?;
    check_beside(setting, &daemon, NEXT)?;
    daemon.stop()
}

/// Waits until a program has said that it transfers.
fn running(mut program: Running) -> Result<Running> {
    program.wait_until("it transfers", |it| it.has_said("running"))?;
    Ok(program)
}

/// Checks that the cards come to rest, and that the bytes of another program arrive.
fn works_on(setting: &Setting, daemon: &Daemon<'_>, before: &Cycles) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut last = Cycles::of(daemon)?;
    let mut step = None;
    loop {
        sleep(LOOK);
        let now = Cycles::of(daemon)?;
        let took = now.since(before);
        ensure!(took.iter().all(|cycles| *cycles <= QUIET), "not quiet behind cycles={took:?}");
        // Each look has the cards answer a command, which always takes as many cycles.
        let stepped = now.since(&last);
        if step == Some(stepped) {
            report!("quiet behind cycles={took:?} of balboa0 and balboa1");
            break;
        }
        ensure!(Instant::now() < deadline, "no rest within {LIMIT:?}: cycles={took:?}");
        (last, step) = (now, Some(stepped));
    }
    check_beside(setting, daemon, NEXT)
}
