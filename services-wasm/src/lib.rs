//! Services of users: WebAssembly modules in the place of [`PacketService`](services::PacketService)s that are compiled in.
//!
//! [`Module::load`] takes a file's bytes, which may be anything, and gives a service or a sentence. A module imports
//! nothing, so it reaches its own memory alone; [`interface`] says what it exports. An interpreter executes it, so no
//! memory is ever made executable.
//!
//! Each call has an instance of its own, which ends with it: a module remembers of a connection what its declared state
//! holds, and nothing else. Each call has the fuel that its packet's budget pays for.

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod code;
mod description;
mod error;
pub mod interface;
pub mod limit;
mod module;

pub use error::Error;
pub use module::Module;
