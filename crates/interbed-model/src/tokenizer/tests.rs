use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

/// Returns a byte-level tokenizer whose vocabulary has all 256 bytes, some words and two special tokens, and merges for
/// "the".
fn byte_level() -> Tokenizer {
    let mut alphabet: Vec<char> = ('\u{100}'..='\u{143}').collect();
    alphabet.extend(('!'..='~').chain('\u{A1}'..='\u{AC}').chain('\u{AE}'..='\u{FF}'));
    let mut vocab: BTreeMap<String, u32> = BTreeMap::new();
    for (id, character) in alphabet.into_iter().enumerate() {
        vocab.insert(character.to_string(), id as u32);
    }
    for (offset, word) in ["th", "the", "Ġthe", "ðŁĺ", "Ģ!"].into_iter().enumerate() {
        vocab.insert(word.into(), 256 + offset as u32);
    }
    let json = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [
            {"id": 261, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true},
            {"id": 262, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true},
            {"id": 263, "content": "<tool call>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": false},
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [261], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"]]},
    });
    load(&json, &json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}}))
}

/// Returns a tokenizer with a vocabulary like SentencePiece's and with byte pieces. `decoder` is its decoder.
fn sentencepiece(decoder: Json) -> Tokenizer {
    let mut vocab: BTreeMap<String, u32> = BTreeMap::new();
    vocab.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), byte)));
    for (offset, piece) in ["▁", "▁▁", "▁the", "cat", "é", "##s", "<unk>"].into_iter().enumerate() {
        vocab.insert(piece.into(), 256 + offset as u32);
    }
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            {"id": 263, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true},
            {"id": 264, "content": " extra", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": false},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": []},
    });
    load(&json, &json!({"bos_token": "<s>", "add_bos_token": true}))
}

fn load(json: &Json, config: &Json) -> Tokenizer {
    Tokenizer::from_bytes(json.to_string().as_bytes(), Some(config.to_string().as_bytes())).unwrap()
}

fn llama_decoder() -> Json {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
}

fn gemma_decoder() -> Json {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]})
}

fn all_kinds() -> Vec<Tokenizer> {
    vec![
        byte_level(),
        sentencepiece(llama_decoder()),
        sentencepiece(gemma_decoder()),
        sentencepiece(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})),
        sentencepiece(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true})),
    ]
}

#[test]
fn decoders_are_recognised() {
    let other: Vec<bool> = all_kinds().iter().map(|tokenizer| tokenizer.decoder == DecoderKind::Other).collect();
    assert_eq!(other, [false; 5]);
    let other = [json!(null), json!({"type": "WordPiece", "prefix": "##", "cleanup": true})];
    for decoder in other {
        assert_eq!(DecoderKind::from_json(&decoder), DecoderKind::Other);
    }
}

proptest! {
    /// One by one gives the same text as all at once, and the same as the crate.
    #[test]
    fn streaming_equals_decoding(ids in prop::collection::vec(0u32..270, 0..40), skip_special: bool) {
        for tokenizer in all_kinds() {
            let expected = tokenizer.inner.decode(&ids, skip_special).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids, skip_special), &expected);
            let mut stream = Detokenizer::new(Arc::new(tokenizer), skip_special);
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text += &stream.finish();
            prop_assert_eq!(&text, &expected);
        }
    }

    /// Checks that decoding never shows a replacement character for real text, wherever the borders of tokens are.
    #[test]
    fn characters_are_never_cut(text in "[ a-zé你😀]{0,20}") {
        for tokenizer in [byte_level(), sentencepiece(llama_decoder())] {
            let ids = tokenizer.encode(&text, false).unwrap();
            let mut stream = Detokenizer::new(Arc::new(tokenizer), true);
            let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
            pieces.push(stream.finish());
            prop_assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{:?}", pieces);
            prop_assert_eq!(pieces.concat(), text.clone());
        }
    }
}

#[test]
fn decoders_that_are_not_understood_stream_too() {
    let tokenizer = Arc::new(sentencepiece(json!({"type": "WordPiece", "prefix": "##", "cleanup": false})));
    let ids = [259, 261, 260, 263, 259];
    let mut stream = Detokenizer::new(tokenizer.clone(), true);
    let text: String = ids.iter().map(|&id| stream.push(id)).collect();
    assert_eq!(text + &stream.finish(), "cats é cat");
    assert_eq!(tokenizer.decode(&ids, true), "cats é cat");
}

#[test]
fn special_tokens_come_from_the_configuration() {
    let tokenizer = byte_level();
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<s>"), Some("</s>")));
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(261), Some(262)));
    assert!(tokenizer.is_special(261) && !tokenizer.is_special(263) && !tokenizer.is_special(9999));
    assert_eq!((tokenizer.vocab_size(), tokenizer.longest_entry()), (264, "<tool call>".len()));
    assert_eq!(tokenizer.id_of("Ġthe"), Some(258));
    // A truncation left in the file must not cut prompts.
    assert_eq!(tokenizer.encode("the the the the the the", true).unwrap(), [261, 257, 258, 258, 258, 258, 258]);
    assert_eq!(tokenizer.encode("the</s>", false).unwrap(), [257, 262]);
    // `add_bos_token` adds what the post-processor does not, but not to bare encodings.
    let tokenizer = sentencepiece(llama_decoder());
    assert_eq!(tokenizer.encode("A", true).unwrap(), [263, 256, 0x41]);
    assert_eq!(tokenizer.encode("A", false).unwrap(), [256, 0x41]);
}

#[test]
fn single_tokens_have_bytes_and_text() {
    let tokenizer = byte_level();
    assert_eq!(tokenizer.token_bytes(258), b" the");
    assert_eq!(tokenizer.token_bytes(259), [0xF0, 0x9F, 0x98]);
    assert_eq!(tokenizer.token_text(259), "\u{FFFD}");
    assert_eq!(tokenizer.token_text(262), "</s>");
    assert_eq!(tokenizer.token_text(263), "<tool call>");
    assert_eq!(tokenizer.token_text(9999), "");
    let tokenizer = sentencepiece(llama_decoder());
    assert_eq!(tokenizer.token_bytes(0xE4), [0xE4]);
    assert_eq!(tokenizer.token_text(258), " the");
}

#[test]
fn bad_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    assert!(matches!(Tokenizer::from_dir(dir.path()), Err(TokenizerError::Missing { .. })));

    let malformed = |content: &str| {
        std::fs::write(&path, content).unwrap();
        match Tokenizer::from_dir(dir.path()) {
            Err(TokenizerError::Malformed { problem, .. }) => problem,
            other => panic!("{content}: {other:?}"),
        }
    };
    malformed("");
    malformed("{}");
    malformed(&("[".repeat(100_000)));
    let bpe = |prefix: &str, merges: Json| {
        json!({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "continuing_subword_prefix": prefix,
            "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": merges}})
        .to_string()
    };
    for merges in [json!([["a"]]), json!(["ab"]), json!([["a", 1]]), json!(3), json!([["a", "b", "ab"]])] {
        assert!(malformed(&bpe("", merges)).contains("merge"));
    }
    assert!(malformed(&bpe("####", json!([["a", "b"]]))).contains("merge 0"));
    malformed(&bpe("", json!([["a", "zz"]])));

    std::fs::File::create(&path).unwrap().set_len(MAX_TOKENIZER_BYTES + 1).unwrap();
    assert!(matches!(Tokenizer::from_dir(dir.path()), Err(TokenizerError::TooLarge { .. })));
}

#[test]
fn normalizers_that_grow_without_end_are_refused() {
    let build = |changes: Json| {
        let mut json = json!({"version": "1.0", "added_tokens": [],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": []}});
        json.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        Tokenizer::from_bytes(json.to_string().as_bytes(), None)
    };
    let replace = |pattern: Json, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let sequence = |step: Json, times: usize| json!({"type": "Sequence", "normalizers": vec![step; times]});
    let doubling = || replace(json!({"String": "a"}), "aa");
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let long = "a".repeat(1000);
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    for changes in [
        json!({"normalizer": sequence(doubling(), 40)}),
        json!({"normalizer": sequence(replace(json!({"String": ""}), "b"), 40)}),
        json!({"normalizer": sequence(replace(json!({"Regex": "x*"}), "b"), 40)}),
        json!({"normalizer": sequence(json!({"type": "Prepend", "prepend": "a"}), 40)}),
        json!({"normalizer": sequence(sequence(doubling(), 5), 5)}),
        json!({"normalizer": sequence(replace(json!({"String": "a"}), &long), 2)}),
        json!({"normalizer": {"normalizers": vec![json!({"pattern": {"String": "a"}, "content": "aa"}); 40]}}),
        json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": vec![bytes; 40]}}),
        json!({"decoder": {"type": "Sequence", "decoders": vec![doubling(); 40]}}),
        json!({"post_processor": {"type": "TemplateProcessing", "single": vec![text; 1000], "pair": [],
            "special_tokens": {}}}),
        json!({"model": {"type": "BPE", "continuing_subword_prefix": long, "vocab": {"a": 0}, "merges": []}}),
    ] {
        let problem = build(changes.clone()).expect_err(&changes.to_string());
        assert!(problem.contains("accepted"), "{problem}");
    }
    // Within the limit, texts are as long as memory allows, by what they become.
    let tokenizer = build(json!({"normalizer": sequence(doubling(), 7)})).unwrap();
    assert_eq!(tokenizer.encode("a", false).unwrap().len(), 128);
    assert_eq!(tokenizer.encode(&"b".repeat(1 << 20), false).unwrap().len(), 1 << 20);
    let error = tokenizer.encode(&"a".repeat(1 << 20), false).unwrap_err();
    assert!(error.to_string().contains("67108864 bytes of its 1048576"), "{error}");
    assert_eq!(tokenizer.scratch_bytes("a"), 8 * (288 + 12));
    // Each part between added tokens begins anew.
    let added = json!([{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let prepends = json!({"type": "Prepend", "prepend": "a".repeat(1000)});
    let tokenizer = build(json!({"normalizer": prepends, "added_tokens": added})).unwrap();
    let error = tokenizer.encode(&"a<s>".repeat(100_000), false).unwrap_err();
    assert!(error.to_string().contains("of its 400000"), "{error}");
}
