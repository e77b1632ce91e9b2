//! Fields of other servers' APIs that would change an answer and are not supported: better refused than ignored.
//!
//! Clients that always send all fields set most of them to values that ask for nothing; such values pass. Fields that
//! only configure another one (`dry_base`, `mirostat_tau`) pass where that one passes.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::fields::shown;

/// Fields that no endpoint supports. `null`, `false`, empty texts and lists ask for nothing.
const NOWHERE: [&str; 33] = [
    "audio",
    "chat_template",
    "documents",
    "ebnf",
    "function_call",
    "functions",
    "grammar",
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
    "verbosity",
    "vllm_xargs",
    "web_search_options",
];

/// Whether a number leaves the answer as it is.
type IsNeutral = fn(f64) -> bool;

/// Fields that are numbers, and which numbers of theirs ask for nothing.
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

/// Fields that only chats, or only completions, have.
const OF_CHATS: [&str; 7] = [
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "messages",
    "reasoning_effort",
    "tools",
    "top_logprobs",
];
const OF_COMPLETIONS: [&str; 2] = ["echo", "prompt"];

/// Fields that are objects of options, where an empty object asks for nothing. In other fields an empty object may ask
/// for something: any JSON, a search.
const OPTIONS: [&str; 4] = ["kv_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "vllm_xargs"];

fn is_0(number: f64) -> bool {
    number == 0.0
}

/// A body without fields that are not supported, in a chat if `CHAT`; else in a completion.
pub(crate) struct Supported<const CHAT: bool>;

impl<'de, const CHAT: bool> Deserialize<'de> for Supported<CHAT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names<const CHAT: bool>;
        impl<'de, const CHAT: bool> Visitor<'de> for Names<CHAT> {
            type Value = Supported<CHAT>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Supported<CHAT>, A::Error> {
                while let Some(name) = map.next_key::<String>()? {
                    let name = name.as_str();
                    let elsewhere = if CHAT { OF_COMPLETIONS.contains(&name) } else { OF_CHATS.contains(&name) };
                    if elsewhere {
                        let place = if CHAT { "/v1/completions" } else { "/v1/chat/completions" };
                        map.next_value_seed(Nothing { name, place: Some(place) })?;
                    } else if NOWHERE.contains(&name) || NUMBERS.iter().any(|(number, _)| *number == name) {
                        map.next_value_seed(Nothing { name, place: None })?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Supported)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// The value of a field, which must ask for nothing.
struct Nothing<'n> {
    name: &'n str,
    /// Where the field is supported, if anywhere.
    place: Option<&'static str>,
}

impl<'de> DeserializeSeed<'de> for Nothing<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let value: &RawValue = Deserialize::deserialize(deserializer)?;
        match self.place {
            _ if asks_for_nothing(self.name, value.get()) => Ok(()),
            Some(place) => Err(D::Error::custom(format!("is a field of {place}; leave it out here"))),
            None => Err(D::Error::custom(format!("is {}, which is not supported; leave it out", shown(value.get())))),
        }
    }
}

fn asks_for_nothing(name: &str, value: &str) -> bool {
    let empty = |open: char, close: char| {
        value.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)).is_some_and(|inner| inner.trim().is_empty())
    };
    if matches!(value, "null" | "false" | r#""""#) || empty('[', ']') || (OPTIONS.contains(&name) && empty('{', '}')) {
        return true;
    }
    let neutral = NUMBERS.iter().find(|(number, _)| *number == name);
    match (neutral, value.parse()) {
        (Some((_, neutral)), Ok(number)) => neutral(number),
        // OpenAI's own default.
        (None, _) => name == "verbosity" && value == r#""medium""#,
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
            r#"{"chat_template": null, "return_token_ids": false, "vllm_xargs": {}, "verbosity": "medium"}"#,
            r#"{"user": "me", "unknown": [1, {"x": 2}], "reasoning_budget": -1, "guided_json": ""}"#,
        ] {
            read::<Supported<true>>(body.as_bytes()).map(drop).expect(body);
            read::<Supported<false>>(body.as_bytes()).map(drop).expect(body);
        }
        read::<Supported<true>>(br#"{"tools": [{}], "echo": false, "prompt": null}"#).map(drop).expect("a chat");
        read::<Supported<false>>(br#"{"tools": [], "messages": null, "echo": true}"#).map(drop).expect("a completion");
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
            ("n_predict", "7"),
            ("samplers", r#"["top_k"]"#),
        ] {
            let body = format!(r#"{{"{param}": {value}}}"#);
            refused(param, read::<Supported<true>>(body.as_bytes()).map(drop).expect_err(&body));
            refused(param, read::<Supported<false>>(body.as_bytes()).map(drop).expect_err(&body));
        }
        refused("echo", read::<Supported<true>>(br#"{"echo": true}"#).map(drop).expect_err("a chat"));
        let body = br#"{"continue_final_message": true}"#;
        refused("continue_final_message", read::<Supported<false>>(body).map(drop).expect_err("a completion"));
    }
}
