//! `--device`: the same answers from a GPU, or from a Vulkan driver that computes on the processor. Where there is no
//! Vulkan, what needs it is left out, and says so; `STRATA_REQUIRE_VULKAN=1` makes that a failure.

use serde_json::{Value, json};

use crate::kv_disk::metric;
use crate::serve::Server;
use crate::support::{ended, refused, strata, succeeded, tiny};

/// The first GPU that can be used, as `--device` calls it.
fn gpu() -> Option<String> {
    let listed: Value = serde_json::from_str(&succeeded(&["devices", "--json"])).unwrap();
    let usable = listed["gpus"].as_array().unwrap().iter().find(|gpu| gpu["lacks"].is_null());
    match usable {
        Some(gpu) => Some(gpu["device"].as_str().unwrap().to_owned()),
        None if std::env::var_os("STRATA_REQUIRE_VULKAN").is_some() => panic!("no GPU: {listed}"),
        None => {
            eprintln!("left out: {}", listed["vulkan"]);
            None
        }
    }
}

/// What `strata run` prints, where activations are not rounded.
fn text(args: &[&str]) -> String {
    let output = strata(&[&["run", "-q"], args].concat()).env("STRATA_CPU", "portable").output().unwrap();
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

/// The answer to one request of many that are much alike.
fn answer(server: &Server, number: u64) -> Vec<String> {
    let prompt: Vec<u64> = (0..40 + number % 3 * 16).map(|at| (at * at * 3 + at + number / 3) % 200 + 5).collect();
    let body = json!({
        "prompt": prompt, "max_tokens": 150, "temperature": 0.7, "seed": number, "ignore_eos": true,
        "n": if number.is_multiple_of(4) { 2 } else { 1 },
    });
    let answer = server.ask("POST /v1/completions HTTP/1.1", &body.to_string());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no answer: {answer}"));
    let choices = body["choices"].as_array().unwrap_or_else(|| panic!("no answer: {body}"));
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_server_on_a_gpu_gives_the_same_answers_alone_and_in_a_crowd() {
    let Some(gpu) = gpu() else { return };
    let kv = ["--kv-dtype", "f32", "--max-model-len", "256", "--block-size", "8"];
    let processor = Server::start(&kv);
    let expected: Vec<_> = (0..12).map(|number| answer(&processor, number)).collect();
    // Little KV: prefixes are shared, evicted, copied, and requests have to make room.
    let few = ["--device", &gpu, "--gpu-memory", "256M", "--kv-memory", "200K"];
    let on_gpu = Server::start(&[&kv[..], &few].concat());
    assert!(on_gpu.said.contains("vulkan:"), "{}", on_gpu.said);
    assert_eq!(answer(&on_gpu, 0), expected[0]);
    std::thread::scope(|scope| {
        let on_gpu = &on_gpu;
        let asked: Vec<_> = (0..12).map(|number| (number, scope.spawn(move || answer(on_gpu, number)))).collect();
        for (number, texts) in asked {
            assert_eq!(texts.join().unwrap(), expected[number as usize], "request {number}");
        }
    });
    assert!(metric(&on_gpu, "vllm:num_preemptions_total") > 0, "{}", on_gpu.ask("GET /metrics HTTP/1.1", ""));
    let (code, said) = on_gpu.stop("-TERM");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_a_gpu_cannot_do_is_refused_with_the_next_step() {
    let run = ["run", tiny(), "--prompt", "x", "--max-tokens", "1"];
    let with = |more: &[&str], parts: &[&str]| refused(&[&run[..], more].concat(), parts);
    with(&["--device", "cuda:0"], &["vulkan:N", "strata devices"]);
    for command in [&["info", tiny()][..], &["plan", tiny()], &["bench", tiny()], &["bench", "stream", tiny()]] {
        refused(&[command, &["--device", "vulkan:0"]].concat(), &["--device"]);
    }
    if gpu().is_none() {
        with(&["--device", "vulkan:0"], &["Vulkan", "hint: "]);
        return;
    }
    with(&["--device", "vulkan:99"], &["no GPU number 99", "strata devices"]);
    with(
        &["--device", "vulkan:0", "--gpu-memory", "200K"],
        &["GPU memory cannot hold", "--gpu-memory", "--device cpu"],
    );
    with(&["--device", "vulkan:0", "--kv-layout", "virtual"], &["--kv-layout virtual does not go with --device"]);
    let serve = ["serve", tiny(), "--port", "0", "--device", "vulkan:0", "--gpu-memory", "256M"];
    refused(&[&serve[..], &["--kv-disk", "/nowhere"]].concat(), &["--kv-disk does not go with --device"]);
    refused(&[&serve[..], &["--preemption", "swap"]].concat(), &["--preemption swap does not go with --device"]);
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
