//! The messages that a server prints when it is ready.

use std::net::SocketAddr;

use interbed_server::ServerConfig;

use super::address::browsable;
use crate::report::report;

/// The maximum number of model names that are printed.
const NAMES_TOLD: usize = 12;

/// The server's address, and whether clients need a key.
pub struct Announcement {
    scheme: &'static str,
    address: SocketAddr,
    /// Whether clients must send an API key.
    keyed: bool,
}

impl Announcement {
    /// Describes a server with this configuration that listens on `address`.
    pub fn of(config: &ServerConfig, address: SocketAddr) -> Self {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        Self { scheme, address, keyed: !config.api_keys.is_empty() }
    }

    /// Prints the address that serves the model `name`, and a `curl` command to try it. `chats` says whether the model
    /// has a chat template.
    pub fn announce(&self, name: &str, chats: bool) {
        let (path, body) = if chats {
            ("chat/completions", r#"{"messages": [{"role": "user", "content": "Hello!"}]}"#)
        } else {
            ("completions", r#"{"prompt": "Once upon a time", "max_tokens": 64}"#)
        };
        self.serving(name);
        self.try_it(path, body);
    }

    /// Prints the address that serves the models called `names`, and a `curl` command to try the first of them.
    pub fn announce_library(&self, names: &[String]) {
        let models = if names.len() == 1 { "1 model".to_owned() } else { format!("{} models", names.len()) };
        self.serving(&models);
        report!("  one in memory at a time, loaded by the first request for it: {}", told(names));
        if names.len() < 2 {
            report!("  `interbed pull NAME` fetches others, which are then served, too");
        }
        let name = names.first().map_or("NAME", String::as_str);
        let body = format!(r#"{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}"#);
        self.try_it("chat/completions", &body);
    }

    fn serving(&self, what: &str) {
        let Self { scheme, address, .. } = self;
        report!("Serving {what} on {scheme}://{address}/v1");
        report!("  the live page: {scheme}://{}/", browsable(*address));
    }

    fn try_it(&self, path: &str, body: &str) {
        let Self { scheme, address, keyed } = self;
        let header = if *keyed { "-H \"Authorization: Bearer $KEY\" " } else { "" };
        report!("  curl {scheme}://{address}/v1/{path} {header}-H 'Content-Type: application/json' -d '{body}'");
        if !keyed && !address.ip().is_loopback() {
            report!("note: whoever reaches this address can use the model; --api-key-file FILE asks for a key");
        }
    }
}

fn told(names: &[String]) -> String {
    let some = names.iter().take(NAMES_TOLD).map(String::as_str);
    let more = (names.len() > NAMES_TOLD).then_some("and more");
    some.chain(more).collect::<Vec<_>>().join(", ")
}
