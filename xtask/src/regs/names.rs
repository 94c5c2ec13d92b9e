//! Names and sentences: from the crate's to those of the document, the header and the package.

use std::collections::BTreeSet;

use fpga_regs::{BitField, Codes, Constant, Layout, Place, RegisterBlock, Word, coyote, engine};

/// The last part of a module's path.
pub fn module(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

/// `CamelCase` and `UPPER_CASE` as `lower_case`.
pub fn snake(name: &str) -> String {
    let mut out = String::new();
    let mut before = '_';
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && before.is_ascii_lowercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
        before = letter;
    }
    out
}

/// The name of a type, a constant or a block: its own with its module's in front, unless it has it.
pub fn ident(path: &str, name: &str) -> String {
    let (module, name) = (module(path), snake(name));
    if name == module || name.starts_with(&format!("{module}_")) {
        name
    } else {
        format!("{module}_{name}")
    }
}

/// The name of a place of a block: the block's own where there is one place.
pub fn place_ident(block: &RegisterBlock, place: &Place) -> String {
    let base = ident(block.module, block.name);
    if place.name.is_empty() || block.places.len() == 1 {
        return base;
    }
    format!("{base}_{}", snake(&place.name.replace([' ', '-'], "_")))
}

/// `lower_case` as `UPPER_CASE`.
pub fn upper(name: &str) -> String {
    name.to_ascii_uppercase()
}

/// Every block of registers, shell first.
pub fn blocks() -> impl Iterator<Item = &'static RegisterBlock> {
    coyote::BLOCKS.iter().chain(engine::BLOCKS).copied()
}

/// Every word of bit fields: those of registers, then the others, each once.
pub fn words() -> Vec<&'static Word> {
    let registers = blocks().flat_map(|block| block.registers);
    let views = registers.flat_map(|register| register.views).map(|view| view.word);
    let mut seen = BTreeSet::new();
    let mut all: Vec<_> = views.chain(engine::WORDS.iter().copied()).collect();
    all.retain(|word| seen.insert(ident(word.module, word.name)));
    all
}

/// Every entry.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    engine::LAYOUTS.iter().copied()
}

/// Every set of named values: those of registers, then the others, each once.
pub fn codes() -> Vec<&'static Codes> {
    let of_fields = words().into_iter().flat_map(|word| word.fields).filter_map(|f| f.codes);
    let mut seen = BTreeSet::new();
    let mut all: Vec<_> = of_fields.chain(engine::CODES.iter().copied().flatten()).collect();
    all.retain(|codes| seen.insert(ident(codes.module, codes.name)));
    all
}

/// Every number that belongs to no entry and no register.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    coyote::CONSTANTS.iter().chain(engine::CONSTANTS).copied().flatten()
}

/// A documentation comment as plain sentences on one line, links to items turned into names.
pub fn sentence(path: &str, doc: &str) -> String {
    let one_line = doc.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out = String::new();
    let mut rest = one_line.as_str();
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((target, after)) = link.split_once("`]") else { break };
        out.push_str(before);
        out.push_str(&format!("`{}`", target_name(path, target)));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The first sentence's words without a full stop at the end, for the margin of code.
pub fn comment(path: &str, doc: &str) -> String {
    sentence(path, doc).replace('`', "")
}

/// The name of a linked item outside of the crate.
fn target_name(path: &str, target: &str) -> String {
    let parts: Vec<&str> =
        target.split("::").filter(|part| !matches!(*part, "super" | "crate" | "self")).collect();
    let types = || {
        let layouts = layouts().map(|it| (it.module, it.name));
        let words = words().into_iter().map(|it| (it.module, it.name));
        layouts.chain(words).chain(codes().into_iter().map(|it| (it.module, it.name)))
    };
    let (home, name) = match parts.as_slice() {
        [.., home, name] => (*home, *name),
        [name] => (module(path), *name),
        [] => (module(path), target),
    };
    let found = types().find(|(path, it)| *it == name && module(path) == home);
    let found = found.or_else(|| types().find(|(_, it)| *it == name));
    match found {
        Some((path, name)) => ident(path, name),
        None => name.to_owned(),
    }
}

/// `[7:4]`, or `[3]`.
pub fn bit_range(field: &BitField) -> String {
    if field.high == field.low {
        format!("[{}]", field.low)
    } else {
        format!("[{}:{}]", field.high, field.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_their_module_once() {
        assert_eq!(ident("fpga_regs::engine::cqe", "Cqe"), "cqe");
        assert_eq!(ident("fpga_regs::engine::cqe", "Status"), "cqe_status");
        assert_eq!(ident("fpga_regs::engine::admin", "AdminStatus"), "admin_status");
        assert_eq!(ident("fpga_regs::coyote::shell", "CTRL_CNFG"), "shell_ctrl_cnfg");
    }

    #[test]
    fn links_become_names() {
        let path = "fpga_regs::engine::admin";
        assert_eq!(
            sentence(path, " Makes\n [`CreateCq`]; 2^`n`.\n"),
            "Makes `admin_create_cq`; 2^`n`."
        );
        assert_eq!(sentence(path, "[`super::qp::Attributes`]"), "`qp_attributes`");
        assert_eq!(sentence("fpga_regs::engine::cqe", "[`Opcode`]"), "`cqe_opcode`");
        assert_eq!(sentence(path, "[`COUNTERS`] [`Control::enable`]"), "`COUNTERS` `enable`");
    }
}
