//! C structures as values: all-zero ones, and the unions among them.

use crate::abi::verbs::{
    ibv_ah_attr, ibv_cq_ex, ibv_device_attr_ex, ibv_gid, ibv_mr, ibv_port_attr, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_ex, ibv_srq,
};

/// A C structure of which all bits zero is a value.
///
/// # Safety
/// It is made of integers, raw pointers, optional functions, arrays and unions of such, and of C's locks,
/// only.
pub(crate) unsafe trait Zeroable: Sized {}

// SAFETY: integers only.
unsafe impl Zeroable for ibv_qp_cap {}
// SAFETY: integers, and unions of bytes and integers, only.
unsafe impl Zeroable for ibv_qp_attr {}
// SAFETY: integers, and a union of bytes and integers, only.
unsafe impl Zeroable for ibv_ah_attr {}
// SAFETY: integers, raw pointers, optional functions and C's locks only.
unsafe impl Zeroable for ibv_cq_ex {}
// SAFETY: integers, raw pointers, optional functions and C's locks only.
unsafe impl Zeroable for ibv_qp_ex {}
// SAFETY: integers, raw pointers and C's locks only.
unsafe impl Zeroable for ibv_srq {}
// SAFETY: integers and raw pointers only.
unsafe impl Zeroable for ibv_mr {}
// SAFETY: integers only.
unsafe impl Zeroable for ibv_port_attr {}
// SAFETY: integers and arrays of them only.
unsafe impl Zeroable for ibv_device_attr_ex {}

/// The all-zero value of a C structure.
pub(crate) fn zeroed<T: Zeroable>() -> T {
    // SAFETY: `Zeroable` says that all bits zero is a value of the type.
    unsafe { std::mem::zeroed() }
}

/// The bytes of a GID, in network order.
pub(crate) fn gid_bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: both variants are 16 initialised bytes, and every byte is a value.
    unsafe { gid.raw }
}

/// Takes a descriptor that a system call has just made.
#[cfg(test)]
pub(crate) fn owned(fd: std::os::fd::RawFd) -> std::os::fd::OwnedFd {
    // SAFETY: the tests that call this own the descriptor, and hand it over.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

/// The immediate data of a completion.
#[cfg(test)]
pub(crate) fn immediate(wc: &crate::abi::verbs::ibv_wc) -> u32 {
    // SAFETY: both variants are one initialised u32.
    unsafe { wc.__bindgen_anon_1.imm_data }
}
