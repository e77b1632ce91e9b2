//! Implements `/v1/embeddings`, which turns texts into vectors.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use interbed_engine::TokenId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{Preparing, Received, receive};
use crate::caller::Caller;
use crate::config::Embeddings;
use crate::endpoints::completions::{Asking, prompts_of};
use crate::error::ApiError;
use crate::fields::{Field, FromJson, is_text, read, sent};
use crate::generate::{Asked, sequences_max, submit};
use crate::memory::Share;
use crate::openapi::{Part, part};
use crate::sampling::{Common, check_name, unasked};
use crate::stream;
use crate::truncation::Truncation;

/// The maximum number of texts in a request, as in OpenAI's API.
pub(crate) const INPUTS_MAX: usize = 2048;
/// The maximum number of texts of one request that are in the engine at a time, so that a large request does not hold
/// up others.
const AT_A_TIME: usize = 32;
/// The maximum number of bytes of a vector's number as text, with a comma.
pub(crate) const FLOAT_BYTES: usize = 20;
/// The number of bytes of a vector's 32-bit float in base64, rounded up.
const BASE64_BYTES: usize = 6;
/// The number of bytes around a vector in the answer.
const ENTRY_BYTES: usize = 128;

/// The request fields of `/v1/embeddings`.
#[derive(Deserialize)]
struct Fields<'b> {
    model: Option<Field<String>>,
    #[serde(borrow)]
    input: Option<&'b RawValue>,
    encoding_format: Option<Field<Encoding>>,
    dimensions: Option<Field<usize>>,
    add_special_tokens: Option<Field<bool>>,
    truncate_prompt_tokens: Option<Field<Truncation>>,
}

/// The format in which a vector is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// A list of numbers.
    Float,
    /// The numbers as 32-bit little-endian floats, encoded in base64.
    Base64,
}

impl FromJson<'_> for Encoding {
    const EXPECTED: &'static str = "\"float\" or \"base64\"";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match raw {
            _ if is_text(raw, "float") => Ok(Self::Float),
            _ if is_text(raw, "base64") => Ok(Self::Base64),
            _ => Err(Self::other(raw)),
        }
    }
}

/// A request whose fields are read and whose prompts are tokenized.
struct Prepared {
    common: Common,
    prompts: Vec<Vec<TokenId>>,
    encoding: Encoding,
    dimensions: usize,
    share: Share,
}

pub(crate) async fn handle(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let received = receive(&app, request).await?;
    let caller = received.caller.clone();
    let Prepared { common, prompts, encoding, dimensions, share } =
        app.blocking(received.caller.tenant, move |app| prepare(app, received)).await?;
    let number_bytes = if encoding == Encoding::Float { FLOAT_BYTES } else { BASE64_BYTES };
    let bytes = prompts.len().saturating_mul(dimensions.saturating_mul(number_bytes).saturating_add(ENTRY_BYTES));
    let answer = app.memory.answers.take(caller.tenant, bytes).await?;
    let mut body = String::with_capacity(bytes);
    body.push_str(r#"{"object":"list","data":["#);
    let mut index = 0;
    let take = |vector| {
        body.push_str(if index == 0 { "" } else { "," });
        entry(&mut body, index, &finished(vector, dimensions), encoding);
        index += 1;
    };
    let tokens = embed(&app, &caller, prompts, &common, take).await?;
    drop(share);
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    // Writing to a String cannot fail.
    let _ = write!(body, r#"],"model":{},"usage":{usage}}}"#, Value::from(common.model.as_str()));
    Ok(stream::json(body.into_bytes(), vec![answer]))
}

/// Computes the vector of each prompt, passes them to `take` in the order of the prompts, and returns the number of
/// tokens of all prompts. The caller holds the memory of the prompts.
///
/// # Errors
/// Fails if a prompt is refused, or computing it fails.
pub(crate) async fn embed(
    app: &Arc<App>,
    caller: &Caller,
    prompts: Vec<Vec<TokenId>>,
    common: &Common,
    mut take: impl FnMut(Vec<f32>),
) -> Result<usize, ApiError> {
    let mut tokens = 0;
    let at_a_time = AT_A_TIME.min(sequences_max(app));
    let mut waiting = prompts.into_iter();
    while waiting.len() > 0 {
        let prompts: Vec<_> = waiting.by_ref().take(at_a_time).collect();
        // The caller's share covers the prompts that still wait, so these prompts get an empty share.
        let share = app.memory.parsed.take(caller.tenant, 0).await?;
        let asked = Asked { prompts, form: None, echo_bytes: 0, caller: caller.clone(), beside: 0, share };
        let mut sequences = submit(app, asked, common).await?;
        tokens += sequences.prompt_tokens();
        sequences.collect().await?.into_iter().for_each(|output| take(output.embedding));
    }
    Ok(tokens)
}

/// Returns how the model computes embeddings.
///
/// # Errors
/// Fails if the model computes no embeddings.
pub(crate) fn embeddings_of(app: &App) -> Result<Embeddings, ApiError> {
    let made = app.config.embeddings.clone();
    made.map_err(|why| ApiError::malformed(format!("this server makes no embeddings with this model: {why}")))
}

/// Returns how many numbers of each vector the answer should have. The default is `width`, which is all numbers.
///
/// # Errors
/// Fails if `asked` is 0, or more than `width`.
pub(crate) fn checked_dimensions(asked: Option<usize>, width: usize) -> Result<usize, ApiError> {
    let dimensions = asked.unwrap_or(width);
    if dimensions == 0 || dimensions > width {
        let message = format!("dimensions is {dimensions}, but must be 1 to {width}, the width of this model");
        return Err(ApiError::invalid("dimensions", message));
    }
    Ok(dimensions)
}

fn prepare(app: &App, received: Received) -> Result<Prepared, ApiError> {
    let Received { body, .. } = received;
    let share = Preparing::begin(app, &body, 0)?.share;
    let fields: Fields<'_> = read(body.json())?;
    let model = check_name(app, sent(fields.model))?;
    let Embeddings { pooling, width } = embeddings_of(app)?;
    let dimensions = checked_dimensions(sent(fields.dimensions), width)?;
    let input = fields.input.ok_or_else(|| ApiError::invalid("input", "the request has no input"))?;
    let inputs = prompts_of("input", input, INPUTS_MAX)?;
    let add_special = sent(fields.add_special_tokens).unwrap_or(true);
    let truncation = sent(fields.truncate_prompt_tokens);
    let encoding = sent(fields.encoding_format).unwrap_or(Encoding::Float);
    drop(body);
    let one = |asking| {
        let mut ids = match asking {
            Asking::Text(text) => app.encode(share.tenant(), "input", &text, add_special)?,
            Asking::Ids(ids) => ids,
        };
        if let Some(truncation) = truncation {
            truncation.apply(&mut ids, app.tokenizer.bos_id(), app.engine.limits(), 0);
        }
        Ok(ids)
    };
    let prompts = inputs.into_iter().map(one).collect::<Result<_, ApiError>>()?;
    let common = Common { embed: Some(pooling), model, ..unasked(app) };
    Ok(Prepared { common, prompts, encoding, dimensions, share })
}

/// Returns the first `dimensions` numbers of a vector, scaled to length 1.
pub(crate) fn finished(mut vector: Vec<f32>, dimensions: usize) -> Vec<f32> {
    vector.truncate(dimensions);
    let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
    }
    vector
}

/// Appends an entry of the answer's `data` list.
fn entry(body: &mut String, index: usize, vector: &[f32], encoding: Encoding) {
    // Writing to a String cannot fail.
    let _ = write!(body, r#"{{"object":"embedding","index":{index},"embedding":"#);
    match encoding {
        Encoding::Float => {
            push_numbers(body, vector);
            body.push('}');
        }
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            body.push('"');
            STANDARD.encode_string(bytes, body);
            body.push_str("\"}");
        }
    }
}

/// Appends a list of numbers, each of which takes at most [`FLOAT_BYTES`] bytes.
pub(crate) fn push_numbers(body: &mut String, numbers: &[f32]) {
    body.push('[');
    for (index, number) in numbers.iter().enumerate() {
        body.push_str(if index == 0 { "" } else { "," });
        body.push_str(&number_text(*number));
    }
    body.push(']');
}

/// Returns the shortest text that reads back as the same 32-bit float.
fn number_text(number: f32) -> String {
    serde_json::to_string(&number).unwrap_or_default()
}

/// Returns the fields that `/v1/embeddings` reads.
pub(crate) fn parts() -> Vec<Part> {
    vec![part!(Fields<'_>)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_cut_and_then_normalised() {
        assert_eq!(finished(vec![3.0, 4.0, 12.0], 3), [3.0 / 13.0, 4.0 / 13.0, 12.0 / 13.0]);
        assert_eq!(finished(vec![3.0, -4.0, 12.0], 2), [0.6, -0.8]);
        assert_eq!(finished(vec![0.0, 0.0], 2), [0.0, 0.0]);
        let huge = finished(vec![f32::MAX, f32::MAX], 2);
        assert!((huge[0] - std::f32::consts::FRAC_1_SQRT_2).abs() < 1e-6);
    }

    #[test]
    fn no_number_takes_more_than_it_is_charged() {
        for bits in (0..u32::MAX).step_by(9_999_991) {
            let number = f32::from_bits(bits);
            let text = number_text(number);
            assert!(!number.is_finite() || number.abs() > 1.0 || text.len() < FLOAT_BYTES, "{text}");
            assert!(!number.is_finite() || text.parse::<f32>() == Ok(number), "{text}");
        }
    }
}
