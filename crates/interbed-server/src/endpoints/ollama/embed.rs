//! Implements `/api/embed`, and the older `/api/embeddings`, which turn texts into vectors.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use interbed_engine::TokenId;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::answer::nanoseconds;
use super::named;
use super::settings::Options;
use crate::app::App;
use crate::body::{Preparing, Received, ReceivedBody, receive};
use crate::caller::Caller;
use crate::config::Embeddings;
use crate::endpoints::completions::{Asking, prompts_of};
use crate::endpoints::embeddings::{
    FLOAT_BYTES, INPUTS_MAX, checked_dimensions, embed as vectors, embeddings_of, finished, push_numbers,
};
use crate::error::ApiError;
use crate::fields::{Field, read, sent};
use crate::keep_alive::keep_alive;
use crate::memory::Share;
use crate::openapi::{Part, part};
use crate::sampling::{Common, unasked};
use crate::stream;

/// The number of bytes around a vector in the answer.
const ENTRY_BYTES: usize = 16;
/// The number of bytes that follow the last vector in the answer.
const END_BYTES: usize = 256;

/// The fields of `/api/embed`.
#[derive(Deserialize)]
struct Fields<'b> {
    model: Option<Field<String>>,
    #[serde(borrow)]
    input: Option<&'b RawValue>,
    truncate: Option<Field<bool>>,
    dimensions: Option<Field<usize>>,
    options: Option<Field<Options>>,
    #[serde(borrow)]
    keep_alive: Option<&'b RawValue>,
}

/// The fields of `/api/embeddings`.
#[derive(Deserialize)]
struct OlderFields<'b> {
    model: Option<Field<String>>,
    prompt: Option<Field<String>>,
    options: Option<Field<Options>>,
    #[serde(borrow)]
    keep_alive: Option<&'b RawValue>,
}

/// A request whose fields are read and whose prompts are tokenized.
struct Prepared {
    common: Common,
    prompts: Vec<Vec<TokenId>>,
    width: usize,
    share: Share,
}

pub(crate) async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let (caller, arrival) = (received.caller.clone(), received.arrival);
    let prepared = app.blocking(caller.tenant, move |app| prepare(app, received)).await?;
    let (model, width) = (prepared.common.model.clone(), prepared.width);
    let begin = format!(r#"{{"model":{},"embeddings":["#, Value::from(model));
    let Made { mut body, tokens, share } =
        made(&app, &caller, prepared, &begin, |vector| finished(vector, width)).await?;
    let (total, load) = (nanoseconds(arrival.at.elapsed()), nanoseconds(arrival.waited));
    // Writing to a String cannot fail.
    let _ = write!(body, r#"],"total_duration":{total},"load_duration":{load},"prompt_eval_count":{tokens}}}"#);
    Ok(stream::json(body.into_bytes(), vec![share]))
}

pub(crate) async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let caller = received.caller.clone();
    let prepared = app.blocking(caller.tenant, move |app| prepare_older(app, &received.body)).await?;
    // `/api/embeddings` does not scale its vectors to length 1.
    let is_empty = prepared.prompts.is_empty();
    let Made { mut body, share, .. } = made(&app, &caller, prepared, r#"{"embedding":"#, |vector| vector).await?;
    body.push_str(if is_empty { "[]}" } else { "}" });
    Ok(stream::json(body.into_bytes(), vec![share]))
}

/// Returns the fields that `/api/embed` reads.
pub(crate) fn embed_parts() -> Vec<Part> {
    vec![part!(Fields<'_>)]
}

/// Returns the fields that `/api/embeddings` reads.
pub(crate) fn embeddings_parts() -> Vec<Part> {
    vec![part!(OlderFields<'_>)]
}

/// An answer that is written up to its last vector.
struct Made {
    body: String,
    tokens: usize,
    share: Share,
}

/// Computes the vectors of a request, applies `last` to each, and writes them after `begin`, separated by commas.
async fn made(
    app: &Arc<App>,
    caller: &Caller,
    prepared: Prepared,
    begin: &str,
    last: impl Fn(Vec<f32>) -> Vec<f32>,
) -> Result<Made, ApiError> {
    let Prepared { common, prompts, width, share: kept } = prepared;
    let each = width.saturating_mul(FLOAT_BYTES).saturating_add(ENTRY_BYTES);
    let bytes = prompts.len().saturating_mul(each).saturating_add(begin.len()).saturating_add(END_BYTES);
    let share = app.memory.answers.take(caller.tenant, bytes).await?;
    let mut body = String::with_capacity(bytes);
    body.push_str(begin);
    let take = |vector| {
        body.push_str(if body.len() == begin.len() { "" } else { "," });
        push_numbers(&mut body, &last(vector));
    };
    let tokens = vectors(app, caller, prompts, &common, take).await?;
    drop(kept);
    Ok(Made { body, tokens, share })
}

fn prepare(app: &App, received: Received) -> Result<Prepared, ApiError> {
    let Received { body, .. } = received;
    let share = Preparing::begin(app, &body, 0)?.share;
    let fields: Fields<'_> = read(body.json())?;
    let model = named(app, sent(fields.model))?;
    let Embeddings { pooling, width } = embeddings_of(app)?;
    let asked = sent(fields.dimensions).filter(|&dimensions| dimensions > 0);
    let width = checked_dimensions(asked, width)?;
    keep_alive(fields.keep_alive)?;
    let context = sent(fields.options).and_then(|options| options.context());
    let input = fields.input.ok_or_else(|| ApiError::invalid("input", "the request has no input"))?;
    let inputs = match input.get().trim_start_matches('[').trim() {
        // An empty list has no vectors.
        "]" => Vec::new(),
        _ => prompts_of("input", input, INPUTS_MAX)?,
    };
    let cuts = sent(fields.truncate).unwrap_or(true);
    drop(body);
    let limit = context.unwrap_or(usize::MAX).min(app.engine.limits().max_model_len);
    let one = |asking| {
        let mut ids = match asking {
            Asking::Text(text) if cuts => app.tokenize(share.tenant(), "input", &text, true)?,
            Asking::Text(text) => app.encode(share.tenant(), "input", &text, true)?,
            Asking::Ids(ids) => ids,
        };
        if ids.len() > limit && cuts {
            cut(&mut ids, limit, |last| app.tokenizer.is_special(last));
        }
        Ok(ids)
    };
    let prompts = inputs.into_iter().map(one).collect::<Result<_, ApiError>>()?;
    let common = Common { embed: Some(pooling), model, ..unasked(app) };
    Ok(Prepared { common, prompts, width, share })
}

fn prepare_older(app: &App, body: &ReceivedBody) -> Result<Prepared, ApiError> {
    let share = Preparing::begin(app, body, 0)?.share;
    let fields: OlderFields<'_> = read(body.json())?;
    let model = named(app, sent(fields.model))?;
    let Embeddings { pooling, width } = embeddings_of(app)?;
    keep_alive(fields.keep_alive)?;
    // No option changes a vector, but their types are checked.
    let _ = sent(fields.options);
    let prompt = sent(fields.prompt).filter(|prompt| !prompt.is_empty());
    let prompt = prompt.map(|prompt| app.encode(share.tenant(), "prompt", &prompt, true)).transpose()?;
    let common = Common { embed: Some(pooling), model, ..unasked(app) };
    Ok(Prepared { common, prompts: prompt.into_iter().collect(), width, share })
}

/// Cuts a text to at most `most` tokens. A special token at its end closes every text of this tokenizer, so it is
/// kept.
fn cut(ids: &mut Vec<TokenId>, most: usize, is_special: impl Fn(TokenId) -> bool) {
    let Some(last) = ids.last().copied().filter(|_| ids.len() > most) else { return };
    ids.truncate(most);
    if let Some(end) = ids.last_mut().filter(|_| most > 1 && is_special(last)) {
        *end = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_kept_and_what_ends_every_text() {
        for (ids, most, expected) in [
            (&[1, 2, 3, 4][..], 4, &[1, 2, 3, 4][..]),
            (&[1, 2, 3, 4], 2, &[1, 2]),
            (&[1, 2, 3, 99], 2, &[1, 99]),
            (&[1, 2, 3, 99], 1, &[1]),
            (&[], 1, &[]),
        ] {
            let mut cut_ids = ids.to_vec();
            cut(&mut cut_ids, most, |last| last == 99);
            assert_eq!(cut_ids, expected, "{ids:?} {most}");
        }
    }
}
