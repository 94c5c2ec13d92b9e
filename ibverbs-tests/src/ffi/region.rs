//! Registered memory.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::os::fd::AsRawFd as _;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::Pd;
use super::dmabuf::DmaBuf;
use super::mapping::Mapping;

/// Pages of memory of this program, registered with a protection domain.
#[derive(Debug)]
pub struct Region {
    pd: Rc<Pd>,
    mr: NonNull<v::ibv_mr>,
    /// The name of its first byte in work requests.
    name: u64,
    registered: Cell<bool>,
    // Last, because it goes last.
    memory: RefCell<Mapping>,
}

/// The changes of a registration.
#[derive(Debug, Default)]
pub struct Rereg {
    /// Its protection domain.
    pub pd: Option<Rc<Pd>>,
    /// Its memory, which work requests name by its address then.
    pub memory: Option<Mapping>,
    /// The rights of peers to it.
    pub access: Option<v::ibv_access_flags>,
}

/// A part of a region, for a work request.
#[derive(Clone)]
pub struct Piece {
    #[expect(dead_code, reason = "keeps the memory for as long as it is named")]
    pub(super) region: Rc<dyn Any>,
    pub(super) sge: v::ibv_sge,
}

impl Piece {
    /// The same with another local key, which is to be wrong.
    #[must_use]
    pub fn with_wrong_key(mut self) -> Self {
        self.sge.lkey ^= 0x0100_0000;
        self
    }

    /// The same with that local key.
    #[must_use]
    pub fn with_key(mut self, lkey: u32) -> Self {
        self.sge.lkey = lkey;
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
        Self::over(pd, Mapping::zeroed(length)?, access, iova)
    }

    /// Registers memory, as [`Region::new`] does.
    ///
    /// # Errors
    /// When the registration is refused.
    pub fn over(
        pd: &Rc<Pd>,
        memory: Mapping,
        access: v::ibv_access_flags,
        iova: bool,
    ) -> Result<Rc<Self>, Failed> {
        let name = iova.then(|| memory.address());
        Self::named(pd, memory, access, name)
    }

    /// Registers memory, by ibv_reg_mr or, where work requests are to name its first byte so, by
    /// ibv_reg_mr_iova2.
    ///
    /// # Errors
    /// When the registration is refused.
    pub fn named(
        pd: &Rc<Pd>,
        memory: Mapping,
        access: v::ibv_access_flags,
        iova: Option<u64>,
    ) -> Result<Rc<Self>, Failed> {
        let library = pd.library();
        let (start, length) = (memory.start().as_ptr(), memory.length());
        let mr = match iova {
            // SAFETY: the domain lives, the memory is mapped for as long as the registration.
            Some(iova) => unsafe {
                (library.ibv_reg_mr_iova2)(pd.raw(), start.cast(), length, iova, access)
            },
            // SAFETY: as above.
            None => unsafe { (library.ibv_reg_mr)(pd.raw(), start.cast(), length, access as i32) },
        };
        let mr = NonNull::new(mr).ok_or_else(|| Failed::last("ibv_reg_mr"))?;
        let counts = access & v::IBV_ACCESS_ZERO_BASED != 0;
        let name = if counts { 0 } else { iova.unwrap_or(memory.address()) };
        Ok(Self::registered(pd, mr, name, memory))
    }

    /// Registers all of a dma-buf, by its descriptor; work requests name its first byte by `iova`.
    ///
    /// # Errors
    /// When the registration is refused.
    pub fn of_dma_buf(
        pd: &Rc<Pd>,
        DmaBuf { memory, descriptor }: DmaBuf,
        access: v::ibv_access_flags,
        iova: u64,
    ) -> Result<Rc<Self>, Failed> {
        let (length, fd) = (memory.length(), descriptor.as_raw_fd());
        // SAFETY: the domain lives, the pages are mapped for as long as the registration.
        let mr = unsafe {
            (pd.library().ibv_reg_dmabuf_mr)(pd.raw(), 0, length, iova, fd, access as i32)
        };
        let mr = NonNull::new(mr).ok_or_else(|| Failed::last("ibv_reg_dmabuf_mr"))?;
        Ok(Self::registered(pd, mr, iova, memory))
    }

    fn registered(pd: &Rc<Pd>, mr: NonNull<v::ibv_mr>, name: u64, memory: Mapping) -> Rc<Self> {
        let (registered, memory) = (Cell::new(true), RefCell::new(memory));
        Rc::new(Self { pd: Rc::clone(pd), mr, name, registered, memory })
    }

    /// Changes the registration by ibv_rereg_mr; answers with the memory that it had, where it has other memory now.
    ///
    /// # Errors
    /// When the provider refuses: it is as it was.
    pub fn rereg(&mut self, change: Rereg) -> Result<Option<Mapping>, Failed> {
        let Rereg { pd, memory, access } = change;
        let flags = [
            (pd.is_some(), v::IBV_REREG_MR_CHANGE_PD),
            (memory.is_some(), v::IBV_REREG_MR_CHANGE_TRANSLATION),
            (access.is_some(), v::IBV_REREG_MR_CHANGE_ACCESS),
        ];
        let flags = flags.iter().filter(|(is_asked, _)| *is_asked).fold(0, |all, it| all | it.1);
        let domain = pd.as_ref().map_or(null_mut(), |pd| pd.raw());
        let (start, length) =
            memory.as_ref().map_or((null_mut(), 0), |it| (it.start().as_ptr(), it.length()));
        let access = access.unwrap_or(0) as i32;
        let rereg = self.pd.library().ibv_rereg_mr;
        // SAFETY: the registration and both domains live, and the memory is mapped for as long as it is registered.
        let result =
            unsafe { rereg(self.raw(), flags as i32, domain, start.cast(), length, access) };
        Failed::check("ibv_rereg_mr", result)?;
        if let Some(pd) = pd {
            self.pd = pd;
        }
        Ok(memory.map(|memory| {
            self.name = memory.address();
            self.memory.replace(memory)
        }))
    }

    /// The fields of the registration: its domain's address, its memory and its keys.
    pub fn described(&self) -> (usize, u64, usize, [u32; 2]) {
        // SAFETY: the registration lives.
        let mr = unsafe { &*self.raw() };
        (mr.pd as usize, mr.addr as u64, mr.length, [mr.lkey, mr.rkey])
    }

    /// Ends the registration, and registers the same memory again at once.
    ///
    /// # Errors
    /// When the provider refuses either; after the first it is registered still.
    ///
    /// # Panics
    /// When it is deregistered.
    pub fn register_anew(&mut self, access: v::ibv_access_flags) -> Result<(), Failed> {
        assert!(self.registered.get(), "the region was deregistered");
        self.deregister()?;
        let library = self.pd.library();
        let memory = self.memory.borrow();
        let (start, length) = (memory.start().as_ptr(), memory.length());
        // SAFETY: the domain lives, the memory is mapped for as long as the registration.
        let mr =
            unsafe { (library.ibv_reg_mr)(self.pd.raw(), start.cast(), length, access as i32) };
        self.mr = NonNull::new(mr).ok_or_else(|| Failed::last("ibv_reg_mr"))?;
        self.registered.set(true);
        Ok(())
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

    /// Changes the rights to it.
    ///
    /// # Errors
    /// When the provider refuses.
    pub fn set_access(&self, access: v::ibv_access_flags) -> Result<(), Failed> {
        let (flags, rereg) = (v::IBV_REREG_MR_CHANGE_ACCESS as i32, self.pd.library().ibv_rereg_mr);
        // SAFETY: the registration lives, and neither its domain nor its memory changes.
        let result = unsafe { rereg(self.raw(), flags, null_mut(), null_mut(), 0, access as i32) };
        Failed::check("ibv_rereg_mr", result)
    }

    /// Its size in bytes.
    pub fn length(&self) -> usize {
        self.memory.borrow().length()
    }

    /// Its address, as work requests and the other side name it.
    pub fn address(&self) -> u64 {
        self.name
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

    pub(super) fn raw(&self) -> *mut v::ibv_mr {
        assert!(self.registered.get(), "the region was deregistered");
        self.mr.as_ptr()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Rc<Pd> {
        &self.pd
    }

    /// A part of it, for a work request.
    ///
    /// # Panics
    /// When it is not within the region, or that was deregistered.
    pub fn piece(self: &Rc<Self>, offset: usize, length: usize) -> Piece {
        let holds = self.memory.borrow().holds(offset, length);
        assert!(holds, "{offset} + {length} of {}", self.length());
        assert!(self.registered.get(), "the region was deregistered");
        // SAFETY: the registration lives.
        let lkey = unsafe { self.mr.as_ref() }.lkey;
        let length = u32::try_from(length).expect("a piece is shorter than 4 GiB");
        let sge = v::ibv_sge { addr: self.address() + offset as u64, length, lkey };
        Piece { region: self.clone(), sge }
    }

    /// Takes its memory away, as a program's mistake: the key stays, the pages go. Nothing else
    /// comes to lie at their address.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take_away(&self) -> Result<(), Failed> {
        self.memory.borrow_mut().take_away()
    }

    /// Changes the memory at its addresses; the key stays.
    ///
    /// # Errors
    /// As the change.
    pub fn change<T, E>(&self, change: impl FnOnce(&mut Mapping) -> Result<T, E>) -> Result<T, E> {
        change(&mut self.memory.borrow_mut())
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they do not fit, or the memory was taken away.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.borrow().write(offset, bytes);
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When there are not so many, or the memory was taken away.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.memory.borrow().read(offset, bytes);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // After it no DMA comes.
        assert_eq!(self.deregister(), Ok(()));
    }
}
