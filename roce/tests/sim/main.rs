//! Deterministic simulation: many stacks in virtual time, over cables that lose, duplicate,
//! reorder, corrupt and delay frames by seed.
//!
//! A failure prints its seed; `ROCE_SIM_SEED=<seed>` repeats it, `ROCE_SIM_SEEDS=<n>` runs more.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic"
)]

mod cable;
mod connection;
mod errors;
mod fairness;
mod faults;
mod hostile;
mod lossless;
mod memory;
mod network;
mod puppet;
mod requester_rules;
mod responder_rules;
mod rng;
mod states;
mod truth;
mod workload;

/// Runs `scenario` for seeds 1 to `default` (or as the environment says), and names the seed of a
/// failure.
fn for_each_seed(name: &str, default: u64, scenario: impl Fn(u64)) {
    let number =
        |variable| std::env::var(variable).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds: Vec<u64> = match number("ROCE_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("ROCE_SIM_SEEDS").unwrap_or(default)).collect(),
    };
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| scenario(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("repeat with: ROCE_SIM_SEED={seed} cargo test -p roce --test sim {name}");
            std::panic::resume_unwind(panic);
        }
    }
}
