//! The template's service against the same in plain Rust, at any path MTU.

use std::sync::Arc;

use services::{Chain, Operation, PacketService, Part, Placing, ServedQp, Verdict};
use services_wasm::Module;
use trial::rng::Rng;

/// What `template/rows.rs` becomes, as `docs/services-wasm.md` builds it.
const ROWS: &[u8] = include_bytes!("../template/rows.wasm");

/// The feature of a column's value.
fn feature(column: usize, value: u32) -> f32 {
    match column % 48 {
        0..16 => (value as i32 as f32 - 4999.5) / 2886.75,
        _ => (value.wrapping_mul(2_654_435_761) >> 19) as f32,
    }
}

#[test]
fn rows_become_what_the_same_computation_here_makes_of_them_at_any_path_mtu() {
    let service = Arc::new(Module::load(ROWS).unwrap());
    let chain = Arc::new(Chain::new(vec![service]).unwrap());
    for seed in 0..6 {
        let rng = &mut Rng::new(seed);
        let values: Vec<u32> = (0..48 * rng.between(1, 60)).map(|_| rng.next() as u32).collect();
        // Bytes behind the last whole column stay.
        let rest = vec![0xa5; rng.below(4) as usize];
        let features = values.iter().enumerate().map(|(at, value)| feature(at, *value).to_bits());
        let expected: Vec<u8> = features.flat_map(u32::to_le_bytes).chain(rest.clone()).collect();
        let table: Vec<u8> =
            values.iter().copied().flat_map(u32::to_le_bytes).chain(rest).collect();
        for mtu in [256, 512, 1024, 2048, 4096] {
            for operation in [Operation::Write, Operation::Read] {
                let mut connection = ServedQp::new(Arc::clone(&chain));
                let mut placed = Vec::new();
                for (number, payload) in table.chunks(mtu).enumerate() {
                    let (offset, length) = ((number * mtu) as u64, payload.len() as u32);
                    let is_last = number * mtu + payload.len() == table.len();
                    let part = Part { operation, offset, length, is_last };
                    assert_eq!(connection.check(Some((&part, payload))), Verdict::Accept);
                    connection.accept();
                    let mut bytes = payload.to_vec();
                    assert!(connection.act(&mut Placing { bytes: &mut bytes, address: None }));
                    placed.extend(bytes);
                }
                assert!(placed == expected, "seed {seed}, MTU {mtu}");
            }
        }
    }
}

#[test]
fn it_says_what_it_is() {
    let service = Module::load(ROWS).unwrap();
    let about = service.about();
    assert_eq!(
        (&*about.name, about.takes, about.gives),
        ("rows", Some("int32 rows"), Some("float32 rows"))
    );
    assert_eq!((about.check_state, about.act_state), (0, 0));
    assert!(about.stages.act && about.stages.rewrites && !about.stages.check);
}
