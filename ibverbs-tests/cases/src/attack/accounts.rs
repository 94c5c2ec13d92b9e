//! The memory that one connection may take.

use anyhow::{Context as _, Result};
use harness::runner::Case;
use harness::setting::Setting;
use serde_json::Value;

use super::limits::{Excess, Limits};
use super::phase::Length;
use super::scene::{Attack, Scene, number_said};

/// Messages under way on each QP.
const MESSAGES: u64 = 1024;
/// Bytes that balboad may take for each message.
const FOR_EACH: u64 = 64;

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    vec![super::case(length, "messages under way", &[], under_way)]
}

/// Messages that no peer acknowledges, on as many QPs as a connection gets.
fn under_way(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let qps = length.of(200, 4_000);
    let programs = vec![format!("under-way --qps {qps} --messages {MESSAGES}")];
    // As much for the rings, which are the client's own memory that balboad has in common with it.
    let memory = 16 + ((qps * MESSAGES * 3 * FOR_EACH) >> 20);
    let limits = Limits { memory, growth: memory, descriptors: 16 };
    let attack = Attack { programs, threads: 1, limits };
    scene.suffer(&attack, |scene, programs, excess| {
        let qps = number_said(programs.first().context("nobody attacks")?, "under way ")?;
        let before = scene.phase("before").context("no phase")?.end.own;
        let taken = (scene.level()?.own.saturating_sub(before) << 10) / qps;
        let limit = MESSAGES * FOR_EACH;
        excess.unless(taken <= limit, || {
            format!("{MESSAGES} messages under way take {taken} bytes, and {limit} are the limit")
        });
        scene.note(format!("{MESSAGES} messages under way on {qps} QPs take {taken} bytes each"));
        accounted(&scene.daemon().status()?, excess)
    })
}

/// Checks that the status shows the attacker's usage, and its limits.
fn accounted(status: &Value, excess: &mut Excess) -> Result<()> {
    let limits = &status["cards"][0]["client_limits"];
    let clients = status["clients"].as_array().context("no clients")?;
    let qps = |client: &&Value| client["usage"]["queue_pairs"].as_u64();
    let attacker = clients.iter().max_by_key(qps).context("nobody attacks")?;
    let used = [
        ("bytes_kept_at_most", &attacker["usage"]["bytes_kept_at_most"]),
        ("under_way_bytes", &attacker["places"][0]["under_way_bytes"]),
    ];
    for (name, used) in used {
        let limit = limits[name].as_u64().with_context(|| format!("no limit of {name}"))?;
        let used = used.as_u64().with_context(|| format!("no {name}"))?;
        excess.unless((1..=limit).contains(&used), || {
            format!("the status tells of {used} {name}, and {limit} are the limit")
        });
    }
    Ok(())
}
