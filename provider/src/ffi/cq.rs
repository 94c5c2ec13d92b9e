//! Completion queues.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::abi::verbs::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};
use fpga_regs::engine::doorbell::ArmKind;

use super::context::opened;
use super::types::zeroed;
use super::{errno, hook, object, ready};
use crate::context::Cq;
use crate::cq::CompletionQueue;
use crate::error::{Result, invalid};

/// A completion queue.
#[repr(C)]
pub(super) struct CqObject {
    verbs: ibv_cq,
    /// What `cq` holds, one step nearer.
    queue: NonNull<CompletionQueue>,
    cq: Cq,
}

/// # Safety
/// The queue is one of this provider that was not destroyed.
pub(super) unsafe fn own<'a>(cq: *mut ibv_cq) -> &'a Cq {
    // SAFETY: a `CqObject` begins with its `ibv_cq`; its own part never changes.
    unsafe { &(*cq.cast::<CqObject>()).cq }
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: libibverbs passes a context of this provider, and a channel of it or null.
    object("ibv_create_cq", unsafe { create(context, cqe, channel, comp_vector) })
}

/// # Safety
/// The context is one of this provider; the channel is one of that context, or null.
unsafe fn create(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> Result<*mut ibv_cq> {
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
    let entries = 1i32.checked_shl(cq.queue.log2_entries.into()).unwrap_or(i32::MAX);
    let verbs = ibv_cq { context, cqe: entries, handle: cq.queue.cqn, ..zeroed() };
    // libibverbs fills in the rest.
    place.write(CqObject { verbs, queue: NonNull::from(&*cq.queue), cq });
    // SAFETY: it was just written.
    Ok(Box::into_raw(unsafe { place.assume_init() }).cast())
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
    queue.poll(limit, move |completion| {
        // SAFETY: the program passes room for `limit` completions, and no more are delivered.
        unsafe {
            place.write(completion);
            place = place.add(1);
        }
    })
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program passes a queue of this provider.
    let queue = &*unsafe { own(cq) }.queue;
    let kind = if solicited_only != 0 { ArmKind::Solicited } else { ArmKind::Any };
    queue.arm(kind).err().unwrap_or(0)
}
