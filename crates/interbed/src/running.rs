//! `interbed ps`: shows which model the server on this machine has loaded.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Advised;
use crate::printable::print_answer;

/// The maximum time that the server may take to accept the connection, and for each read or write.
const PATIENCE: Duration = Duration::from_secs(5);

/// The maximum size of an answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Show which model the server on this machine has loaded, and the state of the server
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed ps\n  \
    interbed ps --url http://127.0.0.1:9000\n  \
    interbed ps --json | jq -r '.models[]'\n\n\
    The page at the same address shows what is running, and /metrics has the figures.")]
pub struct RunningArgs {
    /// HTTP address of the server
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,

    /// API key, if the server requires one
    #[arg(long, value_name = "KEY", env = "INTERBED_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,

    /// One JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Runs `interbed ps`.
///
/// # Errors
/// Fails if no server answers, or the server refuses the key.
pub fn run(args: RunningArgs) -> Result<()> {
    let host = host_of(&args.url)?;
    let ask = |path: &str| ask(&host, path, args.api_key.as_deref());
    let (code, health) = ask("/health")?;
    let status = health["status"].as_str().or(health["error"]["message"].as_str());
    let status = status.map_or_else(|| format!("answers with {code}"), str::to_owned);
    let models: Vec<String> = match ask("/api/ps")? {
        (200, list) => list["models"].as_array().into_iter().flatten().filter_map(name).collect(),
        (401, _) => {
            return Err(Advised::input(
                format!("the server at {} asks for a key", args.url),
                "give one by INTERBED_API_KEY",
            ));
        }
        // While the server loads a model, it refuses this path.
        _ => Vec::new(),
    };
    let json = || json!({ "url": args.url, "status": status, "models": models });
    let text = || {
        let names = if models.is_empty() { "no model in memory".to_owned() } else { models.join(", ") };
        format!("{names}  {status}  {}\n", args.url)
    };
    Ok(print_answer(args.json, json, text)?)
}

/// Returns the name of a model from a list in Ollama's form.
fn name(model: &Value) -> Option<String> {
    let name = model["name"].as_str()?;
    Some(name.strip_suffix(":latest").unwrap_or(name).to_owned())
}

/// Returns `HOST:PORT` of a URL. The port is 80 if the URL has none.
fn host_of(url: &str) -> Result<String> {
    let host = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    if host.contains("://") || host.contains(['/', '@']) || host.is_empty() {
        return Err(Advised::input(
            format!("--url is {url}, but this command speaks plain HTTP with a host and a port"),
            "give for instance http://127.0.0.1:8000; over https: curl URL/v1/models",
        ));
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if has_port { host.to_owned() } else { format!("{host}:80") })
}

/// Sends a GET request to the server, and returns the status code and the JSON of its answer.
fn ask(host: &str, path: &str, key: Option<&str>) -> Result<(u16, Value)> {
    let hint = "`interbed serve MODEL` starts a server; --url names another address";
    let failed = |error: io::Error| Advised::system(format!("no server answers at {host}"), hint, error);
    let addresses = host.to_socket_addrs().map_err(failed)?;
    let mut outcome = Err(io::Error::from(io::ErrorKind::AddrNotAvailable));
    for address in addresses {
        outcome = TcpStream::connect_timeout(&address, PATIENCE);
        if outcome.is_ok() {
            break;
        }
    }
    let mut stream = outcome.map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).map_err(failed)?;
    let key = key.filter(|key| !key.contains(char::is_control));
    let key = key.map_or_else(String::new, |key| format!("Authorization: Bearer {key}\r\n"));
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n{key}\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(failed)?;
    read_answer(&String::from_utf8_lossy(&answer)).with_context(|| format!("{host} answers, but not as Interbed does"))
}

fn read_answer(answer: &str) -> Option<(u16, Value)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((code, serde_json::from_str(body).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_plain_http() {
        for (url, host) in [
            ("http://127.0.0.1:9000", "127.0.0.1:9000"),
            ("http://gpu.example.org/", "gpu.example.org:80"),
            ("localhost:8000", "localhost:8000"),
            ("http://[::1]:8000", "[::1]:8000"),
        ] {
            assert_eq!(host_of(url).expect(url), host);
        }
        for wrong in ["https://gpu.example.org", "http://a/b", "http://", "http://user@host"] {
            assert!(host_of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(read_answer("HTTP/1.1 503 No\r\nA: b\r\n\r\n{\"a\": 1}"), Some((503, json!({"a": 1}))));
        assert_eq!(read_answer("SSH-2.0\r\n\r\n"), None);
    }
}
