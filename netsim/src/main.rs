//! Runs networks in virtual time, and judges their figures.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use netsim::config::{Bars, Config, parse_end};
use netsim::results::Results;
use netsim::{NETWORKS, Network, parse};
use roce::window::{AnyWindow, SlowStart};
use terminal::{USAGE, report};

/// Run networks in virtual time, and judge their figures by the bars of their description
#[derive(Debug, Parser)]
#[command(name = "netsim", after_help = HELP)]
struct Arguments {
    /// The network to run [default: all]
    network: Option<String>,
    /// Run each network with the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Read the networks from this TOML file, in place of those that come with the program
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Run until this time after the start, such as 10ms, and judge nothing
    #[arg(long, value_name = "TIME", value_parser = parse_end)]
    until: Option<u64>,
    /// Write the results of the last seed as CSV and SVG into this directory
    #[arg(long, value_name = "DIRECTORY", requires = "network")]
    write: Option<PathBuf>,
}

/// Flows of a network that is written down, at most.
const MOST_WRITTEN: usize = 1 << 16;

const HELP: &str = "\
The last line is `N passed, N failed, N skipped`.

Exit codes: 0 all networks kept their bars; 1 one did not; 2 wrong arguments, or a wrong description of a network.";

fn main() -> ExitCode {
    let arguments: Arguments = match terminal::parse("netsim", "network", USAGE) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            terminal::complain("netsim", error);
            ExitCode::from(USAGE)
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let text = match &arguments.file {
        Some(file) => &fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?,
        None => NETWORKS,
    };
    let networks = parse(text)?;
    if let Some(name) = arguments.network.as_ref().filter(|name| !networks.contains_key(*name)) {
        let names: Vec<&str> = networks.keys().map(String::as_str).collect();
        return Err(format!("there is no network '{name}'; there are {}", names.join(", ")).into());
    }
    let is_wanted = |name: &String| arguments.network.as_ref().is_none_or(|it| it == name);
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, config) in networks.iter().filter(|(name, _)| is_wanted(name)) {
        let bars = arguments.until.map(Bars::none).or_else(|| config.bars.clone());
        let bars = bars.ok_or_else(|| {
            format!("the network '{name}' has no bars, which say when it ends; give --until")
        })?;
        for seed in 1..=arguments.seeds {
            let write = arguments.write.as_deref().filter(|_| seed == arguments.seeds);
            match one(name, config, &bars, seed, write)? {
                true => passed += 1,
                false => failed.push(format!("{name}, seed {seed}")),
            }
        }
    }
    report!("");
    failed.iter().for_each(|name| report!("failed: {name}"));
    report!("{passed} passed, {} failed, 0 skipped", failed.len());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a network with a seed, and says whether its figures are within its bars.
fn one(
    name: &str,
    config: &Config,
    bars: &Bars,
    seed: u64,
    write: Option<&Path>,
) -> Result<bool, Box<dyn Error>> {
    let window = |_, _| AnyWindow::SlowStart(SlowStart::default());
    let mut network = Network::new(config, seed, window).map_err(|error| error.of(name))?;
    if write.is_some() {
        let flows = network.flows().len();
        if flows > MOST_WRITTEN {
            return Err(format!(
                "'{name}' has {flows} flows, and --write keeps each a hundred times: it takes {MOST_WRITTEN} flows at most"
            )
            .into());
        }
        network.look_each((bars.until / 100).max(1));
    }
    let began = Instant::now();
    let seen = bars.run(&mut network, config.host.rate);
    let took = began.elapsed().as_secs_f64();
    let broken = bars.broken_by(&seen);
    let verdict = if broken.is_empty() { "ok  " } else { "FAIL" };
    report!("{verdict} {name}, seed {seed}: {seen} ({took:.1} s)");
    broken.iter().for_each(|what| report!("     {what}"));
    report!("     digest {:016x}, {} events", network.digest(), network.tally().events);
    if let Some(directory) = write {
        keep(&network, directory)
            .map_err(|error| format!("cannot write into {}: {error}", directory.display()))?;
    }
    Ok(broken.is_empty())
}

/// Writes the figures.
fn keep(network: &Network, directory: &Path) -> std::io::Result<()> {
    let (flows, results) = (network.flows(), network.results());
    fs::create_dir_all(directory)?;
    for (file, text) in [
        ("queues.csv", results.queues_csv()),
        ("queues.svg", results.queues_svg()),
        ("flows.csv", results.flows_csv()),
        ("flows.svg", results.flows_svg(flows)),
        ("rates.svg", results.rates_svg(flows)),
        ("priorities.svg", results.priorities_svg(flows)),
        ("fairness.csv", results.fairness_csv(flows)),
        ("fairness.svg", results.fairness_svg(flows)),
        ("messages.csv", Results::messages_csv(flows)),
        ("messages.svg", Results::messages_svg(flows)),
    ] {
        fs::write(directory.join(file), text)?;
    }
    Ok(())
}
