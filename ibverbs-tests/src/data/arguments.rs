//! Arguments that the manual pages forbid, by table: each call fails with its errno, and the nearest right arguments
//! are taken.

use std::rc::Rc;

use anyhow::{Context as _, Result, bail, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, MAX_SGE, Options, Side};
use super::transfer;
use crate::ffi::attempt::{self, AnySend, NewQp};
use crate::ffi::{
    Ah, Cq, CqWishes, Domain, Failed, Library, Mapping, Operation, Pd, Qp, QpWishes, Recv, Region,
    Send, Service, Srq, ThreadDomain, Window,
};

const EINVAL: i32 = libc::EINVAL;
const ENOMEM: i32 = libc::ENOMEM;
const EBUSY: i32 = libc::EBUSY;
const EPERM: i32 = libc::EPERM;
const EFAULT: i32 = libc::EFAULT;
const EOPNOTSUPP: i32 = libc::EOPNOTSUPP;
/// The call is taken.
const TAKEN: i32 = 0;

/// Options of `ibv_set_ece` for a vendor that does not exist.
pub(super) const NOBODYS_OPTIONS: &str = "nobody's options";

/// A call, an argument of it, its errno, and the attempt.
pub(super) type Row = (&'static str, &'static str, i32, fn(&Scene) -> Result<()>);

/// The objects that the calls are tried on.
pub(super) struct Scene {
    /// A connection, whose left side is tried.
    pub(super) link: ConnectedSides,
    /// The left side's device, opened a second time.
    other: Side,
}

/// Runs all of it; answers how many calls there were.
///
/// # Errors
/// At the first that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let scene = Scene::new(options)?;
    for (call, argument, errno, attempt) in all_rows() {
        check(attempt(&scene), *errno).with_context(|| format!("{call}: {argument}"))?;
    }
    Ok(all_rows().count())
}

/// The rows of all tables.
pub(super) fn all_rows() -> impl Iterator<Item = &'static Row> {
    [DOMAINS, MEMORY, COMPLETIONS, QUEUES, STATES, POSTS].into_iter().flatten()
}

/// Adds a rate in kb/s to a change.
fn with_rate(attributes: &mut v::ibv_qp_attr, mask: &mut v::ibv_qp_attr_mask, rate: u32) {
    *mask |= v::IBV_QP_RATE_LIMIT;
    attributes.rate_limit = rate;
}

pub(super) fn check(outcome: Result<()>, errno: i32) -> Result<()> {
    match (outcome, errno) {
        (Ok(()), TAKEN) => Ok(()),
        (Ok(()), _) => bail!("it is taken"),
        (Err(error), _) => {
            let failed = error.downcast::<Failed>()?;
            ensure!(failed.errno == errno, "{failed}");
            Ok(())
        }
    }
}

impl Scene {
    /// Makes all of it.
    pub(super) fn new(options: &Options) -> Result<Self> {
        let events = Options { events: true, ..options.clone() };
        Ok(Self {
            link: ConnectedSides::new(&events, v::IBV_MTU_1024, transfer::room(1 << 16))?,
            other: Side::new(Library::open()?, &events, 0, 1 << 16)?,
        })
    }

    fn left(&self) -> &Side {
        &self.link.left
    }

    fn cqs(&self) -> [&Rc<Cq>; 2] {
        [&self.left().send_cq, &self.left().receive_cq]
    }

    /// A completion queue of so many entries, on a vector.
    fn cq(&self, entries: i32, vector: i32) -> Result<()> {
        attempt::create_cq(&self.left().context, (entries, vector), None)
    }

    /// Tries to make a QP with a changed argument.
    fn qp(&self, change: impl FnOnce(&mut NewQp<'_>)) -> Result<()> {
        let capabilities = capabilities();
        let [send_cq, receive_cq] = self.cqs().map(|cq| Some(&**cq));
        let mut new = NewQp { send_cq, receive_cq, srq: None, capabilities, kind: v::IBV_QPT_RC };
        change(&mut new);
        attempt::create_qp(&self.left().pd, &new)
    }

    /// A QP of a size that is the most and so much more.
    fn qp_of(&self, set: impl FnOnce(&mut v::ibv_qp_cap, &v::ibv_device_attr)) -> Result<()> {
        let most = self.left().context.attributes()?;
        self.qp(|new| set(&mut new.capabilities, &most))
    }

    /// Tries to make an extended QP of these properties.
    fn qp_ex(&self, comp_mask: u32, create_flags: u32, send_ops: u64) -> Result<()> {
        let wishes = QpWishes { comp_mask, send_ops, create_flags };
        Qp::extended(&self.left().pd, self.cqs(), capabilities(), wishes).map(drop)
    }

    /// A QP of a kind in RESET.
    fn new_qp(&self, kind: v::ibv_qp_type) -> Result<Qp> {
        let (pd, cqs) = (&self.left().pd, self.cqs());
        Ok(match kind {
            v::IBV_QPT_UD => Qp::of(Service::Datagram, pd, cqs, capabilities())?,
            v::IBV_QPT_UC => Qp::of(Service::Unreliable, pd, cqs, capabilities())?,
            _ => Qp::new(pd, cqs[0], cqs[1], capabilities())?,
        })
    }

    /// A QP in a state, as if connected to itself.
    fn qp_in(&self, kind: v::ibv_qp_type, state: v::ibv_qp_state) -> Result<Qp> {
        let qp = self.new_qp(kind)?;
        self.bring(&qp, kind, state)?;
        Ok(qp)
    }

    /// Brings a QP of a kind from RESET to a state.
    pub(super) fn bring(
        &self,
        qp: &Qp,
        kind: v::ibv_qp_type,
        state: v::ibv_qp_state,
    ) -> Result<()> {
        WAY.into_iter().take_while(|(to, _)| *to <= state).try_for_each(|(to, mask)| {
            qp.modify_any(self.attributes(to)?, mask & !lacking(kind) | having(kind, to))
        })
    }

    /// Right attributes for a step.
    fn attributes(&self, to: v::ibv_qp_state) -> Result<v::ibv_qp_attr> {
        let attr = v::ibv_qp_attr { qp_state: to, ..attempt::no_attributes() };
        let mut attr = v::ibv_qp_attr {
            path_mtu: v::IBV_MTU_1024,
            port_num: 1,
            dest_qp_num: self.link.right.qp.number(),
            qkey: 0x1111,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..attr
        };
        attr.ah_attr = self.route()?;
        Ok(attr)
    }

    /// A route to the other side.
    fn route(&self) -> Result<v::ibv_ah_attr> {
        let mut route = attempt::no_attributes().ah_attr;
        (route.is_global, route.port_num) = (1, 1);
        route.grh.dgid = v::ibv_gid { raw: self.link.right.context.gid(1)? };
        (route.grh.sgid_index, route.grh.hop_limit) = (1, 64);
        Ok(route)
    }

    /// A step of a new RC QP in the state before, with other attributes or another mask.
    fn step(
        &self,
        to: v::ibv_qp_state,
        change: impl FnOnce(&mut v::ibv_qp_attr, &mut v::ibv_qp_attr_mask),
    ) -> Result<()> {
        let at = WAY.iter().position(|(state, _)| *state == to).context("a step of the way")?;
        let before = at.checked_sub(1).map_or(v::IBV_QPS_RESET, |before| WAY[before].0);
        let qp = self.qp_in(v::IBV_QPT_RC, before)?;
        let (mut attributes, mut mask) = (self.attributes(to)?, WAY[at].1);
        change(&mut attributes, &mut mask);
        qp.modify_any(attributes, mask)
    }

    /// Tries to hold a queue pair in a state to a rate, with bursts and packets of so many bytes, and bits beside.
    fn limit(&self, state: v::ibv_qp_state, numbers: [u32; 4]) -> Result<()> {
        let [rate_limit, max_burst_sz, packet, comp_mask] = numbers;
        let typical_pkt_sz = u16::try_from(packet)?;
        let rate =
            v::ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask };
        Ok(self.qp_in(v::IBV_QPT_RC, state)?.limit_rate(rate)?)
    }

    /// Tries to make an address handle with a changed attribute.
    fn ah(&self, change: impl FnOnce(&mut v::ibv_ah_attr)) -> Result<()> {
        let mut route = self.route()?;
        change(&mut route);
        Ok(Ah::with(&self.left().pd, route).map(drop)?)
    }

    /// Registers part of a page of memory.
    fn mr(&self, access: v::ibv_access_flags) -> Result<()> {
        let memory = Mapping::zeroed(4096)?;
        attempt::reg_mr(&self.left().pd, (memory.address(), 4096), None, access)
    }

    /// Binds a window with rights to a region, by a QP, each of a domain.
    pub(super) fn bind(
        &self,
        [of_qp, of_window, of_region]: [&Rc<Pd>; 3],
        access: v::ibv_access_flags,
    ) -> Result<()> {
        let region = Region::new(of_region, 4096, WRITABLE | v::IBV_ACCESS_MW_BIND, false)?;
        let qp = Qp::new(of_qp, self.cqs()[0], self.cqs()[1], capabilities())?;
        self.bring(&qp, v::IBV_QPT_RC, v::IBV_QPS_RTS)?;
        attempt::bind_mw(&qp, of_window, &region, access)
    }

    /// A parent domain of the left side's.
    fn parent(&self) -> Result<Rc<Pd>> {
        let side = self.left();
        Pd::parent(&side.pd, &ThreadDomain::new(&side.context)?)
    }

    /// Posts a request of the left side's with a changed field to a QP.
    fn post(&self, qp: &Qp, change: impl FnOnce(&mut AnySend, &Rc<Region>)) -> Result<()> {
        let right = &self.link.right.region;
        let mut request = AnySend {
            opcode: v::IBV_WR_RDMA_WRITE,
            pieces: vec![self.left().region.piece(0, 8)],
            remote: (right.address(), right.rkey()),
            ..AnySend::default()
        };
        change(&mut request, &self.left().region);
        qp.post_any(&request)
    }

    /// The same, to a new QP of a kind in RTS.
    pub(super) fn post_to(
        &self,
        kind: v::ibv_qp_type,
        change: impl FnOnce(&mut AnySend, &Rc<Region>),
    ) -> Result<()> {
        self.post(&self.qp_in(kind, v::IBV_QPS_RTS)?, change)
    }
}

/// The capabilities of the tests' QPs.
pub(super) fn capabilities() -> v::ibv_qp_cap {
    v::ibv_qp_cap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 0,
    }
}

/// The way of a reliable connection to RTS.
const WAY: [(v::ibv_qp_state, v::ibv_qp_attr_mask); 3] = [
    (
        v::IBV_QPS_INIT,
        v::IBV_QP_STATE | v::IBV_QP_PKEY_INDEX | v::IBV_QP_PORT | v::IBV_QP_ACCESS_FLAGS,
    ),
    (
        v::IBV_QPS_RTR,
        v::IBV_QP_STATE
            | v::IBV_QP_AV
            | v::IBV_QP_PATH_MTU
            | v::IBV_QP_DEST_QPN
            | v::IBV_QP_RQ_PSN
            | v::IBV_QP_MAX_DEST_RD_ATOMIC
            | v::IBV_QP_MIN_RNR_TIMER,
    ),
    (
        v::IBV_QPS_RTS,
        v::IBV_QP_STATE
            | v::IBV_QP_SQ_PSN
            | v::IBV_QP_TIMEOUT
            | v::IBV_QP_RETRY_CNT
            | v::IBV_QP_RNR_RETRY
            | v::IBV_QP_MAX_QP_RD_ATOMIC,
    ),
];

/// The attributes that other kinds of QPs lack.
fn lacking(kind: v::ibv_qp_type) -> v::ibv_qp_attr_mask {
    let reliable = v::IBV_QP_MAX_DEST_RD_ATOMIC
        | v::IBV_QP_MIN_RNR_TIMER
        | v::IBV_QP_TIMEOUT
        | v::IBV_QP_RETRY_CNT
        | v::IBV_QP_RNR_RETRY
        | v::IBV_QP_MAX_QP_RD_ATOMIC;
    let path = v::IBV_QP_AV | v::IBV_QP_PATH_MTU | v::IBV_QP_DEST_QPN | v::IBV_QP_RQ_PSN;
    match kind {
        v::IBV_QPT_UD => reliable | path | v::IBV_QP_ACCESS_FLAGS,
        v::IBV_QPT_UC => reliable,
        _ => 0,
    }
}

/// The attributes that they have in their place.
fn having(kind: v::ibv_qp_type, to: v::ibv_qp_state) -> v::ibv_qp_attr_mask {
    if kind == v::IBV_QPT_UD && to == v::IBV_QPS_INIT { v::IBV_QP_QKEY } else { 0 }
}

const DOMAINS: &[Row] = &[
    ("ibv_dealloc_pd", "a memory region in it", EBUSY, |s| attempt::dealloc_used_pd(&s.left().pd)),
    ("ibv_dealloc_pd", "a QP in it", EBUSY, |s| {
        let pd = Pd::new(&s.left().context)?;
        let _qp = Qp::new(&pd, s.cqs()[0], s.cqs()[1], capabilities())?;
        attempt::dealloc_used_pd(&pd)
    }),
    ("ibv_dealloc_pd", "a shared receive queue in it", EBUSY, |s| {
        let pd = Pd::new(&s.left().context)?;
        let _srq = Srq::new(&pd, 4, 1)?;
        attempt::dealloc_used_pd(&pd)
    }),
    ("ibv_dealloc_pd", "an address handle in it", EBUSY, |s| {
        let pd = Pd::new(&s.left().context)?;
        let _ah = Ah::with(&pd, s.route()?)?;
        attempt::dealloc_used_pd(&pd)
    }),
    ("ibv_dealloc_pd", "a memory window in it", EBUSY, |s| {
        let pd = Pd::new(&s.left().context)?;
        attempt::dealloc_pd_of_window(&pd)
    }),
    ("ibv_dealloc_pd", "a parent domain of it", EBUSY, |s| {
        let pd = Pd::new(&s.left().context)?;
        let _parent = Pd::parent(&pd, &ThreadDomain::new(&s.left().context)?)?;
        attempt::dealloc_used_pd(&pd)
    }),
    ("ibv_dealloc_td", "a parent domain of it", EBUSY, |s| {
        let thread = ThreadDomain::new(&s.left().context)?;
        let _parent = Pd::parent(&s.left().pd, &thread)?;
        attempt::dealloc_used_td(&s.left().context, &thread)
    }),
    ("ibv_alloc_td", "an unknown mask", EINVAL, |s| attempt::alloc_td(&s.left().context, 1)),
    ("ibv_alloc_td", "no mask", TAKEN, |s| attempt::alloc_td(&s.left().context, 0)),
    ("ibv_alloc_parent_domain", "no protection domain", EINVAL, |s| {
        attempt::alloc_parent_domain(&s.left().context, None, 0)
    }),
    ("ibv_alloc_parent_domain", "a parent domain", EINVAL, |s| {
        let parent = Pd::parent(&s.left().pd, &ThreadDomain::new(&s.left().context)?)?;
        attempt::alloc_parent_domain(&s.left().context, Some(&parent), 0)
    }),
    ("ibv_alloc_parent_domain", "a domain of another context", EINVAL, |s| {
        attempt::alloc_parent_domain(&s.left().context, Some(&s.other.pd), 0)
    }),
    ("ibv_alloc_parent_domain", "an unknown mask", EINVAL, |s| {
        attempt::alloc_parent_domain(&s.left().context, Some(&s.left().pd), 1 << 9)
    }),
    ("ibv_alloc_parent_domain", "allocators that are none", EINVAL, |s| {
        let mask = v::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        attempt::alloc_parent_domain(&s.left().context, Some(&s.left().pd), mask)
    }),
    ("ibv_create_ah", "a right one", TAKEN, |s| s.ah(|_| {})),
    ("ibv_create_ah", "no global route", EINVAL, |s| s.ah(|route| route.is_global = 0)),
    ("ibv_create_ah", "a rate of 2.5 Gb/s", TAKEN, |s| s.ah(|route| route.static_rate = 2)),
    ("ibv_create_ah", "no rate", EINVAL, |s| s.ah(|route| route.static_rate = 25)),
    ("ibv_create_ah", "port 0", EINVAL, |s| s.ah(|route| route.port_num = 0)),
    ("ibv_create_ah", "port 2", EINVAL, |s| s.ah(|route| route.port_num = 2)),
    ("ibv_create_ah", "a GID index without a GID", EINVAL, |s| {
        s.ah(|route| route.grh.sgid_index = 15)
    }),
    ("ibv_create_ah", "a GID index behind the table", EINVAL, |s| {
        s.ah(|route| route.grh.sgid_index = 255)
    }),
    ("ibv_alloc_mw", "type 1", TAKEN, |s| attempt::alloc_mw(&s.left().pd, v::IBV_MW_TYPE_1)),
    ("ibv_alloc_mw", "type 0", EINVAL, |s| attempt::alloc_mw(&s.left().pd, 0)),
    ("ibv_alloc_mw", "type 3", EINVAL, |s| attempt::alloc_mw(&s.left().pd, 3)),
];

const WRITABLE: v::ibv_access_flags = v::IBV_ACCESS_LOCAL_WRITE;

const MEMORY: &[Row] = &[
    ("ibv_reg_mr", "no rights but to be read here", TAKEN, |s| s.mr(0)),
    ("ibv_reg_mr", "REMOTE_WRITE without LOCAL_WRITE", EINVAL, |s| {
        s.mr(v::IBV_ACCESS_REMOTE_WRITE)
    }),
    ("ibv_reg_mr", "REMOTE_ATOMIC without LOCAL_WRITE", EINVAL, |s| {
        s.mr(v::IBV_ACCESS_REMOTE_ATOMIC | v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_reg_mr", "an unknown right", EINVAL, |s| s.mr(WRITABLE | 1 << 12)),
    ("ibv_reg_mr", "ON_DEMAND", EOPNOTSUPP, |s| s.mr(WRITABLE | v::IBV_ACCESS_ON_DEMAND)),
    ("ibv_reg_mr", "HUGETLB", TAKEN, |s| s.mr(WRITABLE | v::IBV_ACCESS_HUGETLB)),
    ("ibv_reg_mr", "RELAXED_ORDERING", TAKEN, |s| s.mr(WRITABLE | v::IBV_ACCESS_RELAXED_ORDERING)),
    ("ibv_reg_mr", "optional rights of later releases", TAKEN, |s| s.mr(WRITABLE | 1 << 25)),
    ("ibv_reg_mr", "no bytes", EINVAL, |s| {
        let memory = Mapping::zeroed(4096)?;
        attempt::reg_mr(&s.left().pd, (memory.address(), 0), None, WRITABLE)
    }),
    ("ibv_reg_mr", "the address 0", EFAULT, |s| {
        attempt::reg_mr(&s.left().pd, (0, 4096), None, WRITABLE)
    }),
    ("ibv_reg_mr", "the end of all addresses", EINVAL, |s| {
        attempt::reg_mr(&s.left().pd, (u64::MAX - 4095, 8192), None, WRITABLE)
    }),
    ("ibv_reg_mr", "everything, as implicit on-demand paging has it", EOPNOTSUPP, |s| {
        let access = WRITABLE | v::IBV_ACCESS_ON_DEMAND;
        attempt::reg_mr(&s.left().pd, (0, usize::MAX), None, access)
    }),
    ("ibv_reg_mr", "more bytes than max_mr_size", EINVAL, |s| {
        let most = s.left().context.attributes()?.max_mr_size as usize;
        attempt::reg_mr(&s.left().pd, (4096, most + 1), None, 0)
    }),
    ("ibv_reg_mr", "memory that may not be written, to be written", EFAULT, |s| {
        let memory = Mapping::empty(4096)?;
        attempt::reg_mr(&s.left().pd, (memory.address(), 4096), None, WRITABLE)
    }),
    ("ibv_reg_mr", "memory that may not be written, to be read", TAKEN, |s| {
        let memory = Mapping::empty(4096)?;
        attempt::reg_mr(&s.left().pd, (memory.address(), 4096), None, v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_reg_mr_iova2", "names that run past the last address", EINVAL, |s| {
        let memory = Mapping::zeroed(4096)?;
        let iova = Some(u64::MAX - 4094);
        attempt::reg_mr(&s.left().pd, (memory.address(), 4096), iova, WRITABLE)
    }),
    ("ibv_dereg_mr", "a window bound to it", EBUSY, |s| {
        let access = WRITABLE | v::IBV_ACCESS_MW_BIND;
        let region = Region::new(&s.left().pd, 4096, access, false)?;
        let window = Window::new(&region)?;
        let key = (window.rkey() & !0xff) | (window.rkey().wrapping_add(1) & 0xff);
        s.left().qp.post_bind(1, (&window, key), (0, 4096), v::IBV_ACCESS_REMOTE_READ)?;
        let bound = s.link.completion(&s.left().send_cq)?;
        ensure!(bound.status == v::IBV_WC_SUCCESS, "{bound:?}");
        Ok(region.deregister()?)
    }),
    ("ibv_bind_mw", "a window of the QP's domain", TAKEN, |s| {
        s.bind([&s.left().pd; 3], v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_bind_mw", "a window and a region of the domain below the QP's", TAKEN, |s| {
        let pd = &s.left().pd;
        s.bind([&s.parent()?, pd, pd], v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_bind_mw", "a window of a domain above the region's", TAKEN, |s| {
        let pd = &s.left().pd;
        s.bind([pd, &s.parent()?, pd], v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_bind_mw", "a region of a domain above the window's", TAKEN, |s| {
        let pd = &s.left().pd;
        s.bind([pd, pd, &s.parent()?], v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_bind_mw", "a QP that only receives, and has no domain", EPERM, |s| {
        let (pd, domain) = (&s.left().pd, Domain::open(&s.left().context, None)?);
        let region = Region::new(pd, 4096, WRITABLE | v::IBV_ACCESS_MW_BIND, false)?;
        let qp = Qp::target(pd, &domain)?;
        attempt::bind_mw(&qp, pd, &region, v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_bind_mw", "a window of another domain than the QP's", EPERM, |s| {
        let (pd, other) = (&s.left().pd, &Pd::new(&s.left().context)?);
        s.bind([pd, other, other], v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_bind_mw", "a region of another domain than the window's", EPERM, |s| {
        let (pd, other) = (&s.left().pd, &Pd::new(&s.left().context)?);
        s.bind([pd, pd, other], v::IBV_ACCESS_REMOTE_READ)
    }),
    ("ibv_reg_dmabuf_mr", "a descriptor of something else", EINVAL, |s| {
        attempt::reg_dmabuf_mr(&s.left().pd, &tempfile::tempfile()?, 4096, WRITABLE)
    }),
    ("ibv_reg_mr_iova2", "the name 0", TAKEN, |s| {
        let memory = Mapping::zeroed(4096)?;
        attempt::reg_mr(&s.left().pd, (memory.address(), 4096), Some(0), WRITABLE)
    }),
];

const COMPLETIONS: &[Row] = &[
    ("ibv_create_cq", "one entry", TAKEN, |s| s.cq(1, 0)),
    ("ibv_create_cq", "no entries", EINVAL, |s| s.cq(0, 0)),
    ("ibv_create_cq", "fewer than none", EINVAL, |s| s.cq(-1, 0)),
    ("ibv_create_cq", "more than max_cqe", EINVAL, |s| {
        s.cq(s.left().context.attributes()?.max_cqe + 1, 0)
    }),
    ("ibv_create_cq", "the most there can be", EINVAL, |s| s.cq(i32::MAX, 0)),
    ("ibv_create_cq", "the last vector", TAKEN, |s| s.cq(1, s.left().context.vectors() - 1)),
    ("ibv_create_cq", "a vector too far", EINVAL, |s| s.cq(1, s.left().context.vectors())),
    ("ibv_create_cq", "vector -1", EINVAL, |s| s.cq(1, -1)),
    ("ibv_create_cq", "a channel of another context", EINVAL, |s| {
        let channel = s.other.send_cq.channel().context("it has one")?;
        attempt::create_cq(&s.left().context, (1, 0), Some(channel))
    }),
    ("ibv_create_cq_ex", "a parent domain of another context", EINVAL, |s| {
        let context = &s.other.context;
        let parent = Pd::parent(&s.other.pd, &ThreadDomain::new(context)?)?;
        let comp_mask = v::IBV_CQ_INIT_ATTR_MASK_PD;
        let wishes = CqWishes { comp_mask, parent: Some(&parent), ..CqWishes::default() };
        Cq::extended(&s.left().context, 1, None, wishes).map(drop)
    }),
    ("ibv_resize_cq", "no entries", EINVAL, |s| Ok(s.left().send_cq.resize(0)?)),
    ("ibv_resize_cq", "more than max_cqe", EINVAL, |s| {
        let most = s.left().context.attributes()?.max_cqe as u32;
        Ok(s.left().send_cq.resize(most + 1)?)
    }),
    ("ibv_resize_cq", "fewer than wait in it", EINVAL, |s| {
        let (qp, cq) = (&s.left().qp, &s.left().receive_cq);
        qp.to(v::IBV_QPS_ERR)?;
        (0..4).try_for_each(|wr_id| qp.post_recv(&Recv { wr_id, pieces: Vec::new() }))?;
        // Flushed in one turn with them: a command that comes behind it finds all of them there. (A queue that is too
        // small for the outstanding completions would overrun.)
        let (operation, pieces, wr_id) = (Operation::Send, Vec::new(), 4);
        let send = Send { wr_id, operation, pieces, remote: (0, 0), immediate: 0, flags: 0 };
        qp.post_send(&[send]).map_err(|(failed, _)| failed)?;
        ensure!(s.link.completion(&s.left().send_cq)?.wr_id == wr_id);
        let outcome = cq.resize(2);
        for wr_id in 0..4 {
            ensure!(s.link.completion(cq)?.wr_id == wr_id);
        }
        Ok(outcome?)
    }),
    ("ibv_destroy_cq", "QPs that complete on it", EBUSY, |s| {
        attempt::destroy_used_cq(&s.left().context, &s.left().send_cq)
    }),
    ("ibv_destroy_comp_channel", "queues that report to it", EBUSY, |s| {
        let channel = s.left().send_cq.channel().context("it has one")?;
        attempt::destroy_used_channel(&s.left().context, channel)
    }),
];

/// The least that a QP can be asked for.
const NOTHING: v::ibv_qp_cap = v::ibv_qp_cap {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

const QUEUES: &[Row] = &[
    ("ibv_create_qp", "a right one", TAKEN, |s| s.qp(|_| {})),
    ("ibv_create_qp", "no requests and no elements", TAKEN, |s| {
        s.qp(|new| new.capabilities = NOTHING)
    }),
    ("ibv_create_qp", "no send CQ", EINVAL, |s| s.qp(|new| new.send_cq = None)),
    ("ibv_create_qp", "no receive CQ", EINVAL, |s| s.qp(|new| new.receive_cq = None)),
    ("ibv_create_qp", "a send CQ of another context", EINVAL, |s| {
        let [send_cq, receive_cq] = [&s.other.send_cq, &s.left().receive_cq];
        Ok(Qp::new(&s.left().pd, send_cq, receive_cq, capabilities()).map(drop)?)
    }),
    ("ibv_create_qp", "a receive CQ of another context", EINVAL, |s| {
        let [send_cq, receive_cq] = [&s.left().send_cq, &s.other.receive_cq];
        Ok(Qp::new(&s.left().pd, send_cq, receive_cq, capabilities()).map(drop)?)
    }),
    ("ibv_create_qp", "a shared receive queue of another context", EINVAL, |s| {
        let srq = Srq::new(&s.other.pd, 4, 1)?;
        let [send_cq, receive_cq] = s.cqs().map(|cq| Some(&**cq));
        let (srq, capabilities, kind) = (Some(&*srq), capabilities(), v::IBV_QPT_RC);
        let new = NewQp { send_cq, receive_cq, srq, capabilities, kind };
        attempt::create_qp(&s.left().pd, &new)
    }),
    ("ibv_create_qp", "a shared receive queue of another domain", TAKEN, |s| {
        let srq = Srq::new(&Pd::new(&s.left().context)?, 4, 1)?;
        let [send_cq, receive_cq] = s.cqs().map(|cq| Some(&**cq));
        let (srq, capabilities, kind) = (Some(&*srq), capabilities(), v::IBV_QPT_RC);
        let new = NewQp { send_cq, receive_cq, srq, capabilities, kind };
        attempt::create_qp(&s.left().pd, &new)
    }),
    ("ibv_create_qp", "raw packets", EOPNOTSUPP, |s| s.qp(|new| new.kind = v::IBV_QPT_RAW_PACKET)),
    ("ibv_create_qp", "a driver's own type", EOPNOTSUPP, |s| {
        s.qp(|new| new.kind = v::IBV_QPT_DRIVER)
    }),
    ("ibv_create_qp", "more sends than max_qp_wr", EINVAL, |s| {
        s.qp_of(|cap, most| cap.max_send_wr = most.max_qp_wr as u32 + 1)
    }),
    ("ibv_create_qp", "more receives than max_qp_wr", EINVAL, |s| {
        s.qp_of(|cap, most| cap.max_recv_wr = most.max_qp_wr as u32 + 1)
    }),
    ("ibv_create_qp", "the most sends there can be", EINVAL, |s| {
        s.qp_of(|cap, _| cap.max_send_wr = u32::MAX)
    }),
    ("ibv_create_qp", "more elements of a send than max_sge", EINVAL, |s| {
        s.qp_of(|cap, most| cap.max_send_sge = most.max_sge as u32 + 1)
    }),
    ("ibv_create_qp", "more elements of a receive than max_sge", EINVAL, |s| {
        s.qp_of(|cap, most| cap.max_recv_sge = most.max_sge as u32 + 1)
    }),
    ("ibv_create_qp", "more inline bytes than there can be", EINVAL, |s| {
        s.qp_of(|cap, _| cap.max_inline_data = 1 << 12)
    }),
    ("ibv_create_qp", "an allocator without memory", ENOMEM, |s| {
        attempt::without_memory(&s.left().pd, |pd| {
            Ok(Qp::new(pd, s.cqs()[0], s.cqs()[1], capabilities()).map(drop)?)
        })
    }),
    ("ibv_create_srq", "an allocator without memory", ENOMEM, |s| {
        attempt::without_memory(&s.left().pd, |pd| Ok(Srq::new(pd, 4, 1).map(drop)?))
    }),
    ("ibv_create_qp_ex", "create_flags of 0", TAKEN, |s| {
        s.qp_ex(v::IBV_QP_INIT_ATTR_CREATE_FLAGS, 0, 0)
    }),
    ("ibv_create_qp_ex", "create_flags", EOPNOTSUPP, |s| {
        s.qp_ex(v::IBV_QP_INIT_ATTR_CREATE_FLAGS, v::IBV_QP_CREATE_SCATTER_FCS, 0)
    }),
    ("ibv_create_qp_ex", "create_flags without their mask", TAKEN, |s| s.qp_ex(0, u32::MAX, 0)),
    ("ibv_create_qp_ex", "segmentation", EOPNOTSUPP, |s| {
        s.qp_ex(v::IBV_QP_INIT_ATTR_MAX_TSO_HEADER, 0, 0)
    }),
    ("ibv_create_qp_ex", "a table of receive queues", EOPNOTSUPP, |s| {
        s.qp_ex(v::IBV_QP_INIT_ATTR_IND_TABLE, 0, 0)
    }),
    ("ibv_create_qp_ex", "a hash", EOPNOTSUPP, |s| s.qp_ex(v::IBV_QP_INIT_ATTR_RX_HASH, 0, 0)),
    ("ibv_create_qp_ex", "an unknown mask", EINVAL, |s| s.qp_ex(1 << 20, 0, 0)),
    ("ibv_create_qp_ex", "operations that no QP has", EOPNOTSUPP, |s| {
        s.qp_ex(v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, 0, v::IBV_QP_EX_WITH_TSO.into())
    }),
    ("ibv_create_srq", "more requests than max_srq_wr", EINVAL, |s| {
        let most = s.left().context.attributes()?.max_srq_wr as u32;
        Ok(Srq::new(&s.left().pd, most + 1, 1).map(drop)?)
    }),
    ("ibv_create_srq", "more elements than max_srq_sge", EINVAL, |s| {
        let most = s.left().context.attributes()?.max_srq_sge as u32;
        Ok(Srq::new(&s.left().pd, 4, most + 1).map(drop)?)
    }),
    ("ibv_modify_srq", "a limit of all its requests", TAKEN, |s| {
        let srq = Srq::new(&s.left().pd, 4, 1)?;
        Ok(srq.modify(v::IBV_SRQ_LIMIT, limit(srq.granted.max_wr))?)
    }),
    ("ibv_modify_srq", "a limit beyond its requests", EINVAL, |s| {
        let srq = Srq::new(&s.left().pd, 4, 1)?;
        Ok(srq.modify(v::IBV_SRQ_LIMIT, limit(srq.granted.max_wr + 1))?)
    }),
    ("ibv_modify_srq", "another size", EOPNOTSUPP, |s| {
        Ok(Srq::new(&s.left().pd, 4, 1)?.modify(v::IBV_SRQ_MAX_WR, limit(0))?)
    }),
    ("ibv_modify_srq", "an unknown mask", EINVAL, |s| {
        Ok(Srq::new(&s.left().pd, 4, 1)?.modify(1 << 7, limit(0))?)
    }),
    ("ibv_destroy_srq", "QPs that receive from it", EBUSY, |s| {
        let srq = Srq::new(&s.left().pd, 4, 1)?;
        let _qp = Qp::sharing(&srq, s.cqs()[0], s.cqs()[1], capabilities())?;
        Err(srq.refuses_to_go().into())
    }),
];

fn limit(srq_limit: u32) -> v::ibv_srq_attr {
    v::ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit }
}

const STATES: &[Row] = &[
    ("ibv_modify_qp", "RESET to INIT", TAKEN, |s| s.step(v::IBV_QPS_INIT, |_, _| {})),
    ("ibv_modify_qp", "INIT to RTR", TAKEN, |s| s.step(v::IBV_QPS_RTR, |_, _| {})),
    ("ibv_modify_qp", "RTR to RTS", TAKEN, |s| s.step(v::IBV_QPS_RTS, |_, _| {})),
    ("ibv_modify_qp", "RESET to RTR", EINVAL, |s| {
        s.new_qp(v::IBV_QPT_RC)?.modify_any(s.attributes(v::IBV_QPS_RTR)?, WAY[1].1)
    }),
    ("ibv_modify_qp", "RESET to RTS", EINVAL, |s| {
        s.new_qp(v::IBV_QPT_RC)?.modify_any(s.attributes(v::IBV_QPS_RTS)?, WAY[2].1)
    }),
    ("ibv_modify_qp", "RTS to INIT", EINVAL, |s| {
        let qp = s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_RTS)?;
        qp.modify_any(s.attributes(v::IBV_QPS_INIT)?, WAY[0].1)
    }),
    ("ibv_modify_qp", "ERR to RTS", EINVAL, |s| {
        let qp = s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_RTS)?;
        qp.to(v::IBV_QPS_ERR)?;
        qp.modify_any(s.attributes(v::IBV_QPS_RTS)?, WAY[2].1)
    }),
    ("ibv_modify_qp", "a state that is none", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |attr, _| attr.qp_state = v::IBV_QPS_ERR + 1)
    }),
    ("ibv_modify_qp", "another current state than it has", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |attr, mask| {
            (attr.cur_qp_state, *mask) = (v::IBV_QPS_RTR, *mask | v::IBV_QP_CUR_STATE);
        })
    }),
    ("ibv_modify_qp", "an unknown mask", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |_, mask| *mask |= 1 << 30)
    }),
    ("ibv_modify_qp", "RESET to INIT without rights", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |_, mask| *mask &= !v::IBV_QP_ACCESS_FLAGS)
    }),
    ("ibv_modify_qp", "RESET to INIT without a port", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |_, mask| *mask &= !v::IBV_QP_PORT)
    }),
    ("ibv_modify_qp", "RESET to INIT with a PSN", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |_, mask| *mask |= v::IBV_QP_SQ_PSN)
    }),
    ("ibv_modify_qp", "RESET to INIT with a Q_Key", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |_, mask| *mask |= v::IBV_QP_QKEY)
    }),
    ("ibv_modify_qp", "INIT to RTR without a path", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |_, mask| *mask &= !v::IBV_QP_AV)
    }),
    ("ibv_modify_qp", "INIT to RTR without a peer", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |_, mask| *mask &= !v::IBV_QP_DEST_QPN)
    }),
    ("ibv_modify_qp", "INIT to RTR with retries", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |_, mask| *mask |= v::IBV_QP_RETRY_CNT)
    }),
    ("ibv_modify_qp", "RTR to RTS without retries", EINVAL, |s| {
        s.step(v::IBV_QPS_RTS, |_, mask| *mask &= !v::IBV_QP_RETRY_CNT)
    }),
    ("ibv_modify_qp", "RTR to RTS with an MTU", EINVAL, |s| {
        s.step(v::IBV_QPS_RTS, |_, mask| *mask |= v::IBV_QP_PATH_MTU)
    }),
    ("ibv_modify_qp", "port 2", EINVAL, |s| s.step(v::IBV_QPS_INIT, |attr, _| attr.port_num = 2)),
    ("ibv_modify_qp", "port 0", EINVAL, |s| s.step(v::IBV_QPS_INIT, |attr, _| attr.port_num = 0)),
    ("ibv_modify_qp", "P_Key index 1", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |attr, _| attr.pkey_index = 1)
    }),
    ("ibv_modify_qp", "an unknown right", EINVAL, |s| {
        s.step(v::IBV_QPS_INIT, |attr, _| attr.qp_access_flags = 1 << 15)
    }),
    ("ibv_modify_qp", "MTU 0", EINVAL, |s| s.step(v::IBV_QPS_RTR, |attr, _| attr.path_mtu = 0)),
    ("ibv_modify_qp", "MTU 6", EINVAL, |s| s.step(v::IBV_QPS_RTR, |attr, _| attr.path_mtu = 6)),
    ("ibv_modify_qp", "a peer of 25 bits", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |attr, _| attr.dest_qp_num = 1 << 24)
    }),
    ("ibv_modify_qp", "a path without a global route", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |attr, _| attr.ah_attr.is_global = 0)
    }),
    ("ibv_modify_qp", "a GID index without a GID", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |attr, _| attr.ah_attr.grh.sgid_index = 15)
    }),
    ("ibv_modify_qp", "a GID index behind the table", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |attr, _| attr.ah_attr.grh.sgid_index = 255)
    }),
    ("ibv_modify_qp", "more READs answered than max_qp_rd_atom", EINVAL, |s| {
        let most = s.left().context.attributes()?.max_qp_rd_atom as u8;
        s.step(v::IBV_QPS_RTR, |attr, _| attr.max_dest_rd_atomic = most + 1)
    }),
    ("ibv_modify_qp", "an RNR timer of 6 bits", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |attr, _| attr.min_rnr_timer = 32)
    }),
    ("ibv_modify_qp", "more READs asked than max_qp_init_rd_atom", EINVAL, |s| {
        let most = s.left().context.attributes()?.max_qp_init_rd_atom as u8;
        s.step(v::IBV_QPS_RTS, |attr, _| attr.max_rd_atomic = most + 1)
    }),
    ("ibv_modify_qp", "a timeout of 6 bits", EINVAL, |s| {
        s.step(v::IBV_QPS_RTS, |attr, _| attr.timeout = 32)
    }),
    ("ibv_modify_qp", "8 retries", EINVAL, |s| {
        s.step(v::IBV_QPS_RTS, |attr, _| attr.retry_cnt = 8)
    }),
    ("ibv_modify_qp", "8 RNR retries", EINVAL, |s| {
        s.step(v::IBV_QPS_RTS, |attr, _| attr.rnr_retry = 8)
    }),
    ("ibv_modify_qp", "an alternate path", EOPNOTSUPP, |s| {
        s.step(v::IBV_QPS_RTR, |_, mask| *mask |= v::IBV_QP_ALT_PATH)
    }),
    ("ibv_modify_qp", "a state of migration", EOPNOTSUPP, |s| {
        s.step(v::IBV_QPS_RTS, |_, mask| *mask |= v::IBV_QP_PATH_MIG_STATE)
    }),
    ("ibv_modify_qp", "another size", EOPNOTSUPP, |s| {
        s.step(v::IBV_QPS_INIT, |_, mask| *mask |= v::IBV_QP_CAP)
    }),
    ("ibv_modify_qp", "a rate", TAKEN, |s| {
        s.step(v::IBV_QPS_RTS, |attr, mask| with_rate(attr, mask, 1_000))
    }),
    ("ibv_modify_qp", "a rate below the lowest", EINVAL, |s| {
        s.step(v::IBV_QPS_RTS, |attr, mask| with_rate(attr, mask, 999))
    }),
    ("ibv_modify_qp", "a rate above the port's", EINVAL, |s| {
        s.step(v::IBV_QPS_RTS, |attr, mask| with_rate(attr, mask, 100_000_001))
    }),
    ("ibv_modify_qp", "a rate before RTS", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |attr, mask| with_rate(attr, mask, 1_000))
    }),
    ("ibv_modify_qp", "a path at 10 Gb/s", TAKEN, |s| {
        s.step(v::IBV_QPS_RTR, |attr, _| attr.ah_attr.static_rate = 3)
    }),
    ("ibv_modify_qp", "a path at no rate", EINVAL, |s| {
        s.step(v::IBV_QPS_RTR, |attr, _| attr.ah_attr.static_rate = 1)
    }),
    ("ibv_modify_qp_rate_limit", "a rate and bursts", TAKEN, |s| {
        s.limit(v::IBV_QPS_RTS, [1_000, 9_000, 1_500, 0])
    }),
    ("ibv_modify_qp_rate_limit", "none", TAKEN, |s| s.limit(v::IBV_QPS_RTS, [0; 4])),
    ("ibv_modify_qp_rate_limit", "a rate below the lowest", EINVAL, |s| {
        s.limit(v::IBV_QPS_RTS, [1, 0, 0, 0])
    }),
    ("ibv_modify_qp_rate_limit", "bursts without a rate", EINVAL, |s| {
        s.limit(v::IBV_QPS_RTS, [0, 9_000, 0, 0])
    }),
    ("ibv_modify_qp_rate_limit", "bursts of less than a packet", EINVAL, |s| {
        s.limit(v::IBV_QPS_RTS, [1_000, 1_000, 1_500, 0])
    }),
    ("ibv_modify_qp_rate_limit", "unknown bits", EINVAL, |s| {
        s.limit(v::IBV_QPS_RTS, [1_000, 0, 0, 1])
    }),
    ("ibv_modify_qp_rate_limit", "in RTR", EINVAL, |s| s.limit(v::IBV_QPS_RTR, [1_000, 0, 0, 0])),
    ("ibv_query_ece", "whatever", EOPNOTSUPP, |s| s.new_qp(v::IBV_QPT_RC)?.query_ece()),
    ("ibv_set_ece", "options", EOPNOTSUPP, |s| s.new_qp(v::IBV_QPT_RC)?.set_ece(1)),
    ("ibv_set_ece", NOBODYS_OPTIONS, EOPNOTSUPP, |s| s.new_qp(v::IBV_QPT_RC)?.set_ece(0)),
    ("ibv_modify_qp", "a privileged Q_Key", EPERM, |s| {
        let mut attributes = s.attributes(v::IBV_QPS_INIT)?;
        attributes.qkey = 1 << 31;
        let mask = WAY[0].1 & !lacking(v::IBV_QPT_UD) | v::IBV_QP_QKEY;
        s.new_qp(v::IBV_QPT_UD)?.modify_any(attributes, mask)
    }),
    ("ibv_modify_qp", "rights of a datagram QP", EINVAL, |s| {
        let mask = WAY[0].1 | v::IBV_QP_QKEY;
        s.new_qp(v::IBV_QPT_UD)?.modify_any(s.attributes(v::IBV_QPS_INIT)?, mask)
    }),
    ("ibv_modify_qp", "retries of an unreliable connection", EINVAL, |s| {
        let qp = s.qp_in(v::IBV_QPT_UC, v::IBV_QPS_RTR)?;
        qp.modify_any(s.attributes(v::IBV_QPS_RTS)?, WAY[2].1)
    }),
];

const POSTS: &[Row] = &[
    ("ibv_post_send", "in RESET", EINVAL, |s| s.post(&s.new_qp(v::IBV_QPT_RC)?, |_, _| {})),
    ("ibv_post_send", "in INIT", EINVAL, |s| {
        s.post(&s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_INIT)?, |_, _| {})
    }),
    ("ibv_post_send", "in RTR", EINVAL, |s| {
        s.post(&s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_RTR)?, |_, _| {})
    }),
    ("ibv_post_send", "too many elements", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, region| {
            request.pieces = vec![region.piece(0, 1); MAX_SGE as usize + 1];
        })
    }),
    ("ibv_post_send", "more inline bytes than were granted", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, region| {
            (request.flags, request.pieces) = (v::IBV_SEND_INLINE, vec![region.piece(0, 1 << 10)]);
        })
    }),
    ("ibv_post_send", "a READ into the request", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, _| {
            (request.flags, request.opcode) = (v::IBV_SEND_INLINE, v::IBV_WR_RDMA_READ);
        })
    }),
    ("ibv_post_send", "an unknown flag", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, _| request.flags = 1 << 12)
    }),
    ("ibv_post_send", "an opcode that is none", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, _| request.opcode = 99)
    }),
    ("ibv_post_send", "an opcode of other hardware", EOPNOTSUPP, |s| {
        s.post_to(v::IBV_QPT_RC, |request, _| request.opcode = v::IBV_WR_TSO)
    }),
    ("ibv_post_send", "an atomic of two elements", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, region| {
            (request.opcode, request.pieces) =
                (v::IBV_WR_ATOMIC_FETCH_AND_ADD, vec![region.piece(0, 8); 2]);
        })
    }),
    ("ibv_post_send", "a bind of no window", EINVAL, |s| {
        s.post_to(v::IBV_QPT_RC, |request, _| request.opcode = v::IBV_WR_BIND_MW)
    }),
    ("ibv_post_send", "a READ on an unreliable connection", EOPNOTSUPP, |s| {
        s.post_to(v::IBV_QPT_UC, |request, _| request.opcode = v::IBV_WR_RDMA_READ)
    }),
    ("ibv_post_send", "an atomic on an unreliable connection", EOPNOTSUPP, |s| {
        s.post_to(v::IBV_QPT_UC, |request, _| request.opcode = v::IBV_WR_ATOMIC_FETCH_AND_ADD)
    }),
    ("ibv_post_send", "a WRITE as a datagram", EOPNOTSUPP, |s| {
        s.post_to(v::IBV_QPT_UD, |request, _| request.opcode = v::IBV_WR_RDMA_WRITE)
    }),
    ("ibv_post_send", "a datagram to nobody", EINVAL, |s| {
        s.post_to(v::IBV_QPT_UD, |request, _| request.opcode = v::IBV_WR_SEND)
    }),
    ("ibv_post_send", "a full queue", ENOMEM, |s| {
        let qp = s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_RTS)?;
        let room = qp.capabilities.max_send_wr;
        // The provider takes nothing back from a queue that the program does not poll.
        (0..room).try_for_each(|_| s.post(&qp, |_, _| {}))?;
        s.post(&qp, |_, _| {})
    }),
    ("ibv_post_recv", "in RESET", EINVAL, |s| {
        Ok(s.new_qp(v::IBV_QPT_RC)?.post_recv(&receive(s, 1))?)
    }),
    ("ibv_post_recv", "in INIT", TAKEN, |s| {
        Ok(s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_INIT)?.post_recv(&receive(s, 1))?)
    }),
    ("ibv_post_recv", "too many elements", EINVAL, |s| {
        let qp = s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_INIT)?;
        Ok(qp.post_recv(&receive(s, qp.capabilities.max_recv_sge + 1))?)
    }),
    ("ibv_post_recv", "a full queue", ENOMEM, |s| {
        let qp = s.qp_in(v::IBV_QPT_RC, v::IBV_QPS_INIT)?;
        (0..qp.capabilities.max_recv_wr).try_for_each(|_| qp.post_recv(&receive(s, 1)))?;
        Ok(qp.post_recv(&receive(s, 1))?)
    }),
    ("ibv_post_recv", "a QP with a shared receive queue", EINVAL, |s| {
        let srq = Srq::new(&s.left().pd, 4, 1)?;
        let qp = Qp::sharing(&srq, s.cqs()[0], s.cqs()[1], capabilities())?;
        qp.init(ACCESS)?;
        Ok(qp.post_recv(&receive(s, 1))?)
    }),
    ("ibv_post_srq_recv", "too many elements", EINVAL, |s| {
        let srq = Srq::new(&s.left().pd, 4, 1)?;
        Ok(srq.post(&receive(s, srq.granted.max_sge + 1))?)
    }),
    ("ibv_post_srq_recv", "a full queue", ENOMEM, |s| {
        let srq = Srq::new(&s.left().pd, 4, 1)?;
        (0..srq.granted.max_wr).try_for_each(|_| srq.post(&receive(s, 1)))?;
        Ok(srq.post(&receive(s, 1))?)
    }),
];

fn receive(scene: &Scene, elements: u32) -> Recv {
    let piece = scene.left().region.piece(0, 8);
    Recv { wr_id: 0, pieces: vec![piece; elements as usize] }
}
