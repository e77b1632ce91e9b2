//! `interbed serve` without a MODEL: the models that were fetched by name, one in memory at a time.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use interbed_hub::testing::Mischief;
use serde_json::{Value, json};

use crate::hub::Place;
use crate::serve::Server;
use crate::support::{interbed, refused, succeeded, tiny};

const MEMORY: &str = "256M";

/// The bytes of a line of `/proc/PID/status`.
fn status_bytes(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Memory, open files and threads of a server.
fn figures(server: &Server) -> (u64, usize, usize) {
    let count = |folder: &str| fs::read_dir(format!("/proc/{}/{folder}", server.id())).unwrap().count();
    (status_bytes(server, "VmRSS"), count("fd"), count("task"))
}

/// A server of what the cache of `place` has.
fn serve(place: &Place, more: &[&str]) -> Server {
    let command = place.command(&[&["serve", "--port", "0", "--memory", MEMORY], more].concat());
    Server::begin(command)
}

/// A place whose cache has two models: `org/tiny`, and `org/tiny-GGUF:Q8_0`.
fn two_models() -> Place {
    let place = Place::new();
    place.succeeded(&["pull", "org/tiny"]);
    place.succeeded(&["pull", "org/tiny-GGUF"]);
    place
}

const ONE: &str = "org/tiny";
const TWO: &str = "org/tiny-GGUF:Q8_0";

fn ask(server: &Server, model: &str) -> String {
    let body = json!({"model": model, "prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    let (status, answer) = server.json("/v1/completions", &body.to_string());
    assert_eq!((status, &answer["model"]), (200, &json!(model)), "{answer}");
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn in_memory(server: &Server) -> Vec<Value> {
    server.json("/api/ps", "").1["models"].as_array().unwrap().clone()
}

#[test]
fn two_models_by_turns_a_hundred_times_leave_nothing_behind() {
    let place = two_models();
    // The least that each of them can be served in.
    let least = [ONE, TWO].map(|model| {
        let info: Value = serde_json::from_str(&place.succeeded(&["info", model, "--json"])).unwrap();
        info["memory"]["serve_least_bytes"].as_u64().unwrap()
    });
    let budget = least[0].max(least[1]);
    // Reports of a hundred loads would fill the pipe.
    let memory = budget.to_string();
    let mut command = place.command(&["serve", "--port", "0", "--memory", &memory, "--log-format", "json"]);
    let log = place.cache.path().join("log");
    command.stderr(fs::File::create(&log).unwrap());
    let server = Server::following(command, &log);
    let expect = [ONE, TWO].map(|model| {
        let path = place.succeeded(&["pull", model]);
        let prompt = ["--raw", "--prompt", "Once", "-n", "4", "--temperature", "0", "--ignore-eos", "--memory", MEMORY];
        let text = succeeded(&[&["run", path.trim_end()][..], &prompt].concat());
        text.trim_end().strip_prefix("Once").unwrap().to_owned()
    });
    let mut after_ten = None;
    for turn in 0..100 {
        let (model, expect) = ([ONE, TWO][turn % 2], &expect[turn % 2]);
        let text = ask(&server, model);
        assert_eq!(text.trim_end(), expect, "{model}");
        let peak = status_bytes(&server, "VmHWM");
        assert!(peak <= budget, "{peak} bytes at the peak of load {turn}");
        if turn == 9 {
            after_ten = Some(figures(&server));
        }
    }
    let ((memory, files, threads), (memory_then, files_then, threads_then)) = (figures(&server), after_ten.unwrap());
    assert!(memory <= memory_then + (8 << 20), "{memory_then} bytes after ten loads, {memory} after a hundred");
    assert!(files <= files_then + 2 && threads <= threads_then + 2, "{files_then} {files} {threads_then} {threads}");
    let (code, _) = server.stop("-TERM");
    assert_eq!(code, Some(0));
}

#[test]
fn models_are_listed_by_all_their_names_and_answer_to_them() {
    let place = two_models();
    place.hub.add_folder("HuggingFaceTB/SmolLM2-135M-Instruct", Path::new(tiny()));
    place.succeeded(&["pull", "smollm2:135m"]);
    let server = serve(&place, &[]);
    assert!(server.said.contains("Serving 4 models on "), "{}", server.said);
    let names = |list: &Value, field: &str| -> Vec<String> {
        list.as_array().unwrap().iter().map(|model| model[field].as_str().unwrap().to_owned()).collect()
    };
    let (_, listed) = server.json("/v1/models", "");
    let long = "HuggingFaceTB/SmolLM2-135M-Instruct";
    assert_eq!(names(&listed["data"], "id"), ["storyteller", "smollm2:135m", long, ONE, TWO]);
    let (_, tags) = server.json("/api/tags", "");
    assert_eq!(names(&tags["models"], "name")[..2], ["storyteller:latest", "smollm2:135m"]);
    let sizes = tags["models"].as_array().unwrap().iter().map(|model| model["size"].as_u64().unwrap());
    assert!(sizes.min().unwrap() > 10_000, "{tags}");
    for name in ["smollm2:135m", long, "SmolLM2:135M", "hf.co/HuggingFaceTB/SmolLM2-135M-Instruct", "org/tiny-GGUF"] {
        ask(&server, name);
    }
    assert_eq!(names(&json!(in_memory(&server)), "name"), [TWO]);
    let (status, shown) = server.json("/api/show", &json!({"model": "storyteller"}).to_string());
    assert_eq!((status, &shown["details"]["format"]), (200, &json!("safetensors")));
    for name in ["org/other", tiny(), "../tiny", ""] {
        let (status, answer) = server.json("/v1/completions", &json!({"model": name, "prompt": "x"}).to_string());
        assert_eq!(status, 404, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("interbed pull"), "{answer}");
    }
    // What is fetched later is served, too.
    place.hub.add_folder("org/later", Path::new(tiny()));
    place.succeeded(&["pull", "org/later"]);
    let begun = Instant::now();
    while server.json("/v1/models/org/later", "").0 != 200 {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    ask(&server, "org/later");
    let told = interbed(&["ps", "--url", &format!("http://{}", server.address())]).output().unwrap();
    assert!(String::from_utf8_lossy(&told.stdout).starts_with("org/later  ok"), "{told:?}");
}

#[test]
fn an_empty_cache_serves_the_storyteller_and_says_how_to_get_others() {
    let place = Place::new();
    let server = serve(&place, &[]);
    let more = server.json("/health", "");
    assert_eq!(more, (200, json!({"status": "ok"})));
    assert!(server.said.contains("Serving 1 model on "), "{}", server.said);
    let (status, refused) = server.json("/api/generate", r#"{"model": "llama3.2:1b", "prompt": "Hi"}"#);
    let told = refused["error"].as_str().unwrap();
    assert!(status == 404 && told.contains("interbed pull NAME") && told.contains("/api/pull"), "{told}");
    let (status, answer) = server.json("/v1/completions", r#"{"prompt": "Once upon a time", "max_tokens": 8}"#);
    assert_eq!((status, &answer["model"]), (200, &json!("storyteller")), "{answer}");
    let (code, said) = server.stop("-TERM");
    assert_eq!(code, Some(0));
    assert!(said.contains("`interbed pull NAME` fetches others"), "{said}");
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_server_answering() {
    let place = two_models();
    for name in ["org/cut", "org/gone"] {
        place.hub.add_folder(name, Path::new(tiny()));
        place.succeeded(&["pull", name]);
    }
    let snapshot = |name: &str| place.cache.path().join(name).join("snapshots").join(interbed_hub::testing::COMMIT);
    let weights = fs::canonicalize(snapshot("models--org--cut").join("model.safetensors")).unwrap();
    let length = fs::metadata(&weights).unwrap().len();
    fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(length / 2).unwrap();
    fs::remove_file(snapshot("models--org--gone").join("tokenizer.json")).unwrap();
    let server = serve(&place, &[]);
    for _ in 0..2 {
        for (name, part) in [("org/cut", "model.safetensors"), ("org/gone", "tokenizer")] {
            let (status, answer) = server.json("/v1/completions", &json!({"model": name, "prompt": "x"}).to_string());
            let told = answer["error"]["message"].as_str().unwrap();
            assert!(status == 400 && told.contains("cannot be loaded") && told.contains(part), "{answer}");
            assert_eq!(in_memory(&server), Vec::<Value>::new());
        }
        ask(&server, ONE);
    }
    // What has too little memory is told how much it needs.
    let small = Server::begin(place.command(&["serve", "--port", "0", "--memory", "40M"]));
    let (status, answer) = small.json("/v1/completions", &json!({"model": ONE, "prompt": "x"}).to_string());
    let told = answer["error"]["message"].as_str().unwrap();
    assert!(status == 400 && told.contains("give --memory"), "{answer}");
    assert_eq!(small.json("/health", "").0, 200);
}

#[test]
fn a_stream_runs_to_its_end_before_another_model_comes() {
    let place = two_models();
    let server = serve(&place, &[]);
    let body = json!({"model": ONE, "prompt": "Once", "max_tokens": 150, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true}})
    .to_string();
    let mut stream = server.connect();
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut streamed = vec![0; 1];
    while !String::from_utf8_lossy(&streamed).contains("data: ") {
        let mut some = [0; 4096];
        let count = stream.read(&mut some).unwrap();
        streamed.extend_from_slice(&some[..count]);
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| ask(&server, TWO));
        stream.read_to_end(&mut streamed).unwrap();
        other.join().unwrap();
    });
    let streamed = String::from_utf8(streamed).unwrap();
    assert!(streamed.contains(r#""completion_tokens":150"#) && streamed.contains("[DONE]"), "{streamed}");
    assert_eq!(in_memory(&server)[0]["name"], TWO);
}

#[test]
fn a_model_stays_as_long_as_requests_say() {
    let place = two_models();
    let server = serve(&place, &["--keep-alive", "-1"]);
    let generate = |more: Value| {
        let mut body = json!({"model": ONE, "prompt": "Once", "stream": false, "options": {"num_predict": 2}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = server.json("/api/generate", &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let expires = || in_memory(&server)[0]["expires_at"].as_str().unwrap().to_owned();
    let left = || {
        let begun = Instant::now();
        while !in_memory(&server).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert!(generate(json!({}))["load_duration"].as_u64().unwrap() > 1_000_000);
    assert!(expires().as_str() > "2300");
    generate(json!({"keep_alive": 0}));
    left();
    generate(json!({"keep_alive": "1s"}));
    assert!(expires().as_str() < "2300");
    left();
    generate(json!({"keep_alive": "5m"}));
    assert_eq!(generate(json!({"prompt": "", "keep_alive": 0}))["done_reason"], "unload");
    left();
}

/// The lines of an answer to `/api/pull`.
fn pull(server: &Server, model: &str) -> Vec<Value> {
    let answer = server.ask("POST /api/pull HTTP/1.1", &json!({"model": model}).to_string());
    let lines = answer.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_server_fetches_models_and_serves_them() {
    let place = Place::new();
    let size = fs::metadata(Path::new(tiny()).join("model.safetensors")).unwrap().len();
    place.hub.does(Mischief { bytes_per_second: Some(size), ..Mischief::default() });
    let server = serve(&place, &[]);
    ask(&server, "storyteller");
    let before = status_bytes(&server, "VmRSS");
    let lines = pull(&server, ONE);
    let told: Vec<&str> = lines.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!((told[0], told[1], told[told.len() - 1]), ("pulling manifest", "pulling 0123456789ab", "success"));
    let done: Vec<u64> = lines.iter().filter_map(|line| line["completed"].as_u64()).collect();
    assert!(done.is_sorted() && done.len() > 2 && done.last().is_some_and(|&done| done > size), "{lines:?}");
    // It was fetched by another process.
    let after = status_bytes(&server, "VmRSS");
    assert!(after < before + (8 << 20), "{before} {after}");
    ask(&server, ONE);
    let again = pull(&server, ONE);
    assert!(again.len() < 6 && again.last().is_some_and(|line| line["status"] == "success"), "{again:?}");
    // What cannot be fetched says why.
    for (model, part) in [("org/none", "no model org/none"), ("none", "no name of a model"), (tiny(), "no name")] {
        let told = pull(&server, model);
        assert!(told[0]["error"].as_str().unwrap().contains(part), "{model} {told:?}");
    }
    let mischief = Mischief { lengthens: Some(("model.safetensors".into(), 1 << 49)), ..Mischief::default() };
    place.hub.does(mischief);
    place.hub.add_folder("org/large", Path::new(tiny()));
    place.hub.forget();
    let told = pull(&server, "org/large");
    assert!(told[0]["error"].as_str().unwrap().contains("free some room"), "{told:?}");
    assert_eq!(place.hub.sent("/blob/") + place.hub.sent("/resolve/"), 0);
    ask(&server, ONE);
}

#[test]
fn fetching_stops_with_its_client_and_goes_on_where_it_was() {
    let place = Place::new();
    let size = fs::metadata(Path::new(tiny()).join("model.safetensors")).unwrap().len();
    place.hub.does(Mischief { bytes_per_second: Some(size / 8), ..Mischief::default() });
    let server = serve(&place, &[]);
    let mut stream = server.connect();
    let body = json!({"model": ONE}).to_string();
    let head = "POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let incomplete = || {
        let blobs = fs::read_dir(place.cache.path().join("models--org--tiny/blobs")).into_iter().flatten().flatten();
        let blobs = blobs.filter(|blob| blob.file_name().to_string_lossy().ends_with(".incomplete"));
        blobs.map(|blob| blob.metadata().map_or(0, |found| found.len())).sum::<u64>()
    };
    let begun = Instant::now();
    while incomplete() < size / 8 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing comes");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    // Its process is gone once nothing more comes.
    let begun = Instant::now();
    loop {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.id()));
        let before = incomplete();
        std::thread::sleep(Duration::from_millis(400));
        if incomplete() == before {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it goes on: {children:?}");
    }
    let kept = incomplete();
    assert!(kept >= size / 8 && kept < size, "{kept} of {size}");
    place.hub.does(Mischief::default());
    place.hub.forget();
    assert!(pull(&server, ONE).last().is_some_and(|line| line["status"] == "success"));
    assert!(place.hub.sent("/blob/") < size + (64 << 10), "{} bytes came again", place.hub.sent("/blob/"));
    ask(&server, ONE);
}

#[test]
fn options_for_one_model_are_refused_without_one() {
    refused(
        &["serve", "--served-model-name", "mine"],
        &["--served-model-name is for one MODEL", "hint: name the MODEL"],
    );
    refused(&["serve", "--kv-events", "127.0.0.1:5557"], &["--kv-events is for one MODEL"]);
    refused(&["serve", "--revision", "main"], &["--revision is for one MODEL"]);
    refused(&["serve", tiny(), "--keep-alive", "5m"], &["--keep-alive", "MODEL"]);
    refused(&["serve", "--keep-alive", "soon"], &["--keep-alive", "5m"]);
    refused(&["serve", "--memory", "4000T"], &["--memory is 4000"]);
}
