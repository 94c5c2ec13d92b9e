//! Multicast groups. The LID that is given beside the group is InfiniBand's, and ignored here.

use std::ffi::c_int;

use super::opened::opened;
use super::{errno, qp};
use crate::abi::verbs::{self as ibv, ibv_gid, ibv_qp};
use crate::error::{Result, invalid};

pub(super) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program passes a QP of this provider, and a group.
    errno("ibv_attach_mcast", unsafe { set_member(qp, &*gid, true) })
}

pub(super) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the program passes a QP of this provider, and a group.
    errno("ibv_detach_mcast", unsafe { set_member(qp, &*gid, false) })
}

/// # Safety
/// The QP is one of this provider that was not destroyed.
unsafe fn set_member(qp: *mut ibv_qp, gid: &ibv_gid, member: bool) -> Result<()> {
    // SAFETY: every byte of the union is initialized, whichever of its members was written.
    let group = unsafe { gid.raw };
    // SAFETY: as the caller promises.
    let (kind, context) = unsafe { ((*qp).qp_type, (*qp).context) };
    if kind != ibv::IBV_QPT_UD {
        return Err(invalid!("a QP of type {kind} cannot be in a multicast group, but one of UD"));
    }
    // SAFETY: as the caller promises.
    let qpn = unsafe { qp::own(qp) }.queues.qpn();
    // SAFETY: a QP's context is open as long as the QP lives.
    let context = unsafe { opened(context) };
    match member {
        true if !is_group(group) => {
            let group = std::net::Ipv6Addr::from(group);
            Err(invalid!("{group} is no multicast group: ff00::/8, or 224.0.0.0/4 mapped"))
        }
        true => context.attach_multicast(qpn, group),
        false => context.detach_multicast(qpn, group),
    }
}

/// Whether a GID is that of a multicast group, of IPv6 or of IPv4.
fn is_group(gid: [u8; 16]) -> bool {
    let address = std::net::Ipv6Addr::from(gid);
    address.is_multicast() || address.to_ipv4_mapped().is_some_and(|it| it.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_both_kinds() {
        let is_group = |text: &str| is_group(text.parse::<std::net::Ipv6Addr>().unwrap().octets());
        assert!(["ff0e::1", "ff02::1:ff00:1", "::ffff:239.1.2.3"].into_iter().all(is_group));
        assert!(!["::", "fe80::1", "::ffff:10.0.0.1", "::224.0.0.1"].into_iter().any(is_group));
    }
}
