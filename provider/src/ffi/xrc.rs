//! XRC domains.

use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::verbs::{self as ibv, ibv_context, ibv_xrcd, ibv_xrcd_init_attr};
use shim_abi::FileId;

use super::opened::opened;
use super::{errno, object};
use crate::error::{Error, Result, invalid};

/// An XRC domain.
#[repr(C)]
struct Xrcd {
    verbs: ibv_xrcd,
    own: Own,
}

/// The provider's own part of an [`Xrcd`].
struct Own {
    xrcd: u32,
    /// Objects that were made in it.
    users: AtomicU32,
    /// The file that stands for it: while it is open here, no other file gets its number.
    _file: Option<File>,
}

/// # Safety
/// The domain is one of this provider that was not closed.
unsafe fn own<'a>(xrcd: *mut ibv_xrcd) -> &'a Own {
    // SAFETY: an `Xrcd` begins with its `ibv_xrcd`; its own part changes by atomics only.
    unsafe { &(*xrcd.cast::<Xrcd>()).own }
}

/// An XRC domain in use by an object, until dropped.
pub(super) struct Use(*mut ibv_xrcd);

impl Use {
    /// Begins to use a domain of a context.
    ///
    /// # Safety
    /// The domain is one of this provider, and is not closed while it is used; or it is null.
    pub(super) unsafe fn new(xrcd: *mut ibv_xrcd, context: *mut ibv_context) -> Result<Self> {
        // SAFETY: as the caller promises.
        if xrcd.is_null() || !std::ptr::eq(unsafe { (*xrcd).context }, context) {
            return Err(invalid!("an XRC domain of the context is needed"));
        }
        // SAFETY: as the caller promises.
        unsafe { own(xrcd) }.users.fetch_add(1, Ordering::AcqRel);
        Ok(Self(xrcd))
    }

    /// balboad's number of the domain.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: `new` was promised a domain that lives as long as this use of it.
        unsafe { own(self.0) }.xrcd
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // SAFETY: as in `number`.
        unsafe { own(self.0) }.users.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the program passes a context of this provider, and its attributes.
    object("ibv_open_xrcd", unsafe { open(context, &*attr) })
}

/// # Safety
/// The context is one of this provider.
unsafe fn open(context: *mut ibv_context, attr: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd> {
    const FIELDS: u32 = ibv::IBV_XRCD_INIT_ATTR_FD | ibv::IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask != FIELDS {
        return Err(invalid!(
            "an XRC domain is opened with fd and oflags, and nothing else (mask {:#x})",
            attr.comp_mask
        ));
    }
    if attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return Err(invalid!("oflags {:#o} have more than O_CREAT and O_EXCL", attr.oflags));
    }
    let has = |flag| attr.oflags & flag != 0;
    let file = if attr.fd == -1 { None } else { Some(keep(attr.fd)?) };
    let id = file.as_ref().map(identity).transpose()?;
    // SAFETY: as the caller promises.
    let xrcd = unsafe { opened(context) }.open_xrcd(id, has(libc::O_CREAT), has(libc::O_EXCL))?;
    let own = Own { xrcd, users: AtomicU32::new(0), _file: file };
    Ok(Box::into_raw(Box::new(Xrcd { verbs: ibv_xrcd { context }, own })).cast())
}

fn refused(what: &str, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EBADF);
    Error::Refused { errno, reason: format!("the file of an XRC domain: {what}: {error}") }
}

/// Another descriptor of a program's file.
fn keep(fd: c_int) -> Result<File> {
    if fd < 0 {
        let bad = std::io::Error::from_raw_os_error(libc::EBADF);
        return Err(refused("fd", &bad));
    }
    // SAFETY: it is not closed here, and whether the program has it open is for the kernel to say.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    file.try_clone().map_err(|error| refused("dup", &error))
}

/// The identity of a file for others that have it open.
fn identity(file: &File) -> Result<FileId> {
    let metadata = file.metadata().map_err(|error| refused("fstat", &error))?;
    Ok(FileId { device: metadata.dev(), inode: metadata.ino() })
}

pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the program passes a domain of this provider that it closes by this call.
    errno("ibv_close_xrcd", unsafe { close(xrcd) })
}

/// # Safety
/// The domain is one of this provider, and nobody uses it after a success.
unsafe fn close(xrcd: *mut ibv_xrcd) -> Result<()> {
    // SAFETY: as the caller promises.
    let domain = unsafe { own(xrcd) };
    let users = domain.users.load(Ordering::Acquire);
    if users != 0 {
        return Err(Error::Busy(format!("{users} objects still use the XRC domain")));
    }
    // SAFETY: a domain's context is open as long as the domain lives.
    unsafe { opened((*xrcd).context) }.close_xrcd(domain.xrcd)?;
    // SAFETY: made by `open`, and freed here once.
    drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
    Ok(())
}
