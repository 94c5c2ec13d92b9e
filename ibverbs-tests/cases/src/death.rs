//! Anything may die at any moment: the others go on, and nothing is left behind.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use harness::process::Running;
use harness::runner::Case;
use harness::setting::{Daemon, Setting};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use verbs_programs::mortal::PEER_GONE;
use verbs_programs::mortal::death::Doing;

use crate::footprint::Footprint;

/// How long anything may take here.
const LIMIT: Duration = Duration::from_secs(180);

/// The family.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Setting) -> Result<()>| {
        Case::new(format!("death/{name}"), &[], body)
    };
    vec![
        case("balboad killed, its programs in every call", balboad_killed),
        case("channels are for reading, and end with balboad killed", |setting| {
            channels(setting, Daemon::kill)
        }),
        case("channels are for reading, and end with balboad", |setting| {
            channels(setting, Daemon::stop)
        }),
        case("balboad stopped in control calls", balboad_stopped),
        case("a client killed in mid-transfer", killed_in_transfer),
        case("a client stopped in mid-transfer", stopped_in_transfer),
        case("a client killed between reserve and commit", killed_reserving),
        case("a client killed whose child keeps the socket", killed_with_heir),
        case("a client that executes another program", executed),
        case("calls in forked children", |setting| forked_children(setting, false)),
        case("calls in forked children, after ibv_fork_init", |setting| {
            forked_children(setting, true)
        }),
        case("messages beside forked children", |setting| family(setting, false)),
        case("messages beside forked children, after ibv_fork_init", |setting| {
            family(setting, true)
        }),
        case("memory that a forked child writes, too", |setting| {
            let said = "54 transfers beside a child that had the same memory";
            forking(setting, "copies", false, said)
        }),
        case("attacked while it transfers", attacked),
    ]
}

/// Starts `verbs-mortal` and waits until it has said a word.
fn started(daemon: &Daemon<'_>, arguments: &str, word: &str) -> Result<Running> {
    let mut running = daemon.mortal(arguments).limit(LIMIT).start()?;
    said(&mut running, word)?;
    Ok(running)
}

fn said(running: &mut Running, word: &str) -> Result<()> {
    let line = |it: &Running| it.output().lines().any(|line| line.starts_with(word));
    running.wait_until(&format!("it said {word}"), line)
}

fn balboad_killed(setting: &Setting) -> Result<()> {
    let first = setting.balboad("--soft 2")?;
    let mut programs = Vec::new();
    for doing in Doing::ALL {
        let value = doing.to_possible_value().context("every call has a name")?;
        programs.push(started(&first, &format!("survive {}", value.get_name()), "waiting")?);
    }
    first.kill()?;
    for program in &mut programs {
        said(program, "told")?;
    }
    // On the same directory, with the dead balboad's files.
    let second = setting.balboad("--soft 2")?;
    for mut program in programs {
        said(&mut program, "again")?;
        program.wait()?.success()?;
    }
    second.stop()
}

fn channels<'a>(setting: &'a Setting, end: fn(Daemon<'a>) -> Result<()>) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let program = started(&daemon, "channels", "waiting")?;
    end(daemon)?;
    program.wait()?.success().map(drop)
}

fn balboad_stopped(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    // Long enough for a balboad that is not stopped, however busy the machine is.
    let task = daemon.mortal("stopped").env(shim_abi::CONTROL_SECONDS_VARIABLE, "5").limit(LIMIT);
    let mut program = task.start()?;
    said(&mut program, "waiting")?;
    daemon.signal(Signal::SIGSTOP)?;
    let told = said(&mut program, "told");
    daemon.signal(Signal::SIGCONT)?;
    told?;
    said(&mut program, "again")?;
    program.wait()?.success()?;
    before.restored(&daemon)?;
    daemon.stop()
}

/// Two programs that send each other messages.
struct Pair {
    lead: Running,
    follow: Running,
    stop: std::path::PathBuf,
}

fn pair(setting: &Setting, daemon: &Daemon<'_>) -> Result<Pair> {
    let (meet, stop) = (setting.directory().join("meet"), setting.directory().join("stop"));
    let places = format!("pair {} {}", meet.display(), stop.display());
    let lead = daemon.mortal(&format!("{places} --lead")).limit(LIMIT).start()?;
    let follow = daemon.mortal(&places).limit(LIMIT).start()?;
    let mut pair = Pair { lead, follow, stop };
    said(&mut pair.lead, "running")?;
    said(&mut pair.follow, "running")?;
    Ok(pair)
}

fn killed_in_transfer(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let Pair { lead, follow, .. } = pair(setting, &daemon)?;
    follow.signal(Signal::SIGKILL)?;
    follow.wait()?;
    lead.wait()?.code(PEER_GONE.into())?;
    before.restored(&daemon)?;
    daemon.stop()
}

fn stopped_in_transfer(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let Pair { lead, follow, stop } = pair(setting, &daemon)?;
    follow.signal(Signal::SIGSTOP)?;
    // Others go on meanwhile, and its peer waits as long as it must.
    let others = daemon.run("").arg(setting.bin.join("verbs-data")).words("lists");
    let outcome = others.limit(LIMIT).run().and_then(harness::process::Finished::success);
    follow.signal(Signal::SIGCONT)?;
    outcome?;
    std::fs::write(stop, "")?;
    lead.wait()?.success()?;
    follow.wait()?.success()?;
    before.restored(&daemon)?;
    daemon.stop()
}

fn killed_reserving(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let state = daemon.state_dir().display();
    let program = setting.built("verbs-mortal").words(&format!("reserve {state}"));
    let mut program = program.limit(LIMIT).start()?;
    said(&mut program, "reserved")?;
    ensure!(Footprint::of(&daemon)? != before, "it has something to lose");
    program.signal(Signal::SIGKILL)?;
    program.wait()?;
    before.restored(&daemon)?;
    daemon.stop()
}

fn killed_with_heir(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let program = started(&daemon, "heir", "heir ")?;
    let output = program.output();
    let heir = output.lines().find_map(|line| line.strip_prefix("heir ")).context("no heir")?;
    let heir = Pid::from_raw(heir.trim().parse()?);
    // It alone: its child stays, with every descriptor.
    kill(Pid::from_raw(program.pid()), Signal::SIGKILL)?;
    let outcome = before.restored(&daemon);
    ensure!(kill(heir, None).is_ok(), "the heir has ended too");
    kill(heir, Signal::SIGKILL)?;
    outcome?;
    program.wait()?;
    daemon.stop()
}

fn executed(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let program = started(&daemon, "execute", "executing")?;
    before.restored(&daemon)?;
    let runs = kill(Pid::from_raw(program.pid()), None);
    ensure!(runs.is_ok(), "the process that executed another program has ended");
    program.signal(Signal::SIGKILL)?;
    program.wait()?;
    daemon.stop()
}

/// The variable with which libibverbs calls ibv_fork_init by itself, for any value.
const FORK_SAFE: &str = "RDMAV_FORK_SAFE";

fn forked_children(setting: &Setting, fork_safe: bool) -> Result<()> {
    forking(setting, "children", fork_safe, "20 children were refused")
}

fn family(setting: &Setting, fork_safe: bool) -> Result<()> {
    forking(setting, "family", fork_safe, "200 messages arrived beside children")
}

fn forking(setting: &Setting, what: &str, fork_safe: bool, said: &str) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let run = || -> Result<()> {
        let mut task = daemon.mortal(what).limit(LIMIT);
        if fork_safe {
            task = task.env(FORK_SAFE, "1");
        }
        task.run()?.success()?.says(said).map(drop)
    };
    // What a card has from its first use on is there then.
    run()?;
    let before = Footprint::of(&daemon)?;
    run()?;
    before.restored(&daemon)?;
    daemon.stop()
}

/// Garbage, held connections and passed descriptors on every socket of the state directory, while
/// data is moved between two balboads whose ports have sockets there too.
fn attacked(setting: &Setting) -> Result<()> {
    let state = setting.state_dir();
    let port = |end: &str, other: &str| {
        format!("unix:{},{}", state.join(end).display(), state.join(other).display())
    };
    std::fs::create_dir(&state)?;
    std::os::unix::fs::chown(&state, Some(setting.uid()), Some(setting.uid()))?;
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let ports = format!("--port 0={} --port 1={}", port("a", "b"), port("b", "a"));
    let daemon = setting.balboad(&format!("--soft 2 {ports}"))?;
    let before = Footprint::of(&daemon)?;
    // Each checks every byte that it receives.
    let Pair { lead, follow, stop } = pair(setting, &daemon)?;
    let attack = setting.built("verbs-mortal").words(&format!("attack {}", state.display()));
    let mut attack = attack.limit(LIMIT).start()?;
    said(&mut attack, "thrown at 5 sockets")?;
    // While everything is held: a new client works, and the status can be read.
    let new = daemon.run("").arg(setting.bin.join("verbs-data")).words("lists");
    new.limit(LIMIT).run()?.success()?;
    let status = daemon.status()?;
    ensure!(status["clients"].is_array(), "{status:#}");
    std::fs::write(stop, "")?;
    lead.wait()?.success()?;
    follow.wait()?.success()?;
    attack.signal(Signal::SIGKILL)?;
    attack.wait()?;
    before.restored(&daemon)?;
    daemon.stop()
}
