//! The pictures of docs/, as SVG: of texts that lie beside them, and of tables in the code.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use terminal::report;

use crate::cargo::root;
use crate::checks::links;

mod boxes;
mod crates;
mod sequence;
mod states;
mod svg;

/// Where pictures and their texts lie, from the workspace's root.
const FOLDER: &str = "docs/pictures";

/// `cargo xtask pictures`.
#[derive(Debug, Args)]
pub struct Options {
    /// Write nothing; fail when a picture is not what would be drawn
    #[arg(long)]
    check: bool,
}

/// Draws the pictures, or checks them.
///
/// # Errors
/// When a text cannot be drawn, and when a picture is stale or cannot be written.
pub fn pictures(options: &Options) -> Result<ExitCode> {
    if options.check {
        check()?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, picture) in drawn()? {
        let file = root().join(FOLDER).join(&name);
        fs::write(&file, picture).with_context(|| format!("cannot write {}", file.display()))?;
        report!("{FOLDER}/{name}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails unless each picture is what its text or its table says, and no other picture is there.
///
/// # Errors
/// With the pictures that are stale.
pub fn check() -> Result<()> {
    let drawn = drawn()?;
    let mut stale = Vec::new();
    for (name, picture) in &drawn {
        if fs::read_to_string(root().join(FOLDER).join(name)).unwrap_or_default() != *picture {
            stale.push(name.clone());
        }
    }
    for file in links::files_below(&root().join(FOLDER), "svg")? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !drawn.iter().any(|(it, _)| *it == name) {
            stale.push(name);
        }
    }
    ensure!(
        stale.is_empty(),
        "pictures in {FOLDER} are stale: {}; draw them again with cargo xtask pictures",
        stale.join(", ")
    );
    Ok(())
}

/// Every picture: the name of its file, and the file.
fn drawn() -> Result<Vec<(String, String)>> {
    let mut drawn = vec![
        ("queue-pair-states.svg".to_owned(), states::draw()?),
        ("crates.svg".to_owned(), crates::draw()?),
    ];
    for file in links::files_below(&root().join(FOLDER), "txt")? {
        let text = fs::read_to_string(&file)?;
        let picture = draw(&text).with_context(|| format!("in {}", file.display()))?;
        let name = file.with_extension("svg");
        let name = name.file_name().context("a text without a name")?.to_string_lossy();
        drawn.push((name.into_owned(), picture));
    }
    Ok(drawn)
}

/// Draws a text, whose first line says what kind of picture it is and has its title.
fn draw(text: &str) -> Result<String> {
    let (first, rest) = text.split_once('\n').context("a text of one line")?;
    match first.split_once(' ') {
        Some(("boxes", title)) => boxes::draw(title, rest),
        Some(("sequence", title)) => sequence::draw(title, rest),
        _ => bail!("{first:?}: neither `boxes TITLE` nor `sequence TITLE`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_are_what_texts_and_tables_say() {
        if let Err(error) = check() {
            panic!("{error:#}");
        }
    }

    #[test]
    fn a_text_that_cannot_be_drawn_is_refused() {
        for text in [
            "circles A title\n",
            "boxes A title\nbox a 1 2 three 4 a\n",
            "boxes A title\nbox a 1 2 3 4 a\narrow a b\n",
            "sequence A title\nA->>B: who\n",
            "sequence A title\nparticipant A as one\nA->B: who\n",
        ] {
            assert!(draw(text).is_err(), "{text}");
        }
    }
}
