//! The seeded random engine: one target for some time, or one input again.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use fuzz::{TARGETS, random};

/// Feeds a fuzz target with inputs that follow from seeds, or with one input from a file.
///
/// Exit codes: 0 nothing was found; 101 or a signal: the target failed, and the line before says
/// how to repeat it; 2 a wrong command line.
#[derive(Debug, Parser)]
#[command(name = "fuzz-random")]
struct Arguments {
    /// The target
    #[arg(required_unless_present = "list")]
    target: Option<String>,
    /// List the targets and run nothing
    #[arg(long)]
    list: bool,
    /// For how long
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Try the inputs of the test command, however long that takes
    #[arg(long, conflicts_with_all = ["seconds", "seed"])]
    budget: bool,
    /// Run only the input in this file
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// The seed under way, for the line that a panic prints.
static SEED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        TARGETS.iter().for_each(|target| println!("{:10} {}", target.name, target.about));
        return ExitCode::SUCCESS;
    }
    let name = arguments.target.unwrap_or_default();
    let Some(target) = fuzz::find(&name) else {
        eprintln!("fuzz-random: there is no target {name:?}; --list names them");
        return ExitCode::from(2);
    };
    if let Some(path) = arguments.input {
        return match std::fs::read(&path) {
            Ok(input) => {
                target.run(&input);
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("fuzz-random: {} cannot be read: {error}", path.display());
                ExitCode::from(2)
            }
        };
    }
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        let seed = SEED.load(Ordering::Relaxed);
        eprintln!("repeat: cargo run -p fuzz --bin fuzz-random -- {name} --seed {seed}");
    }));
    let begun = Instant::now();
    let limit = Duration::from_secs(arguments.seconds);
    let mut seed = arguments.seed;
    let wants_more = |seed| match arguments.budget {
        true => seed <= target.inputs,
        false => begun.elapsed() < limit,
    };
    while wants_more(seed) {
        SEED.store(seed, Ordering::Relaxed);
        target.run(&random::input(seed, target.longest));
        seed = seed.wrapping_add(1);
    }
    let inputs = seed.wrapping_sub(arguments.seed);
    println!("{}: {inputs} inputs from seed {} on, no failure", target.name, arguments.seed);
    ExitCode::SUCCESS
}
