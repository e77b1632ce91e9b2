//! A compiled grammar, and how far a text has come in it.

use llguidance::Matcher;

use crate::{GrammarError, Standing, TokenMask};

/// A compiled grammar, and how far a text has come in it. Clones share what they learn about the grammar.
#[derive(Clone)]
pub(crate) struct Matching(Matcher);

impl Matching {
    /// At the beginning of a text.
    ///
    /// # Errors
    /// The matcher's own.
    pub(crate) fn new(matcher: Matcher) -> Result<Self, String> {
        match matcher.get_error() {
            Some(error) => Err(error),
            None => Ok(Self(matcher)),
        }
    }

    pub(crate) fn mask(&mut self) -> Result<TokenMask, GrammarError> {
        self.0.compute_mask_or_eos().map(TokenMask::new).map_err(|error| too_complex(&error))
    }

    pub(crate) fn advance(&mut self, token: u32) -> Result<Standing, GrammarError> {
        match self.0.try_consume_tokens(&[token]) {
            Ok(0) => Err(GrammarError::NotAllowed(token)),
            Ok(_) if !self.0.is_stopped() => Ok(Standing::Open),
            Ok(_) if self.0.stop_reason().is_ok() => Ok(Standing::Complete),
            Ok(_) => Err(GrammarError::TooComplex(self.0.stop_reason().to_string())),
            Err(error) => Err(too_complex(&error)),
        }
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
        self.0.is_accepting().unwrap_or(false)
    }
}

fn too_complex(error: &impl std::fmt::Display) -> GrammarError {
    GrammarError::TooComplex(GrammarError::told(error))
}
