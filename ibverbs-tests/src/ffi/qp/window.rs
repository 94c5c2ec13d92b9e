//! Memory windows of type 2, and SENDs that take their keys back.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;

use verbs_sys::current::verbs as v;

use super::super::Failed;
use super::super::region::Region;
use super::{Qp, Send, sges_of, work_request};

/// A memory window on a region.
pub struct Window {
    raw: NonNull<v::ibv_mw>,
    region: Rc<Region>,
}

impl Window {
    /// Makes one that is bound to nothing yet.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(region: &Rc<Region>) -> Result<Self, Failed> {
        let pd = region.pd();
        // SAFETY: the context is open as long as the domain lives; its operations never change.
        let operations = &unsafe { &*pd.context().raw() }.ops;
        let none = Failed { call: "ibv_alloc_mw", errno: libc::EOPNOTSUPP };
        let make = operations.alloc_mw.ok_or(none)?;
        // SAFETY: the domain lives, and is held by the region.
        let raw = unsafe { make(pd.raw(), v::IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_alloc_mw"))?;
        Ok(Self { raw, region: Rc::clone(region) })
    }

    /// The key that it was made or last bound with. The next binding may change its lowest byte.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window lives.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the context is open as long as the region lives.
        let operations = &unsafe { &*self.region.pd().context().raw() }.ops;
        let end = operations.dealloc_mw.expect("who can make can end");
        // SAFETY: made by us.
        assert_eq!(unsafe { end(self.raw.as_ptr()) }, 0, "ibv_dealloc_mw");
    }
}

impl Qp {
    /// Posts that a window be bound to a part of its region, with these rights and this key.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_bind(
        &self,
        wr_id: u64,
        (window, rkey): (&Window, u32),
        (offset, length): (usize, usize),
        rights: v::ibv_access_flags,
    ) -> Result<(), Failed> {
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut work: v::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        work.wr_id = wr_id;
        work.send_flags = v::IBV_SEND_SIGNALED;
        work.opcode = v::IBV_WR_BIND_MW;
        work.__bindgen_anon_2.bind_mw = v::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw: window.raw.as_ptr(),
            rkey,
            bind_info: v::ibv_mw_bind_info {
                mr: window.region.raw(),
                addr: window.region.address() + offset as u64,
                length: length as u64,
                mw_access_flags: rights,
            },
        };
        self.post_one(&mut work)?;
        // As the program that binds a window of type 2 has to: the next binding names it by this one.
        // SAFETY: the window lives, and nobody else has it.
        unsafe { (*window.raw.as_ptr()).rkey = rkey };
        Ok(())
    }

    /// Posts that a window's key be taken back.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_invalidate(&self, wr_id: u64, rkey: u32) -> Result<(), Failed> {
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut work: v::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        (work.wr_id, work.send_flags) = (wr_id, v::IBV_SEND_SIGNALED);
        work.opcode = v::IBV_WR_LOCAL_INV;
        work.__bindgen_anon_1 = v::ibv_send_wr__bindgen_ty_1 { invalidate_rkey: rkey };
        self.post_one(&mut work)
    }

    /// Posts a SEND that takes a key of the other side's back.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_invalidating(&self, request: &Send, rkey: u32) -> Result<(), Failed> {
        let mut sges = sges_of(&request.pieces);
        let mut work = work_request(request, &mut sges);
        work.opcode = v::IBV_WR_SEND_WITH_INV;
        work.__bindgen_anon_1 = v::ibv_send_wr__bindgen_ty_1 { invalidate_rkey: rkey };
        self.post_one(&mut work)
    }
}
