//! Random deaths, by seeds that are always the same.

use crate::chaos;
use crate::runner::Case;

/// Runs of rounds, so that a failure costs no more than one of them.
const RUNS: u64 = 4;
/// Rounds of each.
const ROUNDS: u64 = 50;

/// The family.
pub fn cases() -> Vec<Case> {
    (0..RUNS)
        .map(|run| {
            let first = run * ROUNDS;
            let name = format!("chaos/{ROUNDS} random deaths from seed {first}");
            Case::new(name, &[super::PERFTEST], move |setting| {
                chaos::rounds(setting, first, ROUNDS)
            })
        })
        .collect()
}
