//! Implements `truncate_prompt_tokens`, which keeps the end of a prompt that is too long.

use interbed_engine::{Limits, TokenId};
use serde_json::value::RawValue;

use crate::fields::FromJson;

/// Says how much of a prompt is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// The last tokens of the prompt are kept, up to this number.
    Last(usize),
    /// The last tokens of the prompt are kept, as many as fit into the context together with the answer.
    Context,
}

impl FromJson<'_> for Truncation {
    const EXPECTED: &'static str = "a number of tokens, or -1 for as many as the context has room for";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match i64::from_json(raw)? {
            -1 => Ok(Self::Context),
            tokens @ 1.. => Ok(Self::Last(tokens as usize)),
            other => Err(format!("is {other}, but must be {}", Self::EXPECTED)),
        }
    }
}

impl Truncation {
    /// Removes tokens from the beginning of `prompt`, except a beginning-of-sequence token `bos` that the tokenizer
    /// added. `answer` is the number of tokens that may follow.
    pub(crate) fn apply(self, prompt: &mut Vec<TokenId>, bos: Option<TokenId>, limits: &Limits, answer: usize) {
        let most = match self {
            Self::Last(tokens) => tokens,
            Self::Context => limits.max_model_len.saturating_sub(answer).max(1),
        };
        let kept = usize::from(most > 1 && bos.is_some() && prompt.first().copied() == bos);
        if prompt.len() > most {
            prompt.drain(kept..prompt.len() - (most - kept));
        }
    }
}

#[cfg(test)]
mod tests {
    use interbed_engine::testing::ScriptedEngine;

    use super::*;

    #[test]
    fn the_end_is_kept() {
        let check = |truncation: Truncation, bos, answer, expected: &[TokenId]| {
            let limits = Limits { max_model_len: 6, ..ScriptedEngine::limits() };
            let mut prompt = vec![9, 1, 2, 3, 4];
            truncation.apply(&mut prompt, bos, &limits, answer);
            assert_eq!(prompt, expected, "{truncation:?} {answer}");
        };
        check(Truncation::Last(3), None, 0, &[2, 3, 4]);
        check(Truncation::Last(3), Some(9), 0, &[9, 3, 4]);
        check(Truncation::Last(3), Some(8), 0, &[2, 3, 4]);
        check(Truncation::Last(1), Some(9), 0, &[4]);
        check(Truncation::Last(5), Some(9), 0, &[9, 1, 2, 3, 4]);
        check(Truncation::Last(usize::MAX), None, 0, &[9, 1, 2, 3, 4]);
        check(Truncation::Context, Some(9), 2, &[9, 2, 3, 4]);
        check(Truncation::Context, None, 100, &[4]);
    }
}
