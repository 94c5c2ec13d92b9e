//! A person's yes, before a card loses its image.

use std::io::{self, BufRead, IsTerminal as _};

use anyhow::bail;
use terminal::say;

/// Exit code of a command that the person then declined.
pub const DECLINED: u8 = 3;

/// Asks a person; whether the answer is yes.
///
/// # Errors
/// When standard input is no terminal, or cannot be read.
pub fn ask(question: &str) -> anyhow::Result<bool> {
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        bail!("cannot ask for confirmation, for standard input is no terminal: say --yes");
    }
    say(format_args!("{question} [y/N] "))?;
    Ok(answer(&mut input)?)
}

/// The answer in a line; an empty one means no, and `None` is an unclear one.
fn answer(input: &mut impl BufRead) -> io::Result<bool> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    Ok(["y", "yes"].contains(&&*line.trim().to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_is_one() {
        for (line, yes) in [("y\n", true), (" YES\n", true), ("yes", true), ("", false)] {
            assert_eq!(answer(&mut line.as_bytes()).unwrap(), yes, "{line:?}");
        }
        for line in ["\n", "n\n", "no\n", "yeah\n", "\ny\n"] {
            assert!(!answer(&mut line.as_bytes()).unwrap(), "{line:?}");
        }
        assert!(answer(&mut &[0xff, b'\n'][..]).is_err(), "it is no text");
    }
}
