//! Refuses fields of other servers' APIs that would change an answer and are not supported, because refusing them is
//! better than ignoring them.
//!
//! Clients that always send all fields set most of them to values that ask for nothing, and such values are accepted.
//! Fields that only configure another field (`dry_base`, `mirostat_tau`) are accepted if that other field is.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::fields::shown;
use crate::notes::Notes;

/// The fields that no endpoint supports, except for those that the endpoint itself reads. The values `null`, `false`,
/// empty texts and lists ask for nothing.
const NOWHERE: [&str; 34] = [
    "_debug_render_only",
    "audio",
    "chat_template",
    "documents",
    "ebnf",
    "enable_thinking",
    "function_call",
    "functions",
    "grammar",
    "grammar_lazy",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "json_schema",
    "kv_transfer_params",
    "logits_processors",
    "logprob_token_ids",
    "lora",
    "lora_path",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "post_sampling_probs",
    "prompt_embeds",
    "regex",
    "repetition_detection",
    "return_prompt_token_ids",
    "return_token_ids",
    "return_tokens",
    "return_tokens_as_token_ids",
    "samplers",
    "structural_tag",
    "suffix",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "vllm_xargs",
];

/// The fields that chats and completions read, because they are llama.cpp's names of other fields.
const OTHER_NAMES: [&str; 3] = ["grammar", "json_schema", "n_predict"];

/// The hint for a field that has no entry in [`NEXT`].
const LEAVE_OUT: &str = "leave it out";

/// The hint about fields that turn thinking off.
const THOUGHTLESS: &str = "send chat_template_kwargs {\"enable_thinking\": false} for no thinking, or leave it out";

/// The hints for fields that are not supported.
const NEXT: [(&str, &str); 12] = [
    ("ebnf", "send structured_outputs {\"grammar\": \"...\"} instead"),
    ("enable_thinking", "send it within chat_template_kwargs, as {\"enable_thinking\": false}"),
    ("function_call", "send tool_choice instead"),
    ("functions", "send tools instead"),
    ("lora", "merge the adapter into the weights, and serve these"),
    ("n_predict", "send num_predict among the options"),
    ("n_probs", "send logprobs with the number instead, or in a chat \"logprobs\": true with top_logprobs"),
    ("reasoning_budget", THOUGHTLESS),
    ("regex", "send structured_outputs {\"regex\": \"...\"} instead"),
    (
        "suffix",
        "send a prompt with the model's own fill-in-the-middle tokens to /v1/completions, or with raw to \
         /api/generate; for Qwen2.5-Coder it is <|fim_prefix|>BEFORE<|fim_suffix|>AFTER<|fim_middle|>",
    ),
    ("thinking_budget_tokens", THOUGHTLESS),
    ("thinking_token_budget", THOUGHTLESS),
];

/// The log text for fields about how a model is loaded.
const SETTLED: &str = "which was settled when the server started";

/// The fields that change no answer here, with a text for the log.
const TOLD: [(&str, &str); 22] = [
    ("container", "whose tools this server does not run"),
    ("context_management", "and this server leaves the context as it was sent"),
    ("draft_num_predict", "which changes no answer here"),
    ("f16_kv", SETTLED),
    ("fallbacks", "but this server has one model"),
    ("low_vram", SETTLED),
    ("main_gpu", SETTLED),
    ("mcp_servers", "whose tools this server does not run and leaves out"),
    ("moderation", "but this server has no moderation"),
    ("num_batch", SETTLED),
    ("num_gpu", SETTLED),
    ("num_keep", "but this server never drops the beginning of a context"),
    ("num_thread", SETTLED),
    ("numa", SETTLED),
    ("prediction", "which this server does without"),
    ("shift", "but an answer ends where the context does"),
    ("store", "but this server keeps no answers"),
    ("truncate", "but a prompt that the context cannot hold is refused"),
    ("use_mlock", SETTLED),
    ("use_mmap", SETTLED),
    ("verbosity", "of which this server's models know nothing"),
    ("web_search_options", "but this server does not search"),
];

/// Whether a number leaves the answer unchanged.
type IsNeutral = fn(f64) -> bool;

/// The numeric fields, with the numbers that ask for nothing.
const NUMBERS: [(&str, IsNeutral); 19] = [
    ("dry_multiplier", is_0),
    ("dynatemp_range", is_0),
    ("epsilon_cutoff", is_0),
    ("eta_cutoff", is_0),
    ("min_keep", |number| number <= 1.0),
    ("mirostat", is_0),
    ("mirostat_mode", is_0),
    ("n_indent", is_0),
    ("n_predict", |number| number < 0.0),
    ("n_probs", is_0),
    ("no_repeat_ngram_size", is_0),
    ("reasoning_budget", |number| number < 0.0),
    ("smoothing_factor", is_0),
    ("t_max_predict_ms", |number| number <= 0.0),
    ("tfs_z", |number| number >= 1.0),
    ("top_a", is_0),
    ("top_n_sigma", |number| number <= 0.0),
    ("typical_p", |number| number >= 1.0),
    ("xtc_probability", is_0),
];

/// The fields that only chats have.
const OF_CHATS: [&str; 7] = [
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "messages",
    "reasoning_effort",
    "tools",
    "top_logprobs",
];
/// The fields that only completions have.
const OF_COMPLETIONS: [&str; 2] = ["echo", "prompt"];
/// The fields that only messages have. Empty objects of options ask for nothing.
const OF_MESSAGES: [&str; 3] = ["stop_sequences", "system", "thinking"];
/// The fields that only responses have. Empty objects of options ask for nothing.
const OF_RESPONSES: [&str; 5] = ["instructions", "max_output_tokens", "max_tool_calls", "reasoning", "text"];
/// The fields that ask for something with `false`.
const TRUE_BY_DEFAULT: [&str; 3] = ["add_generation_prompt", "enable_thinking", "skip_special_tokens"];

/// The values of chats' fields that change no answer, and so are accepted in APIs without these fields.
const DEFAULTS: [(&str, &str); 11] = [
    ("best_of", "1"),
    ("frequency_penalty", "0"),
    ("frequency_penalty", "0.0"),
    ("logit_bias", "{}"),
    ("n", "1"),
    ("presence_penalty", "0"),
    ("presence_penalty", "0.0"),
    ("response_format", r#"{"type":"text"}"#),
    ("response_format", r#"{"type": "text"}"#),
    ("skip_special_tokens", "true"),
    ("top_logprobs", "0"),
];

/// The fields that are objects of options, where an empty object asks for nothing. In other fields an empty object may
/// ask for something: any JSON, a search.
const OPTIONS: [&str; 6] =
    ["kv_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "reasoning", "text", "vllm_xargs"];

fn is_0(number: f64) -> bool {
    number == 0.0
}

/// An API, characterized by the fields that it lacks but another API has.
pub(crate) trait Api {
    /// Returns the endpoint that supports the field, if this API does not.
    fn elsewhere(name: &str) -> Option<&'static str>;

    /// Returns whether this API reads the field, although most do not support it.
    fn reads(_name: &str) -> bool {
        false
    }
}

pub(crate) struct Chats;

impl Api for Chats {
    fn elsewhere(name: &str) -> Option<&'static str> {
        let here = OF_COMPLETIONS.contains(&name).then_some("/v1/completions");
        here.or_else(|| of_messages(name)).or_else(|| of_responses(name))
    }

    fn reads(name: &str) -> bool {
        OTHER_NAMES.contains(&name)
    }
}

pub(crate) struct Completions;

impl Api for Completions {
    fn elsewhere(name: &str) -> Option<&'static str> {
        let here = OF_CHATS.contains(&name).then_some("/v1/chat/completions");
        here.or_else(|| of_messages(name)).or_else(|| of_responses(name))
    }

    fn reads(name: &str) -> bool {
        OTHER_NAMES.contains(&name)
    }
}

/// Returns the endpoint of a field that only messages have.
pub(crate) fn of_messages(name: &str) -> Option<&'static str> {
    OF_MESSAGES.contains(&name).then_some("/v1/messages")
}

/// Returns the endpoint of a field that only responses have.
pub(crate) fn of_responses(name: &str) -> Option<&'static str> {
    OF_RESPONSES.contains(&name).then_some("/v1/responses")
}

/// A body without fields that its API does not support.
pub(crate) struct Supported<A> {
    /// The indices in [`TOLD`] of the body's fields that change no answer.
    told: Vec<usize>,
    api: PhantomData<A>,
}

impl<A> Supported<A> {
    /// Logs the fields that change no answer.
    pub(crate) fn tell(self, notes: &Notes) {
        for (name, outcome) in self.told.into_iter().map(|place| TOLD[place]) {
            notes.tell(name, outcome);
        }
    }
}

impl<'de, A: Api> Deserialize<'de> for Supported<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names<A>(PhantomData<A>);
        impl<'de, Of: Api> Visitor<'de> for Names<Of> {
            type Value = Supported<Of>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Supported<Of>, A::Error> {
                let mut told = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    let name = name.as_str();
                    if let Some(place) = Of::elsewhere(name) {
                        map.next_value_seed(Nothing { name, place: Some(place) })?;
                    } else if Of::reads(name) {
                        map.next_value::<IgnoredAny>()?;
                    } else if NOWHERE.contains(&name) || NUMBERS.iter().any(|(number, _)| *number == name) {
                        map.next_value_seed(Nothing { name, place: None })?;
                    } else if let Some(place) = TOLD.iter().position(|(told, _)| *told == name) {
                        let value: &RawValue = map.next_value()?;
                        if !asks_for_nothing(name, value.get()) && value.get() != "{}" && told.len() < TOLD.len() {
                            told.push(place);
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Supported { told, api: PhantomData })
            }
        }
        deserializer.deserialize_map(Names(PhantomData))
    }
}

/// The value of a field, which must ask for nothing.
struct Nothing<'n> {
    name: &'n str,
    /// The endpoint that supports the field, if there is one.
    place: Option<&'static str>,
}

impl<'de> DeserializeSeed<'de> for Nothing<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let value: &RawValue = Deserialize::deserialize(deserializer)?;
        match self.place {
            _ if asks_for_nothing(self.name, value.get()) => Ok(()),
            Some(_) if DEFAULTS.contains(&(self.name, value.get())) => Ok(()),
            Some(place) => Err(D::Error::custom(format!("is a field of {place}; leave it out here"))),
            None => {
                let next = NEXT.iter().find(|(name, _)| *name == self.name).map_or(LEAVE_OUT, |(_, next)| next);
                Err(D::Error::custom(format!("is {}, which is not supported; {next}", shown(value.get()))))
            }
        }
    }
}

fn asks_for_nothing(name: &str, value: &str) -> bool {
    let empty = |open: char, close: char| {
        value.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)).is_some_and(|inner| inner.trim().is_empty())
    };
    if value == "false" && TRUE_BY_DEFAULT.contains(&name) {
        return false;
    }
    if matches!(value, "null" | "false" | r#""""#) || empty('[', ']') || (OPTIONS.contains(&name) && empty('{', '}')) {
        return true;
    }
    let neutral = NUMBERS.iter().find(|(number, _)| *number == name);
    match (neutral, value.parse()) {
        (Some((_, neutral)), Ok(number)) => neutral(number),
        // Without functions, both values ask for nothing.
        (None, _) => name == "function_call" && matches!(value, r#""none""# | r#""auto""#),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::fields::read;

    use super::*;

    #[test]
    fn what_asks_for_nothing_passes() {
        for body in [
            r#"{"typical_p": 1, "tfs_z": 1.0, "mirostat": 0, "mirostat_tau": 5, "xtc_probability": 0.0}"#,
            r#"{"dry_multiplier": 0, "dry_base": 1.75, "top_n_sigma": -1, "n_predict": -1, "samplers": []}"#,
            r#"{"chat_template": null, "return_token_ids": false, "vllm_xargs": {}, "function_call": "none"}"#,
            r#"{"user": "me", "unknown": [1, {"x": 2}], "reasoning_budget": -1, "guided_json": ""}"#,
        ] {
            read::<Supported<Chats>>(body.as_bytes()).map(drop).expect(body);
            read::<Supported<Completions>>(body.as_bytes()).map(drop).expect(body);
        }
        read::<Supported<Chats>>(br#"{"tools": [{}], "echo": false, "prompt": null}"#).map(drop).expect("a chat");
        read::<Supported<Completions>>(br#"{"tools": [], "messages": null, "echo": true}"#)
            .map(drop)
            .expect("a completion");
    }

    #[test]
    fn what_changes_no_answer_is_told() {
        let body = br#"{"store": true, "verbosity": null, "web_search_options": {"a": 1}, "mcp_servers": []}"#;
        let notes = Notes::default();
        read::<Supported<Chats>>(body).expect("a chat").tell(&notes);
        assert!(!notes.tell("store", "again") && !notes.tell("web_search_options", "again"));
        assert!(notes.tell("verbosity", "for the first time") && notes.tell("mcp_servers", "for the first time"));
    }

    #[test]
    fn what_asks_for_something_is_named() {
        let refused = |param: &str, error: crate::error::ApiError| {
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)), "{}", error.message);
            assert!(error.message.starts_with(&format!("{param} is ")), "{}", error.message);
        };
        for (param, value) in [
            ("chat_template", r#""{{ x }}""#),
            ("return_token_ids", "true"),
            ("typical_p", "0.9"),
            ("mirostat", "2"),
            ("dry_multiplier", "0.8"),
            ("tfs_z", "0.5"),
            ("xtc_probability", "0.1"),
            ("xtc_probability", r#""0""#),
            ("top_n_sigma", "1"),
            ("n_probs", "7"),
            ("grammar_lazy", "true"),
            ("samplers", r#"["top_k"]"#),
        ] {
            let body = format!(r#"{{"{param}": {value}}}"#);
            refused(param, read::<Supported<Chats>>(body.as_bytes()).map(drop).expect_err(&body));
            refused(param, read::<Supported<Completions>>(body.as_bytes()).map(drop).expect_err(&body));
        }
        for (param, value) in [
            ("stop_sequences", r#"["a"]"#),
            ("system", r#""be kind""#),
            ("max_output_tokens", "3"),
            ("thinking", r#"{"type": "disabled"}"#),
            ("enable_thinking", "false"),
        ] {
            let body = format!(r#"{{"{param}": {value}}}"#);
            refused(param, read::<Supported<Chats>>(body.as_bytes()).map(drop).expect_err(&body));
            refused(param, read::<Supported<Completions>>(body.as_bytes()).map(drop).expect_err(&body));
        }
        for (param, value, next) in [
            ("suffix", r#""}""#, "<|fim_suffix|>"),
            ("n_probs", "5", "top_logprobs"),
            ("enable_thinking", "false", "chat_template_kwargs"),
            ("regex", r#""a+""#, "structured_outputs"),
            ("typical_p", "0.9", LEAVE_OUT),
        ] {
            let body = format!(r#"{{"{param}": {value}}}"#);
            let told = read::<Supported<Completions>>(body.as_bytes()).map(drop).expect_err(&body).message;
            assert!(told.contains(next), "{told}");
        }
        refused("echo", read::<Supported<Chats>>(br#"{"echo": true}"#).map(drop).expect_err("a chat"));
        let body = br#"{"continue_final_message": true}"#;
        refused("continue_final_message", read::<Supported<Completions>>(body).map(drop).expect_err("a completion"));
    }
}
