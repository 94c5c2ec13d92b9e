//! The SystemVerilog package: offsets, codes, and packed structures.

use std::fmt::Write as _;

use anyhow::Result;
use fpga_regs::{BitField, Codes, Field, Layout, Register, RegisterBlock, Word};

use super::GENERATED;
use super::names::{
    blocks, codes, comment, constants, ident, layouts, place_ident, snake, upper, words,
};

const HEAD: &str = include_str!("sv_package/head.sv");
const TAIL: &str = include_str!("sv_package/tail.sv");

/// The package's text.
pub fn generate() -> Result<String> {
    let mut out = format!("// {GENERATED}\n{HEAD}");
    section(&mut out, "Numbers");
    for constant in constants() {
        let name = ident(constant.module, constant.name);
        parameter(&mut out, &name, constant.value, &comment(constant.module, constant.doc));
    }
    for block in blocks() {
        registers(&mut out, block);
    }
    section(&mut out, "Codes and flags");
    codes().into_iter().for_each(|codes| values(&mut out, codes));
    section(&mut out, "Words of bit fields");
    words().into_iter().for_each(|word| packed_word(&mut out, word));
    section(&mut out, "Entries of rings and commands");
    layouts().for_each(|layout| packed_entry(&mut out, layout));
    out.push_str(TAIL);
    Ok(out)
}

fn section(out: &mut String, title: &str) {
    let _ = writeln!(out, "\n  // ---- {title}\n");
}

fn note(out: &mut String, text: &str) {
    if !text.is_empty() {
        let _ = writeln!(out, "  // {text}");
    }
}

fn parameter(out: &mut String, name: &str, value: u64, text: &str) {
    note(out, text);
    let bits = if u32::try_from(value).is_ok() { 32 } else { 64 };
    let high = bits - 1;
    let _ = writeln!(out, "  localparam logic [{high}:0] {} = {bits}'h{value:x};", upper(name));
}

fn registers(out: &mut String, block: &RegisterBlock) {
    section(out, &format!("{}: {}", block.title, comment(block.module, block.doc)));
    for place in block.places {
        let base = place_ident(block, place);
        parameter(out, &format!("{base}_base"), place.base, "");
        if place.count > 1 {
            parameter(out, &format!("{base}_stride"), place.stride, "");
            parameter(out, &format!("{base}_count"), place.count, "");
        }
    }
    for register in block.registers {
        offsets(out, block, register);
    }
}

fn offsets(out: &mut String, block: &RegisterBlock, register: &Register) {
    let name = ident(block.module, register.name);
    let text = format!("{:?}. {}", register.access, comment(block.module, register.doc));
    parameter(out, &name, register.offset, &text);
    if let Some(was) = register.was {
        parameter(out, &format!("{name}_before_2026"), was, "");
    }
    if register.count > 1 {
        parameter(out, &format!("{name}_stride"), register.stride, "");
        parameter(out, &format!("{name}_count"), register.count, "");
    }
    if let Some(reset) = register.reset {
        let bits = block.word_bytes * 8;
        let reset_name = upper(&format!("{name}_reset_value"));
        let _ =
            writeln!(out, "  localparam logic [{}:0] {reset_name} = {bits}'h{reset:x};", bits - 1);
    }
}

fn values(out: &mut String, codes: &Codes) {
    let name = ident(codes.module, codes.name);
    note(out, &comment(codes.module, codes.doc));
    if codes.flags {
        for flag in codes.values {
            let high = codes.bits - 1;
            let flag_name = upper(&format!("{name}_{}", snake(flag.name)));
            note(out, &comment(codes.module, flag.doc));
            let _ = writeln!(
                out,
                "  localparam logic [{high}:0] {flag_name} = {}'h{:x};",
                codes.bits, flag.value
            );
        }
        return;
    }
    let _ = writeln!(out, "  typedef enum logic [{}:0] {{", codes.bits - 1);
    for (i, value) in codes.values.iter().enumerate() {
        let comma = if i + 1 == codes.values.len() { "" } else { "," };
        let value_name = upper(&format!("{name}_{}", snake(value.name)));
        let _ = writeln!(out, "    // {}", comment(codes.module, value.doc));
        let _ = writeln!(out, "    {value_name} = {}'d{}{comma}", codes.bits, value.value);
    }
    let _ = writeln!(out, "  }} {name}_t;");
}

/// A member of a packed structure: its lowest bit, its bits, its type and name.
struct Member {
    low: usize,
    bits: usize,
    kind: String,
    name: String,
    text: String,
}

fn logic(bits: usize) -> String {
    if bits == 1 { "logic".to_owned() } else { format!("logic [{}:0]", bits - 1) }
}

/// The type of a field: an enumeration where the field is as wide as one.
fn kind(bits: usize, codes: Option<&Codes>) -> String {
    match codes {
        Some(codes) if !codes.flags && codes.bits as usize == bits => {
            format!("{}_t", ident(codes.module, codes.name))
        }
        _ => logic(bits),
    }
}

fn packed_word(out: &mut String, word: &Word) {
    let member = |field: &BitField| {
        let bits = (field.high - field.low + 1) as usize;
        Member {
            low: field.low as usize,
            bits,
            kind: kind(bits, field.codes),
            name: field.name.to_owned(),
            text: comment(word.module, field.doc),
        }
    };
    note(out, &comment(word.module, word.doc));
    let members = word.fields.iter().map(member).collect();
    packed(out, &ident(word.module, word.name), word.bits as usize, members);
}

fn packed_entry(out: &mut String, layout: &Layout) {
    let member = |field: &&Field| Member {
        low: field.offset * 8,
        bits: field.size * 8,
        kind: kind(field.size * 8, field.codes.filter(|_| !field.raw)),
        name: field.name.to_owned(),
        text: comment(layout.module, field.doc),
    };
    note(out, &comment(layout.module, layout.doc));
    let members = layout.all_fields().iter().map(member).collect();
    packed(out, &ident(layout.module, layout.name), layout.bytes * 8, members);
}

/// A packed structure; the first member is the highest, so they come in falling order.
fn packed(out: &mut String, name: &str, bits: usize, members: Vec<Member>) {
    let _ = writeln!(out, "  typedef struct packed {{");
    let mut top = bits;
    for member in members.into_iter().rev() {
        gap(out, member.low + member.bits, top);
        let _ = writeln!(
            out,
            "    // [{}:{}] {}",
            member.low + member.bits - 1,
            member.low,
            member.text
        );
        let _ = writeln!(out, "    {} {};", member.kind, member.name);
        top = member.low;
    }
    gap(out, 0, top);
    let _ = writeln!(out, "  }} {name}_t;");
}

fn gap(out: &mut String, low: usize, top: usize) {
    if top > low {
        let _ = writeln!(out, "    {} reserved_{low};", logic(top - low));
    }
}
