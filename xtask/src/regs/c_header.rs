//! The C header: offsets, masks, codes, and the entries as structures.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use fpga_regs::{Codes, Field, Layout, Register, RegisterBlock, Word};

use super::GENERATED;
use super::names::{
    blocks, codes, comment, constants, ident, layouts, place_ident, snake, upper, words,
};

const HEAD: &str = include_str!("c_header/head.h");
const TAIL: &str = include_str!("c_header/tail.h");

/// The header's text.
pub fn generate() -> Result<String> {
    let head = format!("/* {GENERATED} */\n{HEAD}");
    let mut out = head.clone();
    section(&mut out, "Numbers");
    for constant in constants() {
        let name = ident(constant.module, constant.name);
        define(&mut out, &name, constant.value, &comment(constant.module, constant.doc));
    }
    for block in blocks() {
        registers(&mut out, block);
    }
    section(&mut out, "Bit fields of registers and other words");
    words().into_iter().for_each(|word| masks(&mut out, word));
    section(&mut out, "Codes and flags");
    codes().into_iter().for_each(|codes| values(&mut out, codes));
    section(&mut out, "Entries of rings and commands, in memory");
    layouts().for_each(|layout| structure(&mut out, layout));
    out.push_str(TAIL);
    no_name_twice(out.strip_prefix(&head).unwrap_or(&out))?;
    Ok(out)
}

fn no_name_twice(text: &str) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in text.lines().filter_map(|line| line.strip_prefix("#define ")) {
        let name = name.split([' ', '(']).next().unwrap_or_default();
        ensure!(seen.insert(name), "the C header would define {name} twice");
    }
    Ok(())
}

fn section(out: &mut String, title: &str) {
    let _ = writeln!(out, "\n/* {title} */\n");
}

fn note(out: &mut String, text: &str) {
    let _ = writeln!(out, "/* {} */", text.replace("*/", "* /"));
}

fn define(out: &mut String, name: &str, value: u64, text: &str) {
    if !text.is_empty() {
        note(out, text);
    }
    let name = upper(name);
    if u32::try_from(value).is_ok() {
        let _ = writeln!(out, "#define BALBOA_{name} {value:#x}u");
    } else {
        let _ = writeln!(out, "#define BALBOA_{name} UINT64_C({value:#x})");
    }
}

fn registers(out: &mut String, block: &RegisterBlock) {
    section(out, &format!("{}: {}", block.title, comment(block.module, block.doc)));
    for place in block.places {
        let base = place_ident(block, place);
        let name = |what: &str| format!("{base}_{what}");
        define(out, &name("bar"), place.bar.number().into(), "");
        define(out, &name("base"), place.base, "");
        if place.count > 1 {
            define(out, &name("stride"), place.stride, "");
            define(out, &name("count"), place.count, "");
        }
    }
    for register in block.registers {
        offsets(out, block, register);
    }
}

fn offsets(out: &mut String, block: &RegisterBlock, register: &Register) {
    let name = ident(block.module, register.name);
    let access = format!("{:?}", register.access);
    let text = format!("{access}. {}", comment(block.module, register.doc));
    define(out, &name, register.offset, &text);
    if let Some(was) = register.was {
        define(out, &format!("{name}_before_2026"), was, "");
    }
    if register.count > 1 {
        define(out, &format!("{name}_stride"), register.stride, "");
        define(out, &format!("{name}_count"), register.count, "");
    }
}

fn masks(out: &mut String, word: &Word) {
    let name = ident(word.module, word.name);
    note(out, &format!("{name}: {}", comment(word.module, word.doc)));
    for field in word.fields {
        let field_name = format!("{name}_{}", field.name);
        define(out, &format!("{field_name}_mask"), field.mask(), &comment(word.module, field.doc));
        define(out, &format!("{field_name}_shift"), field.low.into(), "");
    }
}

fn values(out: &mut String, codes: &Codes) {
    let name = ident(codes.module, codes.name);
    note(out, &comment(codes.module, codes.doc));
    if codes.flags {
        for flag in codes.values {
            let text = comment(codes.module, flag.doc);
            define(out, &format!("{name}_{}", snake(flag.name)), flag.value, &text);
        }
        return;
    }
    let _ = writeln!(out, "enum balboa_{name} {{");
    for value in codes.values {
        let _ = writeln!(out, "    /* {} */", comment(codes.module, value.doc));
        let code = upper(&format!("{name}_{}", snake(value.name)));
        let _ = writeln!(out, "    BALBOA_{code} = {},", value.value);
    }
    let _ = writeln!(out, "}};");
}

fn structure(out: &mut String, layout: &Layout) {
    let name = format!("balboa_{}", ident(layout.module, layout.name));
    let fields = layout.all_fields();
    note(out, &comment(layout.module, layout.doc));
    let _ = writeln!(out, "struct {name} {{");
    let mut at = 0;
    for field in &fields {
        reserved(out, at, field.offset);
        let _ = writeln!(out, "    /* {} */", comment(layout.module, field.doc));
        let _ = writeln!(out, "    {}", member(field));
        at = field.offset + field.size;
    }
    reserved(out, at, layout.bytes);
    let _ = writeln!(out, "}};");
    let _ = writeln!(
        out,
        "BALBOA_ASSERT(sizeof(struct {name}) == {}, \"size of {name}\");",
        layout.bytes
    );
    for field in &fields {
        let _ = writeln!(
            out,
            "BALBOA_ASSERT(offsetof(struct {name}, {0}) == {1:#x}, \"{name}.{0}\");",
            field.name, field.offset
        );
    }
}

fn reserved(out: &mut String, from: usize, to: usize) {
    if to > from {
        let _ = writeln!(out, "    uint8_t reserved_{from:02x}[{}];", to - from);
    }
}

fn member(field: &Field) -> String {
    let Field { name, size, .. } = field;
    match (field.raw, size) {
        (true, _) => format!("uint8_t {name}[{size}];"),
        (false, 1) => format!("uint8_t {name};"),
        (false, _) => format!("balboa_le{} {name};", size * 8),
    }
}
