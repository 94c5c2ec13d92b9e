//! The invariants of packet services, by modules: the same random packets as for services that are compiled in.

#[path = "../../services/tests/shared/mod.rs"]
mod packets;
mod shared;

use std::sync::Arc;

use packets::{Dropper, carry, traffic};
use services::{Chain, Operation, PacketService, Part, Placing, ServedQp, Verdict};
use shared::{ANY, Description, PAYLOAD, STATE, connection, service};
use trial::rng::Rng;

/// A function over all bytes of a payload: `$digest` goes on from a number in memory, by the rounds of FNV-1a.
fn digest(place: u32) -> String {
    format!(
        r#"(func $digest (local $at i32) (local $digest i64)
            (local.set $digest (i64.load (i32.const {place})))
            (loop
                (local.set $digest (i64.mul
                    (i64.xor (local.get $digest)
                        (i64.load8_u offset={PAYLOAD} (local.get $at)))
                    (i64.const 0x100000001b3)))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br_if 0 (i32.lt_u (local.get $at) (i32.load (i32.const 4112)))))
            (i64.store (i32.const {place}) (local.get $digest)))"#
    )
}

/// The same, here.
fn digested(before: u64, payload: &[u8]) -> u64 {
    let round = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    payload.iter().fold(before, round)
}

/// A check that keeps a digest of all payloads, counts them, and refuses none; and an act that does the same, and puts
/// its digest into the first bytes of the payload, where there are so many.
fn recorder() -> Arc<dyn PacketService> {
    let count = STATE + 8;
    let record = format!(
        r#"(func $record (call $digest)
            (i64.store (i32.const {count})
                (i64.add (i64.load (i32.const {count})) (i64.const 1))))"#
    );
    let text = format!(
        r#"{}{record}
        (func (export "balboa_check") (result i32) (call $record) (i32.const 0))
        (func (export "balboa_act")
            (call $record)
            (if (i32.lt_u (i32.load (i32.const 4112)) (i32.const 16)) (then (return)))
            (i64.store (i32.const {PAYLOAD}) (i64.load (i32.const {STATE})))
            (i64.store (i32.const {}) (i64.load (i32.const {count}))))"#,
        digest(STATE),
        PAYLOAD + 8,
    );
    service(&Description { flags: 1, ..ANY }, &text)
}

#[test]
fn each_accepted_packet_is_acted_on_once_whatever_comes_again() {
    for seed in 0..10 {
        let rng = &mut Rng::new(seed);
        let all = traffic(rng);
        let dropper = Dropper::new();
        let chain = Chain::new(vec![dropper.clone(), recorder()]).unwrap();
        let mut connection = ServedQp::new(Arc::new(chain));
        let (placed, dropped) = carry(rng, &mut connection, &all, &dropper);
        // The two ways of a connection have a state each.
        let mut expected = [(0u64, 0u64); 2];
        for ((part, payload), placed) in all.iter().zip(&placed) {
            let (before, count) = &mut expected[usize::from(part.operation == Operation::Read)];
            (*before, *count) = (digested(*before, payload), *count + 1);
            let whole = match payload.len() {
                16.. => [&before.to_le_bytes()[..], &count.to_le_bytes(), &payload[16..]].concat(),
                _ => payload.clone(),
            };
            assert_eq!(*placed, whole, "seed {seed}");
        }
        let counters = connection.counters();
        assert_eq!((counters.over_budget, counters.faults), (0, 0));
        assert!(counters.dropped_packets >= dropped);
        assert!(!connection.is_busy());
    }
}

#[test]
fn a_check_gives_the_same_again_and_remembers_what_was_accepted_alone() {
    // Refuses the packet by which the digest of all before it has four zeros at its end, and drops by another bit.
    let text = format!(
        r#"{}
        (func (export "balboa_check") (result i32)
            (call $digest)
            (if (i32.eqz (i32.and (i32.load (i32.const {STATE})) (i32.const 15)))
                (then (return (i32.const 2))))
            (i32.const 0))"#,
        digest(STATE)
    );
    let service = service(&ANY, &text);
    let mut refused = 0;
    for seed in 0..10 {
        let rng = &mut Rng::new(seed);
        let mut all = traffic(rng);
        all.retain(|(part, _)| part.operation != Operation::Read);
        let mut connection = connection(&service);
        let mut before = 0;
        for (part, payload) in &all {
            before = digested(before, payload);
            let expected = if before & 15 == 0 { Verdict::Refuse } else { Verdict::Accept };
            for _ in 0..=rng.below(3) {
                assert_eq!(connection.check(Some((part, payload))), expected, "seed {seed}");
            }
            if expected == Verdict::Refuse {
                refused += 1;
                break;
            }
            connection.accept();
            assert!(connection.act(&mut Placing { bytes: &mut payload.clone(), address: None }));
        }
    }
    assert!(refused > 2, "{refused}");
}

#[test]
fn what_is_changed_as_it_leaves_comes_back_also_repeated_from_the_middle() {
    // Each byte is masked by the lowest byte of its offset in the message.
    let mask = format!(
        r#"(func $mask (local $at i32) (local $byte i32)
            (loop
                (local.set $byte (i32.add (local.get $at) (i32.const {PAYLOAD})))
                (i32.store8 (local.get $byte) (i32.xor (i32.load8_u (local.get $byte))
                    (i32.add (local.get $at) (i32.load (i32.const 4104)))))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br_if 0 (i32.lt_u (local.get $at) (i32.load (i32.const 4112))))))
        (func (export "balboa_act") (call $mask))
        (func (export "balboa_transform") (call $mask))"#
    );
    let service = service(&Description { flags: 1, ..ANY }, &mask);
    for seed in 0..8 {
        let rng = &mut Rng::new(seed);
        let (mut from, mut to) = (connection(&service), connection(&service));
        let operation = rng.pick(&[Operation::Send, Operation::Write, Operation::Read]);
        for (part, payload) in packets::packets(rng, operation, 256) {
            let mut bytes = payload.clone();
            for _ in 0..=rng.below(3) {
                bytes.clone_from(&payload);
                assert!(from.transform(&part, &mut bytes));
                let at = |(offset, byte): (u64, &u8)| byte ^ offset as u8;
                let masked: Vec<u8> = (part.offset..).zip(&payload).map(at).collect();
                assert_eq!(bytes, masked, "a repetition has the same bytes");
            }
            assert_eq!(to.check(Some((&part, &bytes))), Verdict::Accept);
            to.accept();
            assert!(to.act(&mut Placing { bytes: &mut bytes, address: None }));
            assert_eq!(bytes, payload, "seed {seed}");
        }
    }
}

#[test]
fn an_act_can_name_another_place_for_a_write_alone() {
    // It moves what has an address by 100, and tells by the first byte whether there was one.
    let moves = format!(
        r#"(func (export "balboa_act")
            (i64.store (i32.const 4120) (i64.add (i64.load (i32.const 4120)) (i64.const 100)))
            (i32.store8 (i32.const {PAYLOAD}) (i32.load (i32.const 4100))))"#
    );
    let service = service(&Description { flags: 1, ..ANY }, &moves);
    for (address, moved, flags) in [(Some(u64::MAX), Some(99), 7), (None, None, 3)] {
        let mut connection = connection(&service);
        let part = Part { operation: Operation::Write, offset: 0, length: 1, is_last: true };
        assert_eq!(connection.check(Some((&part, &[0]))), Verdict::Accept);
        connection.accept();
        let mut placing = Placing { bytes: &mut [0], address };
        assert!(connection.act(&mut placing));
        assert_eq!((placing.address, placing.bytes[0]), (moved, flags));
    }
}
