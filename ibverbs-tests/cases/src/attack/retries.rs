//! A receiver that is never ready, and a sender that never gives up.

use anyhow::Result;
use harness::runner::Case;
use harness::setting::Setting;

use super::limits::Limits;
use super::phase::Length;
use super::scene::{Attack, Scene};

/// Pairs of QPs.
const PAIRS: usize = 64;

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    vec![super::case(length, "a receiver that is never ready", &[], never_ready)]
}

/// Each retry sets a timer earlier than the one that runs.
fn never_ready(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let limits = Limits { memory: 16, growth: 4, descriptors: 16 };
    let programs = vec![format!("never-ready --pairs {PAIRS}")];
    // The attacker waits; the card thread works.
    let attack = Attack { programs, threads: 1, limits };
    scene.suffer(&attack, |_, _, _| Ok(()))
}
