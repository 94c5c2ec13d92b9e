//! rdma-core 50, as in Ubuntu 24.04.

#[expect(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::pub_underscore_fields,
    reason = "generated from rdma-core's headers, whose names these are"
)]
#[rustfmt::skip]
pub mod verbs;

pub use verbs::*;

/// The release.
pub const RELEASE: u32 = 50;
