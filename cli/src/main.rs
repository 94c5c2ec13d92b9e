//! `balboa`: runs verbs programs on the card and shows what the card does.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

mod args;
mod bind;
mod client;
mod run;
mod status;

/// Exit code of `balboa run` for its own failures; 126 and 127 are env(1)'s.
const OWN_FAILURE: u8 = 125;
/// Commands that a complaint is told under the name of.
const COMMANDS: [&str; 4] = ["run", "status", "bind", "unbind"];
/// Exit code for wrong arguments, but those of `balboa run`.
const USAGE: u8 = 2;

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

/// Prints help, or in one sentence what is wrong with the command line.
///
/// `balboa run` must not fail with a code that its program could have meant, so there even a wrong
/// command line is [`OWN_FAILURE`].
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing is left to tell it to if printing fails.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let sentence = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "no command is given (see --help)".to_owned()
        }
        _ => shim_abi::one_sentence(&error.render().to_string()),
    };
    let is_command = |word: &OsString| COMMANDS.iter().any(|command| word == command);
    let command = std::env::args_os().nth(1).filter(is_command);
    match command.as_ref().and_then(|word| word.to_str()) {
        Some(command) => eprintln!("balboa {command}: {sentence}"),
        None => eprintln!("balboa: {sentence}"),
    }
    let runs = command.is_some_and(|command| command == "run");
    ExitCode::from(if runs { OWN_FAILURE } else { USAGE })
}
