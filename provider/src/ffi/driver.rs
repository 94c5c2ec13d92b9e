//! What libibverbs gets when it loads the plug-in.

use std::ptr::{null, null_mut};

use crate::abi::{
    RDMA_DRIVER_RXE, VERBS_MATCH_DRIVER_ID, VERBS_MATCH_SENTINEL, verbs_device_ops,
    verbs_match_ent, verbs_match_ent_u,
};

use super::{context, device};

unsafe extern "C" {
    /// libibverbs' list of plug-ins; the name carries the private ABI number.
    #[link_name = concat!("verbs_register_driver_", env!("IBVERBS_PABI_VERSION"))]
    fn verbs_register_driver(ops: *const verbs_device_ops);
}

/// A table that C reads and nobody changes.
#[repr(transparent)]
struct Constant<T>(T);

// SAFETY: the values are never written, and what they point to is constant too.
unsafe impl<T> Sync for Constant<T> {}

/// Devices of rdma_rxe's are looked at before those that are matched by name only;
/// [`device::match_device`] then decides by name.
static MATCHES: Constant<[verbs_match_ent; 2]> = Constant([
    verbs_match_ent {
        driver_data: null_mut(),
        u: verbs_match_ent_u { driver_id: RDMA_DRIVER_RXE as u64 },
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_DRIVER_ID,
    },
    verbs_match_ent {
        driver_data: null_mut(),
        u: verbs_match_ent_u { modalias: null() },
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_SENTINEL,
    },
]);

/// The newest ABI number of a character device that is handled: rdma_rxe's is 2, ours say 1.
const NEWEST_ABI: u32 = 2;

static OPS: Constant<verbs_device_ops> = Constant(verbs_device_ops {
    name: c"balboa".as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: NEWEST_ABI,
    match_table: MATCHES.0.as_ptr(),
    static_providers: null_mut(),
    match_device: Some(device::match_device),
    alloc_context: Some(context::alloc_context),
    import_context: None,
    alloc_device: Some(device::alloc_device),
    uninit_device: Some(device::uninit_device),
});

extern "C" fn register() {
    // SAFETY: the table outlives the process's use of libibverbs, which never unloads plug-ins.
    unsafe { verbs_register_driver(&raw const OPS.0) };
}

/// Runs when the dynamic linker has loaded the plug-in, as libibverbs expects.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;
