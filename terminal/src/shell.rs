//! A command line for shells and `man`.

use std::io;
use std::path::Path;

use clap::CommandFactory;
pub use clap_complete::Shell;

use crate::say;

/// Prints the completions of a program's command line for a shell.
///
/// # Errors
/// When it cannot be printed.
pub fn completions<P: CommandFactory>(shell: Shell) -> io::Result<()> {
    let (mut command, mut script) = (P::command(), Vec::new());
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    say(format_args!("{}", String::from_utf8_lossy(&script)))
}

/// Writes a page for a program and one for each of its commands, but for those that are hidden.
///
/// # Errors
/// When a file cannot be written.
pub fn manual<P: CommandFactory>(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(P::command(), directory).map_err(|error| {
        io::Error::new(error.kind(), format!("manual pages in {}: {error}", directory.display()))
    })
}

#[cfg(test)]
mod tests {
    use clap::{Parser, Subcommand};

    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "program", after_help = "Exit codes: 0 done.")]
    struct Arguments {
        #[command(subcommand)]
        _task: Task,
    }

    #[derive(Debug, Subcommand)]
    enum Task {
        /// Runs
        #[command(after_help = "Exit codes: 0 ran.")]
        Run,
        #[command(hide = true)]
        Secret,
    }

    #[test]
    fn every_command_has_a_page_and_none_is_hidden_ones() {
        let home = tempfile::tempdir().unwrap();
        manual::<Arguments>(home.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(home.path().join(name));
        let all = page("program.1").unwrap();
        assert!(all.contains("program\\-run") && all.contains("Exit codes: 0 done"), "{all}");
        assert!(page("program-run.1").unwrap().contains("Exit codes: 0 ran"));
        assert!(!all.contains("secret") && page("program-secret.1").is_err());
        let none = manual::<Arguments>(&home.path().join("none")).unwrap_err().to_string();
        assert!(none.starts_with("manual pages in ") && none.contains("none: "), "{none}");
    }
}
