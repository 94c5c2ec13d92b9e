//! The harness of the tests: their programs, their machines, and cases that are counted.
//!
//! [`process`] is the one way to run a program, [`setting`] the setting of a case, [`pair`] a server and its client.
//! [`machines`] are two of this machine's network namespaces, [`vm`] and [`agent`] virtual ones. [`runner`] runs cases,
//! [`summary`] counts them.

#![forbid(unsafe_code)]

pub mod agent;
pub mod cache;
pub mod cmtime;
pub mod interrupt;
pub mod machines;
pub mod namespace;
pub mod nodes;
pub mod pair;
pub mod process;
pub mod runner;
pub mod scapy;
pub mod setting;
pub mod suites;
pub mod summary;
pub mod table;
pub mod vm;
