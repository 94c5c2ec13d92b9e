//! Cards behind vfio-pci that play FPGAs: nothing in them says that they are software cards, and balboad loads bitstreams of
//! shells into them.

use anyhow::{Result, ensure};
use harness::setting::Daemon;

use super::cards::{bound_for, pingpong};
use super::{Case, Hardware, Need, Setting};
use crate::flash::{engines, flash};
use crate::shell::{after_death, apply, dies, is_another, prepare_shells, refuses};
use crate::{IBVERBS_UTILS, PERFTEST};

/// The family.
pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Setting) -> Result<()>| {
        Case::new(name, &[IBVERBS_UTILS, PERFTEST, Need::Root], body).as_root()
    };
    vec![
        case("what is not for a card is refused, and one that nobody has tried asked for", refused),
        case("a bitstream is loaded and put back", loaded),
        case("one that is another than its manifest says", another),
        case("balboad is killed on the way", killed),
    ]
}

/// Starts balboad with the cards, under the manifest of their shells.
fn start<'a>(setting: &'a Setting, state: Option<&std::path::Path>) -> Result<Daemon<'a>> {
    super::cards::drivers(Hardware::Fpga)?;
    let cards = bound_for(setting, setting.uid())?;
    let arguments = format!("{cards} --manifest 0=held.toml --manifest 1=held.toml");
    match state {
        None => setting.balboad(&arguments),
        Some(state) => setting.balboad_in(state, &arguments),
    }
}

/// Gives the first card the image that it is plugged in with, over any other.
fn four(setting: &Setting, daemon: &Daemon<'_>) -> Result<()> {
    flash(daemon, setting, &apply("four")).run()?.success()?;
    ensure!(engines(daemon, setting, 0)?.0 == 4);
    Ok(())
}

fn refused(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = start(setting, None)?;
    refuses(setting, &daemon)?;
    four(setting, &daemon)?;
    daemon.stop()
}

fn loaded(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = start(setting, None)?;
    ensure!(engines(&daemon, setting, 0)?.0 == 4);
    flash(&daemon, setting, &apply("two")).run()?.success()?;
    ensure!(engines(&daemon, setting, 0)? == (2, "vqe 2".into()));
    ensure!(engines(&daemon, setting, 1)?.0 == 4, "the other card is another one");
    pingpong(&daemon, "")?;
    flash(&daemon, setting, &apply("one")).run()?.success()?;
    flash(&daemon, setting, "rollback balboa0 --yes").run()?.success()?;
    ensure!(engines(&daemon, setting, 0)?.0 == 2);
    // The next balboad knows it again, though the function was reset between.
    let state = daemon.state_dir().to_owned();
    daemon.stop()?;
    let daemon = start(setting, Some(&state))?;
    flash(&daemon, setting, "verify balboa0 two.bin").run()?.success()?;
    pingpong(&daemon, "-e")?;
    four(setting, &daemon)?;
    daemon.stop()
}

fn another(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = start(setting, None)?;
    // Its last one is that which it is plugged in with.
    is_another(setting, &daemon)?;
    daemon.stop()
}

fn killed(setting: &Setting) -> Result<()> {
    prepare_shells(setting)?;
    let daemon = start(setting, None)?;
    flash(&daemon, setting, &apply("two")).run()?.success()?;
    let state = daemon.state_dir().to_owned();
    dies(setting, daemon)?;
    let daemon = start(setting, Some(&state))?;
    after_death(setting, &daemon)?;
    pingpong(&daemon, "")?;
    four(setting, &daemon)?;
    daemon.stop()
}
