//! A set of tokens that are allowed next.

use llguidance::toktrie::SimpleVob;

/// The set of tokens that are allowed next. Ids beyond the vocabulary are not allowed.
#[derive(Clone)]
pub struct TokenMask {
    allowed: SimpleVob,
}

impl TokenMask {
    pub(crate) fn new(allowed: SimpleVob) -> Self {
        Self { allowed }
    }

    /// Returns whether the token with this id is allowed next.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.allowed.len() && self.allowed.is_allowed(token)
    }

    /// Adds a token to the set. Ids beyond the vocabulary are ignored.
    pub(crate) fn allow(&mut self, token: u32) {
        if (token as usize) < self.allowed.len() {
            self.allowed.allow_token(token);
        }
    }

    /// Removes tokens from the set. If that would leave no token, it changes nothing and returns `false`.
    pub(crate) fn disallow(&mut self, tokens: &[u32]) -> bool {
        if tokens.is_empty() {
            return true;
        }
        let before = self.allowed.clone();
        tokens.iter().for_each(|&token| self.allowed.disallow_token(token));
        let is_left = self.allowed.num_set() > 0;
        if !is_left {
            self.allowed = before;
        }
        is_left
    }

    /// Iterates over the ids of the allowed tokens.
    pub(crate) fn allowed(&self) -> impl Iterator<Item = u32> {
        self.allowed.iter()
    }

    /// Adds all tokens of `other`.
    pub(crate) fn allow_all(&mut self, other: &Self) {
        other.allowed.iter_set_entries(|token| self.allow(token as u32));
    }

    /// Sets the logits of all tokens outside the set to negative infinity. `logits` contains one value for each token
    /// id.
    pub fn apply(&self, logits: &mut [f32]) {
        let mut words = self.allowed.as_slice().iter();
        for chunk in logits.chunks_mut(32) {
            let word = words.next().copied().unwrap_or(0);
            match word {
                u32::MAX => {}
                0 => chunk.fill(f32::NEG_INFINITY),
                _ => {
                    let forbidden = |index: usize| word >> index & 1 == 0;
                    let ruled_out = chunk.iter_mut().enumerate().filter(|(index, _)| forbidden(*index));
                    ruled_out.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }
}

impl std::fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenMask({} of {})", self.allowed.num_set(), self.allowed.len())
    }
}
