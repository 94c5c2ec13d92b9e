//! Receive work requests.

use std::ptr::null_mut;

use verbs_sys::current::verbs as v;

use super::region::Piece;

/// A receive work request.
#[derive(Clone)]
pub struct Recv {
    /// Returned by its completion.
    pub wr_id: u64,
    /// Local memory.
    pub pieces: Vec<Piece>,
}

pub(super) fn sges_of(pieces: &[Piece]) -> Vec<v::ibv_sge> {
    pieces.iter().map(|piece| piece.sge).collect()
}

pub(super) fn receive_request(request: &Recv, sges: &mut [v::ibv_sge]) -> v::ibv_recv_wr {
    v::ibv_recv_wr {
        wr_id: request.wr_id,
        next: null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
    }
}
