//! The crates by which Rust programs use verbs: their own tests and examples, on software cards.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::pair::{Both, run_between};
use harness::process::Task;
use harness::runner::{self, Case, Filter};
use harness::setting::Setting;
use harness::summary::Summary;
use serde_json::Value;
use terminal::report;

use crate::cache::Cache;
use crate::selection::{self, Selection};
use crate::{cargo, setup};

/// The crates and their releases.
const CRATES: [(&str, &str); 2] = [("sideway", "0.4.3"), ("ibverbs", "0.9.2")];
/// The programs that are not run: tests of the compiler; an example whose server only its client can see listening, and
/// one that stops at a GID without a network device.
const LEFT_OUT: [&str; 3] = ["compiletest", "cmtime", "show_gids"];
/// A test program's unit tests have this name.
const UNIT_TESTS: &str = "unit tests";

/// How long fetching and building a crate may take, and a program.
const BUILD: Duration = Duration::from_secs(30 * 60);
const LIMIT: Duration = Duration::from_secs(180);

/// `cargo xtask crates`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    selection: Selection,
}

/// Builds the crates' tests and examples and runs them between software cards.
///
/// # Errors
/// When they cannot be fetched or built.
pub fn crates(options: &Options) -> Result<ExitCode> {
    setup::packages(setup::CRATES)?;
    let cases = cases(&built()?);
    let filter = options.selection.filter();
    selection::all_named(&selection::names(&cases), &filter, None)?;
    let summary = runner::run(&cases, &filter, &cargo::build()?, REPEAT)?;
    report!("");
    cargo::conclude(summary)
}

const REPEAT: &str = "cargo xtask crates --only";

/// Runs all of them; where they cannot be fetched or built they are skipped.
///
/// # Errors
/// When they cannot be run.
pub fn check(built_by_us: &Path) -> Result<Summary> {
    match setup::packages(setup::CRATES).and_then(|()| built()) {
        Ok(programs) => runner::run(&cases(&programs), &Filter::default(), built_by_us, REPEAT),
        Err(error) => Ok(Summary::skipped("crates of verbs", &error)),
    }
}

/// The programs of a crate by their names.
type Programs = BTreeMap<(&'static str, String), PathBuf>;

/// Sees to it that the crates lie in the cache, built.
fn built() -> Result<Programs> {
    let cache = Cache::open("crates")?;
    let key = CRATES.map(|(name, release)| format!("{name} = \"={release}\"\n")).concat();
    let sources = cache.keep("sources", &key, |into| fetch(&key, into))?;
    let target = cache.place("target");
    let mut programs = Programs::new();
    for (name, _) in CRATES {
        report!("building the crate {name}'s tests and examples");
        let source = sources.join(name);
        for words in ["test --no-run --lib --tests", "build --examples"] {
            let task = cargo::cargo(words).words("--locked --quiet --message-format=json");
            let task = task.arg("--target-dir").arg(&target).directory(&source).limit(BUILD);
            let said = task.run()?.success().with_context(|| format!("{name} does not build"))?;
            for line in said.stdout.lines() {
                let artifact: Value = serde_json::from_str(line)?;
                programs.extend(program(&artifact).map(|(it, path)| ((name, it), path)));
            }
        }
    }
    Ok(programs)
}

/// The program in a line of cargo's: its name and its file.
fn program(artifact: &Value) -> Option<(String, PathBuf)> {
    let path = artifact["executable"].as_str()?;
    let target = &artifact["target"];
    let name = match target["kind"][0].as_str()? {
        "lib" => UNIT_TESTS,
        _ => target["name"].as_str()?,
    };
    Some((name.to_owned(), path.into()))
}

/// Copies the crates' sources to where they can be built.
fn fetch(dependencies: &str, into: &Path) -> Result<()> {
    let asks = into.join("asks");
    fs::create_dir_all(asks.join("src"))?;
    fs::write(asks.join("src/lib.rs"), "")?;
    let package = "[package]\nname = \"asks\"\nedition = \"2021\"\n[workspace]\n[dependencies]\n";
    fs::write(asks.join("Cargo.toml"), format!("{package}{dependencies}"))?;
    let metadata = cargo::cargo("metadata --format-version 1").directory(&asks).limit(BUILD);
    let metadata = metadata.run()?.success().context("the crates cannot be fetched")?;
    let metadata: Value = serde_json::from_str(&metadata.stdout)?;
    for (name, _) in CRATES {
        let packages = metadata["packages"].as_array().context("no packages")?;
        let package = packages.iter().find(|package| package["name"] == name);
        let manifest = package.and_then(|package| package["manifest_path"].as_str());
        let source = Path::new(manifest.context("no manifest")?).parent().context("no place")?;
        Task::new("cp").arg("-r").arg(source).arg(into.join(name)).run()?.success()?;
    }
    Ok(())
}

fn cases(programs: &Programs) -> Vec<Case> {
    let mut cases = Vec::new();
    for ((name, program), path) in programs {
        if LEFT_OUT.contains(&program.as_str()) {
            continue;
        }
        let (path, program) = (path.clone(), program.clone());
        let full = format!("crates/{name}/{program}");
        cases.push(Case::new(full, &[], move |setting| run(setting, &program, &path)));
    }
    cases
}

fn run(setting: &Setting, name: &str, program: &Path) -> Result<()> {
    let copy = setting.directory().join("program");
    fs::copy(program, &copy)?;
    let daemon = setting.balboad("--soft 2")?;
    match name {
        "rc_pingpong" | "rc_pingpong_split" => {
            let command = format!("{} -g 1", copy.display());
            let Both { server, client } = run_between((&daemon, 0), (&daemon, 1), &command)?;
            for side in [server, client] {
                side.says("1000 iters in ")?;
            }
        }
        other => {
            let finished = daemon.run("").arg(&copy).limit(LIMIT).run()?.success()?;
            let says = match other {
                "loopback" => "received",
                "ibv_devinfo" => "balboa1",
                _ => "test result: ok.",
            };
            finished.says(says)?;
        }
    }
    daemon.stop()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_are_named_as_cargo_says() {
        let line = |kind: &str, executable: Value| {
            json!({
                "reason": "compiler-artifact",
                "target": { "kind": [kind], "name": "thing" },
                "executable": executable,
            })
        };
        let named = |kind| program(&line(kind, json!("/x"))).map(|(name, _)| name);
        assert_eq!(named("lib").as_deref(), Some(UNIT_TESTS));
        assert_eq!(named("test").as_deref(), Some("thing"));
        assert_eq!(program(&line("lib", Value::Null)), None);
        assert_eq!(program(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
