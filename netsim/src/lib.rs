//! A network in virtual time, without I/O, to try the transport in.
//!
//! [Cables](port) of a rate and a delay, and [switches' buffers](buffer) that all ports share, with random early
//! detection (RED) that marks packets, and priority flow control ([PFC](pfc)). [Frames](frame) have their headers by
//! bytes, and their payload by length.
//!
//! Time counts picoseconds, and nothing that decides is a floating-point number.

#![forbid(unsafe_code)]

pub mod buffer;
pub mod events;
pub mod frame;
pub mod pfc;
pub mod port;
mod time;

pub use time::{Time, Wire};
