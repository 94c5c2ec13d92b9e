//! Modules of WebAssembly: files of any content, and modules that are valid and do anything.
//!
//! Checked promises: no panic; a file is a service or is refused by a sentence; a check gives the same again; a call has
//! an end; a connection that is stopped stays so, and the length of no payload changes.

use std::sync::Arc;

use arbitrary::Unstructured;
use services::{Chain, Operation, Part, Placing, ServedQp, Verdict};
use services_wasm::{Module, limit};

use crate::Outcome;

/// A module that is whole, whose bytes are changed.
const WHOLE: &[u8] = include_bytes!("../../../services-wasm/template/rows.wasm");
/// Statements of a function at most, those in loops included.
const STATEMENTS: usize = 12;

fn changed(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let mut bytes = WHOLE.to_vec();
    for _ in 0..u.int_in_range(0..=8)? {
        let at = u.choose_index(bytes.len())?;
        match u.int_in_range(0..=3)? {
            0 => bytes.truncate(at.max(8)),
            1 => bytes.insert(at, u.arbitrary()?),
            2 => {
                bytes.remove(at);
            }
            _ => bytes[at] = u.arbitrary()?,
        }
    }
    Ok(bytes)
}

/// A number that is an address, mostly in memory.
fn address(u: &mut Unstructured<'_>) -> arbitrary::Result<i32> {
    match u.int_in_range(0..=7)? {
        0 => u.arbitrary(),
        1 => u.int_in_range(65_500..=65_540),
        _ => u.int_in_range(4096..=4096 + 64 + 4096 + 64),
    }
}

fn statements(u: &mut Unstructured<'_>, left: &mut usize) -> arbitrary::Result<String> {
    let mut text = String::new();
    while *left > 0 && u.ratio(5, 6)? {
        *left -= 1;
        let (one, other) = (address(u)?, address(u)?);
        text += &match u.int_in_range(0..=11)? {
            0 => format!("(drop (memory.grow (i32.const {one})))"),
            1 => format!("(memory.fill (i32.const {one}) (i32.const 7) (i32.const {other}))"),
            2 => format!("(memory.copy (i32.const {one}) (i32.const {other}) (i32.const 100))"),
            3 => "(call $self)".to_owned(),
            4 => "(unreachable)".to_owned(),
            5 => format!("(loop {} (br_if 0 (i32.load (i32.const {one}))))", statements(u, left)?),
            6 => format!("(if (i32.load8_u (i32.const {one})) (then {}))", statements(u, left)?),
            7 => format!("(global.set 0 (i32.add (global.get 0) (i32.const {one})))"),
            8 => format!("(i32.store (i32.const {one}) (global.get 0))"),
            9 => format!(
                "(i64.store (i32.const {one}) (i64.div_s (i64.load (i32.const {other})) (i64.load (i32.const {one}))))"
            ),
            10 => "(return)".to_owned(),
            _ => format!("(i32.store (i32.const {one}) (i32.load (i32.const {other})))"),
        };
    }
    Ok(text)
}

/// A module that is valid, of which one stage does anything.
fn valid(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let mut left = STATEMENTS;
    let body = statements(u, &mut left)?;
    let body = body
        .replace("(return)", "(return (i32.const 1))")
        .replace("(call $self)", "(drop (call $self))");
    let verdict = u.int_in_range(-1..=3)?;
    let stages = match u.int_in_range(0..=1)? {
        0 => format!(
            r#"(func $self (export "balboa_check") (result i32) {body} (i32.const {verdict}))"#
        ),
        _ => format!(
            r#"(func $self (result i32) {body} (i32.const 0))
            (func (export "balboa_act") (drop (call $self)))
            (func (export "balboa_transform") (drop (call $self)))"#
        ),
    };
    let numbers = [7u32, 0, 0, u32::from(stages.contains("act")), 32, 32, 2000, 0];
    let numbers: String = numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    let text = format!(
        r#"(module (memory (export "memory") 1) (global (mut i32) (i32.const 0))
            (func (export "balboa_interface") (result i32) (i32.const 1))
            (func (export "balboa_about") (result i32) (i32.const 1024))
            (func (export "balboa_room") (result i32) (i32.const 4096))
            (data (i32.const 1024) "any") (data (i32.const 1120) "{numbers}") {stages})"#
    );
    Ok(wat::parse_str(text).expect("a module"))
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let (bytes, is_valid) = match u.int_in_range(0..=3)? {
        0 => (u.bytes(u.len().min(200))?.to_vec(), false),
        1 => (changed(u)?, false),
        _ => (valid(u)?, true),
    };
    let service = match Module::load(&bytes) {
        Ok(service) => Arc::new(service),
        Err(why) => {
            assert!(!is_valid, "{why}");
            assert!(!why.to_string().is_empty() && bytes.len() <= limit::MODULE);
            return Ok(());
        }
    };
    let chain = Chain::new(vec![service]).expect("one alone fits");
    let mut connection = ServedQp::new(Arc::new(chain));
    let mut offset = 0;
    for _ in 0..8 {
        let length = u.int_in_range(1..=300)?.min(u.len().max(1));
        let mut bytes = u.bytes(length.min(u.len()))?.to_vec();
        bytes.resize(length, 0);
        let operation = *u.choose(&[Operation::Send, Operation::Write])?;
        let is_last = u.ratio(1, 4)?;
        let part = Part { operation, offset, length: length as u32, is_last };
        offset = if is_last { 0 } else { offset.wrapping_add(length as u64) };
        let verdict = connection.check(Some((&part, &bytes)));
        if verdict != Verdict::Refuse {
            assert_eq!(connection.check(Some((&part, &bytes))), verdict, "the same again");
        }
        let goes_on = verdict == Verdict::Accept && {
            connection.accept();
            connection.act(&mut Placing { bytes: &mut bytes, address: u.arbitrary()? })
                && connection.transform(&part, &mut bytes)
        };
        assert_eq!(bytes.len(), length);
        let counters = connection.counters();
        let ended = counters.over_budget + counters.faults + counters.refused_packets;
        assert!(ended <= 1 && (ended == 0 || !goes_on));
        if verdict == Verdict::Drop {
            return Ok(());
        }
    }
    Ok(())
}
