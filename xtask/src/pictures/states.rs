//! The states of a queue pair, from the table of transitions that engine and driver use.

use anyhow::{Context as _, Result};
use fpga_regs::engine::qp::{QpState, QpType};
use fpga_regs::engine::transition::transitions;

use super::svg::{Frame, Picture, Point, Stroke};

const WIDTH: usize = 90;
const HEIGHT: usize = 40;

/// The places of the states: a program's usual way in a row, and the states of errors below.
const PLACES: [(QpState, usize, usize); 7] = [
    (QpState::Reset, 20, 30),
    (QpState::Init, 180, 30),
    (QpState::Rtr, 340, 30),
    (QpState::Rts, 500, 30),
    (QpState::Sqd, 680, 30),
    (QpState::Sqe, 680, 110),
    (QpState::Err, 340, 110),
];

/// Draws the transitions of RC, UC and UD from one state to another. Those from every state are said in words.
pub fn draw() -> Result<String> {
    let kinds = [("RC", QpType::Rc), ("UC", QpType::Uc), ("UD", QpType::Ud)];
    let mut picture = Picture::default();
    let rows = || kinds.iter().flat_map(|(_, kind)| transitions(*kind));
    for row in rows() {
        frame_of(row.from)?;
        frame_of(row.to)?;
    }
    for (state, x, y) in PLACES {
        let name = format!("{state:?}").to_uppercase();
        picture.framed(Frame { x, y, width: WIDTH, height: HEIGHT }, &[&name]);
    }
    let every = |to: QpState| {
        PLACES
            .iter()
            .map(|(from, ..)| from)
            .filter(|from| **from != to)
            .all(|from| rows().filter(|row| row.from == *from).any(|row| row.to == to))
    };
    let (to_reset, to_err) = (every(QpState::Reset), every(QpState::Err));
    for (from, ..) in PLACES {
        for (to, ..) in PLACES {
            let of: Vec<&str> = kinds
                .iter()
                .filter(|(_, kind)| {
                    transitions(*kind).iter().any(|row| row.from == from && row.to == to)
                })
                .map(|(name, _)| *name)
                .collect();
            let said = to == QpState::Reset && to_reset || to == QpState::Err && to_err;
            if of.is_empty() || from == to || said {
                continue;
            }
            let words = if of.len() == kinds.len() { String::new() } else { of.join(", ") };
            arrow(&mut picture, from, to, &words)?;
        }
    }
    let mut y = 190;
    for (state, is_said) in [("RESET", to_reset), ("ERR", to_err)] {
        if is_said {
            let words = format!("From every state a program can go to {state}.");
            picture.words(Point { x: 20, y }, &words, "note");
            y += 20;
        }
    }
    let words = "An error takes a queue pair to ERR; that of a send on UC or UD takes it to SQE.";
    picture.words(Point { x: 20, y }, words, "note");
    // Letters have no width here: so far the words reach.
    picture.reach(780, y);
    Ok(picture.finish("The states of a queue pair", "fpga-regs' table of transitions"))
}

fn frame_of(state: QpState) -> Result<Frame> {
    let found = PLACES.iter().find(|(it, ..)| *it == state);
    let found = found.with_context(|| format!("the picture has no place for {state:?}"))?;
    Ok(Frame { x: found.1, y: found.2, width: WIDTH, height: HEIGHT })
}

/// Draws an arrow, a little to the left of its way, so that one back has room beside it.
fn arrow(picture: &mut Picture, from: QpState, to: QpState, words: &str) -> Result<()> {
    let line = frame_of(from)?.line_to(frame_of(to)?);
    let is_rightwards = line[0].x <= line[1].x;
    let line = line.map(|at| Point { y: if is_rightwards { at.y - 6 } else { at.y + 6 }, ..at });
    picture.arrow(&line, Stroke::Solid);
    if !words.is_empty() {
        picture.label(line, words);
    }
    Ok(())
}
