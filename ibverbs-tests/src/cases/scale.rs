//! What programs that have much cost while they are connected, and that they can be served.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::attack::level::Level;
use crate::attack::scene::{ATTACKING, has_said};
use crate::chaos::{QPS, REGIONS};
use crate::footprint::{Footprint, Holding};
use crate::process::{Finished, LIMIT};
use crate::runner::Case;
use crate::setting::Setting;

/// How often a program comes that has much.
const TURNS: usize = 3;
/// The first of them fills what rests behind it: numbers, addresses, tables. None may cost more than the
/// second, but by KiB that a look may be off.
const OFF: u64 = 4 << 10;

/// The family.
pub fn cases() -> Vec<Case> {
    vec![Case::new(format!("scale/{QPS} QPs and {REGIONS} regions"), &[], connected)]
}

fn connected(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let mut second = None;
    for turn in 1..=TURNS {
        let program = || daemon.run("").arg(setting.bin.join("verbs-attack"));
        let task = program().words(&format!("regions --qps {QPS} --regions {REGIONS}"));
        let mut large = task.limit(LIMIT).start()?;
        large.wait_until("it had all of it", |it| has_said(it, ATTACKING))?;
        let holding = Holding { programs: 1, qps: QPS, regions: REGIONS };
        before.bounded(&daemon, holding).with_context(|| format!("turn {turn}"))?;
        let taken = Level::of(&daemon)?.resident;
        if turn > 1 {
            let second = *second.get_or_insert(taken);
            ensure!(taken <= second + OFF, "{second} KiB at turn 2, and {taken} at turn {turn}");
        }
        // Another is served beside it.
        program().arg("visit").run().and_then(Finished::success)?;
        large.signal(Signal::SIGKILL)?;
        large.wait()?;
    }
    before.restored(&daemon)?;
    daemon.stop()
}
