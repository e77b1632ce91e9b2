//! The threads that speak with a store.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt, stream};
use interbed_kv::{BlockKey, BlockLabel, FetchId, KEY_BYTES, Wanted};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::blob_store::BlobStore;
use crate::object::{NotIt, ObjectFormat};

/// Threads that speak, hash and check.
const THREADS: usize = 2;

/// Blocks of a fetch that are asked for at a time: no more, and no more bytes of them unless it is two.
const ASKED: usize = 16;
const ASKED_BYTES: usize = 16 << 20;

/// Writes that go on at a time, so that they do not keep reads waiting.
const WRITES: usize = 2;

/// How long a store may take for one write.
const WRITE: Duration = Duration::from_secs(10);

/// How long a store may take for its first answer, after which it is said that there is none.
const PROBE: Duration = Duration::from_secs(3);

/// Times that the libraries below keep the bytes of an object that is written or read.
const COPIES: usize = 4;

/// What a look for a block has brought.
pub(crate) enum Found {
    /// The object of the block, which was checked. The memory counts until the permit goes.
    Block(Vec<u8>, OwnedSemaphorePermit),
    /// There is none.
    Nothing,
    /// There is one, and it is something else.
    Else(NotIt),
    /// The store has failed.
    Failed(String),
}

/// What became of what was asked for.
pub(crate) enum Done {
    /// The store is being asked for the first block of a fetch: there was memory for it.
    Asked { fetch: FetchId, at: Instant },
    /// The next block of a fetch, and when it came; nothing comes behind one that is not [found](Found::Block).
    Read { fetch: FetchId, found: Found, at: Instant },
    /// An object is there, or is not. `written` is its length.
    Written { key: BlockKey, written: Result<usize, String> },
}

/// See the [module](self). What is under way when they are dropped is given up.
pub(crate) struct Workers {
    runtime: Option<Runtime>,
    store: Arc<dyn BlobStore>,
    format: Arc<ObjectFormat>,
    /// What the names of all objects begin with.
    prefix: Arc<str>,
    /// Blocks for which there is memory.
    room: Arc<Semaphore>,
    /// Writes that may begin.
    writes: Arc<Semaphore>,
    sender: Sender<Done>,
    done: Receiver<Done>,
}

impl Workers {
    /// With memory for `room` blocks that are read.
    pub(crate) fn start(
        store: Arc<dyn BlobStore>,
        format: ObjectFormat,
        prefix: String,
        room: usize,
    ) -> std::io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("kv-remote").enable_all().build()?;
        let (sender, done) = channel();
        let (format, room) = (Arc::new(format), Arc::new(Semaphore::new(room)));
        let writes = Arc::new(Semaphore::new(WRITES));
        runtime.spawn(probe(Arc::clone(&store), prefix.clone()));
        Ok(Self { runtime: Some(runtime), store, format, prefix: prefix.into(), room, writes, sender, done })
    }

    /// Memory that the libraries below take for objects of so many bytes.
    pub(crate) fn library_bytes(object: usize) -> usize {
        (WRITES + asked(object)) * COPIES * object
    }

    pub(crate) fn format(&self) -> &ObjectFormat {
        &self.format
    }

    /// What the object of a block is called in the store.
    pub(crate) fn name(&self, key: BlockKey) -> String {
        name(&self.prefix, key)
    }

    /// Reads `wanted` in order, up to the first that is missing. Whoever drops what this returns does not stop it.
    pub(crate) fn read(&self, fetch: FetchId, wanted: Vec<Wanted>) -> AbortHandle {
        let (store, format, prefix) = (Arc::clone(&self.store), Arc::clone(&self.format), Arc::clone(&self.prefix));
        let (room, sender) = (Arc::clone(&self.room), self.sender.clone());
        let runtime = self.runtime.as_ref().expect("it is there until it is dropped");
        let task = runtime.spawn(async move {
            // Memory is taken in order: a later block never keeps an earlier one waiting.
            let reads = stream::iter(wanted.into_iter().enumerate())
                .then(|(index, wanted)| {
                    let (room, sender) = (Arc::clone(&room), sender.clone());
                    async move {
                        let permit = room.acquire_owned().await.expect("the semaphore is never closed");
                        if index == 0 {
                            // Nobody listens any more when the engine stops.
                            let _ = sender.send(Done::Asked { fetch, at: Instant::now() });
                        }
                        (wanted, permit)
                    }
                })
                .map(|(wanted, permit)| {
                    let (store, format, name) = (Arc::clone(&store), &format, name(&prefix, wanted.key));
                    async move {
                        // One byte more shows that it is too long.
                        match store.get(&name, format.len() + 1).await {
                            Ok(Some(object)) => match format.check(&wanted, seconds_since_1970(), &object) {
                                Ok(()) => Found::Block(object, permit),
                                Err(not_it) => Found::Else(not_it),
                            },
                            Ok(None) => Found::Nothing,
                            Err(reason) => Found::Failed(reason),
                        }
                    }
                })
                .buffered(asked(format.len()));
            let mut reads = std::pin::pin!(reads);
            while let Some(found) = reads.next().await {
                let goes_on = matches!(found, Found::Block(..));
                if sender.send(Done::Read { fetch, found, at: Instant::now() }).is_err() || !goes_on {
                    break;
                }
            }
        });
        task.abort_handle()
    }

    /// Seals `object`, whose block is in place, and writes it.
    pub(crate) fn write(&self, label: BlockLabel, mut object: Vec<u8>) {
        let (store, format, prefix) = (Arc::clone(&self.store), Arc::clone(&self.format), Arc::clone(&self.prefix));
        let (sender, writes) = (self.sender.clone(), Arc::clone(&self.writes));
        let runtime = self.runtime.as_ref().expect("it is there until it is dropped");
        runtime.spawn(async move {
            let _turn = writes.acquire().await;
            format.seal(&label, seconds_since_1970(), &mut object);
            let (key, len, name) = (label.key, object.len(), name(&prefix, label.key));
            let written = match tokio::time::timeout(WRITE, store.put(&name, object)).await {
                Ok(written) => written.map(|()| len),
                Err(_) => Err(format!("no answer within {} seconds", WRITE.as_secs())),
            };
            let _ = sender.send(Done::Written { key, written });
        });
    }

    /// Blocks for which there is memory now.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.room.available_permits()
    }

    /// What has ended, within `wait`.
    pub(crate) fn done(&self, wait: Duration) -> Option<Done> {
        self.done.recv_timeout(wait).ok()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A store that does not answer holds nobody up.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Asks for something that is not there, so that an address or a password that is wrong is told of at the start.
async fn probe(store: Arc<dyn BlobStore>, prefix: String) {
    let name = format!("{prefix}probe");
    let answer = tokio::time::timeout(PROBE, store.get(&name, 1)).await;
    let reason = match answer {
        Ok(Ok(_)) => return,
        Ok(Err(reason)) => reason,
        Err(_) => format!("no answer within {} seconds", PROBE.as_secs()),
    };
    tracing::warn!(
        "the store of --kv-remote cannot be used now: {reason}; prompts are computed without it until it can"
    );
}

/// Returns how many objects of so many bytes are asked for at a time.
fn asked(object: usize) -> usize {
    (ASKED_BYTES / object.max(1)).clamp(2, ASKED)
}

fn name(prefix: &str, key: BlockKey) -> String {
    let mut name = String::with_capacity(prefix.len() + 2 * KEY_BYTES);
    name.push_str(prefix);
    push_hex(&mut name, &key.0);
    name
}

/// Appends bytes as hexadecimal digits.
pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
