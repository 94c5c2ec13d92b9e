//! Properties of any queue engine: the crate that declares this module names the tested one as `Dut`.

mod admin;
mod attacks;
mod attributes;
mod completing;
mod completion_queues;
mod datagrams;
mod device_memory;
mod doorbells;
mod failing;
mod gsi;
mod hostile;
mod keys;
mod lifecycle;
mod payload;
mod receiving;
mod sending;
mod sharing;
mod stock;
mod storm;
pub mod support;
mod transitions;
mod vectors;
mod windows;
mod xrc;
