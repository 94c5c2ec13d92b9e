//! The library and its functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

use anyhow::{Result, bail};
use verbs_sys::current::verbs as v;

macro_rules! functions {
    (
        $(#[$about:meta])*
        $visibility:vis struct $library:ident = $file:literal;
        $($name:ident @ $version:literal: fn($($argument:ty),*) $(-> $answer:ty)?;)*
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        $visibility struct $library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl $library {
            /// Opens the library, for good.
            ///
            /// # Errors
            /// When it is not there, or lacks a function in the version asked for.
            pub fn open() -> Result<&'static Self> {
                let file = concat!($file, "\0");
                // SAFETY: the name ends with NUL; the library's constructors may run at any time.
                let handle = unsafe { libc::dlopen(file.as_ptr().cast(), libc::RTLD_NOW) };
                if handle.is_null() {
                    bail!("cannot open {}: {}", $file, last_error());
                }
                Ok(Box::leak(Box::new(Self {
                    $($name: {
                        let address = symbol(
                            ($file, handle),
                            concat!(stringify!($name), "\0"),
                            concat!($version, "\0"),
                        )?;
                        // SAFETY: its header declares the symbol of this version with this signature.
                        unsafe {
                            transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $answer)?>(
                                address,
                            )
                        }
                    },)*
                })))
            }
        }
    };
}
pub(super) use functions;

functions! {
    /// The functions of libibverbs that are used here.
    pub struct Library = "libibverbs.so.1";
    ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut v::ibv_device;
    ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut v::ibv_device);
    ibv_get_device_name @ "IBVERBS_1.1": fn(*mut v::ibv_device) -> *const c_char;
    ibv_open_device @ "IBVERBS_1.1": fn(*mut v::ibv_device) -> *mut v::ibv_context;
    ibv_close_device @ "IBVERBS_1.1": fn(*mut v::ibv_context) -> c_int;
    ibv_query_device @ "IBVERBS_1.1": fn(*mut v::ibv_context, *mut v::ibv_device_attr) -> c_int;
    ibv_query_port @ "IBVERBS_1.1": fn(*mut v::ibv_context, u8, *mut v::ibv_port_attr) -> c_int;
    ibv_query_gid @ "IBVERBS_1.1": fn(*mut v::ibv_context, u8, c_int, *mut v::ibv_gid) -> c_int;
    ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut v::ibv_context) -> *mut v::ibv_pd;
    ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut v::ibv_pd) -> c_int;
    ibv_reg_mr @ "IBVERBS_1.1": fn(*mut v::ibv_pd, *mut c_void, usize, c_int) -> *mut v::ibv_mr;
    ibv_reg_mr_iova2 @ "IBVERBS_1.8":
        fn(*mut v::ibv_pd, *mut c_void, usize, u64, u32) -> *mut v::ibv_mr;
    ibv_reg_dmabuf_mr @ "IBVERBS_1.12":
        fn(*mut v::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut v::ibv_mr;
    ibv_rereg_mr @ "IBVERBS_1.1":
        fn(*mut v::ibv_mr, c_int, *mut v::ibv_pd, *mut c_void, usize, c_int) -> c_int;
    ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut v::ibv_mr) -> c_int;
    ibv_import_mr @ "IBVERBS_1.10": fn(*mut v::ibv_pd, u32) -> *mut v::ibv_mr;
    ibv_import_pd @ "IBVERBS_1.10": fn(*mut v::ibv_context, u32) -> *mut v::ibv_pd;
    ibv_import_dm @ "IBVERBS_1.13": fn(*mut v::ibv_context, u32) -> *mut v::ibv_dm;
    ibv_create_comp_channel @ "IBVERBS_1.0": fn(*mut v::ibv_context) -> *mut v::ibv_comp_channel;
    ibv_destroy_comp_channel @ "IBVERBS_1.0": fn(*mut v::ibv_comp_channel) -> c_int;
    ibv_create_cq @ "IBVERBS_1.1": fn(
        *mut v::ibv_context, c_int, *mut c_void, *mut v::ibv_comp_channel, c_int
    ) -> *mut v::ibv_cq;
    ibv_resize_cq @ "IBVERBS_1.1": fn(*mut v::ibv_cq, c_int) -> c_int;
    ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut v::ibv_cq) -> c_int;
    ibv_get_cq_event @ "IBVERBS_1.1":
        fn(*mut v::ibv_comp_channel, *mut *mut v::ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events @ "IBVERBS_1.1": fn(*mut v::ibv_cq, u32);
    ibv_get_async_event @ "IBVERBS_1.1": fn(*mut v::ibv_context, *mut v::ibv_async_event) -> c_int;
    ibv_ack_async_event @ "IBVERBS_1.1": fn(*mut v::ibv_async_event);
    ibv_create_srq @ "IBVERBS_1.1":
        fn(*mut v::ibv_pd, *mut v::ibv_srq_init_attr) -> *mut v::ibv_srq;
    ibv_modify_srq @ "IBVERBS_1.1": fn(*mut v::ibv_srq, *mut v::ibv_srq_attr, c_int) -> c_int;
    ibv_query_srq @ "IBVERBS_1.1": fn(*mut v::ibv_srq, *mut v::ibv_srq_attr) -> c_int;
    ibv_destroy_srq @ "IBVERBS_1.1": fn(*mut v::ibv_srq) -> c_int;
    ibv_create_qp @ "IBVERBS_1.1": fn(*mut v::ibv_pd, *mut v::ibv_qp_init_attr) -> *mut v::ibv_qp;
    ibv_modify_qp @ "IBVERBS_1.1": fn(*mut v::ibv_qp, *mut v::ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp @ "IBVERBS_1.1":
        fn(*mut v::ibv_qp, *mut v::ibv_qp_attr, c_int, *mut v::ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut v::ibv_qp) -> c_int;
    ibv_create_ah @ "IBVERBS_1.1": fn(*mut v::ibv_pd, *mut v::ibv_ah_attr) -> *mut v::ibv_ah;
    ibv_create_ah_from_wc @ "IBVERBS_1.1":
        fn(*mut v::ibv_pd, *mut v::ibv_wc, *mut v::ibv_grh, u8) -> *mut v::ibv_ah;
    ibv_destroy_ah @ "IBVERBS_1.1": fn(*mut v::ibv_ah) -> c_int;
    ibv_attach_mcast @ "IBVERBS_1.1": fn(*mut v::ibv_qp, *const v::ibv_gid, u16) -> c_int;
    ibv_detach_mcast @ "IBVERBS_1.1": fn(*mut v::ibv_qp, *const v::ibv_gid, u16) -> c_int;
    ibv_query_ece @ "IBVERBS_1.10": fn(*mut v::ibv_qp, *mut v::ibv_ece) -> c_int;
    ibv_set_ece @ "IBVERBS_1.10": fn(*mut v::ibv_qp, *mut v::ibv_ece) -> c_int;
    ibv_qp_to_qp_ex @ "IBVERBS_1.6": fn(*mut v::ibv_qp) -> *mut v::ibv_qp_ex;
    ibv_wc_status_str @ "IBVERBS_1.1": fn(v::ibv_wc_status) -> *const c_char;
}

impl Library {
    /// The words for a completion status.
    pub fn status_name(&self, status: v::ibv_wc_status) -> String {
        // SAFETY: the function takes any number and returns a string that lives for ever.
        let name = unsafe { CStr::from_ptr((self.ibv_wc_status_str)(status)) };
        name.to_string_lossy().into_owned()
    }
}

/// A function by name and version, both ending with NUL.
pub(super) fn symbol(
    (file, handle): (&str, *mut c_void),
    name: &str,
    version: &str,
) -> Result<*mut c_void> {
    // SAFETY: both strings end with NUL, the handle came from dlopen and is never closed.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr().cast(), version.as_ptr().cast()) };
    if address.is_null() {
        bail!("{file} lacks {name} in version {version}: {}", last_error());
    }
    Ok(address)
}

pub(super) fn last_error() -> String {
    // SAFETY: dlerror may be called at any time.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, so it is a string that lives until the next call of this thread.
    unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
}
