//! The state of one answer under a grammar.

use std::sync::Arc;

use crate::matching::Matching;
use crate::tokens::Tokens;
use crate::trigger::{Scan, Trigger};
use crate::{GrammarError, Standing, TokenMask};

/// The state of one answer: which tokens may come next. A clone goes its own way.
#[derive(Clone)]
pub struct Constraint {
    tokens: Arc<Tokens>,
    state: State,
    /// Where only parts of the answer are bound: what they begin with.
    lazy: Option<Lazy>,
}

#[derive(Clone)]
enum State {
    /// Anything may come.
    Free(Scan),
    /// What the grammar allows may come.
    Bound(Box<Matching>),
    /// Nothing may come but the end.
    Ended,
}

#[derive(Clone)]
struct Lazy {
    trigger: Arc<Trigger>,
    fresh: Box<Matching>,
    repeats: bool,
}

impl Constraint {
    /// All of the answer is bound.
    pub(crate) fn new(tokens: Arc<Tokens>, fresh: Matching) -> Self {
        Self { tokens, state: State::Bound(Box::new(fresh)), lazy: None }
    }

    /// What follows `trigger` is bound, each time if it `repeats`; else the answer ends with the first bound part.
    pub(crate) fn after(tokens: Arc<Tokens>, trigger: Trigger, fresh: Matching, repeats: bool) -> Self {
        let lazy = Lazy { trigger: Arc::new(trigger), fresh: Box::new(fresh), repeats };
        Self { tokens, state: State::Free(Scan::at_start()), lazy: Some(lazy) }
    }

    /// The tokens that may come next; `None` if any may.
    ///
    /// # Errors
    /// The grammar is too complex at this place.
    pub fn mask(&mut self) -> Result<Option<TokenMask>, GrammarError> {
        match &mut self.state {
            State::Free(_) => Ok(None),
            State::Bound(matching) => matching.mask().map(Some),
            State::Ended => Ok(Some(self.tokens.eos_mask())),
        }
    }

    /// The masks before, between and after `drafts`: what may come next if the drafts before it do. They end with the
    /// first draft that may not come. The state stays as it is.
    ///
    /// # Errors
    /// The grammar is too complex at this place. Where it is so only after a draft, the masks end there: what comes
    /// instead may be another token.
    pub fn masks_along(&mut self, drafts: &[u32]) -> Result<Vec<Option<TokenMask>>, GrammarError> {
        let mut masks = vec![self.mask()?];
        if drafts.is_empty() {
            return Ok(masks);
        }
        let mut ahead = self.clone();
        for &draft in drafts {
            if ahead.advance(draft) != Ok(Standing::Open) {
                break;
            }
            let Ok(mask) = ahead.mask() else { break };
            masks.push(mask);
        }
        Ok(masks)
    }

    /// This token came. An end-of-sequence token ends the answer, where it is allowed.
    ///
    /// # Errors
    /// It may not come here, and nothing changes; or the grammar is too complex at this place.
    pub fn advance(&mut self, token: u32) -> Result<Standing, GrammarError> {
        if self.tokens.is_eos(token) {
            if !self.may_end() {
                return Err(GrammarError::NotAllowed(token));
            }
            self.state = State::Ended;
            return Ok(Standing::Complete);
        }
        let progress = match &mut self.state {
            State::Ended => return Err(GrammarError::NotAllowed(token)),
            State::Bound(matching) => matching.advance(token)?,
            State::Free(scan) => {
                let Some(lazy) = &self.lazy else { return Ok(Standing::Open) };
                let Some(begun) = scan.push(&lazy.trigger, self.tokens.text(token)) else { return Ok(Standing::Open) };
                let mut matching = lazy.fresh.clone();
                // What is no beginning of anything that the grammar allows is text like any other.
                let spelled = self.tokens.spelled(&begun);
                let Some(progress) = spelled.and_then(|spelled| matching.advance_all(&spelled)) else {
                    return Ok(Standing::Open);
                };
                self.state = State::Bound(matching);
                progress
            }
        };
        if progress == Standing::Open {
            return Ok(Standing::Open);
        }
        let (state, progress) = match &self.lazy {
            Some(lazy) if lazy.repeats => (State::Free(Scan::further_on()), Standing::Open),
            _ => (State::Ended, Standing::Complete),
        };
        self.state = state;
        Ok(progress)
    }

    /// Whether an end-of-sequence token may come.
    pub fn may_end(&mut self) -> bool {
        match &mut self.state {
            State::Free(_) | State::Ended => true,
            State::Bound(matching) => matching.is_accepting(),
        }
    }

    /// Whether any token may come.
    pub fn is_free(&self) -> bool {
        matches!(self.state, State::Free(_))
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            State::Free(_) => "free",
            State::Bound(_) => "bound",
            State::Ended => "ended",
        };
        write!(f, "Constraint({state})")
    }
}
