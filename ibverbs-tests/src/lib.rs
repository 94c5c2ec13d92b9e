//! End-to-end tests: the distribution's verbs programs on software cards, as their users run them.
//!
//! [`cases`] is the table, [`guest`] the one of the virtual machine, [`runner`] runs it, [`summary`] counts,
//! [`process`] is the one way to run a program, [`setting`] what a case is given. `verbs-data` is a
//! verbs program of our own that checks data ([`data`]), `verbs-mortal` one that dies or sees others
//! die ([`mortal`]), `verbs-attack` one that attacks ([`hostile`], judged by [`attack`]); their calls into
//! libibverbs are in [`ffi`], the only place with `unsafe`.

#![deny(unsafe_code)]

pub mod agent;
pub mod attack;
pub mod cache;
pub mod cases;
pub mod chaos;
pub mod cmtime;
pub mod data;
pub mod ffi;
pub mod footprint;
pub mod guest;
pub mod guest_pair;
pub mod hostile;
pub mod interop;
pub mod interrupt;
pub mod machines;
pub mod mortal;
mod namespace;
mod nodes;
pub mod pair;
pub mod perf;
pub mod process;
pub mod runner;
pub mod scapy;
pub mod setting;
pub mod suites;
pub mod summary;
pub mod table;
pub mod vm;
