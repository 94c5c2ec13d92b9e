//! Holds docs/dependencies.md against the crates and packages that are used.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::cargo::{cargo, root};
use crate::setup;

const PAGE: &str = "docs/dependencies.md";
/// The sections whose tables are complete.
const CRATES: &str = "## Crates";
const PROGRAMS: &str = "## Programs";

/// Fails unless the page's tables name each crate that the workspace names, each package that its
/// tasks install, and nothing else.
///
/// # Errors
/// With one sentence that names a missing row, or a useless one.
pub fn check() -> Result<()> {
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let metadata = cargo("metadata --format-version 1 --no-deps --locked").run()?.success()?;
    let used = crates(&serde_json::from_str(&metadata.stdout)?);
    compare(&used, &named(&page, CRATES))?;
    let installed = setup::ALL.concat().into_iter().map(str::to_owned).collect();
    compare(&installed, &named(&page, PROGRAMS))
}

/// The crates from elsewhere that the workspace's crates depend on, as `cargo metadata` lists them.
fn crates(metadata: &serde_json::Value) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let all = packages.flat_map(|package| package["dependencies"].as_array().into_iter().flatten());
    let foreign = all.filter(|it| !it["source"].is_null());
    foreign.filter_map(|it| it["name"].as_str()).map(str::to_owned).collect()
}

/// The names in the first column of the table in a section, each between backquotes.
fn named(page: &str, section: &str) -> BTreeSet<String> {
    let lines = page.lines().skip_while(|line| *line != section).skip(1);
    let rows = lines.take_while(|line| !line.starts_with("## ")).filter(|it| it.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn compare(used: &BTreeSet<String>, named: &BTreeSet<String>) -> Result<()> {
    let list =
        |names: Vec<&String>| names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let missing = list(used.difference(named).collect());
    ensure!(missing.is_empty(), "{PAGE} does not say what these are for: {missing}");
    let stale = list(named.difference(used).collect());
    ensure!(stale.is_empty(), "{PAGE} says what these are for, and nothing uses them: {stale}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "# Page\n## Crates\n| crate | for |\n|---|---|\n| `one` | `not this` |\n\
        | `two` `three` | x |\n## Other\n| `four` | x |\n";

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_first_column_of_the_section_names_them() {
        assert_eq!(named(SMALL, CRATES), set(&["one", "two", "three"]));
    }

    #[test]
    fn only_crates_from_elsewhere_count() {
        let metadata = serde_json::json!({"packages": [{"dependencies": [
            {"name": "ours", "source": null},
            {"name": "theirs", "source": "registry+https://example.org"},
        ]}]});
        assert_eq!(crates(&metadata), set(&["theirs"]));
    }

    #[test]
    fn what_lacks_and_what_is_stale_is_told() {
        let message = |used, named| compare(&set(used), &set(named)).unwrap_err().to_string();
        assert!(message(&["a", "b"], &["a"]).ends_with("what these are for: b"));
        assert!(message(&["a"], &["a", "c"]).ends_with("nothing uses them: c"));
        compare(&set(&["a"]), &set(&["a"])).unwrap();
    }
}
