//! The tests of a queue engine, over one that is reached by slow buses.

mod devices;
mod engine;

/// The device under test.
type Dut = devices::distant::Distant;
