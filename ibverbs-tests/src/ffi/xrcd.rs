//! XRC domains.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::rc::Rc;

use verbs_sys::current::verbs as v;

use super::Failed;
use super::device::Context;

/// A handle of an XRC domain.
pub struct Domain {
    pub(super) raw: NonNull<v::ibv_xrcd>,
    context: Rc<Context>,
}

/// The extended operations of a context.
macro_rules! operation {
    ($context:expr, $name:ident) => {
        // SAFETY: the extended context lives as long as the context.
        unsafe { $context.extended().expect("libibverbs has extended contexts").as_ref() }
            .$name
            .expect(concat!("there is an ibv_", stringify!($name)))
    };
}

impl Domain {
    /// Opens the domain of a file, and makes it if it is not there; or makes one without a file.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn open(context: &Rc<Context>, file: Option<&File>) -> Result<Rc<Self>, Failed> {
        let mut attributes = v::ibv_xrcd_init_attr {
            comp_mask: v::IBV_XRCD_INIT_ATTR_FD | v::IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: file.map_or(-1, |file| file.as_raw_fd()),
            oflags: libc::O_CREAT,
        };
        let open = operation!(context, open_xrcd);
        // SAFETY: the context lives, the attributes are whole.
        let raw = unsafe { open(context.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Failed::last("ibv_open_xrcd"))?;
        Ok(Rc::new(Self { raw, context: Rc::clone(context) }))
    }

    /// Tries to close it, which fails while an object is in it.
    ///
    /// # Panics
    /// When it does not fail.
    pub fn refuses_to_go(&self) -> Failed {
        let close = operation!(self.context, close_xrcd);
        // SAFETY: made by us; if it goes all the same that is the end of this program.
        let result = unsafe { close(self.raw.as_ptr()) };
        Failed::check("ibv_close_xrcd", result).expect_err("a domain that is used stays")
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let close = operation!(self.context, close_xrcd);
        // SAFETY: made by us.
        assert_eq!(unsafe { close(self.raw.as_ptr()) }, 0, "ibv_close_xrcd");
    }
}

pub(super) use operation;
