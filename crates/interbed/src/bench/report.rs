//! The report of a benchmark: text with tables for people, and one JSON object a line for scripts.

use std::fmt::Display;

use serde_json::Value;

/// What a benchmark has measured, in both forms.
#[derive(Default)]
pub struct Report {
    text: String,
    /// The rows of the table that is not in the text yet.
    rows: Vec<Vec<TableCell>>,
    figures: Vec<Value>,
}

/// An entry of a table, and the name of its column.
pub struct TableCell {
    column: &'static str,
    text: String,
    /// Whether the entry stands at the left of its column, as words do, rather than at the right.
    is_left: bool,
}

/// Returns an entry at the left of its column.
pub fn words(column: &'static str, text: impl Display) -> TableCell {
    TableCell { column, text: text.to_string(), is_left: true }
}

/// Returns an entry at the right of its column.
pub fn value(column: &'static str, value: impl Display) -> TableCell {
    TableCell { column, text: value.to_string(), is_left: false }
}

/// Returns a number with this many decimals.
pub fn number(column: &'static str, number: f64, decimals: usize) -> TableCell {
    value(column, format_args!("{number:.decimals$}"))
}

/// Returns a share in per cent, with this many decimals.
pub fn percent(column: &'static str, share: f64, decimals: usize) -> TableCell {
    value(column, format_args!("{:.decimals$} %", share * 100.0))
}

impl Report {
    /// Adds a line of text.
    pub fn line(&mut self, line: impl Display) {
        self.end_table();
        self.text.push_str(&format!("{line}\n"));
    }

    /// Adds a row to the table at the end of the text. All rows of a table have the same columns.
    pub fn row<const N: usize>(&mut self, cells: [TableCell; N]) {
        self.rows.push(cells.into());
    }

    /// Adds the text and the objects of another report.
    pub fn append(&mut self, mut other: Self) {
        self.end_table();
        other.end_table();
        self.text.push_str(&other.text);
        self.figures.append(&mut other.figures);
    }

    /// Adds an object for scripts.
    pub fn figure(&mut self, figure: Value) {
        self.figures.push(figure);
    }

    /// Prints the text, or the objects.
    pub fn print(mut self, as_json: bool) {
        self.end_table();
        match as_json {
            true => self.figures.iter().for_each(|figure| println!("{figure}")),
            false => print!("{}", self.text),
        }
    }

    /// Moves the table to the text, with an empty line and the names of the columns before it.
    fn end_table(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let Some(first) = rows.first() else { return };
        let names = first.iter().map(|cell| TableCell { text: cell.column.to_owned(), ..*cell }).collect();
        let lines = std::iter::once(&names).chain(&rows);
        let width = |column: usize| lines.clone().map(|line: &Vec<TableCell>| line[column].text.len()).max();
        let widths: Vec<usize> = (0..names.len()).filter_map(width).collect();
        self.text.push('\n');
        for line in lines {
            let of = |(cell, &width): (&TableCell, &usize)| match cell.is_left {
                true => format!("{:width$}  ", cell.text),
                false => format!("{:>width$}  ", cell.text),
            };
            let line: String = line.iter().zip(&widths).map(of).collect();
            self.text.push_str(&format!("{}\n", line.trim_end()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_entries_and_ends_at_the_next_line() {
        let mut report = Report::default();
        report.line("before");
        for (name, rate) in [("a", 1.0), ("longer", 1234.5)] {
            report.row([words("what", name), number("per s", rate, 1), percent("share", rate / 1e4, 0)]);
        }
        report.line("after");
        let want = "before\n\nwhat     per s  share\na          1.0    0 %\nlonger  1234.5   12 %\nafter\n";
        assert_eq!(report.text, want);
    }
}
