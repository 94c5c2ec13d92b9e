//! The tool `balboa`: runs verbs programs on cards and shows the cards' state.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::CommandFactory as _;
use terminal::complain;

mod args;
mod bind;
mod capture;
mod cards;
mod cdi;
mod client;
mod doctor;
mod flash;
mod image;
mod perf;
mod ping;
mod port;
mod qos;
mod question;
mod reset;
mod run;
mod service;
mod state;
mod status;
mod top;

/// Exit code of `balboa run` for its own failures; 126 and 127 are env(1)'s.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match arguments.command {
        args::Command::Run(run) => ran("run", run::run(&run)),
        args::Command::Perf(perf) => ran("perf", perf::perf(&perf)),
        args::Command::StartBalboad(start) => told("start-balboad", run::starter::start(&start)),
        args::Command::AnswerNetlink(answer) => {
            told("answer-netlink", run::netlink::answer(&answer))
        }
        args::Command::Bind { address } => told("bind", bind::bind(address)),
        args::Command::Unbind { address } => told("unbind", bind::unbind(address)),
        args::Command::Flash { action } => match flash::flash(&action) {
            Ok(()) => ExitCode::SUCCESS,
            Err(flash::Failure { code, error }) => {
                if let Some(error) = error {
                    complain("balboa flash", format_args!("{error:#}"));
                }
                ExitCode::from(code)
            }
        },
        args::Command::Image { action } => told("image", image::image(&action)),
        args::Command::Cdi { action } => told("cdi", cdi::cdi(&action)),
        args::Command::Link(link) => told("link", port::link(&link)),
        args::Command::Addr(addr) => told("addr", port::addr(&addr)),
        args::Command::Qos(arguments) => match qos::qos(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(qos::Failure { code, error }) => {
                complain("balboa qos", format_args!("{error:#}"));
                ExitCode::from(code)
            }
        },
        args::Command::Service { action } => told("service", service::service(&action)),
        args::Command::Capture(capture) => told("capture", capture::capture(&capture)),
        args::Command::Reset(reset) => match reset::reset(&reset) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(question::DECLINED),
            Err(error) => told("reset", Err(error)),
        },
        args::Command::Top(top) => told("top", top::top(&top)),
        args::Command::Completions { shell } => {
            told("completions", terminal::completions::<args::Arguments>(shell).map_err(Into::into))
        }
        args::Command::Manual { directory } => {
            told("manual", terminal::manual::<args::Arguments>(&directory).map_err(Into::into))
        }
        args::Command::List(list) => told("list", cards::list(&list)),
        args::Command::Show(show) => told("show", cards::show(&show)),
        args::Command::Counters(counters) => told("counters", cards::counters(&counters)),
        args::Command::Doctor(doctor) => match doctor::doctor(&doctor) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => told("doctor", Err(error)),
        },
        args::Command::Ping(ping) => match ping::ping(&ping) {
            Ok(code) => ExitCode::from(code),
            Err(error) => told("ping", Err(error)),
        },
        args::Command::Status(status) => told("status", status::status(&status)),
    }
}

/// The exit code of a command's program, or of a command that became none, whose error is told.
fn ran(command: &str, outcome: Result<u8, run::RunError>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            complain(&format!("balboa {command}"), &failure);
            ExitCode::from(failure.exit_code())
        }
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
    let word = std::env::args_os().nth(1).and_then(|word| word.into_string().ok());
    let command = word.filter(|word| args::Arguments::command().find_subcommand(word).is_some());
    let wrong = if command.as_deref() == Some("run") { OWN_FAILURE } else { terminal::USAGE };
    let program = command.map_or("balboa".into(), |command| format!("balboa {command}"));
    terminal::parse(&program, "command", wrong)
}
