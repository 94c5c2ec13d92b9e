//! Memory that does not answer its reader or writer.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use clap::builder::PossibleValue;
use harness::nodes::open_copy;
use harness::process::Running;
use harness::runner::{Case, Need};
use harness::setting::Setting;
use nix::unistd::geteuid;
use verbs_programs::hostile::PATIENCE;
use verbs_programs::hostile::unanswered::{IN_ERROR, MemoryKind, Use};

use super::limits::Limits;
use super::phase::Length;
use super::scene::{Attack, Scene};

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    let case =
        |name, kind: MemoryKind, body| super::case(length, name, &[Need::Node(kind.node())], body);
    vec![
        case("memory that does not answer/fuse/every use", MemoryKind::Fuse, used_fuse),
        case("memory that does not answer/fuse/balboad ends", MemoryKind::Fuse, ends_fuse),
        case(
            "memory that does not answer/userfaultfd/every use",
            MemoryKind::Userfault,
            used_userfault,
        ),
        case("memory that does not answer/userfaultfd/tunnel", MemoryKind::Userfault, used_tunnel),
        case(
            "memory that does not answer/userfaultfd/balboad ends",
            MemoryKind::Userfault,
            ends_userfault,
        ),
    ]
}

fn used_fuse(setting: &Setting, length: Length) -> Result<()> {
    used(setting, length, MemoryKind::Fuse, "--soft 2")
}

fn ends_fuse(setting: &Setting, length: Length) -> Result<()> {
    ends(setting, length, MemoryKind::Fuse)
}

fn used_userfault(setting: &Setting, length: Length) -> Result<()> {
    used(setting, length, MemoryKind::Userfault, "--soft 2")
}

/// Cards as published, whose payload this balboad copies.
fn used_tunnel(setting: &Setting, length: Length) -> Result<()> {
    let cards = "--soft 2 --soft-image stock --tunnel on --watchdog 20000";
    used(setting, length, MemoryKind::Userfault, cards)
}

fn ends_userfault(setting: &Setting, length: Length) -> Result<()> {
    ends(setting, length, MemoryKind::Userfault)
}

/// The node that a kind of memory is made with, as most systems give it to every user: udev opens FUSE's to all, and some
/// open the other. Where it is not open, and we are root, the case has one of its own.
pub(crate) fn open_node(kind: MemoryKind, setting: &Setting) -> Result<PathBuf> {
    let node = Path::new(kind.node());
    if !geteuid().is_root() {
        return Ok(node.to_owned());
    }
    let own = setting.directory().join("node");
    open_copy(node, &own)?;
    Ok(own)
}

fn limits() -> Limits {
    Limits { memory: 48, growth: 16, descriptors: 80 }
}

/// The programs of every use.
fn programs(setting: &Setting, kind: MemoryKind) -> Result<Vec<String>> {
    let node = open_node(kind, setting)?;
    let name =
        |value: Option<PossibleValue>| value.map_or(String::new(), |it| it.get_name().to_owned());
    let program = |(number, by): (usize, Use)| {
        let place = setting.directory().join(format!("silent{number}"));
        let (by, kind) = (name(by.to_possible_value()), name(kind.to_possible_value()));
        let places = format!("--place {} --node {}", place.display(), node.display());
        format!("unanswered {by} --memory {kind} {places}")
    };
    Ok(Use::ALL.into_iter().enumerate().map(program).collect())
}

/// The card that copies goes on for all other programs, and the memory's owner gets an error.
fn used(setting: &Setting, length: Length, kind: MemoryKind, cards: &str) -> Result<()> {
    let scene = Scene::open(setting, length, cards)?;
    let programs = programs(setting, kind)?;
    let attack = Attack { programs, threads: 2, limits: limits() };
    scene.suffer(&attack, |_, programs, excess| {
        let deadline = Instant::now() + PATIENCE;
        for (program, by) in programs.iter_mut().zip(Use::ALL) {
            let in_error = |it: &Running| it.has_said(IN_ERROR) || Instant::now() > deadline;
            let told = program.wait_until("it was told", in_error);
            excess.unless(told.is_ok() && program.has_said(IN_ERROR), || {
                let why = told.err().map_or(String::new(), |error| format!(": {error:#}"));
                format!("{by:?}: the work request does not fail{why}")
            });
        }
        Ok(())
    })
}

/// SIGTERM ends balboad while all of it goes on.
fn ends(setting: &Setting, length: Length, kind: MemoryKind) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let programs = programs(setting, kind)?;
    let (first, others) = programs.split_first().context("there are uses")?;
    let mut running = vec![scene.start(first)?];
    // Whether they come up beside the first is seen elsewhere.
    running.extend(others.iter().filter_map(|program| scene.start(program).ok()));
    let ended = scene.ends_within(PATIENCE)?;
    // Before anything else: a process that hangs in their memory cannot even be killed.
    drop(running);
    ensure!(ended, "SIGTERM does not end balboad within {PATIENCE:?}");
    scene.close()
}
