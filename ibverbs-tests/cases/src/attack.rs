//! Attacks on a balboad by programs of its own user, each by its name: their limits, and the proof that a bystander and
//! the status command hardly notice.
//!
//! The programs are in [`hostile`](verbs_programs::hostile). [`scene`] has the balboad, the bystander and
//! the measurements, [`limits`] the bounds. The short form of an attack, in the test command, judges counts;
//! the long one, `cargo xtask attack`, judges times too.

use std::time::Duration;

use anyhow::Result;
use harness::runner::{Case, Need};
use harness::setting::Setting;

pub mod accounts;
pub mod cable;
pub mod files;
pub mod level;
pub mod limits;
pub mod log;
pub mod phase;
pub mod relayed_programs;
pub mod requests;
pub mod retries;
pub mod scene;
pub mod silence;
pub mod translations;
pub mod unanswered;
pub mod waits;

use limits::Excess;
use phase::Length;

/// How often an attack is tried again where it was late and nothing else: one that works does so
/// each time.
const TRIES: usize = 3;

/// All attacks.
pub fn cases(length: Length) -> Vec<Case> {
    let families = [
        retries::cases(length),
        silence::cases(length),
        translations::cases(length),
        accounts::cases(length),
        unanswered::cases(length),
        log::cases(length),
        files::cases(length),
        cable::cases(length),
        relayed_programs::cases(length),
        requests::cases(length),
        waits::cases(length),
    ];
    // The case judges the bystander's times: no other case may delay it.
    families.into_iter().flatten().map(Case::alone).collect()
}

/// One attack.
fn case(
    length: Length,
    name: &str,
    needs: &[Need],
    body: fn(&Setting, Length) -> Result<()>,
) -> Case {
    Case::new(format!("attack/{name}"), needs, move |setting| {
        let mut tries = 0;
        loop {
            tries += 1;
            match body(setting, length) {
                Err(error) if tries < TRIES && Excess::is_only_late(&error) => {
                    terminal::report!("     late, and tried again: {error:#}");
                }
                outcome => return outcome,
            }
        }
    })
}

/// The length of `cargo xtask attack`.
pub fn long(seconds: u64) -> Length {
    Length::Long(Duration::from_secs(seconds))
}
