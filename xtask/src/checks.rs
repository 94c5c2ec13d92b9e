//! The checks beside the tests: each is one command or one look, and counts as one.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use harness::process::Task;
use harness::runner::{Filter, When};
use harness::summary::{Clock, Step, Summary};
use terminal::report;

use crate::cargo::{LIMIT, cargo, conclude, has_subcommand, root};
use crate::regs::compare;
use crate::tool::Tool;
use crate::{book, selection, setup};

mod deny;
mod dependencies;
mod imports;
pub mod links;
mod oldest;

/// `cargo xtask check`.
#[derive(Debug, Args)]
pub struct Options {
    /// Run only checks with TEXT in their name
    #[arg(value_name = "TEXT")]
    only: Option<String>,
    /// Fail when the tool of a check is missing, instead of counting a skip
    #[arg(long)]
    require: bool,
}

/// A check, which passes or fails as one.
struct Check {
    /// Its name in the count.
    name: &'static str,
    /// Does it; [`Lacking`] where its tool is not there.
    run: fn() -> Result<()>,
    /// Whether its tool may be missing even where all are required.
    optional: bool,
    /// The runs of the test command that include it.
    when: When,
}

const CHECKS: &[Check] = &[
    Check::new("formatting", || with_tool("fmt", "fmt --all --check")).always(),
    Check::new("clippy", || {
        with_tool("clippy", "clippy --workspace --all-targets --locked --quiet -- -D warnings")?;
        // Targets that no run of all tests includes are no part of all targets.
        with_tool(
            "clippy",
            "clippy --workspace --test queue_engine --locked --quiet -- -D warnings",
        )
    }),
    Check::new("documentation", documentation),
    Check::new("links of the documents", links::check).always(),
    Check::new("the book", || book::build(&Lacking::unless_installed(book::MDBOOK)?).map(drop)),
    Check::new("the oldest compiler", oldest::check),
    Check::new("licences and sources", deny::check),
    Check::new("dependencies and what they are for", dependencies::check).always(),
    Check::new("no circles of imports", imports::check).always(),
    Check { optional: true, ..Check::new("Miri on the rings", miri) },
    Check::new("card contract: the C header in C++", || compare::c_header("c++", "c++17")).always(),
    Check::new("card contract: the SystemVerilog package, linted", compare::lint_package),
    Check::new("card contract: the SystemVerilog package, simulated", compare::simulate_package),
];

impl Check {
    const fn new(name: &'static str, run: fn() -> Result<()>) -> Self {
        Self { name, run, optional: false, when: When::Full }
    }

    /// The same in the default run, too.
    const fn always(mut self) -> Self {
        self.when = When::Always;
        self
    }

    /// Runs it and counts its outcome.
    fn count(&self, require: bool) -> Summary {
        let name = self.name;
        let mut summary = Summary::default();
        let clock = Clock::start();
        match (self.run)() {
            Ok(()) => {
                report!("ok   {name} ({:.0} s)", clock.took().as_secs_f32());
                summary.passed += 1;
            }
            Err(error) if error.is::<Lacking>() && (self.optional || !require) => {
                let reason = format!("{error:#}");
                report!("skip {name}: {reason}");
                summary.skipped.push((name.to_owned(), reason));
            }
            Err(error) => {
                report!("FAIL {name}: {error:#}\nrepeat: cargo xtask check '{name}'");
                summary.failed.push(name.to_owned());
            }
        }
        summary.steps.push(Step::of(name, &clock));
        summary
    }
}

/// A tool that is not there: why.
#[derive(Debug)]
struct Lacking(String);

impl Lacking {
    /// A tool's program, or that it cannot be had.
    fn unless_installed(tool: Tool) -> Result<PathBuf, Self> {
        tool.program().map_err(|error| {
            // cargo's output ends with its reason.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default();
            Self(format!("{} {} cannot be installed: {reason}", tool.package, tool.version))
        })
    }
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lacking {}

/// `cargo xtask check`: runs checks and counts them.
///
/// # Errors
/// When the packages that they need cannot be installed.
pub fn check(options: &Options) -> Result<ExitCode> {
    let filter = Filter { parts: options.only.iter().cloned().collect(), exact: false };
    let names: Vec<&str> = names().map(|(name, _)| name).collect();
    selection::all_named(&names, &filter, None)?;
    setup::packages(&setup::tests())?;
    let summary = run(&filter, options.require);
    conclude(summary)
}

/// The checks' names, and in which runs of the test command they are.
pub fn names() -> impl Iterator<Item = (&'static str, When)> {
    CHECKS.iter().map(|check| (check.name, check.when))
}

/// Runs those that a filter takes and counts them; `require` as in [`Options`].
pub fn run(filter: &Filter, require: bool) -> Summary {
    let mut summary = Summary::default();
    let wanted = CHECKS.iter().filter(|check| filter.takes(check.name));
    wanted.for_each(|check| summary.add(check.count(require)));
    summary
}

/// Runs a command of a cargo subcommand that has to be installed for it.
fn with_tool(tool: &str, command: &str) -> Result<()> {
    if !has_subcommand(tool) {
        return Err(Lacking(format!("cargo {tool} is not installed")).into());
    }
    cargo(command).run()?.success().map(drop)
}

/// Makes the documentation: no link is broken, and nothing else is warned of.
fn documentation() -> Result<()> {
    let task = cargo("doc --workspace --no-deps --locked --quiet");
    task.env("RUSTDOCFLAGS", "-D warnings").run()?.success().map(drop)
}

/// Interprets the tests of the rings, whose pointers no compiler checks.
fn miri() -> Result<()> {
    // By rustup's cargo, which knows toolchains; ours is one of them already.
    let task = |words: &str| {
        Task::new("cargo").words(words).with_our_environment().directory(root()).limit(LIMIT)
    };
    if !task("+nightly miri --version").run().is_ok_and(|it| it.status.success()) {
        let reason = "cargo miri is not installed for the nightly toolchain";
        return Err(Lacking(reason.to_owned()).into());
    }
    let tests = "+nightly miri test --package hostmem --lib --locked --quiet ring::tests";
    task(tests).run()?.success().map(drop)
}
