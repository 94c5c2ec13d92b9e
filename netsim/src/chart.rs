//! A small writer of line charts as SVG. All coordinates are whole numbers: the same numbers give the same bytes.

use std::fmt::Write as _;

/// The drawing's size, and that of the area inside the axes.
const SIZE: (u64, u64) = (760, 360);
const INSIDE: (u64, u64) = (560, 280);

/// Where the axes cross.
const LEFT: u64 = 80;
const BOTTOM: u64 = 320;

/// Lines that are named beside the chart.
const NAMED: usize = 16;

const COLOURS: [&str; 8] =
    ["#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f"];

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// Its points, from left to right: nanoseconds, and the value then.
    pub points: Vec<(u64, u64)>,
}

/// A chart of values over time; both axes begin at 0.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title.
    pub title: &'static str,
    /// The unit upwards.
    pub y: &'static str,
    /// Its lines.
    pub lines: Vec<Line>,
}

impl Chart {
    /// The chart as an SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (right, top) = (points().map(|it| it.0).max(), points().map(|it| it.1).max());
        let most = (right.unwrap_or(0).max(1), top.unwrap_or(0).max(1));
        let (width, height) = SIZE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        let mut text = |x: u64, y: u64, anchor: &str, text: &str| {
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            let _ =
                writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
        };
        text(LEFT, 24, "start", self.title);
        let (unit, nanos) = unit_of(most.0);
        for quarter in 0..=4 {
            let (x, y) = (LEFT + INSIDE.0 * quarter / 4, BOTTOM - INSIDE.1 * quarter / 4);
            text(x, BOTTOM + 16, "middle", &in_tenths(scaled(most.0, quarter, 4), nanos));
            text(LEFT - 6, y + 4, "end", &short(scaled(most.1, quarter, 4)));
        }
        text(LEFT + INSIDE.0, BOTTOM + 32, "end", unit);
        text(LEFT - 6, 24, "end", self.y);
        for (number, line) in self.lines.iter().take(NAMED).enumerate() {
            text(LEFT + INSIDE.0 + 24, 44 + 16 * number as u64, "start", &line.name);
        }
        let (top, right) = (BOTTOM - INSIDE.1, LEFT + INSIDE.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {top}V{BOTTOM}H{right}\" fill=\"none\" stroke=\"black\"/>"
        );
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            if number < NAMED {
                let (x, y) = (right + 8, 40 + 16 * number);
                let _ = writeln!(svg, "<path d=\"M{x} {y}h12\" stroke=\"{colour}\"/>");
            }
            let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" points=\"");
            let mut last = None;
            for (x, y) in &line.points {
                let x = LEFT + scaled(INSIDE.0, *x, most.0);
                let y = BOTTOM - scaled(INSIDE.1, *y, most.1);
                if last.replace((x, y)) != Some((x, y)) {
                    let _ = write!(svg, "{x},{y} ");
                }
            }
            svg.push_str("\"/>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// `whole` times `part` by `of`.
fn scaled(whole: u64, part: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(of)) as u64
}

/// The unit in which so many nanoseconds are a short number, and its nanoseconds.
const fn unit_of(nanos: u64) -> (&'static str, u64) {
    match nanos {
        0..2_000 => ("ns", 1),
        2_000..2_000_000 => ("µs", 1_000),
        _ => ("ms", 1_000_000),
    }
}

/// A number with three digits or so.
fn short(number: u64) -> String {
    for (unit, letter) in [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")] {
        if number >= unit {
            return in_tenths(number, unit) + letter;
        }
    }
    number.to_string()
}

/// A number by its unit, with a tenth where that is one of three digits at most.
fn in_tenths(number: u64, unit: u64) -> String {
    let (whole, tenth) = (number / unit, number % unit * 10 / unit);
    if tenth == 0 || whole >= 100 { whole.to_string() } else { format!("{whole}.{tenth}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_and_scales_them() {
        let line = Line {
            name: "a<b".into(),
            points: vec![(0, 0), (5_000_000, 10), (5_000_001, 10), (10_000_000, 20)],
        };
        let svg = Chart { title: "T", y: "bytes", lines: vec![line] }.svg();
        assert!(svg.contains("points=\"80,320 360,180 640,40 \""), "{svg}");
        assert!(svg.contains(">ms</text>") && svg.contains(">2.5</text>"), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.ends_with("</svg>\n"));
        assert!(Chart { title: "", y: "", lines: vec![] }.svg().ends_with("</svg>\n"));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0, 999, 1_500, 2_000_000, 123_456_789].map(short),
            ["0", "999", "1.5k", "2M", "123M"]
        );
    }
}
