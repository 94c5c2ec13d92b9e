//! Device memory.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use crate::abi::verbs::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};

use super::opened::opened;
use super::{errno, mr, object};
use crate::context::DeviceMemory;
use crate::error::{Result, invalid};

/// A part of the card's own memory.
#[repr(C)]
struct DmObject {
    verbs: ibv_dm,
    memory: DeviceMemory,
}

pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: libibverbs passes a context of this provider, and the program its attributes.
    object("ibv_alloc_dm", unsafe { alloc(context, &*attr) })
}

/// # Safety
/// The context is one of this provider.
unsafe fn alloc(context: *mut ibv_context, attr: &ibv_alloc_dm_attr) -> Result<*mut ibv_dm> {
    if attr.comp_mask != 0 {
        return Err(invalid!("the attribute mask {:#x} has unknown bits", attr.comp_mask));
    }
    // SAFETY: as the caller promises.
    let memory = unsafe { opened(context) }.alloc_dm(attr.length, attr.log_align_req)?;
    let verbs = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 0,
        handle: memory.number(),
    };
    Ok(Box::into_raw(Box::new(DmObject { verbs, memory })).cast())
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let own = dm.cast::<DmObject>();
    // SAFETY: the program passes memory of this provider, whose context is open.
    let done = unsafe { opened((*dm).context).free_dm(&(*own).memory) };
    if done.is_ok() {
        // SAFETY: made by `alloc`, and freed here once.
        drop(unsafe { Box::from_raw(own) });
    }
    errno("ibv_free_dm", done)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program passes memory of this provider, whose context is open.
    let (device, memory) = unsafe { (opened((*dm).context), &(*dm.cast::<DmObject>()).memory) };
    let done = memory.check(offset, length).and_then(|()| {
        if length == 0 {
            return Ok(());
        }
        // SAFETY: the program passes so many bytes that can be read, and writes none of them meanwhile.
        let from = unsafe { slice::from_raw_parts(from.cast(), length) };
        device.copy_to_dm(memory, offset, from)
    });
    errno("ibv_memcpy_to_dm", done)
}

unsafe extern "C" fn memcpy_from_dm(
    into: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: as in `memcpy_to_dm`.
    let (device, memory) = unsafe { (opened((*dm).context), &(*dm.cast::<DmObject>()).memory) };
    let done = memory.check(offset, length).and_then(|()| {
        if length == 0 {
            return Ok(());
        }
        // SAFETY: the program passes room for so many bytes, which no other thread uses meanwhile.
        let into = unsafe { slice::from_raw_parts_mut(into.cast(), length) };
        device.copy_from_dm(memory, offset, into)
    });
    errno("ibv_memcpy_from_dm", done)
}

pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the program passes memory of this provider.
    let memory = unsafe { &(*dm.cast::<DmObject>()).memory };
    // SAFETY: the program passes a domain of this provider, which outlives the region.
    object("ibv_reg_dm_mr", unsafe { mr::register_dm(pd, memory, (offset, length), access) })
}
