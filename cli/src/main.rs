//! `balboa`: runs verbs programs on the card and shows what the card does.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;

mod args;
mod bind;
mod client;
mod run;
mod status;

/// Exit code of `balboa run` for its own failures; 126 and 127 are env(1)'s.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    match arguments.command {
        args::Command::Run(run) => {
            let Err(failure) = run::run(&run);
            eprintln!("balboa run: {failure}");
            ExitCode::from(failure.exit_code())
        }
        args::Command::Bind { address } => told("bind", bind::bind(address)),
        args::Command::Unbind { address } => told("unbind", bind::unbind(address)),
        args::Command::Status(status) => match status::status(&status) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("balboa status: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

/// The exit code of a command, whose error is told.
fn told(command: &str, outcome: vfio::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("balboa {command}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints help or what is wrong with the command line.
///
/// `balboa run` must not fail with a code that its program could have meant, so there even a wrong
/// command line is [`OWN_FAILURE`].
fn usage(error: &clap::Error) -> ExitCode {
    // Nothing is left to tell it to if printing fails.
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    match std::env::args_os().nth(1) {
        Some(command) if command == "run" => ExitCode::from(OWN_FAILURE),
        _ => ExitCode::from(2),
    }
}
