//! QPs to which work requests are posted call by call.

use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Result, bail};
use verbs_sys::current::verbs as v;

use super::super::Failed;
use super::super::device::{Cq, Pd};
use super::{Atomic, AtomicOperation, Operation, Qp, Send};

/// How a list of work requests ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    /// The end by `ibv_wr_complete`.
    Complete,
    /// The end by `ibv_wr_abort`.
    Abort,
}

/// The arguments of an extended QP, beside its sizes.
#[derive(Clone, Copy, Debug)]
pub struct QpWishes {
    /// `ibv_qp_init_attr_mask`, without that of the protection domain.
    pub comp_mask: u32,
    /// `ibv_qp_create_send_ops_flags`.
    pub send_ops: u64,
    /// `ibv_qp_create_flags`.
    pub create_flags: u32,
}

impl Default for QpWishes {
    /// All the operations of [`Operation`], and atomics.
    fn default() -> Self {
        let atomics = v::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | v::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        let send_ops = Operation::ALL
            .into_iter()
            .fold(u64::from(atomics), |all, it| all | u64::from(flag(it)));
        let comp_mask = v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        Self { comp_mask, send_ops, create_flags: 0 }
    }
}

fn flag(operation: Operation) -> v::ibv_qp_create_send_ops_flags {
    match operation {
        Operation::Send => v::IBV_QP_EX_WITH_SEND,
        Operation::SendImmediate => v::IBV_QP_EX_WITH_SEND_WITH_IMM,
        Operation::Write => v::IBV_QP_EX_WITH_RDMA_WRITE,
        Operation::WriteImmediate => v::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        Operation::Read => v::IBV_QP_EX_WITH_RDMA_READ,
    }
}

/// Calls a function that builds requests.
macro_rules! call {
    ($qp:ident.$function:ident($($argument:expr),*)) => {
        // SAFETY: the QP lives, and its functions are there for the operations that were asked for;
        // memory that is named is as in `post_send`.
        unsafe { ((*$qp).$function.expect(stringify!($function)))($qp, $($argument),*) }
    };
}

impl Qp {
    /// Makes one whose work requests are posted call by call.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn extended(
        pd: &Rc<Pd>,
        [send_cq, receive_cq]: [&Rc<Cq>; 2],
        capabilities: v::ibv_qp_cap,
        wishes: QpWishes,
    ) -> Result<Self> {
        // SAFETY: the extended context lives as long as the context.
        let create = unsafe { pd.context().extended()?.as_ref() }.create_qp_ex;
        let Some(create) = create else { bail!("there is no ibv_create_qp_ex") };
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut attributes: v::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        attributes.send_cq = send_cq.raw();
        attributes.recv_cq = receive_cq.raw();
        attributes.cap = capabilities;
        attributes.qp_type = v::IBV_QPT_RC;
        attributes.comp_mask = v::IBV_QP_INIT_ATTR_PD | wishes.comp_mask;
        attributes.pd = pd.raw();
        attributes.create_flags = wishes.create_flags;
        attributes.send_ops_flags = wishes.send_ops;
        // SAFETY: domain and queues live, and are held by the QP.
        let raw = unsafe { create(pd.context().raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_qp_ex"))?;
        // SAFETY: the QP lives.
        let extended = NonNull::new(unsafe { (pd.library().ibv_qp_to_qp_ex)(raw.as_ptr()) });
        let cqs = (Rc::clone(send_cq), Rc::clone(receive_cq));
        let mut made = Self::made(raw, attributes.cap, pd);
        (made.extended, made._cqs) = (extended, Some(cqs));
        Ok(made)
    }

    /// Builds a list of send work requests call by call, and posts it or not.
    ///
    /// # Errors
    /// When it is not taken: then nothing of it is.
    pub fn build(&self, requests: &[Send], end: ListEnd) -> Result<(), Failed> {
        self.start(requests);
        self.end(end)
    }

    /// Begins a list of send work requests, which [`Self::end`] ends.
    pub fn start(&self, requests: &[Send]) {
        let qp = self.extended.expect("it was made by ibv_create_qp_ex").as_ptr();
        call!(qp.wr_start());
        for request in requests {
            // SAFETY: the QP lives, and nobody else builds a list.
            unsafe { ((*qp).wr_id, (*qp).wr_flags) = (request.wr_id, request.flags) };
            let ((address, rkey), immediate) = (request.remote, request.immediate.to_be());
            match request.operation {
                Operation::Send => call!(qp.wr_send()),
                Operation::SendImmediate => call!(qp.wr_send_imm(immediate)),
                Operation::Write => call!(qp.wr_rdma_write(rkey, address)),
                Operation::WriteImmediate => call!(qp.wr_rdma_write_imm(rkey, address, immediate)),
                Operation::Read => call!(qp.wr_rdma_read(rkey, address)),
            }
            let sges = super::sges_of(&request.pieces);
            let inline = request.flags & v::IBV_SEND_INLINE != 0;
            let buffer = |sge: &v::ibv_sge| v::ibv_data_buf {
                addr: sge.addr as *mut _,
                length: sge.length as usize,
            };
            match sges.as_slice() {
                [sge] if inline => {
                    let v::ibv_data_buf { addr, length } = buffer(sge);
                    call!(qp.wr_set_inline_data(addr, length));
                }
                all if inline => {
                    let all: Vec<_> = all.iter().map(buffer).collect();
                    call!(qp.wr_set_inline_data_list(all.len(), all.as_ptr()));
                }
                [sge] => call!(qp.wr_set_sge(sge.lkey, sge.addr, sge.length)),
                all => call!(qp.wr_set_sge_list(all.len(), all.as_ptr())),
            }
        }
    }

    /// Ends the list that was begun, and posts it or not.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn end(&self, end: ListEnd) -> Result<(), Failed> {
        let qp = self.extended.expect("it was made by ibv_create_qp_ex").as_ptr();
        if end == ListEnd::Abort {
            call!(qp.wr_abort());
            return Ok(());
        }
        Failed::check("ibv_wr_complete", call!(qp.wr_complete()))
    }

    /// Builds a list of atomics call by call, and posts it.
    ///
    /// # Errors
    /// When it is not taken: then nothing of it is.
    pub fn build_atomics(&self, requests: &[Atomic]) -> Result<(), Failed> {
        let qp = self.extended.expect("it was made by ibv_create_qp_ex").as_ptr();
        call!(qp.wr_start());
        for request in requests {
            // SAFETY: the QP lives, and nobody else builds a list.
            unsafe { ((*qp).wr_id, (*qp).wr_flags) = (request.wr_id, v::IBV_SEND_SIGNALED) };
            let (address, rkey) = request.remote;
            match request.operation {
                AtomicOperation::CompareSwap { compare, swap } => {
                    call!(qp.wr_atomic_cmp_swp(rkey, address, compare, swap));
                }
                AtomicOperation::FetchAdd { add } => {
                    call!(qp.wr_atomic_fetch_add(rkey, address, add));
                }
            }
            let sges = super::sges_of(&request.result);
            call!(qp.wr_set_sge_list(sges.len(), sges.as_ptr()));
        }
        Failed::check("ibv_wr_complete", call!(qp.wr_complete()))
    }

    /// Whether `ibv_qp_to_qp_ex` gives the extended form.
    pub fn is_extended(&self) -> bool {
        self.extended.is_some()
    }
}
