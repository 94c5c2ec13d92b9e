//! The demonstration: programs, checks of each byte, and ends, between software cards whose engines are RTL.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::setting::{Setting, Who};
use terminal::report;

use super::cards::{CARDS, Cycles, ERRORS, LIMIT, check_beside, stage_with};
use super::ends;
use crate::demo::between_the_cards;

/// The programs of the demonstration, each on both cards.
const PROGRAMS: [&str; 6] = [
    "ib_write_bw -F -n 200",
    "ib_write_bw -F -q 64 -n 5 -s 4096",
    "ib_read_bw -F -n 200",
    "ib_send_bw -F -n 200",
    "ib_send_bw -F --use-srq -q 4 -n 50 -s 4096",
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
/// `cargo xtask gateware demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Run those whose command or name has this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// Runs programs between the cards.
///
/// # Errors
/// When a tool cannot be had, or a program fails, or its bytes did not pass through the RTL.
pub fn demo(options: &Demo) -> Result<ExitCode> {
    let is_wanted = |name: &str| name.contains(&options.only);
    let stage = stage_with(None, &["verbs-data", "verbs-mortal"])?;
    let _tidy = harness::interrupt::remove_on_signal(stage.path());
    let setting = stage.setting(Who::Ourselves)?;
    report!(
        "Two software cards, balboa0 and balboa1, whose queue engines are RTL, simulated cycle by cycle."
    );
    let daemon = setting.balboad(CARDS)?;
    for program in PROGRAMS.into_iter().filter(|it| is_wanted(it)) {
        let before = Cycles::of(&daemon)?;
        between_the_cards(&daemon, program, LIMIT)?;
        before.have_passed(&daemon, program)?;
    }
    daemon.stop()?;
    for (cards, command, says) in CHECKS {
        let name = format!("verbs-data {command}, {cards}");
        if is_wanted(&name) {
            report!("\n---- {name}");
            check(&setting, cards, (command, says)).context(name)?;
        }
    }
    ends::all(&setting, is_wanted)?;
    Ok(ExitCode::SUCCESS)
}

/// Has verbs-data check each byte between two cards.
fn check(setting: &Setting, cards: &str, wanted: (&str, &str)) -> Result<()> {
    let daemon = setting.balboad(cards)?;
    check_beside(setting, &daemon, wanted)?;
    daemon.stop()
}
