//! Preprocessed rows against those that numpy made (`preprocess.py`), cut into packets of any path MTU.

mod numpy;

use std::sync::Arc;

use services::{Chain, Operation, Part, Placing, Preprocess, ServedQp, Verdict};

/// Bytes of a row.
const ROW_BYTES: usize = services::ROW as usize * 4;

fn bytes(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

/// A table as it comes, and its features by numpy, of its lines.
fn tables(text: &str) -> (Vec<u8>, Vec<u8>) {
    let rows = text.lines().map(|line| line.split_once(' ').unwrap());
    let (rows, made): (Vec<_>, Vec<_>) = rows.map(|(row, made)| (bytes(row), bytes(made))).unzip();
    (rows.concat(), made.concat())
}

/// A message as it is placed that comes in packets of so many bytes.
fn placed(operation: Operation, message: &[u8], mtu: usize) -> Vec<u8> {
    let chain = Arc::new(Chain::new(vec![Arc::new(Preprocess)]).unwrap());
    let mut connection = ServedQp::new(chain);
    let mut all = Vec::new();
    for (number, payload) in message.chunks(mtu).enumerate() {
        let (offset, length) = ((number * mtu) as u64, payload.len() as u32);
        let is_last = number * mtu + payload.len() == message.len();
        let part = Part { operation, offset, length, is_last };
        assert_eq!(connection.check(Some((&part, payload))), Verdict::Accept);
        connection.accept();
        let mut bytes = payload.to_vec();
        assert!(connection.act(&mut Placing { bytes: &mut bytes, address: None }));
        all.extend(bytes);
    }
    assert_eq!(connection.counters().over_budget, 0);
    all
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The lines that are recorded.
fn vectors() -> (Vec<u8>, Vec<u8>) {
    tables(include_str!("preprocess.txt"))
}

/// Compares features with numpy's, at each path MTU.
fn compare((table, made): (Vec<u8>, Vec<u8>)) {
    let (table_words, made) = (words(&table), words(&made));
    for mtu in [256, 512, 1024, 2048, 4096] {
        assert_ne!(mtu % ROW_BYTES, 0, "rows cross the borders of packets");
        for operation in [Operation::Write, Operation::Read] {
            let placed = words(&placed(operation, &table, mtu));
            assert_eq!(placed.len(), made.len());
            for (at, (ours, numpys)) in placed.iter().zip(&made).enumerate() {
                // Features are not negative, so the distance of their bits is that in units of the last place.
                let most = if (at as u64 % services::ROW) < services::DENSE { 2 } else { 0 };
                let value = table_words[at] as i32;
                assert!(ours.abs_diff(*numpys) <= most, "{at}: {value} -> {ours:#x}, {numpys:#x}");
            }
        }
    }
}

#[test]
fn rows_become_what_numpy_makes_of_them_at_any_path_mtu() {
    compare(vectors());
}

#[test]
fn rows_of_other_seeds_become_what_numpy_makes_of_them_where_it_is_installed() {
    for (_, lines) in numpy::judged("preprocess.py", true) {
        compare(tables(&lines));
    }
}

#[test]
fn messages_that_are_no_table_keep_their_length_and_what_is_behind_the_last_column() {
    let (table, _) = vectors();
    for length in [1, 3, 4, 7, 191, 193, 4097, 4099] {
        let made = placed(Operation::Write, &table[..length], 1024);
        assert_eq!(made.len(), length);
        let behind = length - length % 4;
        assert_eq!(made[behind..], table[behind..length]);
        assert_eq!(made[..behind], placed(Operation::Write, &table, 4096)[..behind]);
    }
}

#[test]
fn sends_are_left_as_they_are() {
    let (table, _) = vectors();
    assert_eq!(placed(Operation::Send, &table, 1024), table);
}
