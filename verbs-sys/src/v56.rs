//! rdma-core 56, as in Debian 13: its types are those of release 50.

pub use super::v50::verbs;
pub use verbs::*;

/// The release.
pub const RELEASE: u32 = 56;
