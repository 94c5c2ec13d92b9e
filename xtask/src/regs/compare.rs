//! Holds the C header and the SystemVerilog package against the crate, by compiling them.
//!
//! Each entry gets sample values. A program made here puts them into the entry's structure and shows
//! the bytes, then takes the structure from the bytes and shows the values; both are compared.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fpga_regs::engine::cqe::expected_phase;
use fpga_regs::engine::doorbell::{QueueKind, slot, slot_value};
use fpga_regs::{Field, Layout, Word};
use harness::process::Task;

use super::names::{ident, layouts, upper, words};
use crate::cargo;

/// The time limit of a compiler, and of the program that it made.
const LIMIT: Duration = Duration::from_secs(300);

/// Bytes of a field, none of them alike in one entry.
fn sample(field: &Field) -> Vec<u8> {
    (0..field.size).map(|i| (field.offset + i + 1) as u8).collect()
}

/// The value of a field that is a number.
fn number(field: &Field) -> u64 {
    sample(field).iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The entry with all its sample values, reserved bytes zero.
fn bytes(layout: &Layout) -> Vec<u8> {
    let mut bytes = vec![0; layout.bytes];
    for field in layout.all_fields() {
        if let Some(place) = bytes.get_mut(field.offset..field.offset + field.size) {
            place.copy_from_slice(&sample(field));
        }
    }
    bytes
}

/// All bits of every field.
fn all_bits(word: &Word) -> u64 {
    word.fields.iter().fold(0, |bits, field| bits | field.mask())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Queues and indices whose slots, slot values and phases are compared.
const DOORBELLS: [(QueueKind, u32, u32, u8, u32); 3] = [
    (QueueKind::Send, 0, 0x0a_1b2c, 0x5e, 1),
    (QueueKind::Receive, 1, 0xff_ffff, 0xff, u32::MAX),
    (QueueKind::Completion, 2, 0x7f, 0, 0x3fff_ffff),
];
const PHASES: [(u32, u8); 5] = [(0, 4), (15, 4), (16, 4), (u32::MAX, 4), (u32::MAX, 31)];

/// The output that the C program must have.
fn expected() -> String {
    let mut out = String::new();
    for layout in layouts() {
        let name = ident(layout.module, layout.name);
        let _ = writeln!(out, "{name} size {}", layout.bytes);
        for field in layout.all_fields() {
            let Field { name: field_name, offset, size, .. } = field;
            let _ = writeln!(out, "{name}.{field_name} {offset} {size} {}", hex(&sample(field)));
        }
        let _ = writeln!(out, "{name} bytes {}", hex(&bytes(layout)));
    }
    for (kind, _, number, generation, index) in DOORBELLS {
        let slot = slot(kind, number);
        let _ = writeln!(out, "slot {slot} {:016x}", slot_value(number, generation, index));
    }
    for (index, log2_entries) in PHASES {
        let phase = u8::from(expected_phase(index, log2_entries));
        let _ = writeln!(out, "phase {index} {log2_entries} {phase}");
    }
    for word in words() {
        let name = ident(word.module, word.name);
        let _ = writeln!(out, "{name} {:016x}", all_bits(word));
    }
    out
}

const C_HEAD: &str = r#"#include <stdio.h>
#include <string.h>
#include "balboa_card.h"

static void show(const void *bytes, size_t count)
{
    const unsigned char *at = (const unsigned char *)bytes;
    while (count--)
        printf("%02x", *at++);
    printf("\n");
}

int main(void)
{
"#;

/// A C program that prints the values of the header.
fn c_program() -> String {
    let mut out = C_HEAD.to_owned();
    for layout in layouts() {
        c_entry(&mut out, layout);
    }
    for (_, kind, number, generation, index) in DOORBELLS {
        let _ = writeln!(
            out,
            "    printf(\"slot %u %016llx\\n\", (unsigned)balboa_doorbell_slot({kind}, {number}u), (unsigned long long)balboa_doorbell_slot_word({number}u, {generation}, {index}u));"
        );
    }
    for (index, log2_entries) in PHASES {
        let _ = writeln!(
            out,
            "    printf(\"phase {index} {log2_entries} %d\\n\", balboa_expected_phase({index}u, {log2_entries}));"
        );
    }
    for word in words() {
        let name = ident(word.module, word.name);
        let masks: Vec<String> = word
            .fields
            .iter()
            .map(|field| {
                let field_name = upper(&format!("{name}_{}", field.name));
                let ones = field.mask() >> field.low;
                format!("((UINT64_C({ones:#x}) << BALBOA_{field_name}_SHIFT) & BALBOA_{field_name}_MASK)")
            })
            .collect();
        let _ = writeln!(
            out,
            "    printf(\"{name} %016llx\\n\", (unsigned long long)({}));",
            masks.join(" | ")
        );
    }
    out.push_str("    return 0;\n}\n");
    out
}

fn c_entry(out: &mut String, layout: &Layout) {
    let name = ident(layout.module, layout.name);
    let list: Vec<String> = bytes(layout).iter().map(|byte| format!("{byte:#x}")).collect();
    let _ = writeln!(
        out,
        "    {{\n        static const unsigned char from[] = {{ {} }};",
        list.join(", ")
    );
    let _ = writeln!(out, "        struct balboa_{name} in, out;");
    let _ = writeln!(
        out,
        "        memset(&in, 0, sizeof in);\n        memcpy(&out, from, sizeof out);"
    );
    let _ = writeln!(out, "        printf(\"{name} size %u\\n\", (unsigned)sizeof in);");
    for field in layout.all_fields() {
        let Field { name: field_name, raw, .. } = field;
        if *raw {
            let list: Vec<String> = sample(field).iter().map(|it| format!("{it:#x}")).collect();
            let _ = writeln!(
                out,
                "        {{ static const unsigned char raw[] = {{ {} }}; memcpy(in.{field_name}, raw, sizeof raw); }}",
                list.join(", ")
            );
        } else {
            let _ = writeln!(
                out,
                "        in.{field_name} = UINT{}_C({:#x});",
                field.size * 8,
                number(field)
            );
        }
        let _ = writeln!(
            out,
            "        printf(\"{name}.{field_name} %u %u \", (unsigned)offsetof(struct balboa_{name}, {field_name}), (unsigned)sizeof out.{field_name});\n        show(&out.{field_name}, sizeof out.{field_name});"
        );
    }
    let _ =
        writeln!(out, "        printf(\"{name} bytes \");\n        show(&in, sizeof in);\n    }}");
}

/// Compiles the header as C or C++, runs a program that uses all of it, and compares.
///
/// # Errors
/// When it does not compile, or prints another layout than the crate's.
pub fn c_header(compiler: &str, standard: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("layout.c");
    let program = directory.path().join("layout");
    std::fs::write(&source, c_program())?;
    let language = if standard.contains("++") { "c++" } else { "c" };
    let task = Task::new(compiler).arg(format!("-std={standard}")).arg("-I").arg(contract());
    let task = task.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-x", language]);
    let task = task.arg(&source).arg("-o").arg(&program).with_our_environment().limit(LIMIT);
    task.run()?.success().context("balboa_card.h does not compile")?;
    let printed = Task::new(&program).limit(LIMIT).run()?.success()?.stdout;
    let wanted = expected();
    let differs = printed.lines().zip(wanted.lines()).find(|(ours, theirs)| ours != theirs);
    if let Some((printed, wanted)) = differs {
        anyhow::bail!("balboa_card.h says {printed:?} where fpga-regs says {wanted:?}");
    }
    ensure!(printed == wanted, "balboa_card.h does not say all that fpga-regs says");
    Ok(())
}

fn contract() -> std::path::PathBuf {
    cargo::root().join("contract")
}

/// Lints the package and a module that uses it.
///
/// # Errors
/// With Verilator's message.
pub fn lint_package() -> Result<()> {
    let module = cargo::root().join("xtask/src/regs/sv_package/doorbell_example.sv");
    verilator(Path::new("."), &["--lint-only", "-Wall"], &module)?;
    Ok(())
}

/// Simulates a module that packs every entry and takes it apart again.
///
/// # Errors
/// When it does not build, or the simulation finds other bytes than the crate's.
pub fn simulate_package() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let bench = directory.path().join("bench.sv");
    std::fs::write(&bench, sv_bench())?;
    verilator(
        directory.path(),
        &["--binary", "-O0", "--Mdir", ".", "--top-module", "bench"],
        &bench,
    )?;
    let finished = Task::new(directory.path().join("Vbench")).limit(LIMIT).run()?.success()?;
    ensure!(finished.stdout.contains("ALL SAME"), "the simulation found:\n{}", finished.stdout);
    Ok(())
}

fn verilator(directory: &Path, options: &[&str], module: &Path) -> Result<()> {
    let package = contract().join("balboa_card_pkg.sv");
    let task = Task::new("verilator").args(options).arg("-sv").arg(package).arg(module);
    let task = task.with_our_environment().directory(directory).limit(LIMIT);
    task.run()?.success().context("balboa_card_pkg.sv does not pass Verilator")?;
    Ok(())
}

/// A module that packs every entry and takes it apart again.
fn sv_bench() -> String {
    let mut out = "module bench;\n  import balboa_card_pkg::*;\n  int errors = 0;\n".to_owned();
    for layout in layouts() {
        let name = ident(layout.module, layout.name);
        let _ = writeln!(out, "  {name}_t {name}_in = '0;\n  {name}_t {name}_out;");
    }
    out.push_str("  initial begin\n");
    for layout in layouts() {
        sv_entry(&mut out, layout);
    }
    for (queue, kind, number, ..) in DOORBELLS {
        let slot = slot(queue, number);
        let code = format!("doorbell_queue_code_t'({kind})");
        sv_check(
            &mut out,
            &format!("doorbell_slot({code}, 24'd{number})"),
            &format!("9'd{slot}"),
            "slot",
        );
    }
    for (index, log2_entries) in PHASES {
        let phase = u8::from(expected_phase(index, log2_entries));
        let call = format!("expected_phase(32'd{index}, 5'd{log2_entries})");
        sv_check(&mut out, &call, &format!("1'd{phase}"), "phase");
    }
    out.push_str("    if (errors == 0) $display(\"ALL SAME\");\n    $finish;\n  end\nendmodule\n");
    out
}

fn sv_check(out: &mut String, found: &str, wanted: &str, what: &str) {
    let _ = writeln!(
        out,
        "    if ({found} !== {wanted}) begin errors++; $display(\"{what}: %h\", {found}); end"
    );
}

fn sv_entry(out: &mut String, layout: &Layout) {
    let name = ident(layout.module, layout.name);
    let bits = layout.bytes * 8;
    let little_endian: Vec<u8> = bytes(layout).into_iter().rev().collect();
    let wanted = format!("{bits}'h{}", hex(&little_endian));
    let _ = writeln!(out, "    {name}_out = {name}_t'({wanted});");
    for field in layout.all_fields() {
        let value: Vec<u8> = sample(field).into_iter().rev().collect();
        let value = format!("{}'h{}", field.size * 8, hex(&value));
        let member = format!("{name}_in.{}", field.name);
        match field.codes.filter(|codes| !codes.flags) {
            Some(codes) => {
                let _ = writeln!(
                    out,
                    "    {member} = {}_t'({value});",
                    ident(codes.module, codes.name)
                );
            }
            None => {
                let _ = writeln!(out, "    {member} = {value};");
            }
        }
        sv_check(
            out,
            &format!("{name}_out.{}", field.name),
            &value,
            &format!("{name}.{}", field.name),
        );
    }
    sv_check(out, &format!("{name}_in"), &wanted, &name);
}
