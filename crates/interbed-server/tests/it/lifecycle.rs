//! Tests clients that disconnect, and servers that stop.

use std::time::{Duration, Instant};

use interbed_engine::testing::{ScriptedEngine, Step};
use interbed_server::{Drained, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::fixture::{Server, post_request};

/// A server that generates as many tokens as allowed.
async fn endless(config: ServerConfig) -> Server {
    Server::start(config, Box::new(|_, _| Step::Token(97))).await
}

fn request(stream: bool) -> Vec<u8> {
    let body = json!({"prompt": "a", "max_tokens": 4000, "n": 3, "stream": stream});
    post_request("/v1/completions", "", body.to_string().as_bytes())
}

/// Waits, with a time limit, until the engine's status is as wanted.
async fn until(engine: &ScriptedEngine, what: &str, wanted: impl Fn(usize, u64) -> bool) {
    let began = Instant::now();
    loop {
        let status = engine.handle().status();
        if wanted(status.running, status.finished.cancelled) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: {status:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_request() {
    let server = endless(ServerConfig::default()).await;
    for (round, stream) in [true, false].into_iter().enumerate() {
        let cancelled_before = 3 * round as u64;
        let mut connection = server.connect().await;
        connection.write_all(&request(stream)).await.unwrap();
        if stream {
            let mut head = [0; 64];
            connection.read_exact(&mut head).await.unwrap();
        }
        until(&server.engine, "started", |running, _| running == 3).await;
        let steps_before = server.engine.steps();
        drop(connection);
        until(&server.engine, "freed", |running, cancelled| running == 0 && cancelled == cancelled_before + 3).await;
        // Without cancelling, the sequences would have run for 4000 steps. The bound allows for a slow machine.
        let steps = server.engine.steps() - steps_before;
        assert!(steps < 2000, "{steps} steps passed");
    }
    let page = server.get("/metrics").await.body;
    assert!(
        page.contains(r#"vllm:request_success_total{model_name="interbed",engine="0",finished_reason="abort"} 6"#),
        "{page}"
    );
}

#[tokio::test]
async fn a_stop_string_frees_its_request() {
    let server = endless(ServerConfig::default()).await;
    let answer = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 4000, "stop": "aaa"})).await.ok();
    assert_eq!(answer["choices"][0]["text"], "");
    until(&server.engine, "freed", |running, cancelled| running == 0 && cancelled == 1).await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut() {
    let config =
        ServerConfig { write_timeout: Duration::from_millis(200), connections_max: 1, ..ServerConfig::default() };
    let server = endless(config).await;
    // Enough text to fill the sockets' buffers, but too few unread tokens for the stream to be ended.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut connection = socket.connect(server.address).await.unwrap();
    let body = json!({"prompt": "a", "max_tokens": 4000, "n": 4, "stream": true, "logprobs": 5});
    connection.write_all(&post_request("/v1/completions", "", body.to_string().as_bytes())).await.unwrap();
    until(&server.engine, "freed", |running, cancelled| running == 0 && cancelled == 4).await;
    // The only connection is free again, though the client has not closed its end.
    let next = tokio::time::timeout(Duration::from_secs(20), server.get("/version")).await;
    assert_eq!(next.expect("the blocked connection is closed").status, 200);
    // Data sent before can still be read; then the connection ends, in the middle of a chunk.
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), connection.read_to_end(&mut rest)).await;
    read.expect("the connection ends").ok();
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}

#[tokio::test]
async fn a_stream_that_is_read_at_a_trickle_ends_with_an_error() {
    let server = endless(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    let body = json!({"prompt": "a", "max_tokens": 4000, "n": 256, "stream": true, "logprobs": 20});
    connection.write_all(&post_request("/v1/completions", "", body.to_string().as_bytes())).await.unwrap();
    // The client reads all the time, so it is not disconnected, but far less than arrives.
    let (mut read, mut piece) = (Vec::new(), [0; 64]);
    let began = Instant::now();
    loop {
        let count = connection.read(&mut piece).await.unwrap();
        read.extend_from_slice(&piece[..count]);
        let status = server.engine.handle().status();
        if status.running == 0 && status.finished.cancelled == 256 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{status:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(server.engine.steps() < 4000, "it did not run to its end");
    // Another stream is not affected.
    let other = json!({"prompt": "a", "max_tokens": 100, "stream": true});
    let chunks = server.post("/v1/completions", &other).await.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    connection.read_to_end(&mut read).await.unwrap();
    let text = String::from_utf8(read).unwrap();
    let events: Vec<&str> = text.split("data: ").collect();
    assert!(events[events.len() - 2].contains("read too slowly"), "{}", events[events.len() - 2]);
    assert!(events[events.len() - 1].starts_with("[DONE]"));
}

#[tokio::test]
async fn requests_in_flight_are_finished_before_the_end() {
    let script =
        |_: &_, index: usize| if index < 200 { Step::Token(97) } else { Step::Token(interbed_engine::testing::EOS) };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let address = server.address;
    let mut connection = server.connect().await;
    connection.write_all(&request(true)).await.unwrap();
    let mut idle = server.connect().await;
    assert!(version(&mut idle).await.is_string());
    until(&server.engine, "started", |running, _| running == 3).await;
    let (_engine, served) = server.stop();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).await.unwrap();
    assert!(reply.contains("data: [DONE]"));
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0, "an idle connection is closed");
    assert_eq!(served.await.unwrap(), Drained::Completely);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn draining_has_an_end() {
    let config = ServerConfig { drain_timeout: Duration::from_millis(100), ..ServerConfig::default() };
    let server = Server::start(config, Box::new(|_, _| Step::Wait)).await;
    let mut connection = server.connect().await;
    connection.write_all(&request(true)).await.unwrap();
    until(&server.engine, "started", |running, _| running == 3).await;
    let (engine, served) = server.stop();
    assert_eq!(served.await.unwrap(), Drained::Cut(1));
    until(&engine, "freed", |running, cancelled| running == 0 && cancelled == 3).await;
}

#[tokio::test]
async fn requests_that_are_cut_are_told() {
    for at_once in [false, true] {
        let drain_timeout = if at_once { Duration::from_secs(600) } else { Duration::from_millis(100) };
        let config = ServerConfig { drain_timeout, ..ServerConfig::default() };
        let script = |_: &_, index: usize| if index < 2 { Step::Token(97) } else { Step::Wait };
        let server = Server::start(config, Box::new(script)).await;
        let mut connections = Vec::new();
        for stream in [true, false] {
            let mut connection = server.connect().await;
            connection.write_all(&request(stream)).await.unwrap();
            connections.push(connection);
        }
        until(&server.engine, "started", |running, _| running == 6).await;
        let began = Instant::now();
        let (_engine, served) = if at_once { server.stop_at_once() } else { server.stop() };
        let mut replies = [String::new(), String::new()];
        for (connection, reply) in connections.iter_mut().zip(&mut replies) {
            connection.read_to_string(reply).await.unwrap();
        }
        assert_eq!(served.await.unwrap(), Drained::Cut(2));
        assert!(began.elapsed() < Duration::from_secs(30));
        let [stream, whole] = &replies;
        let events: Vec<&str> = stream.split("data: ").collect();
        let error = events[events.len() - 2];
        assert!(error.contains("\"error\"") && error.contains("overloaded"), "{stream}");
        assert!(stream.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{stream}");
        assert!(whole.starts_with("HTTP/1.1 503"), "{whole}");
    }
}

/// Checks streams of all APIs, which end by `stop_at_once`, or by a failure of the engine if `fails`.
async fn cut_streams(script: Box<interbed_engine::testing::Script>, fails: bool) {
    let config = ServerConfig { drain_timeout: Duration::from_secs(600), ..ServerConfig::default() };
    let server = Server::start(config, script).await;
    let messages = json!([{"role": "user", "content": "a"}]);
    let asked = [
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 400, "stream": true})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 400, "stream": true})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 400, "stream": true})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 400, "stream": true})),
    ];
    let mut connections = Vec::new();
    for (path, body) in &asked {
        let mut connection = server.connect().await;
        connection.write_all(&post_request(path, "", body.to_string().as_bytes())).await.unwrap();
        connections.push(connection);
    }
    let served = if fails {
        None
    } else {
        until(&server.engine, "started", |running, _| running == 4).await;
        let (mut server, served) = server.begin_stop();
        server.lose_patience();
        Some((server, served))
    };
    let mut last = Vec::new();
    for connection in &mut connections {
        let mut reply = String::new();
        connection.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("\r\n0\r\n\r\n"), "a whole stream: {reply}");
        let mut lines = reply.lines().filter_map(|line| line.strip_prefix("data: "));
        last.push(lines.rfind(|data| *data != "[DONE]").expect("an event").to_owned());
    }
    let last: Vec<Value> = last.iter().map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let part = if fails { "disk on fire" } else { "stopped before the request was done" };
    let told = |message: &Value| assert!(message.as_str().is_some_and(|text| text.contains(part)), "{message}");
    for completion in &last[..2] {
        told(&completion["error"]["message"]);
        assert_eq!(completion["error"]["type"], "server_error");
    }
    assert_eq!((&last[2]["type"], &last[2]["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    told(&last[2]["response"]["error"]["message"]);
    assert_eq!(last[3]["type"], "error");
    told(&last[3]["error"]["message"]);
    if let Some((_server, served)) = served {
        assert_eq!(served.await.unwrap(), Drained::Cut(4));
    }
}

#[tokio::test]
async fn a_cut_stream_ends_with_an_error_in_each_apis_form() {
    cut_streams(Box::new(|_, index| if index < 2 { Step::Token(97) } else { Step::Wait }), false).await;
    cut_streams(Box::new(|_, index| if index < 2 { Step::Token(97) } else { Step::Fail("disk on fire".into()) }), true)
        .await;
}

/// Sends one request under load; returns whether it was answered, or an error if a refusal does not say when to retry.
async fn try_once(address: std::net::SocketAddr, stream: bool) -> Result<bool, String> {
    let mut connection = match TcpStream::connect(address).await {
        Ok(connection) => connection,
        // The server has ended, and accepted nothing.
        Err(_) => return Ok(false),
    };
    let body = json!({"prompt": "a", "max_tokens": 30, "stream": stream}).to_string();
    let sent = connection.write_all(&post_request("/v1/completions", "", body.as_bytes())).await;
    let mut reply = String::new();
    let read = connection.read_to_string(&mut reply).await;
    let is_whole = if stream { reply.contains("data: [DONE]") } else { reply.contains("\"completion_tokens\":30") };
    match () {
        () if reply.starts_with("HTTP/1.1 200") && is_whole => Ok(true),
        () if reply.starts_with("HTTP/1.1 503") && reply.contains("retry-after") && reply.contains("draining") => {
            Ok(false)
        }
        // The connection was queued at a server that had ended: nothing of the request was read.
        () if reply.is_empty() && (sent.is_err() || read.is_err()) => Ok(false),
        () => Err(format!("{sent:?} {read:?} {reply:?}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_no_accepted_request() {
    let config = ServerConfig { drain_timeout: Duration::from_secs(600), ..ServerConfig::default() };
    let server = endless(config).await;
    let address = server.address;
    let clients: Vec<_> = (0..16)
        .map(|number| {
            tokio::spawn(async move {
                let mut answered = 0;
                while try_once(address, number % 2 == 0).await? {
                    answered += 1;
                }
                Ok::<_, String>(answered)
            })
        })
        .collect();
    // All clients have got answers, and all have further requests in flight.
    let began = Instant::now();
    while server.engine.requests().len() < 64 {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (engine, served) = server.stop();
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap().expect("every request has its answer, or was refused");
    }
    assert_eq!(served.await.unwrap(), Drained::Completely);
    // Every request that reached the engine was answered: none was cut or cancelled.
    let status = engine.handle().status();
    assert_eq!((status.finished.length, status.finished.cancelled), (answered, 0));
    assert_eq!(engine.requests().len() as u64, answered);
}

#[tokio::test]
async fn answers_carry_the_requests_id() {
    let server = Server::answering("x").await;
    let id = |reply: &crate::fixture::Reply| {
        let line = reply.head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("an id");
        line.to_owned()
    };
    let body = br#"{"prompt": "a"}"#;
    let ask = async |header: &str| server.post_bytes("/v1/completions", header, body).await;
    assert_eq!(id(&ask("X-Request-Id: my-own/1\r\n").await), "my-own/1");
    let (one, other) = (id(&ask("").await), id(&ask("").await));
    assert!(one.starts_with("req-") && one.len() == 36 && one != other, "{one} {other}");
    for bad in ["a b", "\u{e9}", "", &"x".repeat(129)] {
        let fresh = id(&ask(&format!("X-Request-Id: {bad}\r\n")).await);
        assert!(fresh.starts_with("req-"), "{fresh}");
    }
    // Refusals have an id too, and so do unknown routes.
    assert_eq!(id(&server.post_bytes("/v1/completions", "X-Request-Id: mine\r\n", b"{").await), "mine");
    assert!(id(&server.get("/nothing").await).starts_with("req-"));
    assert!(id(&server.get("/health").await).starts_with("req-"));
    let stream = server.post("/v1/completions", &json!({"prompt": "a", "stream": true})).await;
    assert!(id(&stream).starts_with("req-"));
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let server = Server::answering("x").await;
    let mut connection = server.connect().await;
    for _ in 0..3 {
        assert!(version(&mut connection).await.is_string());
    }
}

/// Sends one request, and leaves the connection open.
async fn version(connection: &mut TcpStream) -> Value {
    connection.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"}") {
        assert_ne!(connection.read_buf(&mut reply).await.unwrap(), 0, "the connection stays open");
    }
    let text = String::from_utf8(reply).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str::<Value>(body).unwrap()["version"].clone()
}

/// Status and latency of a health request.
async fn health(server: &Server) -> (u16, Duration) {
    let began = Instant::now();
    let reply = tokio::time::timeout(Duration::from_secs(20), server.get("/health")).await.expect("an answer");
    (reply.status, began.elapsed())
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let server = endless(ServerConfig { connections_max: 40, ..ServerConfig::default() }).await;
    let mut idle = Vec::new();
    // Some send nothing, some half of a request, and some have sent one before.
    for number in 0..200 {
        let mut connection = server.connect().await;
        match number % 3 {
            0 => {}
            1 => connection.write_all(b"GET /health HT").await.unwrap(),
            _ => {
                // The connection may have been closed already.
                let _ = connection.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            }
        }
        idle.push(connection);
    }
    for _ in 0..3 {
        let (status, after) = health(&server).await;
        assert!(status == 200 && after < Duration::from_secs(5), "{status} after {after:?}");
    }
    let body = json!({"prompt": "a", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test]
async fn where_all_connections_are_busy_health_is_told_and_others_wait() {
    let config = ServerConfig { connections_max: 4, ..ServerConfig::default() };
    let script = |_: &_, index: usize| if index == 0 { Step::Token(97) } else { Step::Wait };
    let server = std::sync::Arc::new(Server::start(config, Box::new(script)).await);
    let body = json!({"prompt": "a", "max_tokens": 4000, "stream": true}).to_string();
    let mut busy = Vec::new();
    // One address may have three quarters of all connections, rounded up.
    for _ in 0..3 {
        let mut connection = server.connect().await;
        connection.write_all(&post_request("/v1/completions", "", body.as_bytes())).await.unwrap();
        connection.read_u8().await.unwrap();
        busy.push(connection);
    }
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).await })
        })
        .collect();
    for path in ["/health", "/metrics", "/version", "/health"] {
        let reply = tokio::time::timeout(Duration::from_secs(5), server.get(path)).await.expect("an answer");
        assert_eq!(reply.status, 200, "{path}");
    }
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "they wait for a place");
    drop(busy);
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().status, 200);
    }
}

/// A connection from another address of this machine.
async fn from_elsewhere(server: &Server) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// Occupies all connections that one address may have, with bodies that never arrive.
async fn all_of_one_address(server: &Server, count: usize) -> Vec<TcpStream> {
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 4000\r\n\r\n";
    let mut busy = Vec::new();
    for _ in 0..count {
        let mut connection = server.connect().await;
        connection.write_all(head.as_bytes()).await.unwrap();
        busy.push(connection);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    busy
}

#[tokio::test]
async fn an_address_at_its_limit_keeps_no_other_out() {
    let config = ServerConfig { connections_max: 8, ..ServerConfig::default() };
    let server = endless(config).await;
    let mut open = all_of_one_address(&server, 6).await;
    for _ in 0..600 {
        open.push(server.connect().await);
    }
    for _ in 0..3 {
        let mut connection = from_elsewhere(&server).await;
        let asked = tokio::time::timeout(Duration::from_secs(2), version(&mut connection)).await;
        assert!(asked.expect("it is let in at once").is_string());
    }
}

#[tokio::test]
async fn where_too_many_wait_each_api_refuses_in_its_form() {
    let config = ServerConfig { connections_max: 4, ..ServerConfig::default() };
    let server = std::sync::Arc::new(endless(config).await);
    let mut open = all_of_one_address(&server, 3).await;
    for _ in 0..7 {
        open.extend(all_of_one_address(&server, 8).await);
    }
    for (path, field) in [("/v1/messages", "overloaded_error"), ("/v1/chat/completions", "server_error")] {
        let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
        let refused = tokio::time::timeout(Duration::from_secs(5), server.post(path, &body)).await.expect("an answer");
        assert_eq!((refused.status, &refused.json()["error"]["type"]), (503, &json!(field)), "{}", refused.body);
        assert!(refused.head.to_lowercase().contains("x-request-id: "), "{}", refused.head);
    }
    let refused = server.post("/api/chat", &json!({"messages": [{"role": "user", "content": "a"}]})).await;
    let told = refused.json();
    assert!(refused.status == 503 && told["error"].as_str().is_some_and(|told| told.contains("busy")), "{told}");
}

#[tokio::test]
async fn an_answer_that_is_still_read_is_not_cut_for_others() {
    let config = ServerConfig { connections_max: 1, ..ServerConfig::default() };
    let server = endless(config).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = socket.connect(server.address).await.unwrap();
    let count = 500_000;
    let body = json!({"tokens": vec![1; count]}).to_string();
    slow.write_all(&post_request("/detokenize", "", body.as_bytes())).await.unwrap();
    slow.read_u8().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let other = server.get("/version");
    let (_, read) = tokio::join!(tokio::time::timeout(Duration::from_secs(2), other), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (mut whole, mut part) = (0, vec![0; 1 << 16]);
        while whole < 6 * count {
            match slow.read(&mut part).await {
                Ok(bytes) if bytes > 0 => whole += bytes,
                _ => break,
            }
        }
        whole
    });
    assert!(read >= 6 * count, "only {read} bytes came");
}
