//! Tests the page, and its stream of events.

use std::time::{Duration, Instant};

use interbed_engine::testing::{Step, answer};
use interbed_engine::{BlockUse, LivePlace, LiveSequence, LiveState, TenantId};
use interbed_server::{ApiKey, ApiKeys, Drained, ServerConfig, tenant_of_key};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::fixture::{Server, post_request};

/// A client that follows the stream as the page does.
struct Follower {
    connection: TcpStream,
    text: String,
    wholes: usize,
    blocks: Vec<u16>,
    sequences: Value,
    figures: Value,
    recent: Value,
}

impl Follower {
    async fn join(server: &Server) -> Self {
        Self::over(server.connect().await).await
    }

    async fn over(connection: TcpStream) -> Self {
        Self::with_headers(connection, "").await
    }

    /// Connects with a key.
    async fn of(server: &Server, key: &str) -> Self {
        Self::with_headers(server.connect().await, &format!("Authorization: Bearer {key}\r\n")).await
    }

    async fn with_headers(mut connection: TcpStream, headers: &str) -> Self {
        let head = format!("GET /live/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        connection.write_all(head.as_bytes()).await.unwrap();
        let (blocks, sequences, figures, recent) = (Vec::new(), Value::Null, Value::Null, Value::Null);
        Self { connection, text: String::new(), wholes: 0, blocks, sequences, figures, recent }
    }

    /// Applies the next event, and returns its name; `None` when the stream has ended.
    async fn next(&mut self) -> Option<String> {
        while !self.text.contains("\n\n") {
            let mut piece = vec![0; 64 << 10];
            let length = self.connection.read(&mut piece).await.unwrap();
            if length == 0 {
                return None;
            }
            // Headers and chunk sizes are on their own lines, which no event contains.
            self.text += std::str::from_utf8(&piece[..length]).unwrap();
        }
        let (event, rest) = self.text.split_once("\n\n").unwrap();
        let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let (name, data) = (line("event: "), line("data: "));
        self.text = rest.to_owned();
        let (Some(name), Some(data)) = (name, data) else { return Some("comment".to_owned()) };
        let data: Value = serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error} in {data:.200}"));
        self.take(&name, &data);
        Some(name)
    }

    fn take(&mut self, name: &str, data: &Value) {
        let numbers: Vec<usize> =
            data["blocks"].as_array().into_iter().flatten().map(|number| number.as_u64().unwrap() as usize).collect();
        if name == "whole" {
            self.wholes += 1;
            self.blocks.clear();
            numbers.chunks(2).for_each(|run| self.blocks.extend(std::iter::repeat_n(run[1] as u16, run[0])));
        } else {
            let mut at = 0;
            for change in numbers.chunks(3) {
                at += change[0];
                self.blocks[at..at + change[1]].fill(change[2] as u16);
                at += change[1];
            }
        }
        let parts = [
            (&mut self.sequences, &data["sequences"]),
            (&mut self.figures, &data["figures"]),
            (&mut self.recent, &data["recent"]),
        ];
        for (kept, told) in parts {
            if !told.is_null() {
                kept.clone_from(told);
            }
        }
    }

    /// Reads events until the known state is `state`.
    async fn reaches(&mut self, state: &LiveState) {
        let begin = Instant::now();
        let blocks: Vec<_> = state.blocks.iter().map(|block| block.code()).collect();
        let ids: Vec<_> = state.sequences.iter().map(|sequence| sequence.id).collect();
        let known = |follower: &Self| -> Vec<u64> {
            follower.sequences.as_array().into_iter().flatten().map(|row| row[0].as_u64().unwrap()).collect()
        };
        while self.blocks != blocks || known(self) != ids {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is never told");
            self.next().await.expect("the stream goes on");
        }
    }
}

/// A pseudo-random state.
fn state(seed: u32, blocks: usize) -> LiveState {
    let mut random = fastrand::Rng::with_seed(u64::from(seed));
    let mut next = move |below: u32| random.u32(..below);
    let uses = |kind| match kind {
        0 => BlockUse::FREE,
        1 => BlockUse::CACHED,
        2 => BlockUse::WITHDRAWN,
        3 => BlockUse::owned(1).shared(),
        number => BlockUse::owned(number as u16),
    };
    let mut state = LiveState::default();
    while state.blocks.len() < blocks {
        let (length, kind) = (1 + next(3) as usize, next(7));
        state.blocks.extend(std::iter::repeat_n(uses(kind), length.min(blocks - state.blocks.len())));
    }
    state.sequences = (0..1 + next(5) as usize)
        .map(|index| LiveSequence {
            id: u64::from(seed) * 100 + index as u64,
            number: index as u16,
            place: LivePlace::Running,
            prompt: 10,
            computed: 12,
            generated: 3,
            blocks: 1,
            below: 0,
            cached: 4,
            tenant: None,
            came: Instant::now(),
        })
        .collect();
    state
}

#[tokio::test]
async fn whoever_follows_knows_what_a_newcomer_is_told() {
    let server = Server::answering("x").await;
    assert!(!server.engine.is_watched());
    let mut follower = Follower::join(&server).await;
    assert_eq!(follower.next().await.as_deref(), Some("whole"));
    assert!(server.engine.is_watched() && follower.figures["health"] == "ok");
    for seed in 0..12 {
        // The number of blocks never changes in a server, but the first state may come late.
        let shown = state(seed, if seed == 0 { 0 } else { 700 });
        server.engine.show(shown.clone());
        follower.reaches(&shown).await;
        let mut newcomer = Follower::join(&server).await;
        assert_eq!(newcomer.next().await.as_deref(), Some("whole"));
        assert_eq!((&newcomer.blocks, &newcomer.sequences), (&follower.blocks, &follower.sequences));
    }
    assert_eq!(follower.wholes, 2, "once the blocks are known, only changes are told");
}

#[tokio::test]
async fn who_reads_slowly_is_told_all_of_it_again() {
    let server = Server::answering("x").await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = Follower::over(socket.connect(server.address).await.unwrap()).await;
    let mut quick = Follower::join(&server).await;
    let mut last = LiveState::default();
    for seed in 0..40 {
        last = state(seed, 60_000);
        server.engine.show(last.clone());
        quick.reaches(&last).await;
    }
    slow.reaches(&last).await;
    assert!(slow.wholes >= 2, "{}", slow.wholes);
    assert!(slow.wholes < 30, "most was skipped");
    assert_eq!((&slow.blocks, &slow.sequences), (&quick.blocks, &quick.sequences));
}

#[tokio::test]
async fn viewers_are_limited_and_cost_nothing_once_they_have_left() {
    let server = Server::answering("x").await;
    let mut viewers = Vec::new();
    for _ in 0..16 {
        let mut viewer = Follower::join(&server).await;
        assert_eq!(viewer.next().await.as_deref(), Some("whole"));
        viewers.push(viewer);
    }
    let (status, error) = server.get("/live/events").await.error();
    assert!(status == 503 && error["message"].as_str().unwrap().contains("16 already look"), "{status} {error:?}");
    viewers.truncate(1);
    let begin = Instant::now();
    loop {
        let mut viewer = Follower::join(&server).await;
        if viewer.next().await.is_some_and(|name| name == "whole") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "places come free");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    viewers.clear();
    while server.engine.is_watched() {
        assert!(begin.elapsed() < Duration::from_secs(20), "nobody watches any more");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_stream_needs_a_key_and_the_page_does_not() {
    let config = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("sesame")]), ..ServerConfig::default() };
    let server = Server::start(config, answer("x")).await;
    assert_eq!(server.get("/live/events").await.error().0, 401);
    assert!(!server.engine.is_watched());
    let page = server.get("/").await;
    assert_eq!(page.status, 200);
    for part in ["content-type: text/html", "content-security-policy: default-src 'none'", "etag: \"", "no-cache"] {
        assert!(page.head.contains(part), "{part} is not in {}", page.head);
    }
    assert!(page.body.contains("page/app.js") && !page.body.contains("http"), "{}", page.body);
    let tag = page.head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag").to_owned();
    let ask = async |method: &str, path: &str, header: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n");
        server.send(request.as_bytes()).await
    };
    let known = ask("GET", "/", &format!("If-None-Match: \"other\", {tag}\r\n")).await;
    assert_eq!((known.status, known.body.as_str()), (304, ""));
    assert_eq!(ask("GET", "/", "If-None-Match: \"other\"\r\n").await.status, 200);
    let head = ask("HEAD", "/", "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(server.get("/page/app.js").await.status, 200);
    assert_eq!(server.get("/page/nothing.js").await.error().0, 404);
    assert_eq!(server.post("/", &Value::Null).await.error().0, 405);
}

#[tokio::test]
async fn a_server_that_drains_ends_the_stream() {
    let server = Server::start(ServerConfig::default(), Box::new(|_, _| Step::Wait)).await;
    let mut viewer = Follower::join(&server).await;
    assert_eq!(viewer.next().await.as_deref(), Some("whole"));
    let (_engine, served) = server.stop();
    let mut last = String::new();
    while let Some(name) = viewer.next().await {
        last = name;
    }
    assert_eq!(last, "end");
    assert_eq!(served.await.unwrap(), Drained::Completely);
}

fn keyed(keys: &[&str]) -> (ApiKeys, ServerConfig) {
    let keys = ApiKeys::new(&keys.iter().map(|&key| ApiKey::new(key)).collect::<Vec<_>>());
    (keys.clone(), ServerConfig { api_keys: keys, ..ServerConfig::default() })
}

#[tokio::test]
async fn the_viewers_of_one_key_keep_no_other_out() {
    let server = Server::start(keyed(&["a", "b", "c"]).1, answer("x")).await;
    let mut viewers = Vec::new();
    for (key, count) in [("b", 16), ("a", 8), ("c", 5)] {
        for _ in 0..count {
            let mut viewer = Follower::of(&server, key).await;
            assert_eq!(viewer.next().await.as_deref(), Some("whole"), "{key} has a share");
            viewers.push(viewer);
        }
        let refused = server
            .send(
                format!(
                    "GET /live/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-api-key: {key}\r\n\r\n"
                )
                .as_bytes(),
            )
            .await;
        assert_eq!(refused.status, 503, "{key} has no more than a share");
    }
}

#[tokio::test]
async fn what_streams_to_a_key_ends_when_the_key_is_revoked() {
    let (keys, config) = keyed(&["a", "b"]);
    let server = Server::start(config, Box::new(|_, index| if index < 2 { Step::Token(97) } else { Step::Wait })).await;
    let mut viewers = [Follower::of(&server, "a").await, Follower::of(&server, "b").await];
    for viewer in &mut viewers {
        assert_eq!(viewer.next().await.as_deref(), Some("whole"));
    }
    let body = serde_json::json!({
        "prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a", "max_tokens": 9, "stream": true,
    });
    let mut answers = Vec::new();
    for (path, field, last) in [
        ("/v1/completions", "prompt", "[DONE]"),
        ("/v1/chat/completions", "messages", "[DONE]"),
        ("/v1/messages", "messages", "authentication_error"),
        ("/v1/responses", "input", "response.failed"),
    ] {
        let mut body = body.clone();
        body.as_object_mut()
            .unwrap()
            .retain(|name, _| [field, "stream"].contains(&name.as_str()) || (name == "max_tokens" && field != "input"));
        for key in ["a", "b"] {
            let mut connection = server.connect().await;
            let headers = format!("Authorization: Bearer {key}\r\n");
            connection.write_all(&post_request(path, &headers, body.to_string().as_bytes())).await.unwrap();
            let mut read = vec![0; 1 << 16];
            let length = connection.read(&mut read).await.unwrap();
            assert!(read[..length].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&read[..length]));
            answers.push((key, last, connection));
        }
    }
    keys.replace(&[ApiKey::new("b"), ApiKey::new("c")]);
    let mut ended = Vec::new();
    while let Some(name) = viewers[0].next().await {
        ended.push(name);
    }
    assert_eq!(ended.last().map(String::as_str), Some("end"));
    for (key, last, mut connection) in answers {
        let mut rest = String::new();
        let read = connection.read_to_string(&mut rest);
        let within = Duration::from_millis(if key == "a" { 20_000 } else { 50 });
        let is_over = tokio::time::timeout(within, read).await.is_ok();
        assert_eq!(is_over, key == "a", "{last}");
        if is_over {
            assert!(rest.contains("key of this request is known no more") && rest.contains(last), "{rest}");
        }
    }
    // The other viewer goes on.
    let shown = state(1, 300);
    server.engine.show(shown.clone());
    viewers[1].reaches(&shown).await;
}

#[tokio::test]
async fn requests_are_told_with_the_names_of_their_keys_and_never_the_keys() {
    let keys = ApiKeys::new(&ApiKey::from_file("sesame alice\nother-secret", &[]).unwrap());
    let server = Server::start(ServerConfig { api_keys: keys, ..ServerConfig::default() }, answer("xyz")).await;
    let mut viewer = Follower::of(&server, "other-secret").await;
    assert_eq!(viewer.next().await.as_deref(), Some("whole"));
    assert_eq!((&viewer.recent["requests"], &viewer.recent["prompt_token_s"]), (&serde_json::json!([]), &Value::Null));
    let mut shown = state(3, 50);
    for (sequence, key) in shown.sequences.iter_mut().zip(["sesame", "other-secret"]) {
        sequence.tenant = Some(TenantId(tenant_of_key(key)));
    }
    server.engine.show(shown.clone());
    viewer.reaches(&shown).await;
    let first = viewer.sequences[0].clone();
    assert_eq!((&first[8], &first[9]), (&serde_json::json!(4), &serde_json::json!("alice")), "{first}");
    assert!(first[10].as_f64().is_some_and(|came| (0.0..600.0).contains(&came)), "{first}");
    assert!(viewer.sequences.as_array().unwrap().iter().skip(1).all(|row| row[9].is_null()), "{}", viewer.sequences);

    for (key, prompt) in [("sesame", "a prompt of the first"), ("other-secret", "and of the other")] {
        let body = serde_json::json!({"prompt": prompt, "max_tokens": 9}).to_string();
        let headers = format!("Authorization: Bearer {key}\r\n");
        assert_eq!(server.send(&post_request("/v1/completions", &headers, body.as_bytes())).await.status, 200);
    }
    let begin = Instant::now();
    while viewer.recent["requests"].as_array().is_none_or(|requests| requests.len() < 2) {
        assert!(begin.elapsed() < Duration::from_secs(60), "they are never told");
        viewer.next().await.expect("the stream goes on");
    }
    let told = viewer.recent.to_string();
    assert!(!told.contains("sesame") && !told.contains("secret") && !told.contains("prompt of"), "{told}");
    let keys: Vec<_> = viewer.recent["requests"].as_array().unwrap().iter().map(|request| &request["key"]).collect();
    assert_eq!(keys, [&Value::Null, &serde_json::json!("alice")], "the newest comes first");
    let newest = &viewer.recent["requests"][0];
    assert!(newest["generated"].as_u64().is_some_and(|tokens| tokens > 0) && newest["finish"] == "stop", "{newest}");
    let mut newcomer = Follower::of(&server, "sesame").await;
    assert_eq!(newcomer.next().await.as_deref(), Some("whole"));
    assert_eq!(newcomer.recent["requests"].as_array().map(Vec::len), Some(2));
}
