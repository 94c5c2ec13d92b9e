//! docs/conformance.md: which of the tests pass, and why the others are skipped.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use terminal::report;

use super::{Counts, Outcome, Tests};
use crate::cargo::root;

const PAGE: &str = "docs/conformance.md";

/// Writes the tests of a run into the page; its parts about other releases stay.
///
/// # Errors
/// When it cannot be read or written.
pub fn update(releases: &[(Counts, Tests)]) -> Result<()> {
    let file = root().join(PAGE);
    let known = fs::read_to_string(&file).with_context(|| format!("cannot read {PAGE}"))?;
    let mut sections = sections(&known);
    sections
        .extend(releases.iter().map(|(counts, tests)| (counts.release, section(counts, tests))));
    let text: String = std::iter::once(HEAD.to_owned()).chain(sections.into_values()).collect();
    fs::write(&file, text).with_context(|| format!("cannot write {PAGE}"))?;
    report!("wrote {PAGE}");
    Ok(())
}

const HEAD: &str = "\
# Conformance

rdma-core's own tests of verbs and rdma_cm, pyverbs, as releases of Debian ship them, unmodified, on a software card,
each with its release's own libibverbs, librdmacm and Python. `cargo xtask conformance` runs them, and writes this page.
It gives them the card's IP address, which they would take from its network device. rdma-core 50 is Ubuntu's, and
built of its source ([testing.md](testing-releases.md#other-releases-of-rdma-core)).
";
/// The start of a release's section.
const TITLE: &str = "\n## rdma-core ";

/// The page's sections by their releases, from their titles on.
fn sections(page: &str) -> BTreeMap<u32, String> {
    let sections = page.split(TITLE).skip(1);
    let section = |text: &str| Some((text.lines().next()?.parse().ok()?, format!("{TITLE}{text}")));
    sections.filter_map(section).collect()
}

fn section(counts: &Counts, tests: &Tests) -> String {
    let mut text = format!("{TITLE}{}\n\n**{counts}.**\n\n", counts.release);
    text.push_str("| | reason | tests |\n|---|---|---|\n");
    for ((outcome, reason), modules) in rows(tests) {
        let list = modules.iter().map(|(module, tests)| {
            // Failures are named.
            let names =
                if outcome >= Outcome::Failed { tests.join(", ") } else { tests.len().to_string() };
            format!("{module} ({names})")
        });
        let list = list.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "| {} | {reason} | {list} |", word(outcome));
    }
    text
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Skipped => "skipped",
        Outcome::Failed => "failed",
        Outcome::Found | Outcome::Error => "error",
    }
}

/// The tests' names by their modules, by outcome and reason.
type Rows<'a> = BTreeMap<(Outcome, String), BTreeMap<&'a str, Vec<&'a str>>>;

fn rows(tests: &Tests) -> Rows<'_> {
    let mut rows = Rows::new();
    for (name, judged) in tests {
        let (module, test) = parts(name);
        let reason = if judged.outcome == Outcome::Passed { "" } else { judged.text.trim() };
        let reason = reason.lines().last().unwrap_or_default().replace('|', "\\|");
        let modules = rows.entry((judged.outcome, reason)).or_default();
        modules.entry(module).or_default().push(test);
    }
    rows
}

/// A test's module, and its name without its class.
fn parts(name: &str) -> (&str, &str) {
    let name = name.strip_prefix("tests.").unwrap_or(name);
    let module = name.split('.').next().unwrap_or(name);
    (module, name.rsplit('.').next().unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Judged;

    #[test]
    fn a_release_has_a_row_for_each_reason_with_its_modules() {
        let judged = |outcome, text: &str| Judged { outcome, text: text.into() };
        let skipped = |text: &str| judged(Outcome::Skipped, text);
        let tests = Tests::from([
            ("tests.test_a.A.test_one".into(), skipped("no | here")),
            ("tests.test_a.B.test_two".into(), skipped("no | here")),
            ("tests.test_b.B.test_two".into(), skipped("no | here")),
            ("tests.test_b.B.test_three".into(), judged(Outcome::Failed, "a\nbad")),
            ("tests.test_c.B.test_four".into(), judged(Outcome::Passed, "")),
        ]);
        let counts = Counts { release: 44, passed: 1, skipped: 3, failed: 1, errors: 0 };
        let text = section(&counts, &tests);
        assert!(text.contains("## rdma-core 44\n\n**1 passed, 3 skipped, 1 failed"), "{text}");
        assert!(text.contains("| passed |  | test_c (1) |\n"), "{text}");
        assert!(text.contains("| skipped | no \\| here | test_a (2), test_b (1) |\n"), "{text}");
        assert!(text.contains("| failed | bad | test_b (test_three) |\n"), "{text}");
    }

    #[test]
    fn a_page_is_its_releases() {
        let page = format!("{HEAD}{TITLE}44\n\none\n{TITLE}56\n\ntwo\n");
        let sections = sections(&page);
        assert_eq!(sections.keys().collect::<Vec<_>>(), [&44, &56]);
        let all: String = std::iter::once(HEAD.to_owned()).chain(sections.into_values()).collect();
        assert_eq!(all, page);
    }
}
