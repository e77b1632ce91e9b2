//! Ways on from an entry that has begun like an earlier one of its list to one that is not there yet.

use std::cmp::Reverse;

use llguidance::Matcher;

use crate::TokenMask;
use crate::entries::{Entries, Pushed};
use crate::tokens::Tokens;

/// Most places along earlier entries that are looked at for one token.
const PLACES_MAX: usize = 256;

/// A text in the lists without repeated entries that it is in.
pub(crate) struct Crossing<'c> {
    pub(crate) matcher: &'c Matcher,
    pub(crate) tokens: &'c Tokens,
    pub(crate) entries: &'c Entries,
}

impl Crossing<'_> {
    /// The tokens of `mask` that repeat an entry, or lead to nothing but repeated ones.
    pub(crate) fn dead_ends(&self, mask: &TokenMask) -> Vec<u32> {
        let mut doubtful = self.doubtful(mask);
        doubtful.sort_unstable();
        doubtful.dedup();
        self.dead_ends_of(doubtful)
    }

    /// Those of `tokens` that repeat an entry, or lead to nothing but repeated ones.
    pub(crate) fn dead_ends_of(&self, tokens: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let (mut dead, mut alike) = (Vec::new(), Vec::new());
        for token in tokens {
            let text = self.tokens.text(token);
            let mut entries = self.entries.clone();
            if entries.push(text).repeats {
                dead.push(token);
            } else if let Some((list, begun)) = entries.begun_alike().filter(|_| entries.may_run_out()) {
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

    /// Tokens of `mask`, among them all dead ends.
    fn doubtful(&self, mask: &TokenMask) -> Vec<u32> {
        if !self.entries.is_within() {
            return self.tokens.lists().filter(|&token| mask.allows(token)).collect();
        }
        let may_run_out = self.entries.may_run_out();
        if !self.entries.is_in_text() {
            // What begins a text is of no harm where texts may become longer.
            let ends = |&token: &u32| may_run_out || ends_entries(self.tokens.text(token));
            return mask.allowed().filter(ends).collect();
        }
        // Within a text nearly all tokens may come, of which few matter.
        // The rest of each text that would be alike, with the quote behind it.
        let rests: Vec<&[u8]> = self
            .entries
            .repeating()
            .map(|rest| &rest[..rest.iter().position(|&byte| byte == b'"').map_or(rest.len(), |quote| quote + 1)])
            .collect();
        let mut doubtful = Vec::new();
        if may_run_out {
            for rest in &rests {
                let longest = rest.len().min(self.tokens.longest());
                doubtful.extend((1..=longest).filter_map(|end| self.tokens.of_text(&rest[..end])));
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

    /// Whether an answer that goes on behind `next` comes to an entry that its list does not have. `entries` are those
    /// behind it. Where that takes too long to tell, it does.
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
            if !is_any {
                // Within a character, or before one that is not among them.
                let Ok(mask) = matcher.compute_mask() else { return true };
                for token in mask.iter() {
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

    /// What `token` does behind `entries`.
    fn step(&self, entries: &Entries, token: u32) -> Step {
        let (text, mut entries) = (self.tokens.text(token), entries.clone());
        // What is white space to the grammar would be tried without end.
        if !entries.is_in_text() && text.iter().all(u8::is_ascii_whitespace) {
            return Step::Repeated;
        }
        match entries.push(text) {
            Pushed { repeats: true, .. } => Step::Repeated,
            Pushed { completes: true, .. } => Step::Away,
            _ if entries.begun_alike().is_none() => Step::Away,
            _ => Step::Alike(entries),
        }
    }
}

/// An entry that has begun like an earlier one.
#[derive(PartialEq)]
struct Begun {
    /// Its list, from the outside on.
    list: usize,
    /// What there is of it, without white space around its parts.
    text: Vec<u8>,
    /// How white space at the end begins, by which a grammar tells what may follow.
    blank: Option<u8>,
}

impl Begun {
    /// Whether it goes on to `other`, from which there is a way on.
    fn leads_to(&self, other: &Self) -> bool {
        self.list == other.list && self.blank.is_none() && other.text.starts_with(&self.text)
    }
}

/// How the white space begins that `text` ends with, unless that belongs to a string.
fn blank(text: &[u8], behind: &Entries) -> Option<u8> {
    let blanks = text.iter().rev().take_while(|byte| byte.is_ascii_whitespace());
    blanks.last().copied().filter(|_| !behind.is_in_text())
}

/// Whether `text`, which begins in no text, has a whole one, or ends a list.
fn ends_entries(text: &[u8]) -> bool {
    text.contains(&b']') || text.iter().filter(|&&byte| byte == b'"').count() > 1
}

/// Where a token leads.
enum Step {
    /// To another entry.
    Away,
    /// Further along an earlier entry.
    Alike(Entries),
    /// To an earlier entry, or nowhere.
    Repeated,
}
