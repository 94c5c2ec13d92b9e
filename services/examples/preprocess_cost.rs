//! Prints the cost of preprocessing: `cargo run --release -p services --example preprocess_cost`.
//!
//! The packets of a table pass a connection with the service. The figure is the quickest of many tables, which other
//! work of the machine disturbs least; SENDs show the cost of the same chain where it has nothing to do.

mod shared;

use std::sync::Arc;
use std::time::Duration;

use services::{Chain, MODULUS, Operation, Preprocess, ROW, ServedQp};
use shared::{MTU, pass};

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
        let mut connection = ServedQp::new(Arc::clone(&chain));
        let mut frames = table.clone();
        best = best.min(pass(&mut connection, operation, &mut frames)?);
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
