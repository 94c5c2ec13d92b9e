//! Modules that do what no service may: each is refused with a sentence, or stopped on its connection alone.

mod shared;

use services::{Budget, Operation, PacketService as _, Part, Placing, ServedQp, Verdict};
use services_wasm::{Error, Module, limit};
use shared::{ANY, Description, PAYLOAD, STATE, TELLING, connection, module, module_of, service};

/// A check that lets everything pass.
const PASSES: &str = r#"(func (export "balboa_check") (result i32) (i32.const 0))"#;

/// Takes a packet of a WRITE, which is a message, through all stages; what became of its bytes, if it passed.
fn pass(connection: &mut ServedQp, payload: &[u8]) -> Option<Vec<u8>> {
    let length = payload.len() as u32;
    let part = Part { operation: Operation::Write, offset: 0, length, is_last: true };
    let mut bytes = payload.to_vec();
    if connection.check(Some((&part, &bytes))) != Verdict::Accept {
        return None;
    }
    connection.accept();
    if !connection.act(&mut Placing { bytes: &mut bytes, address: Some(0x1000) }) {
        return None;
    }
    connection.transform(&part, &mut bytes).then_some(bytes)
}

fn refused(bytes: &[u8]) -> Error {
    let error = Module::load(bytes).unwrap_err();
    let sentence = error.to_string();
    assert!(!sentence.contains('\n') && sentence.len() < 500, "one sentence: {sentence}");
    error
}

fn says(bytes: &[u8], expected: &str) {
    let sentence = refused(bytes).to_string();
    assert!(sentence.contains(expected), "{sentence}");
}

#[test]
fn a_file_that_is_no_module_is_refused() {
    let whole = module(&ANY, PASSES);
    Module::load(&whole).unwrap();
    for length in 0..whole.len() {
        // A module that is cut between two sections may be one, which lacks what stood behind.
        refused(&whole[..length]);
    }
    says(b"#!/bin/sh\n", "it is no module that can be executed");
    assert_eq!(refused(&vec![0; limit::MODULE + 1]), Error::Large(limit::MODULE + 1));
}

#[test]
fn a_module_that_lacks_or_wants_something_is_refused() {
    let told = |replaced: &str, by: &str| {
        assert!(TELLING.contains(replaced));
        module_of(&ANY, &format!("{}{PASSES}", TELLING.replace(replaced, by)))
    };
    for (bytes, expected) in [
        (
            module_of(&ANY, &format!(r#"(import "env" "now" (func)) {TELLING}{PASSES}"#)),
            r#"the module imports "env" "now"; a service imports nothing"#,
        ),
        (
            module_of(&ANY, &format!(r#"(import "a" "b" (memory 1)) {PASSES}"#)),
            r#"imports "a" "b""#,
        ),
        (
            module_of(
                &ANY,
                &format!(r#"(import "{}" "b" (func)) {TELLING}{PASSES}"#, "x\\1b ".repeat(9000)),
            ),
            r#"imports "x\u{1b} x"#,
        ),
        (module(&ANY, &format!("{PASSES} (func $it) (start $it)")), "has a start function"),
        (module(&ANY, ""), "exports no balboa_check, balboa_act or balboa_transform"),
        (told("balboa_room", "room"), "exports no balboa_room"),
        (told(r#"(export "memory")"#, ""), "exports no memory"),
        (told(r#""memory") 1"#, r#""memory") 5"#), "has 5 pages of memory; 4 are the most"),
        (told("(i32.const 1)", "(i32.const 2)"), "is for version 2 of the interface"),
        (
            told("(i32.const 1)", "(loop (br 0)) (i32.const 1)"),
            "takes more than 65536 instructions",
        ),
        (told("(i32.const 1024)", "(unreachable)"), "balboa_about of the module did not answer"),
        (told("(i32.const 1024)", "(i32.const 65409)"), "balboa_about of the module names a place"),
        (told("(i32.const 4096)", "(i32.const -1)"), "balboa_room of the module names a place"),
        (told("(i32.const 4096)", "(i32.const 57281)"), "balboa_room of the module names a place"),
        (
            module(
                &ANY,
                r#"(func (export "balboa_check") (param i32) (result i32) (i32.const 0))"#,
            ),
            "exports balboa_check of another type than () -> i32",
        ),
        (
            module(&ANY, r#"(func (export "balboa_act") (result i32) (i32.const 0))"#),
            "exports balboa_act of another type than () -> ()",
        ),
        (
            module(&ANY, &format!(r#"{PASSES} (func (export "balboa_finish"))"#)),
            r#"exports "balboa_finish", which version 1"#,
        ),
        (
            module(&ANY, &format!(r#"{PASSES} (data (i32.const 65536) "x")"#)),
            "it is no module that can be executed",
        ),
        (
            module(&ANY, &format!("{PASSES} (table 1025 funcref)")),
            "it is no module that can be executed",
        ),
        (module(&ANY, &format!("{PASSES} (memory 1)")), "it is no module that can be executed"),
    ] {
        says(&bytes, expected);
    }
}

#[test]
fn a_description_that_is_not_right_is_refused() {
    for (description, expected) in [
        (Description { name: "", ..ANY }, r#"the name """#),
        (Description { name: "Rows", ..ANY }, r#"the name "Rows": write small letters"#),
        (Description { name: "\u{1b}[2J", ..ANY }, r#"the name "\u{1b}[2J""#),
        (Description { summary: "a\nb", ..ANY }, "control characters"),
        (Description { operations: 0, ..ANY }, "operations are 0x0"),
        (Description { operations: 8, ..ANY }, "operations are 0x8"),
        (Description { takes: 3, ..ANY }, "there is no form 3"),
        (Description { gives: u32::MAX, ..ANY }, "there is no form 4294967295"),
        (Description { flags: 2, ..ANY }, "flags are 0x2"),
        (Description { flags: 1, ..ANY }, "exports no balboa_act"),
        (Description { check_state: 4097, act_state: 0, ..ANY }, "4097 bytes; 4096 are the most"),
        (Description { act_state: u32::MAX, ..ANY }, "4096 are the most"),
        (Description { work: 0, ..ANY }, "its work is 0"),
        (Description { work: 65537, ..ANY }, "its work is 65537; write 1 to 65536"),
    ] {
        says(&module(&description, PASSES), expected);
    }
}

/// What a module does at each stage when a payload begins with the byte 0xee; other packets pass.
fn at_each_stage(does: &str) -> [String; 3] {
    let guarded = |export: &str, result: &str, answer: &str| {
        let is_meant = format!("(i32.eq (i32.load8_u (i32.const {PAYLOAD})) (i32.const 0xee))");
        format!(
            r#"(func $self (export "{export}") {result} (if {is_meant} (then {does})) {answer})"#
        )
    };
    [
        guarded("balboa_check", "(result i32)", "(i32.const 0)"),
        guarded("balboa_act", "", ""),
        guarded("balboa_transform", "", ""),
    ]
}

/// A module that does something at a stage is stopped there, on the connection alone where it did.
fn is_stopped(does: &str, over_budget: u64, faults: u64) {
    for text in at_each_stage(does) {
        let service = service(&ANY, &text);
        let (mut hostile, mut neighbour) = (connection(&service), connection(&service));
        assert_eq!(pass(&mut hostile, b"well"), Some(b"well".to_vec()));
        assert_eq!(pass(&mut hostile, b"\xee"), None, "{text}");
        let counters = hostile.counters();
        assert_eq!((counters.over_budget, counters.faults), (over_budget, faults), "{text}");
        assert_eq!(pass(&mut hostile, b"well"), None, "it has failed for good");
        assert!(!hostile.is_busy());
        for _ in 0..3 {
            assert_eq!(pass(&mut neighbour, b"well"), Some(b"well".to_vec()));
        }
        let counters = neighbour.counters();
        assert_eq!((counters.over_budget, counters.faults), (0, 0));
    }
}

#[test]
fn work_without_end_is_stopped_at_its_budget() {
    is_stopped("(loop (br 0))", 1, 0);
    is_stopped("(loop (drop (memory.grow (i32.const 0))) (br 0))", 1, 0);
    is_stopped(
        "(loop (memory.fill (i32.const 8192) (i32.const 1) (i32.const 50000)) (br 0))",
        1,
        0,
    );
}

/// The module beside which an end-to-end case measures a neighbour.
#[test]
fn the_busy_module_is_just_under_its_budget() {
    let service = service(&ANY, include_str!("busy.wat"));
    let part = Part { operation: Operation::Write, offset: 0, length: 1024, is_last: true };
    let mut budget = Budget::new(services::limit::WORK);
    let mut placing = Placing { bytes: &mut [0; 1024], address: None };
    service.act(&part, &mut placing, &mut [0; 64], &mut budget).unwrap();
    assert!(budget.left() < services::limit::WORK / 100, "{} units are left", budget.left());
}

#[test]
fn memory_of_its_own_is_all_that_a_module_reaches() {
    let all_pages = "(memory.grow (i32.const 65535))";
    // The growth fails, as the language has it, and the module that does not look is out of bounds.
    is_stopped(&format!("(drop {all_pages}) (i32.store (i32.const 65536) (i32.const 1))"), 0, 1);
    is_stopped(
        &format!("(if (i32.ne {all_pages} (i32.const -1)) (then (loop (br 0)))) (unreachable)"),
        0,
        1,
    );
    is_stopped(
        "(if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then (unreachable)))",
        0,
        1,
    );
    is_stopped("(drop (i32.load (i32.const 65533)))", 0, 1);
    is_stopped("(i64.store (i32.const -8) (i64.const 1))", 0, 1);
    is_stopped("(memory.fill (i32.const 0) (i32.const 1) (i32.const 65537))", 0, 1);
}

#[test]
fn a_trap_is_a_fault() {
    is_stopped("(unreachable)", 0, 1);
    is_stopped("(drop (i32.div_u (i32.const 1) (i32.const 0)))", 0, 1);
    is_stopped("(drop (i32.trunc_f32_s (f32.const nan)))", 0, 1);
    // Calls inside each other end at their depth.
    let deep = "(call $deep)";
    for text in at_each_stage(deep) {
        let service = service(&ANY, &format!("{text} (func $deep (call $deep))"));
        let mut hostile = connection(&service);
        assert_eq!(pass(&mut hostile, b"\xee"), None);
        assert_eq!(hostile.counters().faults, 1);
    }
}

#[test]
fn a_verdict_that_is_none_ends_the_connection_as_a_fault() {
    for verdict in [3, -1, i32::MAX, i32::MIN] {
        let text = format!(r#"(func (export "balboa_check") (result i32) (i32.const {verdict}))"#);
        let mut hostile = connection(&service(&ANY, &text));
        assert_eq!(pass(&mut hostile, b"any"), None);
        let counters = hostile.counters();
        assert_eq!((counters.faults, counters.refused_packets), (1, 0));
    }
    for (verdict, expected) in [(0, Verdict::Accept), (1, Verdict::Drop), (2, Verdict::Refuse)] {
        let text = format!(r#"(func (export "balboa_check") (result i32) (i32.const {verdict}))"#);
        let part = Part { operation: Operation::Send, offset: 0, length: 3, is_last: true };
        assert_eq!(connection(&service(&ANY, &text)).check(Some((&part, b"any"))), expected);
    }
}

/// A module that wants its first packet to be its first, by whatever it could remember it.
#[test]
fn a_module_remembers_nothing_but_its_state() {
    let remembering = format!(
        r#"(global $count (mut i32) (i32.const 0))
        (table $table 2 funcref) (elem declare func $remember)
        (func $remember
            (if (global.get $count) (then (unreachable)))
            (if (i32.load (i32.const 0)) (then (unreachable)))
            (if (i32.load (i32.const {behind})) (then (unreachable)))
            (if (i32.eqz (ref.is_null (table.get $table (i32.const 1)))) (then (unreachable)))
            (global.set $count (i32.const 1))
            (i32.store (i32.const 0) (i32.const 1))
            ;; Behind the payload of a packet that is shorter than the room.
            (i32.store (i32.const {behind}) (i32.const 1))
            (table.set $table (i32.const 1) (ref.func $remember)))
        (func (export "balboa_check") (result i32) (call $remember) (i32.const 0))
        (func (export "balboa_act") (call $remember))
        (func (export "balboa_transform") (call $remember))"#,
        behind = PAYLOAD + 100,
    );
    let service = service(&ANY, &remembering);
    let (mut one, mut other) = (connection(&service), connection(&service));
    for _ in 0..3 {
        assert!(pass(&mut one, b"any").is_some());
        assert!(pass(&mut other, b"any").is_some());
    }
}

#[test]
fn what_a_stage_may_not_change_stays() {
    // A check cannot change the payload, nor an act that does not declare it; and no stage the length.
    let writes = format!(
        "(i32.store8 (i32.const {PAYLOAD}) (i32.const 0x58)) (i32.store (i32.const 4112) (i32.const 1))"
    );
    let check = format!(r#"(func (export "balboa_check") (result i32) {writes} (i32.const 0))"#);
    let act = format!(r#"(func (export "balboa_act") {writes})"#);
    let both = format!("{check}{act}");
    assert_eq!(pass(&mut connection(&service(&ANY, &both)), b"any"), Some(b"any".to_vec()));
    let rewriting = Description { flags: 1, ..ANY };
    assert_eq!(pass(&mut connection(&service(&rewriting, &both)), b"any"), Some(b"Xny".to_vec()));
}

#[test]
fn a_state_is_the_connection_s_own() {
    // A check that accepts as many packets as it finds its own count right, and refuses the third.
    let counts = format!(
        r#"(func (export "balboa_check") (result i32)
            (i32.store (i32.const {STATE}) (i32.add (i32.load (i32.const {STATE})) (i32.const 1)))
            (i32.shl (i32.eq (i32.load (i32.const {STATE})) (i32.const 3)) (i32.const 1)))"#
    );
    let service = service(&ANY, &counts);
    for _ in 0..2 {
        let mut connection = connection(&service);
        let passed: Vec<_> = (0..3).map(|_| pass(&mut connection, b"any").is_some()).collect();
        assert_eq!(passed, [true, true, false]);
        assert_eq!(connection.counters().refused_packets, 1);
    }
}
