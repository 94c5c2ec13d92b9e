//! What one connection may cost in memory.

use anyhow::{Context as _, Result};

use super::limits::Limits;
use super::scene::{Attack, Length, Scene};
use crate::runner::Case;
use crate::setting::Setting;

/// Messages under way on each QP.
const MESSAGES: u64 = 1024;
/// What balboad may take for each, bytes.
const FOR_EACH: u64 = 64;

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    vec![super::case(length, "messages under way", &[], under_way)]
}

/// Messages that nobody acknowledges, on as many QPs as a connection gets.
fn under_way(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let qps = length.of(200, 4_000);
    let programs = vec![format!("under-way --qps {qps} --messages {MESSAGES}")];
    // The rings are the client's own memory, which balboad has in common with it.
    let limits = Limits { memory: 768, growth: 8, descriptors: 16 };
    let attack = Attack { programs, threads: 1, limits };
    scene.suffer(&attack, |scene, programs, excess| {
        let output = programs.first().context("nobody attacks")?.output();
        let qps = output.lines().find_map(|line| line.strip_prefix("under way "));
        let qps: u64 = qps.context("it does not say of how many QPs")?.parse()?;
        let before = scene.phase("before").context("no phase")?.end.own;
        let taken = (scene.level()?.own.saturating_sub(before) << 10) / qps;
        let limit = MESSAGES * FOR_EACH;
        excess.unless(taken <= limit, || {
            format!("{MESSAGES} messages under way take {taken} bytes, and {limit} are the limit")
        });
        scene.note(format!("{MESSAGES} messages under way on {qps} QPs take {taken} bytes each"));
        Ok(())
    })
}
