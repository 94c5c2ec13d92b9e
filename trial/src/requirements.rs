//! Pages of requirements, and the code and tests that meet and show them.
//!
//! A requirement is a list item `- **RC-n** (chapters) text` of a page. Comments of a crate's sources cite it where
//! it is met, and the doc comment of a test where it is shown. "RC-1 to RC-3" cites three.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A page, and the crate that is to meet it.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The crate's folder: its `CARGO_MANIFEST_DIR`.
    pub root: &'static str,
    /// The page, from there.
    pub document: &'static str,
    /// The prefixes of its requirements, each with the least number of them, so that a page which is not read is
    /// noticed.
    pub kinds: &'static [(&'static str, usize)],
}

/// A requirement: its kind, and its number.
type Name = (&'static str, u32);

/// Where something is cited: file and line.
type Places = BTreeMap<Name, Vec<String>>;

impl Page {
    /// Finds faults of the page: a number out of its place, or a chapter that does not exist.
    ///
    /// # Errors
    /// The faults, a line each.
    pub fn is_in_order(&self) -> Result<(), String> {
        let (mut next, mut faults) = (BTreeMap::new(), Vec::new());
        for ((kind, number), chapters) in self.requirements() {
            let place = next.entry(kind).or_insert(1);
            if number != *place {
                faults.push(format!("{kind}-{number} is out of its place"));
            }
            *place = number + 1;
            let odd = chapters.split(", ").filter(|chapter| !is_chapter(chapter));
            faults.extend(odd.map(|chapter| format!("{kind}-{number}: {chapter} is no chapter")));
        }
        whole(&faults)
    }

    /// Finds requirements that no code or no test cites, and citations of requirements that do not exist.
    ///
    /// # Errors
    /// The faults, a line each.
    pub fn is_met(&self) -> Result<(), String> {
        let known: BTreeSet<Name> = self.requirements().into_iter().map(|(name, _)| name).collect();
        let (code, tests, mut faults) = self.citations();
        for fault in &mut faults {
            fault.push_str(": cited neither in a comment of code nor in the doc comment of a test");
        }
        for (kind, least) in self.kinds {
            let count = known.iter().filter(|name| name.0 == *kind).count();
            if count < *least {
                faults.push(format!("only {count} requirements of {kind} found"));
            }
        }
        for name @ (kind, number) in &known {
            for (places, what) in [(&code, "code"), (&tests, "test")] {
                if !places.contains_key(name) {
                    faults.push(format!("{kind}-{number}: no {what} cites it"));
                }
            }
        }
        for (name @ (kind, number), places) in code.iter().chain(&tests) {
            if !known.contains(name) {
                let (page, places) = (self.document, places.join(", "));
                faults.push(format!("{kind}-{number}: not in {page}, cited at {places}"));
            }
        }
        whole(&faults)
    }

    /// Every Rust file below a folder of the crate, by name.
    fn rust_files(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![Path::new(self.root).join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
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

    /// The requirements that a text cites, in their order.
    fn names(&self, text: &str) -> Vec<Name> {
        let mut names: Vec<Name> = Vec::new();
        for (at, _) in text.match_indices('-') {
            let ends = |kind: &&str| {
                let before = text[..at].strip_suffix(*kind);
                before.is_some_and(|it| !it.ends_with(|c: char| c.is_ascii_alphanumeric()))
            };
            let Some(kind) = self.kinds.iter().map(|kind| kind.0).find(ends) else { continue };
            let digits = &text[at + 1..];
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            let Ok(number) = digits[..end].parse() else { continue };
            let is_range = text[..at - kind.len()].ends_with(" to ");
            let first = match names.last() {
                Some(last) if is_range && last.0 == kind => last.1 + 1,
                _ => number,
            };
            names.extend((first..=number).map(|number| (kind, number)));
        }
        names
    }

    /// The requirements of the page in their order: name and chapters.
    fn requirements(&self) -> Vec<(Name, String)> {
        let text = read(&Path::new(self.root).join(self.document));
        let is_item =
            |line: &&str| self.kinds.iter().any(|it| line.starts_with(&format!("- **{}-", it.0)));
        let split = |item: &str| {
            let (name, rest) = item.split_once("** (")?;
            let (chapters, _) = rest.split_once(") ")?;
            Some((*self.names(name).first()?, chapters.to_owned()))
        };
        let items = text.lines().filter(is_item);
        items.map(|item| split(item).unwrap_or_else(|| panic!("{item}: no requirement"))).collect()
    }

    fn cite(&self, places: &mut Places, path: &Path, index: usize, line: &str) {
        let name = path.strip_prefix(self.root).unwrap_or(path).display();
        for cited in self.names(line) {
            places.entry(cited).or_default().push(format!("{name}:{}", index + 1));
        }
    }

    /// Citations in code, and in the doc comments of tests; and those that are neither.
    fn citations(&self) -> (Places, Places, Vec<String>) {
        let (mut code, mut tests, mut stray) = (Places::new(), Places::new(), Places::new());
        for path in self.rust_files("src").iter().chain(&self.rust_files("tests")) {
            if path.ends_with("requirements.rs") {
                continue;
            }
            let text = read(path);
            let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
            let in_tests = path.starts_with(Path::new(self.root).join("tests"));
            let is_test = in_tests || path.ends_with("tests.rs");
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
                self.cite(places, path, index, line);
            }
        }
        (code, tests, stray.into_values().flatten().collect())
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn whole(faults: &[String]) -> Result<(), String> {
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// As `9.7.1` or `A17.4`.
fn is_chapter(chapter: &str) -> bool {
    let parts: Vec<&str> = chapter.trim_start_matches('A').split('.').collect();
    parts.len() <= 4 && parts.iter().all(|part| part.parse::<u8>().is_ok())
}

/// Whether the first line is part of the doc comment of a test.
fn belongs_to_test(lines: &[&str]) -> bool {
    lines[0].starts_with("///")
        && lines
            .iter()
            .take_while(|line| line.starts_with("///") || line.starts_with("#["))
            .any(|line| *line == "#[test]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page = Page { root: "", document: "", kinds: &[("RC", 1), ("XRC", 1)] };

    #[test]
    fn a_text_cites_one_or_some_and_a_longer_word_is_no_kind() {
        assert_eq!(PAGE.names("see RC-7, XRC-3 and ARC-4, RC-x"), [("RC", 7), ("XRC", 3)]);
        assert_eq!(PAGE.names("RC-1 to RC-3"), [("RC", 1), ("RC", 2), ("RC", 3)]);
        assert_eq!(PAGE.names("XRC-1 to RC-3"), [("XRC", 1), ("RC", 3)]);
        assert_eq!(PAGE.names("-1"), []);
    }

    #[test]
    fn chapters_are_numbers() {
        assert!(["9.7", "A17.4.1", "12"].iter().all(|it| is_chapter(it)));
        assert!(!["", "9.", "nine", "1.2.3.4.5"].iter().any(|it| is_chapter(it)));
    }

    #[test]
    fn only_the_doc_comment_of_a_test_belongs_to_one() {
        assert!(belongs_to_test(&["/// RC-1", "#[test]", "fn it() {"]));
        assert!(!belongs_to_test(&["/// RC-1", "fn it() {"]));
        assert!(!belongs_to_test(&["// RC-1", "#[test]"]));
    }
}
