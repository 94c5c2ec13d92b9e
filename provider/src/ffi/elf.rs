//! A loaded library's slots for the functions it imports.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{Elf64_Phdr, Elf64_Rela, Elf64_Sym, dl_phdr_info};

use crate::error::{Error, Result};

/// Relocations that bind a slot to a function.
#[cfg(target_arch = "x86_64")]
const BINDING: [u32; 2] = [6 /* R_X86_64_GLOB_DAT */, 7 /* R_X86_64_JUMP_SLOT */];
/// Relocations that bind a slot to a function.
#[cfg(target_arch = "aarch64")]
const BINDING: [u32; 2] = [1025 /* R_AARCH64_GLOB_DAT */, 1026 /* R_AARCH64_JUMP_SLOT */];

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// An entry of a library's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// A library that is loaded, and stays.
pub(super) struct Library {
    /// The base of its addresses.
    base: usize,
    segments: Vec<Elf64_Phdr>,
}

/// A slot in a library's tables, through which it calls one imported function.
pub(super) struct Slot<'a> {
    library: &'a Library,
    address: usize,
}

impl Library {
    /// Finds the library that has the code at an address.
    pub(super) fn containing(address: usize) -> Option<Self> {
        let mut search = Search { address, found: None };
        // SAFETY: the callback gets the address of `search`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        search.found
    }

    /// Visits each loaded library whose file's name begins so; none of them is unloaded meanwhile.
    pub(super) fn each_named(prefix: &str, visit: impl FnMut(&Self)) {
        let mut named = Named { prefix: prefix.as_bytes(), visit };
        let callback = visit_named(&named);
        // SAFETY: the callback gets the address of `named`, which is of its type and outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(callback), (&raw mut named).cast()) };
    }

    /// A library as the dynamic linker describes it.
    ///
    /// # Safety
    /// The description is the dynamic linker's.
    unsafe fn described(info: &dl_phdr_info) -> Self {
        // SAFETY: the dynamic linker describes a library with that many program headers.
        let segments =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        Self { base: info.dlpi_addr as usize, segments: segments.to_vec() }
    }

    fn covers(&self, address: usize) -> bool {
        self.segment(PT_LOAD, address).is_some()
    }

    /// The segment of a kind that covers an address: its first byte and its size.
    fn segment(&self, kind: u32, address: usize) -> Option<(usize, usize)> {
        self.segments.iter().find_map(|segment| {
            let start = self.base.wrapping_add(segment.p_vaddr as usize);
            let bytes = segment.p_memsz as usize;
            let inside = address.wrapping_sub(start) < bytes;
            (segment.p_type == kind && inside).then_some((start, bytes))
        })
    }

    /// An address that stands in the dynamic section: most linkers have added the base already.
    fn address(&self, value: u64) -> usize {
        let value = value as usize;
        if self.covers(value) { value } else { self.base.wrapping_add(value) }
    }

    /// The slots through which the library calls a function.
    ///
    /// # Safety
    /// The library stays loaded, and its relocations do not change.
    pub(super) unsafe fn slots(&self, function: &CStr) -> Vec<Slot<'_>> {
        let Some(dynamic) = self.segments.iter().find(|segment| segment.p_type == PT_DYNAMIC)
        else {
            return Vec::new();
        };
        let mut entry = self.base.wrapping_add(dynamic.p_vaddr as usize) as *const Dynamic;
        let (mut names, mut symbols) = (0, 0);
        let (mut bound, mut bound_bytes, mut other, mut other_bytes) = (0, 0, 0, 0);
        // SAFETY: the dynamic section of a loaded library is an array that ends with a zero tag.
        while let Dynamic { tag: 1.., value } = unsafe { &*entry } {
            // SAFETY: as above.
            match unsafe { (*entry).tag } {
                DT_STRTAB => names = self.address(*value),
                DT_SYMTAB => symbols = self.address(*value),
                DT_JMPREL => bound = self.address(*value),
                DT_PLTRELSZ => bound_bytes = *value as usize,
                DT_RELA => other = self.address(*value),
                DT_RELASZ => other_bytes = *value as usize,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        if names == 0 || symbols == 0 {
            return Vec::new();
        }
        let mut slots = Vec::new();
        for (table, bytes) in [(bound, bound_bytes), (other, other_bytes)] {
            if table == 0 {
                continue;
            }
            let count = bytes.checked_div(size_of::<Elf64_Rela>()).unwrap_or(0);
            // SAFETY: the dynamic section says that the table is there with that many bytes.
            let table = unsafe { std::slice::from_raw_parts(table as *const Elf64_Rela, count) };
            for relocation in table.iter().filter(|r| BINDING.contains(&(r.r_info as u32))) {
                let symbol =
                    (symbols as *const Elf64_Sym).wrapping_add((relocation.r_info >> 32) as usize);
                // SAFETY: a relocation names a symbol of the library, whose name is a
                // zero-terminated string in its table.
                let name = unsafe {
                    let offset = (*symbol).st_name as usize;
                    CStr::from_ptr((names as *const libc::c_char).wrapping_add(offset))
                };
                if name == function {
                    let address = self.base.wrapping_add(relocation.r_offset as usize);
                    slots.push(Slot { library: self, address });
                }
            }
        }
        slots
    }
}

struct Search {
    address: usize,
    found: Option<Library>,
}

unsafe extern "C" fn visit(info: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: `containing` passed its `Search`; the dynamic linker passes a library's description.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: as above.
    let library = unsafe { Library::described(info) };
    if library.covers(search.address) {
        search.found = Some(library);
        return 1;
    }
    0
}

struct Named<'a, V> {
    prefix: &'a [u8],
    visit: V,
}

type Callback = unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int;

/// The callback for a `Named` of that type.
fn visit_named<V: FnMut(&Library)>(_named: &Named<'_, V>) -> Callback {
    visit_each::<V>
}

unsafe extern "C" fn visit_each<V: FnMut(&Library)>(
    info: *mut dl_phdr_info,
    _size: usize,
    named: *mut c_void,
) -> c_int {
    // SAFETY: `each_named` passed its `Named` of this type; the dynamic linker passes a library's
    // description.
    let (info, named) = unsafe { (&*info, &mut *named.cast::<Named<'_, V>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a library's name is zero-terminated.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if file.starts_with(named.prefix) {
        // SAFETY: as above.
        (named.visit)(&unsafe { Library::described(info) });
    }
    0
}

impl Slot<'_> {
    /// The function the slot leads to; `None` while the dynamic linker has not bound it.
    pub(super) fn function(&self) -> Option<usize> {
        let function = self.word().load(Ordering::Acquire);
        // An unbound slot leads back into the library's own code.
        Some(function).filter(|&function| function != 0 && !self.library.covers(function))
    }

    /// Makes the slot lead to another function.
    pub(super) fn replace(&self, function: usize) -> Result<()> {
        let relro = self.library.segment(PT_GNU_RELRO, self.address).is_some();
        if relro {
            self.protect(libc::PROT_READ | libc::PROT_WRITE)?;
        }
        self.word().store(function, Ordering::Release);
        if relro {
            self.protect(libc::PROT_READ)?;
        }
        Ok(())
    }

    fn word(&self) -> &AtomicUsize {
        // SAFETY: a slot is an aligned word of the loaded library, which calls through it by one
        // load; only the dynamic linker writes it, when it binds it.
        unsafe { AtomicUsize::from_ptr(self.address as *mut usize) }
    }

    fn protect(&self, protection: c_int) -> Result<()> {
        // SAFETY: sysconf takes an integer and touches no memory of ours.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let start = self.address & !page.wrapping_sub(1);
        // SAFETY: the page holds the slot and other words that are written at load time only;
        // making it writable for a moment breaks no other code.
        match unsafe { libc::mprotect(start as *mut c_void, page, protection) } {
            0 => Ok(()),
            _ => Err(Error::Hook("a page of a library's call table cannot be made writable")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test program imports `getppid`; its own slot is replaced.
    #[test]
    fn a_replaced_slot_leads_the_library_s_calls_to_us() {
        extern "C" fn ours() -> libc::pid_t {
            4711
        }
        let here = a_replaced_slot_leads_the_library_s_calls_to_us as *const () as usize;
        let library = Library::containing(here).unwrap();
        // SAFETY: the test program stays loaded.
        let slots = unsafe { library.slots(c"getppid") };
        assert_eq!(slots.len(), 1, "one table entry for one import");
        let slot = &slots[0];
        let original = slot.function().unwrap();
        // SAFETY: getppid has no preconditions.
        let before = unsafe { libc::getppid() };
        slot.replace(ours as *const () as usize).unwrap();
        // SAFETY: as above.
        let during = unsafe { libc::getppid() };
        slot.replace(original).unwrap();
        // SAFETY: as above.
        let after = unsafe { libc::getppid() };
        assert_eq!((during, after), (4711, before));
    }

    #[test]
    fn code_of_nobody_is_in_no_library() {
        assert!(Library::containing(8).is_none());
    }
}
