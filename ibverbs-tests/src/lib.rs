//! Verbs programs that the tests run, and `balboa perf`.
//!
//! `verbs-data` checks data ([`data`]), `verbs-mortal` dies or sees others die ([`mortal`]), `verbs-attack` attacks
//! ([`hostile`]), `verbs-bench` (with [`copying`] and [`spinners`]) and `balboa-perf` ([`perf`]) measure. Their calls into
//! libibverbs are in [`ffi`], the only place with `unsafe`.

#![deny(unsafe_code)]

pub mod copying;
pub mod data;
pub mod ffi;
pub mod hostile;
pub mod mortal;
pub mod perf;
pub mod spinners;
