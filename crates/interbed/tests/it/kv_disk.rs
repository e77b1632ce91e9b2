//! `interbed serve --kv-disk`: servers that are killed at any moment, and those that come after them.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::{copy_of_tiny, ended, tiny};

/// How often servers are killed; more by `INTERBED_KILLS`.
const KILLS: u64 = 5;

fn start(directory: &Path, more: &[&str]) -> Server {
    let directory = directory.to_str().unwrap();
    let mut options = vec!["--kv-disk", directory, "--kv-disk-size", "64M", "--kv-disk-mode", "mirror"];
    options.extend(more);
    Server::start(&options)
}

/// The answer to a prompt of its own for each number; none if the server is gone.
fn answer(server: &Server, number: u64) -> Option<String> {
    let prompt: Vec<u64> = (0..60).map(|at| (number * 7 + at * at + at * number) % 200 + 5).collect();
    let body = json!({"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    let answer = server.try_ask("POST /v1/completions HTTP/1.1", &body.to_string()).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let body: Value = serde_json::from_str(body).ok()?;
    Some(body["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no answer: {body}")).to_owned())
}

pub fn metric(server: &Server, name: &str) -> u64 {
    let page = server.ask("GET /metrics HTTP/1.1", "");
    let line = page.lines().find(|line| line.split(['{', ' ']).next() == Some(name));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

/// Blocks that a server has found at its start.
fn found(server: &Server) -> u64 {
    let line = server.said.lines().find(|line| line.starts_with("KV disk")).unwrap();
    let (_, rest) = line.rsplit_once("; ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Whoever looks stops, even if the test fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn whoever_comes_after_a_killed_server_finds_what_was_durable_and_answers_alike() {
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = parent.path().join("kv");
    survive_kills(&Server::start(&[]), &|| start(&directory, &[]));
}

/// Kills servers that `start` starts at any moment. Those that come after must find what was durable, and answer like
/// `plain`.
pub fn survive_kills(plain: &Server, start: &dyn Fn() -> Server) {
    let expected: Vec<_> = (0..12).map(|number| answer(plain, number).unwrap()).collect();
    let kills = std::env::var("INTERBED_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let (mut least, mut random) = (0, fastrand::Rng::with_seed(1));
    for _ in 0..kills {
        let server = start();
        assert!(found(&server) >= least, "{} blocks are left of {least}", found(&server));
        least = found(&server);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = SetWhenDropped(&over);
            for client in 0..2 {
                let (server, expected, over) = (&server, &expected, &over);
                scope.spawn(move || {
                    for number in (client * 5..).map(|number| number % 12) {
                        match answer(server, number) {
                            Some(text) => assert_eq!(text, expected[number as usize], "prompt {number}"),
                            None => break,
                        }
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                });
            }
            // Long enough for some to be answered, mostly.
            std::thread::sleep(Duration::from_millis(random.u64(..1024)));
            least += metric(&server, "interbed:kv_disk_durable_blocks_total");
            over.store(true, Ordering::SeqCst);
            server.kill();
        });
    }
    assert!(least > 20, "{least} blocks were stored");
    let server = start();
    assert!(found(&server) >= least);
    for (number, expected) in (0..).zip(&expected) {
        assert_eq!(answer(&server, number).as_ref(), Some(expected));
    }
    assert!(metric(&server, "interbed:kv_disk_fetched_tokens_total") > 0);
    assert_eq!(metric(&server, "interbed:kv_disk_read_errors_total"), 0);
}

#[test]
fn a_second_server_is_told_and_runs_without() {
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let first = start(parent.path(), &[]);
    let second = start(parent.path(), &[]);
    assert!(second.said.contains("in use by another process"), "{}", second.said);
    assert!(answer(&second, 1).is_some());
    assert!(!second.ask("GET /metrics HTTP/1.1", "").contains("interbed:kv_disk"));
    drop(first);
}

#[test]
fn a_context_beyond_memory_is_answered_as_with_ample_memory() {
    let model = copy_of_tiny(&["config.json"]);
    let config = std::fs::read_to_string(Path::new(tiny()).join("config.json")).unwrap();
    let longer = config.replace(r#""max_position_embeddings": 512"#, r#""max_position_embeddings": 6000"#);
    assert_ne!(longer, config);
    std::fs::write(model.path().join("config.json"), longer).unwrap();
    let (path, parent) = (model.path().to_str().unwrap(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let store = parent.path().to_str().unwrap();
    let ample = ["--memory", "512M", "--swap-space", "0"];
    let tight = [&ample[..], &["--kv-disk", store, "--kv-disk-size", "64M"]].concat();
    // The least for 256 tokens; a MiB more has room for some thousand.
    let refused = ended(&[&["serve", path, "--port", "0", "--kv-memory", "1M"], &tight[..]].concat());
    let least = refused.stderr.split("give --kv-memory ").nth(1).and_then(|rest| rest.split('M').next());
    let least: u64 = least.and_then(|least| least.parse().ok()).unwrap_or_else(|| panic!("{refused:?}"));
    let memory = format!("{}M", least + 1);
    let prompt: Vec<u64> = (0..5000).map(|at| (at * at + 3 * at) % 200 + 5).collect();
    let body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": true}).to_string();
    let text = |server: &Server| {
        let answer = server.ask("POST /v1/completions HTTP/1.1", &body);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let loaded = body["usage"]["interbed"]["disk"]["loaded_tokens"].as_u64().unwrap_or(0);
        assert_eq!(loaded, cached, "nothing of it was in memory");
        (body["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no answer: {body}")).to_owned(), cached)
    };
    let (expected, _) = text(&Server::of(path, &ample));
    let tight = [&["--kv-memory", &memory][..], &tight].concat();
    let server = Server::of(path, &tight);
    assert!(server.said.contains("what a request has beyond that is on disk"), "{}", server.said);
    assert_eq!(text(&server), (expected.clone(), 0));
    assert!(metric(&server, "interbed:kv_disk_read_bytes_total") > 0);
    assert!(metric(&server, "interbed:kv_disk_frames_total") > 0);
    // What memory had room for is written as well, but no answer waits for it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while metric(&server, "interbed:kv_disk_durable_blocks_total") * 16 < 4096 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill();
    drop(server);
    let (again, cached) = text(&Server::of(path, &tight));
    assert_eq!(again, expected);
    assert!(cached >= 4096, "{cached} tokens were found");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = parent.path().to_str().unwrap();
    let refused = |options: &[&str], why: &str| {
        let mut args = vec!["serve", tiny(), "--port", "0", "--memory", "1G"];
        args.extend(options);
        let ended = ended(&args);
        assert!(ended.code == Some(2) && ended.stderr.contains(why), "{options:?}: {ended:?}");
    };
    refused(&["--kv-disk-size", "1G"], "--kv-disk <DIR>");
    refused(&["--kv-disk", directory, "--kv-disk-size", "10K"], "are needed");
    refused(&["--kv-disk", directory, "--kv-disk-ttl", "3 weeks"], "no unit of time");
    refused(&["--kv-disk", directory, "--kv-disk-writes", "much"], "much");
    std::fs::write(parent.path().join("secret"), b"short").unwrap();
    let rights = |mode| {
        std::fs::set_permissions(parent.path().join("secret"), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    rights(0o644);
    refused(&["--kv-disk", directory], "read by other users");
    rights(0o600);
    refused(&["--kv-disk", directory], "damaged");
    std::fs::remove_file(parent.path().join("secret")).unwrap();
    std::fs::write(parent.path().join("segment-000000"), b"OTHERSKV and more").unwrap();
    refused(&["--kv-disk", directory], "older version");
    std::fs::remove_file(parent.path().join("segment-000000")).unwrap();
    std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
    refused(&["--kv-disk", directory], "chmod go-w");
}

/// Changes bytes in place, and puts the time back.
fn overwrite(path: &Path, at: u64, change: impl Fn(&mut [u8]), len: usize) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    change(&mut bytes);
    file.write_all_at(&bytes, at).unwrap();
    file.set_modified(modified).unwrap();
}

/// Where a tensor lies in a file of safetensors: the first byte, and how many.
fn place_of(path: &Path, tensor: &str) -> (u64, usize) {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let json: Value = serde_json::from_slice(&bytes[8..8 + header as usize]).unwrap();
    let [begin, end] =
        [0, 1].map(|index| json[tensor]["data_offsets"][index].as_u64().expect("there is such a tensor"));
    (8 + header + begin, (end - begin) as usize)
}

/// Tokens of the first `count` answers that came from disk, and the answers.
fn from_disk(server: &Server, count: u64) -> (u64, Vec<String>) {
    let before = metric(server, "interbed:kv_disk_fetched_tokens_total");
    let answers = (0..count).map(|number| answer(server, number).unwrap()).collect();
    (metric(server, "interbed:kv_disk_fetched_tokens_total") - before, answers)
}

#[test]
fn kv_of_a_model_that_was_changed_is_not_used() {
    let (model, parent) = (copy_of_tiny(&[]), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let (path, cache) = (model.path().to_str().unwrap(), parent.path().join("cache"));
    let directory = parent.path().join("kv");
    let options = ["--memory", "512M", "--kv-disk", directory.to_str().unwrap(), "--kv-disk-size", "64M"];
    let start = || Server::of_in(&[("XDG_CACHE_HOME", &cache)], path, &options);
    // So long that what is noted is believed.
    std::thread::sleep(Duration::from_millis(2100));
    let stop = |server: Server| assert_eq!(server.stop("-TERM").0, Some(0));
    let run = |expects: bool, what: &str| {
        let server = start();
        let (tokens, answers) = from_disk(&server, 3);
        stop(server);
        let plain = Server::of(path, &["--memory", "512M"]);
        let fresh: Vec<_> = (0..3).map(|number| answer(&plain, number).unwrap()).collect();
        assert_eq!((tokens > 0, answers), (expects, fresh), "{what}: {tokens} tokens from disk");
    };
    run(false, "nothing is there");
    run(true, "as before");
    let weights = model.path().join("model.safetensors");
    for tensor in ["model.layers.0.input_layernorm.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"]
    {
        let (begin, len) = place_of(&weights, tensor);
        // One number in the middle.
        overwrite(&weights, begin + (len / 4 * 2) as u64, |bytes| bytes.fill(0x3f), 2);
        run(false, tensor);
        run(true, "as before");
    }
    let config = model.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let modified = std::fs::metadata(&config).unwrap().modified().unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["rms_norm_eps"] = json!(0.05);
    std::fs::write(&config, json.to_string()).unwrap();
    std::fs::File::options().write(true).open(&config).unwrap().set_modified(modified).unwrap();
    run(false, "another configuration");
    std::fs::write(&config, text).unwrap();
    run(true, "the configuration of before");
}

#[test]
fn kv_of_a_streamed_model_stays_in_memory_until_the_model_is_known() {
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, directory, cache) = (parent.path().join("model"), parent.path().join("kv"), parent.path().join("cache"));
    std::fs::create_dir(&path).unwrap();
    for entry in std::fs::read_dir(crate::stream::model()).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, path.join(from.file_name().unwrap())).unwrap();
    }
    let (path, directory) = (path.to_str().unwrap(), directory.to_str().unwrap());
    std::thread::sleep(Duration::from_millis(2100));
    let refused =
        ended(&["serve", path, "--port", "0", "--max-num-seqs", "4", "--kv-disk", directory, "--memory", "100M"]);
    let least = refused.stderr.split("give --memory ").nth(1).and_then(|rest| rest.split('M').next());
    let least: u64 = least.and_then(|least| least.parse().ok()).unwrap_or_else(|| panic!("{refused:?}"));
    let budget = format!("{}M", least + 24);
    let options = ["--memory", &budget, "--max-num-seqs", "4", "--kv-disk", directory, "--kv-disk-size", "256M"];
    let start = || Server::of_in(&[("XDG_CACHE_HOME", &cache)], path, &options);
    let is_attached = |server: &Server| server.ask("GET /metrics HTTP/1.1", "").contains("interbed:kv_disk_blocks");
    let attach = |server: &Server| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_attached(server) {
            assert!(Instant::now() < deadline, "the model never becomes known");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let server = start();
    assert!(server.said.contains("come from disk"), "{}", server.said);
    assert!(server.said.contains("waits until the model was read wholly"), "{}", server.said);
    let first = vec![answer(&server, 0).unwrap()];
    attach(&server);
    // What was computed before goes there as well.
    server.stop("-TERM");
    let server = start();
    assert!(is_attached(&server) && !server.said.contains("waits until"), "{}", server.said);
    let (tokens, answers) = from_disk(&server, 1);
    assert!(tokens > 0 && answers == first, "{tokens} tokens from disk");
    // While it is served, nothing is computed with a file that was overwritten, though its time was put back.
    let weights = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let weights = weights.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).max().unwrap();
    let middle = std::fs::metadata(&weights).unwrap().len() / 2;
    overwrite(&weights, middle, |bytes| bytes.rotate_left(2), 64 << 10);
    let body = json!({"prompt": [5, 6, 7, 8], "max_tokens": 4, "temperature": 0}).to_string();
    let refused = server.ask("POST /v1/completions HTTP/1.1", &body);
    assert!(refused.starts_with("HTTP/1.1 500"), "{refused}");
    server.stop("-TERM");
    let server = start();
    attach(&server);
    let (tokens, _) = from_disk(&server, 1);
    assert_eq!(tokens, 0, "it is another model");
}

#[test]
fn what_a_client_has_is_erased_and_nothing_of_others() {
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = parent.path().join("kv");
    let keys = ["--api-key", "one", "--api-key", "two"];
    let prompt: Vec<u64> = (0..200).map(|at| (at * at + 3 * at) % 200 + 5).collect();
    let cached = |server: &Server, key: &str| {
        let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": true}).to_string();
        let answer = server.ask(&format!("POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {key}"), &body);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no answer: {answer}"));
        body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    let erase = |key: &[&str]| ended(&[&["erase", directory.to_str().unwrap()], key].concat());
    assert!(erase(&[]).code == Some(2) && !directory.exists(), "{:?}", erase(&[]));
    for key in ["one", "two"] {
        // Stopped in between, so that they lie in records of their own.
        let server = start(&directory, &keys);
        assert_eq!(cached(&server, key), 0);
        let refused = erase(&["--api-key", "one"]);
        assert!(refused.code == Some(2) && refused.stderr.contains("stop the server"), "{refused:?}");
        server.stop("-TERM");
    }
    let told = erase(&["--api-key", "one"]);
    assert!(told.code == Some(0) && told.stdout.contains("; 0 blocks of others"), "{told:?}");
    let server = start(&directory, &keys);
    assert_eq!((cached(&server, "one"), cached(&server, "two")), (0, 192));
}
