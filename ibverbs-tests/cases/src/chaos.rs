//! Random deaths, by seeds that are always the same.

use harness::runner::Case;

use rounds::{QPS, REGIONS};

pub mod rounds;

/// Runs of rounds, so that a failure costs no more than one of them.
const RUNS: u64 = 4;
/// Rounds of each.
const ROUNDS: u64 = 50;
/// Rounds with a program that has much.
const LARGE: u64 = 3;

/// The family.
pub fn cases() -> Vec<Case> {
    let large = format!("chaos/{LARGE} deaths of a program with {QPS} QPs and {REGIONS} regions");
    let large = Case::new(large, &[], |setting| rounds::at_scale(setting, 0, LARGE));
    let rounds = (0..RUNS).map(|run| {
        let first = run * ROUNDS;
        let name = format!("chaos/{ROUNDS} random deaths from seed {first}");
        Case::new(name, &[super::PERFTEST], move |setting| rounds::rounds(setting, first, ROUNDS))
    });
    rounds.chain([large]).collect()
}
