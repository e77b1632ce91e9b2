//! Serves two sockets: one publishes each batch to all subscribers, and the other repeats batches on request.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use interbed_kv::{CacheChanges, CacheWatcher};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{self, Runtime};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::timeout;

use crate::batch::encode;
use crate::endpoint::Endpoint;
use crate::journal::{BYTES_MAX, Journal, Numbered};
use crate::peer::{Peer, Said};
use crate::wire;

/// The most connections of each socket.
const PEERS_MAX: usize = 256;
/// The most topics of one subscriber.
const SUBSCRIPTIONS_MAX: usize = 64;
/// The number of batches that a subscriber may be behind before it misses some. The subscriber notices the gap by the
/// batches' numbers.
const BEHIND_MAX: usize = 4096;
/// The number that is sent after the last repeated batch.
const END: [u8; 8] = (-1i64).to_be_bytes();
/// The longest time for which a peer that asks for repeats may be silent. It can connect again, and a peer that is gone
/// for good does not keep its connection.
const SILENCE: Duration = Duration::from_secs(600);
/// The time until the next connection is accepted if the system had no resources for one.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// The configuration of a publisher.
#[derive(Debug, Clone)]
pub struct PublisherConfig {
    /// The endpoint at which subscribers connect.
    pub events: Endpoint,
    /// The endpoint at which subscribers ask for batches that they have missed; `None` for no such socket.
    pub replay: Option<Endpoint>,
    /// The topic at the beginning of each message. A subscriber names a prefix of it.
    pub topic: String,
}

/// The reason why a publisher cannot work.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The endpoint is taken, or is not an address of this machine.
    #[error(
        "cannot listen on {endpoint} for KV events; is another program there, or is it no address of this machine?"
    )]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused to start a thread.
    #[error("the thread for KV events could not be started")]
    Thread(#[source] io::Error),
}

/// Publishes the changes of a cache, and repeats them on demand. Its sockets live as long as the publisher does.
pub struct EventPublisher {
    shared: Arc<Shared>,
    block_size: usize,
    events: SocketAddr,
    replay: Option<SocketAddr>,
    /// A runtime apart from the server's, so that subscribers take no time from answers but that of the cores.
    _runtime: Runtime,
}

struct Shared {
    topic: Vec<u8>,
    journal: Mutex<Journal>,
    /// The numbers of batches, as they come. The journal has the batches themselves, once for all subscribers and
    /// within its limit.
    numbers: broadcast::Sender<u64>,
}

impl EventPublisher {
    /// The most bytes of batches that are kept.
    pub const BYTES_MAX: usize = BYTES_MAX;

    /// Listens with one thread for all connections. [`of_blocks`](Self::of_blocks) must set the size of blocks before
    /// anything is published.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`PublishError`].
    pub fn bind(config: PublisherConfig) -> Result<Self, PublishError> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kv-events")
            .enable_all()
            .build()
            .map_err(PublishError::Thread)?;
        let shared = Arc::new(Shared {
            topic: config.topic.into_bytes(),
            journal: Mutex::default(),
            numbers: broadcast::channel(BEHIND_MAX).0,
        });
        let entered = runtime.enter();
        let listen = |endpoint: &Endpoint| {
            listen(endpoint).map_err(|source| PublishError::Endpoint { endpoint: endpoint.clone(), source })
        };
        let (listener, events) = listen(&config.events)?;
        let replay = config.replay.as_ref().map(listen).transpose()?;
        runtime.spawn(accept(listener, shared.clone(), publish));
        let replay = replay.map(|(listener, address)| {
            runtime.spawn(accept(listener, shared.clone(), repeat));
            address
        });
        drop(entered);
        Ok(Self { shared, block_size: 0, events, replay, _runtime: runtime })
    }

    /// Sets the number of tokens in a block.
    pub fn of_blocks(self, block_size: usize) -> Self {
        Self { block_size, ..self }
    }

    /// Returns the address at which subscribers connect, with the port that was taken.
    pub fn events(&self) -> SocketAddr {
        self.events
    }

    /// Returns the address at which subscribers ask for batches that they have missed.
    pub fn replay(&self) -> Option<SocketAddr> {
        self.replay
    }
}

impl CacheWatcher for EventPublisher {
    /// Encodes the changes and hands them to the sockets' tasks. This never waits for a subscriber.
    fn changed(&mut self, changes: &CacheChanges) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        self.shared.publish(encode(changes, self.block_size, seconds));
    }
}

impl Shared {
    /// Gives `batch` a number and announces it. Numbers are announced in the order in which they are given.
    fn publish(&self, batch: Vec<u8>) {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        // The send fails only if nobody listens.
        let _ = self.numbers.send(journal.append(batch));
    }

    fn kept_from(&self, number: u64) -> Option<Numbered> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).from(number)
    }
}

fn listen(endpoint: &Endpoint) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind(&endpoint.addresses()?[..])?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}

/// Serves each connection with a task of its own.
async fn accept<S>(listener: TcpListener, shared: Arc<Shared>, serve: fn(TcpStream, Arc<Shared>) -> S)
where
    S: Future<Output = io::Result<()>> + Send + 'static,
{
    let seats = Arc::new(Semaphore::new(PEERS_MAX));
    loop {
        if seats.available_permits() == 0 {
            tracing::warn!("{PEERS_MAX} follow KV events, as many as may; others wait until one of them leaves");
        }
        // Semaphores are never closed here.
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("a connection for KV events could not be accepted: {error}");
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            }
        };
        let served = serve(stream, shared.clone());
        tokio::spawn(async move {
            match served.await {
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    tracing::info!("{address} is told of no more KV events: {error}");
                }
                _ => {}
            }
            drop(seat);
        });
    }
}

/// Tells a subscriber of the batches from now on.
async fn publish(stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let mut numbers = shared.numbers.subscribe();
    let mut peer = Peer::meet(stream, "PUB", &["SUB", "XSUB"]).await?;
    let mut topics: Vec<Vec<u8>> = Vec::new();
    loop {
        tokio::select! {
            said = peer.listen() => match said? {
                Said::Ping(pong) => peer.send(&pong).await?,
                Said::Subscribe(topic) => subscribe(&mut topics, topic)?,
                Said::Cancel(topic) => cancel(&mut topics, &topic),
                // Subscriptions come as messages in ZMTP 3.0.
                Said::Message(frames) => match frames.first().and_then(|frame| frame.split_first()) {
                    Some((1, topic)) => subscribe(&mut topics, topic.to_vec())?,
                    Some((0, topic)) => cancel(&mut topics, topic),
                    _ => {}
                },
            },
            number = numbers.recv() => match number {
                Ok(number) => {
                    let is_wanted = topics.iter().any(|topic| shared.topic.starts_with(topic));
                    // The subscriber misses a batch that is no longer kept, and the gap in the numbers tells it so.
                    let batch = shared.kept_from(number).filter(|kept| is_wanted && kept.number == number);
                    if let Some(Numbered { batch, .. }) = batch {
                        let message = wire::message([&shared.topic[..], &number.to_be_bytes(), &batch]);
                        peer.send(&message).await?;
                    }
                }
                // The gap in the numbers tells the subscriber that it has missed batches.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            },
        }
    }
}

fn subscribe(topics: &mut Vec<Vec<u8>>, topic: Vec<u8>) -> io::Result<()> {
    if topics.len() == SUBSCRIPTIONS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, wire::WireError::TooManySubscriptions));
    }
    topics.push(topic);
    Ok(())
}

fn cancel(topics: &mut Vec<Vec<u8>>, topic: &[u8]) {
    if let Some(index) = topics.iter().position(|known| known == topic) {
        topics.swap_remove(index);
    }
}

/// Repeats the kept batches from the requested number on, for each request, and then sends the end mark.
async fn repeat(stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let mut peer = Peer::meet(stream, "ROUTER", &["REQ", "DEALER", "ROUTER"]).await?;
    loop {
        let said = timeout(SILENCE, peer.listen()).await;
        let frames = match said.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
            Said::Ping(pong) => {
                peer.send(&pong).await?;
                continue;
            }
            Said::Message(frames) => frames,
            Said::Subscribe(_) | Said::Cancel(_) => continue,
        };
        // The frames before the number say where the answer goes.
        let Some((number, envelope)) = frames.split_last() else { continue };
        let Ok(number) = <[u8; 8]>::try_from(&number[..]) else { continue };
        let mut next = u64::from_be_bytes(number);
        let envelope = || envelope.iter().map(Vec::as_slice);
        while let Some(Numbered { number, batch }) = shared.kept_from(next) {
            let message = wire::message(envelope().chain([&number.to_be_bytes()[..], &batch]));
            peer.send(&message).await?;
            next = number + 1;
        }
        peer.send(&wire::message(envelope().chain([&END[..], &[]]))).await?;
    }
}
