//! A compiled grammar, and how far a text has come in it.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};

use crate::memory::Holding;
use crate::names::Names;
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
    /// At the beginning of a text, which `is_json`, or JSON with something around it, in a grammar that takes `bytes`
    /// beside its tables, which `holding` is for.
    ///
    /// # Errors
    /// The parser's own; there is no memory for it.
    pub(crate) fn new(
        parser: TokenParser,
        tokens: Arc<Tokens>,
        is_json: bool,
        bytes: usize,
        holding: Holding,
    ) -> Result<Self, GrammarError> {
        let learned = Arc::new(Learned { parser: Mutex::new(parser.clone()), bytes, holding });
        learned.hold()?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(too_complex(&error)),
            None => Ok(Self { matcher, learned, tokens, names: is_json.then(Names::default) }),
        }
    }

    /// What may come next: no name that its object has already, unless nothing else may.
    pub(crate) fn mask(&mut self) -> Result<TokenMask, GrammarError> {
        let mask = self.matcher.compute_mask_or_eos().map(TokenMask::new).map_err(|error| too_complex(&error));
        self.learned.hold()?;
        let mut mask = mask?;
        if let Some(names) = &self.names {
            let is_repeated = |&token: &u32| mask.allows(token) && names.repeats(self.tokens.text(token));
            let repeated: Vec<u32> = self.tokens.quoted(names.quotes_needed()).filter(is_repeated).collect();
            if !repeated.is_empty() {
                mask.disallow(&repeated);
            }
        }
        Ok(mask)
    }

    pub(crate) fn advance(&mut self, token: u32) -> Result<Standing, GrammarError> {
        let text = self.tokens.text(token);
        if self.names.as_ref().is_some_and(|names| names.repeats(text)) && !self.mask()?.allows(token) {
            return Err(GrammarError::NotAllowed(token));
        }
        let standing = match self.matcher.try_consume_tokens(&[token]) {
            Ok(0) => return Err(GrammarError::NotAllowed(token)),
            Ok(_) if !self.matcher.is_stopped() => Standing::Open,
            Ok(_) if self.matcher.stop_reason().is_ok() => Standing::Complete,
            Ok(_) => return Err(GrammarError::TooComplex(self.matcher.stop_reason().to_string())),
            Err(error) => return Err(too_complex(&error)),
        };
        if let Some(names) = &mut self.names {
            let _ = names.push(self.tokens.text(token));
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
