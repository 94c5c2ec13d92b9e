//! The tests of a queue engine, over the one in RTL: `cargo xtask gateware test` runs them.

#[path = "../../../queue-engine/tests/engine/mod.rs"]
mod engine;
mod rtl;

/// The device under test.
type Dut = rtl::Rtl;
