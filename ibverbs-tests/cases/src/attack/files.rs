//! Files that deceive their reader.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harness::process::{Finished, Running};
use harness::runner::{Case, Need};
use harness::setting::Setting;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use verbs_programs::hostile::PATIENCE;

use super::phase::Length;
use crate::flash::{flash, prepare};

/// A user other than the case's.
pub(super) const SOMEBODY: u32 = 65533;
/// Content that must not be lost.
const PRECIOUS: &str = "precious\n";

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    let case = |name, needs: &[Need], body| super::case(length, name, needs, body);
    vec![
        case("a mapping whose path is no text", &[], path),
        case("a capture through a symbolic link", &[], capture_through_link),
        case("a capture into somebody's file", &[Need::Root], capture_into_file),
        case("a capture by the tool into what is not the user's alone", &[Need::Root], by_the_tool),
        case("a file for containers beside links", &[], beside_links),
        case("keys that others can change", &[Need::Root], open_keys),
        case("counters through a symbolic link", &[], counters_through_link),
        case("a file of somebody's among the counters", &[], foreign_counters),
    ]
}

fn path(setting: &Setting, _: Length) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let task = daemon.run("").arg(setting.bin.join("verbs-attack")).arg("path");
    task.arg(setting.directory()).run().and_then(Finished::success)?;
    daemon.stop()
}

/// A directory of the case's user.
fn directory(setting: &Setting, path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    own(setting, path)
}

/// A file of the case's user that is not to be lost.
fn precious(setting: &Setting, path: PathBuf) -> Result<PathBuf> {
    fs::write(&path, PRECIOUS)?;
    own(setting, &path)?;
    Ok(path)
}

fn own(setting: &Setting, path: &Path) -> Result<()> {
    let uid = Some(setting.uid());
    chown(path, uid, uid).with_context(|| format!("cannot give {} away", path.display()))
}

fn is_kept(path: &Path) -> Result<()> {
    let found = fs::read(path).with_context(|| format!("{} was removed", path.display()))?;
    let kept = found == PRECIOUS.as_bytes();
    ensure!(kept, "{} was written to: it has {} bytes now", path.display(), found.len());
    Ok(())
}

/// Starts a balboad that may refuse to, and ends it.
fn start_and_end(
    setting: &Setting,
    arguments: &str,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let task = setting.built("balboad").arg("--state-dir").arg(setting.state_dir());
    let mut running = task.words(arguments).tidy().limit(PATIENCE).start()?;
    let ready = |it: &Running| it.output().lines().any(|line| line == "ready");
    match running.wait_until("it was ready", ready) {
        Ok(()) => {
            meanwhile()?;
            running.signal(nix::sys::signal::Signal::SIGTERM)?;
            running.limited(PATIENCE).wait()?.success().map(drop)
        }
        // It says why it will not.
        Err(error) => {
            let said = running.errors();
            ensure!(said.lines().count() > 0, "{error}");
            Ok(())
        }
    }
}

fn capture_through_link(setting: &Setting, _: Length) -> Result<()> {
    let target = precious(setting, setting.directory().join("notes"))?;
    let link = setting.directory().join("capture.pcapng");
    symlink(&target, &link)?;
    start_and_end(setting, &format!("--soft 2 --pcap {}", link.display()), || Ok(()))?;
    is_kept(&target)
}

fn capture_into_file(setting: &Setting, _: Length) -> Result<()> {
    // The file belongs to a user who would like to read the cards' frames.
    let file = precious(setting, setting.directory().join("capture.pcapng"))?;
    chown(&file, Some(SOMEBODY), Some(SOMEBODY))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
    start_and_end(setting, &format!("--soft 2 --pcap {}", file.display()), || Ok(()))?;
    is_kept(&file)
}

/// The state directory with the files of a card's port, as a balboad that was killed leaves it.
fn left_behind(setting: &Setting) -> Result<PathBuf> {
    let ports = setting.state_dir().join(shim_abi::PORTS_DIR);
    for path in [&setting.state_dir(), &ports, &ports.join("balboa0")] {
        directory(setting, path)?;
    }
    Ok(ports.join("balboa0"))
}

fn counters_through_link(setting: &Setting, _: Length) -> Result<()> {
    let elsewhere = setting.directory().join("elsewhere");
    directory(setting, &elsewhere)?;
    let notes = precious(setting, elsewhere.join("notes"))?;
    let card = left_behind(setting)?;
    let link = card.join("hw_counters");
    symlink(&elsewhere, &link)?;
    start_and_end(setting, "--soft 1", || Ok(()))?;
    is_kept(&notes).context("a link that was there before balboad")?;
    // And one that comes while it runs.
    let _ = fs::remove_file(&link);
    start_and_end(setting, "--soft 1", || {
        fs::rename(&link, setting.directory().join("away"))?;
        Ok(symlink(&elsewhere, &link)?)
    })?;
    is_kept(&notes).context("a link that came while balboad ran")
}

fn foreign_counters(setting: &Setting, _: Length) -> Result<()> {
    let card = left_behind(setting)?;
    let directory_of = card.join("hw_counters");
    directory(setting, &directory_of)?;
    let notes = precious(setting, directory_of.join("notes"))?;
    start_and_end(setting, "--soft 1", || Ok(()))?;
    is_kept(&notes)
}

/// The tool's captures keep files of other users and files of other kinds, wait for no writer, and do not hold the
/// card.
fn by_the_tool(setting: &Setting, _: Length) -> Result<()> {
    let daemon = setting.balboad("--soft 2")?;
    let at = |name: &str| setting.directory().join(name);
    let notes = precious(setting, at("notes"))?;
    fs::hard_link(&notes, at("again"))?;
    symlink(&notes, at("link"))?;
    let theirs = precious(setting, at("theirs"))?;
    chown(&theirs, Some(SOMEBODY), Some(SOMEBODY))?;
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o666))?;
    mkfifo(&at("fifo"), Mode::from_bits_truncate(0o600))?;
    own(setting, &at("fifo"))?;
    let capture = |name: &str| {
        let task = setting.built("balboa").words("capture --state-dir").arg(daemon.state_dir());
        task.words("balboa0 --seconds 1 -o").arg(at(name)).limit(PATIENCE).run()
    };
    for (name, why) in [
        ("again", "has another name"),
        ("link", "a symbolic link"),
        ("theirs", "belongs to user"),
        ("fifo", "nobody reads this FIFO"),
    ] {
        capture(name)?.code(1)?.complains(why)?;
    }
    is_kept(&notes)?;
    is_kept(&theirs)?;
    capture("new")?.success()?;
    daemon.stop()
}

/// Files for containers are written through no link that another user has put in their place, or in that of their
/// temporary ones.
fn beside_links(setting: &Setting, _: Length) -> Result<()> {
    let daemon = setting.balboad("--soft 1")?;
    let folder = setting.directory().join("folder");
    directory(setting, &folder)?;
    let notes = precious(setting, setting.directory().join("notes"))?;
    for name in ["cards.json", "cards.json.new", ".cards.json.new"] {
        symlink(&notes, folder.join(name))?;
    }
    let task = setting.built("balboa").words("cdi generate --state-dir").arg(daemon.state_dir());
    task.arg("-o").arg(folder.join("cards.json")).run()?.success()?;
    is_kept(&notes)?;
    ensure!(fs::read_to_string(folder.join("cards.json"))?.contains("balboa/card"));
    daemon.stop()
}

/// No signature counts by a key that another user can change or replace.
fn open_keys(setting: &Setting, _: Length) -> Result<()> {
    const WHY: &str = "others than root and you can change it";
    prepare(setting)?;
    let daemon = setting.balboad("--soft 1")?;
    let keys = setting.directory().join("keys");
    let key = keys.join("site.pub");
    own(setting, &keys)?;
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let inspect = || setting.built("balboa").words("flash inspect two.soft --keys keys").run();
    let refused = || -> Result<()> {
        inspect()?.success()?.says(WHY)?;
        let apply = "apply balboa0 two.soft --keys keys --yes";
        flash(&daemon, setting, apply).run()?.code(6)?.complains(WHY).map(drop)
    };
    mode(&keys, 0o755)?;
    mode(&key, 0o644)?;
    inspect()?.success()?.says("signed_by    keys/site.pub")?;
    mode(&keys, 0o777)?;
    refused().context("a folder that everybody writes to")?;
    mode(&keys, 0o755)?;
    mode(&key, 0o666)?;
    refused().context("a key that everybody writes to")?;
    mode(&key, 0o644)?;
    chown(&keys, Some(SOMEBODY), None)?;
    refused().context("a folder of somebody's")?;
    own(setting, &keys)?;
    chown(&key, Some(SOMEBODY), None)?;
    refused().context("a key of somebody's")?;
    daemon.stop()
}
