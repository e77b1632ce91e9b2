//! Mixtures of experts, in memory and beyond it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::serve::Server;
use crate::support::{Ended, interbed, refused, succeeded, text, tiny};

/// Whom the progress of reading a trace does not concern.
struct Unwatched;

impl interbed_plan::Progress for Unwatched {
    fn begin_steps(&mut self, _what: &'static str, _total: u64) {}
    fn begin_bytes(&mut self, _what: &'static str, _total: u64) {}
    fn advance(&mut self, _by: u64) {}
    fn end(&mut self) {}
}

/// A mixture of a few MiB: three layers of experts, of which a token goes through 3, and a dense one first.
pub fn mixture(dir: &Path, experts: usize) -> String {
    let config = json!({
        "model_type": "glm4_moe", "vocab_size": 600, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "moe_intermediate_size": 64, "n_routed_experts": experts, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false,
    });
    fs::create_dir_all(dir).unwrap();
    let file = dir.join("shape.json");
    fs::write(&file, config.to_string()).unwrap();
    let out = dir.join("model").display().to_string();
    let file = file.display().to_string();
    succeeded(&["synth", "--config", &file, "--dtype", "f32", "--router-skew", "0.4", &out]);
    out
}

#[test]
fn a_mixture_says_the_same_in_any_memory_and_its_routing_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let model = mixture(dir.path(), 16);
    let info: Value = serde_json::from_str(&succeeded(&["info", &model, "--json"])).unwrap();
    assert_eq!(info["experts"]["each_layer"], 16);
    assert_eq!(info["experts"]["layers"], 3);
    let slab = 3 * 64 * 128 * 4;
    assert_eq!(info["experts"]["bytes"], slab * 16 * 3);
    assert_eq!(info["experts"]["token_bytes"], slab * 3 * 3);
    assert!(info["active_parameters"].as_u64() < info["parameters"].as_u64());
    let least = info["memory"]["least_bytes"].as_u64().unwrap().div_ceil(1 << 20);
    let said = |memory: &str, trace: &str| {
        let trace = dir.path().join(trace).display().to_string();
        let args =
            ["run", &model, "--raw", "--prompt", "what goes where", "-n", "24", "--temperature", "1.5", "--seed", "3"];
        let text = succeeded(&[&args[..], &["--memory", memory, "--record-routing", &trace]].concat());
        (text, fs::read_to_string(trace).unwrap())
    };
    let (want, in_memory) = said("1G", "in-memory.csv");
    let (got, streamed) = said(&format!("{least}M"), "streamed.csv");
    assert_eq!(got, want);
    let logits = |memory: &str| succeeded(&["logits", &model, "--tokens", "5,77,300", "--memory", memory]);
    assert_eq!(logits(&format!("{least}M")), logits("1G"));
    // The same experts with the same weights; only where they were found differs.
    let routes = |trace: &str| {
        let rows = trace.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
        rows.map(|row| row.rsplitn(3, ',').last().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(routes(&streamed), routes(&in_memory));
    assert!(!in_memory.contains(",0,98304") && streamed.contains(",0,98304"), "an expert is 3 x 64 x 128 x 4 bytes");
    // The prompt is one chunk, which reads an expert once, whatever the number of its tokens.
    let rows = streamed.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let of_prompt: Vec<_> = rows.filter(|row| row.len() == 9 && row[1] == "0" && row[7] == "0").collect();
    let read: Vec<_> = of_prompt.iter().filter(|row| row[8] != "0").map(|row| (row[3], row[5])).collect();
    let distinct: BTreeSet<_> = of_prompt.iter().map(|row| (row[3], row[5])).collect();
    assert!(of_prompt.len() > read.len() && read.len() == distinct.len(), "{of_prompt:?}");
    let trace = dir.path().join("streamed.csv").display().to_string();
    let (head, routing) = interbed_plan::routing::read_routing(Path::new(&trace), &mut Unwatched).unwrap();
    assert_eq!((head.experts as usize, routing.generated_tokens() > 0), (routing.shape().experts(), true));
    // In chunks, nothing is recorded of the rows that the last layer leaves out, and no expert is read for them.
    let chunked = dir.path().join("chunked.csv").display().to_string();
    let args =
        ["run", &model, "--raw", "--prompt", "what goes where", "-n", "24", "--temperature", "1.5", "--seed", "3"];
    let in_chunks = ["--memory", "1G", "--max-num-batched-tokens", "4", "--record-routing", &chunked];
    assert_eq!(succeeded(&[&args[..], &in_chunks].concat()), want);
    let mut rows = [routes(&in_memory), routes(&fs::read_to_string(&chunked).unwrap())];
    rows.iter_mut().for_each(|rows| rows.sort());
    assert_eq!(rows[0], rows[1], "the same, in another order");
    // A stored model computes the same.
    let store = dir.path().join("mixture.interbed").display().to_string();
    succeeded(&["pack", &model, &store]);
    let args = ["--raw", "--prompt", "what goes where", "-n", "24", "--temperature", "1.5", "--seed", "3"];
    let memory = format!("{least}M");
    assert_eq!(succeeded(&[&["run", &store, "--memory", &memory][..], &args].concat()), want);
}

#[test]
fn what_has_no_experts_records_no_routing() {
    let trace = tempfile::tempdir().unwrap().path().join("trace.csv").display().to_string();
    refused(&["run", tiny(), "--prompt", "x", "--record-routing", &trace], &["no experts"]);
}

#[test]
fn a_mixture_in_gguf_is_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "qwen2_moe", "vocab_size": 600, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": false,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "use_sliding_window": false,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false,
    });
    let file = dir.path().join("shape.json").display().to_string();
    fs::write(&file, config.to_string()).unwrap();
    let texts = [&[][..], &["--gguf"]].map(|more| {
        let out = dir.path().join(format!("model-{}", more.len())).display().to_string();
        succeeded(&[&["synth", "--config", &file, "--dtype", "f32", &out][..], more].concat());
        succeeded(&["run", &out, "--prompt", "one and two", "-n", "16", "--memory", "1G"])
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn what_streamed_experts_cost_is_measured_beside_the_simulator() {
    let dir = tempfile::tempdir().unwrap();
    let model = mixture(dir.path(), 96);
    let info: Value = serde_json::from_str(&succeeded(&["info", &model, "--json"])).unwrap();
    // A few of the experts have room beside those that a pass needs at once.
    let memory = format!("{}M", info["memory"]["least_bytes"].as_u64().unwrap().div_ceil(1 << 20) + 6);
    let asked = ["bench", "experts", &model, "--tokens", "12", "--warm-up", "4", "--batch", "1,3"];
    let figures = succeeded(&[&asked[..], &["--memory", &memory, "--json"]].concat());
    let figures: Vec<Value> = figures.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["experts.seconds_per_token", "experts.bytes_per_token"].repeat(4));
    let lines = [(1, false), (3, false), (1, true), (3, true)].into_iter().flat_map(|line| [line, line]);
    for (figure, (batch, reads_ahead)) in figures.iter().zip(lines) {
        assert_eq!(
            (&figure["params"]["batch"], &figure["params"]["reads_ahead"]),
            (&json!(batch), &json!(reads_ahead))
        );
        let ahead = figure["params"]["read_ahead_per_token"].as_f64().unwrap();
        assert!(reads_ahead || ahead == 0.0, "{figure}");
        assert_eq!(figure["params"]["read_again"], 0, "{figure}");
        let number = |key: &str| figure[key].as_f64().unwrap();
        assert!(number("value") > 0.0 && number("bound") > 0.0, "{figure}");
        if figure["unit"] == "B" {
            let (read, simulated) = (number("value"), number("simulated"));
            // What was read ahead comes on top, unless a pass wanted it.
            let most = if reads_ahead { 1.05 + ahead * 100_000.0 / simulated } else { 1.05 };
            assert!((0.9..=most).contains(&(read / simulated)), "{figure}");
            assert!(number("simulated") >= number("bound"), "{figure}");
        }
    }
    let table = succeeded(&[&asked[..], &["--memory", &memory]].concat());
    assert!(table.contains("simulated") && table.contains("at least"), "{table}");
    refused(&[&asked[..], &["--memory", "1G"]].concat(), &["fits into", "smaller --memory"]);
    refused(&["bench", "experts", tiny(), "--memory", "1G"], &["no experts"]);
}

/// A mixture of which a few experts have room in memory, and where it is kept how often they were used.
struct Remembered {
    folder: TempDir,
    model: String,
    memory: String,
}

impl Remembered {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = mixture(folder.path(), 96);
        let info: Value = serde_json::from_str(&succeeded(&["info", &model, "--json"])).unwrap();
        let memory = format!("{}M", info["memory"]["least_bytes"].as_u64().unwrap().div_ceil(1 << 20) + 6);
        Self { folder, model, memory }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// The only file of counts.
    fn file(&self) -> PathBuf {
        let files = fs::read_dir(self.cache().join("interbed/experts")).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    fn ended(&self, args: &[&str], cache: &Path) -> Ended {
        let ended: Ended = interbed(args).env("XDG_CACHE_HOME", cache).output().unwrap().into();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended
    }

    /// What a prompt gives, what was said, and how many % of the experts that it needed were in memory.
    fn run(&self, cache: &Path, more: &[&str]) -> (String, String, f64) {
        let asked = ["run", &self.model, "--prompt", "what goes where", "-n", "256", "--ignore-eos", "--stats"];
        let sampled = ["--temperature", "1.5", "--seed", "3", "--memory", &self.memory];
        let Ended { stdout, stderr, .. } = self.ended(&[&asked[..], &sampled, more].concat(), cache);
        let (before, _) = stderr.split_once(" % were in memory").expect(&stderr);
        let hits = before.rsplit(' ').next().unwrap().parse().unwrap();
        (stdout, stderr, hits)
    }
}

/// Warnings that name this.
fn warnings(said: &str, part: &str) -> usize {
    said.lines().filter(|line| line.contains("WARN") && line.contains(part)).count()
}

#[test]
fn a_second_run_knows_which_experts_the_first_has_used() {
    let remembered = Remembered::new();
    let cache = remembered.cache();
    let (want, said, cold) = remembered.run(&cache, &[]);
    assert_eq!(warnings(&said, ""), 0, "{said}");
    let file = remembered.file();
    let counted = fs::read(&file).unwrap();
    let (again, said, warm) = remembered.run(&cache, &[]);
    assert_eq!((again.as_str(), warnings(&said, "")), (want.as_str(), 0), "{said}");
    // When reads end moves either by some tenths.
    assert!(warm > cold + 0.5, "{cold} % of the experts were in memory in the first run, {warm} % in the second");
    let counted_twice = fs::read(&file).unwrap();
    assert_ne!(counted_twice, counted, "the second run's are added");
    // What is not asked for does without, and leaves the file as it is.
    let (apart, _, hits) = remembered.run(&cache, &["--no-expert-counts"]);
    assert_eq!(apart, want);
    assert!(hits < warm, "{hits} %, {warm} %");
    let measured = ["bench", "experts", &remembered.model, "--tokens", "4", "--warm-up", "1", "--batch", "1"];
    remembered.ended(&[&measured[..], &["--memory", &remembered.memory]].concat(), &cache);
    assert_eq!(fs::read(remembered.file()).unwrap(), counted_twice);
    // A server writes them at its end.
    let server = Server::of_in(&[("XDG_CACHE_HOME", &cache)], &remembered.model, &["--memory", "1G"]);
    server.stop("-TERM");
    assert_eq!(fs::read(remembered.file()).unwrap(), counted_twice, "with all weights in memory nothing is counted");
    let info: Value = serde_json::from_str(&succeeded(&["info", &remembered.model, "--json"])).unwrap();
    let memory = info["memory"]["serve_least_bytes"].to_string();
    let server = Server::of_in(&[("XDG_CACHE_HOME", &cache)], &remembered.model, &["--memory", &memory]);
    let answer = server.ask("POST /v1/completions HTTP/1.1", r#"{"prompt": "x", "max_tokens": 4}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let page = server.ask("GET /metrics HTTP/1.1", "");
    let (code, said) = server.stop("-TERM");
    assert_eq!((code, warnings(&said, "")), (Some(0), 0), "{said}");
    assert_ne!(fs::read(remembered.file()).unwrap(), counted_twice);
    assert!(page.contains("interbed:stream_passes_total"), "its weights were streamed: {page}");
}

#[test]
fn counts_that_cannot_be_used_or_kept_cost_a_warning_and_nothing_else() {
    let remembered = Remembered::new();
    let cache = remembered.cache();
    let (want, _, cold) = remembered.run(&cache, &[]);
    let file = remembered.file();
    let name = text(&file);
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[80] ^= 4;
    let mut foreign = whole[..whole.len() - 32].to_vec();
    foreign[18] ^= 1;
    foreign.extend(blake3::hash(&foreign).as_bytes());
    let mut impossible = whole[..whole.len() - 32].to_vec();
    impossible[58..62].copy_from_slice(&f32::NAN.to_le_bytes());
    impossible.extend(blake3::hash(&impossible).as_bytes());
    for (bytes, why) in [(&damaged, "damaged"), (&foreign, "another model"), (&impossible, "NaN"), (&vec![], "0 bytes")]
    {
        fs::write(&file, bytes).unwrap();
        let (got, said, hits) = remembered.run(&cache, &[]);
        // What is read ahead depends on how fast it comes, and with it, a little, what is in memory.
        assert!(got == want && hits < cold + 2.0, "{why}: {hits} % after {cold} %");
        assert!(warnings(&said, &name) == 1 && warnings(&said, why) == 1 && warnings(&said, "") == 1, "{why}: {said}");
        assert_eq!(fs::read(&file).unwrap(), whole, "{why}: counted anew");
    }
    // No place for them.
    let (got, said, hits) = remembered.run(&file, &[]);
    assert_eq!((got.as_str(), warnings(&said, "")), (want.as_str(), 1), "{said}");
    assert!(hits < cold + 2.0, "{hits} % after {cold} %");
    assert!(said.contains("is not kept") && said.contains("--no-expert-counts"), "{said}");
    let (_, said, _) = remembered.run(&file, &["--no-expert-counts"]);
    assert_eq!(warnings(&said, ""), 0, "{said}");
}
