//! Shared receive queues.

use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::{Cq, Pd};
use super::recv::{Recv, receive_request, sges_of};
use super::xrcd::Domain;

/// A shared receive queue.
pub struct Srq {
    raw: NonNull<v::ibv_srq>,
    /// The attributes that the device granted.
    pub granted: v::ibv_srq_attr,
    _place: Option<(Rc<Domain>, Rc<Cq>)>,
    pd: Rc<Pd>,
}

impl Srq {
    /// Makes one of so many requests and elements at least.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(pd: &Rc<Pd>, max_wr: u32, max_sge: u32) -> Result<Rc<Self>, Failed> {
        let attr = v::ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut attributes = v::ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain lives, and is held by the queue.
        let raw = unsafe { (pd.library().ibv_create_srq)(pd.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_srq"))?;
        Ok(Rc::new(Self::made(raw, attributes.attr, None, pd)))
    }

    pub(super) fn made(
        raw: NonNull<v::ibv_srq>,
        granted: v::ibv_srq_attr,
        place: Option<(Rc<Domain>, Rc<Cq>)>,
        pd: &Rc<Pd>,
    ) -> Self {
        Self { raw, granted, _place: place, pd: Rc::clone(pd) }
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Rc<Pd> {
        &self.pd
    }

    pub(super) fn raw(&self) -> *mut v::ibv_srq {
        self.raw.as_ptr()
    }

    /// Its address, by which an asynchronous event names it.
    pub fn element(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Changes the attributes that the mask names.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn modify(
        &self,
        mask: v::ibv_srq_attr_mask,
        mut attributes: v::ibv_srq_attr,
    ) -> Result<(), Failed> {
        let modify = self.pd.library().ibv_modify_srq;
        // SAFETY: the queue lives, the attributes are whole.
        let result = unsafe { modify(self.raw(), &raw mut attributes, mask as i32) };
        Failed::check("ibv_modify_srq", result)
    }

    /// Its attributes.
    ///
    /// # Errors
    /// When the device does not say.
    pub fn query(&self) -> Result<v::ibv_srq_attr, Failed> {
        let mut attributes = v::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        let query = self.pd.library().ibv_query_srq;
        // SAFETY: the queue lives, the place has the size of the attributes.
        let result = unsafe { query(self.raw(), &raw mut attributes) };
        Failed::check("ibv_query_srq", result).map(|()| attributes)
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post(&self, request: &Recv) -> Result<(), Failed> {
        let mut sges = sges_of(&request.pieces);
        let mut work = receive_request(request, &mut sges);
        // SAFETY: the context is open as long as the domain lives; its operations never change.
        let operations = &unsafe { &*self.pd.context().raw() }.ops;
        let post = operations.post_srq_recv.expect("every provider has the function");
        let mut bad = null_mut();
        // SAFETY: the queue lives; the card goes by the keys, which end with the memory.
        let result = unsafe { post(self.raw(), &raw mut work, &raw mut bad) };
        Failed::check("ibv_post_srq_recv", result)
    }

    /// Tries to destroy it, which fails while QPs use it.
    ///
    /// # Panics
    /// When it does not fail.
    pub fn refuses_to_go(&self) -> Failed {
        // SAFETY: this type made it; the caller has QPs that use it, and if it goes all the same this program ends.
        let result = unsafe { (self.pd.library().ibv_destroy_srq)(self.raw()) };
        Failed::check("ibv_destroy_srq", result).expect_err("a queue that is used stays")
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: made by us.
        let result = unsafe { (self.pd.library().ibv_destroy_srq)(self.raw()) };
        assert_eq!(result, 0, "ibv_destroy_srq");
    }
}
