//! Contexts: opening and closing, the table of verbs, device and port queries.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsRawFd as _, IntoRawFd};
use std::ptr::{copy_nonoverlapping, null_mut, write_bytes};
use std::sync::Arc;

use crate::abi::verbs::{
    IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_cq_moderation_caps, ibv_device, ibv_device_attr,
    ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex, verbs_context,
};
use crate::abi::verbs_context_ops;
use nix::errno::Errno;
use verbs_sys::ioctl::RDMA_DRIVER_UNKNOWN;

use super::opened::{OpenDevice, around, opened, verbs_uninit_context};
use super::types::zeroed;
use super::{
    ah, cq, device, dm, dmabuf, errno, forks, hook, mcast, mr, mw, pd, post, qp, refused, srq, xrc,
};
use crate::context::Context;
use crate::error::{Error, Result, invalid};
use crate::limits::{CORE_CLOCK_KHZ, PORT, device_attributes, pacing, port_attributes};

unsafe extern "C" {
    fn _verbs_init_and_alloc_context(
        device: *mut ibv_device,
        cmd_fd: c_int,
        alloc_size: usize,
        context_offset: *mut verbs_context,
        driver_id: u32,
    ) -> *mut c_void;
    fn verbs_set_ops(context: *mut verbs_context, ops: *const verbs_context_ops);
}

/// The offered moderation: any count and any period, or none.
fn moderation(is_offered: bool) -> ibv_cq_moderation_caps {
    let most = if is_offered { u16::MAX } else { 0 };
    ibv_cq_moderation_caps { max_cq_count: most, max_cq_period: most }
}

/// The verbs of this provider, in alphabetical order; the others are refused.
fn operations() -> verbs_context_ops {
    verbs_context_ops {
        alloc_dm: Some(dm::alloc_dm),
        alloc_mw: Some(mw::alloc_mw),
        alloc_null_mr: Some(mr::alloc_null_mr),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        alloc_pd: Some(pd::alloc_pd),
        alloc_td: Some(pd::alloc_td),
        attach_mcast: Some(mcast::attach_mcast),
        bind_mw: Some(post::bind_mw),
        close_xrcd: Some(xrc::close_xrcd),
        cq_event: Some(cq::cq_event),
        create_ah: Some(ah::create_ah),
        create_cq: Some(cq::create_cq),
        create_cq_ex: Some(cq::create_cq_ex),
        create_qp: Some(qp::create_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        create_srq: Some(srq::create_srq),
        create_srq_ex: Some(srq::create_srq_ex),
        dealloc_mw: Some(mw::dealloc_mw),
        dealloc_pd: Some(pd::dealloc_pd),
        dealloc_td: Some(pd::dealloc_td),
        dereg_mr: Some(mr::dereg_mr),
        destroy_ah: Some(ah::destroy_ah),
        destroy_cq: Some(cq::destroy_cq),
        destroy_qp: Some(qp::destroy_qp),
        destroy_srq: Some(srq::destroy_srq),
        detach_mcast: Some(mcast::detach_mcast),
        free_context: Some(free_context),
        free_dm: Some(dm::free_dm),
        get_srq_num: Some(srq::get_srq_num),
        modify_cq: Some(cq::modify_cq),
        modify_qp: Some(qp::modify_qp),
        modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
        modify_srq: Some(srq::modify_srq),
        open_qp: Some(qp::open_qp),
        open_xrcd: Some(xrc::open_xrcd),
        poll_cq: Some(cq::poll_cq),
        post_recv: Some(post::post_recv),
        post_send: Some(post::post_send),
        post_srq_recv: Some(post::post_srq_recv),
        query_device_ex: Some(query_device_ex),
        query_port: Some(query_port),
        query_qp: Some(qp::query_qp),
        query_rt_values: Some(query_rt_values),
        query_srq: Some(srq::query_srq),
        reg_dm_mr: Some(dm::reg_dm_mr),
        reg_dmabuf_mr: Some(dmabuf::reg_dmabuf_mr),
        reg_mr: Some(mr::reg_mr),
        req_notify_cq: Some(cq::req_notify_cq),
        rereg_mr: Some(mr::rereg_mr),
        resize_cq: Some(cq::resize_cq),
        ..refused::operations()
    }
}

pub(super) unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: libibverbs passes a device that this provider made.
    let (card, name) = unsafe { device::identity(device) };
    let opened = forks::hold_over_forks().map_err(Error::Hook).and_then(|()| hook::install());
    let opened = opened.and_then(|()| Context::open(card)).and_then(|context| {
        let events = context.event_fd()?;
        Ok((Arc::new(context), events))
    });
    let (context, events) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let errno = crate::log::unusable(&name, &error);
            // SAFETY: the descriptor is ours from the call on.
            unsafe { libc::close(cmd_fd) };
            Errno::set_raw(errno);
            return null_mut();
        }
    };
    // libibverbs asks the descriptor while it makes the context: be ready to answer.
    hook::add_command(cmd_fd, &context);
    // SAFETY: the device lives; the function makes zeroed memory of the size asked for with its
    // own part at offset 0, and owns the descriptor even if it fails.
    let made = unsafe {
        let (bytes, at) = (size_of::<OpenDevice>(), offset_of!(OpenDevice, verbs));
        let offset = at as *mut verbs_context;
        _verbs_init_and_alloc_context(device, cmd_fd, bytes, offset, RDMA_DRIVER_UNKNOWN)
    };
    let made = made.cast::<OpenDevice>();
    if made.is_null() {
        hook::remove(&context);
        // The failure to tell is libibverbs'; balboad forgets the context with the client.
        let _ = context.close();
        return null_mut();
    }
    let_go(cmd_fd);
    let vectors = context.limits().comp_vectors;
    let events = events.into_raw_fd();
    hook::add_events(events, &context);
    // SAFETY: the memory is ours alone until it is returned; the operations are copied.
    unsafe {
        (*made).context.write(context);
        let verbs = &mut (*made).verbs;
        verbs.context.async_fd = events;
        verbs.context.num_comp_vectors = vectors.into();
        verbs_set_ops(verbs, &operations());
    }
    made.cast()
}

/// Puts a descriptor that leads nowhere in the place of a command descriptor.
///
/// Nobody asks the kernel anything by it, for [`hook`] answers; and a kernel device that programs
/// hold open cannot be taken away before they end, nor can balboad end that made it.
fn let_go(cmd_fd: c_int) {
    // Where there is no such file the device stays open, and all works but that.
    if let Ok(nowhere) = File::open("/dev/full") {
        // SAFETY: both are open; libibverbs closes the number, and with it the copy.
        unsafe { libc::dup3(nowhere.as_raw_fd(), cmd_fd, libc::O_CLOEXEC) };
    }
}

unsafe extern "C" fn free_context(context: *mut ibv_context) {
    let place = around(context);
    // SAFETY: libibverbs passes a context of this provider, which the program closes by this call;
    // our part was written and is taken once.
    let own = unsafe { (*place).context.assume_init_read() };
    // The descriptors' numbers may be others' as soon as they are closed.
    hook::remove(&own);
    if let Err(error) = own.close() {
        crate::log::refused("ibv_close_device", &error);
    }
    drop(own);
    // SAFETY: the context was made by `_verbs_init_and_alloc_context`, with `malloc`.
    unsafe {
        verbs_uninit_context(&raw mut (*place).verbs);
        libc::free(place.cast());
    }
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the program passes a context of this provider, and its input or null.
    let (device, input) = unsafe { (opened(context), input.as_ref()) };
    if input.is_some_and(|input| input.comp_mask != 0) || attr_size < size_of::<ibv_device_attr>() {
        let error = invalid!("the query has unknown bits or too little room ({attr_size} bytes)");
        return errno("ibv_query_device", Err(error));
    }
    // The cards offer none of the features that are not named.
    let orig_attr = device_attributes(device.info());
    let answer = ibv_device_attr_ex {
        orig_attr,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CORE_CLOCK_KHZ,
        device_cap_flags_ex: orig_attr.device_cap_flags.into(),
        phys_port_cnt_ex: PORT,
        cq_mod_caps: moderation(device.moderates()),
        packet_pacing_caps: pacing(device.limits()),
        max_dm_size: device.limits().max_dm_bytes.into(),
        ..zeroed()
    };
    // SAFETY: the program passes room for `attr_size` bytes, and no more are written; a
    // plain query's room ends with the first field.
    unsafe {
        write_bytes(attr.cast::<u8>(), 0, attr_size);
        let bytes = attr_size.min(size_of::<ibv_device_attr_ex>());
        copy_nonoverlapping((&raw const answer).cast::<u8>(), attr.cast::<u8>(), bytes);
    }
    0
}

unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the program passes a context of this provider, and its values.
    let (device, values) = unsafe { (opened(context), &mut *values) };
    if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        let error = invalid!("the values asked for, {:#x}, have unknown bits", values.comp_mask);
        return errno("ibv_query_rt_values_ex", Err(error));
    }
    let asked = std::mem::take(&mut values.comp_mask);
    if asked == 0 {
        return 0;
    }
    // As other providers do: the clock that stamps completions, in its own unit, and no seconds.
    let answer = device.clock().map(|now| {
        values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now as i64 };
        values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    });
    errno("ibv_query_rt_values_ex", answer)
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the program passes a context of this provider.
    let device = unsafe { opened(context) };
    let answer = || -> Result<()> {
        if u32::from(port) != PORT {
            return Err(invalid!("port {port} was asked for; the device has port {PORT}"));
        }
        let answer = port_attributes(&device.query_port()?, device.limits());
        // SAFETY: libibverbs passes room for its release's attributes.
        unsafe { attr.write(answer) };
        Ok(())
    };
    errno("ibv_query_port", answer())
}
