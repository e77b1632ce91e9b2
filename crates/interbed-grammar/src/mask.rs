//! Which tokens may come next.

use llguidance::toktrie::SimpleVob;

/// Which tokens may come next. Tokens that it does not know may not.
#[derive(Clone)]
pub struct TokenMask {
    allowed: SimpleVob,
}

impl TokenMask {
    pub(crate) fn new(allowed: SimpleVob) -> Self {
        Self { allowed }
    }

    /// Whether this token may come next.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.allowed.len() && self.allowed.is_allowed(token)
    }

    /// This token may come too, if there is one.
    pub(crate) fn allow(&mut self, token: u32) {
        if (token as usize) < self.allowed.len() {
            self.allowed.allow_token(token);
        }
    }

    /// None of these may come, unless nothing else may: then it stays as it is, and `false` is returned.
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

    /// Those that may come.
    pub(crate) fn allowed(&self) -> impl Iterator<Item = u32> {
        self.allowed.iter()
    }

    /// Those of `other` may come too.
    pub(crate) fn allow_all(&mut self, other: &Self) {
        other.allowed.iter_set_entries(|token| self.allow(token as u32));
    }

    /// Makes all others impossible. `logits`: `[vocabulary]`.
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
