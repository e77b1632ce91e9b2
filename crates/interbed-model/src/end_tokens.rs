//! Finds the tokens that end a text.
//!
//! A model names such tokens in up to four places, each of which may name some that the others do not:
//! `generation_config.json`, `config.json`, the tokenizer (its `eos_token`), and the chat template, by the token that
//! it writes after an answer. The tokens of all places are joined.
//!
//! To find the last kind, this module renders a short conversation: the token after the answer ends a turn. Unlike a
//! list of usual names, this also finds tokens with unusual names.

use serde_json::{Map, json};

use crate::chat_template::ChatTemplate;
use crate::config::ModelConfig;
use crate::generation_config::GenerationConfig;
use crate::tokenizer::Tokenizer;

/// The tokens that end an answer in the harmony form. If both are in the vocabulary, [`MESSAGE_END`] ends only a
/// message, after which the answer goes on.
pub(crate) const HARMONY_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];
pub(crate) const MESSAGE_END: &str = "<|end|>";
/// The token with which a model that writes calls within its turn asks for their results, and so ends its answer.
pub(crate) const RESULT_BEGIN: &str = "<|tool_response>";

/// A short answer, which no template writes by itself.
const ANSWER: &str = "interbed9417";

/// Returns the ids of the tokens that end a text, each once. The ids from the configuration files come first, and those
/// from the tokenizer and the chat template follow. Without a tokenizer, only the configuration files are used. If none
/// of these sources names a token, the family's default is returned. This function renders the template. Rendering
/// keeps a CPU busy, so the function must not run on an async thread.
pub fn end_tokens(
    generation: &GenerationConfig,
    config: &ModelConfig,
    tokenizer: Option<&Tokenizer>,
    template: Option<&ChatTemplate>,
) -> Vec<u32> {
    let mut ids = generation.eos_token_ids.clone();
    if config.ends.are_stated {
        ids.extend(&config.ends.eos_token_ids);
    }
    if let Some(tokenizer) = tokenizer {
        ids.extend(tokenizer.eos_id());
        ids.extend(template.and_then(|template| turn_end(template, tokenizer)));
        ids.extend(tokenizer.id_of(RESULT_BEGIN).filter(|&id| tokenizer.is_special(id)));
        let of_harmony = HARMONY_ENDS.map(|name| tokenizer.id_of(name).filter(|&id| tokenizer.is_special(id)));
        if let [Some(_), Some(_)] = of_harmony {
            let message_end = tokenizer.id_of(MESSAGE_END);
            ids.retain(|&id| Some(id) != message_end);
        }
    }
    // What the architecture's class takes for it is a guess, for files that say nothing.
    if ids.is_empty() {
        ids.extend(&config.ends.eos_token_ids);
    }
    let mut seen = std::collections::HashSet::new();
    ids.retain(|&id| (id as usize) < config.blueprint.vocab_size && seen.insert(id));
    ids
}

/// Returns the token that the template writes after an answer, or `None` if it writes none.
fn turn_end(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    let messages = [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": ANSWER})];
    let rendered = template.render(&messages, None, false, &Map::new()).ok()?;
    let (_, behind) = rendered.rsplit_once(ANSWER)?;
    tokenizer.added_token_at(behind.trim_start())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::chat_template::SpecialTokens;

    const NAMES: [&str; 7] = ["<s>", "</s>", "<|end|>", "<|return|>", "<|call|>", "<end of turn>", "\n\n"];

    fn tokenizer(names: &[&str], eos: &str) -> Tokenizer {
        let added: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(index, name)| {
                json!({"id": index + 1, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *name != "<end of turn>"})
            })
            .collect();
        let tokenizer = json!({"version": "1.0", "added_tokens": added,
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}});
        let config = json!({"eos_token": eos});
        Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), Some(config.to_string().as_bytes())).unwrap()
    }

    fn config(more: Value) -> ModelConfig {
        let mut json = json!({"model_type": "llama", "vocab_size": 100});
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ModelConfig::from_json(&json.to_string()).unwrap()
    }

    fn generation(json: Value) -> GenerationConfig {
        GenerationConfig::from_json(&json.to_string()).unwrap()
    }

    fn template(behind: &str) -> ChatTemplate {
        let source = format!(
            "{{% for message in messages %}}<|{{{{ message.role }}}}|>{{{{ message.content }}}}{behind}{{% endfor %}}"
        );
        ChatTemplate::new(&source, SpecialTokens::default()).unwrap()
    }

    #[test]
    fn the_ends_of_all_places_are_joined() {
        let tokenizer = tokenizer(&NAMES[..3], "</s>");
        let (nothing, template) = (generation(json!({})), template(" <|end|>\n"));
        let of = |generation: &GenerationConfig, config: Value, template| {
            end_tokens(generation, &self::config(config), Some(&tokenizer), template)
        };
        let named = generation(json!({"eos_token_id": [50, 51]}));
        let stated = json!({"eos_token_id": [51, 52]});
        assert_eq!(of(&named, stated.clone(), Some(&template)), [50, 51, 52, 2, 3]);
        assert_eq!(of(&nothing, stated.clone(), Some(&template)), [51, 52, 2, 3]);
        assert_eq!(of(&named, json!({}), None), [50, 51, 2]);
        assert_eq!(end_tokens(&named, &config(stated), None, None), [50, 51, 52]);
        // The default of the class is a guess, which counts only if nothing else is said.
        assert_eq!(end_tokens(&nothing, &config(json!({})), None, None), [2]);
        assert_eq!(end_tokens(&named, &config(json!({})), None, None), [50, 51]);
        assert!(end_tokens(&nothing, &config(json!({"eos_token_id": null})), None, None).is_empty());
        // Ids beyond the vocabulary cannot come.
        assert_eq!(end_tokens(&generation(json!({"eos_token_id": [7, 100]})), &config(json!({})), None, None), [7]);
    }

    #[test]
    fn a_template_shows_what_ends_a_turn() {
        let tokenizer = tokenizer(&NAMES, "<s>");
        let of = |behind: &str| {
            end_tokens(
                &generation(json!({})),
                &config(json!({"eos_token_id": 99})),
                Some(&tokenizer),
                Some(&template(behind)),
            )
        };
        assert_eq!(of("</s>"), [99, 1, 2]);
        // Tokens with names of their own, special or not, behind white space; the first of several.
        assert_eq!(of("\n <end of turn></s>"), [99, 1, 6]);
        // Text, and white space that is a token, end nothing.
        for behind in ["", "\n\n", " ###", "a</s>"] {
            assert_eq!(of(behind), [99, 1], "{behind:?}");
        }
        assert_eq!(of("{{ raise_exception('no') }}"), [99, 1]);
    }

    #[test]
    fn an_answer_ends_where_the_results_of_its_calls_follow() {
        let ends = |names: &[&str]| {
            let (nothing, config) = (generation(json!({})), config(json!({"eos_token_id": 9})));
            end_tokens(&nothing, &config, Some(&tokenizer(names, "</s>")), None)
        };
        assert_eq!(ends(&["<s>", "</s>", "<|tool_response>"]), [9, 2, 3]);
        assert_eq!(ends(&["<s>", "</s>", "<tool_response>"]), [9, 2]);
    }

    #[test]
    fn in_harmony_the_end_of_a_message_ends_no_answer() {
        let ends = generation(json!({"eos_token_id": [4, 3]}));
        let (config, template) = (config(json!({"eos_token_id": 3})), template("<|end|>"));
        let of = |names| end_tokens(&ends, &config, Some(&tokenizer(names, "<|return|>")), Some(&template));
        assert_eq!(of(&NAMES), [4]);
        assert_eq!(of(&NAMES[..4]), [4, 3]);
    }
}
