//! rdma-core 44.0, as in Debian 12: private ABI 34.

/// The release of rdma-core.
pub const RELEASE: u32 = 44;
/// The release of Debian that it comes with.
pub const DEBIAN: u32 = 12;

pub mod driver;
pub mod ioctl;

#[expect(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::pub_underscore_fields,
    reason = "generated from the installed header, whose names these are"
)]
#[rustfmt::skip]
pub mod verbs;

pub use driver::*;
pub use ioctl::*;
pub use verbs::*;
