//! Prints what PSP costs: `cargo run --release -p psp --example psp_cost`.
//!
//! One core seals packets to a peer, or opens them there. Told is the quickest of many passes, which other work of the
//! machine makes longer least.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use psp::{Associations, Ends, Peer, Secret, Source, Version, param};

/// Packets of a pass.
const PACKETS: usize = 256;
/// Passes.
const PASSES: usize = 100;

/// A clock that stands, and numbers that can be guessed.
#[derive(Debug)]
struct Fixed;

impl Source for Fixed {
    fn time(&mut self) -> Duration {
        Duration::from_secs(1)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill(1);
    }
}

fn host(version: Version, peer: IpAddr) -> Associations {
    let peer = Peer { addresses: vec![peer], secret: Secret::new([7; 32]) };
    Associations::new(version, vec![peer], Box::new(Fixed))
}

fn main() {
    let [from, to] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let ends = Ends { from, to };
    for version in Version::ALL {
        for bytes in [64, 1024, 4096] {
            let (mut one, mut other) = (host(version, to), host(version, from));
            let mut packets = vec![vec![3; bytes + param::LONGER]; PACKETS];
            let [mut sealing, mut opening] = [Duration::MAX; 2];
            for _ in 0..PASSES {
                let begun = Instant::now();
                let sealed = packets.iter_mut().all(|packet| one.seal(ends, false, 5, packet));
                sealing = sealing.min(begun.elapsed());
                let begun = Instant::now();
                let opened = packets.iter_mut().all(|it| other.open(ends, false, it) == Ok(5));
                opening = opening.min(begun.elapsed());
                if !(sealed && opened) {
                    return;
                }
            }
            let told = |time: Duration| {
                let nanoseconds = time.as_nanos() as f64;
                let rate = (bytes * PACKETS) as f64 / nanoseconds;
                format!("{:5.0} ns, {rate:.2} GB/s", nanoseconds / PACKETS as f64)
            };
            println!(
                "{version:<17} {bytes:>4} bytes: sealing {}, opening {}",
                told(sealing),
                told(opening)
            );
        }
    }
}
