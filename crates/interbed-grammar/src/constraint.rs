//! The state of one answer under a grammar.

use std::sync::Arc;

use crate::matching::Matching;
use crate::opening::{Opened, Opening};
use crate::preface::{Preface, Stage};
use crate::tokens::Tokens;
use crate::trigger::{Scan, Trigger};
use crate::{GrammarError, Standing, TokenMask};

/// The state of one answer that a grammar constrains. It determines which tokens are allowed next. Clones advance
/// independently.
#[derive(Clone)]
pub struct Constraint {
    tokens: Arc<Tokens>,
    state: State,
    /// The trigger and the grammar behind it, if only parts of the answer are constrained.
    lazy: Option<Lazy>,
    /// The preface that may come first, such as a model's thinking, and the stage that it has reached.
    preface: Option<(Arc<Preface>, Stage)>,
    /// A constraint that the beginning of the answer has to satisfy first.
    heading: Option<Box<Self>>,
}

#[derive(Clone)]
enum State {
    /// The text is unconstrained, and the scan looks for a marker. A token is forbidden only if it completes a marker
    /// and continues with text that the grammar does not allow.
    Free(Scan),
    /// The grammar decides which tokens are allowed.
    Bound(Box<Matching>),
    /// Only an end-of-sequence token is allowed.
    Ended,
}

#[derive(Clone)]
struct Lazy {
    opening: Arc<Opening>,
    repeats: bool,
}

impl Constraint {
    /// Constrains the whole answer by the grammar `fresh`.
    pub(crate) fn new(tokens: Arc<Tokens>, fresh: Matching) -> Self {
        Self { tokens, state: State::Bound(Box::new(fresh)), lazy: None, preface: None, heading: None }
    }

    /// Constrains what follows `trigger` by the grammar `fresh`. If `repeats` is set, the grammar applies after each
    /// trigger. Otherwise it applies once, and the answer then has to end.
    pub(crate) fn after(tokens: Arc<Tokens>, trigger: Trigger, fresh: Matching, repeats: bool) -> Self {
        let opening = Arc::new(Opening::new(&tokens, trigger, fresh));
        let lazy = Some(Lazy { opening, repeats });
        Self { tokens, state: State::Free(Scan::at_start()), lazy, preface: None, heading: None }
    }

    /// Allows `preface` before the text that this constraint applies to. Inside the preface, an end-of-sequence token
    /// is allowed only if the constraint allows an empty text.
    #[must_use]
    pub fn behind(mut self, preface: Preface) -> Self {
        let stage = preface.first();
        self.preface = Some((Arc::new(preface), stage));
        self
    }

    /// Requires the answer to begin with a complete text that `heading` allows. This constraint then applies to the
    /// text after the heading. No token may contain both the end of the heading and text after it. The caller ensures
    /// that no text that `heading` allows is a prefix of another such text.
    #[must_use]
    pub fn headed(mut self, heading: Self) -> Self {
        self.heading = Some(Box::new(heading));
        self
    }

    /// Computes the set of tokens that are allowed next. Returns `None` if all tokens are allowed.
    ///
    /// # Errors
    /// Fails if the grammar is too complex in this state.
    pub fn mask(&mut self) -> Result<Option<TokenMask>, GrammarError> {
        if let Some(heading) = &mut self.heading {
            return heading.mask();
        }
        let Some((preface, stage)) = self.preface.clone() else { return self.own_mask() };
        if let Stage::Inside(_) = stage {
            return Ok(if self.own_end() { None } else { Some(self.tokens.mask_but_eos()) });
        }
        let mut mask = self.own_mask()?;
        match (&mut mask, stage) {
            (Some(mask), Stage::Before) => preface.open.into_iter().for_each(|open| mask.allow(open)),
            (Some(mask), Stage::Blank(bytes)) if bytes < preface.blanks => mask.allow_all(self.tokens.blanks()),
            _ => {}
        }
        Ok(mask)
    }

    fn own_mask(&mut self) -> Result<Option<TokenMask>, GrammarError> {
        match &mut self.state {
            State::Free(scan) => {
                let refused = self.lazy.as_ref().map(|lazy| lazy.opening.refused(&self.tokens, scan));
                let refused = refused.filter(|refused| !refused.is_empty());
                Ok(refused.map(|refused| self.tokens.mask_but(&refused)))
            }
            State::Bound(matching) => matching.mask().map(Some),
            State::Ended => Ok(Some(self.tokens.eos_mask())),
        }
    }

    /// Computes the masks for the positions of the draft tokens in `drafts` and for the position after the last one,
    /// without changing the state. Mask `i` assumes that the first `i` draft tokens were accepted. If a draft token is
    /// not allowed or completes the answer, the last mask is the one for the position of this token.
    ///
    /// # Errors
    /// Fails if the grammar is too complex in the current state. It is not an error if the grammar becomes too complex
    /// only after a draft token, because a different token may be sampled. In that case, too, the last mask is the one
    /// for the position of this draft token.
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

    /// Advances the state by `token`. An end-of-sequence token completes the answer.
    ///
    /// # Errors
    /// Fails if the token is not allowed in this state; the state is then unchanged. Also fails if the grammar is too
    /// complex in this state.
    pub fn advance(&mut self, token: u32) -> Result<Standing, GrammarError> {
        if let Some(heading) = &mut self.heading {
            if heading.advance(token)? == Standing::Complete {
                self.heading = None;
            }
            return Ok(Standing::Open);
        }
        let Some((preface, mut stage)) = self.preface.take() else { return self.own_advance(token) };
        let is_eos = self.tokens.is_eos(token);
        match &mut stage {
            Stage::Before if preface.open == Some(token) && !is_eos => {
                self.preface = Some((preface, Stage::Inside(Scan::further_on())));
                return Ok(Standing::Open);
            }
            Stage::Inside(scan) if !is_eos => {
                if let Some(behind) = scan.push(&preface.close, self.tokens.text(token)) {
                    let blanks = behind.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                    if blanks == behind.len() {
                        stage = Stage::Blank(blanks);
                    } else if let Some(spelled) = self.tokens.spelled(&behind[blanks..]) {
                        let mut ahead = self.clone();
                        if spelled.into_iter().all(|token| ahead.own_advance(token).is_ok()) {
                            *self = ahead;
                            return Ok(self.standing());
                        }
                        // A closing marker whose rest cannot follow does not end the preface.
                        *scan = Scan::further_on();
                    }
                }
                self.preface = Some((preface, stage));
                return Ok(Standing::Open);
            }
            _ => {}
        }
        let advanced = self.own_advance(token);
        if let Err(GrammarError::NotAllowed(_)) = advanced {
            let length = self.tokens.text(token).len();
            let blanks = if let Stage::Blank(bytes) = &mut stage { Some(bytes) } else { None };
            match blanks.filter(|bytes| **bytes < preface.blanks && self.tokens.blanks().allows(token)) {
                Some(bytes) => *bytes += length,
                None => {
                    self.preface = Some((preface, stage));
                    return advanced;
                }
            }
            self.preface = Some((preface, stage));
            return Ok(Standing::Open);
        }
        advanced
    }

    fn standing(&self) -> Standing {
        if matches!(self.state, State::Ended) { Standing::Complete } else { Standing::Open }
    }

    fn own_advance(&mut self, token: u32) -> Result<Standing, GrammarError> {
        if self.tokens.is_eos(token) {
            if !self.own_end() {
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
                match lazy.opening.advance(&self.tokens, scan, token) {
                    Opened::No => return Ok(Standing::Open),
                    Opened::Refused => return Err(GrammarError::NotAllowed(token)),
                    Opened::Yes(matching, progress) => {
                        self.state = State::Bound(matching);
                        progress
                    }
                }
            }
        };
        if progress == Standing::Open {
            return Ok(Standing::Open);
        }
        let (state, progress) = match &self.lazy {
            Some(lazy) if lazy.repeats => (State::Free(Scan::behind_part()), Standing::Open),
            _ => (State::Ended, Standing::Complete),
        };
        self.state = state;
        Ok(progress)
    }

    /// Returns whether an end-of-sequence token is allowed next.
    pub fn may_end(&mut self) -> bool {
        self.heading.is_none() && self.own_end()
    }

    fn own_end(&mut self) -> bool {
        match &mut self.state {
            State::Free(_) | State::Ended => true,
            State::Bound(matching) => matching.is_accepting(),
        }
    }

    /// Returns whether all tokens are allowed next. Uses only cheap checks, so it may return `false` although all
    /// tokens are allowed.
    pub fn is_free(&self) -> bool {
        let State::Free(scan) = &self.state else { return false };
        let is_inside = matches!(&self.preface, Some((_, Stage::Inside(_))));
        let is_free = |lazy: &Lazy| is_inside || lazy.opening.is_free(scan);
        self.heading.is_none() && self.lazy.as_ref().is_none_or(is_free)
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            _ if self.preface.is_some() || self.heading.is_some() => "before it",
            State::Free(_) => "free",
            State::Bound(_) => "bound",
            State::Ended => "ended",
        };
        write!(f, "Constraint({state})")
    }
}
