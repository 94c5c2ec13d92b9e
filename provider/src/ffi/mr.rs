//! Memory regions.

use std::ffi::{c_int, c_void};
use std::fs;
use std::sync::LazyLock;

use crate::abi::verbs::{self as ibv, ibv_mr, ibv_pd};
use crate::abi::{IBV_MR_TYPE_DMABUF_MR, IBV_MR_TYPE_MR, IBV_MR_TYPE_NULL_MR, verbs_mr};
use nix::errno::Errno;

use super::opened::opened;
use super::pages::Pages;
use super::pd::Use;
use super::types::zeroed;
use super::{errno, object};
use crate::context::DeviceMemory;
use crate::error::{Error, Result, invalid, unsupported};
use crate::mr::Registration;

/// A memory region.
#[repr(C)]
struct Mr {
    verbs: verbs_mr,
    number: u32,
    pd: Use,
    /// Of the program's memory; of the card's own there is none, nor of a null region.
    registration: Option<Registration>,
    /// Of a dma-buf, where it is mapped; unmapped behind the registration.
    _pages: Option<Pages>,
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    let registration = Registration::new(address as u64, length as u64, hca_va, access as u32);
    let registered = registration.and_then(|registration| {
        // SAFETY: the program passes a domain of this provider.
        unsafe { register(pd, registration, None, access) }
    });
    object("ibv_reg_mr", registered)
}

/// Registers memory of the program: with `pages`, of a dma-buf that is mapped there.
///
/// # Safety
/// The domain is one of this provider and lives.
pub(super) unsafe fn register(
    pd: *mut ibv_pd,
    registration: Registration,
    pages: Option<Pages>,
    access: c_int,
) -> Result<*mut ibv_mr> {
    // SAFETY: as the caller promises; a region's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let device = unsafe { opened(context) };
    let (number, lkey, rkey) =
        device.reg_mr(using.pdn(), &registration, || populate(&registration))?;
    let ibv_mr = ibv_mr { context, pd, handle: number, lkey, rkey, ..zeroed() };
    let mr_type = if pages.is_some() { IBV_MR_TYPE_DMABUF_MR } else { IBV_MR_TYPE_MR };
    let verbs = verbs_mr { ibv_mr, mr_type, access };
    let registration = Some(registration);
    let region = Mr { verbs, number, pd: using, registration, _pages: pages };
    Ok(Box::into_raw(Box::new(region)).cast())
}

/// Registers a range of the card's own memory.
///
/// # Safety
/// The domain is one of this provider and lives.
pub(super) unsafe fn register_dm(
    pd: *mut ibv_pd,
    memory: &DeviceMemory,
    (offset, length): (u64, usize),
    access: u32,
) -> Result<*mut ibv_mr> {
    // SAFETY: as the caller promises; a region's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let device = unsafe { opened(context) };
    let range = (offset, length as u64);
    let (number, lkey, rkey) = device.reg_dm_mr(using.pdn(), memory, range, access)?;
    // libibverbs writes the addresses of other regions.
    let ibv_mr = ibv_mr { context, pd, length, handle: number, lkey, rkey, ..zeroed() };
    let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_MR, access: access as c_int };
    let region = Mr { verbs, number, pd: using, registration: None, _pages: None };
    Ok(Box::into_raw(Box::new(region)).cast())
}

pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the program passes a domain of this provider, which outlives the region.
    object("ibv_alloc_null_mr", unsafe { make_null(pd) })
}

/// # Safety
/// The domain is one of this provider and lives.
unsafe fn make_null(pd: *mut ibv_pd) -> Result<*mut ibv_mr> {
    // SAFETY: as the caller promises; a region's domain outlives it.
    let (using, context) = unsafe { (Use::new(pd), (*pd).context) };
    // SAFETY: a domain's context is open as long as the domain lives.
    let (number, lkey) = unsafe { opened(context) }.alloc_null_mr(using.pdn())?;
    // As long as can be said. Peers have no key of it.
    let ibv_mr = ibv_mr { context, pd, length: usize::MAX, handle: number, lkey, ..zeroed() };
    let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_NULL_MR, access: 0 };
    let region = Mr { verbs, number, pd: using, registration: None, _pages: None };
    Ok(Box::into_raw(Box::new(region)).cast())
}

pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = flags as u32;
    let asked = |flag| flags & flag != 0;
    let pd = asked(ibv::IBV_REREG_MR_CHANGE_PD).then_some(pd);
    let memory = (address as u64, length as u64);
    let memory = asked(ibv::IBV_REREG_MR_CHANGE_TRANSLATION).then_some(memory);
    let access = asked(ibv::IBV_REREG_MR_CHANGE_ACCESS).then_some(access);
    // SAFETY: the program passes a region of this provider, that nobody else changes meanwhile, and,
    // where it asks for that, another domain.
    errno("ibv_rereg_mr", unsafe { change(&mut *mr.cast::<Mr>(), pd, memory, access) })
}

/// Changes a region; libibverbs writes the rest into its structure.
///
/// # Safety
/// The region's context is open; the domain is one of libibverbs', which outlives the region.
unsafe fn change(
    region: &mut Mr,
    pd: Option<*mut ibv_pd>,
    memory: Option<(u64, u64)>,
    access: Option<c_int>,
) -> Result<()> {
    let context = region.verbs.ibv_mr.context;
    let using = match pd {
        None => None,
        // SAFETY: as the caller promises.
        Some(pd) if !pd.is_null() && unsafe { (*pd).context } == context => {
            // SAFETY: as the caller promises; one of this context is one of this provider.
            Some(unsafe { Use::new(pd) })
        }
        Some(_) => return Err(invalid!("the protection domain is another context's")),
    };
    let Some(before) = region.registration else {
        return Err(unsupported!("a region without memory of the program's does not change"));
    };
    let registration = before.changed(memory, access.map(|it| it as u32))?;
    let pdn = using.as_ref().unwrap_or(&region.pd).pdn();
    // SAFETY: as the caller promises.
    let device = unsafe { opened(context) };
    let named = (region.number, &before);
    device.rereg_mr(named, pdn, &registration, || populate(&registration))?;
    region.registration = Some(registration);
    if let Some(using) = using {
        region.pd = using;
    }
    if let Some(access) = access {
        region.verbs.access = access;
    }
    Ok(())
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    let region = mr.cast::<Mr>();
    // SAFETY: the program passes a region of this provider, whose context is open.
    let (number, device) = unsafe { ((*region).number, opened((*region).verbs.ibv_mr.context)) };
    let done = device.dereg_mr(number);
    if done.is_ok() {
        // SAFETY: made by `register`, and freed here once.
        drop(unsafe { Box::from_raw(region) });
    }
    errno("ibv_dereg_mr", done)
}

/// Makes the pages of a region be there and usable, as pinning them would.
///
/// Memory that is not mapped, or may not be written where the card would, is EFAULT. Kernels before
/// 5.14 cannot be asked; there, bad memory shows as a failed work request.
fn populate(registration: &Registration) -> Result<()> {
    let (advice, access) = if registration.is_written() {
        (libc::MADV_POPULATE_WRITE, "writing")
    } else {
        (libc::MADV_POPULATE_READ, "reading")
    };
    let page = hostmem::PAGE_BYTES as u64;
    let Registration { address, length, .. } = *registration;
    let start = address & !page.wrapping_sub(1);
    let bytes = address.wrapping_sub(start).saturating_add(length).next_multiple_of(page);
    use_huge_pages(start, bytes, advice);
    loop {
        match advise(start, bytes, advice) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            // Nothing to advise is fine with a kernel that knows the advice.
            Err(Errno::EINVAL) if advise(start, 0, advice).is_err() => return Ok(()),
            Err(errno) => return Err(Error::BadMemory { address, length, access, errno }),
        }
    }
}

/// Bytes of a huge page, where the kernel may make some for a program.
static HUGE_PAGE: LazyLock<Option<u64>> = LazyLock::new(|| {
    let setting = |name| fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}"));
    let never = setting("enabled").ok()?.contains("[never]");
    let bytes: u64 = setting("hpage_pmd_size").ok()?.trim().parse().ok()?;
    (!never && bytes.is_power_of_two()).then_some(bytes)
});

/// Puts huge pages behind the blocks of a range that can have them, before `populate` makes all other pages.
///
/// A copy to or from another process costs the kernel more for each page than for its 4 KiB, and
/// memory is populated by huge pages in a fifth of the time. Only blocks that lie wholly in the range
/// are concerned, so nothing grows, and no attribute of the mapping changes, so none is split. Where
/// the kernel cannot (before 6.1, or for memory that is not anonymous, or the program forbade it), or has no
/// huge page left, the pages are as they were.
fn use_huge_pages(start: u64, bytes: u64, populate: c_int) {
    let Some(huge) = *HUGE_PAGE else { return };
    let end = start.saturating_add(bytes) & !huge.wrapping_sub(1);
    let Some(first) = start.checked_next_multiple_of(huge).filter(|first| *first < end) else {
        return;
    };
    // A block without any page is not collapsed.
    for block in (first..end).step_by(huge as usize) {
        if advise(block, hostmem::PAGE_BYTES as u64, populate).is_err() {
            return;
        }
    }
    let _ = advise(first, end.wrapping_sub(first), libc::MADV_COLLAPSE);
}

fn advise(start: u64, bytes: u64, advice: c_int) -> Result<(), Errno> {
    // SAFETY: neither populating nor collapsing changes contents; the kernel checks the range.
    let result = unsafe { libc::madvise(start as *mut c_void, bytes as usize, advice) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(protection: c_int) -> u64 {
        map_bytes(8192, protection)
    }

    /// A new mapping between two closed pages, so that it is one with no neighbour.
    fn map_bytes(bytes: usize, protection: c_int) -> u64 {
        let (flags, page) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, hostmem::PAGE_BYTES);
        let (all, closed) = (bytes + 2 * page, libc::PROT_NONE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), all, closed, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.wrapping_byte_add(page);
        // SAFETY: the range lies in the new mapping, which nobody uses yet.
        assert_eq!(unsafe { libc::mprotect(at, bytes, protection) }, 0);
        at as u64
    }

    fn try_populate(address: u64, length: u64, access: u32) -> Option<i32> {
        let registration = Registration::new(address, length, address, access).unwrap();
        populate(&registration).err().map(|error| error.errno())
    }

    #[test]
    fn memory_is_there_or_it_is_a_bad_address() {
        use crate::abi::verbs::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ};
        let (writable, readable) = (map(libc::PROT_READ | libc::PROT_WRITE), map(libc::PROT_READ));
        assert_eq!(try_populate(writable + 100, 8000, IBV_ACCESS_LOCAL_WRITE), None);
        assert_eq!(try_populate(readable, 8192, IBV_ACCESS_REMOTE_READ), None);
        assert_eq!(try_populate(readable, 1, IBV_ACCESS_LOCAL_WRITE), Some(libc::EFAULT));
        let closed = map(libc::PROT_NONE);
        assert_eq!(try_populate(closed, 1, IBV_ACCESS_REMOTE_READ), Some(libc::EFAULT));
        assert_eq!(try_populate(16, 8, IBV_ACCESS_REMOTE_READ), Some(libc::EFAULT));
    }

    /// KiB of huge pages and of all pages of the mapping that an address is in.
    fn resident(address: u64) -> [u64; 2] {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| {
            let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
            let range = range.map(|(from, to)| [from, to].map(|it| u64::from_str_radix(it, 16)));
            !matches!(range, Some([Ok(from), Ok(to)]) if (from..to).contains(&address))
        });
        let mut kib = |name| {
            let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let all = kib("Rss:");
        [kib("AnonHugePages:"), all]
    }

    /// Registers a large region, and answers whether it has as many huge pages as it can, or the machine has none left.
    fn gets_huge_pages(touched: bool) -> bool {
        use crate::abi::verbs::IBV_ACCESS_LOCAL_WRITE;
        let huge = HUGE_PAGE.unwrap_or(2 << 20);
        let bytes = 4 * huge as usize;
        let base = map_bytes(bytes, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the mapping is new, and nobody else's.
        let memory = unsafe { std::slice::from_raw_parts_mut(base as *mut u8, bytes) };
        // Two to three whole blocks, and a page more at either end.
        let start = base.next_multiple_of(huge) - 1;
        let start = start.max(base + 4096);
        let length = base + bytes as u64 - 4096 - start;
        if touched {
            let own = &mut memory[(start - base) as usize..][..length as usize];
            own.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        }
        assert_eq!(try_populate(start, length, IBV_ACCESS_LOCAL_WRITE), None);
        let [gathered, all] = resident(start);
        let first = start.next_multiple_of(huge);
        let blocks = (start + length) / huge * huge - first;
        let could = || advise(first, blocks, libc::MADV_COLLAPSE).is_ok();
        let gathers = gathered == blocks >> 10 || HUGE_PAGE.is_none() || !could();
        let pages = (start + length).next_multiple_of(4096) - start / 4096 * 4096;
        assert_eq!(all, pages >> 10, "only what was registered is there");
        let own = &memory[(start - base) as usize..][..length as usize];
        let kept = |(at, byte): (usize, &u8)| *byte == if touched { at as u8 } else { 0 };
        assert!(own.iter().enumerate().all(kept));
        // SAFETY: the mapping is not used any more.
        assert_eq!(unsafe { libc::munmap(base as *mut c_void, bytes) }, 0);
        gathers
    }

    #[test]
    fn a_large_region_gets_huge_pages_and_keeps_its_contents_and_its_size() {
        for touched in [false, true] {
            // While the machine moves other memory out of the way it may have too few for a moment.
            assert!((0..4).any(|_| gets_huge_pages(touched)), "touched before: {touched}");
        }
    }
}
