//! docs/card-contract.md and its chapters: prose from templates, tables and bytes from the crate.
//!
//! A line `{{table name}}` of a template is replaced. A declaration of the crate that no template shows
//! is an error, and so is a table that does not exist.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use fpga_regs::coyote::pci::Bar;
use fpga_regs::engine::admin::COUNTERS;
use fpga_regs::engine::qp::QpType;
use fpga_regs::engine::transition::transitions;
use fpga_regs::{
    Access, BitField, Codes, Describe as _, Layout, Register, RegisterBlock, View, Word,
};

use super::names::{bit_range, blocks, codes, constants, ident, layouts, module, sentence, words};
use super::{GENERATED, examples};

/// The page that begins the document, in docs/, and the folder of the others beside it.
const FIRST: &str = "docs/card-contract.md";
const FOLDER: &str = "docs/card-contract";

/// The pages of the folder, in their order: the name, and the template.
const CHAPTERS: [(&str, &str); 10] = [
    ("shell.md", include_str!("document/shell.md")),
    ("window.md", include_str!("document/window.md")),
    ("queues.md", include_str!("document/queues.md")),
    ("completions.md", include_str!("document/completions.md")),
    ("admin.md", include_str!("document/admin.md")),
    ("queue-pairs.md", include_str!("document/queue-pairs.md")),
    ("sequences.md", include_str!("document/sequences.md")),
    ("tunnel.md", include_str!("document/tunnel.md")),
    ("examples.md", include_str!("document/examples.md")),
    ("building.md", include_str!("document/building.md")),
];

/// The document's pages: the path of each from the workspace's root, and its text.
///
/// # Errors
/// When a template names a missing item, or when no template shows an item.
pub fn generate() -> Result<Vec<(String, String)>> {
    let mut shown = BTreeSet::new();
    let mut pages =
        vec![(FIRST.to_owned(), page(include_str!("document/overview.md"), &mut shown)?)];
    for (name, template) in CHAPTERS {
        pages.push((format!("{FOLDER}/{name}"), page(template, &mut shown)?));
    }
    complete(&shown)?;
    Ok(pages)
}

/// A template with its tables in their places, whose names go to `shown`.
fn page(template: &str, shown: &mut BTreeSet<String>) -> Result<String> {
    let mut out = format!("<!-- {GENERATED} -->\n\n");
    for line in template.lines() {
        match line.strip_prefix("{{").and_then(|it| it.strip_suffix("}}")) {
            Some(directive) => {
                out.push_str(&table(directive)?);
                shown.insert(directive.to_owned());
            }
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    Ok(out)
}

/// The chapters by their titles, as a list of links from the first page.
fn chapters() -> String {
    let title = |text: &str| text.lines().next().unwrap_or_default().replace("# ", "");
    let mut out = String::new();
    for (name, template) in CHAPTERS {
        let _ = writeln!(out, "- [{}](card-contract/{name})", title(template));
    }
    out
}

/// Fails when an item that the crate declares has no place in a template.
fn complete(shown: &BTreeSet<String>) -> Result<()> {
    let blocks = fpga_regs::engine::BLOCKS.iter().map(|it| ("registers", it.module, it.name));
    let layouts = layouts().map(|it| ("entry", it.module, it.name));
    let words = fpga_regs::engine::WORDS.iter().map(|it| ("word", it.module, it.name));
    let codes = fpga_regs::engine::CODES.iter().copied().flatten();
    let codes = codes.map(|it| ("codes", it.module, it.name));
    let declared = blocks.chain(layouts).chain(words).chain(codes);
    let declared = declared.map(|(kind, path, name)| format!("{kind} {}", ident(path, name)));
    let transitions = transports().map(|(name, _)| format!("transitions {name}"));
    for directive in declared.chain(transitions) {
        if !shown.contains(&directive) {
            bail!("no template shows {{{{{directive}}}}}");
        }
    }
    for constant in constants() {
        let directive = format!("constants {}", module(constant.module));
        if !shown.contains(&directive) {
            bail!("no template shows {{{{{directive}}}}}");
        }
    }
    Ok(())
}

fn table(directive: &str) -> Result<String> {
    let (what, name) = directive.split_once(' ').unwrap_or((directive, ""));
    let missing = || format!("a template asks for {{{{{directive}}}}}, which does not exist");
    Ok(match what {
        "chapters" => chapters(),
        "bars" => bars(),
        "shell" => shell(),
        "registers" => {
            let found = blocks().find(|it| ident(it.module, it.name) == name);
            registers(found.with_context(missing)?)
        }
        "entry" => {
            let found = layouts().find(|it| ident(it.module, it.name) == name);
            entry(found.with_context(missing)?)
        }
        "word" => {
            let found = words().into_iter().find(|it| ident(it.module, it.name) == name);
            word(found.with_context(missing)?)
        }
        "codes" => {
            let found = codes().into_iter().find(|it| ident(it.module, it.name) == name);
            values(found.with_context(missing)?)
        }
        "constants" => numbers(name),
        "transitions" => {
            let found = transports().find(|it| it.0 == name);
            changes(found.with_context(missing)?.1)
        }
        "counters" => counters(),
        "example" => examples::example(name).with_context(missing)?,
        _ => bail!(missing()),
    })
}

fn bars() -> String {
    let mut out = "| BAR | bytes | contents |\n|---|---|---|\n".to_owned();
    for (bar, contents) in [
        (Bar::Static, "static layer, 32-bit registers"),
        (Bar::Xdma, "XDMA core, 32-bit registers; MSI-X table and pending bits"),
        (Bar::Shell, "shell and vFPGAs, 64-bit registers"),
    ] {
        let _ = writeln!(out, "| {} | {} | {contents} |", bar.number(), number(bar.size()));
    }
    out
}

/// Every block of the shell, each with the codes its registers use.
fn shell() -> String {
    let mut out = String::new();
    let mut shown = BTreeSet::new();
    for block in fpga_regs::coyote::BLOCKS {
        let _ = writeln!(out, "\n## {}\n", block.title);
        out.push_str(&registers(block));
        let views = block.registers.iter().flat_map(|register| register.views);
        for codes in views.flat_map(|view| view.word.fields).filter_map(|field| field.codes) {
            if shown.insert(ident(codes.module, codes.name)) {
                out.push('\n');
                out.push_str(&values(codes));
            }
        }
    }
    out
}

/// Decimal where it is short, else hexadecimal.
fn number(value: u64) -> String {
    if value < 4096 { value.to_string() } else { format!("{value:#x}") }
}

/// A cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn registers(block: &RegisterBlock) -> String {
    let mut out = format!("{}\n\n", sentence(block.module, block.doc));
    for place in block.places {
        let name = if place.name.is_empty() { String::new() } else { format!(" ({})", place.name) };
        let base = format!("BAR{} + {:#x}", place.bar.number(), place.base);
        let _ = match place.count {
            0 | 1 => writeln!(out, "- Base{name}: {base}"),
            count => writeln!(
                out,
                "- Base{name}: {base} + *i* × {:#x}, *i* from 0 to {}",
                place.stride,
                count - 1
            ),
        };
    }
    let _ =
        writeln!(out, "- Registers of {} bits. Source: {}.\n", block.word_bytes * 8, block.source);
    let moved = block.registers.iter().any(|it| it.was.is_some() || it.only.is_some());
    let before = if moved { " before 2026 |" } else { "" };
    let dashes = if moved { "---|" } else { "" };
    let _ = writeln!(out, "| offset |{before} bits | name | access | reset | meaning |");
    let _ = writeln!(out, "|---|{dashes}---|---|---|---|---|");
    for register in block.registers {
        row(&mut out, block, register, moved);
        for view in register.views {
            // Fields taken from another register are the written ones, if reads have their own.
            let half = match (view.view, register.access) {
                (View::Both, Access::WR) | (View::Write, _) => "written",
                (View::Both, _) => "",
                (View::Read, _) => "read",
            };
            for field in view.word.fields {
                field_row(&mut out, view.word, field, half, moved);
            }
        }
    }
    out
}

fn row(out: &mut String, block: &RegisterBlock, register: &Register, moved: bool) {
    use fpga_regs::coyote::shell::Map;
    let at = |map| register.at(map).map_or("–".to_owned(), |offset| format!("{offset:#05x}"));
    let before = if moved { format!(" {} |", at(Map::Before2026)) } else { String::new() };
    let (array, stride) = if register.count > 1 {
        let stride = format!(" One every {:#x} bytes.", register.stride);
        (format!("[{}]", register.count), stride)
    } else {
        Default::default()
    };
    let unit = unit(register.unit);
    let source = if register.source.is_empty() {
        String::new()
    } else {
        format!(" Source: {}.", register.source)
    };
    let reset = register.reset.map_or_else(String::new, |reset| format!("{reset:#x}"));
    let meaning = cell(&sentence(block.module, register.doc));
    let _ = writeln!(
        out,
        "| {} |{before} | **{}**{array} | {} | {reset} | {meaning}{unit}{stride}{source} |",
        at(Map::Since2026),
        register.name,
        access(register.access),
    );
}

fn unit(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" Unit: {unit}.") }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::RO => "RO",
        Access::RW => "RW",
        Access::WO => "WO",
        Access::W1S => "W1S",
        Access::W1C => "W1C",
        Access::WR => "W/R",
    }
}

fn field_row(out: &mut String, word: &Word, field: &BitField, half: &str, moved: bool) {
    let before = if moved { " |" } else { "" };
    let meaning = field_meaning(word.module, field.doc, field.unit, field.codes);
    let _ =
        writeln!(out, "| |{before} {} | {} | {half} | | {meaning} |", bit_range(field), field.name);
}

fn field_meaning(path: &str, doc: &str, unit_name: &str, codes: Option<&Codes>) -> String {
    let codes = codes.map_or_else(String::new, |codes| {
        let what = if codes.flags { "Flags" } else { "A code" };
        format!(" {what}: `{}`.", ident(codes.module, codes.name))
    });
    format!("{}{}{codes}", cell(&sentence(path, doc)), unit(unit_name))
}

fn entry(layout: &Layout) -> String {
    let mut out = format!(
        "**`{}`** ({} bytes): {}\n\n",
        ident(layout.module, layout.name),
        layout.bytes,
        sentence(layout.module, layout.doc)
    );
    out.push_str("| offset | bytes | field | meaning |\n|---|---|---|---|\n");
    for field in layout.all_fields() {
        let inherited =
            layout.head.filter(|head| head.fields.iter().any(|it| std::ptr::eq(it, field)));
        let path = inherited.map_or(layout.module, |head| head.module);
        let meaning = field_meaning(path, field.doc, "", field.codes);
        let raw = if field.raw { " Raw bytes." } else { "" };
        let _ = writeln!(
            out,
            "| {:#04x} | {} | {} | {meaning}{raw} |",
            field.offset, field.size, field.name
        );
    }
    out
}

fn word(word: &Word) -> String {
    let mut out = format!(
        "**`{}`** ({} bits): {}\n\n| bits | field | meaning |\n|---|---|---|\n",
        ident(word.module, word.name),
        word.bits,
        sentence(word.module, word.doc)
    );
    for field in word.fields {
        let meaning = field_meaning(word.module, field.doc, field.unit, field.codes);
        let _ = writeln!(out, "| {} | {} | {meaning} |", bit_range(field), field.name);
    }
    out
}

fn values(codes: &Codes) -> String {
    let kind = if codes.flags { "flags" } else { "code" };
    let mut out = format!(
        "**`{}`** ({kind}, {} bits): {}\n\n",
        ident(codes.module, codes.name),
        codes.bits,
        sentence(codes.module, codes.doc)
    );
    let column = if codes.flags { "bit" } else { "value" };
    let _ = writeln!(out, "| {column} | name | meaning |\n|---|---|---|");
    for value in codes.values {
        let shown = if codes.flags { u64::from(value.value.trailing_zeros()) } else { value.value };
        let meaning = cell(&sentence(codes.module, value.doc));
        let _ = writeln!(out, "| {shown} | {} | {meaning} |", value.name);
    }
    out
}

fn numbers(name: &str) -> String {
    let mut out = "| name | value | meaning |\n|---|---|---|\n".to_owned();
    for constant in constants().filter(|it| module(it.module) == name) {
        let meaning = cell(&sentence(constant.module, constant.doc));
        let _ = writeln!(out, "| {} | {} | {meaning} |", constant.name, number(constant.value));
    }
    out
}

/// The transports that have transitions, by name.
fn transports() -> impl Iterator<Item = (&'static str, QpType)> {
    let kinds = QpType::CODES.into_iter().flat_map(|codes| codes.values);
    kinds
        .map(|code| (code.name, QpType::from_raw(code.value)))
        .filter(|(_, kind)| !transitions(*kind).is_empty())
        // It changes as a UD QP does.
        .filter(|(_, kind)| *kind != QpType::Gsi)
}

fn changes(kind: QpType) -> String {
    let mut out = "| from | to | required | optional |\n|---|---|---|---|\n".to_owned();
    for row in transitions(kind) {
        let (from, to) = (row.from, row.to);
        let (required, optional) = (row.required.names(), row.optional.names());
        let _ = writeln!(out, "| {from:?} | {to:?} | {required} | {optional} |");
    }
    out
}

fn counters() -> String {
    let mut out =
        "| offset | counter | offset | counter | offset | counter |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let cells: Vec<String> =
        COUNTERS.iter().enumerate().map(|(i, name)| format!("{:#05x} | {name}", i * 8)).collect();
    for line in cells.chunks(3) {
        let _ = writeln!(out, "| {} |{}", line.join(" | "), " | |".repeat(3 - line.len()));
    }
    out
}
