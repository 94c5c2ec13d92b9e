//! Programs that are relayed, beside a bystander that is relayed too.

use anyhow::{Result, ensure};
use harness::runner::Case;
use harness::setting::Setting;

use super::limits::Limits;
use super::phase::Length;
use super::scene::{Attack, Scene};

/// Completion queues that are armed without end.
const QUEUES: usize = 1000;

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    vec![super::case(length, "relayed programs that ring without end", &[], ringing)]
}

/// One rings with nothing to tell, the other with news of a thousand queues.
fn ringing(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::crowded(setting, length, "--soft 2")?;
    let status = scene.daemon().status()?;
    let clients = status["clients"].as_array().into_iter().flatten();
    let relayed = clients.filter(|client| client["places"][0]["grant"] == "relay").count();
    ensure!(relayed == 1, "the bystander is not relayed: {relayed} programs are");
    let limits = Limits { memory: 32, growth: 4, descriptors: 48 };
    let state = scene.daemon().state_dir().display().to_string();
    let programs = vec![format!("ring {state}"), format!("unread --queues {QUEUES}")];
    // Both of them, the relay and the card.
    let attack = Attack { programs, threads: 4, limits };
    scene.suffer(&attack, |_, _, _| Ok(()))
}
