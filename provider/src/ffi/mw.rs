//! Memory windows.

use std::ffi::c_int;

use crate::abi::verbs::{self as ibv, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_pd};
use fpga_regs::engine::wqe::Bind;
use nix::errno::Errno;

use super::opened::opened;
use super::pd::{Use, are_one};
use super::{errno, object};
use crate::error::{Error, Result, invalid};
use crate::wr::KeyChange;

/// A memory window.
#[repr(C)]
struct MwObject {
    verbs: ibv_mw,
    _pd: Use,
}

/// The bits of a key that its owner chooses.
const VARIANT: u32 = 0xff;

/// The accesses that a window can give a peer, and the counting of its addresses.
const GRANTED: u32 = ibv::IBV_ACCESS_REMOTE_WRITE
    | ibv::IBV_ACCESS_REMOTE_READ
    | ibv::IBV_ACCESS_REMOTE_ATOMIC
    | ibv::IBV_ACCESS_ZERO_BASED;
/// Rights of regions that programs ask for here too: they give a peer nothing.
const IDLE: u32 =
    ibv::IBV_ACCESS_LOCAL_WRITE | ibv::IBV_ACCESS_MW_BIND | ibv::IBV_ACCESS_RELAXED_ORDERING;

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the program passes a domain of this provider.
    object("ibv_alloc_mw", unsafe { alloc(pd, kind) })
}

/// # Safety
/// The domain is one of this provider.
unsafe fn alloc(pd: *mut ibv_pd, kind: ibv_mw_type) -> Result<*mut ibv_mw> {
    let type_2 = match kind {
        ibv::IBV_MW_TYPE_1 => false,
        ibv::IBV_MW_TYPE_2 => true,
        _ => return Err(invalid!("memory windows are of type 1 or 2, not {kind}")),
    };
    // SAFETY: as the caller promises; a window's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let (handle, rkey) = unsafe { opened(context) }.alloc_mw(using.pdn(), type_2)?;
    let verbs = ibv_mw { context, pd, rkey, handle, type_: kind };
    Ok(Box::into_raw(Box::new(MwObject { verbs, _pd: using })).cast())
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the program passes a window of this provider that it frees by this call.
    errno("ibv_dealloc_mw", unsafe { dealloc(mw) })
}

/// # Safety
/// The window is one of this provider, and nobody uses it after a success.
unsafe fn dealloc(mw: *mut ibv_mw) -> Result<()> {
    // SAFETY: as the caller promises; its context is open as long as the window lives.
    unsafe { opened((*mw).context).dealloc_mw((*mw).handle)? };
    // SAFETY: made by `alloc`, and freed here once.
    drop(unsafe { Box::from_raw(mw.cast::<MwObject>()) });
    Ok(())
}

/// The binding of a window of type 1, with its next key.
///
/// # Safety
/// The window is one of this provider, the region one of libibverbs' or null.
pub(super) unsafe fn binding_type_1(
    mw: &ibv_mw,
    info: &ibv_mw_bind_info,
) -> Result<(u32, KeyChange)> {
    // SAFETY: as the caller promises; the domains of both live as long as they do.
    if unsafe { info.mr.as_ref().is_some_and(|mr| !are_one(mw.pd, mr.pd)) } {
        return Err(not_bound("the region is in another domain than the window")(libc::EPERM));
    }
    if info.mw_access_flags & ibv::IBV_ACCESS_ZERO_BASED != 0 {
        return Err(invalid!("windows of type 1 have no addresses from 0 on; type 2 has them"));
    }
    let rkey = (mw.rkey & !VARIANT) | (mw.rkey.wrapping_add(1) & VARIANT);
    // SAFETY: as the caller promises.
    let change = unsafe { binding(rkey, info) };
    let change = change.map_err(not_bound("there is no region, or windows have no such rights"))?;
    Ok((rkey, change))
}

/// Makes the error of a window that is not bound.
pub(super) fn not_bound(why: &'static str) -> impl FnOnce(i32) -> Error {
    move |errno| Error::NotBound { why, errno: Errno::from_raw(errno) }
}

/// The binding of a window of type 2 by a work request, with a key that the program chose.
///
/// # Safety
/// The window is one of this provider, the region one of libibverbs' or null.
pub(super) unsafe fn binding_type_2(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> std::result::Result<KeyChange, i32> {
    // SAFETY: as the caller promises.
    let mw = unsafe { mw.as_ref() }.ok_or(libc::EINVAL)?;
    if mw.type_ != ibv::IBV_MW_TYPE_2 || (mw.rkey ^ rkey) & !VARIANT != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    unsafe { binding(rkey, info) }
}

/// # Safety
/// The region is one of libibverbs' or null.
unsafe fn binding(rkey: u32, info: &ibv_mw_bind_info) -> std::result::Result<KeyChange, i32> {
    let ibv_mw_bind_info { mr, addr, length, mw_access_flags: access } = *info;
    // SAFETY: as the caller promises.
    let lkey = match unsafe { mr.as_ref() } {
        Some(mr) => mr.lkey,
        None if length == 0 => 0,
        None => return Err(libc::EINVAL),
    };
    if access & !(GRANTED | IDLE) != 0 {
        return Err(libc::EINVAL);
    }
    let bind = Bind { length, lkey, access: access & GRANTED };
    Ok(KeyChange::Bind { rkey, address: addr, bind })
}
