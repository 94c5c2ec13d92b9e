//! The libibverbs plug-in: verbs calls in, queue entries and control messages out.
//!
//! libibverbs loads this library under the name its release expects and calls it through a table of
//! operations. Control goes to balboad over one socket (`control`); work goes straight to the card
//! through rings and doorbells in shared memory (`sq`, `rq`, `cq`).
//!
//! The C side, and all `unsafe`, is in `ffi`: it turns objects that safe types cannot express (C
//! structures that libibverbs shares with the provider, the program's buffers, the hook into libibverbs)
//! into values, and calls the safe modules. A panic would end the program inside a C call, so
//! nothing here indexes, unwraps or divides by an unknown number.

#![deny(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::panic, clippy::arithmetic_side_effects))]

// `use verbs_sys::vNN as abi`: the types of the release that this package is for (../build.rs).
include!(concat!(env!("OUT_DIR"), "/abi.rs"));

mod attributes;
mod context;
mod control;
mod cq;
mod doorbell;
mod error;
mod events;
#[expect(unsafe_code, reason = "the C side is unsafe by nature")]
mod ffi;
mod limits;
mod lives;
mod lock;
mod log;
mod mr;
mod poll;
mod process;
mod qp;
mod rq;
mod sq;
mod srq;
mod status;
mod table;
mod ucm;
mod uverbs;
mod wr;
mod wr_ids;
