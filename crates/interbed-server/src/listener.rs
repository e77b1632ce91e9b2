//! Accepts connections, with header timeouts, a limit of connections, and an orderly end. `axum::serve` has none of the
//! three.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::config::ServerConfig;
use crate::door::Doorway;
use crate::endpoints::NoRoom;
use crate::guests::{Guest, Peer, household};
use crate::holding_body::holding;
use crate::other_paths;
use crate::patience::Patience;
use crate::tls::Tls;

/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The time in which a request's head must arrive on a connection without a place.
const HEAD_OF_KEPT: Duration = Duration::from_secs(2);
/// The paths that the server answers even on a connection without a place.
const ALWAYS_ANSWERED: [&str; 3] = ["/health", "/metrics", "/version"];
/// The time after which the server tries again to admit a waiting connection, if nothing has changed.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// The pause after a failure to accept a connection. If no file descriptors are left, the next attempt would fail at
/// once too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The maximum numbers of connections that wait to be admitted, for one address and in all. If there are more, the
/// server closes the last connection of the address that has the most, so that no address keeps others out.
const HELD_EACH: usize = 256;
const HELD_MAX: usize = 512;
/// The maximum number of waiting connections that the server still accepts after all others have ended. The system
/// keeps as many.
const LAST_TAKEN: usize = 1024;
/// The time that connections have to send the errors of their requests when the server cuts requests off.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The time for which a connection without a request stays open once the server takes no new requests. A request that
/// is being sent at that moment gets an answer, whereas closing the connection at once would cut it off.
const LINGER: Duration = Duration::from_millis(250);

/// The outcome for the requests in flight after the server was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// All requests were answered.
    Completely,
    /// The server cut this number of connections. They were still open when the time in [`ServerConfig::drain_timeout`]
    /// was over, or when the server was told to wait no longer.
    Cut(usize),
}

/// The part of the configuration that connections need.
#[derive(Clone)]
pub(crate) struct ListenerLimits {
    tls: Option<Tls>,
    header_timeout: Duration,
    write_timeout: Duration,
    drain_timeout: Duration,
}

impl ListenerLimits {
    pub(crate) fn of(config: &ServerConfig) -> Self {
        let ServerConfig { header_timeout, write_timeout, drain_timeout, .. } = *config;
        Self { tls: config.tls.clone(), header_timeout, write_timeout, drain_timeout }
    }
}

/// Serves connections until `shutdown` completes, and then drains until the result of `shutdown`, which is a future,
/// completes. While the server drains, it still answers requests about its health, and refuses new requests. Requests
/// that are still in flight at the end are notified through `cut`.
pub(crate) async fn run<F: Future<Output = ()>>(
    listener: TcpListener,
    doorway: Arc<Doorway>,
    limits: ListenerLimits,
    shutdown: impl Future<Output = F>,
    drain: watch::Sender<bool>,
    cut: watch::Sender<bool>,
) -> Drained {
    let drain_timeout = limits.drain_timeout;
    let mut connections =
        Connections { listener, doorway, limits, held: Vec::new(), tasks: JoinSet::new(), late: None };
    let mut shutdown = pin!(shutdown);
    let patience_ends = loop {
        tokio::select! {
            patience_ends = &mut shutdown => break patience_ends,
            () = connections.change() => {}
        }
    };
    drain.send_replace(true);
    connections.late = Some(JoinSet::new());
    let (mut patience_ends, mut time_is_up) = (pin!(patience_ends), pin!(sleep(drain_timeout)));
    let is_cut = loop {
        if connections.tasks.is_empty() {
            break false;
        }
        tokio::select! {
            () = connections.change() => {}
            () = &mut time_is_up => break true,
            () = &mut patience_ends => break true,
        }
    };
    let open = connections.tasks.len();
    if is_cut {
        cut.send_replace(true);
    }
    connections.take_last();
    // Closing the listener tells balancers and clients to go elsewhere.
    let Connections { listener, mut tasks, late, .. } = connections;
    drop(listener);
    let mut late = late.unwrap_or_default();
    // Connections that have not ended by now have nothing left to send, or a client that does not read.
    let _ = timeout(LAST_WORDS, async {
        all_ended(&mut tasks).await;
        all_ended(&mut late).await;
    })
    .await;
    tasks.shutdown().await;
    late.shutdown().await;
    if is_cut { Drained::Cut(open) } else { Drained::Completely }
}

async fn all_ended(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

/// The open connections, and the listener that accepts further ones.
struct Connections {
    listener: TcpListener,
    doorway: Arc<Doorway>,
    limits: ListenerLimits,
    /// The connections that have arrived and could not be admitted yet, with the addresses under which they are
    /// counted.
    held: Vec<(TcpStream, IpAddr)>,
    tasks: JoinSet<()>,
    /// The connections that have arrived since draining began. Their requests are refused, and no number of them delays
    /// the end of the server.
    late: Option<JoinSet<()>>,
}

impl Connections {
    /// Waits until a connection has arrived or has ended, and handles that.
    async fn change(&mut self) {
        let late = async {
            match &mut self.late {
                Some(late) if !late.is_empty() => late.join_next().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => report(ended),
            Some(ended) = late => report(ended),
            accepted = self.listener.accept() => match accepted {
                Ok((stream, address)) => self.hold(stream, address.ip()),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.doorway.guests.make_room();
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            () = self.doorway.guests.stirred(), if !self.held.is_empty() => {}
            () = sleep(TRY_AGAIN), if !self.held.is_empty() => {}
        }
        self.let_in();
    }

    /// Accepts the connections that are waiting already. Their clients are told that the server stops, whereas closing
    /// the server's socket would cut them off.
    fn take_last(&mut self) {
        for _ in 0..LAST_TAKEN {
            let mut context = Context::from_waker(Waker::noop());
            match self.listener.poll_accept(&mut context) {
                Poll::Ready(Ok((stream, address))) => self.hold(stream, address.ip()),
                _ => return,
            }
            self.let_in();
        }
    }

    /// Keeps a connection that has arrived, and closes one if too many wait.
    fn hold(&mut self, stream: TcpStream, address: IpAddr) {
        self.held.push((stream, household(address)));
        if let Some(index) = surplus(self.held.iter().map(|(_, address)| *address)) {
            self.held.remove(index);
        }
    }

    /// Begins to serve the connections that have arrived, as far as they can be admitted.
    fn let_in(&mut self) {
        let mut without_room: Vec<(TcpStream, IpAddr)> = Vec::new();
        for (stream, address) in std::mem::take(&mut self.held) {
            // What one of an address does not find, the next does not either.
            let is_tried = without_room.iter().any(|(_, tried)| *tried == address);
            let guest = if is_tried { None } else { self.doorway.guests.admit(address) };
            match guest {
                Some(guest) => {
                    let (doorway, limits) = (self.doorway.clone(), self.limits.clone());
                    let connection = serve_connection(stream, Arc::new(guest), doorway, limits);
                    self.late.as_mut().unwrap_or(&mut self.tasks).spawn(connection);
                }
                None => without_room.push((stream, address)),
            }
        }
        self.held = without_room;
    }
}

/// Returns the index of the waiting connection that must be closed because too many wait, given the address of each.
fn surplus(held: impl Iterator<Item = IpAddr>) -> Option<usize> {
    let mut of_each: HashMap<IpAddr, (usize, usize)> = HashMap::new();
    let mut all = 0;
    for (index, address) in held.enumerate() {
        let (count, last) = of_each.entry(address).or_default();
        (*count, *last, all) = (*count + 1, index, all + 1);
    }
    let &(count, last) = of_each.values().max()?;
    (count > HELD_EACH || all > HELD_MAX).then_some(last)
}

async fn serve_connection(stream: TcpStream, guest: Arc<Guest>, doorway: Arc<Doorway>, mut limits: ListenerLimits) {
    if guest.is_kept() {
        limits.header_timeout = limits.header_timeout.min(HEAD_OF_KEPT);
    }
    // A token is a small packet, and must not wait for the next one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let peer = stream.peer_addr().ok().map(|address| Peer(address.ip()));
    let stream = Patience::new(stream, guest.clone(), limits.write_timeout);
    match &limits.tls {
        None => converse(stream, peer, guest, doorway, limits).await,
        Some(tls) => {
            let accepted = tokio::select! {
                accepted = tls.accept(stream, limits.header_timeout) => accepted,
                // Who has said nothing yet keeps no server from its end.
                () = lingered(doorway.draining.clone()) => return,
                () = guest.sent_away() => return,
            };
            match accepted {
                Ok(stream) => converse(stream, peer, guest, doorway, limits).await,
                // Scanners, clients without TLS, and those that do not trust the certificate.
                Err(error) => tracing::debug!(%error, "no TLS connection"),
            }
        }
    }
}

/// Answers the requests of a connection until it ends.
async fn converse<S>(stream: S, peer: Option<Peer>, guest: Arc<Guest>, doorway: Arc<Doorway>, limits: ListenerLimits)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let told = lingered(doorway.draining.clone());
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(HEAD_BYTES_MAX);
    let service = service_fn(|request| answer(doorway.clone(), guest.clone(), peer, request));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = guest.sent_away() => {
            if !guest.has_asked() {
                return;
            }
            // A request may have come just now, or the end of an answer may be on its way.
            connection.as_mut().graceful_shutdown();
            if !guest.is_busy() {
                let _ = timeout(LAST_WORDS, connection).await;
                return;
            }
            connection.await
        }
    };
    if let Err(error) = ended {
        // Clients go away and send rubbish; neither is news.
        tracing::debug!(%error, "connection ended");
    }
}

/// Completes when a connection without a request must be closed, which is [`LINGER`] after draining begins.
async fn lingered(mut draining: watch::Receiver<bool>) {
    // An error means that the accept loop is gone, which is the same.
    let _ = draining.wait_for(|&draining| draining).await;
    sleep(LINGER).await;
}

/// Answers a request. While the server drains, the answer is the last one on its connection.
async fn answer(
    doorway: Arc<Doorway>,
    guest: Arc<Guest>,
    peer: Option<Peer>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    other_paths::rename(request.uri_mut());
    peer.into_iter().for_each(|peer| _ = request.extensions_mut().insert(peer));
    let busy = guest.begin();
    let is_kept = guest.is_kept();
    let is_refused = is_kept && !ALWAYS_ANSWERED.contains(&request.uri().path()) && !guest.wait_for_place().await;
    if is_refused {
        request.extensions_mut().insert(NoRoom);
    }
    let mut response = TowerToHyperService::new(doorway.router().clone()).call(request).await?;
    if *doorway.draining.borrow() || guest.is_kept() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    // Until hyper has taken all of the body, the connection is busy; then as long as the client does not read.
    Ok(response.map(|body| holding(body, busy)))
}

/// Logs the panic of a handler, which ends its own connection and nothing else.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_wait_in_all_places() {
        let address = |number: usize| IpAddr::from([10, 0, 0, u8::try_from(number).expect("a byte")]);
        let of_one = std::iter::repeat_n(address(1), HELD_EACH);
        assert_eq!(surplus(of_one.clone()), None);
        assert_eq!(surplus(of_one.clone().chain([address(2), address(1), address(3)])), Some(HELD_EACH + 1));
        let others = std::iter::repeat_n(address(2), HELD_MAX - HELD_EACH - 1);
        assert_eq!(surplus(others.clone().chain(of_one.clone())), None);
        assert_eq!(surplus(of_one.chain(others).chain([address(3), address(3)])), Some(HELD_EACH - 1));
    }
}
