//! Tests a system without root certificates.

use std::process::Command;

use interbed_hub::{HubProblem, HubSettings};

use crate::place::{Place, fetch, problem};

#[test]
fn without_certificates_http_and_the_cache_are_what_there_is() {
    const INSIDE: &str = "INTERBED_HUB_TEST_WITHOUT_CERTIFICATES";
    if std::env::var_os(INSIDE).is_none() {
        // The location of certificates is set for a whole process.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tls::without_certificates_http_and_the_cache_are_what_there_is"]);
        command.env(INSIDE, "1").env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
        let ended = command.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let place = Place::new();
    place.fetches();
    let settings = HubSettings { endpoint: "https://127.0.0.1:9".into(), ..place.settings() };
    fetch(&settings, "org/name").unwrap();
    let problem = problem(fetch(&settings, "org/other"));
    assert!(matches!(problem, HubProblem::NoTls { .. }) && problem.is_of_the_network(), "{problem}");
    assert!(problem.hint().contains("ca-certificates") && problem.hint().contains("--offline"), "{}", problem.hint());
}
