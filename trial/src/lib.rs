//! Helpers that the tests of several crates share. No program depends on it.

#![forbid(unsafe_code)]

pub mod requirements;
pub mod rng;
pub mod share;
