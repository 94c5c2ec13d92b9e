//! The C side: everything that is `unsafe`, and nothing that need not be.
//!
//! libibverbs calls the operations in [`driver`] and [`context`] with pointers to structures that
//! both sides know. An object of ours begins with the structure that libibverbs and the program
//! know and use, and goes on with the provider's own part; only the second part is ever borrowed as a
//! Rust reference, because the first changes under us (locks, counters, states that libibverbs
//! keeps). Objects live in boxes from their create to their destroy verb: a program that uses one
//! afterwards breaks the contract of verbs, and that contract is what the `SAFETY` comments rely on.

mod ah;
pub(crate) mod cancel;
mod context;
mod cq;
pub(crate) mod descriptor;
pub(crate) mod device;
mod direct;
mod dm;
mod dmabuf;
mod driver;
mod elf;
mod forks;
pub(crate) mod hook;
pub(crate) mod log;
mod mcast;
mod mr;
mod mw;
mod opened;
mod pages;
mod payload;
mod pd;
mod post;
mod qp;
mod rdmacm;
mod ready;
mod refused;
mod srq;
pub(crate) mod types;
mod xrc;

use std::ptr::null_mut;

use nix::errno::Errno;

use crate::error::Result;

/// Ends a verb that answers with an object: null and `errno` where there is none.
fn object<T>(call: &str, made: Result<*mut T>) -> *mut T {
    match made {
        Ok(object) => object,
        Err(error) => {
            Errno::set_raw(crate::log::refused(call, &error));
            null_mut()
        }
    }
}

/// Ends a verb that answers with an errno, which is in `errno` as well: libibverbs does not hand on the answers of all
/// of them (of `ibv_rereg_mr` for one), and a kernel's device leaves it there.
fn errno(call: &str, done: Result<()>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(error) => {
            let errno = crate::log::refused(call, &error);
            Errno::set_raw(errno);
            errno
        }
    }
}
