//! Address handles.

use std::ffi::c_int;

use crate::abi::verbs::{ibv_ah, ibv_ah_attr, ibv_pd};
use shim_abi::AddressVector;

use super::opened::opened;
use super::pd::Use;
use super::types::gid_bytes;
use super::{errno, object};
use crate::attributes::check_static_rate;
use crate::error::{Result, invalid};
use crate::limits::PORT;

/// An address handle.
#[repr(C)]
struct AhObject {
    verbs: ibv_ah,
    /// The card's number for it.
    card_ah: u32,
    _pd: Use,
}

/// The card's number for an address handle; `None` where there is none.
///
/// # Safety
/// The handle is one of this provider that was not destroyed, or null.
#[inline(always)]
pub(super) unsafe fn number(ah: *mut ibv_ah) -> Option<u32> {
    // SAFETY: as the caller promises; an `AhObject` begins with its `ibv_ah` and never changes.
    unsafe { ah.cast::<AhObject>().as_ref() }.map(|ah| ah.card_ah)
}

pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the program passes a domain of this provider and its attributes.
    object("ibv_create_ah", unsafe { create(pd, &*attr) })
}

/// # Safety
/// The domain is one of this provider.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: as the caller promises; a handle's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let device = unsafe { opened(context) };
    let address = address(attr)?;
    check_static_rate(address.static_rate, device.limits())?;
    let (handle, card_ah) = device.create_ah(using.pdn(), address)?;
    let verbs = ibv_ah { context, pd, handle };
    Ok(Box::into_raw(Box::new(AhObject { verbs, card_ah, _pd: using })).cast())
}

/// The destination of datagrams: on RoCE a global route, without regard to other attributes.
fn address(attr: &ibv_ah_attr) -> Result<AddressVector> {
    if attr.is_global == 0 {
        return Err(invalid!(
            "on RoCE an address handle needs a global route: set is_global and grh"
        ));
    }
    if u32::from(attr.port_num) != PORT {
        return Err(invalid!("port {} was asked for; the device has port {PORT}", attr.port_num));
    }
    let route = &attr.grh;
    Ok(AddressVector {
        sgid_index: route.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        sl: attr.sl,
        static_rate: attr.static_rate,
        flow_label: route.flow_label & 0xf_ffff,
        dgid: gid_bytes(&route.dgid),
    })
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the program passes a handle of this provider that it frees by this call.
    errno("ibv_destroy_ah", unsafe { destroy(ah) })
}

/// # Safety
/// The handle is one of this provider, and nobody uses it after a success.
unsafe fn destroy(ah: *mut ibv_ah) -> Result<()> {
    // SAFETY: as the caller promises; its context is open as long as the handle lives.
    unsafe { opened((*ah).context).destroy_ah((*ah).handle)? };
    // SAFETY: made by `create`, and freed here once.
    drop(unsafe { Box::from_raw(ah.cast::<AhObject>()) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::types::zeroed;

    fn attributes() -> ibv_ah_attr {
        let mut attr: ibv_ah_attr = zeroed();
        (attr.is_global, attr.port_num, attr.sl, attr.static_rate) = (1, 1, 3, 7);
        (attr.grh.sgid_index, attr.grh.hop_limit, attr.grh.traffic_class) = (1, 64, 0x68);
        attr.grh.flow_label = 0xfff0_1234;
        attr.grh.dgid.raw = [7; 16];
        attr
    }

    #[test]
    fn a_route_arrives_at_the_card_as_the_program_wrote_it() {
        let wanted = AddressVector {
            sgid_index: 1,
            hop_limit: 64,
            traffic_class: 0x68,
            sl: 3,
            static_rate: 7,
            flow_label: 0x1234,
            dgid: [7; 16],
        };
        assert_eq!(address(&attributes()).unwrap(), wanted);
    }

    #[test]
    fn an_address_without_a_route_or_of_another_port_is_refused_with_einval() {
        for wrong in [
            ibv_ah_attr { is_global: 0, ..attributes() },
            ibv_ah_attr { port_num: 0, ..attributes() },
            ibv_ah_attr { port_num: 2, ..attributes() },
        ] {
            assert_eq!(address(&wrong).unwrap_err().errno(), libc::EINVAL);
        }
    }

    #[test]
    fn no_address_handle_has_no_number() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { number(std::ptr::null_mut()) }, None);
    }
}
