//! The host's view of cards: network and RDMA devices of the kernel, and counters as files.
//!
//! It knows no card, only names, addresses, GID tables and counters that its caller passes. It returns the changes
//! that a card needs, and leaves them to its caller.
//!
//! | module | content |
//! |---|---|
//! | [`shadow_device`] | the kernel's devices of a card, and the GIDs that follow their addresses |
//! | [`sysfs`] | the counters' files, which `balboa run` shows to its programs |
//! | [`rdma_netlink`] | answers to RDMA netlink, which `balboa run` gives its programs |
//! | [`directory`] | directories by descriptor, in which no link is followed |

#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "tests may fail"))]

pub mod directory;
mod error;
mod message;
pub mod rdma_netlink;
pub mod shadow_device;
pub mod sysfs;

pub use error::Error;
