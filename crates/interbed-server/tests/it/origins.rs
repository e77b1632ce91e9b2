//! Tests requests of web pages' scripts.

use std::time::Duration;

use interbed_engine::testing::{ScriptedEngine, answer};
use interbed_server::{ApiKey, ApiKeys, ServerConfig};
use serde_json::json;

use crate::fixture::{Reply, Server};

async fn server(origins: &[&str]) -> Server {
    let allow_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
    let config =
        ServerConfig { allow_origins, api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
    Server::start(config, answer("x")).await
}

/// The preflight request that a browser sends before a script's request with such headers.
async fn preflight(server: &Server, origin: &str) -> Reply {
    let head = format!(
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: \
         {origin}\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: \
         authorization,content-type,x-own\r\n\r\n"
    );
    server.send(head.as_bytes()).await
}

fn header<'r>(reply: &'r Reply, name: &str) -> Option<&'r str> {
    reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn pages_may_call_where_their_origin_is_allowed() {
    let server = server(&["https://one.example", "http://localhost:3000"]).await;
    for (origin, is_allowed) in [
        ("https://one.example", true),
        ("http://localhost:3000", true),
        ("https://one.example:8443", false),
        ("null", false),
    ] {
        let allowed = is_allowed.then_some(origin);
        // A browser sends no key with a preflight request.
        let told = preflight(&server, origin).await;
        assert_eq!((told.status, header(&told, "access-control-allow-origin")), (200, allowed));
        assert!(header(&told, "access-control-allow-methods").is_some_and(|methods| methods.contains("post")));
        assert_eq!(header(&told, "access-control-allow-headers"), Some("authorization,content-type,x-own"));
        let headers = format!("Origin: {origin}\r\nAuthorization: Bearer key\r\n");
        let answer = server.post_bytes("/v1/completions", &headers, br#"{"prompt": "a"}"#).await;
        assert_eq!((answer.status, header(&answer, "access-control-allow-origin")), (200, allowed));
        assert_eq!(header(&answer, "access-control-expose-headers"), Some("x-request-id,request-id"));
        // Scripts can read error responses too.
        let refused = server.post_bytes("/v1/completions", &format!("Origin: {origin}\r\n"), b"{}").await;
        assert_eq!((refused.status, header(&refused, "access-control-allow-origin")), (401, allowed));
    }
}

#[tokio::test]
async fn all_pages_may_call_or_none() {
    let all = server(&["*"]).await;
    assert_eq!(header(&preflight(&all, "https://any.example").await, "access-control-allow-origin"), Some("*"));
    let none = server(&[]).await;
    let refused = preflight(&none, "https://any.example").await;
    assert_eq!((refused.status, header(&refused, "access-control-allow-origin")), (405, None));
}

/// A request as a page's browser sends it.
fn request(line: &str, host: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}");
    format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

#[tokio::test]
async fn no_foreign_page_reaches_a_server_without_keys() {
    let config = ServerConfig {
        allow_origins: vec!["https://one.example".into()],
        allow_hosts: vec!["*.lan".into()],
        ..ServerConfig::default()
    };
    let engine = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(1), answer("x"));
    let (server, door) = Server::loading(&config, engine).await;
    const TYPED: &str = "Content-Type: application/json\r\n";
    let paths = ["/", "/page/app.js", "/live/events", "/metrics", "/v1/models", "/model_info", "/api/tags", "/api/ps"];
    let posts = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize", "/api/chat"];
    let more = ["POST /api/generate", "POST /api/embed", "POST /api/show", "DELETE /api/delete"];
    let gets = paths.map(|path| format!("GET {path}")).into_iter();
    let lines: Vec<_> = gets.chain(posts.map(|path| format!("POST {path}"))).chain(more.map(String::from)).collect();
    let refuses_all = async || {
        for line in &lines {
            for (host, headers) in [
                ("evil.example:8000", ""),
                ("evil.example:8000", "Origin: http://evil.example:8000\r\nSec-Fetch-Site: same-origin\r\n"),
                ("localhost", "Origin: https://evil.example\r\n"),
                ("localhost", "Sec-Fetch-Site: cross-site\r\n"),
            ] {
                let refused = server.send(&request(line, host, &format!("{headers}{TYPED}"), "{}")).await;
                assert_eq!(refused.status, 403, "{line} {host} {headers}");
                let error = &refused.json()["error"];
                assert!(error.is_string() || error["type"] == "permission_error", "{line}");
                let told = error.as_str().or(error["message"].as_str());
                assert!(told.is_some_and(|told| told.contains("--allow-")), "{error}");
            }
        }
    };
    // While the model is being loaded, and afterwards.
    refuses_all().await;
    server.open(door, config, crate::fixture::TEMPLATE);
    refuses_all().await;
    assert!(server.engine.requests().is_empty());
    let beacon = |headers: &str| request("POST /v1/completions", "localhost", headers, r#"{"prompt": "a"}"#);
    for sent in
        ["", "Content-Type: text/plain;charset=UTF-8\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"]
    {
        let refused = server.send(&beacon(sent)).await;
        assert_eq!(refused.status, 415, "{sent}");
        assert!(refused.body.contains("Content-Type: application/json"), "{}", refused.body);
    }
    assert!(server.engine.requests().is_empty());
    for (host, headers) in [
        ("127.0.0.1:8000", ""),
        ("gpu.lan", "Origin: http://gpu.lan\r\nSec-Fetch-Site: same-origin\r\n"),
        ("localhost", "Origin: https://one.example\r\nSec-Fetch-Site: cross-site\r\n"),
    ] {
        let line = "POST /v1/completions";
        let taken = server.send(&request(line, host, &format!("{headers}{TYPED}"), r#"{"prompt": "a"}"#)).await;
        assert_eq!(taken.status, 200, "{host} {headers} {}", taken.body);
    }
    assert_eq!(server.engine.requests().len(), 3);
    // A page that may send requests can read why one was refused.
    let headers = "Origin: https://one.example\r\n";
    let refused = server.send(&request("GET /v1/models", "evil.example", headers, "")).await;
    assert_eq!((refused.status, header(&refused, "access-control-allow-origin")), (403, Some("https://one.example")));
}

#[tokio::test]
async fn where_there_are_keys_hosts_do_not_matter() {
    let server = server(&[]).await;
    let headers = "Content-Type: application/json\r\nAuthorization: Bearer key\r\nOrigin: https://x.example\r\n";
    let taken = server.send(&request("POST /v1/completions", "ai.example", headers, r#"{"prompt": "a"}"#)).await;
    assert_eq!(taken.json()["choices"][0]["text"], json!("x"));
}

/// `curl -d` declares its body as a form, like a page's form.
#[tokio::test]
async fn forms_are_taken_for_ollama_alone_and_of_no_foreign_page() {
    const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";
    let asked = [
        ("/api/generate", r#"{"prompt": "a", "stream": false}"#),
        ("/api/chat", r#"{"messages": [{"role": "user", "content": "a"}], "stream": false}"#),
        ("/api/show", r#"{"model": "interbed"}"#),
    ];
    let server = Server::answering("x").await;
    for (path, body) in asked {
        let line = format!("POST {path}");
        server.send(&request(&line, "localhost:11434", FORM, body)).await.ok();
        server.send(&request(&line, "localhost", "Content-Type: Application/JSON; charset=utf-8\r\n", body)).await.ok();
        for kind in ["", "Content-Type: text/plain\r\n", "Content-Type: multipart/form-data; boundary=x\r\n"] {
            let refused = server.send(&request(&line, "localhost", kind, body)).await;
            let told = refused.json()["error"].as_str().map(str::to_owned).unwrap_or_default();
            assert!(refused.status == 415 && told.contains("Content-Type: application/json"), "{}", refused.body);
        }
    }
    let before = server.engine.requests().len();
    assert_eq!(before, 4);
    for page in [
        // A page's form, or a script that does not read the response; an old browser; a sandboxed page; a page without
        // an origin.
        "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
        "Origin: https://evil.example\r\n",
        "Origin: null\r\nSec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        // Another page of this machine.
        "Origin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n",
    ] {
        for (path, body) in asked {
            let headers = format!("{page}{FORM}");
            let refused = server.send(&request(&format!("POST {path}"), "localhost", &headers, body)).await;
            assert!(refused.status == 403 && refused.json()["error"].is_string(), "{page} {}", refused.body);
        }
    }
    // A name of the page's own, which its DNS resolves to this machine.
    let own = format!("Origin: http://evil.example\r\nSec-Fetch-Site: same-origin\r\n{FORM}");
    let refused = server.send(&request("POST /api/generate", "evil.example", &own, asked[0].1)).await;
    assert_eq!(refused.status, 403);
    assert_eq!(server.engine.requests().len(), before);
    // With API keys, these decide, and a page knows none.
    let keyed = self::server(&[]).await;
    let refused = keyed.send(&request("POST /api/generate", "localhost", FORM, asked[0].1)).await;
    assert!(refused.status == 401 && refused.json()["error"].is_string(), "{}", refused.body);
    let headers = format!("{FORM}Authorization: Bearer key\r\n");
    keyed.send(&request("POST /api/generate", "localhost", &headers, asked[0].1)).await.ok();
}
