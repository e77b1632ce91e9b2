//! Models whose layers need no more than the tail of a sequence: states, and windows.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kv_disk::{metric, survive_kills};
use crate::serve::Server;
use crate::support::{ended, succeeded};

/// A model of a few MiB: three delta rules before each of two attentions.
pub fn hybrid(dir: &Path) -> String {
    hybrid_of(dir, 512)
}

fn hybrid_of(dir: &Path, context: usize) -> String {
    let config = json!({
        "model_type": "qwen3_5_text", "vocab_size": 600, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "full_attention_interval": 4, "attn_output_gate": true, "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32, "max_position_embeddings": context, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "eos_token_id": 1, "tie_word_embeddings": true, "attention_bias": false, "dtype": "float32",
    });
    synthetic(dir, "hybrid", &config)
}

/// A model of a few MiB, of whose layers five see 24 tokens and one sees all.
fn windowed(dir: &Path) -> String {
    let window = "sliding_attention";
    let config = json!({
        "model_type": "olmo3", "vocab_size": 600, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "sliding_window": 24, "layer_types": [window, window, "full_attention", window, window, window],
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "eos_token_id": 1, "tie_word_embeddings": false, "attention_bias": false, "dtype": "float32",
    });
    synthetic(dir, "windowed", &config)
}

/// A model of a few MiB: short convolutions, whose states are a few rows, and two attentions.
fn convolved(dir: &Path) -> String {
    let config = json!({
        "model_type": "lfm2", "vocab_size": 600, "hidden_size": 128, "block_ff_dim": 256, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "full_attn_idxs": [1, 4], "conv_L_cache": 3,
        "conv_bias": false, "block_auto_adjust_ff_dim": false, "max_position_embeddings": 512, "norm_eps": 1e-6,
        "rope_theta": 10000.0, "eos_token_id": 1, "tie_embedding": true, "dtype": "float32",
    });
    synthetic(dir, "convolved", &config)
}

/// Models that keep states with and without matrices, and models with windows.
const KINDS: [fn(&Path) -> String; 3] = [hybrid, windowed, convolved];

fn synthetic(dir: &Path, name: &str, config: &Value) -> String {
    let file = dir.join(format!("{name}.json"));
    fs::write(&file, config.to_string()).unwrap();
    let (out, file) = (dir.join(name).display().to_string(), file.display().to_string());
    succeeded(&["synth", "--config", &file, "--dtype", "f32", &out]);
    out
}

#[test]
fn a_model_says_the_same_in_any_memory_and_in_any_chunks() {
    for make in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let model = make(dir.path());
        let info: Value = serde_json::from_str(&succeeded(&["info", &model, "--json"])).unwrap();
        let least = info["memory"]["least_bytes"].as_u64().unwrap().div_ceil(1 << 20);
        let said = |more: &[&str]| {
            let args = ["run", &model, "--raw", "--prompt", "what goes where, and who knows why it does", "-n", "40"];
            succeeded(&[&args[..], &["--temperature", "1.5", "--seed", "3"], more].concat())
        };
        let want = said(&["--memory", "1G"]);
        assert!(want.len() > 20, "{want:?}");
        assert_eq!(said(&["--memory", &format!("{least}M")]), want);
        assert_eq!(said(&["--memory", "1G", "--max-num-batched-tokens", "5", "--max-num-seqs", "1"]), want);
        assert_eq!(said(&["--memory", "1G", "--threads", "1", "--block-size", "4"]), want);
        assert_eq!(said(&["--memory", "1G", "--kv-layout", "virtual"]), want);
        assert_eq!(said(&["--memory", "1G", "--kv-layout", "virtual", "--max-num-batched-tokens", "5"]), want);
        let logits = |more: &[&str]| {
            let args = ["logits", &model, "--tokens", "5,77,300,4,9,12,500,31"];
            succeeded(&[&args[..], more].concat())
        };
        assert_eq!(logits(&["--max-num-batched-tokens", "3", "--max-num-seqs", "1"]), logits(&[]));
    }
}

#[test]
fn a_server_goes_on_from_tails_that_others_left() {
    for make in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let model = make(dir.path());
        let server = Server::of(&model, &["--memory", "512M", "--max-num-seqs", "4", "--max-num-batched-tokens", "24"]);
        let prompts = [(0, 90), (0, 60), (7, 90), (0, 120), (0, 91)];
        let ask = |&(seed, length): &(usize, usize), count: usize| {
            let shared = (0..length).map(|at| if at < 50 { at * 7 % 500 } else { (at * 11 + seed) % 500 } + 20);
            let body = json!({
                "prompt": shared.collect::<Vec<_>>(), "max_tokens": 20, "temperature": 0, "n": count,
                "ignore_eos": true,
            });
            let (status, answer) = server.json("/v1/completions", &body.to_string());
            assert_eq!(status, 200, "{answer:#}");
            answer
        };
        let texts = |answer: &Value| {
            let choices = answer["choices"].as_array().unwrap().iter();
            choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let alone: Vec<_> = prompts.iter().map(|prompt| texts(&ask(prompt, 1))[0].clone()).collect();
        let mut found = 0;
        for (prompt, alone) in prompts.iter().zip(&alone) {
            let again = ask(prompt, 3);
            found += cached(&again);
            assert!(texts(&again).iter().all(|text| text == alone), "{prompt:?}: {again:#} is not {alone:?}");
        }
        assert!(found > 200, "{found} tokens were found");
        assert!(metric(&server, "interbed:kv_resume_points") > 0);
        let page = server.ask("GET /metrics HTTP/1.1", "");
        let cached = |line: &str| line.starts_with("interbed:kv_tail_bytes") && line.contains("state=\"cached\"");
        assert!(page.lines().any(|line| cached(line) && !line.ends_with("} 0")), "{page}");
    }
}

#[test]
fn a_model_is_measured_beside_what_the_machine_allows() {
    for make in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let model = make(dir.path());
        let args = ["bench", &model, "--json", "--batch", "1,3", "--context", "20", "--prompt-tokens", "40"];
        let figures = succeeded(&[&args[..], &["--repeat", "2", "--memory", "1G"]].concat());
        let named = |name: &str| figures.lines().filter(|line| line.contains(name)).count();
        assert!(named("decode") >= 2 && named("prefill") >= 1, "{figures}");
    }
}

#[test]
fn tails_survive_kills_on_disk() {
    for make in KINDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (model, disk) = (make(dir.path()), dir.path().join("kv").display().to_string());
        let options = ["--memory", "512M", "--kv-disk", &disk, "--kv-disk-size", "64M", "--kv-disk-mode", "mirror"];
        survive_kills(&Server::of(&model, &["--memory", "512M"]), &|| Server::of(&model, &options));
    }
}

#[test]
fn a_context_beyond_memory_is_answered_as_with_ample_memory() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (model, disk) = (hybrid_of(dir.path(), 6000), dir.path().join("kv").display().to_string());
    let ample = ["--memory", "512M", "--swap-space", "0"];
    let tight = [&ample[..], &["--kv-disk", &disk, "--kv-disk-size", "64M"]].concat();
    // The least for 256 tokens; 2 MiB more have room for fewer than 3000.
    let refused = ended(&[&["serve", &model, "--port", "0", "--kv-memory", "1M"], &tight[..]].concat());
    let least = refused.stderr.split("give --kv-memory ").nth(1).and_then(|rest| rest.split('M').next());
    let least: u64 = least.and_then(|least| least.parse().ok()).unwrap_or_else(|| panic!("{refused:?}"));
    let memory = format!("{}M", least + 2);
    let prompt: Vec<u64> = (0..3500).map(|at| (at * at + 3 * at) % 500 + 20).collect();
    let body = json!({"prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": true}).to_string();
    let text = |server: &Server| {
        let (status, answer) = server.json("/v1/completions", &body);
        assert_eq!(status, 200, "{answer:#}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let expected = text(&Server::of(&model, &ample));
    let server = Server::of(&model, &[&["--kv-memory", &memory][..], &tight].concat());
    assert!(server.said.contains("what a request has beyond that is on disk"), "{}", server.said);
    for turn in 1..3 {
        assert_eq!(text(&server), expected);
        assert!(metric(&server, "interbed:kv_disk_frames_total") > 0, "turn {turn}");
    }
}

/// A Redis server that ends with the test.
struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a Redis server, and returns it with its address; `None` where there is no `redis-server` program.
fn redis() -> Option<(Redis, String)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
    let server = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(server) => Redis(server),
        Err(error) => {
            assert!(std::env::var_os("INTERBED_REQUIRE_REDIS").is_none(), "redis-server cannot be run: {error}");
            return None;
        }
    };
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "redis-server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some((server, format!("redis://127.0.0.1:{port}")))
}

#[test]
fn servers_share_tails_in_redis() {
    let Some((_redis, address)) = redis() else { return };
    for make in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let (model, key) = (make(dir.path()), dir.path().join("key"));
        fs::write(&key, [7; 32]).unwrap();
        let options = ["--memory", "512M", "--kv-remote", &address, "--kv-remote-key", key.to_str().unwrap()];
        let prompt = |length: usize| (0..length).map(|at| (at * 7 + at * at) % 500 + 20).collect::<Vec<_>>();
        let ask = |server: &Server, length: usize| {
            let body = json!({"prompt": prompt(length), "max_tokens": 20, "temperature": 0, "ignore_eos": true});
            let (status, answer) = server.json("/v1/completions", &body.to_string());
            assert_eq!(status, 200, "{answer:#}");
            answer
        };
        let text = |answer: &Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
        let alone = Server::of(&model, &["--memory", "512M"]);
        let want = [90, 140].map(|length| text(&ask(&alone, length)));
        drop(alone);
        let first = Server::of(&model, &options);
        assert_eq!(text(&ask(&first, 90)), want[0]);
        let began = Instant::now();
        // The prompt's five full blocks, and the state behind them in its parts.
        while metric(&first, "interbed:kv_remote_stored_blocks_total") <= 5 {
            assert!(began.elapsed() < Duration::from_secs(30), "nothing is stored");
            std::thread::sleep(Duration::from_millis(20));
        }
        first.stop("-TERM");
        let second = Server::of(&model, &options);
        let answer = ask(&second, 140);
        assert_eq!(text(&answer), want[1]);
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 80);
        assert!(metric(&second, "interbed:kv_remote_hit_blocks_total") > 5);
    }
}

#[test]
fn tails_that_are_swapped_out_come_back() {
    for (make, swapping, computing) in [(KINDS[0], "10M", "1100K"), (KINDS[1], "16M", "900K")] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (model, swap) = (make(dir.path()), dir.path().display().to_string());
        let ask_until = |server: &Server, number: usize, stop: Option<String>| {
            let prompt: Vec<_> = (0..70).map(|at| (at * 7 + number * 31) % 500 + 20).collect();
            let mut body = json!({"prompt": prompt, "max_tokens": 180, "temperature": 0, "ignore_eos": true});
            stop.into_iter().for_each(|stop| body["stop"] = json!([stop]));
            let (status, answer) = server.json("/v1/completions", &body.to_string());
            assert_eq!(status, 200, "{answer:#}");
            answer["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        let ask = |server: &Server, number: usize| ask_until(server, number, None);
        let ample = Server::of(&model, &["--memory", "512M"]);
        let want: Vec<_> = (0..24).map(|number| ask(&ample, number)).collect();
        // Room for a few of them.
        let options = ["--memory", "512M", "--max-num-batched-tokens", "64", "--max-model-len", "256"];
        // Swapping takes most of its memory for buffers.
        let swapping = ["--kv-memory", swapping, "--preemption", "swap", "--swap-dir", &swap];
        let computing = ["--kv-memory", computing, "--preemption", "recompute"];
        for (more, name) in [(&swapping[..], "swap"), (&computing[..], "recompute")] {
            let server = Server::of(&model, &[&options[..], more].concat());
            // Answers seem to be short, so that more are admitted than there is room for.
            for (number, want) in want.iter().enumerate() {
                ask_until(&server, number, Some(want.chars().skip(2).take(3).collect()));
            }
            std::thread::scope(|scope| {
                for (number, want) in want.iter().enumerate() {
                    let server = &server;
                    scope.spawn(move || assert_eq!(&ask(server, number), want, "{name}, prompt {number}"));
                }
            });
            let page = server.ask("GET /metrics HTTP/1.1", "");
            let mut kinds = page.lines().filter(|line| line.starts_with("interbed:preemptions_total{"));
            let line = kinds.find(|line| line.contains(&format!("kind=\"{name}\""))).unwrap();
            assert!(!line.ends_with(" 0"), "nothing was preempted: {line}");
        }
    }
}
