//! Implements `/api/pull`, which fetches a model and reports progress in Ollama's form.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Front;
use crate::api_keys::Owner;
use crate::body::read_body;
use crate::endpoints::ollama;
use crate::error::ApiError;
use crate::fields::{Field, read, sent};
use crate::guests::Peer;
use crate::library::{LibraryError, PullStep};
use crate::openapi::{Part, part};
use crate::shelf::refusal;
use crate::stream::{self, LINES, line};

/// The minimum time between two progress lines about one content.
const TOLD_EVERY: Duration = Duration::from_millis(250);
/// The number of characters of a content's name in its progress line.
const DIGITS_TOLD: usize = 12;

/// The headers by which a proxy on another machine shows that it passed the request on.
const PASSED_ON: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// The fields of `/api/pull`.
#[derive(Deserialize)]
struct Fields {
    model: Option<Field<String>>,
    /// The older name of `model`.
    name: Option<Field<String>>,
    stream: Option<Field<bool>>,
    insecure: Option<Field<bool>>,
}

/// Returns the fields that `/api/pull` reads.
pub(crate) fn pull_parts() -> Vec<Part> {
    vec![part!(Fields)]
}

/// Fetches a model. The download stops if the client disconnects, and files that were fetched are kept.
pub(crate) async fn pull(State(front): State<Arc<Front>>, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    check(&front, &head)?;
    let owner = head.extensions.get::<Owner>().cloned();
    let received = read_body(&front.config, &front.memory.bodies, &head, body).await?;
    let fields: Fields = read(received.body.json())?;
    if sent(fields.insecure) == Some(true) {
        let message = "insecure is true, but models are fetched from servers with certificates alone; leave it out";
        return Err(ApiError::invalid("insecure", message));
    }
    let name = sent(fields.model.or(fields.name)).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::invalid("model", "the request names no model to fetch"))?;
    drop(received.body);
    let mut steps = front.shelf.library.pull(&name);
    // If the download fails before its first step, the answer's status says so.
    let first = steps.recv().await.unwrap_or_else(broke_off);
    let first = first.map_err(|error| told(&name, error))?;
    if !sent(fields.stream).unwrap_or(true) {
        let mut step = first;
        while step != PullStep::Done {
            step = steps.recv().await.unwrap_or_else(broke_off).map_err(|error| told(&name, error))?;
        }
        return Ok(Json(json!({"status": "success"})).into_response());
    }
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let ends = async {
            match owner {
                Some(owner) => front.config.api_keys.revoked(owner.tenant).await,
                None => std::future::pending().await,
            }
        };
        let refused = tokio::select! {
            () = sender.closed() => return,
            outcome = write(&sender, first, steps) => match outcome {
                Ok(()) => return,
                Err(error) => told(&name, error),
            },
            () = ends => ApiError::revoked(),
            () = super::drained(&front) => ApiError::draining(),
        };
        refused.log();
        // A client that has disconnected meanwhile needs no message.
        let _ = sender.send(line(&ollama::refusal(&refused)).into()).await;
    });
    Ok(stream::response(receiver, None, LINES))
}

/// Refuses pulls from other machines if the server has no API keys, because anybody there could fill the disk. If the
/// server has keys, the request's key was checked before.
fn check(front: &Front, head: &Parts) -> Result<(), ApiError> {
    if !front.config.api_keys.is_empty() {
        return Ok(());
    }
    let here = head.extensions.get::<Peer>().is_some_and(|Peer(address)| {
        address.to_canonical().is_loopback() && !front.config.proxies.iter().any(|proxies| proxies.has(*address))
    });
    let is_passed_on = PASSED_ON.iter().any(|name| head.headers.contains_key(*name));
    if here && !is_passed_on { Ok(()) } else { Err(ApiError::remote_pull()) }
}

fn told(name: &str, error: LibraryError) -> ApiError {
    refusal(&format!("{name} cannot be fetched"), error)
}

fn broke_off() -> Result<PullStep, LibraryError> {
    Err(LibraryError::Failed("it broke off; what came is kept".into()))
}

/// Writes a line for each step. Failures to write are ignored, because they mean that the client has disconnected.
async fn write(
    sender: &mpsc::Sender<Bytes>,
    first: PullStep,
    mut steps: mpsc::Receiver<Result<PullStep, LibraryError>>,
) -> Result<(), LibraryError> {
    let tell = async |value: Value| sender.send(line(&value).into()).await.is_ok();
    tell(json!({"status": "pulling manifest"})).await;
    let (mut step, mut told_at) = (first, None::<Instant>);
    while let PullStep::Fetched { content, done, all } = step {
        if done == all || told_at.is_none_or(|at| at.elapsed() >= TOLD_EVERY) {
            told_at = Some(Instant::now());
            let short = &content[..content.floor_char_boundary(DIGITS_TOLD)];
            // Clients cut off the first seven characters of the digest.
            let digest = format!("commit:{content}");
            let status = format!("pulling {short}");
            tell(json!({"status": status, "digest": digest, "total": all, "completed": done})).await;
        }
        step = steps.recv().await.unwrap_or_else(broke_off)?;
    }
    for status in ["verifying sha256 digest", "writing manifest", "success"] {
        tell(json!({"status": status})).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::http::Request;
    use tokio::sync::watch;

    use super::*;
    use crate::api_keys::{ApiKey, ApiKeys};
    use crate::config::ServerConfig;
    use crate::guests::Network;
    use crate::keep_alive::KeepAlive;
    use crate::library::{Library, LibraryModel, ModelDescription, ServedModel};
    use crate::load_progress::LoadProgress;
    use crate::metrics::Metrics;
    use crate::shelf::Shelf;

    /// A library without models.
    struct Nothing;

    impl Library for Nothing {
        fn models(&self) -> Vec<LibraryModel> {
            Vec::new()
        }

        fn find(&self, _: &str) -> Option<String> {
            None
        }

        fn describe(&self, _: &str) -> Result<ModelDescription, LibraryError> {
            Err(LibraryError::Unfit("there is none".into()))
        }

        fn load(&self, _: &str, _: Arc<LoadProgress>) -> Result<ServedModel, LibraryError> {
            Err(LibraryError::Unfit("there is none".into()))
        }

        fn pull(&self, _: &str) -> mpsc::Receiver<Result<PullStep, LibraryError>> {
            mpsc::channel(1).1
        }
    }

    /// Returns the status that refuses a pull from `address` with these headers, or `None` if the pull may go on.
    fn refused(config: &ServerConfig, address: Option<&str>, headers: &[(&str, &str)]) -> Option<u16> {
        let open = Box::new(|_| unreachable!("nothing is loaded"));
        let shelf = Shelf::new(Arc::new(Nothing), KeepAlive::Always, Duration::from_secs(1), open);
        let front = Front::new(config.clone(), shelf, Arc::new(Metrics::new(None)), watch::channel(false).1);
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut head = request.body(()).expect("a request").into_parts().0;
        let address = address.map(|address| address.parse::<IpAddr>().expect("an address"));
        address.into_iter().for_each(|address| _ = head.extensions.insert(Peer(address)));
        check(&front, &head).err().map(|error| error.status.as_u16())
    }

    #[tokio::test]
    async fn whoever_has_no_key_pulls_at_this_machine_alone() {
        let open = ServerConfig::default();
        for (address, headers, expect) in [
            (Some("127.0.0.1"), &[][..], None),
            (Some("127.8.9.1"), &[], None),
            (Some("::1"), &[], None),
            (Some("::ffff:127.0.0.1"), &[], None),
            (Some("10.0.0.7"), &[], Some(403)),
            (Some("fe80::1"), &[], Some(403)),
            (None, &[], Some(403)),
            (Some("127.0.0.1"), &[("x-forwarded-for", "10.0.0.7")], Some(403)),
            (Some("127.0.0.1"), &[("via", "1.1 proxy")], Some(403)),
        ] {
            assert_eq!(refused(&open, address, headers), expect, "{address:?} {headers:?}");
        }
        let proxies = vec![Network::read("127.0.0.1").expect("an address")];
        let behind = ServerConfig { proxies, ..ServerConfig::default() };
        assert_eq!(refused(&behind, Some("127.0.0.1"), &[]), Some(403));
        let keyed = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
        assert_eq!(refused(&keyed, Some("10.0.0.7"), &[]), None);
    }
}
