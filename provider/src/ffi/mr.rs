//! Memory regions.

use std::ffi::{c_int, c_void};

use nix::errno::Errno;
use verbs_sys::v44::verbs::{ibv_mr, ibv_pd};
use verbs_sys::v44::{IBV_MR_TYPE_MR, verbs_mr};

use super::context::opened;
use super::pd::Use;
use super::types::zeroed;
use super::{errno, object};
use crate::error::{Error, Result};
use crate::mr::Registration;

/// A memory region.
#[repr(C)]
struct Mr {
    verbs: verbs_mr,
    number: u32,
    _pd: Use,
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program passes a domain of this provider.
    object("ibv_reg_mr", unsafe { register(pd, address as u64, length as u64, hca_va, access) })
}

/// # Safety
/// The domain is one of this provider and lives.
unsafe fn register(
    pd: *mut ibv_pd,
    address: u64,
    length: u64,
    hca_va: u64,
    access: c_int,
) -> Result<*mut ibv_mr> {
    let registration = Registration::new(address, length, hca_va, access as u32)?;
    // SAFETY: as the caller promises; a region's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let device = unsafe { opened(context) };
    let (number, lkey, rkey) =
        device.reg_mr(using.pdn(), &registration, || populate(&registration))?;
    let ibv_mr = ibv_mr { context, pd, handle: number, lkey, rkey, ..zeroed() };
    let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_MR, access };
    Ok(Box::into_raw(Box::new(Mr { verbs, number, _pd: using })).cast())
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    let region = mr.cast::<Mr>();
    // SAFETY: the program passes a region of this provider, whose context is open.
    let (number, device) = unsafe { ((*region).number, opened((*region).verbs.ibv_mr.context)) };
    let done = device.dereg_mr(number);
    if done.is_ok() {
        // SAFETY: made by `register`, and freed here once.
        drop(unsafe { Box::from_raw(region) });
    }
    errno("ibv_dereg_mr", done)
}

/// Makes the pages of a region be there and usable, as pinning them would.
///
/// Memory that is not mapped, or may not be written where the card would, is EFAULT. Kernels before
/// 5.14 cannot be asked; there, bad memory shows as a failed work request.
fn populate(registration: &Registration) -> Result<()> {
    let (advice, access) = if registration.is_written() {
        (libc::MADV_POPULATE_WRITE, "writing")
    } else {
        (libc::MADV_POPULATE_READ, "reading")
    };
    let page = hostmem::PAGE_BYTES as u64;
    let Registration { address, length, .. } = *registration;
    let start = address & !page.wrapping_sub(1);
    let bytes = address.wrapping_sub(start).saturating_add(length).next_multiple_of(page);
    loop {
        match advise(start, bytes, advice) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            // Nothing to advise is fine with a kernel that knows the advice.
            Err(Errno::EINVAL) if advise(start, 0, advice).is_err() => return Ok(()),
            Err(errno) => return Err(Error::BadMemory { address, length, access, errno }),
        }
    }
}

fn advise(start: u64, bytes: u64, advice: c_int) -> Result<(), Errno> {
    // SAFETY: populating changes no contents; the kernel checks the range.
    let result = unsafe { libc::madvise(start as *mut c_void, bytes as usize, advice) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(protection: c_int) -> u64 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 8192, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }

    fn try_populate(address: u64, length: u64, access: u32) -> Option<i32> {
        let registration = Registration::new(address, length, address, access).unwrap();
        populate(&registration).err().map(|error| error.errno())
    }

    #[test]
    fn memory_is_there_or_it_is_a_bad_address() {
        use verbs_sys::v44::verbs::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ};
        let (writable, readable) = (map(libc::PROT_READ | libc::PROT_WRITE), map(libc::PROT_READ));
        assert_eq!(try_populate(writable + 100, 8000, IBV_ACCESS_LOCAL_WRITE), None);
        assert_eq!(try_populate(readable, 8192, IBV_ACCESS_REMOTE_READ), None);
        assert_eq!(try_populate(readable, 1, IBV_ACCESS_LOCAL_WRITE), Some(libc::EFAULT));
        let closed = map(libc::PROT_NONE);
        assert_eq!(try_populate(closed, 1, IBV_ACCESS_REMOTE_READ), Some(libc::EFAULT));
        assert_eq!(try_populate(16, 8, IBV_ACCESS_REMOTE_READ), Some(libc::EFAULT));
    }
}
