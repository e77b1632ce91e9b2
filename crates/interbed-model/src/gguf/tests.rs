//! Metadata that says what is not computed, or makes no sense; and what the keys that are seldom written mean.

use std::collections::HashMap;

use interbed_kernels::DType;
use interbed_weights::{MetadataValue, Number, Numbers, TensorMeta, Texts, write_gguf};

use super::sentencepiece::{Piece, merges};
use super::*;
use crate::HeadSource;
use crate::blueprint::{HeadNorms, NormsOfHeads, Part, RopeScaling};

/// The keys of a small model of `architecture`.
fn shape(architecture: &str) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", architecture);
    for (key, count) in [
        ("context_length", 64u32),
        ("embedding_length", 32),
        ("block_count", 4),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        metadata.set(format!("{architecture}.{key}"), count);
    }
    metadata.set(format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5f32);
    metadata
}

/// The catalog of a file with these pairs and tensors of ones.
fn catalog(metadata: &Metadata, tensors: &[(&str, &[usize])]) -> Catalog {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), metadata, tensors);
    // It reads headers only, and the file stays open.
    Catalog::open(&path).unwrap()
}

fn write(dir: &std::path::Path, metadata: &Metadata, tensors: &[(&str, &[usize])]) -> std::path::PathBuf {
    let path = dir.join("model.gguf");
    let meta = |(name, shape): &(&str, &[usize])| TensorMeta {
        name: (*name).to_owned(),
        dtype: DType::F32,
        shape: shape.to_vec(),
    };
    let tensors: Vec<_> = tensors.iter().map(meta).collect();
    write_gguf(&path, metadata, &tensors, &mut |index, sink| {
        let ones = tensors[index].shape.iter().product::<usize>();
        (0..ones).try_for_each(|_| sink(&1f32.to_le_bytes()))
    })
    .unwrap();
    path
}

const EMBEDDING: (&str, &[usize]) = ("token_embd.weight", &[40, 32]);

fn config(metadata: &Metadata) -> Result<ModelConfig, String> {
    config_with(metadata, &[EMBEDDING])
}

fn config_with(metadata: &Metadata, tensors: &[(&str, &[usize])]) -> Result<ModelConfig, String> {
    let catalog = catalog(metadata, tensors);
    GgufModel::of(&catalog).unwrap().config().map_err(|error| error.to_string())
}

/// Expects a model with `key` set so to be refused with `parts` in the message.
fn refused(key: &str, value: impl Into<MetadataValue>, parts: &[&str]) {
    let mut metadata = shape("llama");
    metadata.set(key, value);
    let error = config(&metadata).expect_err(key);
    for part in parts {
        assert!(error.contains(part), "{key}: {error} should name {part}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    refused("general.architecture", "gemma2", &["gemma2", "llama", "qwen3", "granite"]);
    refused("general.architecture", 3u32, &["general.architecture", "a text"]);
    refused("general.type", "mmproj", &["mmproj", "language model"]);
    refused("llama.expert_count", 8u32, &["llama.expert_used_count"]);
    refused("llama.attention.value_length", 16u32, &["value_length", "one width"]);
    refused("llama.rope.dimension_count", 4u32, &["rope.dimension_count", "a part of each head"]);
    refused("llama.rope.scaling.type", "longrope", &["longrope", "linear", "yarn"]);
    refused("llama.attention.head_count_kv", Numbers::from_i32([2, 2, 1, 2]), &["head_count_kv", "layers that differ"]);
    refused("llama.attention.head_count_kv", Numbers::from_i32([]), &["head_count_kv"]);
    let error = config(&Metadata::default()).unwrap_err();
    assert!(error.contains("general.architecture is missing"), "{error}");
    let long = config_with(&shape("llama"), &[EMBEDDING, ("rope_factors_long.weight", &[4])]).unwrap_err();
    assert!(long.contains("longrope"), "{long}");
}

#[test]
fn a_number_says_which_layers_have_a_window() {
    let windows = |pattern: MetadataValue| {
        let mut metadata = shape("exaone4");
        metadata.set("exaone4.attention.sliding_window", 16u32);
        metadata.set("exaone4.attention.sliding_window_pattern", pattern);
        config(&metadata).map(|config| config.blueprint.windows().iter().map(Option::is_some).collect::<Vec<_>>())
    };
    let layers = windows(0u32.into()).unwrap().len();
    assert_eq!(windows(0u32.into()).unwrap(), vec![true; layers], "0 stands for all");
    assert_eq!(windows(1u32.into()).unwrap(), vec![false; layers], "all but every layer");
    let every_second: Vec<_> = (0..layers).map(|layer| layer % 2 == 0).collect();
    assert_eq!(windows(2u32.into()).unwrap(), every_second);
    assert_eq!(windows(u32::MAX.into()).unwrap(), vec![true; layers]);
    for bad in [MetadataValue::from(2.5f32), MetadataValue::from("LLLG")] {
        assert!(windows(bad).unwrap_err().contains("sliding_window_pattern"));
    }
}

#[test]
fn a_base_of_layers_with_a_window_is_read_where_it_is_known() {
    refused("llama.rope.freq_base_swa", 5000.0f32, &["rope.freq_base_swa", "known to rotate otherwise"]);
    let mut metadata = shape("gemma3");
    assert!(config(&metadata).unwrap_err().contains("gemma3.rope.freq_base is missing"));
    metadata.set("gemma3.rope.freq_base", 1e6f32);
    metadata.set("gemma3.attention.sliding_window", 16u32);
    metadata.set("gemma3.rope.freq_base_swa", 5000.0f32);
    metadata.set("gemma3.attention.sliding_window_pattern", 2u32);
    let read = config(&metadata).unwrap().blueprint;
    assert_eq!(read.ropes.iter().map(|rope| rope.theta).collect::<Vec<_>>(), [1e6, 5000.0]);
}

#[test]
fn longrope_has_both_sets_of_factors_or_is_refused() {
    let [short, long] = ["short", "long"].map(|set| format!("rope_factors_{set}.weight"));
    let [short, long] = [&short, &long].map(|name| (name.as_str(), &[4usize][..]));
    assert!(config_with(&shape("llama"), &[EMBEDDING, short]).unwrap_err().contains("longrope"));
    let mut phi = shape("phi3");
    let both = config_with(&phi, &[EMBEDDING, short, long]).unwrap();
    assert!(matches!(both.blueprint.ropes[0].scaling, RopeScaling::LongRope { .. }));
    assert_eq!(config_with(&phi, &[EMBEDDING]).unwrap().blueprint.ropes[0].scaling, RopeScaling::Default);
    for (one, other) in [(short, long), (long, short)] {
        let said = config_with(&phi, &[EMBEDDING, one]).unwrap_err();
        assert!(said.contains(other.0), "{said}");
    }
    phi.set("phi3.rope.scaling.type", "longrope");
    assert!(config(&phi).unwrap_err().contains("rope_factors"));
}

#[test]
fn tokens_without_a_row_are_refused() {
    let mut metadata = shape("llama");
    let list = |count: usize| (0..count).map(|id| format!("t{id}")).collect::<Vec<_>>();
    let texts = |count: usize| list(count).iter().map(String::as_str).collect::<Texts>();
    for count in [1, 39, 40] {
        metadata.set("tokenizer.ggml.tokens", texts(count));
        assert_eq!(config(&metadata).map(|config| config.blueprint.vocab_size), Ok(40), "{count}");
    }
    metadata.set("tokenizer.ggml.tokens", texts(41));
    let error = config(&metadata).unwrap_err();
    for part in ["tokenizer.ggml.tokens is a list of 41 tokens", "at most 40", "token_embd.weight"] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn keys_that_change_the_computation_are_refused_by_name() {
    for (key, value, neutral) in [
        ("attention.causal", MetadataValue::from(false), MetadataValue::from(true)),
        ("use_parallel_residual", true.into(), false.into()),
        ("attention.clamp_kqv", 8f32.into(), 0f32.into()),
        ("attn_logit_softcapping", 50f32.into(), 0f32.into()),
        ("final_logit_softcapping", 30f32.into(), 0f32.into()),
        ("attention.temperature_scale", 0.1f32.into(), 0f32.into()),
        ("rope.scaling.yarn_ext_factor", 0f32.into(), 1f32.into()),
    ] {
        refused(&format!("llama.{key}"), value, &[key, "does not"]);
        let mut metadata = shape("llama");
        metadata.set(format!("llama.{key}"), neutral);
        assert!(config(&metadata).is_ok(), "{key}");
    }
    let mut granite = shape("granite");
    granite.set("granite.rope.scaling.finetuned", false);
    assert!(config(&granite).unwrap_err().contains("granite.rope.scaling.finetuned"));
    refused("llama.attention.head_count_kv", Numbers::from_i32([2, 2, 2]), &["head_count_kv", "each layer"]);
}

#[test]
fn lists_of_experts_and_growth_of_queries_are_not_passed_over() {
    let with = |architecture: &str, pairs: &[(&str, MetadataValue)]| {
        let mut metadata = shape(architecture);
        pairs.iter().for_each(|(key, value)| metadata.set(format!("{architecture}.{key}"), value.clone()));
        config(&metadata).unwrap_err()
    };
    let floats = || MetadataValue::from(Numbers::from_f32([8.0; 4]));
    assert!(with("llama", &[("expert_count", floats())]).contains("llama.expert_count"));
    let linear = [
        ("rope.scaling.factor", MetadataValue::from(4f32)),
        ("attention.temperature_scale", MetadataValue::from(0.1f32)),
    ];
    assert!(with("mistral3", &linear).contains("mistral3.attention.temperature_scale"));
    let narrow = [("expert_count", 99u32), ("expert_used_count", 64)].map(|(key, count)| (key, count.into()));
    assert!(with("qwen2moe", &narrow).contains("qwen2moe.expert_feed_forward_length is 0"));
}

#[test]
fn tensors_that_nobody_asks_for_are_refused() {
    let check = |other: &str| {
        let catalog = catalog(&shape("llama"), &[EMBEDDING, (other, &[8])]);
        let gguf = GgufModel::of(&catalog).unwrap();
        // As many layers as the names below speak of.
        let blueprint = gguf.config().unwrap().blueprint;
        assert_eq!(blueprint.layers.len(), 4);
        gguf.check_tensors(&crate::layers::group_specs(&blueprint)).map_err(|error| error.to_string())
    };
    for name in
        ["blk.1.attn_q_norm.weight", "blk.2.attn_q.bias", "blk.0.ffn_sub_norm.weight", "blk.0.ffn_gate_exps.weight"]
    {
        let error = check(name).unwrap_err();
        assert!(error.contains(name) && error.contains("not supported"), "{error}");
    }
    for name in ["blk.1.attn_norm.weight", "blk.0.attn_rot_embd.weight"] {
        assert_eq!(check(name), Ok(()), "{name}");
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for (key, value) in [
        ("llama.embedding_length", MetadataValue::from(0u32)),
        ("llama.embedding_length", MetadataValue::from(33u32)),
        ("llama.attention.head_count", MetadataValue::from(0u32)),
        ("llama.attention.head_count", MetadataValue::from(u32::MAX)),
        ("llama.attention.head_count_kv", MetadataValue::from(3u32)),
        ("llama.block_count", MetadataValue::Number(Number::U64(u64::MAX))),
        ("llama.block_count", MetadataValue::Number(Number::I32(-1))),
        ("llama.block_count", MetadataValue::from("four")),
        ("llama.context_length", MetadataValue::from(1.5f32)),
        ("llama.attention.layer_norm_rms_epsilon", MetadataValue::from(f32::NAN)),
        ("llama.attention.layer_norm_rms_epsilon", MetadataValue::from(7f32)),
        ("llama.rope.freq_base", MetadataValue::from(f32::INFINITY)),
        ("llama.attention.key_length", MetadataValue::from(7u32)),
        ("llama.attention.sliding_window", MetadataValue::Number(Number::U64(1 << 40))),
        ("tokenizer.ggml.eos_token_id", MetadataValue::from("end")),
    ] {
        refused(key, value, &[key.rsplit('.').next().unwrap()]);
    }
    for missing in ["block_count", "embedding_length", "attention.head_count", "context_length"] {
        let mut metadata = Metadata::default();
        let key = format!("llama.{missing}");
        shape("llama").pairs().filter(|(other, _)| *other != key).for_each(|(k, v)| metadata.set(k, v.clone()));
        let error = config(&metadata).unwrap_err();
        assert!(error.contains(&key) && error.contains("missing"), "{error}");
    }
    // Factors for another width of head, and factors that would stop all rotation.
    let error = config_with(&shape("llama"), &[EMBEDDING, ("rope_freqs.weight", &[5])]).unwrap_err();
    assert!(error.contains("rope_freqs.weight") && error.contains("4 numbers"), "{error}");
    assert!(config_with(&shape("llama"), &[EMBEDDING, ("rope_freqs.weight", &[4])]).is_ok());
}

#[test]
fn seldom_keys_mean_what_other_programs_take_them_for() {
    let with = |architecture: &str, pairs: &[(&str, MetadataValue)]| {
        let mut metadata = shape(architecture);
        pairs.iter().for_each(|(key, value)| metadata.set(format!("{architecture}.{key}"), value.clone()));
        config(&metadata).unwrap()
    };
    let text = |text: &str| MetadataValue::from(text);
    assert_eq!(with("llama", &[]).blueprint.ropes[0].scaling, RopeScaling::Default);
    assert_eq!(
        with("llama", &[("attention.head_count_kv", Numbers::from_i32([2; 4]).into())])
            .blueprint
            .attentions()
            .next()
            .unwrap()
            .kv_heads,
        2
    );
    assert_eq!(
        with("llama", &[("rope.scale_linear", 4f32.into())]).blueprint.ropes[0].scaling,
        RopeScaling::Linear { factor: 4.0 }
    );
    let none = [("rope.scaling.type", text("none")), ("rope.scaling.factor", 4f32.into())];
    assert_eq!(with("llama", &none).blueprint.ropes[0].scaling, RopeScaling::Default);
    let yarn = with(
        "qwen2",
        &[
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", 4f32.into()),
            ("rope.scaling.original_context_length", 32u32.into()),
            ("rope.scaling.attn_factor", 2f32.into()),
        ],
    );
    let RopeScaling::Yarn { factor, original_max, attention_factor, beta_fast, .. } = yarn.blueprint.ropes[0].scaling
    else {
        panic!("{:?}", yarn.blueprint.ropes)
    };
    assert_eq!((factor, original_max, beta_fast, yarn.blueprint.context), (4.0, 32, 32.0, 128));
    assert!((attention_factor - 2.0 * (0.1 * 4f64.ln() + 1.0)).abs() < 1e-9);

    let yarn = with(
        "qwen2",
        &[
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", 4f32.into()),
            ("rope.scaling.yarn_attn_factor", 1.5f32.into()),
        ],
    );
    assert!(
        matches!(yarn.blueprint.ropes[0].scaling, RopeScaling::Yarn { attention_factor: 1.5, .. }),
        "{:?}",
        yarn.blueprint.ropes
    );

    let window = ("attention.sliding_window", MetadataValue::from(8u32));
    assert_eq!(with("llama", std::slice::from_ref(&window)).blueprint.windows(), [Some(8); 4]);
    assert_eq!(with("qwen2", std::slice::from_ref(&window)).blueprint.windows(), [None; 4]);
    let pattern = MetadataValue::Bools(vec![true, false, true, false]);
    let sliding = with("qwen3", &[window.clone(), ("attention.sliding_window_pattern", pattern)]);
    assert_eq!(sliding.blueprint.windows(), [Some(8), None, Some(8), None]);

    let old = with("minicpm", &[]);
    assert_eq!((old.blueprint.embedding_factor, old.blueprint.branch_factor()), (12.0, 0.7), "1.4 / sqrt(4)");
    assert_eq!(old.blueprint.head.divisor, 32.0 / 256.0);
    let none = ["embedding_scale", "residual_scale", "logit_scale"].map(|key| (key, MetadataValue::from(0f32)));
    let none = with("minicpm", &none);
    assert_eq!(
        (none.blueprint.embedding_factor, none.blueprint.branch_factor(), none.blueprint.head.divisor),
        (1.0, 1.0, 1.0)
    );
    let granite = with("granite", &[("logit_scale", 0f32.into()), ("embedding_scale", 3f32.into())]);
    assert_eq!((granite.blueprint.head.divisor, granite.blueprint.embedding_factor), (1.0, 3.0));
    assert!((granite.blueprint.attentions().next().unwrap().scale - 8f32.sqrt().recip()).abs() < 1e-7);
}

/// A byte-level vocabulary: the 256 bytes, "the" and its parts, and two tokens that are no text.
fn vocabulary(pre: &str) -> Metadata {
    let mut metadata = shape("llama");
    let alphabet = ('!'..='~').chain('\u{A1}'..='\u{AC}').chain('\u{AE}'..='\u{FF}').chain('\u{100}'..='\u{143}');
    let mut tokens: Texts = Texts::default();
    alphabet.for_each(|letter| tokens.push(letter.encode_utf8(&mut [0; 4])));
    let bytes = tokens.len();
    ["th", "the", "<s>", "<|im_end|>", "", "the"].into_iter().for_each(|token| tokens.push(token));
    assert_eq!(bytes, 256);
    let kinds = (0..tokens.len()).map(|id| if matches!(id, 258 | 259) { 3 } else { 1 });
    metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(kinds));
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.merges", ["t h", "th e"].into_iter().collect::<Texts>());
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", pre);
    metadata.set("tokenizer.ggml.bos_token_id", 258u32);
    metadata
}

fn tokenizer(metadata: &Metadata) -> Result<Tokenizer, String> {
    let catalog = catalog(metadata, &[EMBEDDING]);
    GgufModel::of(&catalog).unwrap().tokenizer().map_err(|error| error.to_string())
}

#[test]
fn every_known_pre_tokenizer_cuts_text_without_loss() {
    for name in pre_tokenizer::names() {
        let tokenizer = tokenizer(&vocabulary(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for text in ["the 12345 other's\n\n things...  (x)", " l\u{e9} \u{4f60}\u{597d} \u{bd}\t"] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
        }
        assert_eq!(tokenizer.encode("the", false).unwrap(), [257], "{name}: of two alike, the first");
    }
    let ids = |name: &str, text: &str| tokenizer(&vocabulary(name)).unwrap().encode(text, true).unwrap();
    // Llama 3 begins texts with BOS by default, GPT-2 does not.
    assert_eq!((ids("llama-bpe", "the"), ids("gpt-2", "the")), (vec![258, 257], vec![257]));
    assert_eq!(ids("qwen2", "<|im_end|>the"), [259, 257]);
}

#[test]
fn what_surrounds_a_text_is_as_the_file_says() {
    let mut metadata = vocabulary("qwen2");
    metadata.set("tokenizer.ggml.eos_token_id", 259u32);
    metadata.set("tokenizer.ggml.add_bos_token", true);
    metadata.set("tokenizer.ggml.add_eos_token", true);
    let both = tokenizer(&metadata).unwrap();
    assert_eq!(both.encode("the", true).unwrap(), [258, 257, 259]);
    assert_eq!((both.bos_token(), both.eos_id()), (Some("<s>"), Some(259)));
    metadata.set("tokenizer.ggml.add_bos_token", false);
    assert_eq!(tokenizer(&metadata).unwrap().encode("the", true).unwrap(), [257, 259]);
    metadata.set("tokenizer.ggml.bos_token_id", 1_000_000u32);
    metadata.set("tokenizer.ggml.add_bos_token", true);
    assert_eq!(tokenizer(&metadata).unwrap().encode("the", true).unwrap(), [257, 259], "no such token");
}

#[test]
fn texts_that_nobody_needs_may_be_no_utf_8() {
    /// What becomes no UTF-8 in the file, and is in no vocabulary of bytes.
    const MARK: &str = "\u{416}";
    let read = |key: &str, value: MetadataValue| {
        let mut metadata = vocabulary("gpt-2");
        metadata.set(key, value);
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), &metadata, &[("token_embd.weight", &[262, 32])]);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(2).position(|pair| pair == MARK.as_bytes()).unwrap();
        bytes[at + 1] = b'(';
        std::fs::write(&path, bytes).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        let gguf = GgufModel::of(&catalog).unwrap();
        let tokenizer = gguf.tokenizer().map(|_| ()).map_err(|error| error.to_string());
        gguf.config().map_err(|error| error.to_string()).and(tokenizer)
    };
    assert_eq!(read("general.name", MARK.into()), Ok(()));
    assert_eq!(read("general.tags", ["a", MARK].into_iter().collect::<Texts>().into()), Ok(()));
    for (key, value) in [
        ("tokenizer.ggml.tokens", ["a", MARK].into_iter().collect::<Texts>().into()),
        ("tokenizer.ggml.pre", MetadataValue::from(MARK)),
    ] {
        let refusal = read(key, value).unwrap_err();
        assert!(refusal.contains(key) && refusal.contains("UTF-8"), "{refusal}");
    }
}

#[test]
fn a_key_makes_no_token_special() {
    let mut metadata = vocabulary("gpt-2");
    for key in ["padding", "unknown"] {
        metadata.set(format!("tokenizer.ggml.{key}_token_id"), 257u32);
    }
    let tokenizer = tokenizer(&metadata).unwrap();
    assert!(!tokenizer.is_special(257));
    assert_eq!(tokenizer.decode(&tokenizer.encode("the the", false).unwrap(), true), "the the");
}

#[test]
fn a_lone_head_is_the_embedding_too() {
    const HEAD: (&str, &[usize]) = ("output.weight", &[40, 32]);
    let metadata = shape("llama");
    let settled = |tensors: &[(&str, &[usize])]| {
        let mut catalog = catalog(&metadata, tensors);
        let mut config = GgufModel::of(&catalog).unwrap().config().unwrap();
        let source = HeadSource::settle(&mut config, &mut catalog, u64::MAX).unwrap();
        (
            source,
            config.blueprint.head.is_tied,
            config.blueprint.vocab_size,
            catalog.name_in_file("model.embed_tokens.weight"),
        )
    };
    let embedding = || EMBEDDING.0.to_owned();
    assert_eq!(settled(&[EMBEDDING]), (HeadSource::Embedding, true, 40, embedding()));
    assert_eq!(settled(&[HEAD]), (HeadSource::ForEmbedding, true, 40, HEAD.0.to_owned()));
    // llama.cpp uses what is stored, without a look at it.
    assert_eq!(settled(&[EMBEDDING, HEAD]), (HeadSource::Own, false, 40, embedding()));
}

#[test]
fn templates_have_line_feeds() {
    let mut metadata = vocabulary("gpt-2");
    metadata.set("tokenizer.chat_template", "a\r\nb\rc");
    metadata.set("tokenizer.chat_template.tool_use", "tools\r\nb");
    let catalog = catalog(&metadata, &[EMBEDDING]);
    let template = GgufModel::of(&catalog).unwrap().chat_template().unwrap();
    let render = |tools: Option<&[Value]>| template.render(&[], tools, false, &serde_json::Map::new()).unwrap();
    assert_eq!((render(None), render(Some(&[]))), ("a\nb\nc".to_owned(), "tools\nb".to_owned()));
}

#[test]
fn white_space_behind_the_markers_of_phi_3_is_left_out() {
    let strips = |edit: &dyn Fn(&mut Metadata)| {
        let mut metadata = vocabulary("gpt-2");
        edit(&mut metadata);
        // <s>, <|im_end|>, and white space that only the second of them takes.
        tokenizer(&metadata).unwrap().encode("<s> \nthe<|im_end|> \n\tthe", false).unwrap()
    };
    let whole = strips(&|_| {});
    for name in ["Phi-3 Mini", "my-phi3.5-tune"] {
        let stripped = strips(&|metadata| metadata.set("general.name", name));
        assert_eq!(stripped, [&whole[..5], &[257]].concat(), "{name}");
    }
    assert_eq!(strips(&|metadata| metadata.set("general.name", "Phi-4")), whole);
    let sentencepiece = |architecture: &str| {
        let mut metadata = sentencepiece();
        metadata.set("general.architecture", architecture);
        tokenizer(&metadata).unwrap().encode("</s> \na<s> a", false).unwrap()
    };
    // Not behind <s>.
    assert_eq!((sentencepiece("phi3"), sentencepiece("llama")), (vec![2, 5, 1, 3, 5], vec![2, 3, 3, 17, 4, 1, 3, 5]));
}

#[test]
fn texts_end_at_tokens_that_keys_or_names_tell() {
    let mut metadata = vocabulary("qwen2");
    assert_eq!(tokenizer::end_ids(&metadata), Ok(vec![259]), "by its name");
    for (key, id) in [("eos", 5u32), ("eot", 7), ("eom", 259)] {
        metadata.set(format!("tokenizer.ggml.{key}_token_id"), id);
    }
    assert_eq!(tokenizer::end_ids(&metadata), Ok(vec![5, 7, 259]));
    // Converters have given these names every kind, or none.
    for kind in [1, 4] {
        let mut metadata = vocabulary("qwen2");
        let count = metadata.texts("tokenizer.ggml.tokens").unwrap().unwrap().len();
        metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(std::iter::repeat_n(kind, count)));
        assert_eq!(tokenizer::end_ids(&metadata), Ok(vec![259]), "of kind {kind}");
        let tokenizer = tokenizer(&metadata).unwrap();
        assert_eq!(tokenizer.decode(&[259, 257], true), "the", "it is no text");
    }
}

#[test]
fn texts_with_marked_spaces_end_where_results_of_calls_follow() {
    let mut metadata = shape("llama");
    metadata.set("tokenizer.ggml.model", "gemma4");
    metadata.set(
        "tokenizer.ggml.tokens",
        ["<unk>", "<eos>", "<turn|>", "<|tool_response>", "a"].into_iter().collect::<Texts>(),
    );
    metadata.set("tokenizer.ggml.token_type", Numbers::from_i32([2, 3, 3, 4, 1]));
    metadata.set("tokenizer.ggml.eos_token_id", 1u32);
    assert_eq!(tokenizer::end_ids(&metadata), Ok(vec![1, 2, 3]));
    assert_eq!(tokenizer::bos_id(&metadata), Ok(None), "there are no usual ids");
    assert!(tokenizer(&metadata).unwrap_err().contains("tokenizer.ggml.merges"));
    metadata.set("tokenizer.ggml.merges", Texts::default());
    assert!(tokenizer(&metadata).unwrap().is_special(3));
    // With neither a token for what is unknown nor tokens of bytes, texts could not be encoded.
    metadata.set("tokenizer.ggml.token_type", Numbers::from_i32([1, 3, 3, 4, 1]));
    assert!(tokenizer(&metadata).unwrap_err().contains("tokenizer.ggml.unknown_token_id"));
}

#[test]
fn where_messages_end_answers_of_harmony_go_on() {
    let mut metadata = vocabulary("gpt-4o");
    let mut tokens = metadata.texts("tokenizer.ggml.tokens").unwrap().unwrap().clone();
    ["<|end|>", "<|return|>", "<|call|>"].into_iter().for_each(|token| tokens.push(token));
    let kinds = (0..tokens.len()).map(|id| if matches!(id, 258 | 259 | 262..) { 3 } else { 1 });
    metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(kinds));
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.eos_token_id", 263u32);
    assert_eq!(tokenizer::end_ids(&metadata), Ok(vec![263, 259, 264]), "not 262");
}

#[test]
fn sentencepiece_has_its_usual_ids_where_no_key_names_others() {
    let mut metadata = sentencepiece();
    assert_eq!((tokenizer::bos_id(&metadata), tokenizer::end_ids(&metadata)), (Ok(Some(1)), Ok(vec![2])));
    let defaults = tokenizer(&metadata).unwrap();
    assert_eq!((defaults.bos_token(), defaults.eos_id()), (Some("<s>"), Some(2)));
    assert_eq!(defaults.encode("a aa", true).unwrap(), [1, 5, 5, 4]);
    metadata.set("tokenizer.ggml.eos_token_id", 4u32);
    assert_eq!(tokenizer::end_ids(&metadata), Ok(vec![4]));
    // Byte-level vocabularies have no such tokens, nor have vocabularies that are too small.
    assert_eq!(tokenizer::end_ids(&shape("llama")), Ok(vec![]));
    metadata.set("tokenizer.ggml.model", "gpt2");
    assert_eq!(tokenizer::bos_id(&metadata), Ok(None));
}

#[test]
fn tokenizers_that_cannot_be_are_refused() {
    let refused = |edit: &dyn Fn(&mut Metadata), parts: &[&str]| {
        let mut metadata = vocabulary("gpt-2");
        edit(&mut metadata);
        let error = tokenizer(&metadata).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{error} should name {part}");
        }
    };
    refused(&|m| m.set("tokenizer.ggml.pre", "chameleon"), &["chameleon", "llama-bpe", "qwen2"]);
    refused(&|m| m.set("tokenizer.ggml.model", "t5"), &["\"t5\"", "gpt2"]);
    refused(&|m| m.set("tokenizer.ggml.model", 7u32), &["tokenizer.ggml.model"]);
    refused(&|m| m.set("tokenizer.ggml.token_type", Numbers::from_i32([1])), &["token_type", "one number for each"]);
    for merge in ["th", "", " ", "t zz", "zz t"] {
        let merges: Texts = ["t h", merge].into_iter().collect();
        refused(&|m| m.set("tokenizer.ggml.merges", merges.clone()), &[]);
    }
    // SentencePiece without scores.
    refused(&|m| m.set("tokenizer.ggml.model", "llama"), &["tokenizer.ggml.scores"]);
    let without = |key: &str| {
        let mut metadata = Metadata::default();
        vocabulary("gpt-2").pairs().filter(|(k, _)| *k != key).for_each(|(k, v)| metadata.set(k, v.clone()));
        tokenizer(&metadata).unwrap_err()
    };
    assert!(without("tokenizer.ggml.model").contains("has no tokenizer"));
    assert!(without("tokenizer.ggml.pre").contains("convert the model again"));
    assert!(without("tokenizer.ggml.merges").contains("tokenizer.ggml.merges"));
}

#[test]
fn vocabularies_without_bounds_are_refused_before_they_become_objects() {
    let refused = |metadata: &Metadata, parts: &[&str]| {
        let error = tokenizer(metadata).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error} should name {parts:?}");
    };
    let many = |count: usize| (0..count).map(|_| "a").collect::<Texts>();
    let mut metadata = vocabulary("gpt-2");
    metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(std::iter::repeat_n(1, (1 << 20) + 1)));
    metadata.set("tokenizer.ggml.tokens", many((1 << 20) + 1));
    refused(&metadata, &["1048577 tokens", "1048576"]);
    for kind in [3, 4] {
        metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(std::iter::repeat_n(kind, 65_537)));
        metadata.set("tokenizer.ggml.tokens", many(65_537));
        refused(&metadata, &["65537 control and user-defined tokens", "65536"]);
    }
    let mut metadata = vocabulary("gpt-2");
    metadata.set("tokenizer.ggml.merges", many(4_000_001));
    refused(&metadata, &["4000001 merges", "4000000"]);
    // Short enough as texts, but too long as the JSON that they become, where each of these bytes is escaped.
    let mut metadata = vocabulary("gpt-2");
    let letters = "\u{1}\u{1}\u{1}\u{1} \u{1}\u{1}\u{1}\u{1}";
    metadata.set("tokenizer.ggml.merges", (0..1_400_000).map(|_| letters).collect::<Texts>());
    refused(&metadata, &["67108864"]);
}

#[test]
fn merges_follow_from_scores() {
    let tokens = ["a", "b", "c", "ab", "bc", "abc", "é", "aé"];
    let ids: HashMap<&str, u32> = tokens.iter().enumerate().map(|(id, token)| (*token, id as u32)).collect();
    let scores = [0.0, 0.0, 0.0, -1.0, -2.0, -0.5, 0.0, -9.0];
    let pieces: Vec<_> = tokens.iter().zip(scores).map(|(text, score)| Piece { text, score }).collect();
    let expected = [("ab", "c"), ("a", "bc"), ("a", "b"), ("b", "c"), ("a", "é")];
    assert_eq!(merges(&pieces, &ids).unwrap(), expected);
}

/// A SentencePiece vocabulary of the bytes and a few pieces, without ids of its special tokens.
fn sentencepiece() -> Metadata {
    let mut metadata = shape("llama");
    let mut tokens = Texts::default();
    ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "aa"].into_iter().for_each(|token| tokens.push(token));
    (0..=255u8).for_each(|byte| tokens.push(&format!("<0x{byte:02X}>")));
    let kinds = (0..tokens.len()).map(|id| [2, 3, 3, 1, 1, 1, 1].get(id).copied().unwrap_or(6));
    metadata.set("tokenizer.ggml.token_type", Numbers::from_i32(kinds));
    metadata.set("tokenizer.ggml.scores", Numbers::from_f32((0..tokens.len()).map(|id| -(id as f32))));
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.model", "llama");
    metadata
}

#[test]
fn sentencepiece_without_a_prefix_keeps_spaces() {
    let mut metadata = sentencepiece();
    metadata.set("tokenizer.ggml.bos_token_id", 1u32);
    let ids = |metadata: &Metadata, text: &str| tokenizer(metadata).unwrap().encode(text, true).unwrap();
    assert_eq!(ids(&metadata, "a aa"), [1, 5, 5, 4]);
    assert_eq!(tokenizer(&metadata).unwrap().decode(&[5, 5, 4], true), "a aa");
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    metadata.set("tokenizer.ggml.add_bos_token", false);
    assert_eq!(ids(&metadata, "a aa\n"), [4, 5, 4, 7 + 10]);
    assert_eq!(tokenizer(&metadata).unwrap().decode(&[3, 4, 5], true), " a a");
}

#[test]
fn sampling_defaults_are_read() {
    let mut metadata = shape("llama");
    let read = |metadata: &Metadata| {
        let catalog = catalog(metadata, &[EMBEDDING]);
        GgufModel::of(&catalog).unwrap().generation_config().map_err(|error| error.to_string())
    };
    // Without any, llama.cpp's.
    let usual = GenerationConfig {
        temperature: Some(0.8),
        top_k: Some(40),
        top_p: Some(0.95),
        min_p: Some(0.05),
        ..GenerationConfig::default()
    };
    assert_eq!(read(&metadata).unwrap(), usual);
    metadata.set("general.sampling.temp", 0.5f32);
    metadata.set("general.sampling.top_k", MetadataValue::Number(Number::I32(20)));
    let generation = read(&metadata).unwrap();
    assert_eq!((generation.temperature, generation.top_k, generation.top_p), (Some(0.5), Some(20), None));
    metadata.set("general.sampling.top_p", 3f32);
    assert!(read(&metadata).unwrap_err().contains("top_p"));
}

#[test]
fn no_family_takes_what_its_readers_do_not_compute() {
    let of = |architecture: &str, change: &dyn Fn(&mut ModelConfig)| {
        let json = serde_json::json!({"model_type": architecture, "vocab_size": 300, "hidden_size": 32,
            "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2});
        let mut config = ModelConfig::from_json(&json.to_string()).unwrap();
        change(&mut config);
        let description = describe::describe(&config)?;
        let name = description.metadata.text("general.architecture").unwrap().unwrap().to_owned();
        Ok::<_, &'static str>(name)
    };
    for (architecture, family) in [
        ("llama", "llama"),
        ("mistral", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("minicpm", "minicpm"),
        ("granite", "granite"),
    ] {
        assert_eq!(of(architecture, &|_| ()), Ok(family.to_owned()));
    }
    let refused = |architecture, change: &dyn Fn(&mut ModelConfig), part: &str| {
        let error = of(architecture, change).unwrap_err();
        assert!(error.contains(part), "{architecture}: {error} should name {part}");
    };
    let attention = |config: &mut ModelConfig, change: &dyn Fn(&mut crate::blueprint::Attention)| {
        for branch in config.blueprint.layers.iter_mut().flat_map(|layer| &mut layer.branches) {
            match &mut branch.part {
                Part::Attention(attention) => change(attention),
                Part::Dense(dense) => dense.activation = crate::blueprint::Activation::Silu,
                _ => {}
            }
        }
    };
    let norms = NormsOfHeads { over: HeadNorms::EachBefore, epsilon: 1e-6, offset: 0.0 };
    let part = "norms of query and key heads";
    refused("llama", &|config| attention(config, &|attention| attention.norms = Some(norms)), part);
    refused("qwen3", &|config| attention(config, &|attention| attention.norms = None), part);
    refused("qwen2", &|config| config.blueprint.layers[0].branches[0].factor = 0.5, "scaled embeddings");
    refused("minicpm", &|config| attention(config, &|attention| attention.scale = 1.0), "attention scores");
    let gelu = |config: &mut ModelConfig| {
        if let Part::Dense(dense) = &mut config.blueprint.layers[0].branches[1].part {
            dense.activation = crate::blueprint::Activation::Gelu;
        }
    };
    refused("llama", &gelu, "an activation");
}
