//! Queue pairs.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::null;

use fpga_regs::engine::qp::QpType;

use crate::abi::verbs::{
    self as ibv, IBV_QPS_RESET, ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::abi::{VERBS_QP_EX, verbs_qp};

use super::context::opened;
use super::pd::Use;
use super::types::zeroed;
use super::{cq, errno, object, ready, srq};
use crate::attributes;
use crate::context::{NewQp, Qp};
use crate::error::{Result, invalid, unsupported};
use crate::sq::Building;

mod extended;

/// A QP.
#[repr(C)]
pub(super) struct QpObject {
    verbs: verbs_qp,
    /// What holds the lock of the send queue of `qp`, and goes before it.
    building: Building<'static>,
    qp: Qp,
    signal_all: bool,
    _pd: Use,
}

/// # Safety
/// The QP is one of this provider that was not destroyed.
#[inline(always)]
pub(super) unsafe fn own<'a>(qp: *mut ibv_qp) -> &'a Qp {
    // SAFETY: a `QpObject` begins with its `verbs_qp` and that with the `ibv_qp`; what is borrowed of
    // it never changes but by atomics.
    unsafe { &(*qp.cast::<QpObject>()).qp }
}

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the program passes a domain of this provider and its attributes.
    object("ibv_create_qp", unsafe { create(pd, &mut *attr, None) })
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the program passes its attributes, which begin with those of a plain QP.
    let made = unsafe {
        match check(context, &*attr) {
            Ok(send_ops) => create((*attr).pd, &mut *attr.cast(), send_ops),
            Err(refused) => Err(refused),
        }
    };
    object("ibv_create_qp_ex", made)
}

/// Refuses what a QP cannot be asked for; answers with the operations it is to be able to send, where it
/// is to be the extended form.
///
/// # Safety
/// The domain in the attributes, where they have one, is one that was not freed.
unsafe fn check(context: *mut ibv_context, attr: &ibv_qp_init_attr_ex) -> Result<Option<u64>> {
    const FIELDS: u32 = ibv::IBV_QP_INIT_ATTR_PD
        | ibv::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | ibv::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const NOT_OFFERED: u32 = ibv::IBV_QP_INIT_ATTR_XRCD
        | ibv::IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | ibv::IBV_QP_INIT_ATTR_IND_TABLE
        | ibv::IBV_QP_INIT_ATTR_RX_HASH;
    let mask = attr.comp_mask;
    if mask & !(FIELDS | NOT_OFFERED) != 0 {
        return Err(invalid!("the QP's attribute mask {mask:#x} has unknown bits"));
    }
    if mask & NOT_OFFERED != 0 {
        return Err(unsupported!(
            "XRC domains, segmentation and hashing are not offered (attribute mask {mask:#x})"
        ));
    }
    let is_given = |field| mask & field != 0;
    if is_given(ibv::IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0 {
        return Err(unsupported!("create_flags {:#x} are not offered", attr.create_flags));
    }
    // SAFETY: as the caller promises.
    let in_context = is_given(ibv::IBV_QP_INIT_ATTR_PD)
        && !attr.pd.is_null()
        && std::ptr::eq(unsafe { (*attr.pd).context }, context);
    if !in_context {
        return Err(invalid!("a QP needs a protection domain of its context"));
    }
    Ok(is_given(ibv::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags))
}

/// # Safety
/// The domain is one of this provider, and so are the queues in the attributes, or null.
unsafe fn create(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp> {
    if attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(invalid!("a QP needs a send CQ and a receive CQ"));
    }
    // SAFETY: as the caller promises; a QP's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: as the caller promises; a domain's context is open as long as the domain lives.
    let (device, send_cq, receive_cq) =
        unsafe { (opened(context), cq::own(attr.send_cq), cq::own(attr.recv_cq)) };
    // SAFETY: as the caller promises.
    let shared = (!attr.srq.is_null()).then(|| unsafe { srq::own(attr.srq) });
    // Events name the object by its address, so there must be one first.
    let mut place = Box::<QpObject>::new_uninit();
    let signal_all = attr.sq_sig_all != 0;
    let kind = device.qp_kind(attr.qp_type)?;
    if let Some(asked) = send_ops {
        extended::check(asked, &device.operations(kind))?;
    }
    let qp = device.create_qp(&NewQp {
        pdn: using.pdn(),
        send_cq,
        receive_cq,
        srq: shared,
        cap: attr.cap,
        kind,
        signal_all,
        single_threaded: using.is_single_threaded(),
        address: place.as_mut_ptr() as u64,
    })?;
    let number = qp.queues.qpn();
    // SAFETY: the structure is made of integers, raw pointers, optional functions and C's locks,
    // of which all bits zero is a value.
    let mut verbs: verbs_qp = unsafe { std::mem::zeroed() };
    if let Some(asked) = send_ops {
        let mut extended: ibv_qp_ex = zeroed();
        extended::furnish(&mut extended, kind, asked);
        verbs.u.qp_ex = ManuallyDrop::new(extended);
        verbs.comp_mask = VERBS_QP_EX;
    }
    attr.cap = qp.cap;
    place.write(QpObject { verbs, building: Building::none(), qp, signal_all, _pd: using });
    // SAFETY: it was just written.
    let qp: *mut ibv_qp = Box::into_raw(unsafe { place.assume_init() }).cast();
    // SAFETY: the object is ours alone until it is returned; the locks are made in place, where
    // they stay.
    unsafe {
        (*qp).context = context;
        (*qp).qp_context = attr.qp_context;
        (*qp).pd = pd;
        (*qp).send_cq = attr.send_cq;
        (*qp).recv_cq = attr.recv_cq;
        (*qp).srq = attr.srq;
        (*qp).handle = number;
        (*qp).qp_num = number;
        (*qp).state = IBV_QPS_RESET;
        (*qp).qp_type = attr.qp_type;
        libc::pthread_mutex_init(&raw mut (*qp).mutex, null());
        libc::pthread_cond_init(&raw mut (*qp).cond, null());
    }
    Ok(qp)
}

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    // SAFETY: the program passes a QP of this provider, whose context is open, and its attributes.
    let (own, device, attr) = unsafe { (own(qp), opened((*qp).context), &*attr) };
    // SAFETY: as above; the type of a QP does not change.
    let kind = QpType::from_raw(unsafe { (*qp).qp_type }.into());
    let done = attributes::to_card(attr, attr_mask, (kind, own.queues.state()), device.limits())
        .and_then(|attributes| device.modify_qp(own, &attributes));
    errno("ibv_modify_qp", done)
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program passes a QP of this provider, whose context is open.
    let (own, device) = unsafe { (own(qp), opened((*qp).context)) };
    let answer = device.query_qp(own).map(|card| {
        // SAFETY: the program passes room for both answers; the QP lives, and what is read of it
        // does not change.
        unsafe {
            attr.write(attributes::from_card(&card, own.cap));
            init_attr.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: own.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: c_int::from((*qp.cast::<QpObject>()).signal_all),
            });
            (*qp).state = card.state.0.into();
        }
    });
    errno("ibv_query_qp", answer)
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program passes a QP of this provider that it frees by this call.
    errno("ibv_destroy_qp", unsafe { destroy(qp) })
}

/// # Safety
/// The QP is one of this provider, and nobody uses it after a success.
unsafe fn destroy(qp: *mut ibv_qp) -> Result<()> {
    // SAFETY: as the caller promises; its context is open as long as the QP lives.
    let handed = unsafe { opened((*qp).context).destroy_qp(own(qp))? };
    // SAFETY: the pointers are to fields of the living QP, whose counter libibverbs changes under
    // its mutex.
    unsafe {
        let counters = [(&raw const (*qp).events_completed, handed.asynchronous)];
        ready::wait(&raw mut (*qp).mutex, &raw mut (*qp).cond, &counters);
        drop(Box::from_raw(qp.cast::<QpObject>()));
    }
    Ok(())
}
