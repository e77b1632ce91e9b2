//! `interbed serve`: from start to an orderly end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{ended, interbed, succeeded, tiny};

/// Time for one answer: a GPU that is computed by the processor, which others use too, is slow.
const PATIENCE: Duration = Duration::from_secs(600);

/// A server under way; killed if the test fails.
pub struct Server {
    child: Child,
    /// What it says, where no file gets it.
    stderr: Option<BufReader<std::process::ChildStderr>>,
    address: String,
    /// What it said until it was ready.
    pub said: String,
}

impl Server {
    pub fn start(more: &[&str]) -> Self {
        Self::within("512M", more)
    }

    fn within(memory: &str, more: &[&str]) -> Self {
        Self::of(tiny(), &[&["--memory", memory], more].concat())
    }

    /// A server of the model at `path`.
    pub fn of(path: &str, more: &[&str]) -> Self {
        Self::of_in(&[], path, more)
    }

    /// The same with these variables.
    pub fn of_in(variables: &[(&str, &Path)], path: &str, more: &[&str]) -> Self {
        let mut command = interbed(&[&["serve", path, "--port", "0"], more].concat());
        command.envs(variables.iter().copied());
        Self::begin(command)
    }

    /// A server that this command starts.
    pub fn begin(mut command: Command) -> Self {
        // A line for each request would fill the pipe, which nobody reads.
        command.env("RUST_LOG", "warn");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self { child, stderr: None, address: String::new(), said: String::new() };
        let mut said = String::new();
        while server.address.is_empty() {
            let before = said.len();
            assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "the server ended: {said}");
            if let Some((_, url)) = said[before..].split_once("http://") {
                server.address = url.split('/').next().unwrap().to_owned();
            }
        }
        (server.said, server.stderr) = (said, Some(stderr));
        server
    }

    /// A server that this command starts, and that says what it says to the file `log`.
    pub fn following(mut command: Command, log: &Path) -> Self {
        let child = command.env("RUST_LOG", "warn").stdout(Stdio::null()).spawn().unwrap();
        let (stderr, begun) = (None, Instant::now());
        let mut server = Self { child, stderr, address: String::new(), said: String::new() };
        while server.address.is_empty() {
            assert!(begun.elapsed() < PATIENCE && server.child.try_wait().unwrap().is_none(), "{}", server.said);
            std::thread::sleep(Duration::from_millis(20));
            server.said = std::fs::read_to_string(log).unwrap();
            if let Some((_, rest)) = server.said.split_once("http://")
                && let Some((address, _)) = rest.split_once('/')
            {
                server.address = address.to_owned();
            }
        }
        server
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends one request, and returns the whole answer, head and body.
    pub fn ask(&self, head: &str, body: &str) -> String {
        self.try_ask(head, body).unwrap()
    }

    /// The same of a server that may be gone.
    pub fn try_ask(&self, head: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        let request = format!(
            "{head}\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
                               Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// A connection to it.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The JSON that it answers to a POST, or to a GET if there is no body, and the status.
    pub fn json(&self, path: &str, body: &str) -> (u16, serde_json::Value) {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let answer = self.ask(&format!("{method} {path} HTTP/1.1"), body);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer}")))
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it at once; requests in flight are cut.
    pub fn kill(&self) {
        assert!(Command::new("kill").args(["-9", &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Tells it to stop, and returns its exit code and what it still said.
    pub fn stop(mut self, signal: &str) -> (Option<i32>, String) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
        let mut rest = String::new();
        self.stderr.iter_mut().for_each(|stderr| _ = stderr.read_to_string(&mut rest).unwrap());
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone where the test succeeded.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_answers_and_ends_in_order() {
    let server = Server::start(&["--served-model-name", "babbler", "--served-model-name", "other"]);
    let health = server.ask("GET /health HTTP/1.1", "");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let body = r#"{"model": "other", "prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": true}"#;
    let answer = server.ask("POST /v1/completions HTTP/1.1", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#""completion_tokens":4"#) && answer.contains("babbler"), "{answer}");
    let refused = server.ask("POST /v1/completions HTTP/1.1", r#"{"model": "gpt-4", "prompt": "x"}"#);
    assert!(refused.starts_with("HTTP/1.1 404"), "{refused}");
    let (code, said) = server.stop("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Stopping"), "{said}");
}

#[test]
fn clients_are_told_of_the_model_what_info_says() {
    let info: serde_json::Value = serde_json::from_str(&succeeded(&["info", tiny(), "--json"])).unwrap();
    let server = Server::start(&["--served-model-name", "babbler"]);
    let told = |head: &str, body: &str| {
        let answer = server.ask(head, body);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<serde_json::Value>(body).unwrap_or_else(|error| panic!("{error} in {answer}"))
    };
    let listed = told("GET /api/tags HTTP/1.1", "");
    let model = &listed["models"][0];
    assert_eq!((&model["name"], &model["size"]), (&"babbler:latest".into(), &info["weights"]["bytes"]));
    assert_eq!(model["details"]["format"], info["format"]);
    assert_eq!(model["details"]["quantization_level"], info["weights"]["dtype"]);
    let family = info["architecture"].as_str().unwrap().to_lowercase();
    assert_eq!(model["details"]["family"], family.as_str());
    let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(model["digest"].as_str().is_some_and(is_digest), "{model}");
    // The model's files were written some time ago.
    assert!(model["modified_at"].as_str().is_some_and(|time| time > "2020"), "{model}");
    let figures = &told("POST /api/show HTTP/1.1", r#"{"model": "babbler"}"#)["model_info"];
    assert_eq!(figures["general.parameter_count"], info["parameters"]);
    for (figure, name) in [
        ("block_count", "layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "heads"),
        ("attention.head_count_kv", "kv_heads"),
        ("vocab_size", "vocab_size"),
    ] {
        assert_eq!(figures[format!("{family}.{figure}")], info[name], "{figure}");
    }
}

#[test]
fn the_least_memory_serves_and_is_kept_to() {
    let info: serde_json::Value = serde_json::from_str(&succeeded(&["info", tiny(), "--json"])).unwrap();
    let least = info["memory"]["serve_least_bytes"].as_u64().unwrap();
    let server = Server::within(&least.to_string(), &[]);
    let prompt = "the other ones are here ".repeat(10);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let body = format!(r#"{{"prompt": "{prompt}", "max_tokens": 8, "ignore_eos": true, "n": 4}}"#);
                let answer = server.ask("POST /v1/completions HTTP/1.1", &body);
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            });
        }
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    assert!(peak <= least, "{peak} bytes at the peak, {least} were given");
    let (code, said) = server.stop("-TERM");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn keys_are_asked_for() {
    let server = Server::start(&["--api-key", "sesame", "--max-body", "1K"]);
    assert!(server.ask("GET /v1/models HTTP/1.1", "").starts_with("HTTP/1.1 401"));
    let with_key = "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer sesame";
    assert!(server.ask(with_key, "").starts_with("HTTP/1.1 200"));
    let (code, _) = server.stop("-INT");
    assert_eq!(code, Some(0));
}

#[test]
fn an_address_in_use_is_told_before_the_model_is_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ended = ended(&["serve", tiny(), "--port", &port]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    for part in [port.as_str(), "another --port", "hint: "] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("weights"), "{}", ended.stderr);
}
