//! The pass of a message through a chain of services, which the examples measure.

use std::time::{Duration, Instant};

use services::{Operation, Part, Placing, ServedQp, Verdict};

/// Bytes of a packet's payload.
pub const MTU: usize = 4096;

/// Takes the packets of a message from their check to the change of their bytes, as a card does, and gives the time that
/// this takes; none where the chain refuses one of them.
pub fn pass(
    connection: &mut ServedQp,
    operation: Operation,
    message: &mut [u8],
) -> Option<Duration> {
    let whole = message.len();
    let begun = Instant::now();
    for (number, bytes) in message.chunks_mut(MTU).enumerate() {
        let (offset, length) = ((number * MTU) as u64, bytes.len() as u32);
        let is_last = (number + 1) * MTU >= whole;
        let part = Part { operation, offset, length, is_last };
        if connection.check(Some((&part, bytes))) != Verdict::Accept {
            return None;
        }
        connection.accept();
        if !connection.act(&mut Placing { bytes, address: None }) {
            return None;
        }
    }
    Some(begun.elapsed())
}
