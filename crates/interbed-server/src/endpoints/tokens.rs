//! Implements `/tokenize` and `/detokenize`, with the fields of vLLM's endpoints.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::app::App;
use crate::body::{Preparing, Received, receive};
use crate::endpoints::chat;
use crate::error::ApiError;
use crate::fields::{Field, read, sent, token_ids};
use crate::openapi::{Part, part};
use crate::sampling::{check_model, model_part};
use crate::stream;

/// The number of bytes reserved per token id of an answer: its digits and a comma in a string that doubles as it grows,
/// and the id in the list.
const ID_BYTES: usize = 24;
/// The number of bytes reserved per byte of a vocabulary entry in an answer: the entry may need JSON escapes, in a
/// string that doubles.
const ENTRY_FACTOR: usize = 8;

#[derive(Deserialize)]
struct TokenizeFields {
    prompt: Option<Field<String>>,
    return_token_strs: Option<Field<bool>>,
    add_special_tokens: Option<Field<bool>>,
}

#[derive(Deserialize)]
struct DetokenizeFields<'b> {
    #[serde(borrow)]
    tokens: Option<&'b RawValue>,
}

/// Answers with the token ids of `prompt`, or of `messages` after the chat template.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let answer = app.blocking(received.caller.tenant, move |app| {
        let Received { body, .. } = received;
        let mut preparing = chat::begin(app, &body)?;
        check_model(app, body.json())?;
        let fields: TokenizeFields = read(body.json())?;
        let with_texts = sent(fields.return_token_strs).unwrap_or(false);
        let ids = match sent(fields.prompt) {
            Some(prompt) => {
                drop(body);
                let add_special = sent(fields.add_special_tokens).unwrap_or(true);
                app.tokenize(preparing.share.tenant(), "prompt", &prompt, add_special)?
            }
            None => chat::prompt(app, body, &mut preparing).map(|prompt| prompt.tokens).map_err(|error| match error
                .param
                .as_deref()
            {
                Some("messages") => {
                    ApiError::invalid("prompt", format!("send a prompt, or messages: {}", error.message))
                }
                _ => error,
            })?,
        };
        let mut bytes = ids.len().saturating_mul(ID_BYTES);
        if with_texts {
            let entries = ids.iter().filter_map(|&id| app.tokenizer.vocabulary_entry(id));
            bytes += entries.map(|entry| (entry.len() + 4) * ENTRY_FACTOR).sum::<usize>();
        }
        Handle::current().block_on(preparing.share.ensure(bytes))?;
        // The JSON is written by hand, because the ids as JSON values would take twenty times the memory.
        let mut body =
            format!(r#"{{"count":{},"max_model_len":{},"tokens":["#, ids.len(), app.engine.limits().max_model_len);
        for (index, id) in ids.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(body, "{}{id}", if index == 0 { "" } else { "," });
        }
        body.push_str(r#"],"token_strs":"#);
        if with_texts {
            for (index, &id) in ids.iter().enumerate() {
                let entry = app.tokenizer.vocabulary_entry(id).map_or(Value::Null, Value::from);
                let _ = write!(body, "{}{entry}", if index == 0 { "[" } else { "," });
            }
            body.push_str(if ids.is_empty() { "[]}" } else { "]}" });
        } else {
            body.push_str("null}");
        }
        Ok(stream::json(body.into_bytes(), vec![preparing.share]))
    });
    answer.await
}

/// Answers with the text of token ids, special tokens included.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let answer = app.blocking(received.caller.tenant, move |app| {
        let Received { body, .. } = received;
        let mut share = Preparing::begin(app, &body, 0)?.share;
        check_model(app, body.json())?;
        let Some(raw) = read::<DetokenizeFields<'_>>(body.json())?.tokens else {
            return Err(ApiError::invalid("tokens", "the request has no tokens"));
        };
        let ids =
            token_ids(raw, usize::MAX).map_err(|problem| ApiError::invalid("tokens", format!("tokens {problem}")))?;
        drop(body);
        let vocab_size = app.engine.limits().vocab_size;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            let message = format!("token id {id} in tokens is not in the vocabulary, which has {vocab_size} tokens");
            return Err(ApiError::invalid("tokens", message));
        }
        let text = app.decode(&ids, false, &mut share, &mut 0)?;
        Ok(stream::json(json!({"prompt": text}).to_string().into_bytes(), vec![share]))
    });
    answer.await
}

/// Returns the fields that `/tokenize` reads.
pub(crate) fn tokenize_parts() -> Vec<Part> {
    let own = vec![model_part(), part!(TokenizeFields)];
    own.into_iter().chain(chat::conversation_part()).collect()
}

/// Returns the fields that `/detokenize` reads.
pub(crate) fn detokenize_parts() -> Vec<Part> {
    vec![model_part(), part!(DetokenizeFields<'_>)]
}
