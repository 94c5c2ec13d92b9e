//! Verbs that a device may leave out, called as programs call them: by the context's table, as verbs.h does, or by the
//! library's functions. (Those that take objects of these alone cannot be called.)

use std::mem::zeroed;
use std::ptr::null_mut;

use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::Pd;
use super::qp::Qp;
use super::srq::Srq;

/// A verb, and a call of it with possible arguments.
pub type NotOffered = (&'static str, fn(&Pd, &Qp, &Srq) -> Result<(), Failed>);

/// The error of a call that must make nothing; an object that it made stays as long as the program.
fn made<T>(call: &'static str, object: *mut T) -> Result<(), Failed> {
    if object.is_null() { Err(Failed::last(call)) } else { Ok(()) }
}

/// A function of the table behind a context, called.
macro_rules! call {
    ($pd:expr, $function:ident($($argument:expr),*)) => {{
        let table = $pd.context().extended().expect("libibverbs' contexts are extended");
        // SAFETY: the table lives as long as the context, whose library has put a function into each of its places; the
        // objects live, and attributes that are all zero are valid ones.
        unsafe {
            let function = table.as_ref().$function.expect("the library has one for each verb");
            function($($argument),*)
        }
    }};
}

/// Attributes, all zero.
macro_rules! blank {
    ($type:ident) => {
        // SAFETY: numbers, null pointers and no functions; all zero is a valid value.
        unsafe { zeroed::<v::$type>() }
    };
}

/// Those of release 44 that no card here has.
pub const NOT_OFFERED: &[NotOffered] = &[
    ("ibv_advise_mr", |pd, _, _| {
        let outcome = call!(pd, advise_mr(pd.raw(), 0, 0, null_mut(), 0));
        Failed::check("ibv_advise_mr", outcome)
    }),
    ("ibv_create_counters", |pd, _, _| {
        let mut attributes = blank!(ibv_counters_init_attr);
        made(
            "ibv_create_counters",
            call!(pd, create_counters(pd.context().raw(), &raw mut attributes)),
        )
    }),
    ("ibv_create_flow", |pd, qp, _| {
        let mut attributes = blank!(ibv_flow_attr);
        made("ibv_create_flow", call!(pd, ibv_create_flow(qp.raw(), &raw mut attributes)))
    }),
    ("ibv_create_flow_action_esp", |pd, _, _| {
        let mut attributes = blank!(ibv_flow_action_esp_attr);
        let action = call!(pd, create_flow_action_esp(pd.context().raw(), &raw mut attributes));
        made("ibv_create_flow_action_esp", action)
    }),
    ("ibv_create_rwq_ind_table", |pd, _, _| {
        let mut attributes = blank!(ibv_rwq_ind_table_init_attr);
        let table = call!(pd, create_rwq_ind_table(pd.context().raw(), &raw mut attributes));
        made("ibv_create_rwq_ind_table", table)
    }),
    ("ibv_create_wq", |pd, _, _| {
        let mut attributes = blank!(ibv_wq_init_attr);
        made("ibv_create_wq", call!(pd, create_wq(pd.context().raw(), &raw mut attributes)))
    }),
    ("ibv_import_dm", |pd, _, _| {
        // SAFETY: the context is open.
        made("ibv_import_dm", unsafe { (pd.library().ibv_import_dm)(pd.context().raw(), 0) })
    }),
    ("ibv_import_mr", |pd, _, _| {
        // SAFETY: the domain lives.
        made("ibv_import_mr", unsafe { (pd.library().ibv_import_mr)(pd.raw(), 0) })
    }),
    ("ibv_import_pd", |pd, _, _| {
        // SAFETY: the context is open.
        made("ibv_import_pd", unsafe { (pd.library().ibv_import_pd)(pd.context().raw(), 0) })
    }),
    ("ibv_post_srq_ops", |pd, _, srq| {
        let (mut request, mut bad) = (blank!(ibv_ops_wr), null_mut());
        let outcome = call!(pd, post_srq_ops(srq.raw(), &raw mut request, &raw mut bad));
        Failed::check("ibv_post_srq_ops", outcome)
    }),
];
