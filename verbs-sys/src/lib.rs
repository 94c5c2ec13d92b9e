//! C types of libibverbs and of its private provider interface, one module per rdma-core release.
//!
//! The private interface between libibverbs and its plug-ins moves from release to release, even
//! under one ABI number, so a plug-in is built against exactly one module of this crate. Sizes and
//! offsets are asserted when the crate is compiled. There are types and constants only: whoever
//! calls into libibverbs declares the functions it calls.
//!
//! | module | rdma-core | Debian | private ABI |
//! |---|---|---|---|
//! | [`v44`] | 44.0 | 12 (bookworm) | `IBVERBS_PRIVATE_34` |

#![forbid(unsafe_code)]

pub mod v44;

/// The release that the provider, its package and its tests are for.
pub use v44 as current;
