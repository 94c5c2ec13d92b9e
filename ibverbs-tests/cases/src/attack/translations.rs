//! Memory that comes and goes, beside many rings and as much of nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harness::process::{Finished, Running};
use harness::runner::Case;
use harness::setting::Setting;
use nix::sys::signal::Signal;
use verbs_programs::hostile::PATIENCE;

use super::limits::{Excess, Limits};
use super::phase::Length;
use super::scene::{Attack, Scene, number_said};

/// Work of balboad's threads on a registration and its end, with any number of rings beside it: thrice the usual, and a
/// quarter of the time that a look at each of 14,000 rings takes.
const FOR_EACH_PAGE: Duration = Duration::from_micros(1500);
/// The same for as much of nothing as a program is given.
const FOR_EACH_VOID: Duration = Duration::from_millis(20);
/// Work on the end of a program for each of its regions.
const FOR_EACH_REGION: Duration = Duration::from_micros(300);
/// Windows of a card, but the bystander's.
const WINDOWS: u8 = 3;
/// Work of balboad's threads until the next client is served.
const BEFORE_NEXT: Duration = Duration::from_secs(1);
/// The length of the void that an engine names.
const VOID: u64 = 1 << 42;

/// The family.
pub fn cases(length: Length) -> Vec<Case> {
    let case = |name, body| super::case(length, name, &[], body);
    vec![
        case("pages that come and go beside many rings", pages),
        case("a program with many regions is killed beside many rings", killed),
        case("registrations of nothing", void),
        case("registrations of nothing, over and over", voids),
    ]
}

/// QPs of one process.
fn rings(length: Length) -> u32 {
    length.of(4_000, 14_000)
}

fn pages(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let programs = vec![format!("pages --qps {}", rings(length))];
    let limits = Limits { memory: 128, growth: 8, descriptors: 16 };
    let attack = Attack { programs, threads: 2, limits };
    scene.suffer(&attack, |scene, programs, excess| {
        each_turn(scene, programs, FOR_EACH_PAGE, excess)
    })
}

fn void_of(scene: &Scene<'_>, options: &str) -> String {
    format!("void --bytes {VOID} {options} {}", scene.daemon().state_dir().display())
}

fn void(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let programs = vec![void_of(&scene, ""); 3];
    let limits = Limits { memory: 16, growth: 4, descriptors: 32 };
    let attack = Attack { programs, threads: 1, limits };
    scene.suffer(&attack, |scene, _, excess| {
        // However much they have, another program finds room.
        let visit = visit(scene)?;
        excess.unless(visit.status.success(), || format!("another is refused: {visit}"));
        Ok(())
    })
}

fn voids(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let programs = vec![void_of(&scene, "--again")];
    let limits = Limits { memory: 16, growth: 8, descriptors: 16 };
    let attack = Attack { programs, threads: 2, limits };
    scene.suffer(&attack, |scene, programs, excess| {
        each_turn(scene, programs, FOR_EACH_VOID, excess)
    })
}

/// Measures balboad's work for a turn of the first program while the bystander rests.
fn each_turn(
    scene: &Scene<'_>,
    programs: &[Running],
    limit: Duration,
    excess: &mut Excess,
) -> Result<()> {
    let program = programs.first().context("nobody attacks")?;
    let turns = || number_said(program, "turns ").unwrap_or(0);
    let (taken, turns) = scene.alone(|scene| {
        let begin = (scene.level()?, turns());
        // Long enough for many of them, and no longer than there are some.
        let deadline = Instant::now() + PATIENCE;
        std::thread::sleep(scene.length().span());
        while turns() < begin.1 + 3 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (end, now) = (scene.level()?, turns());
        let taken = (end.cards + end.control).saturating_sub(begin.0.cards + begin.0.control);
        Ok((taken, now - begin.1))
    })?;
    let each = taken / u32::try_from(turns.max(1))?;
    excess.unless(turns > 0 && each <= limit, || {
        format!("{turns} turns take balboad {each:?} each, and {limit:?} are the limit")
    });
    scene.note(format!("{turns} turns, each of which takes balboad {each:?}"));
    Ok(())
}

fn visit(scene: &Scene<'_>) -> Result<Finished> {
    scene.program("visit").limit(PATIENCE).run()
}

/// The window of the first card in which a program has its place.
fn window_of(scene: &Scene<'_>, program: Option<&Running>) -> Result<u64> {
    let pid = program.context("nobody attacks")?.pid();
    let status = scene.daemon().status_within(PATIENCE)?;
    let clients = status["clients"].as_array().context("no clients")?;
    let client = clients.iter().find(|client| client["pid"] == pid);
    let window = client.and_then(|client| client["places"][0]["window"].as_u64());
    window.with_context(|| format!("process {pid} has no place on a card"))
}

/// A program that ends beside the rings of another.
fn killed(setting: &Setting, length: Length) -> Result<()> {
    let scene = Scene::open(setting, length, "--soft 2")?;
    let (qps, regions) = (rings(length), length.of(500, 2_000));
    let program = |qps: u32, regions: u32| format!("regions --qps {qps} --regions {regions}");
    // Each window takes the next program; and the last comes to the rings of the first.
    let mut programs = vec![program(0, 0); usize::from(WINDOWS)];
    programs.insert(0, program(qps, 0));
    programs.push(program(0, regions));
    let limits = Limits { memory: 128, growth: 4, descriptors: 64 };
    let attack = Attack { programs, threads: 1, limits };
    scene.suffer(&attack, |scene, programs, excess| {
        let first = window_of(scene, programs.first())?;
        let last = window_of(scene, programs.last())?;
        ensure!(
            first == last,
            "the regions are in window {last}, beside no rings, and not in {first}"
        );
        let program = programs.pop().context("nobody attacks")?;
        let (taken, next) = scene.alone(|scene| {
            let work = || scene.level().map(|level| level.cards + level.control);
            let begin = work()?;
            program.signal(Signal::SIGKILL)?;
            program.wait()?;
            visit(scene)?.success()?;
            let next = work()?.saturating_sub(begin);
            scene.left(programs.len())?;
            Ok((work()?.saturating_sub(begin), next))
        })?;
        let limit = FOR_EACH_REGION * regions;
        // With few regions most of it is the end of a process, whose cost on a busy machine varies.
        excess.unless(length == Length::Short || taken <= limit, || {
            format!("its end takes balboad {taken:?}, and {limit:?} are the limit")
        });
        excess.unless(next <= BEFORE_NEXT, || {
            format!("balboad works {next:?} until the next client is served, and {BEFORE_NEXT:?} are the limit")
        });
        scene.note(format!("its end takes balboad {taken:?}, {next:?} until the next client"));
        Ok(())
    })
}
