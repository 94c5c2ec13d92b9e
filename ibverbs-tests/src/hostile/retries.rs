//! A receiver that is never ready, and a sender that never gives up.

use anyhow::Result;
use verbs_sys::current::verbs as v;

use super::{Opened, PATIENT, stay};
use crate::data::link::ACCESS;
use crate::ffi::{Operation, Region, Send};

/// The code of the shortest wait for a receiver.
const SHORTEST: u8 = 1;

/// Lets so many pairs of QPs on one card ask each other whether a receive is there at last.
///
/// # Errors
/// When the device refuses a step of it.
pub fn never_ready(pairs: usize) -> Result<()> {
    let place = Opened::open("balboa0", 1024)?;
    let region = Region::new(&place.pd, 64, ACCESS, false)?;
    let mut kept = Vec::new();
    for _ in 0..pairs {
        let (left, right) = (place.qp(4)?, place.qp(4)?);
        left.init(ACCESS)?;
        right.init(ACCESS)?;
        let (to_right, to_left) = (place.peer(right.number()), place.peer(left.number()));
        right.receive_with(&to_left, SHORTEST)?;
        right.send_to(&to_left, PATIENT)?;
        left.receive_from(&to_right)?;
        left.send_to(&to_right, PATIENT)?;
        kept.push((left, right));
    }
    for (left, _) in &kept {
        let pieces = vec![region.piece(0, 64)];
        let (operation, flags) = (Operation::Send, v::IBV_SEND_SIGNALED);
        let request = Send { wr_id: 0, operation, pieces, remote: (0, 0), immediate: 0, flags };
        left.post_send(&[request]).map_err(|(failed, _)| failed)?;
    }
    stay()
}
