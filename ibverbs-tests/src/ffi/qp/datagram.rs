//! Datagrams.

use verbs_sys::current::verbs as v;

use super::super::Failed;
use super::super::ah::Ah;
use super::{Qp, Send, sges_of, work_request};

/// The destination of a datagram.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// Where it is.
    pub handle: &'a Ah,
    /// Its QP.
    pub qpn: u32,
    /// The key that its QP wants.
    pub qkey: u32,
}

impl Qp {
    /// Moves a QP of datagrams from RESET to RTS.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn to_datagrams(&self, qkey: u32, psn: u32) -> Result<(), Failed> {
        let init = v::IBV_QP_STATE | v::IBV_QP_PKEY_INDEX | v::IBV_QP_PORT | v::IBV_QP_QKEY;
        self.modify(init, |attributes| {
            attributes.qp_state = v::IBV_QPS_INIT;
            attributes.port_num = 1;
            attributes.qkey = qkey;
        })?;
        self.to(v::IBV_QPS_RTR)?;
        self.modify(v::IBV_QP_STATE | v::IBV_QP_SQ_PSN, |attributes| {
            attributes.qp_state = v::IBV_QPS_RTS;
            attributes.sq_psn = psn;
        })
    }

    /// Posts a datagram.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_datagram(&self, request: &Send, to: Destination<'_>) -> Result<(), Failed> {
        let mut sges = sges_of(&request.pieces);
        let mut work = work_request(request, &mut sges);
        work.wr.ud = v::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: to.handle.raw(),
            remote_qpn: to.qpn,
            remote_qkey: to.qkey,
        };
        self.post_one(&mut work)
    }
}
