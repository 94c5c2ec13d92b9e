//! Logic of any crate in the vFPGAs of software cards.
//!
//! [`offer`] gives it a name for use in images, such as `vqe,echo` ([`crate::Image`]): a verbs queue engine in the
//! first vFPGA of a card, and that logic in the second. [`Logic`] documents the calls to logic, and [`Ports`] its own
//! calls.

pub use crate::mmu::Unit as HostMemory;
pub use crate::vfpga::{
    Access, Answer, HostTransfer, Logic, Make, Missed, Payload, Piece, Ports, Slots, Tag,
    Unreachable, Wanted, is_known, names, offer,
};
pub use crate::views::{RecordView, RingView};
