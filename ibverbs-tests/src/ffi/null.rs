//! Null memory regions.

use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use anyhow::{Result, bail};
use verbs_sys::current::verbs as v;

use super::device::Pd;
use super::{Failed, Piece};

/// A region without memory.
#[derive(Debug)]
pub struct NullRegion {
    mr: NonNull<v::ibv_mr>,
    pd: Rc<Pd>,
}

impl NullRegion {
    /// Makes one.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(pd: &Rc<Pd>) -> Result<Rc<Self>> {
        // SAFETY: the extended context lives as long as the context.
        let make = unsafe { pd.context().extended()?.as_ref() }.alloc_null_mr;
        let Some(make) = make else { bail!("there is no ibv_alloc_null_mr") };
        // SAFETY: the domain lives, and outlives the region.
        let mr = NonNull::new(unsafe { make(pd.raw()) });
        let mr = mr.ok_or_else(|| Failed::last("ibv_alloc_null_mr"))?;
        Ok(Rc::new(Self { mr, pd: Rc::clone(pd) }))
    }

    /// Its local key, which is not a peer's.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// So many bytes from an address, for a work request.
    pub fn piece(self: &Rc<Self>, addr: u64, length: u32) -> Piece {
        Piece { region: self.clone(), sge: v::ibv_sge { addr, length, lkey: self.lkey() } }
    }

    /// Changes its rights, which cannot be.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn rereg(&self) -> Result<(), Failed> {
        let (rereg, flags) = (self.pd.library().ibv_rereg_mr, v::IBV_REREG_MR_CHANGE_ACCESS);
        let (none, nowhere) = (null_mut(), null_mut());
        let access = v::IBV_ACCESS_LOCAL_WRITE as i32;
        // SAFETY: the registration lives; no memory is named.
        let result = unsafe { rereg(self.mr.as_ptr(), flags as i32, none, nowhere, 0, access) };
        Failed::check("ibv_rereg_mr", result)
    }
}

impl Drop for NullRegion {
    fn drop(&mut self) {
        // SAFETY: the registration was made by us, and is ended once.
        let result = unsafe { (self.pd.library().ibv_dereg_mr)(self.mr.as_ptr()) };
        assert_eq!(result, 0, "ibv_dereg_mr");
    }
}
