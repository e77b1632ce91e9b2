//! What a model's files say, where they say it in other places than usual, or not all the same.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::serve::Server;
use crate::support::{ended, refused, repository, succeeded, text};

/// A copy of the model that ships with the repository.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(repository().join("models/storyteller")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn edit(folder: &TempDir, file: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let path = folder.path().join(file);
    let mut json: Map<String, Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, Value::Object(json).to_string()).unwrap();
}

fn info(folder: &TempDir) -> Value {
    serde_json::from_str(&succeeded(&["info", &text(folder.path()), "--json"])).unwrap()
}

#[test]
fn end_tokens_of_all_files_are_joined() {
    let ends = |generation: Option<Value>, config: Option<Value>, eos: &str, template: &str| {
        let folder = copy();
        match generation {
            Some(ids) => edit(&folder, "generation_config.json", |json| drop(json.insert("eos_token_id".into(), ids))),
            None => fs::remove_file(folder.path().join("generation_config.json")).unwrap(),
        }
        edit(&folder, "config.json", |json| {
            json.remove("eos_token_id");
            json.extend(config.map(|ids| ("eos_token_id".to_owned(), ids)));
        });
        edit(&folder, "tokenizer_config.json", |json| {
            json.insert("eos_token".into(), eos.into());
            json.insert("chat_template".into(), template.into());
        });
        let answer = ["run", &text(folder.path()), "--chat", "--prompt", "Tell me a story.", "-n", "600", "--quiet"]
            .map(str::to_owned);
        let answer = succeeded(&answer.each_ref().map(String::as_str));
        (info(&folder)["eos_token_ids"].clone(), answer)
    };
    let plain = "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}";
    let plain = format!("{plain}{{% if add_generation_prompt %}}<|assistant|>\n{{% endif %}}");
    let marked = plain.replace("content }}\n", "content }}<|end|>\n");
    let (end, both) = ("<|end_of_text|>", json!([1, 5]));
    let shipped = ends(Some(both.clone()), Some(both.clone()), end, &marked);
    assert_eq!(shipped.0, both);
    // The end of a turn is named by one of them, or shown by the template alone.
    assert_eq!(ends(Some(json!(1)), Some(json!([1, 5])), end, &marked), shipped);
    assert_eq!(ends(Some(json!([1])), Some(json!(1)), end, &marked), shipped);
    assert_eq!(ends(None, Some(json!(1)), "<|end|>", &marked), shipped);
    assert_eq!(ends(Some(json!(1)), None, "<|end|>", &plain).0, both);
    // What the class takes for an end where nothing is said is a guess.
    assert_eq!(ends(None, None, "<|end|>", &plain).0, json!([5]));
    assert_eq!(ends(Some(json!(5)), None, end, &plain).0, json!([5, 1]));
}

#[test]
fn a_template_in_a_file_of_its_own_is_enough_and_stays_in_a_store() {
    let folder = copy();
    let mut template = Value::Null;
    edit(&folder, "tokenizer_config.json", |json| template = json.remove("chat_template").unwrap());
    assert_eq!(info(&folder)["chat_template"], false);
    // With the line ends of another system.
    let template = template.as_str().unwrap().replace("\\n", "\r\n");
    fs::write(folder.path().join("chat_template.json"), json!({"chat_template": template}).to_string()).unwrap();
    assert_eq!(info(&folder)["chat_template"], true);
    let packed = folder.path().join("packed.interbed");
    assert_eq!(ended(&["pack", &text(folder.path()), &text(&packed)]).code, Some(0));
    let answer = |model: &str| succeeded(&["run", model, "--chat", "--prompt", "A story!", "-n", "40", "--quiet"]);
    let expected = answer(&text(&repository().join("models/storyteller")));
    assert_eq!((answer(&text(folder.path())), answer(&text(&packed))), (expected.clone(), expected));
}

#[test]
fn tokens_of_the_tokenizers_configuration_count() {
    let folder = copy();
    edit(&folder, "tokenizer_config.json", |json| {
        json["added_tokens_decoder"]["5"]["rstrip"] = true.into();
        json.insert("extra_special_tokens".into(), json!({"tool": "<|tool|>"}));
        json.insert("pad_token".into(), "<|pad|>".into());
    });
    // It has as many tokens as the model; those beyond have no embedding.
    let ended = ended(&["run", &text(folder.path()), "--prompt", "a", "-n", "1"]);
    assert!(ended.code == Some(0) && ended.stderr.contains("tokens beyond are refused"), "{}", ended.stderr);
    refused(&["run", &text(folder.path()), "--prompt", "a <|tool|>", "-n", "1"], &["vocabulary"]);
}

/// The tensors of a file of safetensors.
fn tensors(path: &Path) -> Vec<(String, Value, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let (header, data) = (&bytes[8..8 + header], &bytes[8 + header..]);
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensor = |(name, entry): (String, Value)| {
        let [from, to] = [0, 1].map(|index| entry["data_offsets"][index].as_u64().unwrap() as usize);
        (name, entry, data[from..to].to_vec())
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(tensor).collect()
}

fn write(path: &Path, tensors: &[(String, Value, Vec<u8>)]) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, entry, bytes) in tensors {
        let mut entry = entry.clone();
        entry["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
        header.insert(name.clone(), entry);
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

#[test]
fn a_head_that_differs_is_used_and_a_lone_one_is_the_embedding() {
    const HEAD: &str = "lm_head.weight";
    let original = tensors(&repository().join("models/storyteller/model.safetensors"));
    let embedding = original.iter().find(|(name, ..)| name == "model.embed_tokens.weight").unwrap().clone();
    let with = |tensors: &[(String, Value, Vec<u8>)], tied: Value| {
        let folder = copy();
        write(&folder.path().join("model.safetensors"), tensors);
        edit(&folder, "config.json", |json| drop(json.insert("tie_word_embeddings".into(), tied)));
        folder
    };
    let logits = |folder: &TempDir| succeeded(&["logits", &text(folder.path()), "--tokens", "0,17,5"]);
    let bytes = |folder: &TempDir| info(folder)["weights"]["bytes"].as_u64().unwrap();
    let head = |bytes: Vec<u8>| [&original[..], &[(HEAD.to_owned(), embedding.1.clone(), bytes)]].concat();
    let tied = with(&original, json!(true));
    assert_eq!(info(&tied)["tied_head"], true);

    let same = with(&head(embedding.2.clone()), json!(true));
    assert_eq!((logits(&same), &info(&same)["tied_head"]), (logits(&tied), &json!(true)));
    assert_eq!(bytes(&same), bytes(&tied));
    let twice = bytes(&with(&head(embedding.2.clone()), json!(false)));
    assert!(twice >= bytes(&tied) + embedding.2.len() as u64, "{twice}");

    // Only the last row differs, in which no sample would look.
    let mut changed = embedding.2.clone();
    *changed.last_mut().unwrap() ^= 0x40;
    let (differs, untied) = (with(&head(changed.clone()), json!(true)), with(&head(changed), json!(false)));
    assert_eq!(logits(&differs), logits(&untied));
    assert_ne!(logits(&differs), logits(&tied));
    let (told, untold) = (info(&differs), info(&untied));
    assert_eq!((&told["tied_head"], &told["parameters"]), (&json!(false), &untold["parameters"]));
    assert_eq!((&told["weights"]["bytes"], bytes(&untied)), (&untold["weights"]["bytes"], twice));
    assert!(succeeded(&["info", &text(differs.path())]).contains("differs from the embedding"));
    let ended = ended(&["run", &text(differs.path()), "--prompt", "a", "-n", "1"]);
    assert!(ended.code == Some(0) && ended.stderr.contains("tie_word_embeddings"), "{}", ended.stderr);

    let mut lone = original.clone();
    lone.iter_mut().filter(|(name, ..)| *name == embedding.0).for_each(|(name, ..)| *name = HEAD.into());
    for tie in [json!(true), Value::Null] {
        let folder = with(&lone, tie);
        assert_eq!((logits(&folder), &info(&folder)["tied_head"]), (logits(&tied), &json!(true)));
        assert!(succeeded(&["info", &text(folder.path())]).contains("the embedding too"));
    }
    refused(&["info", &text(with(&lone, json!(false)).path())], &["model.embed_tokens.weight"]);
    // Packed, and streamed, they are the same models.
    for folder in [&differs, &with(&lone, json!(true))] {
        let packed = folder.path().join("packed.interbed");
        assert_eq!(crate::support::ended(&["pack", &text(folder.path()), &text(&packed)]).code, Some(0));
        let of_store = succeeded(&["logits", &text(&packed), "--tokens", "0,17,5"]);
        assert_eq!(of_store, logits(folder));
    }
}

#[test]
fn a_model_that_is_not_to_be_sampled_is_greedy() {
    let folder = copy();
    edit(&folder, "generation_config.json", |json| {
        json.extend([("do_sample".to_owned(), json!(false)), ("temperature".to_owned(), json!(1.9))]);
    });
    let server = Server::of(&text(folder.path()), &["--memory", "512M"]);
    let answer = |more: Value| {
        let mut body = json!({"prompt": "Once upon a time", "max_tokens": 24});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.ask("POST /v1/completions HTTP/1.1", &body.to_string());
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        body["choices"][0]["text"].clone()
    };
    let greedy = answer(json!({"temperature": 0}));
    assert!((1..4).all(|seed| answer(json!({"seed": seed})) == greedy), "{greedy}");
    // Who asks for a temperature gets it.
    assert!((1..9).any(|seed| answer(json!({"seed": seed, "temperature": 1.9})) != greedy), "{greedy}");
}
