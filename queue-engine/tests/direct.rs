//! The tests of a queue engine, over the engine of this crate.

mod engine;
