//! `interbed serve` for those who run it: start, keys, certificates, logs, the end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::{interbed, refused, tiny};

/// A server under way; killed if the test fails.
struct Serving {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Serving {
    /// One that has bound its address, and perhaps no more.
    fn begin(more: &[&str]) -> Self {
        Self::of(tiny(), "512M", more)
    }

    fn of(model: &str, memory: &str, more: &[&str]) -> Self {
        let args = [&["serve", model, "--port", "0", "--memory", memory], more].concat();
        let mut child = interbed(&args).env("RUST_LOG", "info").stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut serving = Self { child, stderr, address: String::new() };
        let line = serving.line("Listening on ");
        // As JSON, the line is an object.
        let said = line.split("Listening on ").nth(1).unwrap();
        serving.address = said.split(';').next().unwrap().to_owned();
        serving
    }

    /// One that serves.
    fn start(more: &[&str]) -> Self {
        let mut serving = Self::begin(more);
        serving.line("Serving ");
        serving
    }

    /// Reads on to a line with this in it.
    fn line(&mut self, part: &str) -> String {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.stderr.read_line(&mut line).unwrap(), 0, "it ended without {part:?}: {said}");
            if line.contains(part) {
                return line;
            }
            said.push_str(&line);
        }
    }

    fn ask(&self, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        exchange(&mut stream, head, body)
    }

    fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Its exit code, and what it still says.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Already gone where the test succeeded.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exchange(stream: &mut (impl Read + Write), head: &str, body: &str) -> String {
    let length = body.len();
    let request = format!("{head}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn it_answers_from_the_beginning() {
    let mut serving = Serving::begin(&[]);
    // However fast the model is loaded, each answer is one of the two, and the last is that it is there.
    loop {
        let health = serving.ask("GET /health HTTP/1.1", "");
        if health.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(
            health.starts_with("HTTP/1.1 503") && health.contains(r#"{"status":"loading","loaded_bytes":"#),
            "{health}"
        );
        assert!(serving.ask("GET /version HTTP/1.1", "").starts_with("HTTP/1.1 200"));
    }
    serving.line("Serving ");
    let page = serving.ask("GET /metrics HTTP/1.1", "");
    assert!(page.contains(r#"interbed:loading{model_name="tiny",engine="0"} 0"#), "{page}");
}

#[test]
fn a_load_that_fails_ends_the_process_with_its_error() {
    let nowhere = ["serve", tiny(), "--port", "0", "--memory", "512M", "--swap-dir", "/no/such/directory"];
    let said = refused(&nowhere, &["Listening on", "/no/such/directory", "hint: "]);
    assert!(!said.contains("Serving"), "{said}");
}

#[test]
fn keys_come_from_a_file_that_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("# ours\nfirst alice\n");
    let mut serving =
        Serving::start(&["--api-key", "given,other", "--api-key-file", text(&file), "--log-format", "json"]);
    let status = |serving: &Serving, key: &str| {
        let answer = serving.ask(&format!("GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {key}"), "");
        answer[9..12].to_owned()
    };
    assert_eq!(["given", "first", "second"].map(|key| status(&serving, key)), ["200", "200", "401"]);
    // A comma separates keys, as it does for llama.cpp, so it is part of none.
    assert_eq!(["other", "given,other"].map(|key| status(&serving, key)), ["200", "401"]);
    write("second bob\n");
    serving.signal("-HUP");
    assert!(serving.line("SIGHUP").contains("3 API keys are known"), "one of the file, and the two that were given");
    assert_eq!(["given", "first", "second"].map(|key| status(&serving, key)), ["200", "401", "200"]);
    for (bad, why) in [("", "no key"), ("a\na\n", "line 2"), ("given", "given otherwise")] {
        write(bad);
        serving.signal("-HUP");
        let line = serving.line("stay as they were");
        assert!(line.contains(why) && !line.contains("second"), "{line}");
    }
    std::fs::remove_file(&file).unwrap();
    serving.signal("-HUP");
    assert!(serving.line("stay as they were").contains("cannot read --api-key-file"));
    assert_eq!(["given", "first", "second"].map(|key| status(&serving, key)), ["200", "401", "200"]);
    serving.signal("-TERM");
    assert_eq!(serving.ended().0, Some(0));
}

#[test]
fn files_that_cannot_be_used_are_refused_before_the_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let serve = |option: &[&str], parts: &[&str]| {
        let said = refused(&[&["serve", tiny(), "--port", "0", "--memory", "512M"], option].concat(), parts);
        assert!(!said.contains("Listening"), "{said}");
    };
    let missing = crate::support::ended(&["serve", tiny(), "--port", "0", "--api-key-file", "/no/such/file"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("/no/such/file") && missing.stderr.contains("hint: "), "{}", missing.stderr);
    for (content, part) in [(&b""[..], "no key"), (b"a\na", "line 2"), (b"\xff", "UTF-8"), (&[b'a'; 2 << 20], "limit")]
    {
        std::fs::write(&file, content).unwrap();
        serve(&["--api-key-file", text(&file)], &["--api-key-file", part, "hint: "]);
    }
    serve(&["--tls-cert", text(&file), "--tls-key", text(&file)], &["limit"]);
    std::fs::write(&file, "nothing").unwrap();
    serve(&["--tls-cert", text(&file), "--tls-key", text(&file)], &["no certificate", "hint: "]);
    serve(&["--tls-cert", text(&file)], &["--tls-key"]);
    serve(&["--otlp-endpoint", "https://x"], &["--otlp-endpoint", "http://localhost:4318"]);
}

#[test]
fn a_shared_store_that_refuses_is_told_at_the_start_and_does_not_hinder_it() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let server = Server::of(tiny(), &["--kv-remote", &format!("redis://:hush@{closed}")]);
    for part in ["warning: KV is not shared in redis://127.0.0.1:", "refused", "start the store"] {
        assert!(server.said.contains(part), "{part} in {}", server.said);
    }
    assert!(!server.said.contains("hush"), "{}", server.said);
}

#[test]
fn the_address_of_a_shared_store_is_refused_without_its_password() {
    let serve = ["serve", tiny(), "--port", "0", "--memory", "512M", "--kv-remote"];
    for address in ["rediss://me:hush@cache/x", "ftp://me:hush@cache", "s3://hush:hush@bucket"] {
        let said = refused(&[&serve[..], &[address]].concat(), &["--kv-remote", "redis://HOST:6379", "hint: "]);
        assert!(!said.contains("hush") && !said.contains("Serving"), "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "hush").unwrap();
    let prefixes = ["redis://cache", "--no-prefix-caching"];
    refused(&[&serve[..], &prefixes].concat(), &["--kv-remote", "--no-prefix-caching", "hint: "]);
    let more = ["redis://cache", "--kv-remote-key", text(&key)];
    let said = refused(&[&serve[..], &more].concat(), &["holds 4 bytes", "hint: "]);
    assert!(!said.contains("hush"), "{said}");
}

#[test]
fn options_of_a_gpu_are_refused_without_one() {
    for option in [["--gpu-memory", "1G"], ["--gpu-products", "integer"], ["--host-products", "on"]] {
        for command in ["serve", "run"] {
            let args = [&[command, tiny(), "--memory", "512M"], &option[..]].concat();
            let prompt: &[&str] = if command == "run" { &["--prompt", "x"] } else { &["--port", "0"] };
            refused(&[&args[..], prompt].concat(), &[option[0], "--device cpu", "hint: "]);
        }
    }
}

#[test]
fn https_is_served_and_its_certificate_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = [
        [
            include_str!("../../../interbed-server/tests/fixtures/tls/one.cert.pem"),
            include_str!("../../../interbed-server/tests/fixtures/tls/one.key.pem"),
        ],
        [
            include_str!("../../../interbed-server/tests/fixtures/tls/other.cert.pem"),
            include_str!("../../../interbed-server/tests/fixtures/tls/other.key.pem"),
        ],
    ];
    let renew = |[cert, signing_key]: [&str; 2]| {
        std::fs::write(&certificate, cert).unwrap();
        std::fs::write(&key, signing_key).unwrap();
        CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()
    };
    let first = renew(made[0]);
    let mut serving = Serving::begin(&["--tls-cert", text(&certificate), "--tls-key", text(&key)]);
    assert!(serving.line("Serving ").contains("https://"));
    let ask = |serving: &Serving, trusted: &CertificateDer<'static>| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(&serving.address).unwrap();
        connection.complete_io(&mut socket).map_err(|error| error.to_string())?;
        let mut stream = rustls::StreamOwned::new(connection, socket);
        Ok::<_, String>(exchange(&mut stream, "GET /health HTTP/1.1", ""))
    };
    assert!(ask(&serving, &first).unwrap().starts_with("HTTP/1.1 200"));
    std::fs::write(&key, "nothing").unwrap();
    serving.signal("-HUP");
    assert!(serving.line("stays as it was").contains("private key"));
    assert!(ask(&serving, &first).is_ok());
    let second = renew(made[1]);
    serving.signal("-HUP");
    serving.line("certificate as it is now");
    assert!(ask(&serving, &first).is_err_and(|error| error.contains("certificate")));
    assert!(ask(&serving, &second).unwrap().starts_with("HTTP/1.1 200"));
}

#[test]
fn each_request_has_one_line_with_its_figures_and_nothing_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "sesame alice\n").unwrap();
    let serving = Serving::start(&["--log-format", "json", "--api-key-file", text(&file)]);
    let head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: Bearer sesame";
    for (id, stream) in [("one", false), ("two", true)] {
        let body = json!({"prompt": "hush hush", "max_tokens": 4, "ignore_eos": true, "stream": stream}).to_string();
        let answer = serving.ask(&format!("{head}\r\nX-Request-Id: {id}"), &body);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.to_lowercase().contains(&format!("x-request-id: {id}")));
    }
    serving.ask(&format!("{head}\r\nX-Request-Id: three"), "{");
    serving.ask("GET /health HTTP/1.1\r\nX-Request-Id: four", "");
    serving.signal("-TERM");
    let (code, said) = serving.ended();
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |id: &str| {
        let mine: Vec<_> =
            lines.iter().filter(|line| line["request_id"] == id && line["message"] == "request").collect();
        assert!(mine.len() < 2, "{mine:?}");
        mine.first().map(|&line| line.clone())
    };
    for id in ["one", "two"] {
        let line = of(id).unwrap_or_else(|| panic!("no line of {id} in {said}"));
        let at = |key: &str| line[key].clone();
        assert_eq!((at("method"), at("path"), at("status")), (json!("POST"), json!("/v1/completions"), json!(200)));
        assert_eq!(
            (at("client"), at("completion_tokens"), at("finish_reason")),
            (json!("alice"), json!(4), json!("length"))
        );
        assert!(at("prompt_tokens").as_u64().unwrap() > 0 && at("cached_tokens").is_u64(), "{line}");
        let [queued, first, all] = ["queued_ms", "ttft_ms", "duration_ms"].map(|key| at(key).as_f64().unwrap());
        assert!(0.0 <= queued && queued <= first && first <= all, "{line}");
        assert!(at("timestamp").is_string() && at("level") == "INFO", "{line}");
    }
    let refused = of("three").unwrap();
    assert_eq!((&refused["status"], &refused["prompt_tokens"]), (&json!(400), &Value::Null));
    assert_eq!(of("four"), None, "polls are no news");
    for secret in ["hush", "sesame"] {
        assert!(!said.contains(secret), "{said}");
    }
}

/// Whether a request was answered; `None` where it was not taken. Anything between the two is a loss.
fn answered(address: &str) -> Option<bool> {
    // One that cannot connect any more has lost nothing.
    let mut stream = TcpStream::connect(address).ok()?;
    let body = r#"{"prompt": "x", "max_tokens": 16, "ignore_eos": true, "stream": true}"#;
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    let sent = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    match () {
        () if answer.starts_with("HTTP/1.1 200") && answer.contains("data: [DONE]") => Some(true),
        () if answer.starts_with("HTTP/1.1 503") && answer.contains("draining") => Some(false),
        // It waited in the socket's queue of a server that ended: none of it was read.
        () if answer.is_empty() && (sent.is_err() || read.is_err()) => None,
        () => panic!("{sent:?} {read:?} {answer:?}"),
    }
}

#[test]
fn a_stop_under_load_loses_no_accepted_request() {
    let serving = Serving::start(&["--log-format", "json", "--drain-seconds", "600"]);
    let (address, whole) = (serving.address.clone(), AtomicUsize::new(0));
    let said = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while answered(&address) == Some(true) {
                    whole.fetch_add(1, Relaxed);
                }
            });
        }
        while whole.load(Relaxed) < 24 {
            std::thread::yield_now();
        }
        serving.signal("-TERM");
        let (code, said) = serving.ended();
        assert_eq!(code, Some(0), "{said}");
        said
    });
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let taken: Vec<Value> = lines.filter(|line| line["status"] == 200).collect();
    assert_eq!(taken.len(), whole.load(Relaxed), "what was taken was answered");
    assert!(taken.iter().all(|line| line["finish_reason"] == "length" && line["completion_tokens"] == 16));
    assert!(!said.contains("were cut"), "{said}");
}

#[test]
fn a_stop_ends_though_clients_that_were_refused_come_again() {
    let serving = Serving::start(&["--drain-seconds", "600"]);
    let (address, answers) = (serving.address.clone(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // Until nobody listens any more.
            scope.spawn(|| {
                while TcpStream::connect(&address).is_ok() {
                    answers.fetch_add(usize::from(answered(&address) == Some(true)), Relaxed);
                }
            });
        }
        while answers.load(Relaxed) < 8 {
            std::thread::yield_now();
        }
        serving.signal("-TERM");
        let (code, said) = serving.ended();
        assert_eq!(code, Some(0), "{said}");
    });
}

#[test]
fn signals_while_the_model_is_loaded_end_the_process_or_are_for_later() {
    // Without files to read again, there is nothing to do for this one, at whatever time.
    let mut serving = Serving::begin(&[]);
    serving.signal("-HUP");
    serving.line("Serving ");
    serving.signal("-HUP");
    assert!(serving.ask("GET /health HTTP/1.1", "").starts_with("HTTP/1.1 200"));
    serving.signal("-TERM");
    assert_eq!(serving.ended().0, Some(0));
    for (name, loading) in [("-TERM", 143), ("-INT", 130)] {
        let serving = Serving::begin(&[]);
        serving.signal(name);
        // A small model may have been there already.
        let (code, said) = serving.ended();
        assert!([Some(loading), Some(0)].contains(&code), "{code:?} {said}");
    }
}

#[test]
fn a_second_signal_cuts_at_once_and_says_so_to_clients() {
    let mut serving = Serving::start(&["--drain-seconds", "600"]);
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let body = json!({"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 32}).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).unwrap();
    answer.truncate(read);
    serving.signal("-TERM");
    serving.line("Stopping");
    serving.signal("-TERM");
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("[DONE]"), "{answer}");
    let (code, said) = serving.ended();
    // It may have been done before the second word came.
    assert!(code == Some(130) && answer.contains("\"error\"") || code == Some(0), "{code:?} {said}");
}

/// The names of metrics in a query, and the labels that it asks for.
fn parts(query: &str) -> (Vec<String>, Vec<String>) {
    let (mut names, mut labels) = (Vec::new(), Vec::new());
    assert_eq!(query.matches(['(', '{', '[']).count(), query.matches([')', '}', ']']).count(), "{query}");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut rest = query;
    while let Some(begin) = rest.find(is_name) {
        rest = &rest[begin..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.contains(':') {
            names.push(word.to_owned());
        } else if after.trim_start().starts_with('=') {
            labels.push(word.to_owned());
        } else if matches!(word, "by") {
            let list = after.trim_start().strip_prefix('(').and_then(|list| list.split(')').next()).expect(query);
            labels.extend(list.split(',').map(|label| label.trim().to_owned()));
        }
        rest = after;
    }
    (names, labels)
}

#[test]
fn the_dashboard_asks_for_nothing_that_a_server_does_not_show() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/grafana/interbed.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    // A server with KV on disk, and one that streams its weights; both have served something.
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("deep");
    crate::support::succeeded(&["synth", "--like", "tiny", "--layers", "300", text(&deep)]);
    let info: Value = serde_json::from_str(&crate::support::succeeded(&["info", text(&deep), "--json"])).unwrap();
    let least = info["memory"]["serve_least_bytes"].as_u64().unwrap().to_string();
    let kv = folder.path().join("kv");
    let plain = Serving::start(&["--kv-disk", text(&kv), "--kv-disk-size", "64M"]);
    let mut streaming = Serving::of(text(&deep), &least, &[]);
    streaming.line("Serving ");
    let ask = |serving: &Serving| {
        let head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json";
        let answer = serving.ask(head, r#"{"prompt": "x", "max_tokens": 2, "ignore_eos": true}"#);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        serving.ask("GET /metrics HTTP/1.1", "")
    };
    let page = [ask(&plain), ask(&streaming)].concat();
    let sample = |name: &str| page.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let (names, labels) = parts(query);
            assert!(!names.is_empty(), "{query}");
            queries += 1;
            for name in &names {
                let line = sample(name).unwrap_or_else(|| panic!("{name} of {query:?} is not in {page}"));
                // Prometheus adds the label of the server itself.
                for label in labels.iter().filter(|label| *label != "instance") {
                    assert!(line.contains(&format!("{label}=\"")), "{label} of {query:?} is not in {line}");
                }
            }
        }
    }
    assert!(queries > 30, "only {queries} queries");
}

/// What a terminal would take for a command.
fn commands(text: &str) -> Vec<char> {
    text.chars().filter(|&character| character.is_control() && !matches!(character, '\n' | '\t' | '\r')).collect()
}

#[test]
fn names_in_files_command_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let copy = crate::support::copy_of_tiny(&[]);
    let model = folder.path().join("m\u{1b}]0;owned\u{7}\u{9b}2J\nserving");
    std::fs::rename(copy.path(), &model).unwrap();
    let model = text(&model);
    for args in [&["info", model][..], &["run", model, "--prompt", "x", "--max-tokens", "1"], &["verify", model]] {
        let output = interbed(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        for said in [&output.stdout, &output.stderr] {
            let said = String::from_utf8_lossy(said);
            assert!(commands(&said).is_empty(), "{args:?}: {said:?}");
        }
    }
    let mut serving = Serving::of(model, "512M", &[]);
    let line = serving.line("Serving ");
    assert!(line.contains("Serving m_]0;owned__2J_serving on") && commands(&line).is_empty(), "{line:?}");
    let page = serving.ask("GET /metrics HTTP/1.1", "");
    assert!(page.contains("model_name=\"m_]0;owned__2J_serving\"") && commands(&page).is_empty());
    // Nobody is told where the model lies, either.
    let models = serving.ask("GET /v1/models HTTP/1.1", "");
    assert!(!models.contains(text(folder.path())) && !models.contains("u001b"), "{models}");
    serving.signal("-TERM");
    let (_, rest) = serving.ended();
    assert!(commands(&rest).is_empty(), "{rest:?}");
    // What is wrong with a file is told with what is in it.
    let file = Path::new(model).join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    tokenizer["model"]["merges"] = json!([["\u{1b}[31mred", "\u{202e}x"], "\u{9b}2J y"]);
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    std::fs::write(Path::new(model).join("generation_config.json"), "{\"\u{1b}[31m\": nothing}").unwrap();
    for args in [&["run", model, "--prompt", "x"][..], &["info", model], &["serve", model, "--port", "0"]] {
        let output = interbed(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && commands(&said).is_empty() && !said.contains('\u{202e}'), "{said:?}");
    }
    refused(&["serve", tiny(), "--served-model-name", "a\u{1b}[31m"], &["--served-model-name", "terminal"]);
}

#[test]
fn a_key_in_the_list_of_processes_is_warned_of() {
    for (args, is_told) in
        [(&["--api-key", "sesame"][..], true), (&["--api-key=sesame"], true), (&["--max-waiting", "9"], false)]
    {
        let mut child = interbed(&[&["serve", tiny(), "--port", "0", "--memory", "512M"], args].concat());
        let mut child = child.env("INTERBED_API_KEY", "sesame").stderr(Stdio::piped()).spawn().unwrap();
        let (mut said, mut line) = (String::new(), String::new());
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        while !line.contains("Listening on ") {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended: {said}");
            said.push_str(&line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(said.contains("INTERBED_API_KEY or --api-key-file"), is_told, "{said}");
        assert!(!said.contains("sesame"), "{said}");
    }
}

#[test]
fn a_server_without_keys_is_called_by_its_own_names_alone() {
    let serving = Serving::start(&["--allow-host", "*.lan", "--allow-origin", "https://chat.example"]);
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let ask = |host: &str, more: &str| {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        let request = format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for known in [machine.trim(), "localhost:8000", "127.0.0.1", "gpu.lan", "nas.local"] {
        assert_eq!(ask(known, ""), "200", "{known}");
    }
    assert_eq!(ask("evil.example", ""), "403");
    assert_eq!(ask("localhost", "Origin: https://evil.example\r\n"), "403");
    assert_eq!(ask("localhost", "Origin: https://chat.example\r\n"), "200");
    refused(&["serve", tiny(), "--allow-host", "http://x"], &["--allow-host", "no host name"]);
    refused(&["serve", tiny(), "--proxy", "nginx"], &["--proxy", "no address"]);
}
