//! `balboa`: runs verbs programs on the card and shows what the card does.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use terminal::complain;

mod args;
mod bind;
mod client;
mod image;
mod port;
mod run;
mod status;

/// Exit code of `balboa run` for its own failures; 126 and 127 are env(1)'s.
const OWN_FAILURE: u8 = 125;
/// Commands that a complaint is told under the name of.
const COMMANDS: [&str; 7] = ["run", "status", "link", "addr", "image", "bind", "unbind"];

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match arguments.command {
        args::Command::Run(run) => {
            let Err(failure) = run::run(&run);
            complain("balboa run", &failure);
            ExitCode::from(failure.exit_code())
        }
        args::Command::Bind { address } => told("bind", bind::bind(address)),
        args::Command::Unbind { address } => told("unbind", bind::unbind(address)),
        args::Command::Image { action } => told("image", image::image(&action)),
        args::Command::Link(link) => told("link", port::link(&link)),
        args::Command::Addr(addr) => told("addr", port::addr(&addr)),
        args::Command::Status(status) => told("status", status::status(&status)),
    }
}

/// The exit code of a command, whose error is told.
fn told(command: &str, outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("balboa {command}"), format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Parses the command line.
///
/// `balboa run` must not fail with a code that its program could have meant, so there even a wrong
/// command line is [`OWN_FAILURE`].
fn parse() -> Result<args::Arguments, ExitCode> {
    let word = std::env::args_os().nth(1);
    let command =
        COMMANDS.into_iter().find(|command| word.as_ref().is_some_and(|it| it == command));
    let program = command.map_or("balboa".into(), |command| format!("balboa {command}"));
    let wrong = if command == Some("run") { OWN_FAILURE } else { terminal::USAGE };
    terminal::parse(&program, "command", wrong)
}
