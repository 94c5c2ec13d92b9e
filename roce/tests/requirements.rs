//! `docs/transport.md` and the crate agree: each requirement is met somewhere and shown by some test.
//!
//! A requirement is a list item `- **RC-n** (chapters) text` of the document, of Reliable Connection,
//! `UC-n`, of Unreliable Connection, `UD-n`, of Unreliable Datagram, or `XRC-n`, of XRC. Comments of the sources cite it where
//! it is met; the doc comment of a test cites it where it is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENT: &str = "../docs/transport.md";

/// The transport services with requirements.
const SERVICES: [&str; 4] = ["RC", "UC", "UD", "XRC"];

/// A requirement: its service, and its number.
type Name = (&'static str, u32);

/// Where something is cited: file and line.
type Places = BTreeMap<Name, Vec<String>>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Rust file below a folder of the crate, by name.
fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The requirements that a text cites.
fn names(text: &str) -> impl Iterator<Item = Name> {
    SERVICES.into_iter().flat_map(move |service| {
        text.match_indices(service).filter_map(move |(at, _)| {
            if text[..at].ends_with(|c: char| c.is_ascii_alphanumeric()) {
                return None;
            }
            let rest = text[at + service.len()..].strip_prefix('-')?;
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            Some((service, rest[..end].parse().ok()?))
        })
    })
}

/// The requirements of the document in their order: name and chapters.
fn requirements() -> Vec<(Name, String)> {
    let text = read(&root().join(DOCUMENT));
    let is_item = |line: &&str| SERVICES.iter().any(|it| line.starts_with(&format!("- **{it}-")));
    let split = |item: &str| {
        let (name, rest) = item.split_once("** (")?;
        let (chapters, _) = rest.split_once(") ")?;
        Some((names(name).next()?, chapters.to_owned()))
    };
    let items = text.lines().filter(is_item);
    items.map(|item| split(item).unwrap_or_else(|| panic!("{item}: no requirement"))).collect()
}

fn cite(places: &mut Places, path: &Path, index: usize, line: &str) {
    let name = path.strip_prefix(root()).unwrap_or(path).display();
    for name_cited in names(line) {
        places.entry(name_cited).or_default().push(format!("{name}:{}", index + 1));
    }
}

/// Citations in code, and in the doc comments of tests; and those that are neither.
fn citations() -> (Places, Places, Vec<String>) {
    let (mut code, mut tests, mut stray) = (Places::new(), Places::new(), Places::new());
    for path in rust_files("src").iter().chain(&rust_files("tests")) {
        if path.ends_with(file!()) || path.ends_with("requirements.rs") {
            continue;
        }
        let text = read(path);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let in_tests = path.starts_with(root().join("tests"));
        let unit_tests = lines.iter().position(|line| line.starts_with("#[cfg(test)]"));
        let end_of_code = if in_tests { 0 } else { unit_tests.unwrap_or(lines.len()) };
        for (index, line) in lines.iter().enumerate() {
            let places = if !line.contains("//") {
                &mut stray
            } else if index < end_of_code {
                &mut code
            } else if belongs_to_test(&lines[index..]) {
                &mut tests
            } else {
                &mut stray
            };
            cite(places, path, index, line);
        }
    }
    (code, tests, stray.into_values().flatten().collect())
}

/// Whether the first line is part of the doc comment of a test.
fn belongs_to_test(lines: &[&str]) -> bool {
    lines[0].starts_with("///")
        && lines
            .iter()
            .take_while(|line| line.starts_with("///") || line.starts_with("#["))
            .any(|line| *line == "#[test]")
}

#[test]
fn requirements_are_numbered_from_one_without_a_hole_and_name_their_chapters() {
    let mut next = BTreeMap::new();
    for ((service, number), chapters) in requirements() {
        let place = next.entry(service).or_insert(1);
        assert_eq!(number, *place, "{service}-{number} is out of its place");
        *place += 1;
        for chapter in chapters.split(", ") {
            let digits = chapter.trim_start_matches('A').split('.');
            let is_chapter = digits.clone().count() <= 4
                && digits.clone().all(|part| !part.is_empty() && part.parse::<u8>().is_ok());
            assert!(is_chapter, "{service}-{number}: {chapter} is no chapter");
        }
    }
}

#[test]
fn every_requirement_is_met_in_code_and_shown_by_a_test_and_no_other_is_cited() {
    let known: BTreeSet<Name> = requirements().into_iter().map(|(name, _)| name).collect();
    for (service, least) in [("RC", 90), ("UD", 15)] {
        let count = known.iter().filter(|name| name.0 == service).count();
        assert!(count > least, "only {count} requirements of {service} found");
    }
    let (code, tests, mut faults) = citations();
    for fault in &mut faults {
        fault.push_str(": cited neither in a comment of code nor in the doc comment of a test");
    }
    for name @ (service, number) in &known {
        if !code.contains_key(name) {
            faults.push(format!("{service}-{number}: no code cites it"));
        }
        if !tests.contains_key(name) {
            faults.push(format!("{service}-{number}: no test cites it"));
        }
    }
    for (name @ (service, number), places) in code.iter().chain(&tests) {
        if !known.contains(name) {
            let places = places.join(", ");
            faults.push(format!("{service}-{number}: not in {DOCUMENT}, cited at {places}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
