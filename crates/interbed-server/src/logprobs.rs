//! Writes log-probabilities in the formats of the two completion APIs.

use interbed_engine::{PositionLogprobs, TokenId, TokenLogprob};
use interbed_model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::json_text::{list_of, push};

/// The number that replaces negative infinity, which JSON lacks. vLLM uses this number too.
const LOWEST: f32 = -9999.0;

/// The field `logprobs` of `/v1/completions`: four lists of the same length. The lists are kept as text, because their
/// values would use many times the memory.
#[derive(Default)]
pub(crate) struct CompletionLogprobs {
    tokens: String,
    token_logprobs: String,
    top_logprobs: String,
    text_offset: String,
}

impl CompletionLogprobs {
    /// Adds a token, whose text begins `offset` characters into the choice's. The first token of a prompt has no
    /// log-probabilities.
    pub(crate) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: TokenId,
        logprobs: Option<&PositionLogprobs>,
        offset: usize,
    ) {
        push(&mut self.tokens, &spelling(tokenizer, token).into());
        push(&mut self.token_logprobs, &logprobs.map_or(Value::Null, |logprobs| finite(logprobs.chosen.logprob)));
        let top = logprobs.map_or(Value::Null, |logprobs| {
            let mut top = Map::new();
            // Of two tokens with the same text, the more likely one is reported.
            for token in logprobs.top.iter().chain([&logprobs.chosen]) {
                top.entry(spelling(tokenizer, token.token)).or_insert_with(|| finite(token.logprob));
            }
            Value::Object(top)
        });
        push(&mut self.top_logprobs, &top);
        push(&mut self.text_offset, &offset.into());
    }

    pub(crate) fn into_text(self) -> String {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = self;
        format!(
            r#"{{"tokens":[{tokens}],"token_logprobs":[{token_logprobs}],"top_logprobs":[{top_logprobs}],"text_offset":[{text_offset}]}}"#
        )
    }

    /// Returns the lists as a JSON value, for the few tokens of a chunk.
    pub(crate) fn to_json(&self) -> Value {
        let list = |text: &str| serde_json::from_str(&format!("[{text}]")).unwrap_or(Value::Null);
        json!({
            "tokens": list(&self.tokens),
            "token_logprobs": list(&self.token_logprobs),
            "top_logprobs": list(&self.top_logprobs),
            "text_offset": list(&self.text_offset),
        })
    }
}

/// Returns one entry of `logprobs.content` of `/v1/chat/completions`.
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

/// Writes `prompt_logprobs` in vLLM's format. For each token of the prompt but the first, the list has an object with
/// at most `top` most likely tokens and the token itself, by their ids.
pub(crate) fn prompt_text(tokenizer: &Tokenizer, prompt: &[Option<PositionLogprobs>], top: usize) -> String {
    let entry = |token: &TokenLogprob| {
        json!({
            "logprob": finite(token.logprob),
            "rank": token.rank,
            "decoded_token": tokenizer.token_text(token.token),
        })
    };
    list_of(prompt.iter().map(|position| {
        let Some(position) = position else { return Value::Null };
        let told = [&position.chosen].into_iter().chain(position.top.iter().take(top));
        let mut object = Map::new();
        for token in told {
            object.entry(token.token.to_string()).or_insert_with(|| entry(token));
        }
        Value::Object(object)
    }))
}

/// Returns a token's text, or its bytes in OpenAI's notation if the text is not UTF-8, such as `bytes:\xe4`.
fn spelling(tokenizer: &Tokenizer, token: TokenId) -> String {
    String::from_utf8(tokenizer.token_bytes(token)).unwrap_or_else(|error| {
        let bytes = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
        format!("bytes:{}", bytes.collect::<String>())
    })
}

fn finite(logprob: f32) -> Value {
    if logprob.is_finite() { json!(logprob) } else { json!(LOWEST) }
}
