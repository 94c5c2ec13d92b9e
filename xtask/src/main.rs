//! Project tasks: `cargo xtask demo`, `test`, `check`, `conformance`, `nccl`, `stack`, `crates`, `services`, `bench`,
//! `apps`, `attack`, `chaos`, `fuzz`, `gateware`, `guest`, `dist`, `book`, `pictures`, `index`, `regs` and `bindings`.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use terminal::USAGE;

mod apps;
mod apt;
mod attack;
mod bench;
mod bindings;
mod book;
mod cache;
mod cargo;
mod cases;
mod chaos;
mod checks;
mod conformance;
mod crates;
mod demo;
mod dist;
mod fuzz;
mod gateware;
mod generated;
mod guest;
mod index;
mod libtest;
mod nccl;
mod network;
mod pictures;
mod regs;
mod roots;
mod selection;
mod services;
mod setup;
mod stack;
mod suites;
mod test;
mod tool;
mod wheels;

/// Tasks of the Balboa project; each does its own set-up.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the distribution's ib_write_bw and its kin between two software cards
    Demo,
    /// Run every check and test, and count them
    Test(test::Options),
    /// Run the checks beside the tests: formatting, clippy, documentation, licences and others
    Check(checks::Options),
    /// Run rdma-core's own tests of verbs, pyverbs, on a software card
    Conformance(conformance::Options),
    /// Run NCCL's own transport for verbs, compiled without a GPU, between software cards
    Nccl(nccl::Options),
    /// Run the published card's RoCE stack, its authors' code, beside software cards
    Stack(stack::Options),
    /// Run the tests and examples of the crates by which Rust programs use verbs, on software cards
    Crates(crates::Options),
    /// Judge the services on the path of packets by numpy, by plain searches and by recorded vectors
    Services(services::Options),
    /// Measure software cards beside TCP and UCX, and judge the figures
    Bench(bench::Options),
    /// Run other projects' programs, as docs/applications.md and its pages describe
    Apps(apps::Options),
    /// Attack a balboad in every known way, and measure its memory, its work and the delay of other programs
    Attack(attack::Options),
    /// Kill and stop programs and balboads at random, and check that the others go on
    Chaos(chaos::Options),
    /// Feed a fuzz target for some minutes, guided by coverage
    Fuzz(fuzz::Options),
    /// Lint, simulate and synthesize the queue engine's RTL
    #[command(subcommand)]
    Gateware(gateware::Gateware),
    /// Run simulated networks, and judge their congestion, pauses and losses
    Network(network::Options),
    /// Test in a virtual machine, with kernels and devices that this machine lacks
    #[command(subcommand)]
    Guest(guest::Guest),
    /// Make the Debian packages, in target/dist: the programs, documents, and a provider for each release of rdma-core
    Dist(dist::Options),
    /// Make the book of the documents, in target/book
    Book,
    /// Draw the pictures of the documents from the texts in docs/pictures and from tables in the code
    Pictures(generated::Options),
    /// List the tests of attacks in docs/security-tests.md, by attacker
    Index(generated::Options),
    /// Generate the card contract: the document, the C header and the SystemVerilog package
    Regs(generated::Options),
    /// Generate the types of a release in verbs-sys again, from rdma-core's source
    Bindings(bindings::Options),
}

const MISSING: u8 = 3;
const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 something failed; 2 wrong arguments, or an unknown name; 3 packages are missing
and cannot be installed (the line that installs them is printed).";

fn main() -> ExitCode {
    let arguments: Arguments = match terminal::parse("cargo xtask", "task", USAGE) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let outcome = match arguments.task {
        Task::Demo => demo::demo(),
        Task::Test(options) => test::test(&options),
        Task::Check(options) => checks::check(&options),
        Task::Conformance(options) => conformance::conformance(&options),
        Task::Nccl(options) => nccl::nccl(&options),
        Task::Stack(options) => stack::stack(&options),
        Task::Crates(options) => crates::crates(&options),
        Task::Services(options) => services::services(&options),
        Task::Bench(options) => bench::bench(&options),
        Task::Apps(options) => apps::apps(&options),
        Task::Attack(options) => attack::attack(&options),
        Task::Gateware(task) => gateware::gateware(&task),
        Task::Network(options) => network::network(&options),
        Task::Chaos(options) => chaos::chaos(&options),
        Task::Fuzz(options) => fuzz::fuzz(&options),
        Task::Guest(task) => guest::guest(&task),
        Task::Dist(options) => dist::dist(&options),
        Task::Book => book::book(),
        Task::Pictures(options) => pictures::pictures(&options),
        Task::Index(options) => index::index(&options),
        Task::Regs(options) => regs::regs(&options),
        Task::Bindings(options) => bindings::bindings(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Of several lines, where a program that failed is shown.
            let _ = writeln!(std::io::stderr(), "cargo xtask: {error:#}");
            if error.is::<setup::Missing>() {
                ExitCode::from(MISSING)
            } else if error.is::<selection::NoName>() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
