//! Tests HTTPS: certificates that are replaced, and clients that cannot speak TLS.

use std::sync::Arc;
use std::time::Duration;

use interbed_engine::testing::{Step, answer};
use interbed_server::{ServerConfig, Tls};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fixture::{Server, post_request};

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A certificate, its private key, and a client that trusts only this certificate.
struct Identity {
    certificate: &'static str,
    key: &'static str,
    client: TlsConnector,
}

fn one() -> Identity {
    identity(include_str!("../fixtures/tls/one.cert.pem"), include_str!("../fixtures/tls/one.key.pem"))
}

fn other() -> Identity {
    identity(include_str!("../fixtures/tls/other.cert.pem"), include_str!("../fixtures/tls/other.key.pem"))
}

fn identity(certificate: &'static str, key: &'static str) -> Identity {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let client = TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()));
    Identity { certificate, key, client }
}

async fn connect(server: &Server, client: &TlsConnector) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
    client.connect(ServerName::try_from("localhost").unwrap(), server.connect().await).await
}

/// Sends one request over a connection that stays open.
async fn is_healthy(stream: &mut TlsStream<tokio::net::TcpStream>) -> bool {
    stream.write_all(HEALTH).await.unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"}") {
        assert_ne!(stream.read_buf(&mut reply).await.unwrap(), 0, "the connection stays open");
    }
    reply.starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn answers_come_over_tls_and_the_certificate_can_be_replaced() {
    let (first, second) = (one(), other());
    let tls = Tls::from_pem(first.certificate.as_bytes(), first.key.as_bytes()).unwrap();
    let config = ServerConfig { tls: Some(tls.clone()), ..ServerConfig::default() };
    let server = Server::start(config, answer("hello")).await;
    let mut kept = connect(&server, &first.client).await.unwrap();
    assert!(is_healthy(&mut kept).await);
    let mut stream = connect(&server, &first.client).await.unwrap();
    let body = json!({"prompt": "a", "stream": true}).to_string();
    stream.write_all(&post_request("/v1/completions", "", body.as_bytes())).await.unwrap();
    let mut reply = String::new();
    // The end is announced by TLS: a cut would be an error.
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("[DONE]"), "{reply}");

    // A certificate and key that do not match change nothing.
    assert!(tls.replace(second.certificate.as_bytes(), first.key.as_bytes()).is_err());
    assert!(connect(&server, &first.client).await.is_ok());
    tls.replace(second.certificate.as_bytes(), second.key.as_bytes()).unwrap();
    let refused = connect(&server, &first.client).await.expect_err("it is not trusted any more");
    assert!(refused.to_string().contains("certificate"), "{refused}");
    assert!(is_healthy(&mut connect(&server, &second.client).await.unwrap()).await);
    assert!(is_healthy(&mut kept).await, "what was open goes on");
}

#[tokio::test]
async fn handshakes_that_fail_cost_nobody_else_anything() {
    let identity = one();
    let tls = Tls::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes()).unwrap();
    let config = ServerConfig {
        tls: Some(tls),
        header_timeout: Duration::from_millis(200),
        connections_max: 1,
        ..ServerConfig::default()
    };
    let server = Server::start(config, answer("x")).await;
    // A silent client occupies the only connection no longer than the handshake timeout.
    let mut silent = server.connect().await;
    let mut plain = server.connect().await;
    plain.write_all(HEALTH).await.unwrap();
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    // A client that does not speak TLS gets an alert, and garbage ends the connection.
    plain.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.first(), Some(&21), "{rest:?}");
    let mut rubbish = server.connect().await;
    rubbish.write_all(&[0x16, 3, 1, 0xff, 0xff, 0]).await.unwrap();
    rubbish.shutdown().await.unwrap();
    // The response is an alert, or nothing if the socket was closed at once.
    let _ = rubbish.read_to_end(&mut rest).await;
    assert!(is_healthy(&mut connect(&server, &identity.client).await.unwrap()).await);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_over_tls_too() {
    let identity = one();
    let tls = Tls::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes()).unwrap();
    let config = ServerConfig {
        tls: Some(tls),
        write_timeout: Duration::from_millis(200),
        connections_max: 1,
        ..ServerConfig::default()
    };
    let server = Server::start(config, Box::new(|_, _| Step::Token(97))).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let socket = socket.connect(server.address).await.unwrap();
    let mut blocked = identity.client.connect(ServerName::try_from("localhost").unwrap(), socket).await.unwrap();
    let body = json!({"prompt": "a", "max_tokens": 4000, "n": 4, "stream": true, "logprobs": 5}).to_string();
    blocked.write_all(&post_request("/v1/completions", "", body.as_bytes())).await.unwrap();
    // The only connection is free again when it is closed.
    let next = tokio::time::timeout(Duration::from_secs(60), connect(&server, &identity.client)).await;
    assert!(is_healthy(&mut next.expect("the blocked connection is closed").unwrap()).await);
}
