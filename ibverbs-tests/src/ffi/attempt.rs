//! Calls with any arguments, wrong ones above all. Objects that such a call makes all the same end at once.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr::null_mut;
use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use nix::errno::Errno;
use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::{Channel, Context, Cq, Pd, ThreadDomain};
use super::qp::{Qp, Service};
use super::recv::sges_of;
use super::region::{Piece, Region};
use super::srq::Srq;

/// The arguments of a new QP.
#[derive(Clone, Copy)]
pub struct NewQp<'a> {
    /// Where sends complete.
    pub send_cq: Option<&'a Cq>,
    /// Where receives complete.
    pub receive_cq: Option<&'a Cq>,
    /// The shared queue that it receives from.
    pub srq: Option<&'a Srq>,
    /// Its sizes.
    pub capabilities: v::ibv_qp_cap,
    /// Its transport.
    pub kind: v::ibv_qp_type,
}

/// A send work request of any opcode, with any flags.
#[derive(Clone, Default)]
pub struct AnySend {
    /// `ibv_wr_opcode`.
    pub opcode: v::ibv_wr_opcode,
    /// `ibv_send_flags`.
    pub flags: v::ibv_send_flags,
    /// Local memory.
    pub pieces: Vec<Piece>,
    /// Remote address and key; a datagram goes nowhere.
    pub remote: (u64, u32),
}

/// The error of a call that made nothing; an object that was made is ended.
fn ended<T>(call: &'static str, made: *mut T, end: impl FnOnce(*mut T) -> i32) -> Result<()> {
    if made.is_null() {
        return Err(Failed::last(call).into());
    }
    assert_eq!(end(made), 0, "what {call} made does not end");
    Ok(())
}

/// `ibv_create_cq`.
///
/// # Errors
/// When the device refuses.
pub fn create_cq(
    context: &Context,
    (entries, vector): (i32, i32),
    channel: Option<&Channel>,
) -> Result<()> {
    let library = context.library();
    let channel = channel.map_or(null_mut(), Channel::raw);
    // SAFETY: the context is open, the channel is null or lives.
    let made =
        unsafe { (library.ibv_create_cq)(context.raw(), entries, null_mut(), channel, vector) };
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_create_cq", made, |cq| unsafe { (library.ibv_destroy_cq)(cq) })
}

/// `ibv_create_qp`.
///
/// # Errors
/// When the device refuses.
pub fn create_qp(pd: &Pd, new: &NewQp<'_>) -> Result<()> {
    let library = pd.library();
    let mut attributes = v::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: new.send_cq.map_or(null_mut(), Cq::raw),
        recv_cq: new.receive_cq.map_or(null_mut(), Cq::raw),
        srq: new.srq.map_or(null_mut(), Srq::raw),
        cap: new.capabilities,
        qp_type: new.kind,
        sq_sig_all: 0,
    };
    // SAFETY: the domain lives, the queues are null or live.
    let made = unsafe { (library.ibv_create_qp)(pd.raw(), &raw mut attributes) };
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_create_qp", made, |qp| unsafe { (library.ibv_destroy_qp)(qp) })
}

/// Calls `ibv_reg_mr`, or with `iova` `ibv_reg_mr_iova2`, for any addresses: the card has no key to them afterwards,
/// and the key is not published meanwhile.
///
/// # Errors
/// When the device refuses.
pub fn reg_mr(
    pd: &Pd,
    (address, length): (u64, usize),
    iova: Option<u64>,
    access: v::ibv_access_flags,
) -> Result<()> {
    let (library, start) = (pd.library(), address as *mut _);
    let made = match iova {
        // SAFETY: the domain lives; the call reads and writes no memory.
        Some(iova) => unsafe { (library.ibv_reg_mr_iova2)(pd.raw(), start, length, iova, access) },
        // SAFETY: as above.
        None => unsafe { (library.ibv_reg_mr)(pd.raw(), start, length, access as i32) },
    };
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_reg_mr", made, |mr| unsafe { (library.ibv_dereg_mr)(mr) })
}

/// `ibv_reg_dmabuf_mr`, by the descriptor of any file.
///
/// # Errors
/// When the device refuses.
pub fn reg_dmabuf_mr(
    pd: &Pd,
    file: &File,
    length: usize,
    access: v::ibv_access_flags,
) -> Result<()> {
    let (library, fd) = (pd.library(), file.as_raw_fd());
    // SAFETY: the domain lives; the call reads and writes no memory of this program's.
    let made = unsafe { (library.ibv_reg_dmabuf_mr)(pd.raw(), 0, length, 0, fd, access as i32) };
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_reg_dmabuf_mr", made, |mr| unsafe { (library.ibv_dereg_mr)(mr) })
}

/// `ibv_alloc_mw`.
///
/// # Errors
/// When the device refuses.
pub fn alloc_mw(pd: &Pd, kind: v::ibv_mw_type) -> Result<()> {
    // SAFETY: the context is open as long as the domain lives; its operations never change.
    let operations = unsafe { (*pd.context().raw()).ops };
    let (Some(alloc), Some(dealloc)) = (operations.alloc_mw, operations.dealloc_mw) else {
        bail!("there are no memory windows");
    };
    // SAFETY: the domain lives.
    let made = unsafe { alloc(pd.raw(), kind) };
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_alloc_mw", made, |mw| unsafe { dealloc(mw) })
}

/// `ibv_bind_mw` of a window of type 1, made in a domain, to all of a region, with rights.
///
/// # Errors
/// When it is not posted; when there are no windows.
pub fn bind_mw(qp: &Qp, pd: &Pd, region: &Region, access: v::ibv_access_flags) -> Result<()> {
    let operations = qp.operations();
    let (Some(alloc), Some(bind), Some(dealloc)) =
        (operations.alloc_mw, operations.bind_mw, operations.dealloc_mw)
    else {
        bail!("there are no memory windows");
    };
    // SAFETY: the domain lives.
    let window = unsafe { alloc(pd.raw(), v::IBV_MW_TYPE_1) };
    assert!(!window.is_null(), "{}", Failed::last("ibv_alloc_mw"));
    let mut request = v::ibv_mw_bind {
        wr_id: 1,
        send_flags: v::IBV_SEND_SIGNALED,
        bind_info: v::ibv_mw_bind_info {
            mr: region.raw(),
            addr: region.address(),
            length: region.length() as u64,
            mw_access_flags: access,
        },
    };
    Errno::clear();
    // SAFETY: QP, window and region live.
    let outcome = Failed::check("ibv_bind_mw", unsafe { bind(qp.raw(), window, &raw mut request) });
    let left = Errno::last_raw();
    // SAFETY: it was just made; bound or not, it ends.
    assert_eq!(unsafe { dealloc(window) }, 0, "ibv_dealloc_mw");
    if let Err(failed) = &outcome {
        ensure!(left == failed.errno, "{failed}, and errno is {left}");
    }
    Ok(outcome?)
}

/// `ibv_dealloc_pd`, where a window is in the domain.
///
/// # Errors
/// As the call; when there are no windows.
pub fn dealloc_pd_of_window(pd: &Pd) -> Result<()> {
    // SAFETY: the context is open as long as the domain lives; its operations never change.
    let operations = unsafe { (*pd.context().raw()).ops };
    let (Some(alloc), Some(dealloc)) = (operations.alloc_mw, operations.dealloc_mw) else {
        bail!("there are no memory windows");
    };
    // SAFETY: the domain lives.
    let made = unsafe { alloc(pd.raw(), v::IBV_MW_TYPE_2) };
    assert!(!made.is_null(), "{}", Failed::last("ibv_alloc_mw"));
    let outcome = dealloc_used_pd(pd);
    // SAFETY: it was just made, and nobody uses it.
    assert_eq!(unsafe { dealloc(made) }, 0, "ibv_dealloc_mw");
    outcome
}

/// `ibv_alloc_td` with this mask.
///
/// # Errors
/// When the device refuses.
pub fn alloc_td(context: &Context, comp_mask: u32) -> Result<()> {
    // SAFETY: the extended context lives as long as the context.
    let context_ex = unsafe { context.extended()?.as_ref() };
    let (Some(alloc), Some(dealloc)) = (context_ex.alloc_td, context_ex.dealloc_td) else {
        bail!("there are no thread domains");
    };
    let mut attributes = v::ibv_td_init_attr { comp_mask };
    // SAFETY: the context is open.
    let made = unsafe { alloc(context.raw(), &raw mut attributes) };
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_alloc_td", made, |td| unsafe { dealloc(td) })
}

/// `ibv_alloc_parent_domain` over a domain or none, with this mask and no functions.
///
/// # Errors
/// When the device refuses.
pub fn alloc_parent_domain(context: &Context, pd: Option<&Pd>, comp_mask: u32) -> Result<()> {
    // SAFETY: the extended context lives as long as the context.
    let Some(alloc) = unsafe { context.extended()?.as_ref() }.alloc_parent_domain else {
        bail!("there are no parent domains");
    };
    // SAFETY: null pointers and numbers only; all zero is a valid value.
    let mut attributes: v::ibv_parent_domain_init_attr = unsafe { std::mem::zeroed() };
    attributes.pd = pd.map_or(null_mut(), Pd::raw);
    attributes.comp_mask = comp_mask;
    // SAFETY: the context is open, the domain is null or lives.
    let made = unsafe { alloc(context.raw(), &raw mut attributes) };
    let dealloc = context.library().ibv_dealloc_pd;
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_alloc_parent_domain", made, |pd| unsafe { dealloc(pd) })
}

unsafe extern "C" fn no_memory(
    _pd: *mut v::ibv_pd,
    _pd_context: *mut c_void,
    _size: usize,
    _alignment: usize,
    _resource_type: u64,
) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn no_free(
    _pd: *mut v::ibv_pd,
    _pd_context: *mut c_void,
    _memory: *mut c_void,
    _resource_type: u64,
) {
    panic!("nothing was allocated");
}

/// Makes an object under a parent domain whose allocator has no memory.
///
/// # Errors
/// As that.
pub fn without_memory(pd: &Rc<Pd>, make: impl FnOnce(&Rc<Pd>) -> Result<()>) -> Result<()> {
    let parent = Pd::allocating(pd, |attributes| {
        attributes.comp_mask = v::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        attributes.alloc = Some(no_memory);
        attributes.free = Some(no_free);
    })?;
    make(&parent)
}

/// `ibv_create_srq_ex` in a domain, of this type.
///
/// # Errors
/// When the device refuses.
pub fn create_srq_ex(pd: &Pd, srq_type: v::ibv_srq_type) -> Result<()> {
    let context = pd.context();
    // SAFETY: the extended context lives as long as the context.
    let Some(create) = unsafe { context.extended()?.as_ref() }.create_srq_ex else {
        bail!("there is no ibv_create_srq_ex");
    };
    // SAFETY: null pointers and numbers only; all zero is a valid value.
    let mut attributes: v::ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
    attributes.attr = v::ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    attributes.comp_mask = v::IBV_SRQ_INIT_ATTR_TYPE | v::IBV_SRQ_INIT_ATTR_PD;
    (attributes.srq_type, attributes.pd) = (srq_type, pd.raw());
    // SAFETY: the context is open, the domain lives.
    let made = unsafe { create(context.raw(), &raw mut attributes) };
    let destroy = context.library().ibv_destroy_srq;
    // SAFETY: it was just made, and nobody uses it.
    ended("ibv_create_srq_ex", made, |srq| unsafe { destroy(srq) })
}

/// `ibv_rereg_mr` with arguments that are to be refused; answers with the code of the call, and its errno.
///
/// # Panics
/// When it is taken.
pub fn rereg_refused(
    region: &Region,
    flags: u32,
    pd: Option<&Pd>,
    (address, length): (u64, usize),
    access: v::ibv_access_flags,
) -> (i32, i32) {
    let (domain, start) = (pd.map_or(null_mut(), Pd::raw), address as *mut _);
    let rereg = region.pd().library().ibv_rereg_mr;
    // SAFETY: the registration lives, and so does the domain, or it is null; the call reads and writes no memory, and
    // where it gives the card some that is not ours, this program ends.
    let code = unsafe { rereg(region.raw(), flags as i32, domain, start, length, access as i32) };
    let errno = Failed::last("ibv_rereg_mr").errno;
    assert_ne!(code, 0, "ibv_rereg_mr is taken");
    (code, errno)
}

/// The error of a call that would end an object in use; if it has ended that, so does this program.
fn refused(call: &'static str, result: i32) -> Result<()> {
    let refused = Failed::check(call, result);
    assert!(refused.is_err(), "{call} ends what is used");
    Ok(refused?)
}

/// Calls `ibv_dealloc_pd` for a domain in use.
///
/// # Errors
/// As the call.
pub fn dealloc_used_pd(pd: &Pd) -> Result<()> {
    // SAFETY: the caller holds an object that uses the domain.
    refused("ibv_dealloc_pd", unsafe { (pd.library().ibv_dealloc_pd)(pd.raw()) })
}

/// `ibv_destroy_cq`, where QPs use the queue.
///
/// # Errors
/// As the call.
pub fn destroy_used_cq(context: &Context, cq: &Cq) -> Result<()> {
    // SAFETY: the caller holds a QP that uses the queue.
    refused("ibv_destroy_cq", unsafe { (context.library().ibv_destroy_cq)(cq.raw()) })
}

/// `ibv_destroy_comp_channel`, where queues use the channel.
///
/// # Errors
/// As the call.
pub fn destroy_used_channel(context: &Context, channel: &Channel) -> Result<()> {
    let destroy = context.library().ibv_destroy_comp_channel;
    // SAFETY: the caller holds a queue that uses the channel.
    refused("ibv_destroy_comp_channel", unsafe { destroy(channel.raw()) })
}

/// `ibv_dealloc_td`, where a parent domain uses the domain.
///
/// # Errors
/// As the call.
pub fn dealloc_used_td(context: &Context, thread: &ThreadDomain) -> Result<()> {
    // SAFETY: the extended context lives as long as the context.
    let Some(dealloc) = unsafe { context.extended()?.as_ref() }.dealloc_td else {
        bail!("there are no thread domains");
    };
    // SAFETY: the caller holds a parent domain that uses the thread domain.
    refused("ibv_dealloc_td", unsafe { dealloc(thread.raw()) })
}

/// Attributes that are all 0.
pub fn no_attributes() -> v::ibv_qp_attr {
    // SAFETY: numbers only; all zero is a valid value.
    unsafe { std::mem::zeroed() }
}

impl Qp {
    /// `ibv_query_ece`.
    ///
    /// # Errors
    /// As the call.
    pub fn query_ece(&self) -> Result<()> {
        let mut ece = v::ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the QP lives.
        let answer = unsafe { (self.pd().library().ibv_query_ece)(self.raw(), &raw mut ece) };
        Ok(Failed::check("ibv_query_ece", answer)?)
    }

    /// `ibv_set_ece`, of options of this vendor's.
    ///
    /// # Errors
    /// As the call.
    pub fn set_ece(&self, vendor_id: u32) -> Result<()> {
        let mut ece = v::ibv_ece { vendor_id, options: 1, comp_mask: 0 };
        // SAFETY: the QP lives.
        let answer = unsafe { (self.pd().library().ibv_set_ece)(self.raw(), &raw mut ece) };
        Ok(Failed::check("ibv_set_ece", answer)?)
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn modify_any(
        &self,
        mut attributes: v::ibv_qp_attr,
        mask: v::ibv_qp_attr_mask,
    ) -> Result<()> {
        let modify = self.pd().library().ibv_modify_qp;
        // SAFETY: the QP lives, the attributes are whole.
        let result = unsafe { modify(self.raw(), &raw mut attributes, mask as i32) };
        Ok(Failed::check("ibv_modify_qp", result)?)
    }

    /// `ibv_post_send` of one request.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_any(&self, request: &AnySend) -> Result<()> {
        let mut sges = sges_of(&request.pieces);
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut work: v::ibv_send_wr = unsafe { std::mem::zeroed() };
        work.sg_list = sges.as_mut_ptr();
        work.num_sge = i32::try_from(sges.len())?;
        (work.opcode, work.send_flags) = (request.opcode, request.flags);
        if self.service() != Service::Datagram {
            let (remote_addr, rkey) = request.remote;
            work.wr.rdma = v::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        }
        // SAFETY: the context is open as long as the domain lives; its operations never change.
        let operations = unsafe { (*self.pd().context().raw()).ops };
        let post = operations.post_send.expect("every provider sends");
        let mut bad = null_mut();
        // SAFETY: the QP lives; `request` keeps the named memory while the provider may read it, and the fields of
        // other opcodes there are null.
        let result = unsafe { post(self.raw(), &raw mut work, &raw mut bad) };
        Ok(Failed::check("ibv_post_send", result)?)
    }
}
