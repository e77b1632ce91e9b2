//! Tests traces, with a small collector.

use interbed_engine::testing::answer;
use interbed_server::{OtlpEndpoint, ServerConfig};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::Server;

async fn collector() -> (TcpListener, OtlpEndpoint) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    (listener, OtlpEndpoint::read(&endpoint).unwrap())
}

/// Receives one POST request; returns its head and its body.
async fn taken(listener: &TcpListener, status: &str) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = Vec::new();
    let end = loop {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let length: usize = length.parse().unwrap();
    while bytes.len() < end + length {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
    }
    stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.unwrap();
    (head, bytes.split_off(end))
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn a_request_is_a_trace_that_goes_on_from_its_callers() {
    let (listener, endpoint) = collector().await;
    let config = ServerConfig { otlp_endpoint: Some(endpoint), ..ServerConfig::default() };
    let server = Server::start(config, answer("hello")).await;
    let headers = "X-Request-Id: mine-7\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let body = json!({"prompt": "secret words", "max_tokens": 3}).to_string();
    server.post_bytes("/v1/completions", headers, body.as_bytes()).await.ok();
    // Polls and refusals send no traces.
    server.get("/health").await.ok();
    let (head, body) = taken(&listener, "200 OK").await;
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    for part in ["llm_request", "queued", "prefill", "decode", "mine-7", "gen_ai.latency.time_in_queue", "interbed"] {
        assert!(has(&body, part.as_bytes()), "{part}");
    }
    let [trace, parent]: [&[u8]; 2] =
        [&0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes(), &0xb7ad_6b71_6920_3331_u64.to_be_bytes()];
    assert!(has(&body, trace) && has(&body, parent));
    assert!(!has(&body, b"secret") && !has(&body, b"/health"));
}

#[tokio::test]
async fn a_dead_collector_costs_nobody_anything_but_its_traces() {
    let (listener, endpoint) = collector().await;
    let config = ServerConfig { otlp_endpoint: Some(endpoint), ..ServerConfig::default() };
    let server = Server::start(config, answer("hello")).await;
    let ask = async || server.post("/v1/completions", &json!({"prompt": "a"})).await.ok();
    ask().await;
    taken(&listener, "503 Service Unavailable").await;
    drop(listener);
    for _ in 0..8 {
        ask().await;
    }
    // In the end all spans are counted, and the server goes on.
    let dropped = r#"interbed:trace_spans_dropped_total{model_name="interbed",engine="0"} 36"#;
    while !server.get("/metrics").await.body.contains(dropped) {
        ask_nothing().await;
    }
    ask().await;
}

async fn ask_nothing() {
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
}
