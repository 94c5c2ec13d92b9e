//! Registered memory.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

use verbs_sys::v44::verbs as v;

use super::Failed;
use super::device::Pd;

/// Pages of memory of this program, registered with a protection domain.
///
/// The card writes into it behind the compiler's back, so its bytes are only copied in and out, and
/// no reference to them is ever made.
#[derive(Debug)]
pub struct Region {
    pd: Rc<Pd>,
    mr: NonNull<v::ibv_mr>,
    memory: NonNull<u8>,
    length: usize,
    gone: Cell<bool>,
    registered: Cell<bool>,
}

/// A part of a region, for a work request.
#[derive(Clone)]
pub struct Piece {
    #[expect(dead_code, reason = "keeps the memory for as long as it is named")]
    region: Rc<Region>,
    pub(super) sge: v::ibv_sge,
}

impl Piece {
    /// The same with another local key, which is to be wrong.
    #[must_use]
    pub fn with_wrong_key(mut self) -> Self {
        self.sge.lkey ^= 0x0100_0000;
        self
    }
}

impl Region {
    /// Maps zeroed memory and registers it, by ibv_reg_mr or, with `iova`, by ibv_reg_mr_iova2.
    ///
    /// # Errors
    /// When there is no memory, or the registration is refused.
    pub fn new(
        pd: &Rc<Pd>,
        length: usize,
        access: v::ibv_access_flags,
        iova: bool,
    ) -> Result<Rc<Self>, Failed> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(Failed::last("mmap"));
        }
        let library = pd.library();
        let mr = if iova {
            // SAFETY: the domain lives, the memory is mapped for as long as the registration.
            unsafe { (library.ibv_reg_mr_iova2)(pd.raw(), memory, length, memory as u64, access) }
        } else {
            // SAFETY: as above.
            unsafe { (library.ibv_reg_mr)(pd.raw(), memory, length, access as i32) }
        };
        let failed = Failed::last("ibv_reg_mr");
        match (NonNull::new(mr), NonNull::new(memory.cast())) {
            (Some(mr), Some(memory)) => {
                let (gone, registered) = (Cell::new(false), Cell::new(true));
                Ok(Rc::new(Self { pd: Rc::clone(pd), mr, memory, length, gone, registered }))
            }
            _ => {
                // SAFETY: the mapping was made above, and nobody else knows it.
                unsafe { libc::munmap(memory, length) };
                Err(failed)
            }
        }
    }

    /// Ends the registration before its time: the card has no key to the memory any more.
    ///
    /// # Errors
    /// When the provider refuses; it is registered still.
    pub fn deregister(&self) -> Result<(), Failed> {
        if !self.registered.get() {
            return Ok(());
        }
        // SAFETY: the registration was made by us, and is ended once.
        let result = unsafe { (self.pd.library().ibv_dereg_mr)(self.mr.as_ptr()) };
        Failed::check("ibv_dereg_mr", result)?;
        self.registered.set(false);
        Ok(())
    }

    /// Its size in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Its address, as the other side names it.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// The key by which the other side reaches it.
    ///
    /// # Panics
    /// When it was deregistered.
    pub fn rkey(&self) -> u32 {
        assert!(self.registered.get(), "the region was deregistered");
        // SAFETY: the registration lives.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// A part of it, for a work request.
    ///
    /// # Panics
    /// When it is not within the region, or that was deregistered.
    pub fn piece(self: &Rc<Self>, offset: usize, length: usize) -> Piece {
        assert!(self.holds(offset, length), "{offset} + {length} of {}", self.length);
        assert!(self.registered.get(), "the region was deregistered");
        // SAFETY: the registration lives.
        let lkey = unsafe { self.mr.as_ref() }.lkey;
        let length = u32::try_from(length).expect("a piece is shorter than 4 GiB");
        let sge = v::ibv_sge { addr: self.address() + offset as u64, length, lkey };
        Piece { region: Rc::clone(self), sge }
    }

    /// Takes its memory away, as a program's mistake: the key stays, the pages go. Nothing else
    /// comes to lie at their address.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take_away(&self) -> Result<(), Failed> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let memory = self.memory.as_ptr().cast();
        self.gone.set(true);
        // SAFETY: the range is our own mapping, to which no reference exists, and nobody copies to
        // or from it any more.
        let now = unsafe { libc::mmap(memory, self.length, libc::PROT_NONE, flags, -1, 0) };
        if now == libc::MAP_FAILED {
            return Err(Failed::last("mmap"));
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they do not fit, or the memory was taken away.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_there(offset, bytes.len());
        // SAFETY: the range lies in the mapping, and `bytes` elsewhere, since no reference to the
        // mapping exists. What the card may write at the same time, it writes by the kernel's copy.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.memory.as_ptr().add(offset),
                bytes.len(),
            );
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When there are not so many, or the memory was taken away.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.assert_there(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.memory.as_ptr().add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
    }

    fn assert_there(&self, offset: usize, length: usize) {
        assert!(!self.gone.get(), "the region's memory was taken away");
        assert!(self.holds(offset, length), "{offset} + {length} of {}", self.length);
    }

    fn holds(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // After it no DMA comes.
        assert_eq!(self.deregister(), Ok(()));
        // SAFETY: the mapping was made by us, and the card has no key to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
