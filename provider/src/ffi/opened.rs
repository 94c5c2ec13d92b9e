//! Opened devices: the state behind a pointer to a context.

use std::mem::{MaybeUninit, offset_of};
use std::sync::Arc;

use crate::abi::verbs::{ibv_context, verbs_context};
use crate::context::Context;

unsafe extern "C" {
    pub(super) fn verbs_uninit_context(context: *mut verbs_context);
}

/// An address inside libibverbs.
pub(super) fn core_address() -> usize {
    verbs_uninit_context as *const () as usize
}

/// An open device: libibverbs' part, then ours.
#[repr(C)]
pub(super) struct OpenDevice {
    pub(super) verbs: verbs_context,
    /// Written before the program can use the context.
    pub(super) context: MaybeUninit<Arc<Context>>,
}

/// The structure around a context.
pub(super) fn around(context: *mut ibv_context) -> *mut OpenDevice {
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// The device behind a context.
///
/// # Safety
/// The context is one of this provider that was not closed.
pub(super) unsafe fn opened<'a>(context: *mut ibv_context) -> &'a Arc<Context> {
    // SAFETY: as the caller promises; `open` wrote our part, which never changes, before it gave
    // the context out.
    unsafe { (*around(context)).context.assume_init_ref() }
}
