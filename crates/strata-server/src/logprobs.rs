//! Log-probabilities in the shapes of the two completion APIs.

use serde_json::{Map, Value, json};
use strata_engine::{PositionLogprobs, TokenId, TokenLogprob};
use strata_model::tokenizer::Tokenizer;

/// JSON has no infinity; vLLM writes this.
const LOWEST: f32 = -9999.0;

/// `logprobs` of `/v1/completions`: four lists of the same length.
#[derive(Default)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token, whose text begins `offset` characters into the answer; returns where the next one's begins. The
    /// first token of a prompt has no log-probabilities.
    pub(crate) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: TokenId,
        logprobs: Option<&PositionLogprobs>,
        offset: usize,
    ) -> usize {
        self.tokens.push(spelling(tokenizer, token).into());
        self.token_logprobs.push(logprobs.map_or(Value::Null, |logprobs| finite(logprobs.chosen.logprob)));
        self.top_logprobs.push(logprobs.map_or(Value::Null, |logprobs| {
            let mut top = Map::new();
            // Of two tokens with the same text, the more likely one is reported.
            for token in logprobs.top.iter().chain([&logprobs.chosen]) {
                top.entry(spelling(tokenizer, token.token)).or_insert_with(|| finite(token.logprob));
            }
            Value::Object(top)
        }));
        self.text_offset.push(offset);
        offset + tokenizer.token_text(token).chars().count()
    }

    pub(crate) fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// One entry of `logprobs.content` of `/v1/chat/completions`.
pub(crate) fn chat_entry(tokenizer: &Tokenizer, logprobs: &PositionLogprobs) -> Value {
    let entry = |token: &TokenLogprob| {
        let mut entry = Map::new();
        entry.insert("token".into(), tokenizer.token_text(token.token).into());
        entry.insert("logprob".into(), finite(token.logprob));
        entry.insert("bytes".into(), tokenizer.token_bytes(token.token).into());
        entry
    };
    let mut chosen = entry(&logprobs.chosen);
    let top = logprobs.top.iter().map(|token| Value::Object(entry(token))).collect();
    chosen.insert("top_logprobs".into(), Value::Array(top));
    Value::Object(chosen)
}

/// A token's text, or its bytes as OpenAI writes them where they are no text: `bytes:\xe4`.
fn spelling(tokenizer: &Tokenizer, token: TokenId) -> String {
    String::from_utf8(tokenizer.token_bytes(token)).unwrap_or_else(|error| {
        let bytes = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
        format!("bytes:{}", bytes.collect::<String>())
    })
}

fn finite(logprob: f32) -> Value {
    if logprob.is_finite() { json!(logprob) } else { json!(LOWEST) }
}
