//! Programs that have much to be said about them, or told.

use anyhow::Result;
use harness::runner::Case;
use harness::setting::Setting;
use verbs_programs::hostile::PATIENCE;

use super::limits::Limits;
use super::phase::Length;
use super::scene::{Attack, Scene};

/// The resources that each program may take otherwise.
const LIMITS: Limits = Limits { memory: 48, growth: 16, descriptors: 16 };

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    let case = |name, body| super::case(length, name, &[], body);
    vec![
        case("refusals on many connections", refusals),
        case("completion queues that run over", overruns),
        case("events that nobody reads", unread),
        case("the status asked for on every connection", asked),
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

/// Thousands of queues that are armed have more events than a ring has room for, and records that are not read are
/// kept. No event of a completion is lost.
fn unread(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let programs = vec![format!("unread --queues {}", length.of(5_000, 8_000))];
    let limits = Limits { memory: 160, ..LIMITS };
    let attack = Attack { programs, threads: 2, limits };
    scene.suffer(&attack, |scene, _, excess| {
        excess.unless(!scene.daemon().log().contains("overflowed"), || {
            "events of completions are lost".into()
        });
        Ok(())
    })
}

/// One program asks for the status on as many connections as it is given, beside one with many queue pairs. Other
/// tools are answered.
fn asked(setting: &Setting, length: Length) -> Result<()> {
    const CONNECTIONS: usize = 250;
    let scene = Scene::open(setting, length, "--soft 2")?;
    let directory = scene.daemon().state_dir().display();
    let programs = vec![
        format!("regions --qps {} --regions 1", length.of(500, 2000)),
        format!("ask --connections {CONNECTIONS} {directory}"),
    ];
    let limits = Limits { memory: 160, growth: 64, descriptors: 2 * CONNECTIONS + 128 };
    let attack = Attack { programs, threads: 2, limits };
    scene.suffer(&attack, |scene, _, _| {
        for question in ["list --state-dir", "counters balboa0 --state-dir"] {
            for _ in 0..5 {
                let asked = setting.built("balboa").words(question).limit(PATIENCE);
                asked.arg(scene.daemon().state_dir()).run()?.success()?;
            }
        }
        Ok(())
    })
}
