//! GGUF files, given as they are or by their directory.

use std::fs;

use serde_json::Value;

use crate::support::{refused, repository, succeeded, text, tiny};

#[test]
fn a_quantised_file_runs_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let out = text(&folder.path().join("small"));
    assert_eq!(succeeded(&["synth", "--like", "tiny", "--dtype", "q8_0", &out]).trim_end(), out);
    let names: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["model.gguf"], "one file is the whole model");
    let file = format!("{out}/model.gguf");
    let run = |model: &str| succeeded(&["run", model, "--raw", "--prompt", "the other", "-n", "6", "--ignore-eos"]);
    let answer = run(&file);
    assert!(answer.starts_with("the other") && answer.len() > "the other\n".len(), "{answer:?}");
    assert_eq!(run(&out), answer);
    succeeded(&["run", &file, "--chat", "--prompt", "Hello", "-n", "2"]);

    let info: Value = serde_json::from_str(&succeeded(&["info", &file, "--json"])).unwrap();
    assert_eq!((&info["format"], &info["name"]), (&"gguf".into(), &"model".into()));
    assert_eq!((&info["weights"]["dtype"], &info["chat_template"]), (&"Q8_0".into(), &true.into()));
    let types = info["weights"]["types"].as_object().unwrap();
    let bytes: u64 = types.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(types.len(), 2, "{types:?}");
    assert!(types["Q8_0"].as_u64() > types["F32"].as_u64());
    // Loaded bytes are rounded up to whole pages.
    assert!(bytes <= info["weights"]["bytes"].as_u64().unwrap());
    assert_eq!(info["memory"]["kv_dtype"], "F16");
    let table = succeeded(&["info", &file]);
    assert!(table.contains("Q8_0 (") && table.contains("F32 ("), "{table}");

    // As in a Hub's cache, where files are links to what is named by its hash.
    #[cfg(unix)]
    {
        let link = folder.path().join("storyteller-q8_0.gguf");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let info: Value = serde_json::from_str(&succeeded(&["info", &text(&link), "--json"])).unwrap();
        assert_eq!(info["name"], "storyteller-q8_0");
    }

    // An unknown tokenizer does not keep the rest from being reported.
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(5).position(|window| window == b"gpt-2").unwrap();
    bytes[at + 4] = b'9';
    fs::write(&file, bytes).unwrap();
    let table = succeeded(&["info", &file]);
    assert!(table.contains("gpt-9") && table.contains("cannot be run or served"), "{table}");
    refused(&["run", &file, "--prompt", "x"], &["gpt-9", "Hugging Face directory"]);
}

#[test]
fn parts_are_found_from_any_of_them() {
    let fixtures = repository().join("crates/interbed-model/tests/fixtures/gguf");
    for part in ["llama_f16-00001-of-00003.gguf", "llama_f16-00003-of-00003.gguf"] {
        let info = succeeded(&["info", &text(&fixtures.join(part))]);
        assert!(info.contains("3 files") && info.contains("tokenizer.ggml.model is missing"), "{info}");
        refused(&["run", &text(&fixtures.join(part)), "--prompt", "x"], &["tokenizer.ggml.model"]);
    }
    refused(&["info", &text(&fixtures)], &["GGUF models", "give the file"]);
    let logits = succeeded(&["logits", &text(&fixtures.join("qwen3.gguf")), "--tokens", "1,2,3"]);
    assert_eq!(serde_json::from_str::<Value>(&logits).unwrap()["logits"].as_array().unwrap().len(), 3);
}

#[test]
fn files_that_are_none_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let whole = fs::read(repository().join("crates/interbed-model/tests/fixtures/gguf/qwen3.gguf")).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    refused(&["info", &text(&path)], &["model.gguf", "truncated", "fetch it again"]);
    refused(&["info", &text(folder.path())], &["model.gguf", "truncated"]);
    fs::write(&path, "<html>not found</html>").unwrap();
    refused(&["info", &text(&path)], &["no GGUF file"]);
    fs::write(&path, "").unwrap();
    refused(&["info", &text(&path)], &["model.gguf"]);
    refused(&["info", &format!("{}/model.safetensors", tiny())], &["no GGUF file"]);
}
