//! The threads that communicate with a store.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt, stream};
use interbed_kv::{BlockKey, BlockLabel, FetchId, KEY_BYTES, KeyChain, Wanted, WantedTails};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::blob_store::BlobStore;
use crate::object::{NotIt, ObjectFormat};

/// The number of threads that communicate, hash and check.
const THREADS: usize = 2;

/// The most blocks of a fetch that are asked for at a time.
const ASKED: usize = 16;
const ASKED_BYTES: usize = 16 << 20;

/// The most places at a time of which the store is asked whether a sequence could go on there.
const MARKS: usize = 32;

/// The most writes that go on at a time, so that they do not keep reads waiting.
const WRITES: usize = 2;

/// The longest time that one write may take.
const WRITE: Duration = Duration::from_secs(10);

/// The time without a first answer after which a warning is given.
const PROBE: Duration = Duration::from_secs(3);

/// The number of times that the libraries below keep the bytes of an object that is written or read.
const COPIES: usize = 4;

/// The result of looking for a block.
pub(crate) enum Found {
    /// The block's object, which has passed all checks, and a permit that reserves memory for one block. Dropping the
    /// permit frees this reservation.
    Block(Vec<u8>, OwnedSemaphorePermit),
    /// The store has no object with the block's name.
    Nothing,
    /// The store has an object with the block's name, but the object failed the checks. The [`NotIt`] value is the
    /// reason.
    Else(NotIt),
    /// The read failed. The string says why.
    Failed(String),
}

/// An event in a request to the store.
pub(crate) enum Done {
    /// The threads have reserved memory for the first block of a fetch, and have begun to ask the store for this block
    /// at the time `at`.
    Asked { fetch: FetchId, at: Instant },
    /// The store is asked for what a sequence needs to go on behind the first `blocks` of the blocks that a fetch
    /// wants. `wanted` has all parts that are read, in order, and `missing` keys that the store was asked for and
    /// lacks.
    Chose { fetch: FetchId, blocks: usize, wanted: Vec<Wanted>, missing: Vec<BlockKey> },
    /// The store has nothing of what a sequence needs to go on behind any of the blocks that a fetch wants. It lacks
    /// the keys `missing`. No further result follows for this fetch.
    Lacks { fetch: FetchId, missing: Vec<BlockKey> },
    /// The store has answered for the first time, before it is asked for a block.
    Marked { fetch: FetchId, at: Instant },
    /// The next block of a fetch was looked for. `found` is the result, and `at` is the time when it arrived. Unless
    /// `found` is [`Found::Block`], no further result follows for this fetch.
    Read { fetch: FetchId, found: Found, at: Instant },
    /// A write has ended. `written` is the length of the object in bytes, or the reason why the write failed.
    Written { key: BlockKey, written: Result<usize, String> },
}

/// The threads that communicate with a store. Requests in flight are given up when this is dropped.
pub(crate) struct Workers {
    runtime: Option<Runtime>,
    store: Arc<dyn BlobStore>,
    format: Arc<ObjectFormat>,
    /// The beginning of the names of all objects.
    prefix: Arc<str>,
    /// The number of blocks for which there is memory.
    room: Arc<Semaphore>,
    /// The number of writes that may begin.
    writes: Arc<Semaphore>,
    sender: Sender<Done>,
    done: Receiver<Done>,
}

impl Workers {
    /// Starts the threads, with memory for `room` blocks that are read.
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

    /// Returns the bytes of memory that the libraries below take for objects of `object` bytes.
    pub(crate) fn library_bytes(object: usize) -> usize {
        (WRITES + asked(object)) * COPIES * object
    }

    pub(crate) fn format(&self) -> &ObjectFormat {
        &self.format
    }

    /// Returns the name of a block's object in the store.
    pub(crate) fn name(&self, key: BlockKey) -> String {
        name(&self.prefix, key)
    }

    /// Begins to read `wanted` in order, up to the first that is missing. Dropping the returned handle does not stop
    /// the reads.
    pub(crate) fn read(&self, fetch: FetchId, wanted: Vec<Wanted>) -> AbortHandle {
        let reader = self.reader(fetch);
        self.runtime().spawn(async move { reader.read(wanted).await }).abort_handle()
    }

    /// Finds the longest part of `wanted` behind which the store has `tails`, then reads it and those in order, in the
    /// way of [`read`](Self::read). `chain` computes the keys.
    pub(crate) fn read_all(
        &self,
        fetch: FetchId,
        wanted: Vec<Wanted>,
        tails: WantedTails,
        chain: KeyChain,
    ) -> AbortHandle {
        let reader = self.reader(fetch);
        let task = self.runtime().spawn(async move {
            let mut missing = Vec::new();
            let done = match reader.longest((&wanted, &tails), &chain, &mut missing).await {
                Ok(Some(blocks)) => {
                    let mut parts = wanted;
                    parts.truncate(blocks);
                    parts.extend(tails.behind(blocks, &parts, &chain));
                    reader.tell(Done::Chose { fetch, blocks, wanted: parts.clone(), missing });
                    return reader.read(parts).await;
                }
                Ok(None) => Done::Lacks { fetch, missing },
                Err(reason) => Done::Read { fetch, found: Found::Failed(reason), at: Instant::now() },
            };
            reader.tell(done);
        });
        task.abort_handle()
    }

    fn reader(&self, fetch: FetchId) -> Reader {
        Reader {
            fetch,
            store: Arc::clone(&self.store),
            format: Arc::clone(&self.format),
            prefix: Arc::clone(&self.prefix),
            room: Arc::clone(&self.room),
            sender: self.sender.clone(),
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until it is dropped")
    }

    /// Seals `object`, whose block is in place, and writes it.
    pub(crate) fn write(&self, label: BlockLabel, mut object: Vec<u8>) {
        let (store, format, prefix) = (Arc::clone(&self.store), Arc::clone(&self.format), Arc::clone(&self.prefix));
        let (sender, writes) = (self.sender.clone(), Arc::clone(&self.writes));
        self.runtime().spawn(async move {
            let _turn = writes.acquire().await;
            let key = label.key;
            // A task of its own: a bug must not leave a write pending for ever.
            let write = tokio::spawn(async move {
                format.seal(&label, seconds_since_1970(), &mut object);
                let (len, name) = (object.len(), name(&prefix, label.key));
                match tokio::time::timeout(WRITE, store.put(&name, object)).await {
                    Ok(written) => written.map(|()| len),
                    Err(_) => Err(format!("no answer within {} seconds", WRITE.as_secs())),
                }
            });
            let written = write.await.unwrap_or_else(|_| Err("writing an object panicked".to_owned()));
            let _ = sender.send(Done::Written { key, written });
        });
    }

    /// Returns the number of blocks for which there is memory now.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.room.available_permits()
    }

    /// Returns the next event, if one comes within `wait`.
    pub(crate) fn done(&self, wait: Duration) -> Option<Done> {
        self.done.recv_timeout(wait).ok()
    }
}

/// What a task needs to read for a fetch.
#[derive(Clone)]
struct Reader {
    fetch: FetchId,
    store: Arc<dyn BlobStore>,
    format: Arc<ObjectFormat>,
    prefix: Arc<str>,
    room: Arc<Semaphore>,
    sender: Sender<Done>,
}

impl Reader {
    /// Reads `wanted` in order, up to the first that is missing.
    async fn read(&self, wanted: Vec<Wanted>) {
        // Memory is taken in order, so a later block never keeps an earlier one waiting.
        let reads = stream::iter(wanted.into_iter().enumerate())
            .then(|(index, wanted)| {
                let reader = self.clone();
                async move {
                    let permit = Arc::clone(&reader.room).acquire_owned().await.expect("the semaphore is never closed");
                    if index == 0 {
                        reader.tell(Done::Asked { fetch: reader.fetch, at: Instant::now() });
                    }
                    (wanted, permit)
                }
            })
            .map(|(wanted, permit)| {
                let reader = self.clone();
                async move { reader.find(&wanted, permit).await }
            })
            .buffered(asked(self.format.len()));
        let mut reads = std::pin::pin!(reads);
        while let Some(found) = reads.next().await {
            let goes_on = matches!(found, Found::Block(..));
            if !self.tell(Done::Read { fetch: self.fetch, found, at: Instant::now() }) || !goes_on {
                break;
            }
        }
    }

    /// Looks for one part, for which `permit` reserves memory.
    async fn find(&self, wanted: &Wanted, permit: OwnedSemaphorePermit) -> Found {
        // One more byte shows that an object is too long.
        match self.store.get(&name(&self.prefix, wanted.key), self.format.len() + 1).await {
            Ok(Some(object)) => match self.format.check(wanted, seconds_since_1970(), &object) {
                Ok(()) => Found::Block(object, permit),
                Err(not_it) => Found::Else(not_it),
            },
            Ok(None) => Found::Nothing,
            Err(reason) => Found::Failed(reason),
        }
    }

    /// Returns how many of the wanted blocks come before the last place for which the store has the
    /// [marks](WantedTails::marks) of the tails. Returns `None` if there is no such place. Marks that the store lacks
    /// are added to `missing`.
    async fn longest(
        &self,
        (wanted, tails): (&[Wanted], &WantedTails),
        chain: &KeyChain,
        missing: &mut Vec<BlockKey>,
    ) -> Result<Option<usize>, String> {
        let places: Vec<_> = (1..=wanted.len()).rev().map(|blocks| tails.marks(blocks, wanted, chain)).collect();
        let found = stream::iter(places)
            .map(|marks| {
                let (store, prefix) = (Arc::clone(&self.store), Arc::clone(&self.prefix));
                async move {
                    for mark in marks {
                        if store.get(&name(&prefix, mark), 1).await?.is_none() {
                            return Ok::<_, String>(Some(mark));
                        }
                    }
                    Ok(None)
                }
            })
            .buffered(MARKS);
        let mut found = std::pin::pin!(found.enumerate());
        while let Some((index, lacking)) = found.next().await {
            if index == 0 {
                self.tell(Done::Marked { fetch: self.fetch, at: Instant::now() });
            }
            match lacking? {
                Some(mark) => missing.push(mark),
                None => return Ok(Some(wanted.len() - index)),
            }
        }
        Ok(None)
    }

    /// Sends an event. Returns false if nobody receives it any more, because the engine stops.
    fn tell(&self, done: Done) -> bool {
        self.sender.send(done).is_ok()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A store that does not answer must not delay the end of the process.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Asks for an object that does not exist, so that a wrong address or password is reported at the start.
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

/// Returns how many objects of `object` bytes are asked for at a time.
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
