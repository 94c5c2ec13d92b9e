//! Queue pairs and work requests.

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::{Cq, Pd};
use super::recv::{Recv, receive_request, sges_of};
use super::region::Piece;
use super::srq::Srq;
use super::xrcd::Domain;

mod atomic;
mod datagram;
mod extended;
mod multicast;
mod states;
mod window;

pub use atomic::{Atomic, AtomicOperation};
pub use datagram::Destination;
pub use extended::{ListEnd, QpWishes};
pub use multicast::GROUP_QPN;
pub use window::Window;

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImmediate,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImmediate,
    /// RDMA READ.
    Read,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Send, Self::SendImmediate, Self::Write, Self::WriteImmediate, Self::Read];

    /// Its number in a work request.
    pub fn code(self) -> v::ibv_wr_opcode {
        match self {
            Self::Send => v::IBV_WR_SEND,
            Self::SendImmediate => v::IBV_WR_SEND_WITH_IMM,
            Self::Write => v::IBV_WR_RDMA_WRITE,
            Self::WriteImmediate => v::IBV_WR_RDMA_WRITE_WITH_IMM,
            Self::Read => v::IBV_WR_RDMA_READ,
        }
    }

    /// Whether the other side takes a receive for it.
    pub fn receives(self) -> bool {
        matches!(self, Self::Send | Self::SendImmediate | Self::WriteImmediate)
    }
}

/// A send work request.
#[derive(Clone)]
pub struct Send {
    /// Returned by its completion.
    pub wr_id: u64,
    /// The operation.
    pub operation: Operation,
    /// Local memory.
    pub pieces: Vec<Piece>,
    /// Remote address and key, for WRITE and READ.
    pub remote: (u64, u32),
    /// The immediate, host order.
    pub immediate: u32,
    /// `ibv_send_flags`.
    pub flags: v::ibv_send_flags,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its QP.
    pub qpn: u32,
    /// Its GID.
    pub gid: [u8; 16],
    /// Our GID's index.
    pub gid_index: u8,
    /// First PSN that we send.
    pub send_psn: u32,
    /// First PSN that it sends.
    pub receive_psn: u32,
    /// Path MTU.
    pub mtu: v::ibv_mtu,
}

/// How long a QP waits, and how often it tries.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Local ACK timeout, 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Tries after the first, 7 at most.
    pub retry_cnt: u8,
    /// Tries after "receiver not ready"; 7 for ever.
    pub rnr_retry: u8,
}

impl Default for Patience {
    fn default() -> Self {
        Self { timeout: 14, retry_cnt: 7, rnr_retry: 7 }
    }
}

/// The code of 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

/// The attributes of a reliable connection on its way to INIT.
pub const TO_INIT: v::ibv_qp_attr_mask =
    v::IBV_QP_STATE | v::IBV_QP_PKEY_INDEX | v::IBV_QP_PORT | v::IBV_QP_ACCESS_FLAGS;
/// The same to RTR.
pub const TO_RTR: v::ibv_qp_attr_mask = v::IBV_QP_STATE
    | v::IBV_QP_AV
    | v::IBV_QP_PATH_MTU
    | v::IBV_QP_DEST_QPN
    | v::IBV_QP_RQ_PSN
    | v::IBV_QP_MAX_DEST_RD_ATOMIC
    | v::IBV_QP_MIN_RNR_TIMER;
/// The same to RTS.
pub const TO_RTS: v::ibv_qp_attr_mask = v::IBV_QP_STATE
    | v::IBV_QP_TIMEOUT
    | v::IBV_QP_RETRY_CNT
    | v::IBV_QP_RNR_RETRY
    | v::IBV_QP_SQ_PSN
    | v::IBV_QP_MAX_QP_RD_ATOMIC;

/// The attributes that only a reliable connection has on its way to RTR and to RTS.
const RELIABLE: v::ibv_qp_attr_mask = v::IBV_QP_MAX_DEST_RD_ATOMIC
    | v::IBV_QP_MIN_RNR_TIMER
    | v::IBV_QP_TIMEOUT
    | v::IBV_QP_RETRY_CNT
    | v::IBV_QP_RNR_RETRY
    | v::IBV_QP_MAX_QP_RD_ATOMIC;

/// The attributes of a datagram's queue pair on its way to RTS and to SQD.
const DATAGRAM: v::ibv_qp_attr_mask = v::IBV_QP_STATE
    | v::IBV_QP_PKEY_INDEX
    | v::IBV_QP_PORT
    | v::IBV_QP_QKEY
    | v::IBV_QP_SQ_PSN
    | v::IBV_QP_EN_SQD_ASYNC_NOTIFY;

/// The transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Unreliable datagrams.
    Datagram,
}

impl Service {
    fn code(self) -> v::ibv_qp_type {
        match self {
            Self::Reliable => v::IBV_QPT_RC,
            Self::Unreliable => v::IBV_QPT_UC,
            Self::Datagram => v::IBV_QPT_UD,
        }
    }
}

/// A queue pair: of a reliable connection, unless it was made otherwise.
pub struct Qp {
    raw: NonNull<v::ibv_qp>,
    /// Its extended form, where it has one: work requests are then posted call by call.
    extended: Option<NonNull<v::ibv_qp_ex>>,
    /// The capabilities that the device granted.
    pub capabilities: v::ibv_qp_cap,
    _cqs: Option<(Rc<Cq>, Rc<Cq>)>,
    _srq: Option<Rc<Srq>>,
    _domain: Option<Rc<Domain>>,
    pd: Rc<Pd>,
}

impl Qp {
    /// Makes one.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(
        pd: &Rc<Pd>,
        send_cq: &Rc<Cq>,
        receive_cq: &Rc<Cq>,
        capabilities: v::ibv_qp_cap,
    ) -> Result<Self, Failed> {
        Self::with(pd, [send_cq, receive_cq], None, (v::IBV_QPT_RC, capabilities))
    }

    /// Makes one of a service.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn of(
        service: Service,
        pd: &Rc<Pd>,
        [send_cq, receive_cq]: [&Rc<Cq>; 2],
        capabilities: v::ibv_qp_cap,
    ) -> Result<Self, Failed> {
        Self::with(pd, [send_cq, receive_cq], None, (service.code(), capabilities))
    }

    /// Makes one that receives from a shared receive queue.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn sharing(
        srq: &Rc<Srq>,
        send_cq: &Rc<Cq>,
        receive_cq: &Rc<Cq>,
        capabilities: v::ibv_qp_cap,
    ) -> Result<Self, Failed> {
        Self::with(srq.pd(), [send_cq, receive_cq], Some(srq), (v::IBV_QPT_RC, capabilities))
    }

    pub(super) fn with(
        pd: &Rc<Pd>,
        [send_cq, receive_cq]: [&Rc<Cq>; 2],
        srq: Option<&Rc<Srq>>,
        (qp_type, capabilities): (v::ibv_qp_type, v::ibv_qp_cap),
    ) -> Result<Self, Failed> {
        let mut attributes = v::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: receive_cq.raw(),
            srq: srq.map_or(null_mut(), |srq| srq.raw()),
            cap: capabilities,
            qp_type,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues live, and are held by the QP.
        let raw = unsafe { (pd.library().ibv_create_qp)(pd.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_create_qp"))?;
        let mut made = Self::made(raw, attributes.cap, pd);
        made._cqs = Some((Rc::clone(send_cq), Rc::clone(receive_cq)));
        made._srq = srq.cloned();
        Ok(made)
    }

    /// A target, which has no queues.
    pub(super) fn of_domain(raw: NonNull<v::ibv_qp>, domain: &Rc<Domain>, pd: &Rc<Pd>) -> Self {
        let none = v::ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        let mut made = Self::made(raw, none, pd);
        made._domain = Some(Rc::clone(domain));
        made
    }

    fn made(raw: NonNull<v::ibv_qp>, capabilities: v::ibv_qp_cap, pd: &Rc<Pd>) -> Self {
        let pd = Rc::clone(pd);
        Self { raw, extended: None, capabilities, _cqs: None, _srq: None, _domain: None, pd }
    }

    pub(super) fn raw(&self) -> *mut v::ibv_qp {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &Rc<Pd> {
        &self.pd
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the QP lives.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Tries to destroy it, which is to be refused.
    ///
    /// # Errors
    /// When the device refuses: it is there still.
    ///
    /// # Panics
    /// When it is gone.
    pub fn destroy(&self) -> Result<(), Failed> {
        // SAFETY: made by us; it is not used any more where it is gone, for the process ends.
        let result = unsafe { (self.pd.library().ibv_destroy_qp)(self.raw.as_ptr()) };
        assert_ne!(result, 0, "the QP is gone");
        Failed::check("ibv_destroy_qp", result)
    }

    /// Its transport service.
    pub fn service(&self) -> Service {
        // SAFETY: the QP lives.
        match unsafe { self.raw.as_ref() }.qp_type {
            v::IBV_QPT_UC => Service::Unreliable,
            v::IBV_QPT_UD => Service::Datagram,
            _ => Service::Reliable,
        }
    }

    /// Its address, by which an asynchronous event names it.
    pub fn element(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Changes the attributes that the mask names, as far as its service has them.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn modify(
        &self,
        mask: v::ibv_qp_attr_mask,
        set: impl FnOnce(&mut v::ibv_qp_attr),
    ) -> Result<(), Failed> {
        let mut attributes = blank();
        set(&mut attributes);
        let mask = match self.service() {
            Service::Reliable => mask,
            Service::Unreliable => mask & !RELIABLE,
            Service::Datagram => mask & DATAGRAM,
        };
        let modify = self.pd.library().ibv_modify_qp;
        // SAFETY: the QP lives, the attributes are whole.
        let result = unsafe { modify(self.raw.as_ptr(), &raw mut attributes, mask as i32) };
        Failed::check("ibv_modify_qp", result)
    }

    /// Moves it to a state that needs no attributes: RESET or ERR.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn to(&self, state: v::ibv_qp_state) -> Result<(), Failed> {
        self.modify(v::IBV_QP_STATE, |attributes| attributes.qp_state = state)
    }

    /// Moves it to INIT.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn init(&self, access: v::ibv_access_flags) -> Result<(), Failed> {
        self.modify(TO_INIT, |attributes| {
            attributes.qp_state = v::IBV_QPS_INIT;
            attributes.port_num = 1;
            attributes.qp_access_flags = access;
        })
    }

    /// Moves it from INIT over RTR to RTS, connected.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn connect(&self, peer: &Peer) -> Result<(), Failed> {
        self.receive_from(peer)?;
        self.send_to(peer, Patience::default())
    }

    /// Moves it from INIT to RTR, connected.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn receive_from(&self, peer: &Peer) -> Result<(), Failed> {
        self.receive_with(peer, MIN_RNR_TIMER)
    }

    /// The same; where no receive is posted, the peer is to wait as long as this code says.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn receive_with(&self, peer: &Peer, min_rnr_timer: u8) -> Result<(), Failed> {
        self.modify(TO_RTR, |attributes| to_rtr(attributes, peer, min_rnr_timer))
    }

    /// The same as [`Qp::receive_from`], along a path of a rate by its code.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn receive_at(&self, peer: &Peer, static_rate: u8) -> Result<(), Failed> {
        self.modify(TO_RTR, |attributes| {
            to_rtr(attributes, peer, MIN_RNR_TIMER);
            attributes.ah_attr.static_rate = static_rate;
        })
    }

    /// Moves it from RTR to RTS.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn send_to(&self, peer: &Peer, patience: Patience) -> Result<(), Failed> {
        self.modify(TO_RTS, |attributes| {
            attributes.qp_state = v::IBV_QPS_RTS;
            attributes.timeout = patience.timeout;
            attributes.retry_cnt = patience.retry_cnt;
            attributes.rnr_retry = patience.rnr_retry;
            attributes.sq_psn = peer.send_psn;
            attributes.max_rd_atomic = 4;
        })
    }

    /// Its state and other attributes.
    ///
    /// # Errors
    /// When the device does not say.
    pub fn query(&self) -> Result<v::ibv_qp_attr, Failed> {
        let mut attributes = blank();
        let mut made: MaybeUninit<v::ibv_qp_init_attr> = MaybeUninit::zeroed();
        let mask = v::IBV_QP_STATE | v::IBV_QP_PATH_MTU | v::IBV_QP_DEST_QPN | v::IBV_QP_SQ_PSN;
        let query = self.pd.library().ibv_query_qp;
        // SAFETY: the QP lives, both places have the sizes of the structures.
        let result = unsafe {
            query(self.raw.as_ptr(), &raw mut attributes, mask as i32, made.as_mut_ptr())
        };
        Failed::check("ibv_query_qp", result).map(|()| attributes)
    }

    /// The attributes that it was made with, from `ibv_query_qp`.
    ///
    /// # Errors
    /// When the device does not say.
    pub fn made_as(&self) -> Result<v::ibv_qp_init_attr, Failed> {
        let mut attributes = blank();
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut made: v::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let (query, mask) = (self.pd.library().ibv_query_qp, v::IBV_QP_CAP as i32);
        // SAFETY: the QP lives, both places have the sizes of the structures.
        let result = unsafe { query(self.raw.as_ptr(), &raw mut attributes, mask, &raw mut made) };
        Failed::check("ibv_query_qp", result).map(|()| made)
    }

    pub(super) fn operations(&self) -> &v::ibv_context_ops {
        // SAFETY: the context is open as long as the domain lives; its operations never change.
        &unsafe { &*self.pd.context().raw() }.ops
    }

    /// Posts a list of send work requests.
    ///
    /// # Errors
    /// With the index of the first request that was not taken.
    pub fn post_send(&self, requests: &[Send]) -> Result<(), (Failed, usize)> {
        let mut sges: Vec<Vec<v::ibv_sge>> =
            requests.iter().map(|request| sges_of(&request.pieces)).collect();
        let mut list: Vec<v::ibv_send_wr> = requests
            .iter()
            .zip(&mut sges)
            .map(|(request, sges)| work_request(request, sges))
            .collect();
        // Through one pointer to all of it, so that each may point to the next.
        let first = list.as_mut_ptr();
        for index in 1..list.len() {
            // SAFETY: both are elements of the list.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        let post = self.operations().post_send.expect("every provider sends");
        let mut bad = null_mut();
        // SAFETY: the QP lives; the list ends with null; its SGEs name memory that `requests` keeps
        // while the provider may read it inline. The card goes by the keys, which end with it.
        let result = unsafe { post(self.raw.as_ptr(), first, &raw mut bad) };
        Failed::check("ibv_post_send", result).map_err(|failed| {
            let bytes = (bad as usize).saturating_sub(first as usize);
            (failed, bytes / size_of::<v::ibv_send_wr>())
        })
    }

    /// Posts a single send work request.
    fn post_one(&self, work: &mut v::ibv_send_wr) -> Result<(), Failed> {
        let post = self.operations().post_send.expect("every provider sends");
        let mut bad = null_mut();
        // SAFETY: the QP lives; the list is one request. The card reaches its memory by keys, which end with it, and
        // the caller keeps memory that the provider reads inline.
        let result = unsafe { post(self.raw.as_ptr(), work, &raw mut bad) };
        Failed::check("ibv_post_send", result)
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_recv(&self, request: &Recv) -> Result<(), Failed> {
        let mut sges = sges_of(&request.pieces);
        let mut work = receive_request(request, &mut sges);
        let post = self.operations().post_recv.expect("every provider receives");
        let mut bad = null_mut();
        // SAFETY: the QP lives; the card goes by the keys, which end with the memory.
        let result = unsafe { post(self.raw.as_ptr(), &raw mut work, &raw mut bad) };
        Failed::check("ibv_post_recv", result)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: made by us.
        let result = unsafe { (self.pd.library().ibv_destroy_qp)(self.raw.as_ptr()) };
        assert_eq!(result, 0, "ibv_destroy_qp");
    }
}

/// Fills in the way to RTR.
fn to_rtr(attributes: &mut v::ibv_qp_attr, peer: &Peer, min_rnr_timer: u8) {
    attributes.qp_state = v::IBV_QPS_RTR;
    attributes.path_mtu = peer.mtu;
    attributes.dest_qp_num = peer.qpn;
    attributes.rq_psn = peer.receive_psn;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = min_rnr_timer;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = v::ibv_gid { raw: peer.gid };
    attributes.ah_attr.grh.sgid_index = peer.gid_index;
    attributes.ah_attr.grh.hop_limit = 64;
}

/// Attributes that are all zero.
pub fn blank() -> v::ibv_qp_attr {
    // SAFETY: numbers only; all zero is a valid value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// A GID's bytes.
pub fn gid_bytes(gid: &v::ibv_gid) -> [u8; 16] {
    // SAFETY: both variants are sixteen bytes, of which any are a GID.
    unsafe { gid.raw }
}

pub(super) fn work_request(request: &Send, sges: &mut [v::ibv_sge]) -> v::ibv_send_wr {
    // SAFETY: numbers and null pointers only; all zero is a valid value.
    let mut work: v::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    work.wr_id = request.wr_id;
    work.sg_list = sges.as_mut_ptr();
    work.num_sge = sges.len() as i32;
    work.opcode = request.operation.code();
    work.send_flags = request.flags;
    work.__bindgen_anon_1 = v::ibv_send_wr__bindgen_ty_1 { imm_data: request.immediate.to_be() };
    let (remote_addr, rkey) = request.remote;
    work.wr.rdma = v::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    work
}
