//! A vocabulary in which a mark stands for each space, out of a `tokenizer.json` and out of a GGUF file, beside what
//! the package `tokenizers` makes of texts (`tools/reference/make_marked_spaces_fixture.py`).

use std::path::Path;

use interbed_model::gguf::GgufModel;
use interbed_model::tokenizer::Tokenizer;
use interbed_weights::{Catalog, Metadata, Numbers, Texts, write_gguf};
use serde::Deserialize;
use serde_json::Value;

use crate::harness::fixtures;

#[derive(Deserialize)]
struct Fixture {
    tokenizer: Value,
    /// Texts, their ids and what these ids are decoded to.
    texts: Vec<(String, Vec<u32>, String)>,
}

/// Special tokens that converters mark as user-defined, so that whoever parses an answer sees them.
const VISIBLE: [&str; 7] =
    ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"];

impl Fixture {
    fn read() -> Self {
        serde_json::from_str(&std::fs::read_to_string(fixtures().join("marked_spaces.json")).unwrap()).unwrap()
    }

    /// Returns all tokens in the order of their ids.
    fn tokens(&self) -> Vec<&str> {
        let vocab = self.tokenizer["model"]["vocab"].as_object().unwrap();
        let mut tokens = vec![""; vocab.len()];
        vocab.iter().for_each(|(token, id)| tokens[id.as_u64().unwrap() as usize] = token);
        tokens
    }

    /// Returns the metadata that a converter writes. Without `merges_lines`, merges of line ends are left out.
    fn metadata(&self, merges_lines: bool) -> Metadata {
        let special = self.tokenizer["added_tokens"].as_array().unwrap().len();
        let tokens = self.tokens();
        let [normal, unknown, control, user_defined, byte] = [1, 2, 3, 4, 6];
        let kinds = tokens.iter().enumerate().map(|(id, &token)| match token {
            "<unk>" => unknown,
            _ if VISIBLE.contains(&token) => user_defined,
            _ if id < special => control,
            _ if token.starts_with("<0x") => byte,
            _ => normal,
        });
        let merges = self.tokenizer["model"]["merges"].as_array().unwrap().iter();
        let merges = merges.map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()));
        let mut kept = Texts::default();
        merges.filter(|merge| merges_lines || !merge.contains('\n')).for_each(|merge| kept.push(&merge));
        let id = |token: &str| tokens.iter().position(|other| *other == token).unwrap() as u32;
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", "llama");
        metadata.set("tokenizer.ggml.model", "gemma4");
        metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(kinds));
        metadata.set("tokenizer.ggml.merges", kept);
        metadata.set("tokenizer.ggml.bos_token_id", id("<bos>"));
        metadata.set("tokenizer.ggml.eos_token_id", id("<eos>"));
        metadata.set("tokenizer.ggml.unknown_token_id", id("<unk>"));
        metadata.set("tokenizer.ggml.tokens", tokens.into_iter().collect::<Texts>());
        metadata
    }
}

fn of_gguf(metadata: &Metadata, path: &Path) -> Tokenizer {
    write_gguf(path, metadata, &[], &mut |_, _| Ok(())).unwrap();
    GgufModel::of(&Catalog::open(path).unwrap()).unwrap().tokenizer().unwrap()
}

#[test]
fn texts_have_the_ids_of_the_original() {
    let fixture = Fixture::read();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocabulary.gguf");
    let gguf = of_gguf(&fixture.metadata(true), &path);
    // Files of early converters say so by mistake.
    let mut metadata = fixture.metadata(false);
    metadata.set("tokenizer.ggml.add_bos_token", false);
    let without_lines = of_gguf(&metadata, &path);
    let json = Tokenizer::from_bytes(fixture.tokenizer.to_string().as_bytes(), None).unwrap();
    assert!(fixture.texts.len() >= 100);
    for (text, ids, decoded) in &fixture.texts {
        for (name, tokenizer) in [("json", &json), ("gguf", &gguf)] {
            assert_eq!(tokenizer.encode(text, true).unwrap(), *ids, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(ids, false), *decoded, "{name}: {text:?}");
        }
        // A run of line ends becomes its token without merges too; of longer runs nothing is certain.
        if !text.contains(&"\n".repeat(32)) {
            assert_eq!(without_lines.encode(text, true).unwrap(), *ids, "without merges: {text:?}");
        }
    }
    assert_eq!(json.encode("a", false).unwrap().len(), 1, "no mark in front of a text");
}

#[test]
fn marks_of_calls_are_shown_and_ends_are_not() {
    let fixture = Fixture::read();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocabulary.gguf");
    let tokenizer = of_gguf(&fixture.metadata(true), &path);
    let ids = tokenizer.encode("<|channel>thought\n<channel|><|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|>", false);
    let told = tokenizer.decode(&ids.unwrap(), true);
    assert_eq!(told, "<|channel>thought\n<channel|><|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|>");
    let ends = tokenizer.encode("b<|tool_response>c<turn|>", false).unwrap();
    assert_eq!(tokenizer.decode(&ends, true), "bc");
}
