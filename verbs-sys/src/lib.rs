//! C types of libibverbs and of its private provider interface, one module per rdma-core release.
//!
//! The private interface between libibverbs and its plug-ins moves from release to release, even
//! under one ABI number, so a plug-in is built against exactly one module of this crate. Sizes and
//! offsets are asserted when the crate is compiled. There are types and constants only: a crate that calls into
//! libibverbs declares the functions it calls.
//!
//! A plug-in registers from an ELF constructor with
//! `verbs_register_driver_NN(ops: *const verbs_device_ops)`, where NN is the private ABI's number.
//! Its `alloc_context` calls `_verbs_init_and_alloc_context(device: *mut ibv_device, cmd_fd: c_int,
//! alloc_size: usize, context_offset: *mut verbs_context, driver_id: u32) -> *mut c_void` (where
//! `context_offset` is the offset of the `verbs_context` in the plug-in's structure, passed as a
//! pointer) and `verbs_set_ops(context: *mut verbs_context, ops: *const verbs_context_ops)`, and
//! `free_context` calls `verbs_uninit_context(context: *mut verbs_context)`.

#![forbid(unsafe_code)]

use std::path::Path;

pub mod ioctl;
pub mod v44;
pub mod v50;
pub mod v56;
pub mod v65;

/// The oldest release: a user of its public types runs with every later one, for those only grow. (The provider, which
/// uses the private interface, takes the release's own.)
pub use v44 as current;

/// A release of rdma-core that there is a provider for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Its number.
    pub number: u32,
    /// The number of its private interface, in the plug-in's name.
    pub private_abi: u32,
    /// The distribution that has it.
    pub distribution: &'static str,
}

/// The releases, the oldest first.
pub const RELEASES: [Release; 4] = [
    Release {
        number: v44::RELEASE,
        private_abi: v44::IBVERBS_PABI_VERSION,
        distribution: "Debian 12",
    },
    Release {
        number: v50::RELEASE,
        private_abi: v50::IBVERBS_PABI_VERSION,
        distribution: "Ubuntu 24.04",
    },
    Release {
        number: v56::RELEASE,
        private_abi: v56::IBVERBS_PABI_VERSION,
        distribution: "Debian 13",
    },
    Release {
        number: v65::RELEASE,
        private_abi: v65::IBVERBS_PABI_VERSION,
        distribution: "Debian sid",
    },
];

/// The name by which programs ask for libibverbs.
pub const SONAME: &str = "libibverbs.so.1";

/// The release of rdma-core that a libibverbs is of, by its file's whole name: that of release 44
/// is `libibverbs.so.1.14.44.0`.
pub fn release_in_name(file: &Path) -> Option<u32> {
    let version = file.file_name()?.to_str()?.strip_prefix(SONAME)?.strip_prefix('.')?;
    version.split('.').nth(1)?.parse().ok()
}

impl Release {
    /// The provider for it, as cargo names it.
    pub fn provider(&self) -> String {
        format!("libbalboa_provider_{}.so", self.number)
    }

    /// The suffix that its libibverbs adds to a driver's name to find the plug-in.
    pub fn suffix(&self) -> String {
        format!("-rdmav{}.so", self.private_abi)
    }
}
