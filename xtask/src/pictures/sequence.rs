//! Messages between lanes, in the order of time, in the words of Mermaid's `sequenceDiagram`:
//!
//! ```text
//! participant A as NAME
//! A->>B: WORDS
//! A-->>B: WORDS, along a dashed line
//! ```

use anyhow::{Context as _, Result};

use super::svg::{Frame, Picture, Point, Stroke, width_of};

const TOP: usize = 12;
const HEAD: usize = 30;
const ROW: usize = 36;
/// How far a message of a lane to itself reaches.
const LOOP: usize = 24;

struct Message<'a> {
    from: usize,
    to: usize,
    words: &'a str,
    stroke: Stroke,
}

/// Draws the text of a picture.
pub fn draw(title: &str, text: &str) -> Result<String> {
    let (mut ids, mut names, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(lane) = line.strip_prefix("participant ") {
            let (id, name) = lane.split_once(" as ").with_context(|| format!("{line:?}"))?;
            ids.push(id);
            names.push(name);
        } else {
            messages.push(message(line, &ids).with_context(|| format!("{line:?}"))?);
        }
    }
    let middles = middles(&names, &messages);
    let mut picture = Picture::default();
    let bottom = TOP + HEAD + messages.len() * ROW + ROW / 2;
    for (name, &x) in names.iter().zip(&middles) {
        let lane = [Point { x, y: TOP + HEAD }, Point { x, y: bottom }];
        picture.line(&lane, Stroke::Dashed, "");
        let width = width_of(name) + 20;
        picture.framed(Frame { x: x - width / 2, y: TOP, width, height: HEAD }, &[name]);
    }
    for (i, message) in messages.iter().enumerate() {
        let y = TOP + HEAD + (i + 1) * ROW;
        row(&mut picture, message, &middles, y);
    }
    Ok(picture.finish(title, "the text beside it"))
}

fn message<'a>(line: &'a str, ids: &[&str]) -> Result<Message<'a>> {
    let (ends, words) = line.split_once(": ").context("no words")?;
    let (from, to) = ends.split_once("->>").context("no arrow")?;
    let (from, stroke) = match from.strip_suffix('-') {
        Some(from) => (from, Stroke::Dashed),
        None => (from, Stroke::Solid),
    };
    let lane = |id: &str| {
        ids.iter().position(|it| *it == id).with_context(|| format!("no participant {id}"))
    };
    Ok(Message { from: lane(from)?, to: lane(to)?, words, stroke })
}

/// Where each lane stands: so far from the one before that names and words have room.
fn middles(names: &[&str], messages: &[Message<'_>]) -> Vec<usize> {
    let mut at = Vec::new();
    for (lane, name) in names.iter().enumerate() {
        let half = width_of(name) / 2 + 20;
        let mut x = match lane.checked_sub(1) {
            Some(before) => at[before] + width_of(names[before]) / 2 + half + 10,
            None => half,
        };
        for message in messages {
            let (first, last) = (message.from.min(message.to), message.from.max(message.to));
            if first != last && last == lane {
                x = x.max(at[first] + width_of(message.words) + 24);
            }
            if first == last && first + 1 == lane {
                x = x.max(at[first] + LOOP + width_of(message.words) + 24);
            }
        }
        at.push(x);
    }
    at
}

fn row(picture: &mut Picture, message: &Message<'_>, middles: &[usize], y: usize) {
    let (from, to) = (middles[message.from], middles[message.to]);
    if from == to {
        let out = from + LOOP;
        let through = [(from, y - 8), (out, y - 8), (out, y + 8), (from, y + 8)];
        picture.arrow(&through.map(|(x, y)| Point { x, y }), message.stroke);
        picture.words(Point { x: out + 6, y: y + 4 }, message.words, "note");
    } else {
        picture.arrow(&[Point { x: from, y }, Point { x: to, y }], message.stroke);
        let above = Point { x: (from + to) / 2, y: y - 6 };
        picture.words(above, message.words, "label");
    }
}
