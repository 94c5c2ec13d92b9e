//! Runs a network, says what became of it, and writes what was seen as CSV and SVG.
//!
//!     cargo run --profile quick -p netsim --example network -- NAME MICROSECONDS [SEED [DIRECTORY]]
//!
//! NAME is one of `netsim/networks.toml`.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use netsim::results::{Results, jain, rate};
use netsim::{NETWORKS, Network, Time, parse};
use roce::window::{AnyWindow, SlowStart};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, micros, rest @ ..] = arguments.as_slice() else {
        return Err("NAME MICROSECONDS [SEED [DIRECTORY]]".into());
    };
    let seed = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    let until = Time::from_micros(micros.parse()?);
    let networks = parse(NETWORKS)?;
    let config = networks.get(name).ok_or_else(|| format!("there is no network '{name}'"))?;
    let window = |_, _| AnyWindow::SlowStart(SlowStart::default());
    let began = Instant::now();
    let mut network = Network::new(config, seed, window)?;
    println!(
        "{} hosts, {} flows, made in {:?}",
        network.hosts.len(),
        network.flows().len(),
        began.elapsed()
    );
    network.look_each((until.0 / 100).max(1));
    let began = Instant::now();
    network.run(until);
    let took = began.elapsed();
    let delivered = || network.flows().iter().map(|flow| flow.delivered);
    println!("{micros} µs took {took:?}; digest {:016x}", network.digest());
    println!("{:?}", network.tally());
    println!(
        "goodput {} Mb/s, Jain's index {} millionths, {} frames under way at most",
        rate(delivered().sum(), until.0) / 1_000_000,
        jain(delivered()),
        network.most_under_way()
    );
    let counters = || network.hosts.iter().map(|host| host.stack.counters());
    println!(
        "notifications: {} sent, {} handled, {} ignored",
        counters().map(|of| of.np_cnp_sent).sum::<u64>(),
        counters().map(|of| of.rp_cnp_handled).sum::<u64>(),
        counters().map(|of| of.rp_cnp_ignored).sum::<u64>(),
    );
    if let Some(directory) = rest.get(1) {
        let (flows, results) = (network.flows(), network.results());
        let directory = Path::new(directory);
        std::fs::create_dir_all(directory)?;
        for (file, text) in [
            ("queues.csv", results.queues_csv()),
            ("queues.svg", results.queues_svg()),
            ("flows.csv", results.flows_csv()),
            ("flows.svg", results.flows_svg(flows)),
            ("fairness.csv", results.fairness_csv(flows)),
            ("fairness.svg", results.fairness_svg(flows)),
            ("messages.csv", Results::messages_csv(flows)),
            ("messages.svg", Results::messages_svg(flows)),
        ] {
            std::fs::write(directory.join(file), text)?;
        }
    }
    Ok(())
}
