//! Protection domains, thread domains, and parent domains that join them.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::verbs::{
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context, ibv_parent_domain_init_attr, ibv_pd,
    ibv_td, ibv_td_init_attr,
};

use super::context::opened;
use super::{errno, object};
use crate::error::{Error, Result, invalid, unsupported};

/// A protection domain, or a parent domain, which stands for one.
#[repr(C)]
pub(super) struct Pd {
    verbs: ibv_pd,
    own: Own,
}

/// What is ours of a [`Pd`].
struct Own {
    pdn: u32,
    /// Objects that were made under it.
    users: AtomicU32,
    parent: Option<Parent>,
}

/// The domains a parent domain joins.
struct Parent {
    pd: *mut Pd,
    td: *mut Td,
}

/// A thread domain: a promise of the program.
#[repr(C)]
pub(super) struct Td {
    verbs: ibv_td,
    users: AtomicU32,
}

/// # Safety
/// The domain is one of this provider that was not freed.
unsafe fn own<'a>(pd: *mut ibv_pd) -> &'a Own {
    // SAFETY: a `Pd` begins with its `ibv_pd`; its own part changes by atomics only.
    unsafe { &(*pd.cast::<Pd>()).own }
}

/// A protection domain in use by an object, until dropped.
pub(super) struct Use(*mut ibv_pd);

impl Use {
    /// Begins to use a domain.
    ///
    /// # Safety
    /// The domain is one of this provider, and is not freed while it is used.
    pub(super) unsafe fn new(pd: *mut ibv_pd) -> Self {
        // SAFETY: as the caller promises.
        unsafe { own(pd) }.users.fetch_add(1, Ordering::AcqRel);
        Self(pd)
    }

    /// Begins to use a parent domain; [`Error`] where it is none.
    ///
    /// # Safety
    /// As [`Self::new`]; the domain may also be null.
    pub(super) unsafe fn of_parent(pd: *mut ibv_pd) -> Result<Self> {
        // SAFETY: as the caller promises.
        if pd.is_null() || unsafe { own(pd) }.parent.is_none() {
            return Err(invalid!("the domain of the attributes is no parent domain"));
        }
        // SAFETY: as the caller promises.
        Ok(unsafe { Self::new(pd) })
    }

    /// balboad's number of the protection domain.
    pub(super) fn pdn(&self) -> u32 {
        // SAFETY: `new` was promised a domain that lives as long as this use of it.
        unsafe { own(self.0) }.pdn
    }

    /// Whether the program promised to use what is made under it by one thread at a time.
    pub(super) fn is_single_threaded(&self) -> bool {
        // SAFETY: as in `pdn`.
        unsafe { own(self.0) }.parent.as_ref().is_some_and(|parent| !parent.td.is_null())
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // SAFETY: as in `pdn`.
        unsafe { own(self.0) }.users.fetch_sub(1, Ordering::AcqRel);
    }
}

fn new_pd(context: *mut ibv_context, pdn: u32, parent: Option<Parent>) -> *mut ibv_pd {
    let verbs = ibv_pd { context, handle: pdn };
    let own = Own { pdn, users: AtomicU32::new(0), parent };
    Box::into_raw(Box::new(Pd { verbs, own })).cast()
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: libibverbs passes a context of this provider.
    let device = unsafe { opened(context) };
    object("ibv_alloc_pd", device.alloc_pd().map(|pdn| new_pd(context, pdn, None)))
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> i32 {
    // SAFETY: the program passes a domain of this provider that it frees by this call.
    errno("ibv_dealloc_pd", unsafe { free_pd(pd) })
}

/// # Safety
/// The domain is one of this provider, and nobody uses it after a success.
unsafe fn free_pd(pd: *mut ibv_pd) -> Result<()> {
    // SAFETY: as the caller promises.
    let domain = unsafe { own(pd) };
    let users = domain.users.load(Ordering::Acquire);
    if users != 0 {
        return Err(Error::Busy(format!("{users} objects still use PD {}", domain.pdn)));
    }
    match &domain.parent {
        None => {
            // SAFETY: a domain's context is open as long as the domain lives.
            unsafe { opened((*pd).context) }.dealloc_pd(domain.pdn)?;
        }
        Some(parent) => {
            // SAFETY: both domains were counted as used by this one, so they live.
            unsafe { own(parent.pd.cast()) }.users.fetch_sub(1, Ordering::AcqRel);
            // SAFETY: as above; a parent domain may have no thread domain.
            if let Some(td) = unsafe { parent.td.as_ref() } {
                td.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
    // SAFETY: made by `new_pd`, and freed here once.
    drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
    Ok(())
}

pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the program passes its attributes.
    let mask = unsafe { (*attr).comp_mask };
    let made = if mask == 0 {
        let td = Td { verbs: ibv_td { context }, users: AtomicU32::new(0) };
        Ok(Box::into_raw(Box::new(td)).cast())
    } else {
        Err(invalid!("the thread domain's attribute mask {mask:#x} has unknown bits"))
    };
    object("ibv_alloc_td", made)
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> i32 {
    let td = td.cast::<Td>();
    // SAFETY: the program passes a domain of this provider, made by `alloc_td`.
    let users = unsafe { &*td }.users.load(Ordering::Acquire);
    let done = if users == 0 {
        // SAFETY: made by `alloc_td`, used by nobody, and freed here once.
        drop(unsafe { Box::from_raw(td) });
        Ok(())
    } else {
        Err(Error::Busy(format!("{users} parent domains still use the thread domain")))
    };
    errno("ibv_dealloc_td", done)
}

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the program passes its attributes, with domains of this provider or null.
    object("ibv_alloc_parent_domain", unsafe { parent_domain(context, &*attr) })
}

/// # Safety
/// The domains in the attributes are of this provider and live, or null.
unsafe fn parent_domain(
    context: *mut ibv_context,
    attr: &ibv_parent_domain_init_attr,
) -> Result<*mut ibv_pd> {
    if attr.comp_mask & !IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
        // Queues live in memory that balboad shares out; a program's allocator has no say.
        return Err(unsupported!("allocators of a parent domain are not offered"));
    }
    if attr.pd.is_null() {
        return Err(invalid!("a parent domain needs a protection domain"));
    }
    // SAFETY: as the caller promises.
    let protection = unsafe { own(attr.pd) };
    if protection.parent.is_some() {
        return Err(invalid!("a parent domain cannot stand in another parent domain"));
    }
    protection.users.fetch_add(1, Ordering::AcqRel);
    let td = if attr.td.is_null() { null_mut() } else { attr.td.cast::<Td>() };
    // SAFETY: as the caller promises.
    if let Some(td) = unsafe { td.as_ref() } {
        td.users.fetch_add(1, Ordering::AcqRel);
    }
    let parent = Parent { pd: attr.pd.cast(), td };
    Ok(new_pd(context, protection.pdn, Some(parent)))
}
