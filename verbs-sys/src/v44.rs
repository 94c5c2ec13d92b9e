//! rdma-core 44, as in Debian 12.

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
pub const RELEASE: u32 = 44;
