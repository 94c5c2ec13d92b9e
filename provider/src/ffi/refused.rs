//! Verbs that these cards do not have: refused with EOPNOTSUPP as libibverbs would, but with a reason.

use std::ffi::{c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

use crate::abi::verbs_context_ops;
use crate::error::unsupported;

/// Refuses a call, and returns EOPNOTSUPP.
fn refuse(call: &str, why: &str) -> c_int {
    super::errno(call, Err(unsupported!("{why}")))
}

/// A function without arguments, as the verb that it refuses.
///
/// # Safety
/// Both are functions of C's calling convention, with the same answer. The arguments are ignored: on both
/// processors that are supported they are the caller's to remove.
unsafe fn verb<Refusing: Copy, Verb: Copy>(refuse: Refusing) -> Verb {
    const { assert!(size_of::<Refusing>() == size_of::<Verb>(), "both are functions") };
    // SAFETY: as the caller promises; the sizes are equal.
    unsafe { transmute_copy(&refuse) }
}

/// Makes a function for each verb that answers with an object, and for each that answers with an errno,
/// and the table of them all.
macro_rules! refused {
    (
        objects { $($object:ident: $object_call:literal, $object_why:literal;)* }
        errnos { $($errno:ident: $errno_call:literal, $errno_why:literal;)* }
    ) => {
        $(unsafe extern "C" fn $object() -> *mut c_void {
            refuse($object_call, $object_why);
            null_mut()
        })*
        $(unsafe extern "C" fn $errno() -> c_int {
            refuse($errno_call, $errno_why)
        })*

        /// A table of verbs that has these, and no others.
        pub(super) fn operations() -> verbs_context_ops {
            // SAFETY: all fields are optional functions, of which all bits zero is none.
            let none: verbs_context_ops = unsafe { std::mem::zeroed() };
            verbs_context_ops {
                // SAFETY: all of these verbs answer with a pointer.
                $($object: Some(unsafe {
                    verb($object as unsafe extern "C" fn() -> *mut c_void)
                }),)*
                // SAFETY: all of these verbs answer with an int.
                $($errno: Some(unsafe { verb($errno as unsafe extern "C" fn() -> c_int) }),)*
                ..none
            }
        }

        #[cfg(test)]
        const OBJECTS: &[(&str, unsafe extern "C" fn() -> *mut c_void)] =
            &[$((stringify!($object), $object)),*];
        #[cfg(test)]
        const ERRNOS: &[(&str, unsafe extern "C" fn() -> c_int)] =
            &[$((stringify!($errno), $errno)),*];
        #[cfg(test)]
        const REASONS: &[(&str, &str)] =
            &[$(($object_call, $object_why),)* $(($errno_call, $errno_why),)*];
    };
}

refused! {
    objects {
        create_counters: "ibv_create_counters", "there are no counters of flows";
        create_flow: "ibv_create_flow", "packets are not steered by flows";
        create_flow_action_esp: "ibv_create_flow_action_esp", "packets are not encrypted";
        create_rwq_ind_table: "ibv_create_rwq_ind_table", "receives are not spread by hashes";
        create_wq: "ibv_create_wq", "there are no work queues apart from queue pairs";
        import_dm: "ibv_import_dm", "device memory is its process's own";
        import_mr: "ibv_import_mr", "memory regions are their process's own";
        import_pd: "ibv_import_pd", "protection domains are their process's own";
    }
    errnos {
        advise_mr: "ibv_advise_mr", "memory is there as long as it is registered";
        post_srq_ops: "ibv_post_srq_ops", "there is no tag matching";
        query_ece: "ibv_query_ece", "there are no options of connections";
        set_ece: "ibv_set_ece", "there are no options of connections";
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn every_verb_that_is_refused_says_so_and_why() {
        for (name, refuse) in OBJECTS {
            Errno::clear();
            // SAFETY: it takes no arguments.
            assert!(unsafe { refuse() }.is_null(), "{name}");
            assert_eq!(Errno::last(), Errno::EOPNOTSUPP, "{name}");
        }
        for (name, refuse) in ERRNOS {
            Errno::clear();
            // SAFETY: it takes no arguments.
            assert_eq!(unsafe { refuse() }, libc::EOPNOTSUPP, "{name}");
            assert_eq!(Errno::last(), Errno::EOPNOTSUPP, "{name}");
        }
        for (call, why) in REASONS {
            assert!(call.starts_with("ibv_") && why.contains(' '), "{call}: {why}");
        }
        assert_eq!(REASONS.len(), OBJECTS.len() + ERRNOS.len());
    }

    #[test]
    fn what_is_told_of_by_libibverbs_itself_is_left_to_it() {
        let operations = operations();
        assert!(operations.async_event.is_none());
        assert!(operations.query_qp_data_in_order.is_none());
        assert!(operations.create_flow.is_some() && operations.set_ece.is_some());
    }
}
