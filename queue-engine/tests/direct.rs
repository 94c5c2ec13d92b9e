//! The tests of a queue engine, over the engine of this crate.

#[path = "devices/api.rs"]
mod api;
#[path = "devices/rust.rs"]
mod device;
mod engine;

/// The device under test.
type Dut = device::RustEngine;
