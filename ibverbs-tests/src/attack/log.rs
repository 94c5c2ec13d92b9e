//! Programs that have much to be said about them.

use anyhow::Result;

use super::limits::Limits;
use super::phase::Length;
use super::scene::{Attack, Scene};
use crate::runner::Case;
use crate::setting::Setting;

/// What each program may take otherwise.
const LIMITS: Limits = Limits { memory: 48, growth: 16, descriptors: 16 };

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    let case = |name, body| super::case(length, name, &[], body);
    vec![
        case("refusals on many connections", refusals),
        case("completion queues that run over", overruns),
        case("events that nobody reads", unread),
    ]
}

fn refusals(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let directory = scene.daemon().state_dir().display();
    let programs = vec![format!("refusals --connections 60 {directory}")];
    let attack = Attack { programs, threads: 2, limits: LIMITS };
    scene.suffer(&attack, |_, _, _| Ok(()))
}

fn overruns(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let programs = vec![format!("overruns --queues {}", length.of(500, 1000))];
    let attack = Attack { programs, threads: 2, limits: LIMITS };
    scene.suffer(&attack, |_, _, _| Ok(()))
}

/// Thousands of queues that are armed make an event ring overflow, and records that are not read are
/// kept.
fn unread(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let programs = vec![format!("unread --queues {}", length.of(5_000, 8_000))];
    let limits = Limits { memory: 160, ..LIMITS };
    let attack = Attack { programs, threads: 2, limits };
    scene.suffer(&attack, |_, _, _| Ok(()))
}
