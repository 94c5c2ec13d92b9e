//! What programs that have much cost while they are connected, and that they can be served.

use anyhow::{Context as _, Result, ensure};
use harness::process::{Finished, LIMIT};
use harness::runner::Case;
use harness::setting::Setting;
use nix::sys::signal::Signal;
use verbs_programs::hostile::ATTACKING;

use crate::attack::level::Level;
use crate::chaos::rounds::{QPS, REGIONS};
use crate::footprint::{Footprint, Holding};

/// How often a program comes that has much.
const TURNS: usize = 5;
/// The first of them fills what rests behind it: numbers, addresses, tables. What the allocator holds for the next goes up
/// and down by a quarter and more, while what a turn leaves behind is there in each after it: so the least of those
/// behind the second may not cost more than that, but by so many KiB.
const OFF: u64 = 8 << 10;

/// The family.
pub fn cases() -> Vec<Case> {
    vec![Case::new(format!("scale/{QPS} QPs and {REGIONS} regions"), &[], connected)]
}

fn connected(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let before = Footprint::of(&daemon)?;
    let mut taken = Vec::new();
    for turn in 1..=TURNS {
        let program = || daemon.run("").arg(setting.bin.join("verbs-attack"));
        let task = program().words(&format!("regions --qps {QPS} --regions {REGIONS}"));
        let mut large = task.limit(LIMIT).start()?;
        large.wait_until("it had all of it", |it| it.has_said(ATTACKING))?;
        let holding = Holding { programs: 1, qps: QPS, regions: REGIONS };
        before.bounded(&daemon, holding).with_context(|| format!("turn {turn}"))?;
        taken.push(Level::of(&daemon)?.resident);
        // Another is served beside it.
        program().arg("visit").run().and_then(Finished::success)?;
        large.signal(Signal::SIGKILL)?;
        large.wait()?;
    }
    let least = taken.iter().skip(2).min().context("no turn behind the second")?;
    let second = taken.get(1).context("no second turn")?;
    ensure!(
        *least <= second + OFF,
        "KiB at each turn, of which one leaves something behind: {taken:?}"
    );
    before.restored(&daemon)?;
    daemon.stop()
}
