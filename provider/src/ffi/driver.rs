//! The plug-in's entry point for libibverbs.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use verbs_sys::ioctl::RDMA_DRIVER_RXE;
use verbs_sys::{RELEASES, release_in_name};

use crate::abi::{
    IBVERBS_PABI_VERSION, RELEASE, VERBS_MATCH_DRIVER_ID, VERBS_MATCH_SENTINEL, verbs_device_ops,
    verbs_match_ent, verbs_match_ent__bindgen_ty_1 as Matched,
};

use super::opened::core_address;
use super::{context, device, rdmacm};

unsafe extern "C" {
    /// libibverbs' list of plug-ins; the name carries the private ABI number.
    #[link_name = concat!("verbs_register_driver_", env!("IBVERBS_PABI_VERSION"))]
    fn verbs_register_driver(ops: *const verbs_device_ops);
}

/// A table that C reads and that never changes.
#[repr(transparent)]
struct Constant<T>(T);

// SAFETY: the values are never written, and they point to constants.
unsafe impl<T> Sync for Constant<T> {}

/// Devices of rdma_rxe's are looked at before those that are matched by name only;
/// [`device::match_device`] then decides by name.
static MATCHES: Constant<[verbs_match_ent; 2]> = Constant([
    verbs_match_ent {
        driver_data: null_mut(),
        u: Matched { driver_id: RDMA_DRIVER_RXE as u64 },
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_DRIVER_ID as u8,
    },
    verbs_match_ent {
        driver_data: null_mut(),
        u: Matched { modalias: null() },
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_SENTINEL as u8,
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

/// The file of the libibverbs that has loaded us.
fn libibverbs() -> Option<PathBuf> {
    file_with(core_address()).and_then(|name| name.canonicalize().ok())
}

/// The file that the dynamic linker loaded an address from, by the name that it was loaded by.
fn file_with(address: usize) -> Option<PathBuf> {
    // SAFETY: all fields are raw pointers, of which all bits zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only looked up, and the answer written to a live variable.
    let known = unsafe { libc::dladdr(address as *const _, &raw mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the dynamic linker's name of a library that is loaded, zero-terminated.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_owned())
}

/// Loads the provider of another release from beside our own file, where `balboa run` shows all that
/// there are; false where it is not there. It registers itself.
fn hand_over(release: u32) -> bool {
    // Its own address tells our file.
    let Some(ours) = file_with(register as *const () as usize) else { return false };
    let theirs = RELEASES.iter().find(|it| it.number == release);
    let Some(theirs) = theirs.filter(|it| it.private_abi == IBVERBS_PABI_VERSION) else {
        return false;
    };
    let file = ours.with_file_name(theirs.provider());
    let Ok(file) = CString::new(file.into_os_string().into_vec()) else { return false };
    // SAFETY: the name is zero-terminated. The library is as trusted as this one: it lies beside it,
    // and its constructor does the same.
    !unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) }.is_null()
}

extern "C" fn register() {
    // Releases of one private interface differ in where things lie. (Those of another do not find
    // us, or miss the symbols that we name.)
    let library = libibverbs();
    let release = library.as_deref().and_then(release_in_name);
    if let (Some(library), Some(release)) = (library, release.filter(|it| *it != RELEASE)) {
        if !hand_over(release) {
            crate::log::wrong_release(&library, release);
        }
        return;
    }
    // SAFETY: the table outlives the process's use of libibverbs, which never unloads plug-ins.
    unsafe { verbs_register_driver(&raw const OPS.0) };
    rdmacm::install();
}

/// Runs when the dynamic linker has loaded the plug-in, as libibverbs expects.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;
