//! What a shell and `man` are told of the command line.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use terminal::say;

use crate::args::Arguments;

/// Prints what completes the command line.
///
/// # Errors
/// When it cannot be printed.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "balboa", &mut script);
    Ok(say(format_args!("{}", String::from_utf8(script)?))?)
}

/// Writes a page for the program and one for each of its commands.
///
/// # Errors
/// When a file cannot be written.
pub fn manual(directory: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(Arguments::command(), directory)
        .with_context(|| format!("manual pages in {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_none_is_hidden_ones() {
        let home = tempfile::tempdir().unwrap();
        manual(home.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(home.path().join(name));
        assert!(page("balboa.1").unwrap().contains("balboa\\-doctor"));
        assert!(page("balboa-doctor.1").unwrap().contains("Exit codes"));
        assert!(page("balboa-image-make.1").is_ok() && page("balboa-manual.1").is_err());
    }
}
