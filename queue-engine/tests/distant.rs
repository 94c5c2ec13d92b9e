//! The tests of a queue engine, over one that is reached by slow buses.

mod devices;
mod engine;

/// What is tested.
type Dut = devices::distant::Distant;
