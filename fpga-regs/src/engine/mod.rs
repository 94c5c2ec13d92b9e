//! The verbs queue engine (VQE), contract version 1.
//!
//! One engine sits in one vFPGA's 64 KiB user CSR window: page 0 is its [`window`] of control
//! registers, pages 1 to 15 are doorbell pages. Rings live in host memory. The driver talks to the
//! engine by [`admin`] commands and hears from it by [`event`]s; programs post [`wqe`]s, ring
//! [`doorbell`]s and poll [`cqe`]s.

pub mod admin;
pub mod cqe;
pub mod doorbell;
pub mod event;
pub mod key;
pub mod qp;
pub mod window;
pub mod wqe;
