//! The crates that are linked into the programs, as a CycloneDX document.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cargo::cargo;

/// The packages whose programs and libraries are installed.
const SHIPPED: [&str; 3] = ["balboa", "kdriver-shim", "softcard"];
const PROVIDERS: &str = "balboa-provider-";

/// The document of this workspace, the same each time.
///
/// # Errors
/// When cargo does not tell.
pub fn of_workspace() -> Result<String> {
    let metadata = cargo("metadata --format-version 1 --locked --filter-platform")
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .run()?
        .success()?;
    of(&serde_json::from_str(&metadata.stdout)?)
}

fn of(metadata: &Value) -> Result<String> {
    let list = |value: &'static str| metadata[value].as_array().into_iter().flatten();
    let packages: BTreeMap<&str, &Value> =
        list("packages").filter_map(|it| Some((it["id"].as_str()?, it))).collect();
    let nodes = metadata["resolve"]["nodes"].as_array().context("cargo metadata has no graph")?;
    let uses: BTreeMap<&str, Vec<&str>> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, linked(node)))).collect();
    let shipped = packages.iter().filter(|(_, package)| {
        let name = package["name"].as_str().unwrap_or_default();
        SHIPPED.contains(&name) || name.starts_with(PROVIDERS)
    });
    let mut waiting: Vec<&str> = shipped.map(|(id, _)| *id).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if found.insert(id) {
            waiting.extend(uses.get(id).into_iter().flatten());
        }
    }
    let named = |id: &&str| packages.get(*id).map(|package| purl(package));
    let mut components: Vec<Value> =
        found.iter().filter_map(|id| packages.get(*id)).map(|it| component(it)).collect();
    components.sort_by_key(|it| it["bom-ref"].to_string());
    let mut dependencies: Vec<Value> = found
        .iter()
        .filter_map(|id| {
            let on: BTreeSet<String> = uses.get(id)?.iter().filter_map(named).collect();
            Some(json!({"ref": named(id)?, "dependsOn": on}))
        })
        .collect();
    dependencies.sort_by_key(|it| it["ref"].to_string());
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "name": "balboa-verbs",
            "version": env!("CARGO_PKG_VERSION"),
            "licenses": [{"expression": "Apache-2.0 OR MIT"}],
        }},
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The crates linked into a crate, without those needed only to build or test it.
fn linked(node: &Value) -> Vec<&str> {
    let needed = node["deps"].as_array().into_iter().flatten().filter(|dependency| {
        let kinds = dependency["dep_kinds"].as_array();
        kinds.into_iter().flatten().any(|kind| kind["kind"].is_null())
    });
    needed.filter_map(|dependency| dependency["pkg"].as_str()).collect()
}

fn purl(package: &Value) -> String {
    let text = |value: &str| package[value].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(package: &Value) -> Value {
    // An old way to write OR.
    let licence = package["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR ");
    json!({
        "type": "library",
        "bom-ref": purl(package),
        "purl": purl(package),
        "name": package["name"],
        "version": package["version"],
        "licenses": [{"expression": licence}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_in_is_named_and_nothing_else() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.2.3", "license": "MIT/Apache-2.0"});
        let uses =
            |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let packages = ["balboa", "a", "b", "tested", "builder", "xtask"].map(package);
        let metadata = json!({
            "packages": packages,
            "resolve": {"nodes": [
                {"id": "balboa", "deps": [uses("a", None), uses("tested", Some("dev"))]},
                {"id": "a", "deps": [uses("b", None), uses("builder", Some("build"))]},
                {"id": "b", "deps": []},
                {"id": "xtask", "deps": [uses("tested", None)]},
            ]},
        });
        let document: Value = serde_json::from_str(&of(&metadata).unwrap()).unwrap();
        let names = document["components"].as_array().unwrap().iter().map(|it| it["name"].clone());
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "balboa"]);
        assert_eq!(document["components"][0]["purl"], "pkg:cargo/a@1.2.3");
        assert_eq!(document["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["dependencies"][2]["dependsOn"], json!(["pkg:cargo/a@1.2.3"]));
    }
}
