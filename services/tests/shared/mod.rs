//! Packets as a transport gives them, for tests of services.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use services::{
    About, Budget, Halt, Operation, Operations, PacketService, Part, Placing, ServedQp, Stages,
    Verdict,
};
use trial::rng::{Rng, mix};

/// Does nothing.
pub const NOTHING: About = About {
    name: Cow::Borrowed("nothing"),
    summary: Cow::Borrowed("does nothing"),
    stages: Stages { check: false, act: false, rewrites: false, transform: false },
    operations: Operations::ALL,
    takes: None,
    gives: None,
    check_state: 0,
    act_state: 0,
    work: 0,
};

/// The first number of a state.
pub fn word(state: &[u8]) -> u64 {
    u64::from_le_bytes(state[..8].try_into().unwrap())
}

/// A service that drops packets now and then: by the number of those that were accepted before, so a packet that comes
/// again is dropped again until a bit has changed that the test flips.
#[derive(Debug)]
pub struct Dropper {
    about: About,
    lets_pass: Mutex<bool>,
}

impl Dropper {
    pub fn new() -> Arc<Self> {
        let stages = Stages { check: true, ..Stages::default() };
        let about = About { name: "dropper".into(), stages, check_state: 8, ..NOTHING };
        Arc::new(Self { about, lets_pass: Mutex::new(false) })
    }
}

impl PacketService for Dropper {
    fn about(&self) -> &About {
        &self.about
    }

    fn check(&self, _: &Part, _: &[u8], state: &mut [u8], _: &mut Budget) -> Result<Verdict, Halt> {
        let count = word(state);
        state[..8].copy_from_slice(&(count + 1).to_le_bytes());
        let drops = mix(count) % 4 == 0 && !*self.lets_pass.lock().unwrap();
        Ok(if drops { Verdict::Drop } else { Verdict::Accept })
    }
}

/// A message that is under way, in packets.
pub fn packets(rng: &mut Rng, operation: Operation, mtu: usize) -> Vec<(Part, Vec<u8>)> {
    let length = rng.between(1, 6 * mtu as u64) as usize;
    let bytes: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
    let cut = bytes.chunks(mtu).enumerate().map(|(number, payload)| {
        let offset = number * mtu;
        let is_last = offset + payload.len() == length;
        let length = payload.len() as u32;
        (Part { operation, offset: offset as u64, length, is_last }, payload.to_vec())
    });
    cut.collect()
}

/// Packets of both ways, those of each in their order.
pub fn traffic(rng: &mut Rng) -> Vec<(Part, Vec<u8>)> {
    let mtu = rng.pick(&[256, 512, 1024]);
    let mut ways = [Vec::new(), Vec::new()];
    for _ in 0..rng.between(3, 12) {
        let operation = rng.pick(&[Operation::Send, Operation::Write, Operation::Read]);
        ways[usize::from(operation == Operation::Read)].extend(packets(rng, operation, mtu));
    }
    let mut rest = ways.map(|way| way.into_iter().peekable());
    let mut all = Vec::new();
    while rest.iter_mut().any(|way| way.peek().is_some()) {
        all.extend(rest[rng.below(2) as usize].next());
    }
    all
}

/// Carries packets as a transport gives them: each in its turn is checked, perhaps several times, accepted once, and
/// acted on in its burst, which may be behind the checks of later ones.
pub fn carry(
    rng: &mut Rng,
    connection: &mut ServedQp,
    all: &[(Part, Vec<u8>)],
    dropper: &Dropper,
) -> (Vec<Vec<u8>>, u64) {
    let (mut placed, mut burst, mut dropped) = (Vec::new(), Vec::new(), 0);
    let mut act = |connection: &mut ServedQp, burst: &mut Vec<Vec<u8>>| {
        for mut bytes in burst.drain(..) {
            assert!(connection.act(&mut Placing { bytes: &mut bytes, address: Some(0) }));
            placed.push(bytes);
        }
    };
    for (part, payload) in all {
        // It waits for the layer above, or is lost behind the check, and comes again.
        let again = rng.below(3);
        let first = connection.check(Some((part, payload)));
        for _ in 0..again {
            // An acknowledgement comes between.
            if rng.chance(3000) {
                assert_eq!(connection.check(None), Verdict::Accept);
            }
            assert_eq!(connection.check(Some((part, payload))), first, "the same again");
        }
        if first == Verdict::Drop {
            dropped += 1;
            *dropper.lets_pass.lock().unwrap() = true;
            assert_eq!(connection.check(Some((part, payload))), Verdict::Accept);
            *dropper.lets_pass.lock().unwrap() = false;
        }
        connection.accept();
        burst.push(payload.clone());
        if rng.chance(4000) {
            act(connection, &mut burst);
        }
    }
    act(connection, &mut burst);
    (placed, dropped)
}
