//! libibverbs' own log.

use std::ffi::{CString, c_char};
use std::ptr::null_mut;

use crate::abi::verbs::verbs_context;

unsafe extern "C" {
    fn __verbs_log(context: *mut verbs_context, level: u32, format: *const c_char, ...);
}

/// Writes a message to libibverbs' log at a level of `VERBS_LOG_LEVEL`.
pub(crate) fn verbs_log(level: u32, message: &str) {
    let Ok(message) = CString::new(message.replace('\0', " ")) else { return };
    // SAFETY: the format takes one string, which is given and outlives the call; the function does
    // not look at the context.
    unsafe { __verbs_log(null_mut(), level, c"%s".as_ptr(), message.as_ptr()) };
}
