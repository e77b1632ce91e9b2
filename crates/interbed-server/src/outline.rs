//! An answer as a sequence of blocks (thinking, texts and calls), for the APIs that use this format.

use crate::answer::{Called, Piece};

/// A block of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Block {
    Thinking,
    Text,
    Call(Called),
}

/// A change to the last block of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// A new block begins.
    Opened(Block),
    /// A further part of the block's text, or of its arguments.
    More(String),
    /// The block is complete.
    Closed,
}

/// Groups the pieces of an answer into blocks. White space between blocks is dropped. An answer without any block gets
/// an empty text block.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    blocks: usize,
    open: Option<Block>,
    /// The white space that is held back, because text may follow it.
    blank: String,
}

impl Outline {
    /// Processes pieces of the answer, and returns the changes, each with the index of its block.
    pub(crate) fn push(&mut self, pieces: Vec<Piece>) -> Vec<(usize, Change)> {
        let mut changes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => {
                    self.open(Block::Thinking, &mut changes);
                    changes.push((self.current(), Change::More(text)));
                }
                Piece::Text(text) => {
                    self.blank.push_str(&text);
                    if self.open == Some(Block::Text) || !self.blank.trim().is_empty() {
                        self.open(Block::Text, &mut changes);
                        changes.push((self.current(), Change::More(std::mem::take(&mut self.blank))));
                    }
                }
                Piece::Call(call) => {
                    self.blank.clear();
                    self.open(Block::Call(call), &mut changes);
                }
                Piece::Arguments(_, text) => changes.push((self.current(), Change::More(text))),
            }
        }
        changes
    }

    /// Ends the answer, and returns the last changes.
    pub(crate) fn end(&mut self) -> Vec<(usize, Change)> {
        let mut changes = Vec::new();
        if self.blocks == 0 {
            self.open(Block::Text, &mut changes);
            if !self.blank.is_empty() {
                changes.push((0, Change::More(std::mem::take(&mut self.blank))));
            }
        }
        self.close(&mut changes);
        changes
    }

    /// Returns the index of the last block.
    fn current(&self) -> usize {
        self.blocks.saturating_sub(1)
    }

    fn open(&mut self, block: Block, changes: &mut Vec<(usize, Change)>) {
        if self.open.as_ref() == Some(&block) {
            return;
        }
        self.close(changes);
        self.blocks += 1;
        changes.push((self.current(), Change::Opened(block.clone())));
        self.open = Some(block);
    }

    fn close(&mut self, changes: &mut Vec<(usize, Change)>) {
        if self.open.take().is_some() {
            changes.push((self.current(), Change::Closed));
        }
    }
}

/// The blocks of an answer with their texts or arguments.
#[derive(Debug, Default)]
pub(crate) struct Blocks(pub(crate) Vec<(Block, String)>);

impl Blocks {
    /// Applies a change to the last block.
    pub(crate) fn add(&mut self, change: &Change) {
        match (change, self.0.last_mut()) {
            (Change::Opened(block), _) => self.0.push((block.clone(), String::new())),
            (Change::More(more), Some((_, text))) => text.push_str(more),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Piece {
        Piece::Text(text.into())
    }

    #[test]
    fn blocks_follow_each_other_without_the_white_space_between() {
        let called = |number| Called { number, ..Called::default() };
        let mut outline = Outline::default();
        let mut changes = outline.push(vec![Piece::Reasoning("a".into()), text("\n")]);
        changes.extend(outline.push(vec![text(" b"), text(" "), Piece::Call(called(0))]));
        changes.extend(outline.push(vec![
            Piece::Arguments(0, "{".into()),
            Piece::Arguments(0, "}".into()),
            text("\n"),
        ]));
        changes.extend(outline.push(vec![Piece::Call(called(1))]));
        changes.extend(outline.end());
        let more = |text: &str| Change::More(text.into());
        let expected = [
            (0, Change::Opened(Block::Thinking)),
            (0, more("a")),
            (0, Change::Closed),
            (1, Change::Opened(Block::Text)),
            (1, more("\n b")),
            (1, more(" ")),
            (1, Change::Closed),
            (2, Change::Opened(Block::Call(called(0)))),
            (2, more("{")),
            (2, more("}")),
            (2, Change::Closed),
            (3, Change::Opened(Block::Call(called(1)))),
            (3, Change::Closed),
        ];
        assert_eq!(changes, expected);
        let mut blocks = Blocks::default();
        changes.iter().for_each(|(_, change)| blocks.add(change));
        let texts: Vec<&str> = blocks.0.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["a", "\n b ", "{}", ""]);
    }

    #[test]
    fn an_empty_answer_is_an_empty_text() {
        let mut outline = Outline::default();
        assert_eq!(outline.end(), [(0, Change::Opened(Block::Text)), (0, Change::Closed)]);
        let mut blank = Outline::default();
        assert_eq!(blank.push(vec![text(" ")]), []);
        assert_eq!(blank.end()[1], (0, Change::More(" ".into())));
    }
}
