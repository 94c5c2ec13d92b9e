//! Ports that are changed while programs use them.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::IBVERBS_UTILS;
use crate::runner::Case;
use crate::setting::Setting;

/// How long all the changes of a program may take.
const LIMIT: Duration = Duration::from_secs(180);

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("port/links go down under a program", &[], links),
        Case::new("port/links go down under a program", &[], links).as_root(),
        Case::new("port/a link that is down is seen", &[IBVERBS_UTILS], seen),
    ]
}

fn links(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("links --balboa");
    let task = task.arg(setting.bin.join("balboa")).limit(LIMIT);
    task.run()?.success()?.says("links went down and came back")?;
    daemon.stop()
}

fn seen(setting: &Setting) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let link = |words: &str| {
        setting.built("balboa").words("link --state-dir").arg(daemon.state_dir()).words(words)
    };
    link("balboa1 down").run()?.success()?;
    let status = daemon.status()?;
    let cards = [&status["cards"][0]["link_up"], &status["cards"][1]["link_up"]];
    ensure!(cards[0] == true && cards[1] == false, "status says {cards:?}");
    let shown = setting.built("balboa").words("status --state-dir").arg(daemon.state_dir());
    shown.run()?.success()?.says("link      down, switch")?;
    daemon.run("ibv_devinfo -d balboa1").run()?.success()?.says("PORT_DOWN (1)")?;
    daemon.run("ibv_devinfo -d balboa0").run()?.success()?.says("PORT_ACTIVE (4)")?;
    link("balboa1 up").run()?.success()?;
    daemon.run("ibv_devinfo -d balboa1").run()?.success()?.says("PORT_ACTIVE (4)")?;
    link("balboa2 down").run()?.code(1)?.complains("its cards are balboa0, balboa1")?;
    daemon.stop()
}
