//! XRC: domains, their shared receive queues, and targets.

use std::sync::{Arc, OnceLock};

use crate::abi::verbs::{ibv_qp_cap, ibv_srq_attr};
use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::window::Capabilities;
use hostmem::{Access, BlockRing, Lender, PAGE_BYTES, Record, SharedMapping, memfd};
use parking_lot::Mutex;
use shim_abi::{FileId, Request, Response};
use std::os::fd::AsFd as _;

use super::{Context, Cq, Qp, Srq};
use crate::control::ask;
use crate::cq;
use crate::error::{Error, Result, unsupported};
use crate::events::new_cookie;
use crate::qp::Queues;
use crate::rq::ReceiveQueue;
use crate::sq::{SendPlace, SendQueue, SendShape};
use crate::wr::FlagTable;

/// The rings of queues that are never opened: nobody reads or writes them.
fn no_ring() -> Result<(BlockRing, Record)> {
    static NONE: OnceLock<(BlockRing, Record)> = OnceLock::new();
    if let Some(none) = NONE.get() {
        return Ok(none.clone());
    }
    let host = || Error::host("make room for a queue pair without queues");
    let fd = memfd::create("balboa-no-ring", PAGE_BYTES).map_err(host())?;
    let mapping =
        SharedMapping::new(fd.as_fd(), 0, PAGE_BYTES, Access::ReadWrite).map_err(host())?;
    let mapping = Arc::new(mapping);
    let ring = BlockRing::new(Arc::clone(&mapping), 64, 1).map_err(host())?;
    let record = Record::new(mapping, 0).map_err(host())?;
    Ok(NONE.get_or_init(|| (ring, record)).clone())
}

impl Context {
    fn check_xrc(&self) -> Result<()> {
        match self.capabilities().contains(Capabilities::XRC) {
            true => Ok(()),
            false => Err(unsupported!("XRC is not offered")),
        }
    }

    /// Opens an XRC domain; answers with its number.
    pub(crate) fn open_xrcd(
        &self,
        file: Option<FileId>,
        creates: bool,
        exclusive: bool,
    ) -> Result<u32> {
        self.check_xrc()?;
        let request = Request::OpenXrcd { context: self.number(), file, creates, exclusive };
        ask!(self.connection, request, Response::Xrcd { xrcd } => xrcd)
    }

    /// Closes an XRC domain.
    pub(crate) fn close_xrcd(&self, xrcd: u32) -> Result<()> {
        self.end(Request::CloseXrcd { xrcd })
    }

    /// Makes a shared receive queue of an XRC domain, which completes at a completion queue; `address` is
    /// that of its `ibv_srq`.
    pub(crate) fn create_xrc_srq(
        &self,
        (pdn, xrcd): (u32, u32),
        cq: &Cq,
        asked: &ibv_srq_attr,
        how: (bool, Option<Arc<dyn Lender>>),
        address: u64,
    ) -> Result<Srq> {
        self.check_xrc()?;
        let cqn = cq.queue.cqn;
        let request = |cookie, log2_entries, log2_stride| Request::CreateXrcSrq {
            xrcd,
            pdn,
            cqn,
            log2_entries,
            log2_stride,
            cookie,
        };
        let srq = self.make_srq(asked, request, how, address)?;
        cq::attach_srq(&cq.queue, &srq.shared);
        Ok(Srq { cq: Some(Arc::clone(&cq.queue)), ..srq })
    }

    /// Makes an XRC target in RESET; `address` is that of its `ibv_qp`.
    pub(crate) fn create_target(&self, xrcd: u32, address: u64) -> Result<Qp> {
        self.check_xrc()?;
        let cookie = new_cookie();
        self.target(Request::CreateTarget { xrcd, cookie }, cookie, address)
    }

    /// Opens an XRC target by its QP number; `address` is that of its `ibv_qp`.
    pub(crate) fn open_target(&self, xrcd: u32, qpn: u32, address: u64) -> Result<Qp> {
        self.check_xrc()?;
        let cookie = new_cookie();
        self.target(Request::OpenTarget { xrcd, qpn, cookie }, cookie, address)
    }

    fn target(&self, request: Request, cookie: u64, address: u64) -> Result<Qp> {
        let (target, qpn) =
            ask!(self.connection, request, Response::Target { target, qpn } => (target, qpn))?;
        let queues = self.no_queues(qpn).inspect_err(|_| {
            let _ = self.sent(Request::DestroyTarget { target });
        })?;
        self.asynchronous.watch(cookie, address, None);
        let cap = ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        Ok(Qp {
            queues: Arc::new(queues),
            cap,
            cqs: None,
            target: Some(target),
            cookie,
            init: Mutex::default(),
        })
    }

    /// The queues of a target, which are never opened.
    fn no_queues(&self, qpn: u32) -> Result<Queues> {
        let (ring, record) = no_ring()?;
        let path = Arc::clone(&self.opened.path);
        let receive = ReceiveQueue::absent(0, ring.clone(), record.clone(), Arc::clone(&path));
        let shape = SendShape {
            max_wr: 0,
            max_sge: 0,
            max_inline: 0,
            operations: self.operations(QpType::XrcReceive),
            flags: FlagTable::new(false),
        };
        let place = SendPlace { qpn, generation: 0, ring, record, path, lender: None };
        let send = SendQueue::new(place, shape, false)?;
        Ok(Queues::new(qpn, 0, (send, 0), (receive, 0)).without_sends().without_receives())
    }
}
