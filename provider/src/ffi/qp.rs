//! Queue pairs.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null, null_mut};

use fpga_regs::engine::qp::{Attributes, QpState, QpType};
use shim_abi::{Limits, ServiceChain};

use crate::abi::verbs::{
    self as ibv, IBV_QPS_RESET, ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
};
use crate::abi::{VERBS_QP_EX, verbs_qp};

use super::opened::opened;
use super::pd::{Lends, Use};
use super::types::zeroed;
use super::{cq, errno, object, ready, srq, xrc};
use crate::attributes;
use crate::context::{Context, NewQp, Qp};
use crate::error::{Result, invalid, unsupported};
use crate::sq::Building;

mod extended;

/// A QP.
#[repr(C)]
pub(super) struct QpObject {
    verbs: verbs_qp,
    /// The list under way on the send queue of `qp`, which is dropped before it.
    building: Building<'static>,
    qp: Qp,
    signal_all: bool,
    _pd: Option<Use>,
    _xrcd: Option<xrc::Use>,
}

/// # Safety
/// The QP is one of this provider that was not destroyed.
#[inline(always)]
pub(super) unsafe fn own<'a>(qp: *mut ibv_qp) -> &'a Qp {
    // SAFETY: a `QpObject` begins with its `verbs_qp` and that with the `ibv_qp`; its borrowed
    // part never changes but by atomics.
    unsafe { &(*qp.cast::<QpObject>()).qp }
}

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the program passes a domain of this provider and its attributes.
    object("ibv_create_qp", unsafe { create(pd, &mut *attr, None, None) })
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the program passes a context of this provider, and its attributes.
    object("ibv_create_qp_ex", unsafe { create_ex(context, &mut *attr, None) })
}

/// Makes a QP of extended attributes, with services on the path of its packets where some are asked for.
///
/// # Safety
/// The context is one of this provider, and all objects in the attributes are such that were not freed.
pub(super) unsafe fn create_ex(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    chain: Option<ServiceChain>,
) -> Result<*mut ibv_qp> {
    // SAFETY: as the caller promises.
    let send_ops = unsafe { check(context, attr) }?;
    if attr.qp_type == ibv::IBV_QPT_XRC_RECV {
        if chain.is_some() {
            return Err(unsupported!("a QP of type XRC_RECV has no services"));
        }
        // SAFETY: as the caller promises.
        return unsafe { create_target(context, attr) };
    }
    let pd = attr.pd;
    // SAFETY: as the caller promises; extended attributes begin with those of a plain QP.
    unsafe { create(pd, &mut *(&raw mut *attr).cast(), send_ops, chain) }
}

/// Refuses attributes that a QP cannot have; answers with the operations that it shall offer, for a QP of the
/// extended form.
///
/// # Safety
/// The domain in the attributes, where they have one, is one that was not freed.
unsafe fn check(context: *mut ibv_context, attr: &ibv_qp_init_attr_ex) -> Result<Option<u64>> {
    const FIELDS: u32 = ibv::IBV_QP_INIT_ATTR_PD
        | ibv::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | ibv::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        | ibv::IBV_QP_INIT_ATTR_XRCD;
    const NOT_OFFERED: u32 = ibv::IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | ibv::IBV_QP_INIT_ATTR_IND_TABLE
        | ibv::IBV_QP_INIT_ATTR_RX_HASH;
    let mask = attr.comp_mask;
    if mask & !(FIELDS | NOT_OFFERED) != 0 {
        return Err(invalid!("the QP's attribute mask {mask:#x} has unknown bits"));
    }
    if mask & NOT_OFFERED != 0 {
        return Err(unsupported!(
            "segmentation and hashing are not offered (attribute mask {mask:#x})"
        ));
    }
    let is_given = |field| mask & field != 0;
    if is_given(ibv::IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0 {
        return Err(unsupported!("create_flags {:#x} are not offered", attr.create_flags));
    }
    let is_target = attr.qp_type == ibv::IBV_QPT_XRC_RECV;
    if is_given(ibv::IBV_QP_INIT_ATTR_XRCD) != is_target {
        return Err(invalid!("QPs of type XRC_RECV, and no others, are made in an XRC domain"));
    }
    if is_target {
        return match is_given(ibv::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && attr.send_ops_flags != 0 {
            true => Err(invalid!("a QP of type XRC_RECV sends nothing")),
            false => Ok(None),
        };
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
    chain: Option<ServiceChain>,
) -> Result<*mut ibv_qp> {
    if attr.qp_type == ibv::IBV_QPT_XRC_RECV {
        return Err(invalid!(
            "a QP of type XRC_RECV needs an XRC domain: ibv_create_qp_ex makes it"
        ));
    }
    // A QP that only sends has no other queue.
    let only_sends = attr.qp_type == ibv::IBV_QPT_XRC_SEND;
    let recv_cq = if only_sends { attr.send_cq } else { attr.recv_cq };
    if attr.send_cq.is_null() || recv_cq.is_null() {
        return Err(invalid!("a QP needs a send CQ, and a receive CQ if it receives"));
    }
    // SAFETY: as the caller promises; a QP's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: as the caller promises.
    let queues = unsafe { [(*attr.send_cq).context, (*recv_cq).context] };
    let srq = if only_sends { null_mut() } else { attr.srq };
    // SAFETY: as the caller promises.
    let of_srq = unsafe { srq.as_ref() }.map(|srq| srq.context);
    if queues.into_iter().chain(of_srq).any(|other| other != context) {
        return Err(invalid!("a queue of the QP's is another context's than its domain"));
    }
    // SAFETY: as the caller promises; a domain's context is open as long as the domain lives.
    let (device, send_cq, receive_cq) =
        unsafe { (opened(context), cq::own(attr.send_cq), cq::own(recv_cq)) };
    // SAFETY: as the caller promises.
    let shared = (!srq.is_null()).then(|| unsafe { srq::own(srq) });
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
        lenders: [Lends::Sends, Lends::Receives].map(|what| using.lender(what)),
        address: place.as_mut_ptr() as u64,
        chain,
    })?;
    let number = qp.queues.qpn();
    // SAFETY: the structure is made of integers, raw pointers, optional functions and C's locks,
    // of which all bits zero is a value.
    let mut verbs: verbs_qp = unsafe { std::mem::zeroed() };
    if let Some(asked) = send_ops {
        let mut extended: ibv_qp_ex = zeroed();
        extended::furnish(&mut extended, kind, asked);
        verbs.__bindgen_anon_1.qp_ex = ManuallyDrop::new(extended);
        verbs.comp_mask = VERBS_QP_EX;
    }
    attr.cap = qp.cap;
    // SAFETY: the object drops it before the QP.
    let (building, _pd) = (unsafe { no_list(&qp) }, Some(using));
    place.write(QpObject { verbs, building, qp, signal_all, _pd, _xrcd: None });
    // SAFETY: it was just written.
    let qp: *mut ibv_qp = Box::into_raw(unsafe { place.assume_init() }).cast();
    // SAFETY: the object is ours alone until it is returned.
    unsafe {
        init(qp, context, number);
        (*qp).qp_context = attr.qp_context;
        (*qp).pd = pd;
        (*qp).send_cq = attr.send_cq;
        (*qp).recv_cq = attr.recv_cq;
        (*qp).srq = attr.srq;
        (*qp).qp_type = attr.qp_type;
    }
    Ok(qp)
}

/// No list of requests yet.
///
/// # Safety
/// The QP goes behind it. (Its queues stay where they are when the QP moves.)
unsafe fn no_list(qp: &Qp) -> Building<'static> {
    // SAFETY: as the caller promises.
    Building::of(unsafe { NonNull::from(&qp.queues.send).as_ref() })
}

/// Fills in the fields that every new QP has; its state is RESET.
///
/// # Safety
/// The QP is the caller's alone, and stays where it is.
unsafe fn init(qp: *mut ibv_qp, context: *mut ibv_context, number: u32) {
    // SAFETY: as the caller promises; the locks are made in place.
    unsafe {
        (*qp).context = context;
        (*qp).handle = number;
        (*qp).qp_num = number;
        (*qp).state = IBV_QPS_RESET;
        libc::pthread_mutex_init(&raw mut (*qp).mutex, null());
        libc::pthread_cond_init(&raw mut (*qp).cond, null());
    }
}

/// An XRC target that was made or opened.
struct TargetHandle {
    qp: Qp,
    state: QpState,
}

/// Makes the QP of an XRC target, which `open` answers, being told the QP's address.
fn put_target(
    context: *mut ibv_context,
    domain: xrc::Use,
    qp_context: *mut c_void,
    open: impl FnOnce(u64) -> Result<TargetHandle>,
) -> Result<*mut ibv_qp> {
    // Events name the object by its address, so there must be one first.
    let mut place = Box::<QpObject>::new_uninit();
    let TargetHandle { qp, state } = open(place.as_mut_ptr() as u64)?;
    let number = qp.queues.qpn();
    // SAFETY: as in `create`.
    let verbs: verbs_qp = unsafe { std::mem::zeroed() };
    // SAFETY: as in `create`.
    let (building, _xrcd) = (unsafe { no_list(&qp) }, Some(domain));
    place.write(QpObject { verbs, building, qp, signal_all: false, _pd: None, _xrcd });
    // SAFETY: it was just written.
    let qp: *mut ibv_qp = Box::into_raw(unsafe { place.assume_init() }).cast();
    // SAFETY: the object is ours alone until it is returned.
    unsafe {
        init(qp, context, number);
        (*qp).qp_context = qp_context;
        (*qp).state = state.0.into();
        (*qp).qp_type = ibv::IBV_QPT_XRC_RECV;
    }
    Ok(qp)
}

/// # Safety
/// The context is one of this provider, and so is the domain, or it is null.
unsafe fn create_target(
    context: *mut ibv_context,
    attr: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    // SAFETY: as the caller promises.
    let (domain, device) = unsafe { (xrc::Use::new(attr.xrcd, context)?, opened(context)) };
    let number = domain.number();
    let make = |address| {
        let qp = device.create_target(number, address)?;
        Ok(TargetHandle { qp, state: QpState::Reset })
    };
    put_target(context, domain, attr.qp_context, make)
}

pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the program passes a context of this provider, and its attributes.
    object("ibv_open_qp", unsafe { open_target(context, &*attr) })
}

/// # Safety
/// The context is one of this provider, and so is the domain, or it is null.
unsafe fn open_target(context: *mut ibv_context, attr: &ibv_qp_open_attr) -> Result<*mut ibv_qp> {
    const NEEDED: u32 =
        ibv::IBV_QP_OPEN_ATTR_NUM | ibv::IBV_QP_OPEN_ATTR_XRCD | ibv::IBV_QP_OPEN_ATTR_TYPE;
    let mask = attr.comp_mask;
    if mask & NEEDED != NEEDED || mask & !(NEEDED | ibv::IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
        return Err(invalid!("a QP is opened by its number, its XRC domain and its type"));
    }
    if attr.qp_type != ibv::IBV_QPT_XRC_RECV {
        return Err(invalid!("QPs of type {} cannot be opened", attr.qp_type));
    }
    let has_context = mask & ibv::IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let qp_context = if has_context { attr.qp_context } else { null_mut() };
    // SAFETY: as the caller promises.
    let (domain, device) = unsafe { (xrc::Use::new(attr.xrcd, context)?, opened(context)) };
    let number = domain.number();
    let open = |address| {
        let qp = device.open_target(number, attr.qp_num, address)?;
        // Other processes may have brought it to any state.
        let state = device.query_qp(&qp).map(|now| now.state).inspect_err(|_| {
            let _ = device.destroy_qp(&qp);
        })?;
        Ok(TargetHandle { qp, state })
    };
    put_target(context, domain, qp_context, open)
}

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    let attributes = |of, limits: &Limits| {
        // SAFETY: the program passes its attributes.
        attributes::to_card(unsafe { &*attr }, attr_mask, of, limits)
    };
    // SAFETY: the program passes a QP of this provider, whose context is open.
    errno("ibv_modify_qp", unsafe { change(qp, attributes) })
}

pub(super) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    let attributes = |of, limits: &Limits| {
        // SAFETY: the program passes its attributes.
        attributes::to_limit(unsafe { &*attr }, of, limits)
    };
    // SAFETY: the program passes a QP of this provider, whose context is open.
    errno("ibv_modify_qp_rate_limit", unsafe { change(qp, attributes) })
}

/// Makes a change of a QP, by its type and the state that it is in.
///
/// # Safety
/// The QP is one of this provider, and its context is open.
unsafe fn change(
    qp: *mut ibv_qp,
    attributes: impl FnOnce((QpType, QpState), &Limits) -> Result<Attributes>,
) -> Result<()> {
    // SAFETY: as the caller promises.
    let (own, device) = unsafe { (own(qp), opened((*qp).context)) };
    // SAFETY: as above; the type of a QP does not change.
    let kind = QpType::from_raw(unsafe { (*qp).qp_type }.into());
    // Others may have brought it to another state since.
    let known = match Context::is_shared(own) {
        true => device.query_qp(own).map(|now| now.state),
        false => Ok(own.queues.state()),
    };
    known
        .and_then(|from| attributes((kind, from), device.limits()))
        .and_then(|attributes| device.modify_qp(own, &attributes))
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
        // SAFETY: the program passes room for both answers; the QP lives, and the fields that
        // are read do not change.
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
