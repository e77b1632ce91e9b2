//! A compiled grammar, with the state that a text has reached in it.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};

use crate::detours::Crossing;
use crate::entries::Entries;
use crate::memory::Holding;
use crate::names::Names;
use crate::schema::Places;
use crate::tokens::Tokens;
use crate::{GrammarError, Standing, TokenMask};

/// A compiled grammar, with the state that a text has reached in it. Clones share the data that the parser caches about
/// the grammar.
#[derive(Clone)]
pub(crate) struct Matching {
    matcher: Matcher,
    learned: Arc<Learned>,
    tokens: Arc<Tokens>,
    /// The property names so far, if the text is JSON, possibly with fixed text around it.
    names: Option<Names>,
    /// The items of `uniqueItems` arrays so far, if the schemas have such arrays.
    entries: Option<Entries>,
    /// The tokens that the last mask leaves out because of `uniqueItems` arrays, ascending; `None` if the text has gone
    /// on since.
    dead_ends: Option<Vec<u32>>,
}

/// The data that the parser has cached for a grammar. They grow with every state that a text reaches.
struct Learned {
    /// A parser that shares the grammar's cache and reports the size of that cache.
    parser: Mutex<TokenParser>,
    /// Bytes that the grammar uses besides the cache.
    bytes: usize,
    holding: Holding,
}

impl Learned {
    /// Reserves the memory that the grammar uses now.
    fn hold(&self) -> Result<(), GrammarError> {
        let tables = self.parser.lock().unwrap_or_else(PoisonError::into_inner).parser.lexer_stats().num_bytes;
        if self.holding.grow_to(self.bytes.saturating_add(tables)) { Ok(()) } else { Err(GrammarError::NoMemory) }
    }
}

impl Matching {
    /// Returns the state before any text. `is_json` says whether the text is JSON, possibly with fixed text around it.
    /// `places` are the places of its `uniqueItems` arrays. The grammar uses `bytes` besides its cache, and `holding`
    /// is its share of the memory budget.
    ///
    /// # Errors
    /// Fails if the parser fails, or if no memory is left for it.
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
                Ok(Self { matcher, learned, tokens, names: is_json.then(Names::default), entries, dead_ends: None })
            }
        }
    }

    /// Computes which tokens are allowed next. A token that repeats an item of a `uniqueItems` array, or leads only to
    /// such items, is not allowed. A token that repeats a property name is allowed only if no other token is.
    pub(crate) fn mask(&mut self) -> Result<TokenMask, GrammarError> {
        let mask = self.matcher.compute_mask_or_eos().map(TokenMask::new).map_err(|error| too_complex(&error));
        self.learned.hold()?;
        let mut mask = mask?;
        let dead_ends = self.crossing().map(|crossing| crossing.dead_ends(&mask));
        if let Some(dead_ends) = &dead_ends
            && !mask.disallow(dead_ends)
        {
            return Err(GrammarError::TooComplex("no item is left that an array does not have already".into()));
        }
        self.dead_ends = dead_ends;
        if let Some(names) = &self.names {
            let is_repeated = |&token: &u32| mask.allows(token) && names.repeats(self.tokens.text(token));
            let repeated: Vec<u32> = self.tokens.quoted(names.quotes_needed()).filter(is_repeated).collect();
            mask.disallow(&repeated);
        }
        Ok(mask)
    }

    /// Returns the state inside `uniqueItems` arrays, if the grammar has any.
    fn crossing(&self) -> Option<Crossing<'_>> {
        let entries = self.entries.as_ref()?;
        Some(Crossing { matcher: &self.matcher, tokens: &self.tokens, entries })
    }

    pub(crate) fn advance(&mut self, token: u32) -> Result<Standing, GrammarError> {
        let text = self.tokens.text(token);
        // The mask has already found out where its tokens lead.
        let is_dead_end = self.crossing().is_some_and(|crossing| match &self.dead_ends {
            Some(dead_ends) => dead_ends.contains(&token) || crossing.repeats(token),
            None => !crossing.dead_ends_of([token]).is_empty(),
        });
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
        self.dead_ends = None;
        Ok(standing)
    }

    /// Calls [`advance`](Self::advance) with each of `tokens`. Returns `None` if one is not allowed; the state is then
    /// unusable.
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
