//! Requests for connections without end, and connections by the thousand.

use anyhow::{Context as _, Result, ensure};
use harness::process::{Finished, Running};
use harness::runner::Case;
use harness::setting::Setting;
use nix::sys::signal::Signal;
use serde_json::Value;
use verbs_programs::hostile::PATIENCE;
use verbs_programs::hostile::requests::{CONNECTED, FLOODED_PORT};

use super::limits::{Excess, Limits};
use super::phase::Length;
use super::scene::{Attack, Scene, number_said};
use crate::rdmacm::{PYTHON, RDMACM_UTILS, name_anothers, nothing_left};

/// The port of the program that connects meanwhile.
const OWN_PORT: u16 = 7471;
/// Requests that wait for a listener at most (`cm/src/param.rs`).
const BACKLOG: u64 = 1024;
/// Connections without an owner at most.
const LINGERING: u64 = 16_384;
/// Connections that the other program makes while they come.
const PROGRESS: u64 = 20;

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    let case = |name, body| super::case(length, name, &[RDMACM_UTILS], body);
    vec![
        case("requests for connections/by the cable", by_cable),
        case("requests for connections/by a program", by_program),
        case("connections held", held),
        super::case(
            length,
            "another's queue pair is named to its peer",
            &[RDMACM_UTILS, PYTHON],
            |setting, _| name_anothers(setting),
        ),
    ]
}

/// A peer of a third card's that asks for connections without end.
fn by_cable(setting: &Setting, length: Length) -> Result<()> {
    let [local, remote] = [0, 1].map(|number| setting.cable_end(number).display().to_string());
    let scene = Scene::open(setting, length, &format!("--soft 3 --port 2=unix:{local},{remote}"))?;
    let state = scene.daemon().state_dir().display().to_string();
    flooded(scene, format!("requests-by-cable {state} 10.77.0.3 {local} {remote}"))
}

/// A program that asks another card than the bystander's first for connections without end.
fn by_program(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let state = scene.daemon().state_dir().display().to_string();
    flooded(scene, format!("requests {state} 10.77.0.1 10.77.0.2"))
}

/// A program that connects by another port goes on, tables are bounded, and after the flood all is as before.
fn flooded(scene: Scene<'_>, flood: String) -> Result<()> {
    let programs = vec![format!("connect --port {OWN_PORT}"), flood];
    let limits = Limits { memory: 96, growth: 64, descriptors: 48 };
    scene.suffer(&Attack { programs, threads: 3, limits }, |scene, programs, excess| {
        let connects = programs.first_mut().context("nobody connects")?;
        let wanted = number_said(connects, CONNECTED)? + PROGRESS;
        connects.wait_until("it had connected", |it| {
            number_said(it, CONNECTED).is_ok_and(|count| count >= wanted)
        })?;
        // The flooding program may have had little of a busy machine's time so far.
        connects.wait_until("a backlog was full", |_| {
            let status = scene.daemon().status();
            status.is_ok_and(|it| it["connections"]["counters"]["drop_backlog"] != 0)
        })?;
        bounded(&scene.daemon().status()?["connections"], excess)?;
        end(programs)?;
        scene.left(0)?;
        nothing_left(scene.daemon())?;
        // Any program may have its listener's port.
        let task = scene.program(&format!("connect --port {FLOODED_PORT} --times 3"));
        task.run().and_then(Finished::success).map(drop)
    })
}

fn end(programs: &mut Vec<Running>) -> Result<()> {
    for program in programs.drain(..) {
        program.signal(Signal::SIGKILL)?;
        program.limited(PATIENCE).wait()?;
    }
    Ok(())
}

/// Checks that the entries of a flood that has filled a backlog keep within their bounds.
fn bounded(connections: &Value, excess: &mut Excess) -> Result<()> {
    let count = |what: &Value| what.as_u64().with_context(|| format!("no number: {connections}"));
    let held = count(&connections["held"])?;
    // The identifiers of the flooding client, and of the connecting one, are few.
    let most = BACKLOG + 512;
    excess.unless((BACKLOG / 2..=most).contains(&held), || format!("{held} connections are held"));
    let lingering = count(&connections["lingering"])?;
    excess.unless(lingering <= LINGERING, || format!("{lingering} connections linger"));
    Ok(())
}

/// Programs that hold connections, and leave at once.
fn held(setting: &Setting, length: Length) -> Result<()> {
    /// balboad's own memory that a connection may take, with two queue pairs and two identifiers, and with their rings.
    const FOR_EACH: u64 = 20 << 10;
    const WITH_RINGS: u64 = FOR_EACH + (16 << 10);
    let scene = Scene::open(setting, length, "--soft 2")?;
    let pairs = length.of(250, 5000);
    let programs = [OWN_PORT, OWN_PORT + 1]
        .map(|port| format!("hold-connections --pairs {pairs} --port {port}"));
    let memory = 32 + ((2 * pairs * WITH_RINGS) >> 20);
    let limits = Limits { memory, growth: memory, descriptors: 48 };
    let attack = Attack { programs: programs.into(), threads: 0, limits };
    scene.suffer(&attack, |scene, programs, excess| {
        let connections = &scene.daemon().status()?["connections"];
        let held = connections["held"].as_u64().context("no connections")?;
        ensure!(held == 4 * pairs, "{held} ends of {} connections: {connections}", 2 * pairs);
        let before = scene.phase("before").context("no phase")?.end.own;
        let taken = (scene.level()?.own.saturating_sub(before) << 10) / (2 * pairs);
        excess.unless(taken <= FOR_EACH, || {
            format!("a connection takes {taken} bytes, and {FOR_EACH} are the limit")
        });
        scene.note(format!("{} connections take {taken} bytes each", 2 * pairs));
        end(programs)?;
        scene.left(0)?;
        nothing_left(scene.daemon())
    })
}
