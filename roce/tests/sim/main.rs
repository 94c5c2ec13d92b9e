//! Deterministic simulation: many stacks in virtual time, on the networks of `netsim`, whose cables lose, duplicate,
//! reorder, corrupt and delay frames by seed.
//!
//! A failure prints its seed and the command that repeats it: `ROCE_SIM_SEED=<seed>`.
//! `ROCE_SIM_SEEDS=<n>` says how many random networks are tried (2,000 if it does not), and
//! `ROCE_SIM_SCENARIO_SEEDS=<n>` how many seeds each of the other scenarios runs (a few).

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic"
)]

mod atomics;
mod attacks;
mod congestion;
mod connection;
mod counting;
mod credits;
mod datagrams;
mod errors;
mod fairness;
mod faults;
mod hostile;
mod ledger;
mod losses;
mod lossless;
mod lumina;
mod martians;
mod memory;
mod multicast;
mod network;
mod opcodes;
mod packet_rules;
mod probing;
mod puppet;
mod random;
mod requester_rules;
mod responder_rules;
mod script;
mod services;
mod stalls;
mod states;
mod truth;
mod undecided;
mod unreliable;
mod unsettled;
mod windows;
mod workload;
mod xrc;

/// Runs `scenario` for seeds 1 to `default` (or as the environment says), and names the seed of a
/// failure.
fn for_each_seed(name: &str, default: u64, scenario: impl Fn(u64)) {
    for_seeds(name, "ROCE_SIM_SCENARIO_SEEDS", default, scenario);
}

/// Runs `scenario` for as many seeds as the environment `variable` says.
fn for_seeds(name: &str, variable: &str, default: u64, scenario: impl Fn(u64)) {
    let number = |variable: &str| {
        let text = std::env::var(variable).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
    };
    let seeds = match number("ROCE_SIM_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number(variable).unwrap_or(default),
    };
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| scenario(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("repeat with: ROCE_SIM_SEED={seed} cargo test -p roce --test sim {name}");
            std::panic::resume_unwind(panic);
        }
    }
}
