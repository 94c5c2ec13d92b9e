//! Devices: the ones that we claim, and their form for libibverbs.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use verbs_sys::ioctl::IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;

use crate::abi::verbs::{self as ibv, VSYSFS_READ_NODE_GUID, ibv_device};
use crate::abi::{verbs_device, verbs_sysfs_dev};
use crate::lives;
use crate::process::ProcessLock;

/// A device: libibverbs' part, then ours.
#[repr(C)]
struct Device {
    verbs: verbs_device,
    card: u32,
}

/// Devices that libibverbs lists.
pub(crate) static LISTED: ProcessLock<Vec<Listed>> = ProcessLock::new(Vec::new());

/// One of them.
pub(crate) struct Listed {
    device: *mut Device,
    card: u32,
    /// How often this process had lost the card when the device was made.
    lost: u16,
}

// SAFETY: only threads that hold libibverbs' lock of its list, which has the device, follow the pointer.
unsafe impl Send for Listed {}

/// Makes libibverbs, which is about to list devices, take those for new ones that this process has lost since they were
/// made: it asks for new ones in their place, and gives them up once no program has them open.
///
/// # Safety
/// To be called by libibverbs, while it holds the lock of its list.
pub(super) unsafe fn give_up_lost() {
    let listed: Vec<_> = LISTED.with(|all| all.iter().map(|it| (it.card, it.lost)).collect());
    let is_lost = |(card, lost): &(u32, u16)| lives::lost(*card) != *lost;
    let lost: Vec<_> = listed.into_iter().filter(is_lost).collect();
    LISTED.with(|all| {
        all.retain(|it| {
            if !lost.contains(&(it.card, it.lost)) {
                return true;
            }
            // SAFETY: it is in libibverbs' list until that is made anew behind this, and so it is not freed.
            let sysfs = unsafe { (*it.device).verbs.sysfs };
            // SAFETY: so is libibverbs' record of it, which only threads that hold that lock read, as the caller
            // does; it sets the pointer when the device is made, where it was null.
            if let Some(found) = unsafe { sysfs.as_mut() } {
                // No file has that time, and a device that netlink reports has an index.
                (found.time_created.tv_sec, found.time_created.tv_nsec) = (-1, -1);
                found.ibdev_idx = -1;
            }
            false
        });
    });
}

/// The card number in a device name, `balboaN`.
fn card_of(name: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(b"balboa")?;
    // A number has one spelling: no sign, no leading zero.
    if digits.is_empty() || (digits.len() > 1 && digits.first() == Some(&b'0')) {
        return None;
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The bytes of a C string in a fixed array, up to its end.
fn c_bytes(array: &[c_char]) -> Vec<u8> {
    let bytes = array.iter().map(|c| u8::from_ne_bytes(c.to_ne_bytes()));
    bytes.take_while(|&byte| byte != 0).collect()
}

/// Claims the devices named `balboaN`.
pub(super) unsafe extern "C" fn match_device(found: *mut verbs_sysfs_dev) -> bool {
    // SAFETY: libibverbs passes the device it has found, which no other thread uses meanwhile.
    let found = unsafe { &*found };
    card_of(&c_bytes(&found.ibdev_name)).is_some()
}

/// Makes the device for one that was claimed.
pub(super) unsafe extern "C" fn alloc_device(found: *mut verbs_sysfs_dev) -> *mut verbs_device {
    // SAFETY: as in `match_device`; the structure is ours to complete.
    let found = unsafe { &mut *found };
    let Some(card) = card_of(&c_bytes(&found.ibdev_name)) else { return null_mut() };
    // A minimal device tree leaves these out.
    if found.node_type == ibv::IBV_NODE_UNKNOWN {
        found.node_type = ibv::IBV_NODE_CA;
    }
    if found.num_ports == 0 {
        found.num_ports = crate::limits::PORT;
    }
    // SAFETY: the structure is made of integers, arrays, raw pointers and optional functions, of
    // which all bits zero is a value.
    let mut device = Box::new(unsafe { std::mem::zeroed::<Device>() });
    device.card = card;
    let lost = lives::lost(card);
    if let Some(guid) = lives::guid_of(card).filter(|_| lost > 0) {
        found.node_guid = guid;
        found.flags |= VSYSFS_READ_NODE_GUID;
    }
    device.verbs.core_support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
    let device = Box::into_raw(device);
    LISTED.with(|all| all.push(Listed { device, card, lost }));
    device.cast()
}

/// Frees a device that is no longer used.
pub(super) unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    LISTED.with(|all| all.retain(|it| it.device != device.cast()));
    // SAFETY: libibverbs passes back, once, the device that `alloc_device` made.
    drop(unsafe { Box::from_raw(device.cast::<Device>()) });
}

/// The card and the name of a device.
///
/// # Safety
/// The device is one `alloc_device` made.
pub(super) unsafe fn identity(device: *const ibv_device) -> (u32, String) {
    // SAFETY: a `verbs_device` begins with the `ibv_device`, and ours with the `verbs_device`.
    let device = unsafe { &*device.cast::<Device>() };
    // SAFETY: libibverbs wrote the name, zero-terminated, before a program could open the device.
    let name = unsafe { CStr::from_ptr(device.verbs.device.name.as_ptr()) };
    (device.card, name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_balboa_and_a_number_is_claimed() {
        assert_eq!(card_of(b"balboa0"), Some(0));
        assert_eq!(card_of(b"balboa17"), Some(17));
        for other in [&b"balboa"[..], b"balboa-1", b"balboa01", b"balboa0x", b"mlx5_0", b"balboas0"]
        {
            assert_eq!(card_of(other), None, "{other:?}");
        }
        assert_eq!(card_of(b"balboa99999999999"), None);
    }
}
