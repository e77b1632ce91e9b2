//! A compiled grammar, and how far a text has come in it.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};

use crate::detours::Crossing;
use crate::entries::Entries;
use crate::memory::Holding;
use crate::names::Names;
use crate::schema::Places;
use crate::tokens::Tokens;
use crate::{GrammarError, Standing, TokenMask};

/// A compiled grammar, and how far a text has come in it. Clones share what they learn about the grammar.
#[derive(Clone)]
pub(crate) struct Matching {
    matcher: Matcher,
    learned: Arc<Learned>,
    tokens: Arc<Tokens>,
    /// Where all of the text is JSON, or what stands around it: the names so far.
    names: Option<Names>,
    /// Where schemas have lists without repeated entries: those so far.
    entries: Option<Entries>,
}

/// What is known of a grammar: more with each place that a text comes to.
struct Learned {
    /// Another state in the same grammar, which tells how much that is.
    parser: Mutex<TokenParser>,
    /// What the grammar takes besides.
    bytes: usize,
    holding: Holding,
}

impl Learned {
    /// Holds the memory that it takes.
    fn hold(&self) -> Result<(), GrammarError> {
        let tables = self.parser.lock().unwrap_or_else(PoisonError::into_inner).parser.lexer_stats().num_bytes;
        if self.holding.grow_to(self.bytes.saturating_add(tables)) { Ok(()) } else { Err(GrammarError::NoMemory) }
    }
}

impl Matching {
    /// At the beginning of a text, which `is_json`, or JSON with something around it. It has lists without repeated
    /// entries at `places`, and the grammar takes `bytes` beside its tables, which `holding` is for.
    ///
    /// # Errors
    /// The parser's own; there is no memory for it.
    pub(crate) fn new(
        parser: TokenParser,
        tokens: Arc<Tokens>,
        is_json: bool,
        places: Places,
        bytes: usize,
        holding: Holding,
    ) -> Result<Self, GrammarError> {
        let learned = Arc::new(Learned { parser: Mutex::new(parser.clone()), bytes, holding });
        learned.hold()?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(too_complex(&error)),
            None => {
                let entries = (!places.is_empty()).then(|| Entries::new(Arc::new(places)));
                Ok(Self { matcher, learned, tokens, names: is_json.then(Names::default), entries })
            }
        }
    }

    /// What may come next: nothing that repeats an entry where that is ruled out, or leaves no other; and no name that
    /// its object has already, unless nothing else may.
    pub(crate) fn mask(&mut self) -> Result<TokenMask, GrammarError> {
        let mask = self.matcher.compute_mask_or_eos().map(TokenMask::new).map_err(|error| too_complex(&error));
        self.learned.hold()?;
        let mut mask = mask?;
        if let Some(crossing) = self.crossing()
            && !mask.disallow(&crossing.dead_ends(&mask))
        {
            return Err(GrammarError::TooComplex("no entry is left that a list does not have already".into()));
        }
        if let Some(names) = &self.names {
            let is_repeated = |&token: &u32| mask.allows(token) && names.repeats(self.tokens.text(token));
            let repeated: Vec<u32> = self.tokens.quoted(names.quotes_needed()).filter(is_repeated).collect();
            mask.disallow(&repeated);
        }
        Ok(mask)
    }

    /// The text in its lists without repeated entries, if there may be any.
    fn crossing(&self) -> Option<Crossing<'_>> {
        let entries = self.entries.as_ref()?;
        Some(Crossing { matcher: &self.matcher, tokens: &self.tokens, entries })
    }

    pub(crate) fn advance(&mut self, token: u32) -> Result<Standing, GrammarError> {
        let text = self.tokens.text(token);
        let is_dead_end = self.crossing().is_some_and(|crossing| !crossing.dead_ends_of([token]).is_empty());
        let repeats_name = self.names.as_ref().is_some_and(|names| names.repeats(text));
        if is_dead_end || repeats_name && !self.mask()?.allows(token) {
            return Err(GrammarError::NotAllowed(token));
        }
        let standing = match self.matcher.try_consume_tokens(&[token]) {
            Ok(0) => return Err(GrammarError::NotAllowed(token)),
            Ok(_) if !self.matcher.is_stopped() => Standing::Open,
            Ok(_) if self.matcher.stop_reason().is_ok() => Standing::Complete,
            Ok(_) => return Err(GrammarError::TooComplex(self.matcher.stop_reason().to_string())),
            Err(error) => return Err(too_complex(&error)),
        };
        let text = self.tokens.text(token);
        if let Some(names) = &mut self.names {
            let _ = names.push(text);
        }
        if let Some(entries) = &mut self.entries {
            let _ = entries.push(text);
        }
        Ok(standing)
    }

    /// As [`advance`](Self::advance) with each of `tokens`; `None` if one may not come. Then this must not be used
    /// further.
    pub(crate) fn advance_all(&mut self, tokens: &[u32]) -> Option<Standing> {
        let mut progress = Standing::Open;
        for &token in tokens {
            if progress == Standing::Complete {
                return None;
            }
            progress = self.advance(token).ok()?;
        }
        Some(progress)
    }

    pub(crate) fn is_accepting(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }
}

fn too_complex(error: &impl std::fmt::Display) -> GrammarError {
    GrammarError::TooComplex(GrammarError::told(error))
}
