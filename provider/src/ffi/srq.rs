//! Shared receive queues.

use std::ffi::c_int;

use std::ptr::null;

use crate::abi::verbs::{
    self as ibv, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_context, ibv_pd, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex,
};

use super::opened::opened;
use super::pd::{Lends, Use};
use super::types::zeroed;
use super::{cq, errno, object, ready, xrc};
use crate::context::Srq;
use crate::error::{Result, invalid, unsupported};

/// A shared receive queue.
#[repr(C)]
struct SrqObject {
    verbs: ibv_srq,
    srq: Srq,
    _pd: Use,
    _xrcd: Option<xrc::Use>,
}

/// # Safety
/// The queue is one of this provider that was not destroyed.
#[inline(always)]
pub(super) unsafe fn own<'a>(srq: *mut ibv_srq) -> &'a Srq {
    // SAFETY: a `SrqObject` begins with its `ibv_srq`; its own part never changes but by atomics.
    unsafe { &(*srq.cast::<SrqObject>()).srq }
}

pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the program passes a domain of this provider and its attributes.
    object("ibv_create_srq", unsafe { create(pd, &mut (*attr).attr) })
}

/// # Safety
/// The domain is one of this provider.
unsafe fn create(pd: *mut ibv_pd, attr: &mut ibv_srq_attr) -> Result<*mut ibv_srq> {
    // SAFETY: as the caller promises; a queue's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let device = unsafe { opened(context) };
    // Events name the object by its address, so there must be one first.
    let mut place = Box::<SrqObject>::new_uninit();
    let address = place.as_mut_ptr() as u64;
    let how = (using.is_single_threaded(), using.lender(Lends::SharedReceives));
    let srq = device.create_srq(using.pdn(), attr, how, address)?;
    (attr.max_wr, attr.max_sge) = (srq.max_wr, srq.max_sge);
    let verbs = ibv_srq { context, pd, handle: srq.shared.srqn, ..zeroed() };
    // libibverbs fills in the rest.
    place.write(SrqObject { verbs, srq, _pd: using, _xrcd: None });
    // SAFETY: it was just written.
    Ok(Box::into_raw(unsafe { place.assume_init() }).cast())
}

pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the program passes a context of this provider, and its attributes.
    object("ibv_create_srq_ex", unsafe { create_extended(context, &mut *attr) })
}

/// # Safety
/// The context is one of this provider, and so are the objects in the attributes that the mask names, or they
/// are null.
unsafe fn create_extended(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq> {
    const FIELDS: u32 = ibv::IBV_SRQ_INIT_ATTR_TYPE
        | ibv::IBV_SRQ_INIT_ATTR_PD
        | ibv::IBV_SRQ_INIT_ATTR_XRCD
        | ibv::IBV_SRQ_INIT_ATTR_CQ;
    let mask = attr.comp_mask;
    let has = |field| mask & field != 0;
    let kind = if has(ibv::IBV_SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { ibv::IBV_SRQT_BASIC };
    if has(ibv::IBV_SRQ_INIT_ATTR_TM) || kind == ibv::IBV_SRQT_TM {
        return Err(unsupported!("there is no tag matching"));
    }
    if mask & !FIELDS != 0 || kind > ibv::IBV_SRQT_TM {
        return Err(invalid!("type {kind} or the attribute mask {mask:#x} is unknown"));
    }
    // SAFETY: as the caller promises.
    let in_context = |pd: *mut ibv_pd| !pd.is_null() && unsafe { (*pd).context } == context;
    if !has(ibv::IBV_SRQ_INIT_ATTR_PD) || !in_context(attr.pd) {
        return Err(invalid!("a shared receive queue needs a protection domain of its context"));
    }
    let srq = if kind == ibv::IBV_SRQT_BASIC {
        // SAFETY: as the caller promises.
        unsafe { create(attr.pd, &mut attr.attr)? }
    } else {
        if !has(ibv::IBV_SRQ_INIT_ATTR_XRCD) || !has(ibv::IBV_SRQ_INIT_ATTR_CQ) || attr.cq.is_null()
        {
            return Err(invalid!("a queue of an XRC domain needs that and a completion queue"));
        }
        // SAFETY: as the caller promises.
        unsafe { create_xrc(context, attr)? }
    };
    // SAFETY: the object is ours alone until it is returned; the locks are made in place, where they stay.
    unsafe {
        (*srq).srq_context = attr.srq_context;
        libc::pthread_mutex_init(&raw mut (*srq).mutex, null());
        libc::pthread_cond_init(&raw mut (*srq).cond, null());
    }
    Ok(srq)
}

/// # Safety
/// As [`create_extended`]; protection domain and completion queue are there.
unsafe fn create_xrc(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq> {
    // SAFETY: as the caller promises.
    if unsafe { (*attr.cq).context } != context {
        return Err(invalid!("the completion queue is another context's"));
    }
    // SAFETY: as the caller promises; the objects that a queue uses outlive it.
    let (using, domain) = unsafe { (Use::new(attr.pd), xrc::Use::new(attr.xrcd, context)?) };
    // SAFETY: as the caller promises.
    let (device, cq) = unsafe { (opened(context), cq::own(attr.cq)) };
    // Events name the object by its address, so there must be one first.
    let mut place = Box::<SrqObject>::new_uninit();
    let address = place.as_mut_ptr() as u64;
    let domains = (using.pdn(), domain.number());
    let how = (using.is_single_threaded(), using.lender(Lends::SharedReceives));
    let srq = device.create_xrc_srq(domains, cq, &attr.attr, how, address)?;
    (attr.attr.max_wr, attr.attr.max_sge) = (srq.max_wr, srq.max_sge);
    let verbs = ibv_srq { context, pd: attr.pd, handle: srq.shared.srqn, ..zeroed() };
    place.write(SrqObject { verbs, srq, _pd: using, _xrcd: Some(domain) });
    // SAFETY: it was just written.
    Ok(Box::into_raw(unsafe { place.assume_init() }).cast())
}

pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the program passes a queue of this provider, and room for the answer.
    unsafe { number.write(own(srq).shared.srqn) };
    0
}

pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: the program passes a queue of this provider, whose context is open, and its attributes.
    let (own, device, attr) = unsafe { (own(srq), opened((*srq).context), &*attr) };
    let mask = attr_mask as u32;
    let done = if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        Err(invalid!("the attribute mask {mask:#x} has bits that no shared receive queue has"))
    } else if mask & IBV_SRQ_MAX_WR != 0 {
        Err(unsupported!("shared receive queues keep their size"))
    } else if mask & IBV_SRQ_LIMIT != 0 {
        device.set_srq_limit(own, attr.srq_limit)
    } else {
        Ok(())
    };
    errno("ibv_modify_srq", done)
}

pub(super) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the program passes a queue of this provider, whose context is open.
    let (own, device) = unsafe { (own(srq), opened((*srq).context)) };
    let answer = device.srq_limit(own).map(|srq_limit| {
        let Srq { max_wr, max_sge, .. } = *own;
        // SAFETY: the program passes room for the answer.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
    });
    errno("ibv_query_srq", answer)
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the program passes a queue of this provider that it frees by this call.
    errno("ibv_destroy_srq", unsafe { destroy(srq) })
}

/// # Safety
/// The queue is one of this provider, and nobody uses it after a success.
unsafe fn destroy(srq: *mut ibv_srq) -> Result<()> {
    // SAFETY: as the caller promises; its context is open as long as the queue lives.
    let handed = unsafe { opened((*srq).context).destroy_srq(own(srq))? };
    // SAFETY: the pointers are to fields of the living queue, whose counter libibverbs changes under
    // its mutex.
    unsafe {
        let counters = [(&raw const (*srq).events_completed, handed.asynchronous)];
        ready::wait(&raw mut (*srq).mutex, &raw mut (*srq).cond, &counters);
        drop(Box::from_raw(srq.cast::<SrqObject>()));
    }
    Ok(())
}
