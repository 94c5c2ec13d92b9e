//! Other parties on a cable.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::process::{Finished, Running, Task};
use harness::runner::{Case, Need};
use harness::setting::{Daemon, Setting};
use nix::sys::signal::Signal;
use verbs_programs::hostile::cable::FORGED;
use verbs_programs::hostile::{ATTACKING, PATIENCE};

use super::files::SOMEBODY;
use super::phase::Length;
use super::scene::number_said;
use crate::counters::counters;

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    vec![
        super::case(length, "a cable whose other end is somebody's", &[Need::Root], somebodys),
        super::case(length, "addresses of IPv4 in envelopes of IPv6", &[], mapped),
        super::case(length, "addresses that nobody else has", &[], martians),
    ]
}

/// The frames of a card go to its own user's socket, and not to another's that stands there later.
fn somebodys(setting: &Setting, _: Length) -> Result<()> {
    let shared = setting.directory().join("shared");
    fs::create_dir(&shared)?;
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777))?;
    // Otherwise no other case gets it.
    fs::set_permissions(setting.directory(), fs::Permissions::from_mode(0o755))?;
    let (local, remote) = (shared.join("local"), shared.join("remote"));
    let ends = format!("unix:{},{}", local.display(), remote.display());
    let daemon = setting.balboad(&format!("--soft 1 --port {ends}"))?;
    let listen = |task: Task| -> Result<Running> {
        let mut running = task.arg("listen").arg(&remote).start()?;
        running.wait_until("it listened", |it| it.has_said(ATTACKING))?;
        Ok(running)
    };
    let own = listen(setting.built("verbs-attack"))?;
    ask(setting, &daemon)?;
    let came = received(&own);
    ensure!(came > 0, "no frame comes to the user's own socket");
    own.signal(Signal::SIGKILL)?;
    own.wait()?;
    fs::remove_file(&remote)?;

    let foreign = listen(setting.built("verbs-attack").user(Some(SOMEBODY)))?;
    ask(setting, &daemon)?;
    let came = received(&foreign);
    ensure!(came == 0, "{came} frames go to the socket of another user");
    daemon.stop()
}

/// Lets the card ask a few times for a neighbour.
fn ask(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    let asked = || -> Result<u64> {
        Ok(*counters(daemon, 0)?.get("sent_arp_requests").context("no counter")?)
    };
    let before = asked()?;
    let program = daemon.run("").arg(setting.bin.join("verbs-attack")).words("silent --qps 1");
    let program = program.limit(Duration::MAX).start()?;
    let deadline = Instant::now() + PATIENCE;
    while asked()? < before + 3 {
        ensure!(Instant::now() < deadline, "the card asks for nobody: {}", program.errors());
    }
    program.signal(Signal::SIGKILL)?;
    program.wait().map(drop)
}

/// How many frames a listener says have come. Those that are under way come at once.
fn received(listener: &Running) -> u64 {
    std::thread::sleep(Duration::from_millis(100));
    number_said(listener, "received ").unwrap_or(0)
}

fn mapped(setting: &Setting, _: Length) -> Result<()> {
    let drops = |name: &str| name.starts_with("drop_");
    from_outside(setting, "forge", drops)
}

fn martians(setting: &Setting, _: Length) -> Result<()> {
    from_outside(setting, "impersonate", |name| name == "drop_martian_source")
}

/// Lets a program that is a card's client and its cable's other end forge frames, none of which is taken, and all of
/// which are in such counters.
fn from_outside(setting: &Setting, attack: &str, counted: fn(&str) -> bool) -> Result<()> {
    let end = |name: &str| setting.directory().join(name);
    let (local, remote) = (end("local"), end("remote"));
    let daemon = setting.balboad(&format!(
        "--soft 1 --port unix:{},{}",
        local.display(),
        remote.display()
    ))?;
    let before = dropped(&daemon, counted)?;
    let program = |path: &Path| path.as_os_str().to_owned();
    let task =
        daemon.run("").arg(setting.bin.join("verbs-attack")).words(&format!("{attack} balboa0"));
    task.args([program(&local), program(&remote)]).run().and_then(Finished::success)?;
    let count = dropped(&daemon, counted)? - before;
    ensure!(count >= u64::from(FORGED), "{FORGED} frames were forged, {count} are counted");
    daemon.stop()
}

/// Frames that a card has dropped, in these counters.
fn dropped(daemon: &Daemon<'_>, counted: fn(&str) -> bool) -> Result<u64> {
    let counters = counters(daemon, 0)?;
    Ok(counters.iter().filter(|(name, _)| counted(name)).map(|(_, count)| count).sum())
}
