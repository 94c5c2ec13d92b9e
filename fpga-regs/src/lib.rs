//! The contract between the card and its drivers: register offsets, entry formats, codes.
//!
//! Two parts. [`coyote`] is the published Coyote shell as far as bring-up touches it. [`engine`] is
//! the verbs queue engine (VQE), contract version 1, which sits in a vFPGA's user CSR window and
//! gives the card rings, completions, receive queues and keys.
//!
//! All fields are little-endian. Reserved fields are written as zero and ignored when read. Numbers
//! that come from the card are open enums: an unknown code is a value like any other.
//!
//! The crate does no I/O and holds no state; software card, driver, provider and gateware authors
//! share it as their single source of truth.

#![forbid(unsafe_code)]

#[macro_use]
mod layout;
#[macro_use]
mod registers;
pub mod coyote;
pub mod engine;

pub use layout::{BLOCK_BYTES, Block, Code, Codes, Constant, Describe, Field, Layout, Wire};
pub use registers::{
    Access, Array, BitField, Moved, Place, Register, RegisterBlock, RegisterView, View, Word,
};
