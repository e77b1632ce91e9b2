//! The accept loop: header timeouts, a limit of connections, and an orderly end. `axum::serve` has none of the three.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::config::ServerConfig;
use crate::memory::RequestMemory;
use crate::patience::Patience;

/// Largest request head, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after a failed accept: out of file descriptors, the next would fail at once too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long connections that are cut get to send what became of their requests.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What happened to the requests in flight when the server was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// All were answered.
    Completely,
    /// Connections that were still open after `drain_timeout`, or when draining was ended early, and were cut.
    Cut(usize),
}

/// The part of the configuration that connections know.
#[derive(Clone, Copy)]
pub(crate) struct ListenerLimits {
    connections_max: usize,
    header_timeout: Duration,
    write_timeout: Duration,
    drain_timeout: Duration,
}

impl ListenerLimits {
    pub(crate) fn of(config: &ServerConfig) -> Self {
        let affordable = RequestMemory::connections(config.request_bytes_max);
        if config.connections_max > affordable {
            tracing::warn!(
                "{affordable} connections are served at a time, not {}: the memory for requests holds no more",
                config.connections_max
            );
        }
        Self {
            connections_max: config.connections_max.clamp(1, affordable.min(Semaphore::MAX_PERMITS)),
            header_timeout: config.header_timeout,
            write_timeout: config.write_timeout,
            drain_timeout: config.drain_timeout,
        }
    }
}

/// Serves until `shutdown`, then drains until the future that `shutdown` completes with. Requests that are still in
/// flight then are notified through `cut`.
pub(crate) async fn run<F: Future<Output = ()>>(
    listener: TcpListener,
    router: Router,
    limits: ListenerLimits,
    shutdown: impl Future<Output = F>,
    cut: watch::Sender<bool>,
) -> Drained {
    let room = Arc::new(Semaphore::new(limits.connections_max));
    let (drain, draining) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let patience_ends = loop {
        let accepted = async {
            let place = room.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            patience_ends = &mut shutdown => break patience_ends,
            Some(ended) = connections.join_next(), if !connections.is_empty() => report(ended),
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = serve_connection(stream, router.clone(), limits, draining.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    };
    // Closing the listener tells balancers and clients to go elsewhere.
    drop(listener);
    drain.send_replace(true);
    tokio::select! {
        () = all_ended(&mut connections) => return Drained::Completely,
        () = sleep(limits.drain_timeout) => {}
        () = patience_ends => {}
    }
    let open = connections.len();
    cut.send_replace(true);
    // Connections that have not ended by now have nothing left to send, or a client that does not read.
    let _ = timeout(LAST_WORDS, all_ended(&mut connections)).await;
    connections.shutdown().await;
    Drained::Cut(open)
}

async fn all_ended(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    limits: ListenerLimits,
    mut draining: watch::Receiver<bool>,
) {
    // A token is a small packet, and must not wait for the next one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let stream = Patience::new(stream, limits.write_timeout);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(HEAD_BYTES_MAX);
    let connection = builder.serve_connection(stream, TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let told = async {
        // An error means that the accept loop is gone, which is the same.
        let _ = draining.wait_for(|&draining| draining).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Clients go away and send rubbish; neither is news.
        tracing::debug!(%error, "connection ended");
    }
}

/// A handler that panics ends its own connection and nothing else.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}
