//! The dependencies between the crates of the workspace, as cargo tells them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::svg::{Frame, Picture, Stroke, width_of};
use crate::cargo::cargo;

const ROW: usize = 76;
const HEIGHT: usize = 30;
const GAP: usize = 14;
/// Crates of tests, tasks and simulations, which use much and are used by none of the others, but for cards of RTL.
const LEFT_OUT: [&str; 8] =
    ["xtask", "fuzz", "netsim", "cosim", "trial", "harness", "cases", "verbs-programs"];

type Uses = BTreeMap<String, BTreeSet<String>>;

/// Draws each crate above those that it uses. An arrow that others make superfluous is left out.
pub fn draw() -> Result<String> {
    let said = cargo("metadata --format-version 1 --no-deps").run()?.success()?;
    let mut uses = uses(&serde_json::from_str(&said.stdout)?)?;
    for name in LEFT_OUT {
        uses.remove(name).with_context(|| format!("{name} is left out, and is no crate"))?;
    }
    uses.values_mut().for_each(|used| used.retain(|it| !LEFT_OUT.contains(&it.as_str())));
    let mut rows: Vec<Vec<&str>> = Vec::new();
    for name in uses.keys() {
        let depth = depth(&uses, name);
        if rows.len() <= depth {
            rows.resize(depth + 1, Vec::new());
        }
        rows[depth].push(name);
    }
    let width_of_row = |row: &[&str]| row.iter().map(|it| width_of(it) + 20 + GAP).sum::<usize>();
    let widest = rows.iter().map(|row| width_of_row(row)).max().unwrap_or(0);
    let mut frames = BTreeMap::new();
    for (i, row) in rows.iter().rev().enumerate() {
        let mut x = 12 + (widest - width_of_row(row)) / 2;
        for name in row {
            let width = width_of(name) + 20;
            frames.insert(*name, Frame { x, y: 12 + i * ROW, width, height: HEIGHT });
            x += width + GAP;
        }
    }
    let mut picture = Picture::default();
    for (name, used) in &uses {
        for other in used.iter().filter(|it| !is_reached_otherwise(&uses, name, it)) {
            let (from, to) = (frames[name.as_str()], frames[other.as_str()]);
            picture.arrow(&from.line_to(to), Stroke::Solid);
        }
    }
    frames.iter().for_each(|(name, frame)| picture.framed(*frame, &[name]));
    Ok(picture.finish("Which crate uses which", "what `cargo metadata` says"))
}

/// The crates of the workspace that each one uses; a provider stands for those of all releases.
fn uses(metadata: &Value) -> Result<Uses> {
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let name = |it: &Value| -> Option<String> {
        let name = it["name"].as_str()?;
        Some(if name.starts_with("balboa-provider") { "provider" } else { name }.to_owned())
    };
    let names: BTreeSet<String> = packages.iter().filter_map(name).collect();
    let mut uses = Uses::new();
    for package in packages {
        let of = name(package).context("a package has no name")?;
        let used = package["dependencies"].as_array().into_iter().flatten();
        // No tests' and no builds'.
        let used = used.filter(|it| it["kind"].is_null()).filter_map(name);
        let used = used.filter(|it| names.contains(it) && *it != of);
        uses.entry(of.clone()).or_default().extend(used);
    }
    Ok(uses)
}

/// How many crates lie below a crate, on the longest way down.
fn depth(uses: &Uses, name: &str) -> usize {
    uses[name].iter().map(|it| depth(uses, it) + 1).max().unwrap_or(0)
}

/// Whether a crate uses another by way of a third, too.
fn is_reached_otherwise(uses: &Uses, from: &str, to: &str) -> bool {
    uses[from].iter().any(|it| it != to && reaches(uses, it, to))
}

fn reaches(uses: &Uses, from: &str, to: &str) -> bool {
    from == to || uses[from].iter().any(|it| reaches(uses, it, to))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arrows_that_others_make_superfluous_are_told() {
        let package = |name: &str, uses: &[&str]| {
            let uses: Vec<Value> =
                uses.iter().map(|it| json!({ "name": it, "kind": null })).collect();
            json!({ "name": name, "dependencies": uses })
        };
        let metadata = json!({ "packages": [
            package("top", &["middle", "bottom", "serde"]),
            package("middle", &["bottom"]),
            package("bottom", &[]),
            package("balboa-provider-44", &["bottom"]),
        ]});
        let uses = uses(&metadata).unwrap();
        assert_eq!(uses.len(), 4);
        assert_eq!(depth(&uses, "top"), 2);
        assert!(is_reached_otherwise(&uses, "top", "bottom"));
        assert!(!is_reached_otherwise(&uses, "top", "middle"));
        assert!(uses.contains_key("provider"));
    }
}
