//! Atomic work requests.

use std::mem::MaybeUninit;

use verbs_sys::current::verbs as v;

use super::{Failed, Piece, Qp, sges_of};

/// The operation of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Compare and swap.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to swap in.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// The value to add.
        add: u64,
    },
}

/// An atomic work request, signalled.
pub struct Atomic {
    /// Returned by its completion.
    pub wr_id: u64,
    /// The operation.
    pub operation: AtomicOperation,
    /// Where the value before goes.
    pub result: Vec<Piece>,
    /// Remote address and key.
    pub remote: (u64, u32),
}

impl Qp {
    /// Posts an atomic.
    ///
    /// # Errors
    /// When it is not taken.
    pub fn post_atomic(&self, request: &Atomic) -> Result<(), Failed> {
        let mut sges = sges_of(&request.result);
        // SAFETY: numbers and null pointers only; all zero is a valid value.
        let mut work: v::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        work.wr_id = request.wr_id;
        work.sg_list = sges.as_mut_ptr();
        work.num_sge = sges.len() as i32;
        work.send_flags = v::IBV_SEND_SIGNALED;
        let (opcode, compare_add, swap) = match request.operation {
            AtomicOperation::CompareSwap { compare, swap } => {
                (v::IBV_WR_ATOMIC_CMP_AND_SWP, compare, swap)
            }
            AtomicOperation::FetchAdd { add } => (v::IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0),
        };
        work.opcode = opcode;
        let (remote_addr, rkey) = request.remote;
        work.wr.atomic =
            v::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey };
        self.post_one(&mut work)
    }
}
