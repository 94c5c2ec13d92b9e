//! Prints the cost of preprocessing: `cargo run --release -p services --example preprocess_cost`.
//!
//! A connection with the service takes the packets of a table, from their check to the change of their bytes, as a card has
//! it. Told is the quickest of many tables, which other work of the machine makes longer least; and beside it what the
//! same chain costs where it has nothing to do, with SENDs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use services::{Chain, Connection, MODULUS, Operation, Part, Placing, Preprocess, ROW, Verdict};

/// Bytes of a packet's payload.
const MTU: usize = 4096;
/// Rows of a table.
const ROWS: usize = 4096;
/// Tables.
const TABLES: usize = 200;

/// The quickest pass of a table through the chain, and its bytes.
fn quickest(operation: Operation) -> Option<(Duration, usize)> {
    let chain = Arc::new(Chain::new(vec![Arc::new(Preprocess)]).ok()?);
    let values = (0i32..).map(|number| number.wrapping_mul(97).rem_euclid(10_000 + MODULUS));
    let table: Vec<u8> = values.take(ROWS * ROW as usize).flat_map(i32::to_le_bytes).collect();
    let mut best = Duration::MAX;
    for _ in 0..TABLES {
        let mut connection = Connection::new(Arc::clone(&chain));
        let mut frames = table.clone();
        let begun = Instant::now();
        for (number, bytes) in frames.chunks_mut(MTU).enumerate() {
            let offset = (number * MTU) as u64;
            let is_last = (number + 1) * MTU >= table.len();
            let part = Part { operation, offset, length: bytes.len() as u32, is_last };
            if connection.check(Some((&part, bytes))) != Verdict::Accept {
                return None;
            }
            connection.accept();
            if !connection.act(&mut Placing { bytes, address: None }) {
                return None;
            }
        }
        best = best.min(begun.elapsed());
    }
    Some((best, table.len()))
}

fn main() {
    for (name, operation) in [("rows", Operation::Write), ("nothing to do", Operation::Send)] {
        let Some((time, bytes)) = quickest(operation) else { return };
        let packets = bytes.div_ceil(MTU);
        println!(
            "{name:<14} {:6.0} ns for a packet of {MTU} bytes, {:.2} GB/s",
            time.as_nanos() as f64 / packets as f64,
            bytes as f64 / time.as_nanos() as f64
        );
    }
}
