//! Suites of tests and benchmarks that are no packages, built of their authors' sources in the cache.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::{Task, last_lines};
use harness::suites::{SUITES, Suite};
use terminal::report;

use crate::cache::Cache;
use crate::cases::Listed;
use crate::setup;

/// How a suite is built.
struct Recipe {
    name: &'static str,
    /// A file of the source that names its release.
    tells_release: &'static str,
    /// For the shell, in a copy of the source. Files to keep go to `$INTO`.
    script: &'static str,
}

const RECIPES: [Recipe; 4] = [
    Recipe {
        name: "fabtests",
        tells_release: "configure.ac",
        script: include_str!("suites/fabtests.sh"),
    },
    Recipe {
        name: "imb",
        tells_release: "src_c/IMB_g_info.c",
        script: include_str!("suites/imb.sh"),
    },
    Recipe { name: "osu", tells_release: "configure.ac", script: include_str!("suites/osu.sh") },
    Recipe { name: "ucx", tells_release: "configure.ac", script: include_str!("suites/ucx.sh") },
];

/// How long a build may take.
const BUILD: Duration = Duration::from_secs(60 * 60);

/// Builds the suites that cases need into the cache; gives advice where a suite has neither a source nor a build there.
///
/// # Errors
/// When there is no cache, packages are missing, or a suite does not build.
pub fn build<'a>(cases: impl Iterator<Item = &'a Listed>) -> Result<()> {
    let needs: Vec<&String> = cases.flat_map(|case| &case.suites).collect();
    let is_needed = |suite: &&Suite| needs.iter().any(|name| *name == suite.name);
    let wanted: Vec<&Suite> = SUITES.iter().filter(is_needed).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let cache = Cache::open("suites")?;
    for suite in wanted {
        match suite.source().filter(|_| suite.is_built_here) {
            Some(source) => one(&cache, suite, &source).with_context(|| suite.name)?,
            None if suite.built().is_none() => report!("no {}: {}", suite.name, suite.missing()),
            None => {}
        }
    }
    Ok(())
}

/// Builds a suite, unless it was from the same source.
fn one(cache: &Cache, suite: &Suite, source: &Path) -> Result<()> {
    let recipe = RECIPES.iter().find(|it| it.name == suite.name).context("nobody knows how")?;
    let release = source.join(recipe.tells_release);
    let release = fs::read_to_string(&release)
        .with_context(|| format!("{} is not {}", source.display(), suite.source))?;
    cache.keep(suite.name, &format!("{release}\n{}", recipe.script), |into| {
        setup::packages(setup::SUITES)?;
        report!("building {} of {}", suite.source, source.display());
        compile(recipe.script, source, into)
    })?;
    Ok(())
}

/// Runs a script in a copy of a source, with a directory to fill as `$INTO`.
///
/// # Errors
/// When it fails.
pub fn compile(script: &str, source: &Path, into: &Path) -> Result<()> {
    let work = tempfile::Builder::new().prefix("balboa-suite-").tempdir()?;
    Task::new("cp").arg("-a").arg(source.join(".")).arg(work.path()).run()?.success()?;
    let shell = Task::new("sh").with_our_environment().args(["-e", "-c", script]);
    let shell = shell.directory(work.path()).env("INTO", into).limit(BUILD);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let finished = shell.env("MAKEFLAGS", format!("-j{processors}")).run()?;
    let said = last_lines(finished.stderr.trim_end(), 10).join("\n");
    ensure!(finished.status.success(), "it does not build:\n{said}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_can_be_built() {
        let built_here = SUITES.iter().filter(|suite| suite.is_built_here);
        let names: Vec<_> = built_here.map(|suite| suite.name).collect();
        assert_eq!(names, RECIPES.map(|recipe| recipe.name));
    }
}
