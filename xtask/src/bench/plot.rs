//! The plot: two panels side by side, both axes logarithmic, as plain SVG.
//!
//! The layout depends on the curves alone, so that the picture changes only where figures do.

use std::fmt::Write as _;

use super::sweep::{Curve, Curves};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 470.0;
const PANEL_WIDTH: f64 = 400.0;
const PANEL_HEIGHT: f64 = 280.0;
const PANEL_TOP: f64 = 50.0;
const PANEL_LEFTS: [f64; 2] = [75.0, 575.0];
/// Legend: below the panels, so many entries on a line.
const LEGEND_TOP: f64 = PANEL_TOP + PANEL_HEIGHT + 70.0;
const LEGEND_LINE: f64 = 20.0;
const LEGEND_COLUMNS: usize = 2;
const LEGEND_COLUMN: f64 = 200.0;
/// A style for each curve's name, ours in strong colours. Readable without colours by the dashes.
const STYLES: [(&str, &str, &str); 6] = [
    ("balboa WRITE", "#c1121f", "none"),
    ("balboa READ", "#e36414", "none"),
    ("balboa SEND", "#7b2cbf", "none"),
    ("TCP", "#495057", "2 4"),
    ("UCX over TCP", "#1d6fa5", "6 4"),
    ("UCX over shared memory", "#2b9348", "10 3 2 3"),
];

/// Draws the curves.
pub fn svg(curves: &Curves) -> String {
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"
    );
    let [left, right] = PANEL_LEFTS;
    panel(&mut svg, left, "Bandwidth, MB/s (10^6 bytes per second)", &curves.bandwidth);
    panel(&mut svg, right, "Latency one way, \u{b5}s, median", &curves.latency);
    svg.push_str("</svg>\n");
    svg
}

/// One axis, logarithmic, from one power of its base to another.
struct Axis {
    base: f64,
    from: i32,
    to: i32,
}

impl Axis {
    /// The axis that holds all values.
    fn of(base: f64, values: impl Iterator<Item = f64> + Clone) -> Self {
        let smallest = values.clone().fold(f64::MAX, f64::min);
        let largest = values.fold(f64::MIN, f64::max);
        let power = |value: f64| value.max(1e-3).log(base);
        // A hair of slack, for powers that are not exact.
        let from = (power(smallest) + 1e-9).floor() as i32;
        let to = (power(largest) - 1e-9).ceil() as i32;
        Self { base, from, to: to.max(from + 1) }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let power = value.max(1e-3).log(self.base);
        (power - f64::from(self.from)) / f64::from(self.to - self.from)
    }
}

fn panel(svg: &mut String, left: f64, title: &str, curves: &[Curve]) {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    if points().next().is_none() {
        return;
    }
    let sizes = Axis::of(4.0, points().map(|point| point.0 as f64));
    let values = Axis::of(10.0, points().map(|point| point.1));
    let x = |size: u64| left + PANEL_WIDTH * sizes.place(size as f64);
    let y = |value: f64| PANEL_TOP + PANEL_HEIGHT * (1.0 - values.place(value));
    let (right, bottom) = (left + PANEL_WIDTH, PANEL_TOP + PANEL_HEIGHT);
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"30\" font-size=\"15\" font-weight=\"bold\">{title}</text>"
    );
    for power in sizes.from..=sizes.to {
        let size = 4u64.saturating_pow(u32::try_from(power).unwrap_or(0));
        grid(svg, (x(size), PANEL_TOP), (x(size), bottom));
        label(svg, (x(size), bottom + 18.0), "middle", &bytes(size));
    }
    for power in values.from..=values.to {
        let value = 10f64.powi(power);
        grid(svg, (left, y(value)), (right, y(value)));
        label(svg, (left - 8.0, y(value) + 4.0), "end", &value.to_string());
    }
    label(svg, (left + PANEL_WIDTH / 2.0, bottom + 40.0), "middle", "message size, bytes");
    for (index, curve) in curves.iter().enumerate() {
        let (colour, dashes) = style(curve.name);
        let line: Vec<String> = curve
            .points
            .iter()
            .map(|&(size, value)| format!("{:.1},{:.1}", x(size), y(value)))
            .collect();
        let stroke = format!(
            "stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\" fill=\"none\""
        );
        let _ = writeln!(svg, "<polyline {stroke} points=\"{}\"/>", line.join(" "));
        let (row, column) = (index / LEGEND_COLUMNS, index % LEGEND_COLUMNS);
        let at = left + LEGEND_COLUMN * column as f64;
        let height = LEGEND_TOP + LEGEND_LINE * row as f64;
        let _ = writeln!(svg, "<path {stroke} d=\"M{at} {height}h36\"/>");
        label(svg, (at + 44.0, height + 4.0), "start", curve.name);
    }
}

fn grid(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<path stroke=\"#dddddd\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn label(svg: &mut String, at: (f64, f64), anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>",
        at.0, at.1
    );
}

fn style(name: &str) -> (&'static str, &'static str) {
    let known = STYLES.iter().find(|(known, ..)| *known == name);
    known.map_or(("#000000", "none"), |(_, colour, dashes)| (colour, dashes))
}

/// A power of two in short.
fn bytes(size: u64) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..1_048_576 => format!("{}K", size / 1024),
        _ => format!("{}M", size / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &'static str, points: &[(u64, f64)]) -> Curve {
        Curve { name, points: points.to_vec() }
    }

    #[test]
    fn a_picture_is_the_same_each_time_and_stays_within_its_panels() {
        let bandwidth = vec![
            curve("balboa WRITE", &[(64, 90.0), (65_536, 4200.0), (4_194_304, 3900.0)]),
            curve("TCP", &[(64, 180.0), (65_536, 5500.0), (4_194_304, 5000.0)]),
        ];
        let latency = vec![curve("balboa WRITE", &[(2, 5.1), (1_048_576, 700.0)])];
        let curves = Curves { bandwidth, latency };
        let svg = svg(&curves);
        assert_eq!(svg, super::svg(&curves));
        assert_eq!(svg.matches("<polyline").count(), 3);
        for line in svg.lines().filter(|line| line.starts_with("<polyline")) {
            let points = line.split("points=\"").nth(1).unwrap().trim_end_matches("\"/>");
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((PANEL_TOP..=PANEL_TOP + PANEL_HEIGHT).contains(&y), "{point}");
                let within = |left: &f64| (*left..=*left + PANEL_WIDTH).contains(&x);
                assert!(PANEL_LEFTS.iter().any(within), "{point}");
            }
        }
    }

    #[test]
    fn axes_hold_their_values_and_no_more() {
        let axis = Axis::of(10.0, [90.0, 4200.0].into_iter());
        assert_eq!((axis.from, axis.to), (1, 4));
        let axis = Axis::of(4.0, [64.0, 4_194_304.0].into_iter());
        assert_eq!((axis.from, axis.to), (3, 11));
        assert_eq!(axis.place(64.0), 0.0);
    }
}
