//! Prints what the classifier costs: `cargo run --release -p services --example classifier_cost`.
//!
//! The packets of a message pass a connection with the service, which refuses none of them. The figure is the quickest of
//! many passes, which other work of the machine disturbs least.

mod shared;

use std::sync::Arc;
use std::time::Duration;

use services::{Chain, Classifier, Operation, ServedQp};
use shared::{MTU, pass};

/// Packets of a message.
const PACKETS: usize = 64;
/// Passes.
const PASSES: usize = 100;
/// More words than a message has.
const NONE: u16 = u16::MAX;

/// The quickest pass of a message.
fn quickest(message: &[u8]) -> Option<Duration> {
    let chain = Arc::new(Chain::new(vec![Arc::new(Classifier::new(NONE).ok()?)]).ok()?);
    let mut frames = message.to_vec();
    let mut best = Duration::MAX;
    for _ in 0..PASSES {
        let mut connection = ServedQp::new(Arc::clone(&chain));
        best = best.min(pass(&mut connection, Operation::Write, &mut frames)?);
    }
    Some(best)
}

/// Bytes of all kinds.
fn mixed() -> impl Iterator<Item = u8> {
    let mix = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    (1u64..).map(move |number| (mix(mix(number)) >> 56) as u8)
}

fn main() {
    let length = MTU * PACKETS;
    let text = include_bytes!("../../LICENSE-APACHE").iter().copied().cycle();
    let messages = [
        ("zeros", vec![0; length]),
        ("text", text.take(length).collect()),
        ("bytes of all kinds", mixed().take(length).collect()),
    ];
    for (name, message) in &messages {
        let Some(time) = quickest(message) else { return };
        println!(
            "{name:<19} {:6.0} ns for a packet of {MTU} bytes, {:.2} GB/s",
            time.as_nanos() as f64 / PACKETS as f64,
            length as f64 / time.as_nanos() as f64
        );
    }
}
