//! Deterministic simulation: connection managers in virtual time, over networks that lose,
//! duplicate, reorder and delay datagrams by seed.
//!
//! A failure of a random network prints its seed and the command that repeats it:
//! `CM_SIM_SEED=<seed>`. `CM_SIM_SEEDS=<n>` says how many are tried (1,000 if it does not).

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test may panic"
)]

mod asking;
mod being_asked;
mod ending;
mod hostile;
mod quotas;
mod random;
mod resolving;
mod world;
