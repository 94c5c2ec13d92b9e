//! The demonstration: programs, checks of each byte, and ends, between software cards whose engines are RTL.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use harness::setting::{Setting, Stage, Who, installed_release};
use harness::summary::{Clock, Step, Summary};
use terminal::report;

use super::cards::{CARDS, Cycles, ENGINE, ERRORS, LIMIT, check_beside, stage_with};
use super::ends::{ENDS, End};
use crate::cargo::conclude;
use crate::demo::between_the_cards;

/// The programs of the demonstration, each on both cards. perftest's eight tries of 67 ms are less than a busy machine may keep
/// a card waiting; of 1.07 s they are more.
const PROGRAMS: [&str; 6] = [
    "ib_write_bw -F -u 18 -n 200",
    "ib_write_bw -F -u 18 -q 64 -n 5 -s 4096",
    "ib_read_bw -F -u 18 -n 200",
    "ib_send_bw -F -u 18 -n 200",
    "ib_send_bw -F -u 18 --use-srq -q 4 -n 50 -s 4096",
    "ibv_rc_pingpong -c -g 0 -n 200",
];
/// What checks each byte: the cards, what verbs-data does, and what it says then. Of cards of one balboad the time is one.
const CHECKS: [(&str, &str, &str); 7] = [
    (CARDS, "lists", "120 listed messages arrived"),
    (CARDS, ERRORS, "21 errors came"),
    ("--soft 2 --soft-image 0=rtl", SWEEP, "125 messages arrived"),
    ("--soft 2 --soft-image 1=rtl", SWEEP, "125 messages arrived"),
    ("--soft 2 --soft-image rtl --fault loss=1%", SWEEP, "125 messages arrived"),
    ("--soft 2 --soft-image 0=rtl --fault loss=1%", SWEEP, "125 messages arrived"),
    ("--soft 2 --soft-image 1=rtl --fault loss=1%", SWEEP, "125 messages arrived"),
];
/// Messages of every operation, of up to 16 elements of odd lengths, at every path MTU.
const SWEEP: &str = "sweep --sizes 0,1,63,65,4097";
/// The programs of the tests that take part.
const MORE: [&str; 2] = ["verbs-data", "verbs-mortal"];

/// `cargo xtask gateware demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Run those whose command or name has this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// A part of the demonstration, with cards of its own.
enum Part {
    /// A program between the two cards.
    Program(&'static str),
    /// What checks each byte between cards, what it does, and what it says then.
    Check(&'static str, (&'static str, &'static str)),
    /// An end amid transfers.
    End(End),
}

/// All parts, each by its name.
fn parts() -> Vec<(String, Part)> {
    let programs = PROGRAMS.map(|program| (program.to_owned(), Part::Program(program)));
    let checks = CHECKS.map(|(cards, command, says)| {
        (format!("verbs-data {command}, {cards}"), Part::Check(cards, (command, says)))
    });
    let ends = ENDS.map(|(what, end)| (what.to_owned(), Part::End(end)));
    programs.into_iter().chain(checks).chain(ends).collect()
}

/// The names of what [`check`] counts.
pub fn names() -> Vec<String> {
    parts().into_iter().map(|(name, _)| counted(&name)).collect()
}

/// The name of a part among all tests.
fn counted(name: &str) -> String {
    format!("gateware: between cards: {name}")
}

/// Runs programs between the cards.
///
/// # Errors
/// When a tool cannot be had, or a part cannot be run.
pub fn demo(options: &Demo) -> Result<ExitCode> {
    let stage = stage_with(None, &MORE)?;
    report!(
        "Two software cards, balboa0 and balboa1, whose queue engines are RTL, simulated cycle by cycle."
    );
    let summary = run(&stage, |name| name.contains(&options.only))?;
    report!("");
    conclude(summary)
}

/// Runs all of it with programs that are built, and the library of the engine.
///
/// # Errors
/// When a program is not there, or a part cannot be run.
pub fn check(programs: &Path, logic: &Path) -> Result<Summary> {
    let names = ["balboad", "balboa"].into_iter().chain(MORE).map(str::to_owned);
    let stage = Stage::of(programs, names, [installed_release()?])?;
    run(&stage.with_rtl(&logic.join(ENGINE))?, |_| true)
}

/// Runs the parts whose names are wanted, one after the other.
fn run(stage: &Stage, is_wanted: impl Fn(&str) -> bool) -> Result<Summary> {
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    let mut summary = Summary::default();
    for (name, part) in parts().into_iter().filter(|(name, _)| is_wanted(name)) {
        report!("\n---- {name}");
        let clock = Clock::start();
        let setting = stage.setting(Who::Ourselves)?;
        let outcome = match part {
            Part::Program(program) => between(&setting, program),
            Part::Check(cards, wanted) => checked(&setting, cards, wanted),
            Part::End(end) => end(&setting),
        };
        let name = counted(&name);
        summary.steps.push(Step::of(&name, &clock));
        match outcome {
            Ok(()) => summary.passed += 1,
            Err(error) => {
                report!("FAIL {name}: {error:#}");
                summary.failed.push(name);
            }
        }
    }
    Ok(summary)
}

/// Runs a program between the two cards.
fn between(setting: &Setting, program: &str) -> Result<()> {
    let daemon = setting.balboad(CARDS)?;
    let before = Cycles::of(&daemon)?;
    between_the_cards(&daemon, program, LIMIT)?;
    before.have_passed(&daemon, program)?;
    daemon.stop()
}

/// Has verbs-data check each byte between two cards.
fn checked(setting: &Setting, cards: &str, wanted: (&str, &str)) -> Result<()> {
    let daemon = setting.balboad(cards)?;
    check_beside(setting, &daemon, wanted)?;
    daemon.stop()
}
