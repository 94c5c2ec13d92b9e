//! `docs/cm.md` and the crate agree: each requirement is met somewhere and shown by some test.
//!
//! A requirement is a list item `- **CM-n** (chapters) text` of the document. Comments of the sources
//! cite it where it is met; the doc comment of a test cites it where it is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENT: &str = "../docs/cm.md";

/// Where something is cited: file and line.
type Places = BTreeMap<u32, Vec<String>>;

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

/// The requirements that a text cites; "CM-1 to CM-3" are three.
fn numbers(text: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("CM-") {
        let range = rest[..at].ends_with(" to ");
        rest = &rest[at + 3..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let Ok(number) = rest[..end].parse() else { continue };
        let first = if range { numbers.last().map_or(number, |last| last + 1) } else { number };
        numbers.extend(first..=number);
    }
    numbers
}

/// The requirements of the document in their order: number and chapters.
fn requirements() -> Vec<(u32, String)> {
    let text = read(&root().join(DOCUMENT));
    let split = |item: &str| {
        let (name, rest) = item.split_once("** (")?;
        let (chapters, _) = rest.split_once(") ")?;
        Some((*numbers(name).first()?, chapters.to_owned()))
    };
    let items = text.lines().filter(|line| line.starts_with("- **CM-"));
    items.map(|item| split(item).unwrap_or_else(|| panic!("{item}: no requirement"))).collect()
}

/// Citations in code, and in the doc comments of tests; and those that are neither.
fn citations() -> (Places, Places, Vec<String>) {
    let (mut code, mut tests, mut stray) = (Places::new(), Places::new(), Places::new());
    for path in rust_files("src").iter().chain(&rust_files("tests")) {
        if path.ends_with("requirements.rs") {
            continue;
        }
        let text = read(path);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let is_test = path.starts_with(root().join("tests")) || path.ends_with("tests.rs");
        let unit_tests = lines.iter().position(|line| line.starts_with("#[cfg(test)]"));
        let end_of_code = if is_test { 0 } else { unit_tests.unwrap_or(lines.len()) };
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
            let name = path.strip_prefix(root()).unwrap_or(path).display();
            for number in numbers(line) {
                places.entry(number).or_default().push(format!("{name}:{}", index + 1));
            }
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
    for (place, (number, chapters)) in (1..).zip(requirements()) {
        assert_eq!(number, place, "CM-{number} is out of its place");
        for chapter in chapters.split(", ") {
            let digits = chapter.trim_start_matches('A').split('.');
            let is_chapter = digits.clone().count() <= 4
                && digits.clone().all(|part| !part.is_empty() && part.parse::<u8>().is_ok());
            assert!(is_chapter, "CM-{number}: {chapter} is no chapter");
        }
    }
}

#[test]
fn every_requirement_is_met_in_code_and_shown_by_a_test_and_no_other_is_cited() {
    let known: BTreeSet<u32> = requirements().into_iter().map(|(number, _)| number).collect();
    assert!(known.len() > 40, "only {} requirements found", known.len());
    let (code, tests, mut faults) = citations();
    for fault in &mut faults {
        fault.push_str(": cited neither in a comment of code nor in the doc comment of a test");
    }
    for number in &known {
        if !code.contains_key(number) {
            faults.push(format!("CM-{number}: no code cites it"));
        }
        if !tests.contains_key(number) {
            faults.push(format!("CM-{number}: no test cites it"));
        }
    }
    for (number, places) in code.iter().chain(&tests) {
        if !known.contains(number) {
            faults.push(format!("CM-{number}: not in {DOCUMENT}, cited at {}", places.join(", ")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
