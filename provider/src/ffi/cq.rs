//! Completion queues.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::abi::verbs::{
    self as ibv, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_modify_cq_attr, ibv_wc,
};
use crate::abi::{verbs_cq, verbs_cq__bindgen_ty_1};
use fpga_regs::engine::doorbell::ArmKind;

use super::opened::opened;
use super::pd::Use;
use super::types::zeroed;
use super::{errno, hook, object, ready};
use crate::context::Cq;
use crate::cq::CompletionQueue;
use crate::error::{Result, invalid, unsupported};

mod extended;

/// A completion queue.
#[repr(C)]
struct CqObject {
    verbs: verbs_cq,
    /// The queue of `cq`, one step nearer.
    queue: NonNull<CompletionQueue>,
    polling: extended::Polling,
    cq: Cq,
    _parent: Option<Use>,
}

/// # Safety
/// The queue is one of this provider that was not destroyed.
pub(super) unsafe fn own<'a>(cq: *mut ibv_cq) -> &'a Cq {
    // SAFETY: a `CqObject` begins with its `ibv_cq`, and its borrowed part never changes.
    unsafe { &(*cq.cast::<CqObject>()).cq }
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: all fields are integers or raw pointers, of which all bits zero is a value.
    let none: ibv_cq_init_attr_ex = unsafe { std::mem::zeroed() };
    let (cqe, comp_vector) = (cqe.max(0) as u32, comp_vector as u32);
    let attr = ibv_cq_init_attr_ex { cqe, channel, comp_vector, ..none };
    // SAFETY: libibverbs passes a context of this provider, and a channel of it or null.
    object("ibv_create_cq", unsafe { create(context, &attr) }.map(<*mut _>::cast))
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: libibverbs passes a context of this provider, and the program its attributes, with a
    // channel of that context or null.
    object("ibv_create_cq_ex", unsafe { create(context, &*attr) })
}

/// Refuses attributes that a completion queue cannot have.
fn check(attr: &ibv_cq_init_attr_ex) -> Result<()> {
    let fields = ibv::IBV_CQ_INIT_ATTR_MASK_FLAGS | ibv::IBV_CQ_INIT_ATTR_MASK_PD;
    if attr.comp_mask & !fields != 0 {
        return Err(invalid!("the CQ's attribute mask {:#x} has unknown bits", attr.comp_mask));
    }
    if attr.wc_flags & !extended::OFFERED != 0 {
        let flags = attr.wc_flags & !extended::OFFERED;
        return Err(unsupported!("completions do not carry what wc_flags {flags:#x} ask for"));
    }
    let flags = if attr.comp_mask & ibv::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    if flags & ibv::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 {
        return Err(unsupported!("a CQ that overruns is in error"));
    }
    // That one thread uses the queue is a promise of which no use is made.
    if flags & !ibv::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        return Err(invalid!("the CQ's flags {flags:#x} have unknown bits"));
    }
    Ok(())
}

/// # Safety
/// The context is one of this provider; the channel in the attributes is one of that context, or null,
/// and the parent domain that they may have is one of this provider.
unsafe fn create(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex> {
    check(attr)?;
    let ibv_cq_init_attr_ex { cqe, channel, comp_vector, .. } = *attr;
    let parent = if attr.comp_mask & ibv::IBV_CQ_INIT_ATTR_MASK_PD == 0 {
        None
    } else {
        // SAFETY: as the caller promises; the domain outlives the queue.
        Some(unsafe { Use::of_parent(attr.parent_domain, context)? })
    };
    // SAFETY: as the caller promises.
    let (device, channel) = unsafe { (opened(context), channel.as_ref()) };
    let channel = match channel {
        None => None,
        Some(channel) => Some(hook::channel(channel.fd, device).ok_or_else(|| {
            invalid!("descriptor {} is no completion channel of this device", channel.fd)
        })?),
    };
    // Events name the object by its address, so there must be one first.
    let mut place = Box::<CqObject>::new_uninit();
    let address = place.as_mut_ptr() as u64;
    let cq = device.create_cq(cqe, channel, comp_vector, address)?;
    let mut verbs =
        ibv_cq_ex { context, cqe: entries(&cq.queue), handle: cq.queue.cqn, ..zeroed() };
    extended::furnish(&mut verbs, attr.wc_flags);
    // libibverbs fills in the rest.
    let extended = verbs_cq__bindgen_ty_1 { cq_ex: ManuallyDrop::new(verbs) };
    let verbs = verbs_cq { __bindgen_anon_1: extended };
    let (queue, polling) = (NonNull::from(&*cq.queue), extended::Polling::none());
    place.write(CqObject { verbs, queue, polling, cq, _parent: parent });
    // SAFETY: it was just written.
    Ok(Box::into_raw(unsafe { place.assume_init() }).cast())
}

/// Its entries, as verbs count them.
fn entries(queue: &CompletionQueue) -> c_int {
    1i32.checked_shl(queue.log2_entries().into()).unwrap_or(i32::MAX)
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the program passes a queue of this provider; its context is open as long as that lives.
    let (device, own) = unsafe { (opened((*cq).context), own(cq)) };
    let resized = device.resize_cq(own, cqe.max(0) as u32);
    // SAFETY: the queue lives; only this function changes the field once it is made, any number of threads
    // at a time.
    let place = unsafe { AtomicI32::from_ptr(&raw mut (*cq).cqe) };
    place.store(entries(&own.queue), Ordering::Relaxed);
    errno("ibv_resize_cq", resized)
}

pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the program passes a queue of this provider, whose context is open, and its attributes.
    let (device, own, attr) = unsafe { (opened((*cq).context), own(cq), &*attr) };
    let done = if attr.attr_mask == ibv::IBV_CQ_ATTR_MODERATE {
        device.moderate_cq(own, attr.moderate.cq_count, attr.moderate.cq_period)
    } else {
        let mask = attr.attr_mask;
        Err(invalid!("of a CQ the moderation is changed, not what mask {mask:#x} names"))
    };
    errno("ibv_modify_cq", done)
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the program passes a queue of this provider that it frees by this call.
    errno("ibv_destroy_cq", unsafe { destroy(cq) })
}

/// # Safety
/// The queue is one of this provider, and nobody uses it after a success.
unsafe fn destroy(cq: *mut ibv_cq) -> Result<()> {
    // SAFETY: as the caller promises; its context is open as long as the queue lives.
    let handed = unsafe { opened((*cq).context).destroy_cq(own(cq))? };
    // SAFETY: the pointers are to fields of the living queue, whose counters libibverbs changes
    // under its mutex.
    unsafe {
        let counters = [
            (&raw const (*cq).comp_events_completed, handed.completion),
            (&raw const (*cq).async_events_completed, handed.asynchronous),
        ];
        ready::wait(&raw mut (*cq).mutex, &raw mut (*cq).cond, &counters);
        drop(Box::from_raw(cq.cast::<CqObject>()));
    }
    Ok(())
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, limit: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the program passes a queue of this provider.
    let queue = unsafe { (*cq.cast::<CqObject>()).queue.as_ref() };
    let mut place = wc;
    queue.poll(limit, move |completion, _| {
        // SAFETY: the program passes room for `limit` completions, and no more are delivered.
        unsafe {
            place.write(completion);
            place = place.add(1);
        }
    })
}

/// The program takes an event of the queue from its channel.
pub(super) unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    // SAFETY: libibverbs passes a queue of this provider, which does not go before its events are acknowledged.
    unsafe { own(cq) }.queue.take_event();
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program passes a queue of this provider.
    let queue = &*unsafe { own(cq) }.queue;
    let kind = if solicited_only != 0 { ArmKind::Solicited } else { ArmKind::Any };
    queue.arm(kind).err().unwrap_or(0)
}
