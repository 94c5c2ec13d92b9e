//! Protection domains, thread domains, and parent domains that join them.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hostmem::{Lender, Lent};

use crate::abi::verbs::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use verbs_sys::ioctl::RDMA_DRIVER_UNKNOWN;

use super::opened::opened;
use super::{errno, object};
use crate::error::{Error, Result, invalid, unsupported};

/// A protection domain, or a parent domain, which stands for one.
#[repr(C)]
pub(super) struct Pd {
    verbs: ibv_pd,
    own: Own,
}

/// The provider's own part of a [`Pd`].
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
    allocator: Option<Allocator>,
}

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// The functions by which a program allocates memory for objects of its parent domain.
#[derive(Clone, Copy, Debug)]
struct Allocator {
    alloc: Alloc,
    free: Free,
    /// The value that the program gets with each call.
    pd_context: *mut c_void,
}

/// The use of lent memory: the code of a resource in its `resource_type`.
///
/// The memory holds the provider's notes of work requests, such as their `wr_id`. Rings, into which
/// entries are written, are balboad's, and a completion queue has only a ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lends {
    /// The send queue of a QP.
    Sends = 1,
    /// The receive queue of a QP.
    Receives = 2,
    /// A shared receive queue.
    SharedReceives = 3,
}

/// A parent domain that lends memory by its program's functions.
#[derive(Debug)]
struct Lending {
    allocator: Allocator,
    pd: *mut ibv_pd,
    resource_type: u64,
}

// SAFETY: the pointers are handed on to the program, whose functions any thread may call that makes or ends
// an object of the parent domain.
unsafe impl Send for Lending {}
// SAFETY: as above.
unsafe impl Sync for Lending {}

/// `IBV_ALLOCATOR_USE_DEFAULT`: the memory is the heap's.
const USE_DEFAULT: usize = usize::MAX;

// SAFETY: the program promises memory of the size and alignment that nobody uses before it is freed; the
// alignment is looked at.
unsafe impl Lender for Lending {
    fn lend(&self, layout: Layout) -> Lent {
        let Self { allocator: Allocator { alloc, free, pd_context }, pd, resource_type } = *self;
        // SAFETY: the function is the program's, for calls like this one.
        let memory = unsafe { alloc(pd, pd_context, layout.size(), layout.align(), resource_type) };
        if memory.addr() == USE_DEFAULT {
            return Lent::Heap;
        }
        let in_alignment = layout.align().wrapping_sub(1);
        match NonNull::new(memory.cast::<u8>()) {
            Some(memory) if memory.addr().get() & in_alignment == 0 => Lent::Memory(memory),
            Some(_) => {
                // SAFETY: as above, with memory of the program's.
                unsafe { free(pd, pd_context, memory, resource_type) };
                Lent::None
            }
            None => Lent::None,
        }
    }

    unsafe fn take_back(&self, memory: NonNull<u8>) {
        let Self { allocator: Allocator { free, pd_context, .. }, pd, resource_type } = *self;
        // SAFETY: the program's other function returned the memory.
        unsafe { free(pd, pd_context, memory.as_ptr().cast(), resource_type) };
    }
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

/// Whether two domains are one to the card: themselves, or parent domains of the same.
///
/// # Safety
/// The first is one of this provider that was not freed, the other one of libibverbs' that was not, or null.
pub(super) unsafe fn are_one(one: *mut ibv_pd, other: *mut ibv_pd) -> bool {
    // SAFETY: as the caller promises; an object of the same context is of the same provider.
    !other.is_null()
        && unsafe { (*one).context == (*other).context && own(one).pdn == own(other).pdn }
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

    /// Begins to use a parent domain of a context; [`Error`] where it is none.
    ///
    /// # Safety
    /// As [`Self::new`]; the domain may also be null.
    pub(super) unsafe fn of_parent(pd: *mut ibv_pd, context: *mut ibv_context) -> Result<Self> {
        // SAFETY: as the caller promises.
        let is_parent = !pd.is_null() && unsafe { own(pd).parent.is_some() };
        // SAFETY: as the caller promises.
        if !is_parent || unsafe { (*pd).context } != context {
            return Err(invalid!(
                "the domain of the attributes is no parent domain of the context"
            ));
        }
        // SAFETY: as the caller promises.
        Ok(unsafe { Self::new(pd) })
    }

    /// balboad's number of the protection domain.
    pub(super) fn pdn(&self) -> u32 {
        // SAFETY: `new` was promised a domain that lives as long as this use of it.
        unsafe { own(self.0) }.pdn
    }

    /// Whether the program promised to use the objects of the domain by one thread at a time.
    pub(super) fn is_single_threaded(&self) -> bool {
        // SAFETY: as in `pdn`.
        unsafe { own(self.0) }.parent.as_ref().is_some_and(|parent| !parent.td.is_null())
    }

    /// The lender of memory to objects of the domain, if its program has its own allocator. It must not
    /// outlive the domain.
    pub(super) fn lender(&self, what: Lends) -> Option<Arc<dyn Lender>> {
        // SAFETY: as in `pdn`.
        let allocator = unsafe { own(self.0) }.parent.as_ref()?.allocator?;
        let resource_type = u64::from(RDMA_DRIVER_UNKNOWN) << 32 | what as u64;
        Some(Arc::new(Lending { allocator, pd: self.0, resource_type }))
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
    const FIELDS: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC`, which rdma-core has from 65 on.
    const UNPROTECTED: u32 = 1 << 2;
    let mask = attr.comp_mask;
    if mask & UNPROTECTED != 0 {
        return Err(unsupported!("no buffers are shared with the host of a confidential guest"));
    }
    if mask & !FIELDS != 0 {
        return Err(invalid!("the parent domain's attribute mask {mask:#x} has unknown bits"));
    }
    let is_given = |field| mask & field != 0;
    let pd_context =
        if is_given(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) { attr.pd_context } else { null_mut() };
    let allocator = match (attr.alloc, attr.free) {
        _ if !is_given(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) => None,
        (Some(alloc), Some(free)) => Some(Allocator { alloc, free, pd_context }),
        _ => return Err(invalid!("an allocator has two functions: alloc and free")),
    };
    // SAFETY: as the caller promises.
    if attr.pd.is_null() || unsafe { (*attr.pd).context } != context {
        return Err(invalid!("a parent domain needs a protection domain of its context"));
    }
    // SAFETY: as the caller promises.
    if !attr.td.is_null() && unsafe { (*attr.td).context } != context {
        return Err(invalid!("the thread domain is another context's"));
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
    let parent = Parent { pd: attr.pd.cast(), td, allocator };
    Ok(new_pd(context, protection.pdn, Some(parent)))
}

#[cfg(test)]
mod tests {
    use std::alloc::{alloc, dealloc};

    use hostmem::MaskedTable;

    use super::*;

    /// The answers of a program's allocator, and the requests to it.
    #[derive(Debug, Default)]
    struct Program {
        answers: Answers,
        asked: Vec<(usize, usize, u64)>,
        freed: Vec<u64>,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    enum Answers {
        #[default]
        Memory,
        Misaligned,
        Default,
        Nothing,
    }

    /// Room before each piece, so that one may be misaligned.
    const BEFORE: usize = 64;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size + BEFORE, BEFORE).unwrap()
    }

    unsafe extern "C" fn allocate(
        _pd: *mut ibv_pd,
        program: *mut c_void,
        size: usize,
        alignment: usize,
        resource_type: u64,
    ) -> *mut c_void {
        // SAFETY: the tests below pass one, that nobody else uses.
        let program = unsafe { &mut *program.cast::<Program>() };
        program.asked.push((size, alignment, resource_type));
        // SAFETY: the size is not 0.
        let at = || unsafe { alloc(layout(size)) };
        match program.answers {
            Answers::Memory => at().wrapping_add(BEFORE).cast(),
            Answers::Misaligned => at().wrapping_add(BEFORE - 4).cast(),
            Answers::Default => USE_DEFAULT as *mut c_void,
            Answers::Nothing => null_mut(),
        }
    }

    unsafe extern "C" fn free(
        _pd: *mut ibv_pd,
        program: *mut c_void,
        memory: *mut c_void,
        resource_type: u64,
    ) {
        // SAFETY: as above.
        let program = unsafe { &mut *program.cast::<Program>() };
        program.freed.push(resource_type);
        let before = if program.answers == Answers::Misaligned { BEFORE - 4 } else { BEFORE };
        let size = program.asked.first().unwrap().0;
        // SAFETY: it was allocated like that.
        unsafe { dealloc(memory.cast::<u8>().wrapping_sub(before), layout(size)) };
    }

    /// Makes and drops a table of 8 words: whether it was made, and the program's memory.
    fn table(answers: Answers) -> (bool, Program) {
        let mut program = Program { answers, ..Program::default() };
        let pd_context = (&raw mut program).cast();
        let allocator = Allocator { alloc: allocate, free, pd_context };
        let lending = Lending { allocator, pd: null_mut(), resource_type: 7 };
        let lender: Arc<dyn Lender> = Arc::new(lending);
        let table = MaskedTable::<u64>::lent(8, Some(&lender));
        let is_made = table.is_some();
        if let Some(table) = table {
            assert!(table.iter().all(|word| *word == 0));
        }
        (is_made, program)
    }

    #[test]
    fn a_program_allocates_and_frees_what_it_is_asked_for() {
        let (is_made, program) = table(Answers::Memory);
        assert!(is_made);
        assert_eq!((program.asked, program.freed), (vec![(64, 8, 7)], vec![7]));
    }

    #[test]
    fn a_program_may_leave_it_to_the_heap_and_is_not_asked_to_free_that() {
        let (is_made, program) = table(Answers::Default);
        assert!(is_made && program.freed.is_empty() && program.asked.len() == 1);
    }

    #[test]
    fn without_memory_or_with_such_as_is_not_aligned_nothing_is_made() {
        let (is_made, program) = table(Answers::Nothing);
        assert!(!is_made && program.freed.is_empty());
        let (is_made, program) = table(Answers::Misaligned);
        assert!(!is_made);
        assert_eq!(program.freed, [7]);
    }
}
