//! Scripts of web pages.

use interbed_engine::testing::answer;
use interbed_server::{ApiKey, ApiKeys, ServerConfig};

use crate::fixture::{Reply, Server};

async fn server(origins: &[&str]) -> Server {
    let allow_origins = origins.iter().map(|&origin| origin.to_owned()).collect();
    let config =
        ServerConfig { allow_origins, api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
    Server::start(config, answer("x")).await
}

/// What a browser asks before it lets a script send a request with such headers.
async fn preflight(server: &Server, origin: &str) -> Reply {
    let head = format!(
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nOrigin: \
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
        // A browser sends no key with this question.
        let told = preflight(&server, origin).await;
        assert_eq!((told.status, header(&told, "access-control-allow-origin")), (200, allowed));
        assert!(header(&told, "access-control-allow-methods").is_some_and(|methods| methods.contains("post")));
        assert_eq!(header(&told, "access-control-allow-headers"), Some("authorization,content-type,x-own"));
        let headers = format!("Origin: {origin}\r\nAuthorization: Bearer key\r\n");
        let answer = server.post_bytes("/v1/completions", &headers, br#"{"prompt": "a"}"#).await;
        assert_eq!((answer.status, header(&answer, "access-control-allow-origin")), (200, allowed));
        assert_eq!(header(&answer, "access-control-expose-headers"), Some("x-request-id,request-id"));
        // Refusals can be read too.
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
