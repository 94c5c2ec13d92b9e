//! docs/conformance.md: which of the tests pass, and why the others are skipped.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use terminal::report;

use super::{Counts, Outcome, Tests};
use crate::cargo::root;

const PAGE: &str = "docs/conformance.md";

/// Writes the page.
///
/// # Errors
/// When it cannot be written.
pub fn update(counts: &Counts, tests: &Tests) -> Result<()> {
    fs::write(root().join(PAGE), text(counts, tests))
        .with_context(|| format!("cannot write {PAGE}"))?;
    report!("wrote {PAGE}");
    Ok(())
}

fn text(counts: &Counts, tests: &Tests) -> String {
    let mut text = format!(
        "# Conformance\n\n\
        rdma-core's own tests of verbs, pyverbs, as Debian ships them, unmodified, on a software card.\n\
        `cargo xtask conformance` runs them, and writes this page.\n\n\
        rdma-core {}: **{counts}.**\n",
        counts.release
    );
    section(&mut text, "Passed", tests, Outcome::Passed);
    section(&mut text, "Skipped", tests, Outcome::Skipped);
    section(&mut text, "Failed", tests, Outcome::Failed);
    section(&mut text, "Errors", tests, Outcome::Error);
    text
}

/// The tests of one outcome, by module and reason.
fn section(text: &mut String, title: &str, tests: &Tests, outcome: Outcome) {
    let mut rows: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (name, judged) in tests.iter().filter(|(_, judged)| judged.outcome == outcome) {
        let (module, test) = parts(name);
        let reason = judged.text.trim().lines().last().unwrap_or_default();
        rows.entry((module, reason)).or_default().push(test);
    }
    if rows.is_empty() {
        return;
    }
    let has_reasons = outcome != Outcome::Passed;
    let (head, rule) = if has_reasons {
        ("| module | why | tests |", "|---|---|---|")
    } else {
        ("| module | tests |", "|---|---|")
    };
    let _ = writeln!(text, "\n## {title}\n\n{head}\n{rule}");
    for ((module, reason), tests) in rows {
        let reason = reason.replace('|', "\\|");
        let why = if has_reasons { format!(" {reason} |") } else { String::new() };
        let _ = writeln!(text, "| {module} |{why} {} |", tests.join(", "));
    }
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
    fn skipped_tests_stand_with_their_reason_and_their_like() {
        let skipped = |text: &str| Judged { outcome: Outcome::Skipped, text: text.into() };
        let tests = Tests::from([
            ("tests.test_a.A.test_one".into(), skipped("no | here")),
            ("tests.test_a.B.test_two".into(), skipped("no | here")),
            ("tests.test_b.B.test_two".into(), skipped("gone")),
        ]);
        let counts = Counts { release: "44".into(), passed: 0, skipped: 3, failed: 0, errors: 0 };
        let text = text(&counts, &tests);
        assert!(text.contains("**0 passed, 3 skipped, 0 failed, 0 errors.**"), "{text}");
        assert!(text.contains("| test_a | no \\| here | test_one, test_two |\n"), "{text}");
        assert!(text.contains("| test_b | gone | test_two |\n"), "{text}");
        assert!(!text.contains("## Passed"), "{text}");
    }
}
