//! Prints the cost of services of users: `cargo run --release -p services-wasm --example wasm_cost`.
//!
//! The packets of a table pass a connection with the template's service, with one that does nothing, and with one that
//! works without end until its budget stops it. The figures are the quickest of many passes, which other work of the
//! machine disturbs least.

#[path = "../../services/examples/shared/mod.rs"]
mod shared;

use std::sync::Arc;
use std::time::{Duration, Instant};

use services::{Chain, Operation, PacketService, Part, ServedQp, Verdict, limit};
use services_wasm::Module;
use shared::{MTU, pass};

const ROWS: &[u8] = include_bytes!("../template/rows.wasm");
/// Bytes of a table: rows of 48 columns.
const TABLE: usize = 4096 * 192;
/// Tables.
const TABLES: usize = 50;

/// A module with one stage, and all the work that a service may have.
fn module(stage: &str) -> Option<Arc<dyn PacketService>> {
    let numbers = [7, 0, 0, 0, 0, 0, limit::WORK, 0].map(u32::to_le_bytes).concat();
    let numbers: String = numbers.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module (memory (export "memory") 1)
            (func (export "balboa_interface") (result i32) (i32.const 1))
            (func (export "balboa_about") (result i32) (i32.const 1024))
            (func (export "balboa_room") (result i32) (i32.const 4096))
            (data (i32.const 1024) "any") (data (i32.const 1120) "{numbers}") {stage})"#
    );
    Some(Arc::new(Module::load(&wat::parse_str(text).ok()?).ok()?))
}

/// The quickest pass of a table through a service.
fn quickest(service: &Arc<dyn PacketService>) -> Option<Duration> {
    let chain = Arc::new(Chain::new(vec![Arc::clone(service)]).ok()?);
    let mut best = Duration::MAX;
    for _ in 0..TABLES {
        let mut connection = ServedQp::new(Arc::clone(&chain));
        best = best.min(pass(&mut connection, Operation::Write, &mut vec![7; TABLE])?);
    }
    Some(best)
}

/// The quickest stop of a service that works without end.
fn stopped(service: &Arc<dyn PacketService>) -> Option<Duration> {
    let chain = Arc::new(Chain::new(vec![Arc::clone(service)]).ok()?);
    let mut best = Duration::MAX;
    for _ in 0..TABLES {
        let mut connection = ServedQp::new(Arc::clone(&chain));
        let part = Part { operation: Operation::Write, offset: 0, length: 1, is_last: true };
        let begun = Instant::now();
        if connection.check(Some((&part, &[0]))) != Verdict::Refuse {
            return None;
        }
        best = best.min(begun.elapsed());
    }
    Some(best)
}

fn main() {
    let rows: Arc<dyn PacketService> = match Module::load(ROWS) {
        Ok(module) => Arc::new(module),
        Err(why) => return println!("{why}"),
    };
    let nothing = module(r#"(func (export "balboa_act"))"#);
    for (name, service) in [("rows", Some(rows)), ("nothing", nothing)] {
        let Some(time) = service.as_ref().and_then(quickest) else { return };
        let packet = time.as_nanos() as f64 / TABLE.div_ceil(MTU) as f64;
        println!(
            "{name:<10} {packet:6.0} ns for a packet of {MTU} bytes, {:.2} GB/s",
            MTU as f64 / packet
        );
    }
    let endless =
        module(r#"(func (export "balboa_check") (result i32) (loop (br 0)) (i32.const 0))"#);
    if let Some(time) = endless.as_ref().and_then(stopped) {
        println!(
            "without end it is stopped after {} us, at {} units of work",
            time.as_micros(),
            limit::WORK
        );
    }
}
