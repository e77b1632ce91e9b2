//! `interbed pack` and `interbed verify`: a packed model is the model.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use interbed_kernels::DType;
use interbed_weights::{Catalog, TensorMeta, write_model};
use serde_json::Value;

use crate::support::{Ended, ended, interbed, refused, repository, succeeded, text, tiny};

fn storyteller() -> String {
    text(&repository().join("models/storyteller"))
}

fn told(model: &str) -> String {
    succeeded(&["run", model, "--prompt", "Once upon a time", "--max-tokens", "48"])
}

#[test]
fn a_packed_model_tells_the_same_story() {
    let folder = tempfile::tempdir().unwrap();
    let out = text(&folder.path().join("out.interbed"));
    let Ended { code, stdout, stderr } = ended(&["pack", &storyteller(), &out]);
    assert_eq!((code, stdout.trim_end()), (Some(0), out.as_str()), "{stderr}");
    for part in ["layers, attention", "embedding", "GB/s", "found equal", &format!("next: interbed run {out}")] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert_eq!(told(&out), told(&storyteller()));

    let info = |model: &str| serde_json::from_str::<Value>(&succeeded(&["info", model, "--json"])).unwrap();
    let (packed, source) = (info(&out), info(&storyteller()));
    assert_eq!((&packed["format"], &packed["name"]), (&"interbed".into(), &"out".into()));
    for key in ["parameters", "tokenizer", "chat_template", "eos_token_ids", "memory"] {
        // The process itself is a part of the least memory, and not always of the same size.
        if key != "memory" {
            assert_eq!(packed[key], source[key], "{key}");
        }
    }
    // Its rows are short, of 192 and 512 numbers, so that their tables weigh.
    let [coded, plain] = [&packed, &source].map(|info| info["weights"]["bytes"].as_u64().unwrap());
    assert!((0.7..0.78).contains(&(coded as f64 / plain as f64)), "{coded} of {plain}");
    assert!(succeeded(&["info", &out]).contains("coded BF16"));
    assert_eq!(succeeded(&["info", &out]).matches("1 file").count(), 1);
    let as_is = text(&folder.path().join("as-is.interbed"));
    assert_eq!(ended(&["pack", &storyteller(), &as_is, "--as-is"]).code, Some(0));
    assert_eq!(told(&as_is), told(&storyteller()));
    assert_eq!(info(&as_is)["weights"]["bytes"], source["weights"]["bytes"]);

    let checked: Value = serde_json::from_str(&succeeded(&["verify", &out, "--json"])).unwrap();
    assert_eq!((&checked["damaged"], &checked["format"]), (&0.into(), &"packed store".into()));
    assert!(succeeded(&["verify", &out]).contains("XXH3-128"));

    refused(&["pack", &storyteller(), &out], &["exists already", "--force"]);
    refused(&["pack", &out, &out, "--force"], &["the model itself"]);
    refused(&["pack", &storyteller(), &text(folder.path())], &["is a directory"]);
    assert_eq!(ended(&["pack", &storyteller(), &out, "--force"]).code, Some(0));
}

#[test]
fn a_packed_gguf_model_answers_the_same() {
    for dtype in ["q8_0", "bf16"] {
        let folder = tempfile::tempdir().unwrap();
        let source = text(&folder.path().join("source"));
        succeeded(&["synth", "--like", "tiny", "--gguf", "--dtype", dtype, &source]);
        let out = text(&folder.path().join("packed"));
        succeeded(&["pack", &source, &out]);
        let run = |model: &str| succeeded(&["run", model, "--chat", "--prompt", "Hello", "-n", "8", "--ignore-eos"]);
        assert_eq!(run(&out), run(&source), "{dtype}");
        assert_eq!(succeeded(&["info", &out]).contains("coded BF16"), dtype == "bf16");
        assert!(succeeded(&["verify", &source]).contains("no checksum"));
    }
}

/// Coding makes bf16 smaller, but not less of the model.
#[test]
fn what_keys_and_values_are_kept_in_does_not_depend_on_coding() {
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 2176, "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": true,
        "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"});
    let [shape, source, out] = ["shape.json", "source", "out.interbed"].map(|name| folder.path().join(name));
    fs::write(&shape, config.to_string()).unwrap();
    succeeded(&["synth", "--config", &text(&shape), &text(&source)]);
    // The embedding in f32: less than the rest in bf16, and more than that when it is coded.
    let catalog = Catalog::open(&source).unwrap();
    let tensors: Vec<TensorMeta> = catalog
        .tensors()
        .map(|(name, entry)| {
            let dtype = if name.contains("embed") { DType::F32 } else { DType::BF16 };
            TensorMeta { name: name.into(), dtype, shape: entry.shape.clone() }
        })
        .collect();
    let mixed = folder.path().join("mixed");
    fs::create_dir(&mixed).unwrap();
    write_model(&mixed, &tensors, 1 << 30, &mut |index, sink| {
        let entry = catalog.get(&tensors[index].name).unwrap();
        let mut bytes = vec![0; entry.bytes as usize];
        catalog.files()[entry.file].read_exact_at(&mut bytes, entry.offset).unwrap();
        if tensors[index].dtype == DType::F32 {
            bytes = bytes.chunks(2).flat_map(|bits| [0, 0, bits[0], bits[1]]).collect();
        }
        sink(&bytes)
    })
    .unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(source.join(name), mixed.join(name)).unwrap();
    }
    succeeded(&["pack", &text(&mixed), &text(&out)]);
    let info = |model: &Path| serde_json::from_str::<Value>(&succeeded(&["info", &text(model), "--json"])).unwrap();
    let [source, packed] = [info(&mixed), info(&out)];
    let types = &packed["weights"]["types"];
    assert!(types["F32"].as_u64() > types["coded BF16"].as_u64(), "{types}");
    assert_eq!(packed["memory"]["kv_dtype"], source["memory"]["kv_dtype"]);
    let tell = |model: &Path| succeeded(&["run", &text(model), "--prompt", "Hello", "-n", "8", "--ignore-eos"]);
    assert_eq!(tell(&out), tell(&mixed));
}

#[test]
fn damage_is_named_and_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.interbed");
    let path = text(&out);
    succeeded(&["pack", tiny(), &path]);
    let whole = fs::read(&out).unwrap();
    let checked: Value = serde_json::from_str(&succeeded(&["verify", &path, "--json"])).unwrap();
    let parts = checked["parts"].as_array().unwrap();
    let group = parts.iter().find(|part| part["name"] == "layer 1, ffn").unwrap();
    let flip = |at: u64| {
        let mut bytes = whole.clone();
        bytes[at as usize] ^= 1;
        fs::write(&out, bytes).unwrap();
    };
    flip(group["offset"].as_u64().unwrap() + 7);
    let Ended { code, stdout, stderr } = ended(&["verify", &path]);
    assert_eq!(code, Some(2), "{stderr}");
    for part in ["damaged: layer 1, ffn", &group["offset"].to_string(), "model.layers.1.mlp.gate_proj.weight"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(stderr.contains("1 of ") && stderr.contains("hint: "), "{stderr}");

    flip(5000);
    refused(&["verify", &path], &["header or manifest is damaged", "pack the model again"]);
    refused(&["run", &path, "--prompt", "x"], &["header or manifest is damaged"]);
    flip(8);
    fs::write(&out, [&whole[..8], &3u32.to_le_bytes(), &whole[12..]].concat()).unwrap();
    refused(&["run", &path, "--prompt", "x"], &["version 3", "update Interbed"]);
    fs::write(&out, &whole[..whole.len() / 2]).unwrap();
    refused(&["verify", &path], &["out.interbed", "truncated"]);
    // The tokenizer lies behind the first pages.
    let tokenizer = parts.iter().find(|part| part["name"] == "tokenizer.json").unwrap();
    flip(tokenizer["offset"].as_u64().unwrap());
    refused(&["run", &path, "--prompt", "x"], &["tokenizer.json", "is damaged"]);
}

/// Waits until there is a file of that many bytes that `seen` says yes to; a minute at most.
fn wait_for(path: &Path, seen: impl Fn(&File) -> bool) -> bool {
    for _ in 0..6000 {
        if File::open(path).is_ok_and(|file| seen(&file)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn ctrl_c_keeps_what_was_written_and_gives_it_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let source = text(&folder.path().join("source"));
    // Large enough to be caught at work, and small enough to be made in a moment.
    succeeded(&["synth", "--like", "llama-3.2-1b", "--layers", "1", &source]);
    let out = folder.path().join("out.interbed");
    let path = text(&out);
    let pack = ["pack", &source, &path, "--as-is"];
    let mut child = interbed(&pack).stderr(Stdio::piped()).spawn().unwrap();
    let partial = folder.path().join(".out.interbed.partial");
    let begun = |mut file: &File| {
        let mut magic = [0; 8];
        file.read_exact(&mut magic).is_ok() && &magic == b"\x89INTPART"
    };
    assert!(wait_for(&partial, begun), "it has begun");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let code = child.wait().unwrap().code();
    // It may have been quicker.
    if code != Some(0) {
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(code, Some(130), "{stderr}");
        assert!(stderr.contains(" --as-is` goes on from here"), "{stderr}");
        assert!(!out.exists() && partial.exists());
        refused(&["info", &text(&partial)], &["interrupted", "interbed pack"]);
        succeeded(&pack);
    }
    assert!(!partial.exists());
    succeeded(&["verify", &path]);
}

#[test]
fn a_raw_device_is_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&disk).output();
    let device = match made {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap().trim().to_owned(),
        // Only root may make one.
        other => return eprintln!("skipped: no loop device: {other:?}"),
    };
    let detach = Detach(device.clone());
    succeeded(&["pack", &storyteller(), &device]);
    assert_eq!(told(&device), told(&storyteller()));
    let info: Value = serde_json::from_str(&succeeded(&["info", &device, "--json"])).unwrap();
    assert_eq!(info["name"], "storyteller", "a device is not called by its bus");
    succeeded(&["verify", &device]);
    fs::write(&device, vec![b'x'; 4096]).unwrap();
    refused(&["pack", &storyteller(), &device], &["not known", "--force"]);
    assert_eq!(ended(&["pack", &storyteller(), &device, "--force"]).code, Some(0));
    succeeded(&["verify", &device]);
    drop(detach);
}

struct Detach(String);

impl Drop for Detach {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
