//! Tests the choice of files.

use std::collections::BTreeSet;

use interbed_hub::{ChoiceProblem, FileChoice, FileWish, choose, shards_of};

fn of(paths: &[&str], tag: Option<&str>) -> Result<FileChoice, ChoiceProblem> {
    choose(paths, FileWish { tag, shards: None })
}

fn weights(paths: &[&str], tag: Option<&str>) -> Vec<String> {
    of(paths, tag).unwrap().weights
}

#[test]
fn safetensors_come_first_with_what_lies_beside_them() {
    let paths = [
        ".gitattributes",
        "README.md",
        "config.json",
        "consolidated.00.pth",
        "consolidated.safetensors",
        "generation_config.json",
        "model-Q4_K_M.gguf",
        "model.safetensors",
        "onnx/model.onnx",
        "original/params.json",
        "pytorch_model.bin",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vae/model.safetensors",
        "1_Pooling/config.json",
        "chat_template.jinja",
        "training_args.bin",
    ];
    let choice = of(&paths, None).unwrap();
    assert_eq!((choice.weights, choice.is_gguf), (vec!["model.safetensors".to_owned()], false));
    let small: BTreeSet<&str> = choice.small.iter().map(String::as_str).collect();
    let expect = [
        "1_Pooling/config.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
    ];
    assert_eq!(small, expect.into());
    // A tag asks for GGUF.
    assert_eq!(weights(&paths, Some("q4_k_m")), ["model-Q4_K_M.gguf"]);
}

#[test]
fn an_index_says_which_shards_are_taken() {
    let paths = ["config.json", "model.safetensors.index.json", "a.safetensors", "b.safetensors", "extra.safetensors"];
    let choice = of(&paths, None).unwrap();
    assert_eq!(choice.unread_index.as_deref(), Some("model.safetensors.index.json"));
    let shards =
        shards_of(br#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"}}"#).unwrap();
    let wish = FileWish { tag: None, shards: Some(&shards) };
    assert_eq!(choose(&paths, wish).unwrap().weights, ["a.safetensors", "b.safetensors"]);
    let missing = choose(&paths[..3], wish).unwrap_err();
    assert!(missing.to_string().contains("b.safetensors is missing, which model.safetensors.index.json names"));
    for bad in [&b"{"[..], br#"{"weight_map": {"x": "../a.safetensors"}}"#, br#"{"weight_map": {"x": "/a"}}"#, b"[]"] {
        assert!(shards_of(bad).is_err());
    }
}

#[test]
fn without_an_index_all_in_the_root_are_taken() {
    let paths = ["b.safetensors", "a.safetensors", "consolidated.safetensors", "sub/c.safetensors"];
    assert_eq!(weights(&paths, None), ["a.safetensors", "b.safetensors"]);
}

#[test]
fn of_gguf_files_the_usual_one_or_that_of_the_tag() {
    let all = [
        "m-IQ4_0.gguf",
        "m-Q2_K.gguf",
        "m-Q4_0.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "mmproj-F16.gguf",
        "m-imatrix.gguf",
        "mtp-m-Q4_K_M.gguf",
        "UD/m-UD-Q4_K_XL.gguf",
    ];
    assert_eq!(weights(&all, None), ["m-Q4_K_M.gguf"]);
    assert_eq!(weights(&all[..2], None), ["m-IQ4_0.gguf"]);
    assert_eq!(weights(&["m-Q2_K.gguf", "m-Q8_0.gguf"], None), ["m-Q8_0.gguf"]);
    // Case is ignored; a whole word is preferred to a part of one; a part matches if there is nothing else.
    assert_eq!(weights(&all, Some("q4_0")), ["m-Q4_0.gguf"]);
    assert_eq!(weights(&all[..2], Some("Q4_0")), ["m-IQ4_0.gguf"]);
    assert_eq!(weights(&all, Some("ud-q4_k_xl")), ["UD/m-UD-Q4_K_XL.gguf"]);
    assert_eq!(weights(&all, Some("m-Q8_0.gguf")), ["m-Q8_0.gguf"]);
    assert_eq!(weights(&all, Some("UD/m-UD-Q4_K_XL.gguf")), ["UD/m-UD-Q4_K_XL.gguf"]);
    let unknown = of(&all, Some("Q5_K_M")).unwrap_err().to_string();
    assert!(
        unknown.contains("no GGUF file for \"Q5_K_M\"") && unknown.contains("IQ4_0, Q2_K, Q4_0, Q4_K_M"),
        "{unknown}"
    );
    // A GGUF file needs no other files.
    assert_eq!(of(&["config.json", "m-Q8_0.gguf"], None).unwrap().small, [""; 0]);
}

#[test]
fn gguf_files_that_llama_cpp_leaves_out_are_left_out() {
    for part in ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"] {
        for name in [format!("{part}m-q4_k_m.gguf"), format!("a-{part}q4_k_m.gguf"), format!("sub/a-{part}q4_k_m.gguf")]
        {
            assert_eq!(weights(&[&name, "m-q4_k_m.gguf"], None), ["m-q4_k_m.gguf"], "{name}");
        }
        // Names of folders, and the case of letters, do not matter.
        let others = [format!("a-{part}/m-q4_k_m.gguf"), format!("a-{}q4_k_m.gguf", part.to_uppercase())];
        others.iter().for_each(|name| assert_eq!(weights(&[name], None), [name.as_str()]));
    }
}

#[test]
fn all_parts_of_a_split_file_are_taken() {
    let part = |number| format!("Q4_K_M/m-Q4_K_M-{number:05}-of-00003.gguf");
    let parts: Vec<String> = (1..=3).map(part).collect();
    let paths: Vec<&str> = parts.iter().map(String::as_str).rev().collect();
    assert_eq!(weights(&paths, None), parts);
    assert_eq!(weights(&paths, Some("Q4_K_M")), parts);
    assert_eq!(weights(&paths, Some("m-Q4_K_M-00002-of-00003.gguf")), parts);
    let missing = of(&paths[..2], Some("Q4_K_M")).unwrap_err();
    assert!(matches!(missing, ChoiceProblem::NoSuchTag { .. }), "the first part is what has a tag: {missing}");
    let missing = of(&[paths[0], paths[2]], None).unwrap_err().to_string();
    assert!(missing.contains("00002-of-00003.gguf is missing"), "{missing}");
}

#[test]
fn what_has_no_weights_is_told_so() {
    let pickled = of(&["config.json", "pytorch_model.bin"], None).unwrap_err().to_string();
    assert!(pickled.contains("pickled"), "{pickled}");
    let none = of(&["README.md"], None).unwrap_err().to_string();
    assert!(none.contains("neither safetensors nor GGUF") && !none.contains("pickled"), "{none}");
    let only = of(&["model.safetensors"], Some("Q8_0")).unwrap_err().to_string();
    assert!(only.contains("nor for any other"), "{only}");
}
