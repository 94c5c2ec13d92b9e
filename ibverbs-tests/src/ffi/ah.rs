//! Address handles.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;

use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::{Completion, Pd};

/// Where datagrams go.
pub struct Ah {
    raw: NonNull<v::ibv_ah>,
    pd: Rc<Pd>,
}

impl Ah {
    /// Makes one to a GID, from the own one of an index.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(
        pd: &Rc<Pd>,
        gid: [u8; 16],
        gid_index: u8,
        (traffic_class, hop_limit): (u8, u8),
    ) -> Result<Self, Failed> {
        // SAFETY: numbers only; all zero is a valid value.
        let mut attributes: v::ibv_ah_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attributes.is_global = 1;
        attributes.port_num = 1;
        attributes.grh.dgid = v::ibv_gid { raw: gid };
        attributes.grh.sgid_index = gid_index;
        attributes.grh.hop_limit = hop_limit;
        attributes.grh.traffic_class = traffic_class;
        Self::with(pd, attributes)
    }

    /// Makes one of these attributes.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn with(pd: &Rc<Pd>, mut attributes: v::ibv_ah_attr) -> Result<Self, Failed> {
        // SAFETY: the domain lives, and is held by the handle.
        let raw = unsafe { (pd.library().ibv_create_ah)(pd.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_ah"))?;
        Ok(Self { raw, pd: Rc::clone(pd) })
    }

    /// Makes a handle to the sender of a datagram, by its completion and the network header that came before it.
    ///
    /// # Errors
    /// When the library makes nothing of the header, or the device refuses.
    pub fn to_sender_of(
        pd: &Rc<Pd>,
        completion: &Completion,
        header: [u8; 40],
    ) -> Result<Self, Failed> {
        // SAFETY: numbers only; all zero is a valid value.
        let mut wc: v::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        wc.src_qp = completion.source_qpn;
        wc.wc_flags = if completion.has_header { v::IBV_WC_GRH } else { 0 };
        // SAFETY: both are 40 bytes, of which any are valid as either.
        let mut header: v::ibv_grh = unsafe { std::mem::transmute(header) };
        let create = pd.library().ibv_create_ah_from_wc;
        // SAFETY: the domain lives, and is held by the handle; the rest is read during the call.
        let raw = unsafe { create(pd.raw(), &raw mut wc, &raw mut header, 1) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_ah_from_wc"))?;
        Ok(Self { raw, pd: Rc::clone(pd) })
    }

    pub(super) fn raw(&self) -> *mut v::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: made by us.
        let result = unsafe { (self.pd.library().ibv_destroy_ah)(self.raw()) };
        assert_eq!(result, 0, "ibv_destroy_ah");
    }
}
