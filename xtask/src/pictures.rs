//! The pictures of docs/, as SVG: of texts that lie beside them, and of tables in the code.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::cargo::root;
use crate::checks::links;
use crate::generated::{Generated, Options};

mod boxes;
mod crates;
mod sequence;
mod states;
mod svg;

/// Where pictures and their texts lie, from the workspace's root.
const FOLDER: &str = "docs/pictures";

/// `cargo xtask pictures`.
///
/// # Errors
/// When a text cannot be drawn, and when a picture is stale or cannot be written.
pub fn pictures(options: &Options) -> Result<ExitCode> {
    generated()?.write_or_check(options)
}

/// Every picture: those of tables, and one of each text.
fn generated() -> Result<Generated> {
    let mut files = vec![
        (format!("{FOLDER}/queue-pair-states.svg"), states::draw()?),
        (format!("{FOLDER}/crates.svg"), crates::draw()?),
    ];
    let folder = root().join(FOLDER);
    for file in links::files_below(&folder, "txt")? {
        let picture =
            draw(&links::read(&file)?).with_context(|| format!("in {}", file.display()))?;
        files.push((from_root(&file.with_extension("svg"))?, picture));
    }
    let mut left_over = Vec::new();
    for file in links::files_below(&folder, "svg")? {
        let path = from_root(&file)?;
        if files.iter().all(|(it, _)| *it != path) {
            left_over.push(path);
        }
    }
    Ok(Generated { task: "pictures", files, left_over })
}

fn from_root(file: &Path) -> Result<String> {
    Ok(file.strip_prefix(root())?.display().to_string())
}

/// Draws a text, whose first line has the kind of picture and its title.
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
        if let Err(error) = generated().unwrap().check() {
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
