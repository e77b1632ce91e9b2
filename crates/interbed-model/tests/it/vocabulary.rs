//! Texts of many scripts with the vocabulary of Qwen3.6, out of a `tokenizer.json` and out of a GGUF file
//! (`tools/reference/make_vocabulary_fixture.py`).

use std::path::{Path, PathBuf};

use interbed_model::gguf::GgufModel;
use interbed_model::tokenizer::Tokenizer;
use interbed_weights::{Catalog, Metadata, Numbers, Texts, write_gguf};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::fixtures;

#[derive(Deserialize)]
struct Vocabulary {
    /// The expression that cuts texts into words.
    pattern: String,
    /// Tokens that are looked for verbatim. Their ids follow those of `tokens`.
    added: Vec<String>,
    /// The text of each token, by its id.
    tokens: Vec<String>,
    merges: Vec<String>,
    /// Texts and their ids.
    texts: Vec<(String, Vec<u32>)>,
}

impl Vocabulary {
    fn read(path: &Path) -> Self {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn of_json(&self) -> Tokenizer {
        let vocab: serde_json::Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
        let added = self.added.iter().enumerate().map(|(index, token)| {
            json!({"id": self.tokens.len() + index, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": token.starts_with("<|")})
        });
        let merges: Vec<[&str; 2]> = self
            .merges
            .iter()
            .map(|merge| merge.split(' ').collect::<Vec<_>>().try_into().expect("a merge has two parts"))
            .collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": {"type": "NFC"}, "post_processor": null, "decoder": bytes(true), "pre_tokenizer": {
                "type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": false},
                    bytes(false),
                ],
            },
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": merges},
        });
        Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), None).unwrap()
    }

    fn of_gguf(&self, path: &Path) -> Tokenizer {
        let [normal, control, user_defined] = [1, 3, 4];
        let (mut tokens, mut kinds, mut merges) = (Texts::default(), Vec::new(), Texts::default());
        for token in &self.tokens {
            tokens.push(token);
            kinds.push(normal);
        }
        for token in &self.added {
            tokens.push(token);
            kinds.push(if token.starts_with("<|") { control } else { user_defined });
        }
        self.merges.iter().for_each(|merge| merges.push(merge));
        let mut metadata = Metadata::default();
        metadata.set("general.architecture", "qwen35");
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.pre", "qwen35");
        metadata.set("tokenizer.ggml.tokens", tokens);
        metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(kinds));
        metadata.set("tokenizer.ggml.merges", merges);
        metadata.set("tokenizer.ggml.eos_token_id", self.tokens.len() as u32);
        metadata.set("tokenizer.ggml.add_bos_token", false);
        write_gguf(path, &metadata, &[], &mut |_, _| Ok(())).unwrap();
        GgufModel::of(&Catalog::open(path).unwrap()).unwrap().tokenizer().unwrap()
    }
}

fn bytes(trims: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trims, "use_regex": false})
}

#[test]
fn texts_of_many_scripts_have_the_ids_of_the_original() {
    // With this variable, the whole vocabulary and ten thousand texts are read too.
    let whole = std::env::var_os("INTERBED_VOCABULARY").map(|dir| PathBuf::from(dir).join("whole.json"));
    for path in [fixtures().join("vocabulary.json")].into_iter().chain(whole) {
        let vocabulary = Vocabulary::read(&path);
        let dir = tempfile::tempdir().unwrap();
        for (format, tokenizer) in
            [("json", vocabulary.of_json()), ("gguf", vocabulary.of_gguf(&dir.path().join("vocabulary.gguf")))]
        {
            assert!(vocabulary.texts.len() >= 200);
            for (text, ids) in &vocabulary.texts {
                assert_eq!(tokenizer.encode(text, false).unwrap(), *ids, "{format}: {text:?}");
            }
            // Together they are long enough to be tokenized in pieces, each of which begins a line with a letter.
            let (mut all, mut expected) = (String::new(), Vec::<u32>::new());
            let line = tokenizer.encode(".\n", false).unwrap();
            for (text, ids) in &vocabulary.texts {
                if text.starts_with(char::is_alphabetic) && text.ends_with(char::is_alphabetic) {
                    all.push_str(&format!("{text}.\n"));
                    expected.extend(ids.iter().chain(&line));
                }
            }
            let times = 40_000 / all.len() + 1;
            assert_eq!(tokenizer.encode(&all.repeat(times), false).unwrap(), expected.repeat(times), "{format}");
        }
        println!("{}: {} texts", path.display(), vocabulary.texts.len());
    }
}
