//! A compiled grammar, and how far a text has come in it.

use std::sync::Arc;

use llguidance::Matcher;

use crate::names::Names;
use crate::tokens::Tokens;
use crate::{GrammarError, Standing, TokenMask};

/// A compiled grammar, and how far a text has come in it. Clones share what they learn about the grammar.
#[derive(Clone)]
pub(crate) struct Matching {
    matcher: Matcher,
    tokens: Arc<Tokens>,
    /// Where all of the text is JSON, or what stands around it: the names so far.
    names: Option<Names>,
}

impl Matching {
    /// At the beginning of a text, which `is_json`, or JSON with something around it.
    ///
    /// # Errors
    /// The matcher's own.
    pub(crate) fn new(matcher: Matcher, tokens: Arc<Tokens>, is_json: bool) -> Result<Self, String> {
        match matcher.get_error() {
            Some(error) => Err(error),
            None => Ok(Self { matcher, tokens, names: is_json.then(Names::default) }),
        }
    }

    /// What may come next: no name that its object has already, unless nothing else may.
    pub(crate) fn mask(&mut self) -> Result<TokenMask, GrammarError> {
        let mut mask = self.matcher.compute_mask_or_eos().map(TokenMask::new).map_err(|error| too_complex(&error))?;
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
