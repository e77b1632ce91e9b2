//! Makes a tokenizer for a model that was never trained. The tokenizer is a byte-level BPE, whose merges follow from a
//! list of letter pairs.
//!
//! The tokenizer can encode every text, because all 256 bytes are tokens. English text becomes about a third as many
//! tokens as bytes. Nearly every id below `vocab_size` decodes to letters, so that the output of random weights is
//! readable.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::SynthError;
use crate::config::ModelConfig;

/// The most common letter pairs of English, the most common pair first.
const COMMON_PAIRS: &str = "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le \
                            ve co me de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec \
                            pr no ct us ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee wi em ad ol rt po we na";
/// The most merges that a tokenizer gets. A longer list would make loading slower without shortening texts.
const MERGES_MAX: usize = 200_000;
/// The character that stands for a space at the beginning of a word in a byte-level vocabulary.
const SPACE: char = 'Ġ';

/// Returns the contents of `tokenizer.json` and `tokenizer_config.json`, each with its file name.
pub(super) fn tokenizer_files(config: &ModelConfig) -> Result<[(&'static str, Value); 2], SynthError> {
    let specials = special_tokens(config);
    let needed = 256 + specials.len();
    if config.blueprint.vocab_size < needed {
        return Err(SynthError::VocabularyTooSmall { vocab_size: config.blueprint.vocab_size, needed });
    }
    let mut vocab: Map<String, Value> = specials.iter().map(|(id, token)| (token.clone(), json!(id))).collect();
    let mut free_ids = (0..config.blueprint.vocab_size as u32).filter(|id| !specials.contains_key(id));
    // The order matters: `zip` takes from its right side only if the left side gave something, so that no id is lost.
    for (letter, id) in byte_alphabet().into_iter().zip(&mut free_ids) {
        vocab.insert(letter.to_string(), json!(id));
    }
    let mut merges = Vec::new();
    for (id, (left, right)) in free_ids.zip(candidate_merges().take(MERGES_MAX)) {
        vocab.insert(format!("{left}{right}"), json!(id));
        merges.push(json!([left, right]));
    }
    let bos = config.ends.bos_token_id.and_then(|id| specials.get(&id));
    let eos = config.ends.eos_token_ids.first().and_then(|id| specials.get(id));
    Ok([
        ("tokenizer.json", tokenizer_json(config, &specials, bos, vocab, merges)),
        ("tokenizer_config.json", tokenizer_config_json(config, bos, eos)),
    ])
}

/// Returns the tokens at the ids to which the configuration gives a meaning.
fn special_tokens(config: &ModelConfig) -> BTreeMap<u32, String> {
    let mut specials = BTreeMap::new();
    for (index, &id) in config.ends.eos_token_ids.iter().enumerate() {
        let name = if index == 0 { "<|end|>".to_owned() } else { format!("<|end_{index}|>") };
        specials.entry(id).or_insert(name);
    }
    if let Some(id) = config.ends.bos_token_id {
        // Some models begin and end a text with the same token.
        specials.entry(id).or_insert_with(|| "<|begin|>".to_owned());
    }
    specials
}

fn tokenizer_json(
    config: &ModelConfig,
    specials: &BTreeMap<u32, String>,
    bos: Option<&String>,
    vocab: Map<String, Value>,
    merges: Vec<Value>,
) -> Value {
    let added = specials.iter().map(|(id, token)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    });
    // A text begins with the begin token, unless that is also an end token.
    let post_processor = bos.filter(|_| begins_with_bos(config)).map(|bos| {
        json!({
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": bos, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [
                { "SpecialToken": { "id": bos, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } },
                { "SpecialToken": { "id": bos, "type_id": 1 } }, { "Sequence": { "id": "B", "type_id": 1 } },
            ],
            "special_tokens": { bos: { "id": bos, "ids": [config.ends.bos_token_id], "tokens": [bos] } },
        })
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": post_processor,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges,
        },
    })
}

fn tokenizer_config_json(config: &ModelConfig, bos: Option<&String>, eos: Option<&String>) -> Value {
    let begin = if bos.is_some() && begins_with_bos(config) { "{{ bos_token }}" } else { "" };
    let template = format!(
        "{begin}{{% for message in messages %}}{{{{ message['role'] | capitalize }}}}: {{{{ message['content'] }}}}\n\
         {{% endfor %}}{{% if add_generation_prompt %}}Assistant: {{% endif %}}"
    );
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "model_max_length": config.blueprint.positions,
        "clean_up_tokenization_spaces": false,
        "chat_template": template,
    })
}

/// Returns whether texts begin with the begin token, which they do unless that is also an end token.
fn begins_with_bos(config: &ModelConfig) -> bool {
    config.ends.bos_token_id.is_some_and(|id| !config.ends.eos_token_ids.contains(&id))
}

/// Returns the characters that stand for the bytes 0 to 255. A printable byte is written as the character with its
/// number, and each other byte as one of the characters from 256 on.
fn byte_alphabet() -> Vec<char> {
    let mut shifted = (256..).filter_map(char::from_u32);
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    (0..=255u8).filter_map(|byte| if printable(byte) { Some(char::from(byte)) } else { shifted.next() }).collect()
}

/// Lists merges, each of which makes a new token, with the most useful first. The list is longer than any vocabulary.
///
/// First come merges of a space and a letter, then merges of two letters. After them come merges of a space-letter
/// token and a pair, and merges of two pairs, ordered by how common their parts are.
fn candidate_merges() -> impl Iterator<Item = (String, String)> {
    let letters = || ('a'..='z').map(String::from);
    let mut pairs: Vec<String> = COMMON_PAIRS.split(' ').map(str::to_owned).collect();
    let common: HashSet<String> = pairs.iter().cloned().collect();
    let all = letters().flat_map(|left| letters().map(move |right| format!("{left}{right}")));
    pairs.extend(all.filter(|pair| !common.contains(pair)));
    let starts: Vec<String> = "taiswcbphfmdrelngouvyjkqxz".chars().map(|letter| format!("{SPACE}{letter}")).collect();

    let of_starts: Vec<_> =
        starts.iter().map(|start| (SPACE.to_string(), start[SPACE.len_utf8()..].to_owned())).collect();
    let of_pairs: Vec<_> = pairs.iter().map(|pair| (pair[..1].to_owned(), pair[1..].to_owned())).collect();
    // There are 26 times fewer starts than pairs, so each start counts as 26 pairs.
    let place_of_start = pairs.len() / starts.len();
    let diagonals = (0..2 * pairs.len()).flat_map(move |distance| {
        let mut merges = Vec::new();
        for (index, start) in starts.iter().enumerate() {
            if let Some(pair) = distance.checked_sub(index * place_of_start).and_then(|rest| pairs.get(rest)) {
                merges.push((start.clone(), pair.clone()));
            }
        }
        for (index, left) in pairs.iter().enumerate().take(distance + 1) {
            if let Some(right) = pairs.get(distance - index) {
                merges.push((left.clone(), right.clone()));
            }
        }
        merges
    });
    of_starts.into_iter().chain(of_pairs).chain(diagonals)
}
