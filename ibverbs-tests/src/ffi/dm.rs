//! Memory of the device's own.

use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use anyhow::{Result, bail};
use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::{Context, Pd};
use super::region::Piece;

/// A part of the device's own memory.
#[derive(Debug)]
pub struct Dm {
    raw: NonNull<v::ibv_dm>,
    context: Rc<Context>,
}

/// A range of it, registered.
#[derive(Debug)]
pub struct DmRegion {
    mr: NonNull<v::ibv_mr>,
    length: usize,
    pd: Rc<Pd>,
    _dm: Rc<Dm>,
}

impl Dm {
    /// Takes a part.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(context: &Rc<Context>, length: usize, log2_alignment: u32) -> Result<Rc<Self>> {
        // SAFETY: the extended context lives as long as the context.
        let alloc = unsafe { context.extended()?.as_ref() }.alloc_dm;
        let Some(alloc) = alloc else { bail!("there is no ibv_alloc_dm") };
        let mut attributes =
            v::ibv_alloc_dm_attr { length, log_align_req: log2_alignment, comp_mask: 0 };
        // SAFETY: the context is open.
        let raw = unsafe { alloc(context.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_alloc_dm"))?;
        Ok(Rc::new(Self { raw, context: Rc::clone(context) }))
    }

    /// Gives it back before its time.
    ///
    /// # Errors
    /// When the device refuses; it is there still.
    pub fn free(&self) -> Result<(), Failed> {
        // SAFETY: the extended context lives as long as the context, and this was made by it.
        let result = unsafe {
            let context = self.context.extended().expect("it made this").as_ref();
            context.free_dm.expect("where it is made it is freed")(self.raw.as_ptr())
        };
        Failed::check("ibv_free_dm", result)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Failed> {
        // SAFETY: the memory lives, with its functions.
        let result = unsafe {
            let copy = self.raw.as_ref().memcpy_to_dm.expect("it has it");
            copy(self.raw.as_ptr(), offset, bytes.as_ptr().cast(), bytes.len())
        };
        Failed::check("ibv_memcpy_to_dm", result)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Failed> {
        let mut bytes = vec![0xa5; length];
        // SAFETY: the memory lives, with its functions; there is room for so many bytes.
        let result = unsafe {
            let copy = self.raw.as_ref().memcpy_from_dm.expect("it has it");
            copy(bytes.as_mut_ptr().cast(), self.raw.as_ptr(), offset, length)
        };
        Failed::check("ibv_memcpy_from_dm", result).map(|()| bytes)
    }

    /// Registers a range.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn register(
        self: &Rc<Self>,
        pd: &Rc<Pd>,
        (offset, length): (u64, usize),
        access: v::ibv_access_flags,
    ) -> Result<Rc<DmRegion>> {
        // SAFETY: the extended context lives as long as the context.
        let register = unsafe { self.context.extended()?.as_ref() }.reg_dm_mr;
        let Some(register) = register else { bail!("there is no ibv_reg_dm_mr") };
        // SAFETY: the domain and the memory live, and outlive the region.
        let mr = unsafe { register(pd.raw(), self.raw.as_ptr(), offset, length, access) };
        let mr = NonNull::new(mr).ok_or_else(|| Failed::last("ibv_reg_dm_mr"))?;
        Ok(Rc::new(DmRegion { mr, length, pd: Rc::clone(pd), _dm: Rc::clone(self) }))
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        self.free().expect("regions on it hold an Rc and are gone");
    }
}

impl DmRegion {
    /// The key by which the other side reaches it, from address 0 on.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// Changes the rights of peers to it, by ibv_rereg_mr.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn rereg(&self, access: v::ibv_access_flags) -> Result<(), Failed> {
        let (rereg, flags) = (self.pd.library().ibv_rereg_mr, v::IBV_REREG_MR_CHANGE_ACCESS);
        let (none, nowhere) = (null_mut(), null_mut());
        // SAFETY: the registration lives; no memory is named.
        let result =
            unsafe { rereg(self.mr.as_ptr(), flags as i32, none, nowhere, 0, access as i32) };
        Failed::check("ibv_rereg_mr", result)
    }

    /// A part of it, for a work request.
    ///
    /// # Panics
    /// When it is not within the region.
    pub fn piece(self: &Rc<Self>, offset: usize, length: usize) -> Piece {
        assert!(offset + length <= self.length, "{offset} + {length} of {}", self.length);
        // SAFETY: the registration lives.
        let lkey = unsafe { self.mr.as_ref() }.lkey;
        let length = u32::try_from(length).expect("a piece is shorter than 4 GiB");
        let sge = v::ibv_sge { addr: offset as u64, length, lkey };
        Piece { region: self.clone(), sge }
    }
}

impl Drop for DmRegion {
    fn drop(&mut self) {
        // SAFETY: the registration was made by us, and is ended once.
        let result = unsafe { (self.pd.library().ibv_dereg_mr)(self.mr.as_ptr()) };
        assert_eq!(result, 0, "ibv_dereg_mr");
    }
}
