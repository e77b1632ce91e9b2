//! Finds tokens after which a `uniqueItems` array can only repeat an item that it already has.

use std::cmp::Reverse;

use llguidance::Matcher;

use crate::TokenMask;
use crate::entries::{Entries, Pushed};
use crate::tokens::Tokens;

/// Maximum number of states along earlier items that are searched for one token.
const PLACES_MAX: usize = 256;
/// The longest number that the search follows. A number of this length can only go on with zeros.
const WORD_MAX: usize = 32;

/// The state of a text inside `uniqueItems` arrays for which dead ends are searched.
pub(crate) struct Crossing<'c> {
    pub(crate) matcher: &'c Matcher,
    pub(crate) tokens: &'c Tokens,
    pub(crate) entries: &'c Entries,
}

impl Crossing<'_> {
    /// Returns the tokens of `mask` that complete a repeated item, or can only lead to one.
    pub(crate) fn dead_ends(&self, mask: &TokenMask) -> Vec<u32> {
        let mut doubtful = self.doubtful(mask);
        doubtful.sort_unstable();
        doubtful.dedup();
        self.dead_ends_of(doubtful)
    }

    /// Returns whether `token` completes a repeated item.
    pub(crate) fn repeats(&self, token: u32) -> bool {
        self.entries.clone().push(self.tokens.text(token)).repeats
    }

    /// Returns those of `tokens` that complete a repeated item, or can only lead to one.
    pub(crate) fn dead_ends_of(&self, tokens: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let (mut dead, mut alike) = (Vec::new(), Vec::new());
        for token in tokens {
            let text = self.tokens.text(token);
            let mut entries = self.entries.clone();
            if entries.push(text).repeats {
                dead.push(token);
            } else if entries.may_run_out()
                && let Some((list, begun)) = entries.begun_alike()
            {
                let begun = Begun { list, text: begun.to_vec(), blank: blank(text, &entries) };
                alike.push((begun, token, entries));
            }
        }
        alike.sort_by_key(|(begun, ..)| Reverse(begun.text.len()));
        let mut known: Vec<(Begun, bool)> = Vec::new();
        for (begun, token, entries) in alike {
            let told = known.iter().find(|(known, is_there)| *known == begun || (*is_there && begun.leads_to(known)));
            let is_there = match told {
                Some((_, is_there)) => *is_there,
                None => {
                    let is_there = self.is_there(token, entries);
                    known.push((begun, is_there));
                    is_there
                }
            };
            if !is_there {
                dead.push(token);
            }
        }
        dead
    }

    /// Returns the tokens of `mask` that have to be checked. All dead ends are among them.
    fn doubtful(&self, mask: &TokenMask) -> Vec<u32> {
        if !self.entries.is_within() {
            return self.tokens.lists().filter(|&token| mask.allows(token)).collect();
        }
        let may_run_out = self.entries.may_run_out();
        if !self.entries.is_in_text() {
            // Beginning a string is harmless if strings may become longer.
            let ends = |&token: &u32| may_run_out || ends_entries(self.tokens.text(token));
            return mask.allowed().filter(ends).collect();
        }
        // Inside a string nearly all tokens are allowed, but few can complete a repeated item. Each of `rests` would
        // complete a repeated string, with the closing quote.
        let rests: Vec<&[u8]> = self
            .entries
            .repeating()
            .map(|rest| &rest[..rest.iter().position(|&byte| byte == b'"').map_or(rest.len(), |quote| quote + 1)])
            .collect();
        let mut doubtful = Vec::new();
        if may_run_out {
            for rest in &rests {
                let longest = rest.len().min(self.tokens.longest());
                doubtful.extend((1..=longest).flat_map(|end| self.tokens.all_of_text(&rest[..end])));
            }
            doubtful.retain(|&token| mask.allows(token));
        }
        let (depth, has_escapes) = (self.entries.depth(), self.entries.has_escapes());
        let quoted = self.tokens.quoted(1).filter(|&token| mask.allows(token));
        doubtful.extend(quoted.filter(|&token| {
            let text = self.tokens.text(token);
            if has_escapes || text.contains(&b'\\') || rests.iter().any(|rest| text.starts_with(rest)) {
                return true;
            }
            let behind = text.iter().position(|&byte| byte == b'"').map_or(&[][..], |quote| &text[quote + 1..]);
            let goes_on = || behind.iter().any(|byte| b"]}".contains(byte) || depth == 0 && *byte == b',');
            if may_run_out { goes_on() } else { ends_entries(behind) }
        }));
        doubtful
    }

    /// Returns whether an answer that continues with `next` can still reach an item that its array lacks. `entries` is
    /// the state after `next`. Also returns true if the search takes too long.
    fn is_there(&self, next: u32, entries: Entries) -> bool {
        let mut open = vec![(self.matcher.clone(), next, entries)];
        for _ in 0..PLACES_MAX {
            let Some((mut matcher, next, entries)) = open.pop() else { return false };
            if !matches!(matcher.try_consume_tokens(&[next]), Ok(1)) {
                continue;
            }
            let (mut alike, mut is_any) = (Vec::new(), false);
            for &token in self.tokens.tried() {
                if !matches!(matcher.validate_tokens(&[token]), Ok(1)) {
                    continue;
                }
                is_any = true;
                match self.step(&entries, token) {
                    Step::Away => return true,
                    Step::Alike(entries) => alike.push((token, entries)),
                    Step::Repeated => {}
                }
            }
            if !is_any || entries.is_in_text() {
                // If none of the tried bytes is allowed, other tokens are, and strings may go on with characters beyond
                // ASCII.
                let Ok(mask) = matcher.compute_mask() else { return true };
                let is_other =
                    |&token: &u32| !is_any || self.tokens.text(token).first().is_some_and(|&byte| byte > 127);
                for token in mask.iter().filter(is_other) {
                    match self.step(&entries, token) {
                        Step::Away => return true,
                        Step::Alike(entries) => alike.push((token, entries)),
                        Step::Repeated => {}
                    }
                }
            }
            open.extend(alike.into_iter().map(|(token, entries)| (matcher.clone(), token, entries)));
        }
        true
    }

    /// Classifies where `token` leads from the state `entries`.
    fn step(&self, entries: &Entries, token: u32) -> Step {
        let (text, mut entries) = (self.tokens.text(token), entries.clone());
        // White space could be repeated without end, so the search does not follow it.
        if !entries.is_in_text() && text.iter().all(u8::is_ascii_whitespace) {
            return Step::Repeated;
        }
        match entries.push(text) {
            Pushed { repeats: true } => Step::Repeated,
            _ if entries.begun_alike().is_none() => Step::Away,
            _ if entries.word_length() > WORD_MAX => Step::Repeated,
            _ => Step::Alike(entries),
        }
    }
}

/// An item that may still become equal to an earlier item of its array.
#[derive(PartialEq)]
struct Begun {
    /// The index of the array among the open `uniqueItems` arrays, counted from the outside in.
    list: usize,
    /// The beginning of the item, without white space around its parts.
    text: Vec<u8>,
    /// The first byte of the white space at the end of the text. The grammar uses it to decide what may follow.
    blank: Option<u8>,
}

impl Begun {
    /// Returns whether this beginning of an item is also a beginning of `other`.
    fn leads_to(&self, other: &Self) -> bool {
        self.list == other.list && self.blank.is_none() && other.text.starts_with(&self.text)
    }
}

/// Returns the first byte of the white space that ends `text`, unless it belongs to a string.
fn blank(text: &[u8], behind: &Entries) -> Option<u8> {
    let blanks = text.iter().rev().take_while(|byte| byte.is_ascii_whitespace());
    blanks.last().copied().filter(|_| !behind.is_in_text())
}

/// Returns whether `text`, which begins outside of strings, contains a whole string or closes an array.
fn ends_entries(text: &[u8]) -> bool {
    text.contains(&b']') || text.iter().filter(|&&byte| byte == b'"').count() > 1
}

/// The result of following a token.
enum Step {
    /// No unfinished array item can still become equal to an earlier item of its array.
    Away,
    /// An unfinished array item can still become equal to an earlier item of its array. Contains the new state.
    Alike(Entries),
    /// The search does not continue after this token, because the token completes a repeated array item, is white space
    /// outside of strings, or makes a number longer than the search follows.
    Repeated,
}
