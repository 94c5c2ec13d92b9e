//! Networks in virtual time, judged by the bars of their descriptions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use harness::process::Task;
use harness::summary::{Clock, Step, Summary};
use terminal::report;

use crate::cargo::{self, Profile, root};

/// How long all networks may take with a seed; a few that are large take most of it.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Where the documents' charts lie, from the workspace's root.
const PLOTS_FOLDER: &str = "docs/plots";

/// The documents' charts: a network, and the name of a chart of its results.
const PLOTS: [(&str, &str); 6] = [
    ("parking-lot", "flows"),
    ("parking-lot-dcqcn", "flows"),
    ("incast", "queues"),
    ("incast-dcqcn", "queues"),
    ("victim-dcqcn", "flows"),
    ("ets", "priorities"),
];

/// `cargo xtask network`.
#[derive(Debug, Args)]
pub struct Options {
    /// The network to run [default: all]
    scenario: Option<String>,
    /// Run each network with the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Read the networks from this TOML file, in place of netsim/networks.toml
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Run until this time after the start, such as 10ms, and judge nothing
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Write the results of the last seed as CSV and SVG into this directory
    #[arg(long, value_name = "DIRECTORY", requires = "scenario")]
    write: Option<PathBuf>,
    /// Draw the documents' charts anew, in docs/plots
    #[arg(long, conflicts_with_all = ["scenario", "seeds", "file", "until", "write"])]
    plots: bool,
}

/// Builds the simulator and runs networks.
///
/// # Errors
/// When it cannot be built or run.
pub fn network(options: &Options) -> Result<ExitCode> {
    let built = cargo::build_of(Profile::Quick, "--package netsim")?;
    if options.plots {
        return plots(&built).map(|()| ExitCode::SUCCESS);
    }
    let mut task = program(&built).args(options.scenario.as_slice());
    task = task.arg("--seeds").arg(options.seeds.to_string());
    for (option, value) in [("--file", &options.file), ("--write", &options.write)] {
        if let Some(value) = value {
            task = task.arg(option).arg(value);
        }
    }
    if let Some(until) = &options.until {
        task = task.arg("--until").arg(until);
    }
    let seeds = u32::try_from(options.seeds).unwrap_or(u32::MAX);
    let finished = task.shown().limit(LIMIT.saturating_mul(seeds)).run()?;
    // The simulator has the tasks' exit codes.
    let code = finished.status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Draws the documents' charts.
fn plots(built: &Path) -> Result<()> {
    let results = tempfile::Builder::new().prefix("balboa-plots-").tempdir()?;
    fs::create_dir_all(root().join(PLOTS_FOLDER))?;
    for (network, chart) in PLOTS {
        let run = program(built).arg(network).arg("--write").arg(results.path()).limit(LIMIT);
        run.run()?.success()?;
        let plot = format!("{PLOTS_FOLDER}/{}", file_of(network, chart));
        let drawn = results.path().join(chart).with_extension("svg");
        fs::copy(&drawn, root().join(&plot)).with_context(|| format!("cannot write {plot}"))?;
        report!("{plot}");
    }
    Ok(())
}

/// The name of the file of a chart.
fn file_of(network: &str, chart: &str) -> String {
    format!("{network}-{chart}.svg")
}

/// Runs all networks with one seed.
///
/// # Errors
/// When they cannot be run.
pub fn check(built: &Path) -> Result<Summary> {
    let clock = Clock::start();
    let finished = program(built).limit(LIMIT).run()?;
    terminal::say(format_args!("{}", finished.stdout))?;
    let mut summary = Summary::parse(&finished.stdout)
        .with_context(|| format!("the simulator's run has no closing line: {}", finished.stderr))?;
    summary.name_after(NAMES);
    summary.steps.push(Step::of("simulated networks", &clock));
    Ok(summary)
}

/// The prefix of a network's name.
const NAMES: &str = "network/";

fn program(built: &Path) -> Task {
    Task::new(built.join("netsim"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::checks::links;

    #[test]
    fn the_documents_show_each_chart_that_is_drawn_and_no_other() {
        let docs = root().join("docs");
        let mut shown = BTreeSet::new();
        for page in links::pages_below(&docs).unwrap() {
            let links = links::links(&links::read(&page).unwrap());
            shown.extend(links.iter().filter_map(|it| Some(it.strip_prefix("plots/")?.to_owned())));
        }
        let drawn: BTreeSet<String> = PLOTS.iter().map(|it| file_of(it.0, it.1)).collect();
        assert_eq!(shown, drawn);
        let files = links::files_below(&root().join(PLOTS_FOLDER), "svg").unwrap();
        let files = files.iter().map(|it| it.file_name().unwrap().to_string_lossy().into_owned());
        assert_eq!(files.collect::<BTreeSet<_>>(), drawn);
    }
}
