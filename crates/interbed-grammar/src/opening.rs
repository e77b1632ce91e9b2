//! Handles the transition from a free answer to a constrained part.

use crate::matching::Matching;
use crate::tokens::Tokens;
use crate::trigger::{Scan, Trigger};
use crate::{Standing, TokenMask};

/// The markers of a free answer, and the grammar of the text that follows them.
pub(crate) struct Opening {
    trigger: Trigger,
    fresh: Matching,
    /// Tokens that may begin a constrained part; `None` if the grammar cannot tell.
    first: Option<TokenMask>,
    /// Tokens that contain the last byte of a marker.
    ends: Vec<u32>,
    /// Tokens that contain all bytes of a marker that begins a constrained part wherever it stands in a text.
    whole: Vec<u32>,
    /// The tokens of `whole` that are never allowed in the midst of a text.
    refused: Vec<u32>,
}

/// The effect of a token on an answer that no grammar constrains so far.
pub(crate) enum Opened {
    /// No constrained part begins, so the answer stays unconstrained.
    No,
    /// The token completes a marker and begins a constrained part. Contains the state of this part after the token.
    Yes(Box<Matching>, Standing),
    /// The token is not allowed. It completes a marker, but the grammar does not allow the rest of the token's text.
    Refused,
}

impl Opening {
    /// Classifies all tokens of the vocabulary.
    pub(crate) fn new(tokens: &Tokens, trigger: Trigger, fresh: Matching) -> Self {
        let first = fresh.clone().mask().ok();
        let last: Vec<u8> = trigger.last_bytes().collect();
        let has_end = |&token: &u32| tokens.text(token).iter().any(|byte| last.contains(byte));
        let ends: Vec<u32> = (0..tokens.len() as u32).filter(has_end).collect();
        let whole = ends.iter().copied().filter(|&token| trigger.is_in(tokens.text(token))).collect();
        let mut opening = Self { trigger, fresh, first, ends, whole, refused: Vec::new() };
        opening.refused = opening.refused_of(tokens, &Scan::further_on(), &opening.whole);
        opening
    }

    /// Advances a free answer by a token. A refused token changes nothing.
    pub(crate) fn advance(&self, tokens: &Tokens, scan: &mut Scan, token: u32) -> Opened {
        let mut ahead = scan.clone();
        let begun = ahead.push(&self.trigger, tokens.text(token));
        let opened = match begun {
            None => Opened::No,
            Some(begun) => self.enter(tokens, &begun),
        };
        if !matches!(opened, Opened::Refused) {
            *scan = ahead;
        }
        opened
    }

    /// Returns whether every token is allowed next, as far as the token lists can tell.
    pub(crate) fn is_free(&self, scan: &Scan) -> bool {
        self.is_in_the_midst(scan) && self.refused.is_empty()
    }

    /// Returns the tokens that are not allowed next.
    pub(crate) fn refused(&self, tokens: &Tokens, scan: &Scan) -> Vec<u32> {
        if self.is_in_the_midst(scan) {
            return self.refused.clone();
        }
        if scan.is_at_start(&self.trigger) {
            return self.refused_of(tokens, scan, &self.ends);
        }
        let rests = scan.rests(&self.trigger);
        let goes_on = |&token: &u32| rests.iter().any(|rest| tokens.text(token).starts_with(rest));
        let asked: Vec<u32> = self.ends.iter().copied().filter(goes_on).chain(self.whole.iter().copied()).collect();
        self.refused_of(tokens, scan, &asked)
    }

    fn is_in_the_midst(&self, scan: &Scan) -> bool {
        !scan.is_at_start(&self.trigger) && scan.rests(&self.trigger).is_empty()
    }

    fn refused_of(&self, tokens: &Tokens, scan: &Scan, asked: &[u32]) -> Vec<u32> {
        let is_refused = |&token: &u32| {
            let begun = scan.clone().push(&self.trigger, tokens.text(token));
            begun.is_some_and(|begun| !self.may_begin(tokens, &begun))
        };
        asked.iter().copied().filter(is_refused).collect()
    }

    /// Returns whether the grammar allows a constrained part to begin with `begun`.
    fn may_begin(&self, tokens: &Tokens, begun: &[u8]) -> bool {
        match (&self.first, tokens.of_text(begun)) {
            _ if begun.is_empty() => true,
            // How the bytes are split into tokens makes no difference, so the one token with all of them tells enough.
            (Some(first), Some(token)) => first.allows(token),
            _ => !matches!(self.enter(tokens, begun), Opened::Refused),
        }
    }

    fn enter(&self, tokens: &Tokens, begun: &[u8]) -> Opened {
        let mut matching = self.fresh.clone();
        match tokens.spelled(begun).and_then(|spelled| matching.advance_all(&spelled)) {
            Some(standing) => Opened::Yes(Box::new(matching), standing),
            None => Opened::Refused,
        }
    }
}
