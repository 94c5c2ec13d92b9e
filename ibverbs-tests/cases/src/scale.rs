//! Costs of programs with many objects while they are connected, and that they can be served.

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
/// KiB by which later turns may cost more than the second. The first one fills tables that stay: numbers, addresses.
/// The allocator's reserve goes up and down by a quarter and more, while leftovers of a turn are there in each later
/// one: so the least of the turns behind the second is compared.
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
