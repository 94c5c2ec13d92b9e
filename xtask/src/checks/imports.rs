//! No circle of imports between files, other than between a module and its children.
//!
//! The files of each library and program are read as tokens, tests left out, and every path in them
//! is followed to the file of its item, through all re-exports on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::cargo::{cargo, root};

mod circles;
mod source;

use circles::Graph;
use source::Arrow;

/// Fails when there is a circle.
///
/// # Errors
/// With the arrows of each circle.
pub fn check() -> Result<()> {
    let mut graph = Graph::default();
    for file in roots()? {
        let root = root();
        source::read(&root, Path::new(&file))?.into_iter().for_each(|arrow| graph.add(arrow));
    }
    let mut found = String::new();
    for circle in graph.circles() {
        found.push_str(&format!("\na circle of {} files:", circle.len()));
        for ((from, to), name) in graph.within(&circle) {
            found.push_str(&format!("\n  {from} -> {to}: {name}"));
        }
    }
    ensure!(found.is_empty(), "files that import each other:{found}");
    Ok(())
}

/// The first file of each library and program of the workspace, from its root.
fn roots() -> Result<BTreeSet<String>> {
    let metadata = cargo("metadata --format-version 1 --no-deps --locked").run()?.success()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|it| it["targets"].as_array().into_iter().flatten());
    let ours = targets.filter(|target| {
        let kinds = target["kind"].as_array().into_iter().flatten();
        kinds.filter_map(|it| it.as_str()).any(|kind| kind.ends_with("lib") || kind == "bin")
    });
    // The provider is built for each release of rdma-core, from the same files.
    let files: BTreeSet<String> = ours
        .filter_map(|it| Path::new(it["src_path"].as_str()?).canonicalize().ok())
        .filter_map(|path| Some(path.strip_prefix(root()).ok()?.display().to_string()))
        .collect();
    if files.is_empty() {
        bail!("cargo metadata names no library and no program");
    }
    Ok(files)
}

/// An example of an imported name for each arrow.
type Names = BTreeMap<Arrow, String>;

#[cfg(test)]
mod tests;
