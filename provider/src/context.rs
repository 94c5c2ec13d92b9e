//! A device as one `ibv_open_device` opened it: every control verb, in safe types.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::abi::verbs::{ibv_qp_cap, ibv_srq_attr};
use fpga_regs::engine::doorbell::record;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::Capabilities;
use hostmem::PAGE_BYTES;
use hostmem::{BlockRing, Lender, Record};
use parking_lot::Mutex;
use shim_abi::{
    AddressVector, ContextInfo, CreateQp, Limits, PortInfo, ReceiveRing, Request, Response,
    ServiceChain,
};

use vfio::Iommu;

use crate::control::{ControlConnection, OpenedContext, ask, unexpected};
use crate::cq::{self, CompletionQueue, EntryRing};
use crate::error::{Error, Result, invalid, unsupported};
use crate::events::{EventSource, new_cookie};
use crate::limits::{ReceiveSizes, cq_size, queue_sizes, receive_sizes};
use crate::lives;
use crate::mr::Registration;
use crate::qp::Queues;
use crate::rq::{ReceivePlace, ReceiveQueue};
use crate::sq::{SendPlace, SendQueue, SendShape};
use crate::srq::SharedReceiveQueue;
use crate::wr::{FlagTable, Operations};

mod device_memory;
mod xrc;

pub(crate) use device_memory::DeviceMemory;

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    connection: Arc<ControlConnection>,
    opened: OpenedContext,
    /// Records of asynchronous events.
    pub asynchronous: Arc<EventSource>,
}

/// A completion channel, as the queue that reports to it needs it.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    /// balboad's number.
    pub number: u32,
    /// The descriptor libibverbs reads.
    pub fd: RawFd,
    /// The source of its events.
    pub source: Arc<EventSource>,
}

/// A completion queue, with the data for its destruction.
#[derive(Debug)]
pub(crate) struct Cq {
    /// The queue.
    pub queue: Arc<CompletionQueue>,
    /// The receiver of its completion events.
    pub channel: Option<Channel>,
    cookie: u64,
}

#[cfg(test)]
impl Cq {
    /// A completion queue of which balboad knows nothing.
    pub(crate) fn unwatched(queue: Arc<CompletionQueue>) -> Self {
        Self { queue, channel: None, cookie: 0 }
    }
}

/// A shared receive queue, with the data for its changes and its destruction.
#[derive(Debug)]
pub(crate) struct Srq {
    /// The queue.
    pub shared: Arc<SharedReceiveQueue>,
    /// Requests that are outstanding at a time, at most.
    pub max_wr: u32,
    /// Elements of a request, at most.
    pub max_sge: u32,
    /// The completion queue of a shared queue of an XRC domain.
    cq: Option<Arc<CompletionQueue>>,
    cookie: u64,
}

/// A QP, with the data for its changes and its destruction.
pub(crate) struct Qp {
    /// Its queues.
    pub queues: Arc<Queues>,
    /// The capacities that the program got.
    pub cap: ibv_qp_cap,
    /// The completion queues of its sends and its receives; an XRC target has none.
    cqs: Option<(Arc<CompletionQueue>, Arc<CompletionQueue>)>,
    /// balboad's number of an XRC target.
    target: Option<u32>,
    cookie: u64,
    /// The change that brought it to INIT, while it is the last. Held over a change.
    init: Mutex<Option<Init>>,
}

/// A change of a QP to INIT.
#[derive(Clone, Copy, Debug)]
struct Init {
    /// As from INIT: made again, it changes nothing.
    change: [[u64; 8]; 2],
    /// balboad is told of it with the next request about the QP. Until then the QP is in RESET to the card, and neither
    /// there nor in INIT does anything arrive or leave.
    is_untold: bool,
}

impl Init {
    /// The attributes that bring a connected QP to INIT, whose values this side checks as the card does: it would not
    /// refuse them.
    const MASK: AttributeMask = AttributeMask::STATE
        .union(AttributeMask::PKEY_INDEX)
        .union(AttributeMask::PORT)
        .union(AttributeMask::ACCESS);
}

/// Events an object's program was handed, and must have acknowledged before it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handed {
    /// Events of its completion channel.
    pub completion: u32,
    /// Asynchronous ones.
    pub asynchronous: u32,
}

/// A new QP as the program asked for it.
pub(crate) struct NewQp<'a> {
    /// Protection domain.
    pub pdn: u32,
    /// Completion queue of its sends.
    pub send_cq: &'a Cq,
    /// Completion queue of its receives.
    pub receive_cq: &'a Cq,
    /// The shared receive queue that it is to use.
    pub srq: Option<&'a Srq>,
    /// Sizes asked for.
    pub cap: ibv_qp_cap,
    /// Transport.
    pub kind: QpType,
    /// Every send is signaled.
    pub signal_all: bool,
    /// Whether one thread at a time uses it.
    pub single_threaded: bool,
    /// The lenders of memory for its send queue and its receive queue.
    pub lenders: [Option<Arc<dyn Lender>>; 2],
    /// Address of its `ibv_qp`.
    pub address: u64,
    /// Services on the path of its packets.
    pub chain: Option<ServiceChain>,
}

impl Context {
    /// Opens a card by its number.
    pub(crate) fn open(card: u32) -> Result<Self> {
        let connection = ControlConnection::shared()?;
        let mut opened = connection.open_context(card)?;
        let guid = &mut opened.info.card.node_guid;
        *guid = lives::opened(card, *guid, &opened.path, &Arc::downgrade(&connection));
        let asynchronous = Arc::new(EventSource::asynchronous(Arc::clone(&opened.path)));
        Ok(Self { connection, opened, asynchronous })
    }

    /// Closes the context; in a forked child nothing but this process's share of it.
    pub(crate) fn close(&self) -> Result<()> {
        if self.connection.is_forked() {
            return Ok(());
        }
        let closed = self.end(Request::CloseContext { context: self.number() });
        self.connection.let_go_if_dead(self.opened.info.card.card);
        closed
    }

    /// Ends an object. An object that died with balboad has ended, or ends before balboad does anything else.
    fn end(&self, request: Request) -> Result<()> {
        match ask!(self.connection, request, Response::Done => ()) {
            Err(Error::Gone | Error::GivenUp) => Ok(()),
            answer => answer,
        }
    }

    fn number(&self) -> u32 {
        self.opened.info.context
    }

    /// balboad's description of the context.
    pub(crate) fn info(&self) -> &ContextInfo {
        &self.opened.info
    }

    /// Operations and transports that the device offers.
    fn capabilities(&self) -> Capabilities {
        Capabilities::from_bits_retain(self.limits().capabilities)
    }

    /// The limits of the device.
    pub(crate) fn limits(&self) -> &Limits {
        &self.opened.info.limits
    }

    /// A descriptor of the asynchronous events for libibverbs, which will close it.
    pub(crate) fn event_fd(&self) -> Result<OwnedFd> {
        self.opened.events.try_clone().map_err(|error| {
            let errno = nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or(0));
            let source = hostmem::Error::Os { call: "dup", errno };
            Error::Host { what: "copy the event descriptor", source }
        })
    }

    /// The port and its GIDs, now.
    pub(crate) fn query_port(&self) -> Result<PortInfo> {
        let context = self.number();
        ask!(self.connection, Request::QueryPort { context }, Response::Port(port) => port)
    }

    /// Nanoseconds of the card's clock, by which it stamps completions.
    pub(crate) fn clock(&self) -> Result<u64> {
        let context = self.number();
        ask!(self.connection, Request::QueryClock { context }, Response::Clock { now } => now)
    }

    /// Makes a completion channel: its descriptor, its number, and the source of its events.
    pub(crate) fn create_channel(&self) -> Result<(OwnedFd, u32, Arc<EventSource>)> {
        let request = Request::CreateChannel { context: self.number() };
        let (Response::Channel { channel }, fds) = self.connection.call(&request)? else {
            return Err(unexpected(&request, "it answers another request"));
        };
        let fd = fds.into_iter().next();
        let fd = fd.ok_or_else(|| unexpected(&request, "the descriptor is missing"))?;
        let source = EventSource::completions(Arc::clone(&self.opened.path));
        Ok((fd, channel, Arc::new(source)))
    }

    /// Makes a protection domain; answers with its number.
    pub(crate) fn alloc_pd(&self) -> Result<u32> {
        let context = self.number();
        ask!(self.connection, Request::AllocPd { context }, Response::Pd { pdn } => pdn)
    }

    /// Ends a protection domain.
    pub(crate) fn dealloc_pd(&self, pdn: u32) -> Result<()> {
        self.end(Request::DeallocPd { pdn })
    }

    /// Makes a memory window; answers with its number and its key.
    pub(crate) fn alloc_mw(&self, pdn: u32, type_2: bool) -> Result<(u32, u32)> {
        if !self.capabilities().contains(Capabilities::MEMORY_WINDOW) {
            return Err(unsupported!("memory windows are not offered"));
        }
        let request = Request::AllocMw { pdn, type_2 };
        ask!(self.connection, request, Response::Mw { mw, rkey } => (mw, rkey))
    }

    /// Ends a memory window.
    pub(crate) fn dealloc_mw(&self, mw: u32) -> Result<()> {
        self.end(Request::DeallocMw { mw })
    }

    /// Makes an address handle; answers with balboad's number of it, and the card's.
    pub(crate) fn create_ah(&self, pdn: u32, address: AddressVector) -> Result<(u32, u32)> {
        if !self.capabilities().contains(Capabilities::UD) {
            return Err(unsupported!("address handles are not offered"));
        }
        let request = Request::CreateAh { pdn, address };
        ask!(self.connection, request, Response::Ah { ah, card_ah } => (ah, card_ah))
    }

    /// Ends an address handle.
    pub(crate) fn destroy_ah(&self, ah: u32) -> Result<()> {
        self.end(Request::DestroyAh { ah })
    }

    /// Takes a QP into a multicast group.
    pub(crate) fn attach_multicast(&self, qpn: u32, group: [u8; 16]) -> Result<()> {
        if !self.capabilities().contains(Capabilities::MULTICAST) {
            return Err(unsupported!("multicast groups are not offered"));
        }
        self.end(Request::AttachMulticast { qpn, group })
    }

    /// Takes a QP out of a multicast group.
    pub(crate) fn detach_multicast(&self, qpn: u32, group: [u8; 16]) -> Result<()> {
        self.end(Request::DetachMulticast { qpn, group })
    }

    /// Registers memory; `populate` makes its pages be there, as pinning would.
    ///
    /// Answers with the region's number, lkey and rkey.
    pub(crate) fn reg_mr(
        &self,
        pdn: u32,
        registration: &Registration,
        populate: impl FnOnce() -> Result<()>,
    ) -> Result<(u32, u32, u32)> {
        let mr = self.reserve_mr(pdn, registration, populate)?;
        let request = Request::CommitMr { mr };
        let committed =
            ask!(self.connection, request, Response::Mr { lkey, rkey } => (mr, lkey, rkey));
        if committed.is_err() {
            // The first failure is the one to tell; a region left behind ends with the client.
            let _ = self.dereg_mr(mr);
        }
        committed
    }

    /// Changes a registration, which was `before`: its domain, its rights, its memory. Its keys stay.
    ///
    /// When that fails, the registration is as before. After a success, the card no longer reaches the earlier memory.
    pub(crate) fn rereg_mr(
        &self,
        (mr, before): (u32, &Registration),
        pdn: u32,
        registration: &Registration,
        populate: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let writes_anew = registration.is_written() && !before.is_written();
        // An IOMMU grants the card the accesses that were requested when the memory was mapped.
        let remaps = writes_anew && self.opened.path.iommu().is_some();
        if registration.is_same_memory(before) && !remaps {
            if writes_anew {
                populate()?;
            }
            let access = registration.access.bits();
            return ask!(self.connection, Request::ModifyMr { mr, pdn, access }, Response::Done => ());
        }
        let to = self.reserve_mr(pdn, registration, populate)?;
        let moved = ask!(self.connection, Request::MoveMr { mr, to }, Response::Done => ());
        // Deregisters the one of the two that has no key now. After a success, the card no longer has its
        // memory, even if this fails.
        let _ = self.dereg_mr(to);
        moved
    }

    /// The first step of a registration: answers with the number of a region that can be committed.
    fn reserve_mr(
        &self,
        pdn: u32,
        registration: &Registration,
        populate: impl FnOnce() -> Result<()>,
    ) -> Result<u32> {
        let Registration { address, length, hca_va, access } = *registration;
        let most = self.limits().max_mr_bytes;
        if length > most {
            return Err(invalid!(
                "a region of {length} bytes was asked for; the largest has {most}"
            ));
        }
        let access = access.bits();
        let request = Request::ReserveMr { pdn, address, length, hca_va, access };
        let reserved = ask!(
            self.connection,
            request,
            Response::Reserved { mr, iova } => (mr, iova)
        );
        let (mr, iova) = reserved?;
        // If a card is behind an IOMMU, the kernel pins the pages for the process that maps them;
        // otherwise balboad reaches the memory through the process.
        let ready = match self.opened.path.iommu() {
            Some(iommu) => map_pages(iommu, registration, iova),
            None => populate(),
        };
        if let Err(error) = ready {
            // As in `reg_mr`.
            let _ = self.dereg_mr(mr);
            return Err(error);
        }
        Ok(mr)
    }

    /// Ends a registration: no DMA follows.
    ///
    /// That is not so while a balboad that was given up is still there, which may go on any moment.
    pub(crate) fn dereg_mr(&self, mr: u32) -> Result<()> {
        match ask!(self.connection, Request::DeregMr { mr }, Response::Done => ()) {
            Err(Error::Gone) => Ok(()),
            answer => answer,
        }
    }

    /// Makes a null memory region; answers with its number and its lkey.
    pub(crate) fn alloc_null_mr(&self, pdn: u32) -> Result<(u32, u32)> {
        if !self.capabilities().contains(Capabilities::NULL_MR) {
            return Err(unsupported!("null memory regions are not offered"));
        }
        let request = Request::AllocNullMr { pdn };
        ask!(self.connection, request, Response::DmMr { mr, lkey, .. } => (mr, lkey))
    }

    /// Makes a completion queue; `address` is that of its `ibv_cq`.
    pub(crate) fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Channel>,
        comp_vector: u32,
        address: u64,
    ) -> Result<Cq> {
        let log2_entries = cq_size(self.limits(), cqe)?;
        let vectors = self.limits().comp_vectors;
        let vector = u8::try_from(comp_vector).ok().filter(|vector| *vector < vectors);
        let vector = vector.ok_or_else(|| {
            invalid!("completion vector {comp_vector} was asked for; there are {vectors}")
        })?;
        let cookie = new_cookie();
        let request = Request::CreateCq {
            context: self.number(),
            log2_entries,
            channel: channel.as_ref().map(|channel| channel.number),
            vector,
            cookie,
        };
        let (cqn, ring) =
            ask!(self.connection, request, Response::Cq { cqn, ring } => (cqn, ring))?;
        let made = self.ring_memory(ring, log2_entries).map(|(ring, record)| {
            let path = Arc::clone(&self.opened.path);
            CompletionQueue::new(cqn, EntryRing::new(ring, record), path)
        });
        let queue = match made {
            Ok(queue) => Arc::new(queue),
            Err(error) => {
                let request = Request::DestroyCq { cqn };
                let _ = ask!(self.connection, request, Response::Destroyed { .. } => ());
                return Err(error);
            }
        };
        if let Some(channel) = &channel {
            channel.source.watch(cookie, address, Some(queue.record()));
        }
        self.asynchronous.watch(cookie, address, None);
        Ok(Cq { queue, channel, cookie })
    }

    /// Gives a completion queue room for `cqe` completions, or more, and keeps its completions in order.
    ///
    /// It fails with EINVAL if the queue has more than `cqe` completions, or, when it is made smaller, may get more
    /// from posted sends. After any failure the queue is as before.
    pub(crate) fn resize_cq(&self, cq: &Cq, cqe: u32) -> Result<()> {
        if !self.capabilities().contains(Capabilities::RESIZE_CQ) {
            return Err(unsupported!("CQs are not resized"));
        }
        let log2_entries = cq_size(self.limits(), cqe)?;
        let cqn = cq.queue.cqn;
        cq.queue.resize(
            log2_entries,
            || {
                let (ring, end) = ask!(self.connection, Request::ResizeCq { cqn, log2_entries },
                Response::CqResized { ring, end } => (ring, end))?;
                let (ring, record) = self.ring_memory(ring, log2_entries)?;
                Ok((EntryRing::new(ring, record), end))
            },
            |record| {
                if let Some(channel) = &cq.channel {
                    channel.source.count_in(cq.cookie, record);
                }
                ask!(self.connection, Request::ReleaseCqRing { cqn }, Response::Done => ())
            },
        )
    }

    /// Whether the events of completion queues can be moderated.
    pub(crate) fn moderates(&self) -> bool {
        self.capabilities().contains(Capabilities::MODERATION)
    }

    /// Makes a completion queue raise an event after `count` completions, or `period` microseconds after the first of
    /// them.
    pub(crate) fn moderate_cq(&self, cq: &Cq, count: u16, period: u16) -> Result<()> {
        if !self.moderates() {
            return Err(unsupported!("the events of CQs are not moderated"));
        }
        let request = Request::ModerateCq { cqn: cq.queue.cqn, count, period };
        ask!(self.connection, request, Response::Done => ())
    }

    /// Destroys a completion queue: no record of it is handed out afterwards.
    pub(crate) fn destroy_cq(&self, cq: &Cq) -> Result<Handed> {
        let cqn = cq.queue.cqn;
        if cq.queue.is_used() {
            return Err(Error::Busy(format!("QPs still complete on CQ {cqn}; destroy them first")));
        }
        let (completion, asynchronous) = self.sent(Request::DestroyCq { cqn })?;
        let channel = cq.channel.as_ref();
        Ok(Handed {
            completion: channel
                .map_or(0, |channel| channel.source.forget(channel.fd, cq.cookie, completion)),
            asynchronous: self.forget(cq.cookie, asynchronous),
        })
    }

    /// Destroys an object; answers with the records sent of it in all. See [`Self::end`].
    fn sent(&self, request: Request) -> Result<(u32, u32)> {
        let answer = ask!(self.connection, request,
            Response::Destroyed { completion_events, async_events } =>
            (completion_events, async_events));
        match answer {
            Err(Error::Gone | Error::GivenUp) => Ok((0, 0)),
            answer => answer,
        }
    }

    fn forget(&self, cookie: u64, sent: u32) -> u32 {
        self.asynchronous.forget(self.opened.events.as_raw_fd(), cookie, sent)
    }

    /// Views ring memory: the entries, as 2^`log2_blocks` blocks, and the record before them.
    fn ring_memory(&self, at: u64, log2_blocks: u8) -> Result<(BlockRing, Record)> {
        let host = || Error::host("find a queue in the ring memory");
        let rings = || Arc::clone(&self.opened.rings);
        let blocks = 1u32.checked_shl(log2_blocks.into()).unwrap_or(0);
        let entries = at.saturating_add(record::ENTRIES);
        let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        let ring = BlockRing::new(rings(), place(entries), blocks).map_err(host())?;
        Ok((ring, Record::new(rings(), place(at)).map_err(host())?))
    }

    /// Where a receive queue lives.
    fn receive_place(
        &self,
        rqn: u32,
        generation: u8,
        at: u64,
        sizes: &ReceiveSizes,
        lender: Option<Arc<dyn Lender>>,
    ) -> Result<ReceivePlace> {
        let ReceiveSizes { log2_entries, log2_stride, .. } = *sizes;
        let (ring, record) = self.ring_memory(at, log2_entries.saturating_add(log2_stride))?;
        let path = Arc::clone(&self.opened.path);
        Ok(ReceivePlace { rqn, generation, ring, log2_stride, record, path, lender })
    }

    /// Makes a shared receive queue; `address` is that of its `ibv_srq`.
    pub(crate) fn create_srq(
        &self,
        pdn: u32,
        asked: &ibv_srq_attr,
        how: (bool, Option<Arc<dyn Lender>>),
        address: u64,
    ) -> Result<Srq> {
        if !self.capabilities().contains(Capabilities::SRQ) {
            return Err(unsupported!("shared receive queues are not offered"));
        }
        let request = |cookie, log2_entries, log2_stride| Request::CreateSrq {
            pdn,
            log2_entries,
            log2_stride,
            cookie,
        };
        self.make_srq(asked, request, how, address)
    }

    /// Makes a shared receive queue by a request with its name here, log2 of its entries and of the blocks of each.
    fn make_srq(
        &self,
        asked: &ibv_srq_attr,
        request: impl FnOnce(u64, u8, u8) -> Request,
        (single_threaded, lender): (bool, Option<Arc<dyn Lender>>),
        address: u64,
    ) -> Result<Srq> {
        let sizes = receive_sizes(self.limits(), asked.max_wr, asked.max_sge)?;
        let cookie = new_cookie();
        let ReceiveSizes { log2_entries, log2_stride, max_wr, max_sge } = sizes;
        let request = request(cookie, log2_entries, log2_stride);
        let (srqn, ring) =
            ask!(self.connection, request, Response::Srq { srqn, ring } => (srqn, ring))?;
        let place = self.receive_place(srqn, 0, ring, &sizes, lender);
        let shared = place
            .and_then(|place| SharedReceiveQueue::new(place, max_sge, single_threaded))
            .inspect_err(|_| {
                let _ = self.sent(Request::DestroySrq { srqn });
            })?;
        let shared = Arc::new(shared);
        self.asynchronous.watch(cookie, address, None);
        Ok(Srq { shared, max_wr, max_sge, cq: None, cookie })
    }

    /// Sets below how many requests of a shared receive queue the program is told, once; 0 for none.
    pub(crate) fn set_srq_limit(&self, srq: &Srq, limit: u32) -> Result<()> {
        let request = Request::ModifySrq { srqn: srq.shared.srqn, limit };
        ask!(self.connection, request, Response::Done => ())
    }

    /// The limit of a shared receive queue; 0 once it was reached.
    pub(crate) fn srq_limit(&self, srq: &Srq) -> Result<u32> {
        let request = Request::QuerySrq { srqn: srq.shared.srqn };
        ask!(self.connection, request, Response::SrqLimit { limit } => limit)
    }

    /// Destroys a shared receive queue: no event of it is handed out afterwards.
    pub(crate) fn destroy_srq(&self, srq: &Srq) -> Result<Handed> {
        let (_, asynchronous) = self.sent(Request::DestroySrq { srqn: srq.shared.srqn })?;
        if let Some(cq) = &srq.cq {
            cq::detach_srq(cq, &srq.shared);
        }
        Ok(Handed { completion: 0, asynchronous: self.forget(srq.cookie, asynchronous) })
    }

    /// The operations that can be posted to the send queue of a QP of a kind.
    pub(crate) fn operations(&self, kind: QpType) -> Operations {
        Operations::offered(self.capabilities(), kind)
    }

    /// The kind of QP that an `ibv_qp_type` is, where such QPs are offered.
    pub(crate) fn qp_kind(&self, kind: u32) -> Result<QpType> {
        let kinds = [
            (QpType::Rc, Capabilities::RC),
            (QpType::Uc, Capabilities::UC),
            (QpType::Ud, Capabilities::UD),
            (QpType::XrcSend, Capabilities::XRC),
            (QpType::XrcReceive, Capabilities::XRC),
        ];
        let asked = kinds.into_iter().find(|(offered, _)| u32::from(offered.0) == kind);
        match asked {
            Some((kind, needs)) if self.capabilities().contains(needs) => Ok(kind),
            Some((QpType::Ud, _)) => Err(unsupported!(
                "QPs of type {kind} (UD) are not offered; a card with a published bitstream would need the tunnel for them"
            )),
            _ => Err(unsupported!(
                "QPs of type {kind} are not offered; this card's are {}",
                kinds
                    .into_iter()
                    .filter(|(_, needs)| self.capabilities().contains(*needs))
                    .map(|(offered, _)| format!("{offered:?} ({})", offered.0))
                    .collect::<Vec<_>>()
                    .join(", ")
            )),
        }
    }

    /// Makes a QP in RESET, known to its completion queues.
    pub(crate) fn create_qp(&self, new: &NewQp<'_>) -> Result<Qp> {
        // A QP that has a shared receive queue, or only sends, asks for no receive queue, and gets none.
        let only_sends = new.kind == QpType::XrcSend;
        let own = |cap| match new.srq.is_some() || only_sends {
            true => ibv_qp_cap { max_recv_wr: 0, max_recv_sge: 0, ..cap },
            false => cap,
        };
        let (sizes, cap) = queue_sizes(self.limits(), &own(new.cap))?;
        let cap = own(cap);
        let cookie = new_cookie();
        let request = Request::CreateQp(CreateQp {
            pdn: new.pdn,
            kind: new.kind.0,
            send_cqn: new.send_cq.queue.cqn,
            receive_cqn: new.receive_cq.queue.cqn,
            log2_sq_blocks: sizes.log2_sq_blocks,
            srqn: new.srq.map(|srq| srq.shared.srqn),
            log2_rq_entries: sizes.receive.log2_entries,
            log2_rq_stride: sizes.receive.log2_stride,
            cookie,
            chain: new.chain.clone(),
        });
        let (qpn, generation, sq_ring, receive) = ask!(self.connection, request.clone(),
            Response::Qp { qpn, generation, sq_ring, receive } =>
            (qpn, generation, sq_ring, receive))?;

        let queues = || -> Result<Queues> {
            let (ring, record) = self.ring_memory(sq_ring, sizes.log2_sq_blocks)?;
            let path = Arc::clone(&self.opened.path);
            let none = only_sends
                .then(|| ReceiveQueue::absent(0, ring.clone(), record.clone(), Arc::clone(&path)));
            let [lender, of_receives] = new.lenders.clone();
            let send = SendPlace { qpn, generation, ring, record, path, lender };
            let shape = SendShape {
                max_wr: cap.max_send_wr,
                max_sge: cap.max_send_sge,
                max_inline: cap.max_inline_data,
                operations: self.operations(new.kind),
                flags: FlagTable::new(new.signal_all),
            };
            let send = SendQueue::new(send, shape, new.single_threaded)?;
            let send = (send, new.send_cq.queue.cqn);
            let join =
                |receive| Queues::new(qpn, generation, send, (receive, new.receive_cq.queue.cqn));
            if let Some(none) = none {
                return Ok(join(none).without_receives());
            }
            match (new.srq, receive) {
                (Some(srq), _) => {
                    let shared = Arc::clone(&srq.shared);
                    Ok(join(shared.queue.beside()).with_shared(shared))
                }
                (None, Some(ReceiveRing { rqn, ring })) => {
                    let sizes = &sizes.receive;
                    let place = self.receive_place(rqn, generation, ring, sizes, of_receives)?;
                    let max_sge = cap.max_recv_sge;
                    Ok(join(ReceiveQueue::new(place, max_sge, new.single_threaded)?))
                }
                (None, None) => Err(unexpected(&request, "the QP has no receive queue")),
            }
        };
        let queues = match queues() {
            Ok(queues) => Arc::new(queues),
            Err(error) => {
                let _ = self.sent(Request::DestroyQp { qpn });
                return Err(error);
            }
        };
        let (send_cq, receive_cq) =
            (Arc::clone(&new.send_cq.queue), Arc::clone(&new.receive_cq.queue));
        cq::attach(&send_cq, &receive_cq, &queues);
        self.asynchronous.watch(cookie, new.address, None);
        Ok(Qp {
            queues,
            cap,
            cqs: Some((send_cq, receive_cq)),
            target: None,
            cookie,
            init: Mutex::default(),
        })
    }

    /// Whether others may change a QP, too: an XRC target.
    pub(crate) fn is_shared(qp: &Qp) -> bool {
        qp.target.is_some()
    }

    /// Changes a QP.
    pub(crate) fn modify_qp(&self, qp: &Qp, attributes: &Attributes) -> Result<()> {
        let mut init = qp.init.lock();
        // A queue pair leaves INIT by a change only, or with its card. librdmacm makes this one twice.
        let again = Attributes { current_state: QpState::Init, ..*attributes }.encode();
        let is_init = attributes.state == QpState::Init && qp.target.is_none();
        if self.opened.path.is_fit() {
            if init.is_some_and(|init| init.change == again) {
                return Ok(());
            }
            let is_fresh = is_init && qp.queues.state() == QpState::Reset;
            if is_fresh && attributes.mask == Init::MASK {
                self.connection.check()?;
                qp.queues.set_state(QpState::Init);
                *init = Some(Init { change: again, is_untold: true });
                return Ok(());
            }
        }
        // If the request fails it may be that balboad knows of it, or not: told once more, it changes nothing.
        *init = init.filter(|init| init.is_untold);
        let first = init.map(|init| init.change);
        let (qpn, encoded) = (qp.queues.qpn(), attributes.encode());
        let request = match qp.target {
            None => Request::ModifyQp { qpn, first, attributes: encoded },
            Some(target) => Request::ModifyTarget { target, attributes: encoded },
        };
        let generation =
            ask!(self.connection, request, Response::QpModified { generation } => generation)?;
        if let (QpState::Reset, Some((send_cq, receive_cq))) = (attributes.state, &qp.cqs) {
            cq::reset(send_cq, receive_cq, &qp.queues, generation);
        }
        qp.queues.set_state(attributes.state);
        let from_any = !attributes.mask.contains(AttributeMask::CURRENT_STATE);
        *init = (is_init && from_any).then_some(Init { change: again, is_untold: false });
        Ok(())
    }

    /// Tells balboad of a QP's change to INIT of which it was not told yet.
    fn tell_init(&self, qp: &Qp) -> Result<()> {
        let mut init = qp.init.lock();
        let Some(untold) = init.as_mut().filter(|init| init.is_untold) else { return Ok(()) };
        let qpn = qp.queues.qpn();
        let request = Request::ModifyQp { qpn, first: None, attributes: untold.change };
        ask!(self.connection, request, Response::QpModified { .. } => ())?;
        untold.is_untold = false;
        Ok(())
    }

    /// Asks for a QP's attributes.
    pub(crate) fn query_qp(&self, qp: &Qp) -> Result<Attributes> {
        self.tell_init(qp)?;
        let request = match qp.target {
            None => Request::QueryQp { qpn: qp.queues.qpn() },
            Some(target) => Request::QueryTarget { target },
        };
        let blocks = ask!(self.connection, request,
            Response::QpAttributes { attributes } => attributes)?;
        let attributes = Attributes::decode(&blocks);
        qp.queues.set_state(attributes.state);
        Ok(attributes)
    }

    /// Destroys a QP: no completion and no event of it is handed out afterwards.
    pub(crate) fn destroy_qp(&self, qp: &Qp) -> Result<Handed> {
        let request = match qp.target {
            None => Request::DestroyQp { qpn: qp.queues.qpn() },
            Some(target) => Request::DestroyTarget { target },
        };
        let (_, asynchronous) = self.sent(request)?;
        if let Some((send_cq, receive_cq)) = &qp.cqs {
            cq::detach(send_cq, receive_cq, &qp.queues);
        }
        Ok(Handed { completion: 0, asynchronous: self.forget(qp.cookie, asynchronous) })
    }
}

/// Maps a region's pages for the card, the first byte at `iova`, in pieces that balboad unmaps.
fn map_pages(iommu: &Iommu, registration: &Registration, iova: u64) -> Result<()> {
    const IN_PAGE: u64 = PAGE_BYTES as u64 - 1;
    let Registration { address, length, .. } = *registration;
    let start = address & !IN_PAGE;
    let end = address.saturating_add(length).saturating_add(IN_PAGE) & !IN_PAGE;
    let bytes = end.saturating_sub(start);
    let (iova, writable) = (iova & !IN_PAGE, registration.is_written());
    for (offset, bytes) in shim_abi::dma_pieces(iova, bytes) {
        let (start, iova) = (start.saturating_add(offset), iova.saturating_add(offset));
        iommu.map(start, iova, bytes, writable).map_err(|error| Error::Refused {
            errno: error.errno() as i32,
            reason: error.to_string(),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
