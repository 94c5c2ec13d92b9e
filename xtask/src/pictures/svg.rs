//! The elements of pictures: boxes, lines with heads, words. Units are pixels.

use std::fmt::Write as _;

/// The width that a letter takes, at most, in the usual fonts.
const LETTER: usize = 8;
/// From one line of words to the next.
pub const LINE: usize = 17;

/// A picture that grows.
#[derive(Debug, Default)]
pub struct Picture {
    body: String,
    width: usize,
    height: usize,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// From end to end.
    Solid,
    /// A dashed line: an answer, or an element that is not always there.
    Dashed,
}

/// A place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub x: usize,
    pub y: usize,
}

/// A box's place and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

impl Frame {
    /// Its middle.
    pub fn middle(&self) -> Point {
        Point { x: self.x + self.width / 2, y: self.y + self.height / 2 }
    }

    /// Where the line from its middle to another place leaves it.
    fn edge_towards(&self, to: Point) -> Point {
        let from = self.middle();
        let (dx, dy) = (to.x.abs_diff(from.x), to.y.abs_diff(from.y));
        let (half_width, half_height) = (self.width / 2, self.height / 2);
        let along = |from: usize, to: usize, by: usize| {
            if to < from { from.saturating_sub(by) } else { from + by }
        };
        // By which of its sides: whether the line is steeper than the box's diagonal.
        if dx * half_height > dy * half_width {
            let rise = dy * half_width / dx;
            Point { x: along(from.x, to.x, half_width), y: along(from.y, to.y, rise) }
        } else {
            let run = (dx * half_height).checked_div(dy).unwrap_or(0);
            Point { x: along(from.x, to.x, run), y: along(from.y, to.y, half_height) }
        }
    }

    /// The line from its edge to another box's, between their middles.
    pub fn line_to(&self, other: Self) -> [Point; 2] {
        [self.edge_towards(other.middle()), other.edge_towards(self.middle())]
    }
}

/// The width that words take.
pub fn width_of(words: &str) -> usize {
    words.chars().count() * LETTER
}

impl Picture {
    /// Makes it reach a place at least.
    pub fn reach(&mut self, x: usize, y: usize) {
        self.width = self.width.max(x);
        self.height = self.height.max(y);
    }

    /// A box with lines of words in its middle.
    pub fn framed(&mut self, frame: Frame, lines: &[&str]) {
        self.rectangle(frame, "box");
        let middle = frame.middle();
        let top = middle.y + 5 - lines.len().saturating_sub(1) * LINE / 2;
        for (i, line) in lines.iter().enumerate() {
            let class = if i == 0 { "strong" } else { "plain" };
            self.words(Point { x: middle.x, y: top + i * LINE }, line, class);
        }
    }

    /// A box around others, with its name in its upper left.
    pub fn around(&mut self, frame: Frame, name: &str) {
        self.rectangle(frame, "group");
        self.words(Point { x: frame.x + 8, y: frame.y + 18 }, name, "name");
    }

    fn rectangle(&mut self, Frame { x, y, width, height }: Frame, class: &str) {
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\"/>"
        );
        self.reach(x + width, y + height);
    }

    /// Words at a place: to its right (`name`, `note`), else around it.
    pub fn words(&mut self, at: Point, words: &str, class: &str) {
        let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let Point { x, y } = at;
        let _ = writeln!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{words}</text>");
        self.reach(x, y);
    }

    /// Words at the middle of a line.
    pub fn label(&mut self, [start, end]: [Point; 2], words: &str) {
        let middle = Point { x: (start.x + end.x) / 2, y: (start.y + end.y) / 2 + 4 };
        self.words(middle, words, "label");
    }

    /// A line through places, with a head at its end.
    pub fn arrow(&mut self, through: &[Point], stroke: Stroke) {
        self.line(through, stroke, " marker-end=\"url(#head)\"");
    }

    /// A line through places.
    pub fn line(&mut self, through: &[Point], stroke: Stroke, more: &str) {
        let class = if stroke == Stroke::Solid { "line" } else { "line dashed" };
        let places: Vec<String> = through.iter().map(|it| format!("{},{}", it.x, it.y)).collect();
        let places = places.join(" ");
        let _ = writeln!(self.body, "<polyline class=\"{class}\" points=\"{places}\"{more}/>");
        through.iter().for_each(|it| self.reach(it.x, it.y));
    }

    /// The file, with a title for readers who cannot see the picture.
    pub fn finish(self, title: &str, made_from: &str) -> String {
        let (width, height) = (self.width + 12, self.height + 12);
        format!(
            "\
<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">
<title>{title}</title>
<!-- Drawn by `cargo xtask pictures` from {made_from}. Do not edit. -->
<style>
text {{ font: 13px sans-serif; fill: #1b1f24; text-anchor: middle; }}
.strong {{ font-weight: 600; }}
.name {{ font-weight: 600; text-anchor: start; fill: #57606a; }}
.note {{ text-anchor: start; }}
.label {{ font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px; }}
.box {{ fill: #eaf2fb; stroke: #3b6ea5; }}
.group {{ fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 4 3; }}
.line {{ fill: none; stroke: #3d444d; stroke-width: 1.2; }}
.dashed {{ stroke-dasharray: 5 4; }}
</style>
<defs><marker id=\"head\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\"><path d=\"M0 1 L9 5 L0 9 z\" fill=\"#3d444d\"/></marker></defs>
<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>
{}</svg>
",
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_leaves_a_box_by_the_side_that_it_crosses() {
        let frame = Frame { x: 100, y: 100, width: 40, height: 20 };
        let leaves = |x, y| frame.edge_towards(Point { x, y });
        assert_eq!(leaves(300, 110), Point { x: 140, y: 110 });
        assert_eq!(leaves(0, 110), Point { x: 100, y: 110 });
        assert_eq!(leaves(120, 300), Point { x: 120, y: 120 });
        assert_eq!(leaves(120, 0), Point { x: 120, y: 100 });
        assert_eq!(leaves(120, 110), Point { x: 120, y: 120 });
    }
}
