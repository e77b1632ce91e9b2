//! Models by name, from a Hub on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use interbed_hub::testing::{COMMIT, FileContent, LocalHub, Mischief};
use tempfile::TempDir;

use crate::support::{Ended, fixture, interbed, succeeded, text, tiny};

const PROMPT: [&str; 7] = ["--prompt", "Once", "-n", "4", "--ignore-eos", "--memory", "256M"];

/// A Hub with some models, and a cache without any.
pub struct Place {
    pub hub: LocalHub,
    pub cache: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let hub = LocalHub::start();
        hub.add_folder("org/tiny", Path::new(tiny()));
        hub.add("org/tiny", "model-Q8_0.gguf", FileContent::File(gguf()), true);
        hub.add("org/tiny-GGUF", "sub/tiny-Q8_0.gguf", FileContent::File(gguf()), true);
        Self { hub, cache: tempfile::tempdir().expect("a folder") }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = interbed(args);
        command.env("HF_ENDPOINT", self.hub.endpoint()).env("HF_HUB_CACHE", self.cache.path());
        command
    }

    fn ended(&self, args: &[&str]) -> Ended {
        self.command(args).output().expect("the binary starts").into()
    }

    pub fn succeeded(&self, args: &[&str]) -> String {
        let ended = self.ended(args);
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
        ended.stdout
    }

    fn refused(&self, args: &[&str], parts: &[&str]) -> String {
        let Ended { code, stdout, stderr } = self.ended(args);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}: {stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{args:?} should name {part:?}:\n{stderr}");
        }
        stderr
    }

    fn model(&self) -> PathBuf {
        self.cache.path().join("models--org--tiny")
    }

    fn run(&self, name: &str) -> Ended {
        self.ended(&[&["run", name][..], &PROMPT].concat())
    }
}

/// The small model as a GGUF file.
fn gguf() -> PathBuf {
    static GGUF: OnceLock<TempDir> = OnceLock::new();
    let folder = GGUF.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        succeeded(&["synth", "--like", "tiny", "--dtype", "q8_0", &text(&folder.path().join("q8"))]);
        folder
    });
    folder.path().join("q8/model.gguf")
}

#[test]
fn a_name_is_fetched_once_and_then_runs_like_a_path() {
    let place = Place::new();
    let expect = succeeded(&[&["run", tiny()][..], &PROMPT].concat());
    let first = place.run("org/tiny");
    assert_eq!((first.code, first.stdout.as_str()), (Some(0), expect.as_str()), "{}", first.stderr);
    assert!(
        first.stderr.contains("org/tiny at 01234567: ") && first.stderr.contains("to be fetched"),
        "{}",
        first.stderr
    );
    assert!(first.stderr.contains("fetched ") && first.stderr.contains("as its digest says"), "{}", first.stderr);
    assert!(!place.hub.seen().iter().any(|seen| seen.target.contains("gguf")), "safetensors are preferred");
    place.hub.forget();
    let again = place.run("hf.co/org/tiny@main");
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), expect.as_str()), "{}", again.stderr);
    assert!(place.hub.seen().iter().all(|seen| seen.target.starts_with("/api/")), "{:?}", place.hub.seen());

    // Offline, nothing is asked.
    place.hub.forget();
    for args in [&["run", "org/tiny", "--offline"][..], &["run", "org/tiny", "--revision", "main", "--offline"]] {
        assert_eq!(place.succeeded(&[args, &PROMPT].concat()), expect);
    }
    let args = [&["run", "org/tiny"][..], &PROMPT].concat();
    let offline = place.command(&args).env("HF_HUB_OFFLINE", "1").output().expect("the binary starts");
    assert!(offline.status.success());
    assert!(place.hub.seen().is_empty());
    place.refused(&["info", "org/other", "--offline"], &["org/other: it is not in the cache", "hint: fetch it once"]);
    place.refused(&["info", "org/tiny@v1", "--offline"], &["its revision v1 is not in the cache"]);
    place.refused(&["info", tiny(), "--revision", "v1"], &["--revision is for models by name"]);

    let listed = place.succeeded(&["models"]);
    assert!(
        listed.contains("org/tiny") && listed.contains("01234567  main") && listed.contains("interbed rm"),
        "{listed}"
    );
    let json: serde_json::Value = serde_json::from_str(&place.succeeded(&["models", "--json"])).unwrap();
    let snapshot = place.model().join("snapshots").join(COMMIT);
    assert_eq!(json["models"][0]["path"], text(&snapshot));
    // The folder's own name is the commit.
    assert!(place.succeeded(&["info", "org/tiny", "--json"]).contains("\"tiny\""));

    let verified = place.succeeded(&["verify", "org/tiny"]);
    assert!(verified.contains("SHA-256 is that of"), "{verified}");
    let blob = fs::canonicalize(snapshot.join("model.safetensors")).unwrap();
    let mut bytes = fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&blob, bytes).unwrap();
    let damaged = place.ended(&["verify", "org/tiny"]);
    assert_eq!(damaged.code, Some(2));
    assert!(damaged.stderr.contains("readlink -f") && damaged.stdout.contains("damaged: model.safetensors"));
    // All that is damaged is told, small files too.
    let config = fs::canonicalize(snapshot.join("config.json")).unwrap();
    fs::write(&config, format!("{} ", fs::read_to_string(&config).unwrap())).unwrap();
    let damaged = place.ended(&["verify", "org/tiny"]);
    assert_eq!(damaged.code, Some(2));
    for part in ["model.safetensors", "config.json"] {
        assert!(damaged.stdout.contains(&format!("damaged: {part}")), "{part} in {}", damaged.stdout);
    }
}

#[test]
fn gguf_files_are_chosen_by_their_tags() {
    let place = Place::new();
    let expect = succeeded(&[&["run", &text(&gguf())][..], &PROMPT].concat());
    for name in ["org/tiny:q8_0", "org/tiny-GGUF", "huggingface.co/org/tiny-GGUF:Q8_0", "org/tiny-GGUF:tiny-Q8_0.gguf"]
    {
        let ended = place.run(name);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), expect.as_str()), "{name}: {}", ended.stderr);
    }
    // llama.cpp's spelling.
    let ended = place.ended(&[&["run", "-hf", "org/tiny-GGUF:Q8_0"][..], &PROMPT].concat());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), expect.as_str()), "{}", ended.stderr);
    place.refused(&["info", "org/tiny-GGUF:Q3_K_S"], &["no GGUF file for \"Q3_K_S\"; it has Q8_0", "hint: "]);
    let plan = place.succeeded(&["plan", "org/tiny-GGUF", "--disk-bw", "1G", "--host-bw", "1G", "--flops", "1T"]);
    assert!(plan.contains("tiny"), "{plan}");
    let store = place.cache.path().join("tiny.interbed");
    place.succeeded(&["pack", "org/tiny-GGUF", &text(&store)]);
    assert!(store.is_file());
}

#[test]
fn what_cannot_run_is_refused_before_its_weights_are_fetched() {
    let place = Place::new();
    let weights = fs::metadata(Path::new(tiny()).join("model.safetensors")).unwrap().len();
    let header = {
        let bytes = fs::read(Path::new(tiny()).join("model.safetensors")).unwrap();
        8 + u64::from_le_bytes(*bytes.first_chunk().unwrap())
    };
    assert!(weights > 2 * header);
    let refused_at_once = |args: &[&str], parts: &[&str], most: u64| {
        place.hub.forget();
        let begun = Instant::now();
        place.refused(args, parts);
        assert!(begun.elapsed() < Duration::from_secs(5), "{args:?}: {:?}", begun.elapsed());
        assert!(place.hub.sent("/blob/") <= most, "{args:?}: {} bytes", place.hub.sent("/blob/"));
    };
    refused_at_once(&["run", "org/tiny", "--prompt", "x", "--memory", "10M"], &["cannot work", "or more"], header);
    refused_at_once(&["serve", "org/tiny", "--port", "0", "--memory", "10M"], &["cannot work"], header);
    // Another architecture.
    place.hub.add("org/tiny", "config.json", FileContent::Bytes(br#"{"model_type": "rwkv"}"#.to_vec()), false);
    refused_at_once(&["run", "org/tiny", "--prompt", "x"], &["rwkv", "supported architecture"], 0);
    // A disk that is too small.
    let place = Place::new();
    place.hub.does(Mischief { lengthens: Some(("model.safetensors".into(), 1 << 49)), ..Mischief::default() });
    place.refused(&["run", "org/tiny", "--prompt", "x"], &["bytes are still to be fetched", "free some room"]);
    assert_eq!(place.hub.sent("/blob/") + place.hub.sent("/resolve/"), 0);
    // Info and plan read headers alone.
    let place = Place::new();
    let info = place.succeeded(&["info", "org/tiny"]);
    assert!(info.contains("It needs --memory"), "{info}");
    // The name alone is that of a shape that Interbed knows.
    let plan = ["plan", "org/tiny@main", "--disk-bw", "1G", "--host-bw", "1G", "--flops", "1T", "--memory", "1G"];
    place.succeeded(&plan);
    assert_eq!(place.hub.sent("/blob/"), 2 * header);
}

#[test]
fn a_download_that_was_killed_goes_on_where_it_was() {
    let place = Place::new();
    let expect = succeeded(&[&["run", tiny()][..], &PROMPT].concat());
    let size = fs::metadata(Path::new(tiny()).join("model.safetensors")).unwrap().len();
    place.hub.does(Mischief { bytes_per_second: Some(size / 2), ..Mischief::default() });
    let args = [&["run", "org/tiny"][..], &PROMPT].concat();
    let mut child =
        place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let digest = place.hub.digest("org/tiny", "model.safetensors");
    let blobs = place.cache.path().join("models--org--tiny/blobs");
    let incomplete = blobs.join(format!("{digest}.incomplete"));
    let begun = Instant::now();
    let have = loop {
        let have = fs::metadata(&incomplete).map_or(0, |found| found.len());
        if have > size / 8 {
            break have;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing comes");
        std::thread::sleep(Duration::from_millis(5));
    };
    child.kill().expect("SIGKILL");
    child.wait().expect("it ends");
    let kept = fs::metadata(&incomplete).expect("it is kept").len();
    assert!(kept >= have && kept < size, "{kept} of {size}");
    place.hub.does(Mischief::default());
    let listed = place.succeeded(&["models"]);
    assert!(listed.contains("were not fetched to the end"), "{listed}");
    place.hub.forget();
    let again = place.run("org/tiny");
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), expect.as_str()), "{}", again.stderr);
    let first = place.hub.seen().into_iter().filter(|seen| seen.on_storage && seen.sent > 0).map(|seen| seen.range);
    assert!(first.flatten().any(|range| range.starts_with(&format!("bytes={kept}-"))), "{:?}", place.hub.seen());
    let headers = place.hub.sent("/blob/") - (size - kept);
    assert!(headers < 64 << 10, "{headers} bytes beside what was missing");
}

#[test]
fn permissions_and_networks_that_lack_are_told() {
    let place = Place::new();
    let token = Some("hf_right".to_owned());
    place.hub.does(Mischief { token, error_code: "GatedRepo", ..Mischief::default() });
    let page = format!("{}/org/tiny", place.hub.endpoint());
    place.refused(&["info", "org/tiny"], &["401", "GatedRepo", "licence", "HF_TOKEN", &page]);
    let args = ["info", "org/tiny"];
    let right = place.command(&args).env("HF_TOKEN", "hf_right").output().expect("the binary starts");
    assert!(right.status.success());
    assert!(place.hub.seen().iter().all(|seen| !seen.on_storage || seen.authorization.is_none()));
    place.refused(&["info", "org/none"], &["has no model org/none", "hint: look for the name"]);
    place.refused(&["info", "org/tiny@v9"], &["no revision \"v9\"", "there are main, refs/pr/1, v1"]);
    let other = TempDir::new().expect("a folder");
    let lost = interbed(&args).env("HF_HUB_CACHE", other.path()).output().expect("the binary starts");
    let stderr = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert_eq!(lost.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot be reached") && stderr.contains("--offline"), "{stderr}");
    // A folder of that name wins.
    let folder = TempDir::new().expect("a folder");
    fs::create_dir(folder.path().join("org")).expect("a folder");
    std::os::unix::fs::symlink(fixture("qwen2"), folder.path().join("org/tiny")).expect("a link");
    place.hub.forget();
    let here = place.command(&["info", "org/tiny"]).current_dir(folder.path()).output().expect("the binary starts");
    assert!(String::from_utf8_lossy(&here.stdout).contains("Qwen2"), "{here:?}");
    assert!(place.hub.seen().is_empty());
}

#[test]
fn models_are_pulled_listed_and_removed_by_short_names_too() {
    let place = Place::new();
    let name = "HuggingFaceTB/SmolLM2-135M-Instruct";
    place.hub.add_folder(name, Path::new(tiny()));
    let pulled = place.ended(&["pull", "smollm2:135m"]);
    assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
    assert!(pulled.stderr.contains(&format!("smollm2:135m is {name}")), "{}", pulled.stderr);
    let path = PathBuf::from(pulled.stdout.trim_end());
    assert!(path.join("model.safetensors").exists() && path.starts_with(place.cache.path()), "{path:?}");
    place.succeeded(&["pull", "org/tiny"]);
    let listed = place.succeeded(&["list"]);
    assert!(listed.contains(name) && listed.contains("org/tiny"), "{listed}");
    let run = place.run("smollm2:135m");
    assert_eq!(run.stdout, succeeded(&[&["run", tiny()][..], &PROMPT].concat()), "{}", run.stderr);
    assert!(place.succeeded(&["show", "smollm2:135m", "--offline"]).contains("It needs --memory"));

    // The last part of a name that is here is answered with the whole.
    for args in [&["run", "SmolLM2-135M-Instruct", "-p", "hi"][..], &["pull", "smollm2-135m-instruct"]] {
        place.refused(args, &["is no short name", &format!("the cache has {name}")]);
    }

    // One name that is not there, and nothing goes.
    place.refused(&["rm", "smollm2:135m", "org/other"], &["nothing of org/other"]);
    place.refused(&["rm", "org/tiny@main"], &["interbed rm org/tiny"]);
    place.refused(&["rm", tiny()], &["is no model's name", "rm -r"]);
    assert!(path.exists() && place.model().exists());
    let removed = place.ended(&["rm", "smollm2:135m"]);
    assert!(removed.code == Some(0) && removed.stderr.contains(&format!("removed {name}, ")), "{removed:?}");
    assert!(!path.exists() && place.model().exists());
    place.refused(&["info", "smollm2:135m", "--offline"], &["it is not in the cache"]);
    let ended = place.ended(&["pull", "smollm2:9b"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("smollm2:135m"), "{ended:?}");
}
