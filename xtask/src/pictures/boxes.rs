//! Boxes and arrows between them, at places that the text says in units of ten pixels:
//!
//! ```text
//! group X Y WIDTH HEIGHT NAME
//! box ID X Y WIDTH HEIGHT WORDS|MORE WORDS
//! arrow ID ID [WORDS]
//! dashed ID ID [WORDS]
//! note X Y WORDS
//! ```

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

use super::svg::{Frame, Picture, Point, Stroke};

const UNIT: usize = 10;

/// Draws the text of a picture.
pub fn draw(title: &str, text: &str) -> Result<String> {
    let mut picture = Picture::default();
    let mut frames = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        add(&mut picture, &mut frames, line).with_context(|| format!("{line:?}"))?;
    }
    Ok(picture.finish(title, "the text beside it"))
}

/// Draws one line's element.
fn add<'a>(
    picture: &mut Picture,
    frames: &mut BTreeMap<&'a str, Frame>,
    line: &'a str,
) -> Result<()> {
    let (kind, rest) = line.split_once(' ').context("one word")?;
    match kind {
        "group" => {
            let (numbers, name) = numbers::<4>(rest)?;
            picture.around(frame(numbers), name);
        }
        "box" => {
            let (id, rest) = rest.split_once(' ').context("a box has a name")?;
            let (numbers, words) = numbers::<4>(rest)?;
            let frame = frame(numbers);
            picture.framed(frame, &words.split('|').collect::<Vec<_>>());
            frames.insert(id, frame);
        }
        "arrow" | "dashed" => {
            let mut parts = rest.splitn(3, ' ');
            let mut end = || {
                let id = parts.next().context("two boxes")?;
                frames.get(id).copied().with_context(|| format!("no box {id}"))
            };
            let (from, to) = (end()?, end()?);
            let line = from.line_to(to);
            let stroke = if kind == "arrow" { Stroke::Solid } else { Stroke::Dashed };
            picture.arrow(&line, stroke);
            if let Some(words) = parts.next() {
                picture.label(line, words);
            }
        }
        "note" => {
            let ([x, y], words) = numbers::<2>(rest)?;
            picture.words(Point { x, y }, words, "note");
        }
        _ => bail!("neither a group, a box, an arrow nor a note"),
    }
    Ok(())
}

fn frame([x, y, width, height]: [usize; 4]) -> Frame {
    Frame { x, y, width, height }
}

/// The numbers that a line begins with, in pixels, and its rest.
fn numbers<const N: usize>(line: &str) -> Result<([usize; N], &str)> {
    let mut numbers = [0; N];
    let mut rest = line;
    for number in &mut numbers {
        let (word, behind) = rest.split_once(' ').context("numbers are missing")?;
        let units: usize = word.parse().with_context(|| format!("{word:?} is no number"))?;
        (*number, rest) = (units * UNIT, behind);
    }
    Ok((numbers, rest))
}
