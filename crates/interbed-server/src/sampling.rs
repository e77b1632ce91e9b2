//! Reads the request fields that both completion APIs share.

use std::ops::RangeInclusive;

use interbed_engine::text::TextOptions;
use interbed_engine::{BeamParams, Pooling, SamplingParams, TOKEN_LIST_MAX, TokenId};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Field, FromJson, Object, entries, is_text, pairs, read, sent, shown, token_ids};
use crate::openapi::{Part, part};
use crate::random::random;
use crate::schemas::Bond;
use crate::tenant::Tenant;
use crate::truncation::Truncation;
use crate::unsupported::{Api, Supported};

/// The maximum number of stop strings of a request (OpenAI allows 4).
const STOPS_MAX: usize = 64;
/// The longest stop string in bytes.
const STOP_BYTES_MAX: usize = 1024;
/// The maximum number of `bad_words` of a request.
const BAD_WORDS_MAX: usize = 256;
/// The longest `cache_salt` in bytes.
const SALT_BYTES_MAX: usize = 1024;
/// The priorities that clients may request. Waiting requests age, so that none of them starves.
const PRIORITIES: RangeInclusive<i64> = -100..=100;
/// The fields that both completion APIs share, as clients send them.
#[derive(Deserialize)]
struct SharedFields {
    model: Option<Field<String>>,
    n: Option<Field<usize>>,
    best_of: Option<Field<usize>>,
    max_tokens: Option<Field<MostTokens>>,
    max_completion_tokens: Option<Field<MostTokens>>,
    /// The name that llama.cpp has for `max_tokens`.
    n_predict: Option<Field<MostTokens>>,
    min_tokens: Option<Field<usize>>,
    temperature: Option<Field<f32>>,
    top_k: Option<Field<i64>>,
    top_p: Option<Field<f32>>,
    min_p: Option<Field<f32>>,
    repetition_penalty: Option<Field<f32>>,
    /// The name that llama.cpp has for `repetition_penalty`.
    repeat_penalty: Option<Field<f32>>,
    repeat_last_n: Option<Field<i64>>,
    presence_penalty: Option<Field<f32>>,
    frequency_penalty: Option<Field<f32>>,
    logit_bias: Option<Field<LogitBias>>,
    seed: Option<Field<i64>>,
    stop: Option<Field<Stops>>,
    include_stop_str_in_output: Option<Field<bool>>,
    skip_special_tokens: Option<Field<bool>>,
    stop_token_ids: Option<Field<TokenList>>,
    allowed_token_ids: Option<Field<TokenList>>,
    bad_words: Option<Field<BadWords>>,
    prompt_logprobs: Option<Field<usize>>,
    truncate_prompt_tokens: Option<Field<Truncation>>,
    ignore_eos: Option<Field<bool>>,
    use_beam_search: Option<Field<bool>>,
    length_penalty: Option<Field<f32>>,
    early_stopping: Option<Field<EarlyStopping>>,
    stream: Option<Field<bool>>,
    stream_options: Option<Field<Object<StreamOptions>>>,
    cache_report: Option<Field<bool>>,
    cache_salt: Option<Field<String>>,
    priority: Option<Field<i64>>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<Field<bool>>,
}

/// The longest model name, in bytes, if any name is accepted. Each chunk of an answer repeats the name.
const MODEL_BYTES_MAX: usize = 256;

/// The fields that the APIs of whole conversations, messages and responses, share.
#[derive(Deserialize)]
struct ConversationFields {
    model: Option<Field<String>>,
    stream: Option<Field<bool>>,
    temperature: Option<Field<f32>>,
    top_p: Option<Field<f32>>,
    seed: Option<Field<i64>>,
}

#[derive(Deserialize)]
struct ModelField {
    model: Option<Field<String>>,
}

/// The fields that both completion APIs share, apart from the prompt, after checking. Each API fills in
/// log-probabilities and `max_tokens` itself.
pub(crate) struct Common {
    /// The name of the model for the response.
    pub(crate) model: String,
    pub(crate) params: SamplingParams,
    pub(crate) text: TextOptions,
    /// The maximum number of tokens of an answer, if the request sets a limit.
    pub(crate) max_tokens: Option<usize>,
    /// Whether the request says that an answer may be as long as the context allows.
    pub(crate) unlimited: bool,
    /// The number of choices per prompt.
    pub(crate) n: usize,
    /// The number of continuations per prompt from which the choices are taken. The number is at least that of the
    /// choices, and for a beam search exactly that number.
    pub(crate) candidates: usize,
    pub(crate) beam: Option<BeamParams>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether `usage` says where the cached prefix of each prompt ended, and why.
    pub(crate) cache_report: bool,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i32,
    /// Describes how to truncate a prompt that is too long.
    pub(crate) truncation: Option<Truncation>,
    /// The number of most likely tokens in the prompt's log-probabilities, if the response includes these.
    pub(crate) prompt_logprobs: Option<usize>,
    /// The method of pooling the prompt's embedding, if an embedding is requested instead of text.
    pub(crate) embed: Option<Pooling>,
    /// The constraint on the answers, which each endpoint fills in.
    pub(crate) constraint: Option<Bond>,
}

/// Parses and checks the shared fields of a body, and refuses fields that its API does not support.
pub(crate) fn common<A: Api>(app: &App, tenant: Tenant, body: &[u8]) -> Result<Common, ApiError> {
    read::<Supported<A>>(body)?.tell(&app.notes);
    let mut fields: SharedFields = read(body)?;
    let model = check_name(app, sent(fields.model.take()))?;
    let (n, best_of) = amounts(&fields, app.config.sequences_max)?;
    let stream = sent(fields.stream).unwrap_or(false);
    let beam = beam(&fields, best_of)?;
    for (chosen_at_the_end, name) in [(beam.is_some(), "use_beam_search"), (best_of > n, "best_of")] {
        if chosen_at_the_end && stream {
            let message =
                format!("{name} chooses among whole answers, so they cannot be streamed; set stream to false");
            return Err(ApiError::invalid("stream", message));
        }
    }
    let include_usage = match &fields.stream_options {
        Some(_) if !stream => {
            return Err(ApiError::invalid("stream_options", "stream_options is for streams; set stream to true"));
        }
        Some(Field(Object(options))) => sent(options.include_usage).unwrap_or(false),
        None => false,
    };
    let stop = sent(fields.stop.take()).map_or_else(Vec::new, |Stops(stops)| stops);
    let cache_salt = sent(fields.cache_salt.take());
    if let Some(salt) = cache_salt.as_ref().filter(|salt| salt.len() > SALT_BYTES_MAX) {
        let message = format!("cache_salt has {} bytes, but at most {SALT_BYTES_MAX} are allowed", salt.len());
        return Err(ApiError::invalid("cache_salt", message));
    }
    let priority = priority(sent(fields.priority).unwrap_or(0))?;
    let defaults = if beam.is_some() { &neutral() } else { &app.config.default_sampling };
    let most = most_tokens(&fields)?;
    let max_tokens = most.and_then(MostTokens::limit);
    let unlimited = most.is_some() && max_tokens.is_none();
    let (include_stop, skip_special) = (sent(fields.include_stop_str_in_output), sent(fields.skip_special_tokens));
    let cache_report = sent(fields.cache_report).unwrap_or(false);
    let truncation = sent(fields.truncate_prompt_tokens.take());
    let prompt_logprobs = sent(fields.prompt_logprobs.take());
    if prompt_logprobs.is_some() && stream {
        let message = "prompt_logprobs are not part of a stream; set stream to false, or leave prompt_logprobs out";
        return Err(ApiError::invalid("prompt_logprobs", message));
    }
    let bad_words = sent(fields.bad_words.take()).map_or_else(Vec::new, |BadWords(words)| words);
    let bad_words = tokens_of_words(app, tenant, &bad_words)?;
    let params = SamplingParams { bad_words, prompt_logprobs, ..params(fields, defaults)? };
    let mut end_tokens = app.config.eos_token_ids.clone();
    end_tokens.extend(&params.stop_token_ids);
    let text = TextOptions {
        stop,
        include_stop: include_stop.unwrap_or(false),
        skip_special_tokens: skip_special.unwrap_or(true),
        min_tokens: params.min_tokens,
        end_tokens,
    };
    if beam.is_some() && !text.stop.is_empty() {
        let message = "stop is not supported with beam search, which ends at tokens; send stop_token_ids instead";
        return Err(ApiError::invalid("stop", message));
    }
    let candidates = if beam.is_some() { n } else { best_of };
    Ok(Common {
        model,
        params,
        text,
        max_tokens,
        unlimited,
        n,
        candidates,
        beam,
        stream,
        include_usage,
        cache_report,
        cache_salt,
        priority,
        truncation,
        prompt_logprobs,
        embed: None,
        constraint: None,
    })
}

/// Returns how many choices a request asks for, and from how many continuations they are taken.
fn amounts(fields: &SharedFields, most: usize) -> Result<(usize, usize), ApiError> {
    let n = sent(fields.n).unwrap_or(1);
    if n == 0 || n > most {
        return Err(ApiError::invalid("n", format!("n is {n}, but must be between 1 and {most}")));
    }
    let best_of = sent(fields.best_of).unwrap_or(n);
    if best_of < n || best_of > most {
        let message = format!("best_of is {best_of}, but must be between n, which is {n}, and {most}");
        return Err(ApiError::invalid("best_of", message));
    }
    Ok((n, best_of))
}

/// Checks a priority.
fn priority(sent: i64) -> Result<i32, ApiError> {
    i32::try_from(sent).ok().filter(|_| PRIORITIES.contains(&sent)).ok_or_else(|| {
        let message = format!("priority is {sent}, but must be from {} to {}", PRIORITIES.start(), PRIORITIES.end());
        ApiError::invalid("priority", message)
    })
}

/// Returns the values for a request that sets no field: one answer, sampled with the model's defaults.
pub(crate) fn unasked(app: &App) -> Common {
    Common {
        model: app.model_name().to_owned(),
        params: SamplingParams { max_tokens: 0, seed: random(), ..app.config.default_sampling.clone() },
        text: TextOptions {
            skip_special_tokens: true,
            end_tokens: app.config.eos_token_ids.clone(),
            ..TextOptions::default()
        },
        max_tokens: None,
        unlimited: false,
        n: 1,
        candidates: 1,
        beam: None,
        stream: false,
        include_usage: false,
        cache_report: false,
        cache_salt: None,
        priority: 0,
        truncation: None,
        prompt_logprobs: None,
        embed: None,
        constraint: None,
    }
}

/// Parses and checks the fields that messages and responses share. Everything else has its default.
pub(crate) fn of_conversation(app: &App, body: &[u8]) -> Result<Common, ApiError> {
    let fields: ConversationFields = read(body)?;
    let mut common = Common { model: check_name(app, sent(fields.model))?, ..unasked(app) };
    let params = &mut common.params;
    params.temperature = sent(fields.temperature).unwrap_or(params.temperature);
    params.top_p = sent(fields.top_p).unwrap_or(params.top_p);
    params.seed = sent(fields.seed).filter(|&seed| seed != -1).map_or(params.seed, i64::cast_unsigned);
    common.stream = sent(fields.stream).unwrap_or(false);
    Ok(common)
}

/// Returns the token sequences of words that must not be generated, each with and without a space before it.
fn tokens_of_words(app: &App, tenant: Tenant, words: &[String]) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let mut all: Vec<Vec<TokenId>> = Vec::with_capacity(2 * words.len());
    for word in words {
        let word = word.trim_start();
        let plain = app.tokenize(tenant, "bad_words", word, false)?;
        if plain.is_empty() {
            return Err(ApiError::invalid("bad_words", "bad_words has a word of white space alone; leave it out"));
        }
        let spaced = app.tokenize(tenant, "bad_words", &format!(" {word}"), false)?;
        // If the space is its own token, the rest equals the word without it. vLLM also skips spaced words with another
        // number of tokens, and so lets some pass.
        let is_other = !spaced.ends_with(&plain);
        all.push(plain);
        all.extend(is_other.then_some(spaced));
    }
    Ok(all)
}

/// Returns the fields that both completion APIs share.
pub(crate) fn shared_part() -> Part {
    part!(SharedFields)
}

/// Returns the fields that messages and responses share.
pub(crate) fn conversation_part() -> Part {
    part!(ConversationFields)
}

/// Returns the field that all APIs share.
pub(crate) fn model_part() -> Part {
    part!(ModelField)
}

/// Refuses a `model` that is not served. A request may omit the field.
pub(crate) fn check_model(app: &App, body: &[u8]) -> Result<(), ApiError> {
    check_name(app, sent(read::<ModelField>(body)?.model)).map(|_| ())
}

/// Checks the requested `model` and returns the name for the response.
pub(crate) fn check_name(app: &App, model: Option<String>) -> Result<String, ApiError> {
    match model {
        Some(model) if app.config.any_model_name => {
            if model.len() > MODEL_BYTES_MAX {
                let message = format!("model has {} bytes, but at most {MODEL_BYTES_MAX} are allowed", model.len());
                return Err(ApiError::invalid("model", message));
            }
            Ok(model)
        }
        Some(model) if !app.config.model_names.contains(&model) => {
            Err(ApiError::model_not_found(&model, &app.config.model_names))
        }
        _ => Ok(app.model_name().to_owned()),
    }
}

/// Returns the maximum number of tokens of an answer, which a request may give under several names.
///
/// # Errors
/// Fails if two names have different values.
fn most_tokens(fields: &SharedFields) -> Result<Option<MostTokens>, ApiError> {
    match (sent(fields.max_completion_tokens.or(fields.max_tokens)), sent(fields.n_predict)) {
        (Some(MostTokens(one)), Some(MostTokens(other))) if one != other => {
            let message = format!("n_predict is {other}, but max_tokens, its other name, is {one}; send one of them");
            Err(ApiError::invalid("n_predict", message))
        }
        (one, other) => Ok(one.or(other)),
    }
}

/// Returns the parameters of a beam search of this width. The engine refuses other fields that it cannot honour.
fn beam(fields: &SharedFields, width: usize) -> Result<Option<BeamParams>, ApiError> {
    let wanted = sent(fields.use_beam_search).unwrap_or(false);
    let length_penalty = sent(fields.length_penalty);
    let early_stopping = sent(fields.early_stopping).map(|EarlyStopping(early)| early);
    if wanted && fields.n.is_none() && fields.best_of.is_none() {
        let message = "use_beam_search is true, but nothing says how many beams there are; send best_of, such as 4, or \
                       an n above 1";
        return Err(ApiError::invalid("use_beam_search", message));
    }
    if wanted {
        let (length_penalty, early_stopping) = (length_penalty.unwrap_or(1.0), early_stopping.unwrap_or(false));
        return Ok(Some(BeamParams { width, length_penalty, early_stopping }));
    }
    // Values that change nothing are accepted, as in vLLM.
    for (name, changes) in [
        ("length_penalty", length_penalty.is_some_and(|penalty| penalty != 1.0)),
        ("early_stopping", early_stopping == Some(true)),
    ] {
        if changes {
            return Err(ApiError::invalid(name, format!("{name} is for beam search; set use_beam_search to true")));
        }
    }
    Ok(None)
}

/// Returns the defaults of a beam search, which leave the model's probabilities unchanged.
fn neutral() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// Builds the sampling parameters. The engine checks ranges, and its messages name the field too.
fn params(fields: SharedFields, defaults: &SamplingParams) -> Result<SamplingParams, ApiError> {
    let top_k = sent(fields.top_k).map_or(Ok(defaults.top_k), top_k_of)?;
    let repetition_penalty = match (sent(fields.repetition_penalty), sent(fields.repeat_penalty)) {
        (Some(one), Some(other)) if one != other => {
            let message = format!("repeat_penalty is {other}, but repetition_penalty, its other name, is {one}");
            return Err(ApiError::invalid("repeat_penalty", message));
        }
        (one, other) => one.or(other).unwrap_or(defaults.repetition_penalty),
    };
    if let Some(last) = sent(fields.repeat_last_n).filter(|&last| last != -1 && repetition_penalty != 1.0) {
        let message = format!("repeat_last_n is {last}, but a repetition penalty goes by all tokens here; send -1");
        return Err(ApiError::invalid("repeat_last_n", message));
    }
    Ok(SamplingParams {
        max_tokens: 0,
        min_tokens: sent(fields.min_tokens).unwrap_or(0),
        temperature: sent(fields.temperature).unwrap_or(defaults.temperature),
        top_k,
        top_p: sent(fields.top_p).unwrap_or(defaults.top_p),
        min_p: sent(fields.min_p).unwrap_or(defaults.min_p),
        repetition_penalty,
        presence_penalty: sent(fields.presence_penalty).unwrap_or(defaults.presence_penalty),
        frequency_penalty: sent(fields.frequency_penalty).unwrap_or(defaults.frequency_penalty),
        logit_bias: sent(fields.logit_bias).map_or_else(Vec::new, |LogitBias(biases)| biases),
        seed: sent(fields.seed).filter(|&seed| seed != -1).map_or_else(random, i64::cast_unsigned),
        ignore_eos: sent(fields.ignore_eos).unwrap_or(false),
        stop_token_ids: sent(fields.stop_token_ids).map_or_else(Vec::new, |TokenList(ids)| ids),
        allowed_token_ids: sent(fields.allowed_token_ids).map_or_else(Vec::new, |TokenList(ids)| ids),
        bad_words: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    })
}

/// Parses `top_k`. The result `None` stands for no limit.
pub(crate) fn top_k_of(sent: i64) -> Result<Option<usize>, ApiError> {
    match usize::try_from(sent) {
        Ok(0) => Ok(None),
        Ok(top_k) => Ok(Some(top_k)),
        Err(_) if sent == -1 => Ok(None),
        Err(_) => {
            let message = format!("top_k is {sent}, but must be at least 1, or 0 or -1 for all tokens");
            Err(ApiError::invalid("top_k", message))
        }
    }
}

/// The most tokens of an answer. -1 is no limit, and so is -2, by which llama.cpp means the end of the context.
#[derive(Clone, Copy)]
struct MostTokens(i64);

impl MostTokens {
    /// Returns the limit, or `None` if there is none.
    fn limit(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }
}

impl FromJson<'_> for MostTokens {
    const EXPECTED: &'static str = i64::EXPECTED;
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match i64::from_json(raw)? {
            number @ -2.. => Ok(Self(number)),
            number => Err(format!("is {number}, but must not be negative, unless it is -1 for no limit")),
        }
    }
}

/// The stop strings of a request: one string, or a list of strings.
pub(crate) struct Stops(pub(crate) Vec<String>);

impl FromJson<'_> for Stops {
    const EXPECTED: &'static str = "a string or a list of strings";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let stops = match entries(raw, STOPS_MAX) {
            Some((_, count)) if count > STOPS_MAX => {
                return Err(format!("has {count} strings, but at most {STOPS_MAX} are allowed"));
            }
            Some((stops, _)) => stops,
            None => vec![raw],
        };
        stops.into_iter().map(stop).collect::<Result<_, _>>().map(Self)
    }
}

/// Parses a stop string.
fn stop(raw: &RawValue) -> Result<String, String> {
    let stop = String::from_json(raw).map_err(|_| Stops::other(raw))?;
    match stop.len() {
        0 => Err("has an empty string, which would end every text at once".into()),
        bytes if bytes > STOP_BYTES_MAX => {
            Err(format!("has a string of {bytes} bytes, but at most {STOP_BYTES_MAX} are allowed"))
        }
        _ => Ok(stop),
    }
}

/// Words that must not be generated.
struct BadWords(Vec<String>);

impl FromJson<'_> for BadWords {
    const EXPECTED: &'static str = "a list of strings";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let (words, count) = entries(raw, BAD_WORDS_MAX).ok_or_else(|| Self::other(raw))?;
        if count > BAD_WORDS_MAX {
            return Err(format!("has {count} words, but at most {BAD_WORDS_MAX} are allowed"));
        }
        let word = |raw| match String::from_json(raw) {
            Err(_) => Err(Self::other(raw)),
            Ok(word) if word.len() > STOP_BYTES_MAX => {
                Err(format!("has a word of {} bytes, but at most {STOP_BYTES_MAX} are allowed", word.len()))
            }
            Ok(word) => Ok(word),
        };
        words.into_iter().map(word).collect::<Result<_, _>>().map(Self)
    }
}

/// A list of token ids.
struct TokenList(Vec<u32>);

impl FromJson<'_> for TokenList {
    const EXPECTED: &'static str = "a list of token ids";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        token_ids(raw, TOKEN_LIST_MAX).map(Self)
    }
}

/// Whether a beam search ends as soon as it has enough answers.
#[derive(Clone, Copy)]
struct EarlyStopping(bool);

impl FromJson<'_> for EarlyStopping {
    const EXPECTED: &'static str = "true, false or \"never\"";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        match raw.get() {
            "true" => Ok(Self(true)),
            "false" => Ok(Self(false)),
            _ if is_text(raw, "never") => Ok(Self(false)),
            _ => Err(Self::other(raw)),
        }
    }
}

/// Pairs of a token id, which is a key of the object, and the number that is added to the token's logit.
struct LogitBias(Vec<(u32, f32)>);

impl FromJson<'_> for LogitBias {
    const EXPECTED: &'static str = "an object that maps token ids to numbers";
    fn from_json(raw: &RawValue) -> Result<Self, String> {
        let mut biases = Vec::new();
        for (token, bias) in pairs(raw)? {
            let id = token.trim().parse().map_err(|_| format!("has {}, which is no token id", shown(&token)))?;
            biases.push((id, bias));
        }
        biases.sort_by_key(|&(id, _): &(u32, f32)| id);
        match biases.array_windows().find(|[one, next]| one.0 == next.0) {
            Some([(id, _), _]) => Err(format!("has token {id} twice")),
            None => Ok(Self(biases)),
        }
    }
}
