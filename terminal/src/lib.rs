//! The common behaviour of the project's programs: an error is one sentence, the log goes to standard error or to
//! the journal behind it, files that a user names are opened with care, an output that cannot be written is an
//! error and no panic, and shells and `man` know the command lines.

#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, ErrorKind as IoError, Write as _};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

pub mod file;
mod journal;
mod limit;
mod logger;
mod shell;
mod tty;

pub use logger::{Log, start_log};
pub use shell::{Shell, completions, manual};

/// The exit code for wrong arguments.
pub const USAGE: u8 = 2;

/// Parses the command line of this process.
///
/// `program` begins the sentence that tells the fault, `wanted` is the name of its subcommands
/// there, and `wrong` is the exit code then, [`USAGE`] unless the program has another.
///
/// # Errors
/// The exit code to end with, when help was asked for or the command line is wrong; everything has
/// been printed.
pub fn parse<P: Parser>(program: &str, wanted: &str, wrong: u8) -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        if !error.use_stderr() {
            // Nothing is left to tell it to if printing fails.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        complain(program, sentence(&error, wanted));
        ExitCode::from(wrong)
    })
}

/// Prints an error on standard error, in one line.
pub fn complain(program: &str, what: impl fmt::Display) {
    // Nothing is left to tell it to if that fails.
    let _ = writeln!(io::stderr(), "{program}: {}", one_line(&what.to_string()));
}

/// A text in one line, without control characters: names in it may be anything.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ").replace(char::is_control, "?")
}

/// Writes to standard output. A reader that has gone is no error.
///
/// # Errors
/// When it cannot be written.
pub fn say(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == IoError::BrokenPipe => Ok(()),
        Err(error) => {
            let told = format!("cannot write to standard output: {error}");
            Err(io::Error::new(error.kind(), told))
        }
        Ok(()) => Ok(()),
    }
}

/// Writes a sentence to standard output, in one line, with any names in it.
///
/// # Errors
/// As [`say`].
pub fn say_line(sentence: &str) -> io::Result<()> {
    say(format_args!("{}\n", one_line(sentence)))
}

/// Prints a line of a long run's report, as `println!`, but the run goes on when its reader has gone.
#[macro_export]
macro_rules! report {
    ($($text:tt)*) => { $crate::report_line(::core::format_args!($($text)*)) };
}

/// Prints a line for [`report!`].
#[doc(hidden)]
pub fn report_line(text: fmt::Arguments<'_>) {
    // The exit code still tells how the run ended.
    let _ = writeln!(io::stdout(), "{text}");
}

/// The fault of a command line, as one line that ends with the way to the help.
///
/// It keeps the text before the first empty line, and drops usage and hints behind it.
fn sentence(error: &clap::Error, wanted: &str) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("no {wanted} is given (see --help)");
    }
    let rendered = error.render().to_string();
    let complaint = rendered.strip_prefix("error: ").unwrap_or(&rendered);
    let lines = complaint.lines().map(str::trim).take_while(|line| !line.is_empty());
    let sentence = lines.collect::<Vec<_>>().join(" ");
    format!("{sentence} (see --help)")
}

#[cfg(test)]
mod tests {
    use clap::{Subcommand, ValueEnum};

    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "program")]
    struct Arguments {
        #[command(subcommand)]
        _task: Task,
    }

    #[derive(Debug, Subcommand)]
    enum Task {
        Run {
            #[arg(long = "kernel", value_name = "WHICH")]
            _kernel: Option<Kernel>,
            #[arg(required = true, value_name = "CMD")]
            _command: Vec<String>,
        },
    }

    #[derive(Clone, Copy, Debug, ValueEnum)]
    enum Kernel {
        Old,
        New,
    }

    #[test]
    fn a_sentence_is_one_line_whatever_is_named_in_it() {
        assert_eq!(one_line("no file a\nb\r\n\n c"), "no file a b c");
        assert_eq!(one_line("\u{1b}[2Jx\u{9b}"), "?[2Jx?");
    }

    #[test]
    fn a_complaint_of_several_lines_becomes_one() {
        let told = |line: &[&str]| {
            let line = std::iter::once(&"program").chain(line);
            sentence(&Arguments::try_parse_from(line).unwrap_err(), "task")
        };
        assert_eq!(told(&[]), "no task is given (see --help)");
        assert_eq!(
            told(&["run"]),
            "the following required arguments were not provided: <CMD>... (see --help)"
        );
        assert_eq!(
            told(&["run", "--kernel", "x"]),
            "invalid value 'x' for '--kernel <WHICH>' [possible values: old, new] (see --help)"
        );
    }
}
