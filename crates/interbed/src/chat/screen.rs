//! Shows an answer on a terminal: lines break between words, and the model's thinking is dim.

use unicode_width::UnicodeWidthChar;

use crate::printable::without_controls;

/// The tags around a model's thinking.
const THINKING: (&str, &str) = ("<think>", "</think>");

/// The fence around code, whose lines are not broken between words.
const FENCE: &str = "```";

/// The number of columns from one tab stop to the next.
const TAB: usize = 8;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// The state of an answer that is partly shown.
#[derive(Default)]
pub struct Screen {
    /// The width of the terminal in columns, or `None` if lines are not broken.
    width: Option<usize>,
    colours: bool,
    seen: String,
    is_dim: bool,
    /// The current line since the model's last line break, and the column of the cursor.
    line: String,
    column: usize,
    /// The word at the end of the line, and its width in columns.
    word: String,
    word_width: usize,
    in_code: bool,
}

impl Screen {
    /// Creates the state of an answer of which nothing has been shown. `width` is the width of the terminal in columns,
    /// or `None` if lines are not broken. `colours` says whether thinking is shown dimmed.
    pub fn new(width: Option<usize>, colours: bool) -> Self {
        Self { width: width.filter(|&width| width > 1), colours, ..Self::default() }
    }

    /// Takes `text`, the next piece of the answer, and returns the text to write to the terminal.
    pub fn show(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let before = self.is_dim;
        self.seen.push_str(text);
        self.is_dim = self.colours && self.thinks();
        if self.is_dim && !before {
            out.push_str(DIM);
        }
        without_controls(text).chars().for_each(|character| self.put(character, &mut out));
        if before && !self.is_dim {
            out.push_str(PLAIN);
        }
        out
    }

    /// Returns the text to write after the last piece, or after the answer was stopped.
    pub fn end(&mut self) -> &'static str {
        if std::mem::take(&mut self.is_dim) { "\x1b[0m\n" } else { "\n" }
    }

    /// Returns whether the answer so far begins with thinking that has not ended.
    fn thinks(&self) -> bool {
        self.seen.trim_start().starts_with(THINKING.0) && !self.seen.contains(THINKING.1)
    }

    fn put(&mut self, character: char, out: &mut String) {
        if character == '\n' {
            self.in_code ^= self.line.trim_start().starts_with(FENCE);
            self.line.clear();
            self.begin_line(out);
            return;
        }
        self.line.push(character);
        let columns = if character == '\t' { TAB - self.column % TAB } else { character.width().unwrap_or(0) };
        let is_space = character.is_whitespace();
        if self.width.is_some_and(|width| self.column + columns >= width) {
            if is_space && !self.in_code {
                // The line break replaces the space.
                self.begin_line(out);
                return;
            }
            let word = std::mem::take(&mut self.word);
            let (width, moves) = (self.word_width, self.word_width < self.column && !self.in_code && !is_space);
            if moves && width > 0 {
                // The beginning of the word is on the screen already, so it is erased there.
                out.push_str(&format!("\x1b[{width}D\x1b[K"));
            }
            self.begin_line(out);
            if moves {
                out.push_str(&word);
                (self.word, self.word_width, self.column) = (word, width, width);
            }
        }
        if is_space {
            self.word.clear();
            self.word_width = 0;
        } else {
            self.word.push(character);
            self.word_width += columns;
        }
        self.column += columns;
        out.push(character);
    }

    fn begin_line(&mut self, out: &mut String) {
        out.push('\n');
        self.word.clear();
        (self.column, self.word_width) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a terminal of `width` columns shows after all pieces. The simulated terminal knows only the escape
    /// sequences that `Screen` uses.
    fn shown(width: usize, pieces: &[&str]) -> String {
        let mut screen = Screen::new(Some(width), false);
        let written: String = pieces.iter().map(|piece| screen.show(piece)).collect();
        let (mut lines, mut rest): (Vec<Vec<char>>, _) = (vec![Vec::new()], written.as_str());
        while let Some(character) = rest.chars().next() {
            let line = lines.last_mut().expect("a line");
            rest = &rest[character.len_utf8()..];
            if character == '\u{1b}' {
                let (back, after) = rest[1..].split_once("D\u{1b}[K").expect("back, and erase");
                line.truncate(line.len() - back.parse::<usize>().expect("columns"));
                rest = after;
            } else if character == '\n' {
                lines.push(Vec::new());
            } else {
                line.push(character);
            }
        }
        let text = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
        lines.iter().map(text).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn lines_break_between_words_however_the_text_comes() {
        let text = "The quick brown fox jumps over\nthe lazy dog, antidisestablishmentarianism or no.";
        for width in [8, 11, 12, 20] {
            let whole = shown(width, &[text]);
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(shown(width, &letters), whole, "{width}");
            assert!(whole.lines().all(|line| line.chars().count() < width), "{width}: {whole}");
            let flat = |text: &str| text.chars().filter(|character| !character.is_whitespace()).collect::<String>();
            assert_eq!(flat(&whole), flat(text), "{width}");
            for word in text.split_whitespace().filter(|word| word.len() < width) {
                assert!(whole.split_whitespace().any(|found| found == word), "{width}: {word} in {whole}");
            }
        }
        assert_eq!(shown(10, &["one two th", "ree four"]), "one two\nthree\nfour");
        assert_eq!(shown(80, &["short\n\nlines"]), "short\n\nlines");
    }

    #[test]
    fn code_is_left_as_it_is_but_for_its_width() {
        let text = "so:\n```\nlet x = 1;\n```\nand so on";
        assert_eq!(shown(11, &[text]), "so:\n```\nlet x = 1;\n```\nand so on");
        assert_eq!(shown(8, &[text]), "so:\n```\nlet x =\n 1;\n```\nand so\non");
    }

    #[test]
    fn thinking_is_dim_and_controls_are_spelled_out() {
        let mut screen = Screen::new(Some(80), true);
        let written: String = ["<think>", "well", "</think>", "yes\x1b[2J"].map(|piece| screen.show(piece)).concat();
        assert_eq!(written, "\x1b[2m<think>well</think>\x1b[0myes\\u{1b}[2J");
        assert_eq!(screen.end(), "\n");
        let mut stopped = Screen::new(None, true);
        assert_eq!(stopped.show("<think> hm"), "\x1b[2m<think> hm");
        assert_eq!(stopped.end(), "\x1b[0m\n");
        assert_eq!(Screen::new(None, false).show("<think> hm"), "<think> hm");
    }
}
