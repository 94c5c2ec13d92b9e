//! Shared receive queues of XRC domains, and QPs that send to these.

use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::{Cq, Pd};
use super::qp::{Qp, Send, work_request};
use super::recv::sges_of;
use super::srq::Srq;
use super::xrcd::{Domain, operation};

impl Srq {
    /// Makes one of a domain, of so many requests of one element at least, whose receives complete at `cq`.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn in_domain(
        pd: &Rc<Pd>,
        (domain, cq): (&Rc<Domain>, &Rc<Cq>),
        max_wr: u32,
    ) -> Result<Rc<Self>, Failed> {
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut attributes: v::ibv_srq_init_attr_ex = unsafe { zeroed() };
        attributes.attr = v::ibv_srq_attr { max_wr, max_sge: 1, srq_limit: 0 };
        attributes.comp_mask = v::IBV_SRQ_INIT_ATTR_TYPE
            | v::IBV_SRQ_INIT_ATTR_PD
            | v::IBV_SRQ_INIT_ATTR_XRCD
            | v::IBV_SRQ_INIT_ATTR_CQ;
        attributes.srq_type = v::IBV_SRQT_XRC;
        attributes.pd = pd.raw();
        attributes.xrcd = domain.raw.as_ptr();
        attributes.cq = cq.raw();
        let create = operation!(pd.context(), create_srq_ex);
        // SAFETY: domains and queue live, and are held by the queue.
        let raw = unsafe { create(pd.context().raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_srq_ex"))?;
        let place = (Rc::clone(domain), Rc::clone(cq));
        Ok(Rc::new(Self::made(raw, attributes.attr, Some(place), pd)))
    }

    /// The number by which peers name it.
    ///
    /// # Errors
    /// When it has none.
    pub fn number(&self) -> Result<u32, Failed> {
        let mut number = 0;
        let get = operation!(self.pd().context(), get_srq_num);
        // SAFETY: the queue lives.
        let result = unsafe { get(self.raw(), &raw mut number) };
        Failed::check("ibv_get_srq_num", result).map(|()| number)
    }
}

impl Qp {
    /// Makes one that sends to the shared receive queues of a domain.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn initiator(
        pd: &Rc<Pd>,
        cq: &Rc<Cq>,
        capabilities: v::ibv_qp_cap,
    ) -> Result<Self, Failed> {
        Self::with(pd, [cq, cq], None, (v::IBV_QPT_XRC_SEND, capabilities))
    }

    /// Makes one that receives for the shared receive queues of a domain.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn target(pd: &Rc<Pd>, domain: &Rc<Domain>) -> Result<Self, Failed> {
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut attributes: v::ibv_qp_init_attr_ex = unsafe { zeroed() };
        attributes.qp_type = v::IBV_QPT_XRC_RECV;
        attributes.comp_mask = v::IBV_QP_INIT_ATTR_XRCD;
        attributes.xrcd = domain.raw.as_ptr();
        let create = operation!(pd.context(), create_qp_ex);
        // SAFETY: the domain lives, and is held by the QP.
        let raw = unsafe { create(pd.context().raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_qp_ex"))?;
        Ok(Self::of_domain(raw, domain, pd))
    }

    /// Opens a target that another process has made.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn opened(pd: &Rc<Pd>, domain: &Rc<Domain>, qp_num: u32) -> Result<Self, Failed> {
        let mut attributes = v::ibv_qp_open_attr {
            comp_mask: v::IBV_QP_OPEN_ATTR_NUM
                | v::IBV_QP_OPEN_ATTR_XRCD
                | v::IBV_QP_OPEN_ATTR_TYPE,
            qp_num,
            xrcd: domain.raw.as_ptr(),
            qp_context: null_mut(),
            qp_type: v::IBV_QPT_XRC_RECV,
        };
        let open = operation!(pd.context(), open_qp);
        // SAFETY: the domain lives, and is held by the QP.
        let raw = unsafe { open(pd.context().raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_open_qp"))?;
        Ok(Self::of_domain(raw, domain, pd))
    }

    /// Posts a send work request for a shared receive queue.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_to(&self, remote_srqn: u32, request: &Send) -> Result<(), Failed> {
        let mut sges = sges_of(&request.pieces);
        let mut work = work_request(request, &mut sges);
        work.qp_type.xrc = v::ibv_send_wr__bindgen_ty_3__bindgen_ty_1 { remote_srqn };
        let post = self.operations().post_send.expect("every provider sends");
        let mut bad = null_mut();
        // SAFETY: as in `post_send`.
        let result = unsafe { post(self.raw(), &raw mut work, &raw mut bad) };
        Failed::check("ibv_post_send", result)
    }
}
