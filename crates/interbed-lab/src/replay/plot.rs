//! Draws plots over sizes as an SVG picture, one plot below the other. Lines differ in dashes and marks too, so that
//! the picture can be read without colours.
//!
//! The picture is written by hand and not with `plotters`, of which only the axes would serve: that crate draws each
//! dash as a stroke of its own, and has neither labels that keep clear of each other nor a title for screen readers.

use std::fmt::{self, Write};

use interbed_plan::words::grouped;

const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 500.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 690.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 436.0;

/// The smallest distance between two labels, in units of the picture.
const LABEL_HEIGHT: f64 = 17.0;

/// The number of styles for policies; the styles for references follow them.
const POLICY_STYLES: usize = 6;

/// The styles of lines: colours that people with any colour vision can tell apart, and dashes for print.
const STYLES: [(&str, &str); 8] = [
    ("#0072b2", ""),
    ("#d55e00", "7 3"),
    ("#009e73", "2 3"),
    ("#cc79a7", "9 3 2 3"),
    ("#8a6d00", "5 5"),
    ("#56b4e9", "12 4"),
    ("#000000", "4 2"),
    ("#666666", "1 3"),
];

/// One plot of the picture.
pub(crate) struct Panel {
    pub heading: String,
    /// The name of the axis of sizes.
    pub axis: String,
    pub unit: Unit,
    pub lines: Vec<Line>,
}

/// The unit of a plot's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The values are shares, and are shown in %.
    Percent,
    /// The values are multiples.
    Times,
}

/// One line of a plot.
pub(crate) struct Line {
    pub label: String,
    /// The value at each size. [size]
    pub values: Vec<f64>,
    pub role: Role,
}

/// What a line stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The line stands for what is used by default.
    Default,
    /// The line stands for what can be used instead.
    Other,
    /// The line stands for a reference that no server can reach.
    Reference,
}

/// Returns the picture of `panels` over `sizes`, which must be ascending.
pub(crate) fn svg(title: &str, sizes: &[usize], panels: &[Panel]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, title, sizes, panels);
    text
}

fn write(out: &mut String, title: &str, sizes: &[usize], panels: &[Panel]) -> fmt::Result {
    let (title, height) = (escaped(title), HEIGHT * panels.len() as f64);
    let headings: Vec<String> = panels.iter().map(|panel| escaped(&panel.heading)).collect();
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">"
    )?;
    writeln!(out, "<title>{}, {title}</title>", headings.join("; "))?;
    writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>")?;
    for (index, (panel, heading)) in panels.iter().zip(&headings).enumerate() {
        writeln!(out, "<g transform=\"translate(0 {})\">", HEIGHT * index as f64)?;
        writeln!(out, "<text x=\"{LEFT}\" y=\"26\" font-size=\"17\" font-weight=\"600\">{heading}</text>")?;
        writeln!(out, "<text x=\"{LEFT}\" y=\"44\" fill=\"#666\">{title}</text>")?;
        Plot::new(sizes, panel).write(out)?;
        writeln!(out, "</g>")?;
    }
    writeln!(out, "</svg>")
}

struct Plot<'l> {
    sizes: &'l [usize],
    panel: &'l Panel,
    /// The value at the upper edge.
    top: f64,
    /// The distance between two marks on the left axis, as a value.
    step: f64,
}

impl<'l> Plot<'l> {
    fn new(sizes: &'l [usize], panel: &'l Panel) -> Self {
        let most = panel.lines.iter().flat_map(|line| &line.values).copied().fold(0.01, f64::max);
        let decades = (-3..=6).map(|exponent| 10f64.powi(exponent));
        let step =
            decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * decade)).find(|step| most / step <= 8.0);
        let step = step.unwrap_or(most);
        Self { sizes, panel, top: (most / step).ceil() * step, step }
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        self.write_grid(out)?;
        let (mut others, mut references) = ((1..POLICY_STYLES).cycle(), (POLICY_STYLES..STYLES.len()).cycle());
        let mut ends = Vec::new();
        for line in &self.panel.lines {
            let style = match line.role {
                Role::Default => 0,
                Role::Other => others.next().unwrap_or(1),
                Role::Reference => references.next().unwrap_or(POLICY_STYLES),
            };
            self.write_line(out, line, style)?;
            ends.extend(line.values.last().map(|&value| (self.y(value), line, style)));
        }
        self.write_labels(out, ends)
    }

    fn write_grid(&self, out: &mut String) -> fmt::Result {
        let count = (self.top / self.step).round() as usize;
        for mark in 0..=count {
            let value = mark as f64 * self.step;
            let y = self.y(value);
            writeln!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"{}\"/>",
                if mark == 0 { "#444" } else { "#e4e4e4" }
            )?;
            let text = match self.panel.unit {
                Unit::Percent => format!("{:.*} %", usize::from(self.step < 0.01), value * 100.0),
                Unit::Times => format!("{value:.*}", usize::from(self.step < 1.0)),
            };
            writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 8.0, y + 4.0)?;
        }
        let mut free_from = f64::NEG_INFINITY;
        for &size in self.sizes {
            let (x, text) = (self.x(size), grouped(size as u64));
            writeln!(out, "<path d=\"M{x:.1} {BOTTOM}v5\" stroke=\"#444\"/>")?;
            let half = text.len() as f64 * 3.8;
            // A label that would touch the one before it is left out.
            if x - half > free_from {
                writeln!(out, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", BOTTOM + 20.0)?;
                free_from = x + half + 6.0;
            }
        }
        let (x, y, axis) = ((LEFT + RIGHT) / 2.0, BOTTOM + 44.0, escaped(&self.panel.axis));
        writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{axis}</text>")
    }

    fn write_line(&self, out: &mut String, line: &Line, style: usize) -> fmt::Result {
        let (colour, dashes) = STYLES[style];
        let width = if line.role == Role::Default { 3.0 } else { 1.7 };
        let points: Vec<(f64, f64)> =
            self.sizes.iter().zip(&line.values).map(|(&size, &value)| (self.x(size), self.y(value))).collect();
        write!(
            out,
            "<g stroke=\"{colour}\" stroke-width=\"{width}\"><polyline fill=\"none\" stroke-dasharray=\"{dashes}\" \
             points=\""
        )?;
        for (x, y) in &points {
            write!(out, "{x:.1},{y:.1} ")?;
        }
        writeln!(out, "\"/>")?;
        if line.role != Role::Reference {
            for (x, y) in points {
                writeln!(out, "<path d=\"M{x:.1} {y:.1}{}\" fill=\"#fff\"/>", MARKS[style % MARKS.len()])?;
            }
        }
        writeln!(out, "</g>")
    }

    /// Writes each line's name beside the line's end. Names are moved apart where ends lie close together.
    fn write_labels(&self, out: &mut String, mut ends: Vec<(f64, &Line, usize)>) -> fmt::Result {
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut places: Vec<f64> = Vec::with_capacity(ends.len());
        for (y, ..) in &ends {
            let least = places.last().map_or(f64::NEG_INFINITY, |last| last + LABEL_HEIGHT);
            places.push(y.max(least));
        }
        // Labels that were pushed below the picture push the ones above them back up.
        let mut most = BOTTOM;
        for place in places.iter_mut().rev() {
            *place = place.min(most);
            most = *place - LABEL_HEIGHT;
        }
        for ((y, line, style), place) in ends.iter().zip(places) {
            let weight = if line.role == Role::Default { "700" } else { "400" };
            let colour = STYLES[*style].0;
            let (from, to, text) = (RIGHT + 8.0, RIGHT + 24.0, RIGHT + 37.0);
            write!(out, "<g stroke=\"{colour}\"><path d=\"M{from} {y:.1}L{to} {place:.1}\" fill=\"none\"/>")?;
            if line.role != Role::Reference {
                let mark = MARKS[style % MARKS.len()];
                write!(out, "<path d=\"M{:.1} {place:.1}{mark}\" fill=\"#fff\"/>", to + 4.0)?;
            }
            writeln!(out, "</g>")?;
            let value = line.values.last().copied().unwrap_or(0.0);
            let value = match self.panel.unit {
                Unit::Percent => format!("{:.1} %", value * 100.0),
                Unit::Times => format!("{value:.2}"),
            };
            writeln!(
                out,
                "<text x=\"{text}\" y=\"{:.1}\" font-weight=\"{weight}\">{} {value}</text>",
                place + 4.0,
                escaped(&line.label)
            )?;
        }
        Ok(())
    }

    fn x(&self, size: usize) -> f64 {
        let logarithm = |size: usize| (size.max(1) as f64).ln();
        let (Some(&first), Some(&last)) = (self.sizes.first(), self.sizes.last()) else { return LEFT };
        let span = logarithm(last) - logarithm(first);
        let share = if span == 0.0 { 0.5 } else { (logarithm(size) - logarithm(first)) / span };
        LEFT + 16.0 + share * (RIGHT - LEFT - 32.0)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - value / self.top * (BOTTOM - TOP)
    }
}

/// The marks around a point as relative moves: circle, square, triangle, diamond, triangle upside down, cross.
const MARKS: [&str; 6] = [
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "m-3.5 -3.5h7v7h-7z",
    "m0 -4.5l4.5 8h-9z",
    "m0 -5l5 5l-5 5l-5 -5z",
    "m0 4.5l4.5 -8h-9z",
    "m-4 -4l8 8m0 -8l-8 8",
];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
