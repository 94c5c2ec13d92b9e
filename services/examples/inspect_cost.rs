//! Prints what inspection costs: `cargo run --release -p services --example inspect_cost`.
//!
//! The packets of a message pass a connection with the service, for three lists of patterns and three messages. The
//! figure is the quickest of many passes, which other work of the machine disturbs least.

mod shared;

use std::sync::Arc;
use std::time::Duration;

use services::{Chain, Inspect, Operation, ServedQp};
use shared::{MTU, pass};

/// Packets of a message.
const PACKETS: usize = 256;
/// Passes.
const PASSES: usize = 100;

/// The quickest pass of a message; none where a pattern was found.
fn quickest(patterns: &[Vec<u8>], message: &[u8]) -> Option<Duration> {
    let inspect = Inspect::new(patterns, true).ok()?;
    let chain = Arc::new(Chain::new(vec![Arc::new(inspect)]).ok()?);
    let mut connection = ServedQp::new(chain);
    let mut frames = message.to_vec();
    let mut best = Duration::MAX;
    for _ in 0..PASSES {
        best = best.min(pass(&mut connection, Operation::Write, &mut frames)?);
    }
    Some(best)
}

/// Bytes of all kinds but one.
fn mixed() -> impl Iterator<Item = u8> {
    let mix = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    (1u64..).map(move |number| (mix(mix(number)) >> 56) as u8).map(|byte| byte.min(0xfe))
}

/// Patterns of 16 bytes, as different as can be, each of which ends with a byte that no message has.
fn list(count: usize) -> Vec<Vec<u8>> {
    let bytes: Vec<u8> = mixed().skip(12_345).take(15 * count).collect();
    bytes.chunks(15).map(|pattern| [pattern, &[0xff]].concat()).collect()
}

fn main() {
    let length = MTU * PACKETS;
    for count in [1, 16, 256] {
        let patterns = list(count);
        let cut = patterns.iter().flat_map(|pattern| pattern.iter().copied().take(15));
        let cut: Vec<u8> = cut.collect::<Vec<_>>().into_iter().cycle().take(length).collect();
        let messages = [
            ("zeros", vec![0; length]),
            ("bytes of all kinds", mixed().take(length).collect()),
            ("patterns but their ends", cut),
        ];
        for (name, message) in &messages {
            let Some(time) = quickest(&patterns, message) else { return };
            println!(
                "{count:>3} patterns, {name:<23} {:6.0} ns for a packet of {MTU} bytes, {:.2} GB/s",
                time.as_nanos() as f64 / PACKETS as f64,
                length as f64 / time.as_nanos() as f64
            );
        }
    }
}
