//! `--device`: the same answers from a GPU, or from a Vulkan driver that computes on the processor. Where there is no
//! Vulkan, what needs it is left out, and says so; `INTERBED_REQUIRE_VULKAN=1` makes that a failure.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::hybrids::hybrid;
use crate::kv_disk::metric;
use crate::mixtures::mixture;
use crate::serve::Server;
use crate::support::{ended, interbed, refused, succeeded, tiny};

/// The first GPU that can be used, as `--device` calls it.
fn gpu() -> Option<String> {
    let listed: Value = serde_json::from_str(&succeeded(&["devices", "--json"])).unwrap();
    let usable = listed["gpus"].as_array().unwrap().iter().find(|gpu| gpu["lacks"].is_null());
    match usable {
        Some(gpu) => Some(gpu["device"].as_str().unwrap().to_owned()),
        None if std::env::var_os("INTERBED_REQUIRE_VULKAN").is_some() => panic!("no GPU: {listed}"),
        None => {
            eprintln!("left out: {}", listed["vulkan"]);
            None
        }
    }
}

/// What `interbed run` prints, where activations are not rounded.
fn text(args: &[&str]) -> String {
    let output = interbed(&[&["run", "-q"], args].concat()).env("INTERBED_CPU", "portable").output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_bundled_model_tells_the_same_story_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    let args = ["--prompt", "Once upon a time", "--max-tokens", "64", "--temperature", "0", "--kv-dtype", "f32"];
    let on_gpu = |more: &[&str]| text(&[&args[..], &["--device", &gpu, "--gpu-memory", "256M"], more].concat());
    let told = text(&args);
    assert_eq!(on_gpu(&[]), told);
    assert_eq!(on_gpu(&["--block-size", "4", "--max-num-batched-tokens", "3", "--no-prefix-caching"]), told);
    let sampled = ["--prompt", "A fox", "--max-tokens", "24", "--temperature", "0.8", "--top-k", "20", "--seed", "7"];
    assert_eq!(text(&[&sampled[..], &["--device", &gpu, "--gpu-memory", "256M"]].concat()), text(&sampled));
}

#[test]
fn weights_that_do_not_fit_on_the_gpu_are_streamed_and_change_nothing() {
    let Some(gpu) = gpu() else { return };
    let args = ["--prompt", "Once upon a time", "--max-tokens", "32", "--temperature", "0", "--kv-dtype", "f32"];
    let told = text(&args);
    for more in [&["--gpu-memory", "4M"][..], &["--gpu-memory", "3M", "--stream-policy", "ring"]] {
        let args = [&["run", "--stats", "--device", &gpu], &args[..], more].concat();
        let ended = ended(&args);
        assert_eq!((ended.code, &ended.stdout), (Some(0), &told), "{more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("stay on the GPU") && ended.stderr.contains("copied"), "{}", ended.stderr);
    }
}

#[test]
fn experts_that_do_not_fit_on_the_gpu_are_streamed_and_change_nothing() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = mixture(dir.path(), 96);
    let counts = dir.path().join("cache");
    let run = |more: &[&str]| {
        let args = ["run", "--stats", &model, "--raw", "--prompt", "Once upon", "--max-tokens", "12", "--ignore-eos"];
        let exact = ["--temperature", "0", "--kv-dtype", "f32", "--max-model-len", "64"];
        let output = interbed(&[&args[..], &exact, more].concat())
            .env("INTERBED_CPU", "portable")
            .env("XDG_CACHE_HOME", &counts)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{more:?}: {said}");
        (String::from_utf8(output.stdout).unwrap(), said)
    };
    let (told, _) = run(&[]);
    for begins_with_counts in [false, true] {
        let (on_gpu, said) = run(&["--device", &gpu, "--gpu-memory", "16M"]);
        assert_eq!(on_gpu, told, "{said}");
        assert!(said.contains("have room on the GPU") && said.contains("experts"), "{said}");
        assert_eq!(said.contains("how often earlier runs have used them"), begins_with_counts, "{said}");
    }
}

/// The answers to prompts that come in one request, so that all run together, and begin much alike.
fn answers(server: &Server, numbers: Range<u64>) -> Vec<String> {
    let prompt = |number: u64| (0..40 + number % 3 * 16).map(move |at| (at * at * 3 + at + number / 3) % 200 + 5);
    let prompts: Vec<Vec<u64>> = numbers.map(|number| prompt(number).collect()).collect();
    let body = json!({
        "prompt": prompts, "max_tokens": 150, "temperature": 0.7, "seed": 3, "ignore_eos": true, "n": 2,
    });
    let answer = server.ask("POST /v1/completions HTTP/1.1", &body.to_string());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no answer: {answer}"));
    let choices = body["choices"].as_array().unwrap_or_else(|| panic!("no answer: {body}"));
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

/// Options under which the processor does not round more than a GPU.
const EXACT: [&str; 6] = ["--kv-dtype", "f32", "--max-model-len", "256", "--block-size", "8"];

#[test]
fn a_server_on_a_gpu_gives_the_same_answers_alone_and_in_a_crowd() {
    let Some(gpu) = gpu() else { return };
    let expected = answers(&Server::start(&EXACT), 0..8);
    // Little KV: prefixes are shared, evicted, copied, and requests have to make room.
    let few = ["--device", &gpu, "--gpu-memory", "256M", "--kv-memory", "260K", "--preemption", "recompute"];
    let on_gpu = Server::start(&[&EXACT[..], &few].concat());
    assert!(on_gpu.said.contains("vulkan:"), "{}", on_gpu.said);
    assert!(metric(&on_gpu, "interbed:device_memory_used_bytes") > 0);
    assert_eq!(metric(&on_gpu, "interbed:device_memory_budget_bytes"), 256 << 20);
    let handed_over = metric(&on_gpu, "interbed:device_written_bytes_total");
    assert_eq!(answers(&on_gpu, 0..1), expected[..2]);
    assert_eq!(answers(&on_gpu, 0..8), expected);
    assert!(metric(&on_gpu, "interbed:device_written_bytes_total") > handed_over);
    assert!(metric(&on_gpu, "interbed:device_read_bytes_total") > 0);
    assert_eq!(metric(&on_gpu, "interbed:device_waits_for_room_total"), 0);
    assert!(metric(&on_gpu, "vllm:num_preemptions_total") > 0, "{}", on_gpu.ask("GET /metrics HTTP/1.1", ""));
    let (code, said) = on_gpu.stop("-TERM");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn states_and_kv_share_the_memory_of_a_gpu_and_change_nothing() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (model, disk) = (hybrid(dir.path()), dir.path().join("kv").display().to_string());
    let args = [&model, "--raw", "--prompt", "what goes where, and who knows why", "--max-tokens", "40"];
    let exact = ["--temperature", "0", "--kv-dtype", "f32"];
    let told = text(&[&args[..], &exact].concat());
    let on_gpu = |more: &[&str]| text(&[&args[..], &exact, &["--device", &gpu], more].concat());
    assert_eq!(on_gpu(&["--gpu-memory", "64M"]), told);
    assert_eq!(on_gpu(&["--gpu-memory", "64M", "--max-num-batched-tokens", "3", "--block-size", "4"]), told);
    // Weights are streamed, and get nothing of the memory that states and KV share.
    assert_eq!(on_gpu(&["--gpu-memory", "4M"]), told);
    refused(&[&["run"], &args[..], &["--device", &gpu, "--gpu-memory", "2M"]].concat(), &["GPU memory cannot work"]);
    let serving = ["--device", &gpu, "--gpu-memory", "64M", "--kv-dtype", "f32", "--max-model-len", "256"];
    let expected = answers(&Server::of(&model, &serving), 0..3);
    // Little KV, beside a disk for what has to make room, and for what comes back after a kill.
    let few = ["--kv-memory", "2M", "--preemption", "swap", "--max-num-batched-tokens", "70"];
    let kept = ["--kv-disk", &disk, "--kv-disk-size", "64M", "--kv-disk-mode", "mirror"];
    let start = || Server::of(&model, &[&serving[..], &few, &kept].concat());
    let server = start();
    assert_eq!(answers(&server, 0..1), expected[..2]);
    assert_eq!(answers(&server, 0..3), expected);
    assert!(metric(&server, "vllm:num_preemptions_total") > 0, "{}", server.ask("GET /metrics HTTP/1.1", ""));
    let deadline = Instant::now() + Duration::from_secs(60);
    while metric(&server, "interbed:kv_disk_durable_blocks_total") == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    server.kill();
    // Its directory is free once it is gone.
    drop(server);
    let server = start();
    assert_eq!(answers(&server, 0..1), expected[..2]);
    assert!(metric(&server, "interbed:kv_disk_fetched_tokens_total") > 0);
    drop(server);
    let apart = logits(&model, &["--device", &gpu, "--gpu-memory", "64M"]).into_iter().zip(logits(&model, &[]));
    let [largest, apart] =
        apart.fold([0f64; 2], |[largest, apart], (a, b)| [largest.max(b.abs()), apart.max((a - b).abs())]);
    assert!(apart < 1e-4 * largest, "{apart} of {largest}");
    let args = ["bench", &model, "--device", &gpu, "--gpu-memory", "64M", "--batch", "1,3", "--prompt-tokens", "20"];
    let lines = bench(&[&args[..], &["--repeat", "1", "--json"]].concat());
    assert_eq!(figures(&lines, "gpu.decode.tokens_per_s").len(), 2);
}

#[test]
fn kv_of_a_gpu_goes_to_disk_and_comes_back() {
    let Some(gpu) = gpu() else { return };
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = parent.path().join("kv");
    let expected = answers(&Server::start(&EXACT), 0..8);
    // Requests that have to make room are swapped out.
    let few = ["--device", &gpu, "--gpu-memory", "256M", "--kv-memory", "260K"];
    let swapping = ["--preemption", "swap", "--swap-space", "16M"];
    let server = Server::start(&[&EXACT[..], &few, &swapping].concat());
    assert_eq!(answers(&server, 0..8), expected);
    let page = server.ask("GET /metrics HTTP/1.1", "");
    let swapped = page.lines().find(|line| line.starts_with("interbed:preemptions_total") && line.contains("swap"));
    assert!(swapped.is_some_and(|line| !line.ends_with(" 0")), "{page}");
    drop(server);
    // What was seen is found on disk after a kill.
    let disk = ["--kv-disk", directory.to_str().unwrap(), "--kv-disk-size", "64M", "--kv-disk-mode", "mirror"];
    let options = [&EXACT[..], &["--device", &gpu, "--gpu-memory", "256M"], &disk].concat();
    let server = Server::start(&options);
    assert_eq!(answers(&server, 0..8), expected);
    let deadline = Instant::now() + Duration::from_secs(60);
    while metric(&server, "interbed:kv_disk_durable_blocks_total") == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    server.kill();
    // Its directory is free once it is gone.
    drop(server);
    let server = Server::start(&options);
    assert_eq!(answers(&server, 0..8), expected);
    assert!(metric(&server, "interbed:kv_disk_fetched_tokens_total") > 0);
}

#[test]
fn what_a_gpu_cannot_do_is_refused_with_the_next_step() {
    let run = ["run", tiny(), "--prompt", "x", "--max-tokens", "1"];
    let with = |more: &[&str], parts: &[&str]| refused(&[&run[..], more].concat(), parts);
    with(&["--device", "cuda:0"], &["vulkan:N", "interbed devices"]);
    for command in [&["info", tiny()][..], &["plan", tiny()]] {
        refused(&[command, &["--device", "vulkan:0"]].concat(), &["--device"]);
    }
    if gpu().is_none() {
        with(&["--device", "vulkan:0"], &["Vulkan", "hint: "]);
        return;
    }
    with(&["--device", "vulkan:99"], &["no GPU number 99", "interbed devices"]);
    with(
        &["--device", "vulkan:0", "--gpu-memory", "200K"],
        &["GPU memory cannot work", "--gpu-memory", "--device cpu"],
    );
    with(&["--device", "vulkan:0", "--kv-layout", "virtual"], &["--kv-layout virtual does not go with --device"]);
}

#[test]
fn devices_are_listed_and_auto_says_why_the_processor_computes() {
    let listed = succeeded(&["devices"]);
    assert!(listed.starts_with("cpu ") && listed.contains("cores"), "{listed}");
    // A driver that computes on the processor is no reason to use it.
    let ended = ended(&["run", tiny(), "--prompt", "x", "--max-tokens", "2", "--device", "auto", "--memory", "256M"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("device "), "{}", ended.stderr);
}

/// A GGUF file of zeros with one matrix in IQ4_XS, whose blocks have fewer bytes than those of Q4_K in their place.
fn with_iq4_xs(dir: &Path) -> String {
    let config = json!({
        "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    });
    let (shape, out) = (dir.join("shape.json"), dir.join("model"));
    std::fs::write(&shape, config.to_string()).unwrap();
    succeeded(&["synth", "--config", &shape.display().to_string(), "--dtype", "q4_k", &out.display().to_string()]);
    let file = out.join("model.gguf");
    let mut bytes = std::fs::read(&file).unwrap();
    let name = b"blk.0.ffn_down.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    // The number of dimensions, two dimensions, and the number of the type.
    let dtype = at + 4 + 2 * 8;
    assert_eq!(bytes[dtype..][..4], 12u32.to_le_bytes(), "Q4_K");
    bytes[dtype..][..4].copy_from_slice(&23u32.to_le_bytes());
    // The numbers follow the last tensor's name, number of dimensions, dimensions, type and place.
    let last = bytes.windows(7).rposition(|window| window == b".weight").unwrap() + 7;
    let numbers = (last + 4 + 8 * usize::from(bytes[last]) + 12).next_multiple_of(32);
    bytes[numbers..].fill(0);
    std::fs::write(&file, bytes).unwrap();
    file.display().to_string()
}

#[test]
fn a_type_without_kernels_is_refused_by_name_on_a_gpu_and_left_to_the_processor() {
    let folder = tempfile::tempdir().unwrap();
    let model = with_iq4_xs(folder.path());
    let run = ["run", &model, "--raw", "--prompt", "x", "--max-tokens", "2", "--ignore-eos"];
    let told = succeeded(&run);
    // Where the only GPU is software, `auto` takes the processor in any case.
    let ended = ended(&[&run[..], &["--device", "auto"]].concat());
    assert_eq!((ended.code, &ended.stdout), (Some(0), &told), "{}", ended.stderr);
    assert!(ended.stderr.contains("device         cpu  "), "{}", ended.stderr);
    let Some(gpu) = gpu() else { return };
    let on_gpu = [&run[..], &["--device", &gpu, "--gpu-memory", "256M"]].concat();
    refused(&on_gpu, &["weights in IQ4_XS", "leave --device out"]);
}

/// What `interbed logits` prints, by the given options.
fn logits(model: &str, more: &[&str]) -> Vec<f64> {
    let args = [&["logits", model, "--tokens", "5,77,300,12,9,41", "--kv-dtype", "f32"], more].concat();
    let printed: Value = serde_json::from_str(&succeeded(&args)).unwrap();
    let rows = printed["logits"].as_array().unwrap().iter();
    rows.flat_map(|row| row.as_array().unwrap()).map(|logit| logit.as_f64().unwrap()).collect()
}

#[test]
fn integer_products_on_a_gpu_are_those_of_the_processor() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny-q8_0");
    let model = model.to_str().unwrap();
    succeeded(&["synth", "--like", "tiny", "--dtype", "q8_0", model]);
    let on_gpu = ["--device", &gpu, "--gpu-memory", "256M", "--gpu-products"];
    let expected = logits(model, &[]);
    let largest = expected.iter().fold(0f64, |largest, logit| largest.max(logit.abs()));
    let apart = |logits: Vec<f64>| {
        assert_eq!(logits.len(), expected.len());
        logits.iter().zip(&expected).fold(0f64, |apart, (a, b)| apart.max((a - b).abs())) / largest
    };
    let integer = apart(logits(model, &[&on_gpu[..], &["integer"]].concat()));
    let float = apart(logits(model, &[&on_gpu[..], &["float"]].concat()));
    // Where a number lies right between two integers, it may be rounded the other way.
    assert!(integer < float, "{integer} in integers, {float} in f32");
    refused(&[&["run", tiny(), "--prompt", "x"], &on_gpu[..], &["fast"]].concat(), &["float, integer"]);
}

/// What `interbed bench` prints on a GPU, one object a line.
fn bench(args: &[&str]) -> Vec<Value> {
    succeeded(args).lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

/// A figure of which there is one or more.
fn figures<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    let found: Vec<_> = lines.iter().filter(|line| line["name"] == name).collect();
    assert!(!found.is_empty(), "no {name} in {lines:?}");
    for line in &found {
        let value = line["value"].as_f64().unwrap();
        assert!(value > 0.0 && value.is_finite(), "{line}");
        if !line["share_of_bound"].is_null() {
            let (bound, share) = (line["bound"].as_f64().unwrap(), line["share_of_bound"].as_f64().unwrap());
            assert!(share > 0.0 && (value / bound / share - 1.0).abs() < 1e-6, "{line}");
        }
    }
    found
}

#[test]
fn bench_measures_a_gpu_beside_its_memory_and_link() {
    let Some(gpu) = gpu() else { return };
    let args = ["bench", tiny(), "--device", &gpu, "--gpu-memory", "256M", "--batch", "1,3", "--prompt-tokens", "20"];
    let lines = bench(&[&args[..], &["--repeat", "2", "--json"]].concat());
    for rate in ["gpu.memory_bytes_per_s", "gpu.link_to_device_bytes_per_s", "gpu.link_to_host_bytes_per_s"] {
        figures(&lines, rate);
    }
    let decodes = figures(&lines, "gpu.decode.tokens_per_s");
    assert_eq!(decodes.iter().map(|line| &line["params"]["batch"]).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(figures(&lines, "gpu.prefill.tokens_per_s")[0]["params"]["prompt_tokens"], 20);
    // All is on the GPU: a pass hands over tables, and a token and its logit come back for each sequence.
    assert_eq!(decodes[0]["limited_by"], "GPU memory");
    assert_eq!((&decodes[0]["bytes_to_host"], &decodes[1]["bytes_to_host"]), (&json!(8.0), &json!(24.0)));
    let table = succeeded(&[&args[..], &["--repeat", "1"]].concat());
    assert!(table.contains("GPU memory") && table.contains("decode, 3 sequences"), "{table}");
}

#[test]
fn bench_stream_measures_weights_that_go_over_the_link() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.json");
    let args =
        ["bench", "stream", "--device", &gpu, "--batch", "1", "--prompt-tokens", "16", "--repeat", "2", "--json"];
    let more = [
        "--gpu-memory",
        "6M",
        "--host-products",
        "off",
        "--policy",
        "resident,ring",
        "--timeline",
        file.to_str().unwrap(),
    ];
    let lines = bench(&[&args[..], &more].concat());
    let decodes = figures(&lines, "gpu.decode.tokens_per_s");
    assert_eq!(decodes.iter().map(|line| &line["params"]["policy"]).collect::<Vec<_>>(), ["resident", "ring"]);
    assert!(decodes.iter().all(|line| line["bytes_to_device"].as_f64().unwrap() > 1e5), "{decodes:?}");
    // The queues of the GPU have lines of their own, beside reads and the pass.
    let timeline: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    for kind in ["kernels", "copies"] {
        let of_kind: Vec<_> = events.iter().filter(|event| event["cat"] == kind).collect();
        assert!(!of_kind.is_empty(), "no {kind}");
        assert!(
            of_kind.iter().all(|event| event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0)
        );
    }
    assert!(events.iter().any(|event| event["args"]["name"] == "GPU kernels"));
    assert!(events.iter().any(|event| event["cat"] == "compute"));
    refused(&[&args[..], &["--gpu-memory", "256M"]].concat(), &["nothing is streamed", "--gpu-memory"]);
}
