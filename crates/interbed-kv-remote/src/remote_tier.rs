//! The driver of a store that servers share, which the engine's thread calls between passes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_kv::{
    BlockBytes, BlockKey, BlockLabel, BlockPart, FetchEnded, FetchId, Gate, KeyChain, LowerTier, MissingKeys, Pause,
    TierFigures, Wanted, WantedTails, WriteBudget,
};
use thiserror::Error;
use tokio::task::AbortHandle;

use crate::blob_store::BlobStore;
use crate::health::{Health, PAUSE_MAX};
use crate::object::{NotIt, ObjectFormat};
use crate::patience::{Patience, Wait};
use crate::workers::{Done, Found, Workers, push_hex};

/// The number of bytes of the model's fingerprint in the names of objects, by which the objects of different models can
/// be told apart.
const SHOWN_BYTES: usize = 8;

/// The most contents that are remembered to be in the store. If there are more, all are forgotten, and some are written
/// again.
const KNOWN_MAX: usize = 1 << 16;

/// One of this many blocks that are not worth a write is written.
const SAMPLED: u64 = 8;

/// The longest time for which a pass is put off while the store says whether it has a block. A store that has nothing
/// answers in less time than a pass takes.
const ANSWER_WAIT: Duration = Duration::from_millis(3);

/// The longest time for which a stopping engine goes on writing to the store.
const LAST_WRITES: Duration = Duration::from_secs(3);

/// The weight of a new measurement in the rate at which blocks are read.
const RATE_SHARE: f64 = 0.2;
const MEASURED: Duration = Duration::from_secs(60);
const MEASURED_BLOCKS: usize = 4;

/// Options of a [`RemoteTier`].
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// The number of bytes of memory for blocks that are being read. The tier uses another buffer of this size for
    /// blocks that wait to be written. If the number is too small for one block, each of the two buffers holds one
    /// block.
    pub buffer_bytes: usize,
    /// The maximum write rate, in bytes per day; `None` for no limit.
    pub writes_per_day: Option<u64>,
    /// The time from the write of a block until the block expires and can no longer be read; `None` for no limit.
    pub ttl: Option<Duration>,
    /// The rule for how long sequences wait for blocks from the store.
    pub patience: Patience,
    /// The gate that decides which blocks are worth writing.
    pub gate: Gate,
}

/// The reason why a [`RemoteTier`] cannot be opened.
#[derive(Debug, Error)]
pub enum RemoteTierError {
    /// The operating system refused to start a thread that communicates with the store.
    #[error("the threads that speak with the store could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// A fetch in flight.
struct FetchInFlight {
    /// The parts that are read, in order.
    wanted: Vec<Wanted>,
    /// The number of parts that have come.
    filled: usize,
    /// The number of blocks that were asked for.
    blocks: usize,
    /// If the parts behind the blocks must come as well, the number of blocks in front of them.
    all_of: Option<usize>,
    bytes: u64,
    wait: Wait,
    began: Instant,
    /// The time at which the store was asked for the first block, once there was memory for it.
    asked: Option<Instant>,
    /// The times at which the first block and the latest block came.
    came: Option<(Instant, Instant)>,
    task: AbortHandle,
}

/// A KV tier that writes blocks to a shared store and reads them back. The engine's thread calls the methods of the
/// tier. The tier starts further threads, which communicate with the store.
pub struct RemoteTier {
    chain: KeyChain,
    workers: Workers,
    patience: Patience,
    gate: Gate,
    budget: WriteBudget,
    /// The health of the store for reads.
    reading: Health,
    /// Time for which no further block is staged, after a failed write. Reads may still succeed.
    writing: Pause,
    /// The bytes per second at which fetches have read lately, and the time at which that was measured.
    rate: Option<(f64, Instant)>,
    /// The contents that are believed to be in the store, with their classes.
    known: HashMap<BlockKey, u8>,
    fetches: HashMap<FetchId, FetchInFlight>,
    ended: VecDeque<FetchEnded>,
    /// The most blocks that may wait to be written at a time.
    buffers: usize,
    figures: TierFigures,
}

impl RemoteTier {
    /// Creates a tier that keeps KV blocks in `store`. `fingerprint` identifies the model, and how its KV is computed
    /// and laid out. `shape` contains the number of tokens in a block, then the number of bytes in a block. The tier
    /// uses `secret` to name and sign blocks, so servers share blocks only if they have the same `secret`.
    ///
    /// # Errors
    /// Fails for one of the reasons in [`RemoteTierError`].
    pub fn open(
        store: Arc<dyn BlobStore>,
        secret: [u8; 32],
        fingerprint: [u8; 32],
        shape: (usize, usize),
        options: RemoteOptions,
    ) -> Result<Self, RemoteTierError> {
        let format = ObjectFormat::new(&secret, fingerprint, shape, options.ttl.map(|ttl| ttl.as_secs()));
        let buffers = (options.buffer_bytes / format.len()).max(1);
        let mut prefix = String::new();
        push_hex(&mut prefix, &fingerprint[..SHOWN_BYTES]);
        prefix.push('/');
        Ok(Self {
            chain: KeyChain::new(secret, fingerprint),
            workers: Workers::start(store, format, prefix, buffers)?,
            patience: options.patience,
            gate: options.gate,
            budget: WriteBudget::new(options.writes_per_day, Instant::now()),
            reading: Health::default(),
            writing: Pause::new(PAUSE_MAX),
            rate: None,
            known: HashMap::new(),
            fetches: HashMap::new(),
            ended: VecDeque::new(),
            buffers,
            figures: TierFigures::default(),
        })
    }

    /// Returns the number of bytes of a block's object. `shape` is that of [`open`](Self::open).
    pub fn object_bytes(shape: (usize, usize)) -> usize {
        ObjectFormat::new(&[0; 32], [0; 32], shape, None).len()
    }

    /// Returns the number of bytes of memory that a tier takes. This memory holds the blocks that are being read or
    /// written, and the tier's list of the blocks that are in the store. `shape` is that
    /// of [`open`](Self::open), and `wanted` is the value of [`RemoteOptions::buffer_bytes`].
    pub fn memory_bytes(shape: (usize, usize), wanted: usize) -> usize {
        let object = Self::object_bytes(shape);
        // An entry of the hash map has 24 bytes, and the map doubles when it grows.
        2 * (wanted / object).max(1) * object + Workers::library_bytes(object) + KNOWN_MAX * 2 * 24
    }
}

impl LowerTier for RemoteTier {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn key_chain(&self) -> &KeyChain {
        &self.chain
    }

    fn look_up(&mut self, keys: &MissingKeys, computing: Option<f64>) -> usize {
        let blocks = keys.keys().len();
        if self.is_worth_asking(blocks, computing) { blocks } else { 0 }
    }

    fn knows_contents(&self) -> bool {
        false
    }

    fn read_seconds(&self, blocks: usize) -> Option<f64> {
        self.rate(Instant::now()).map(|rate| (blocks * self.workers.format().block().len()) as f64 / rate)
    }

    fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, tails: Option<WantedTails>, computing: Option<f64>) {
        let (blocks, all_of) = (wanted.len(), tails.as_ref().map(|_| 0));
        let wait = self.patience.wait(blocks, computing);
        let task = match tails {
            None => self.workers.read(id, wanted.clone()),
            Some(tails) => self.workers.read_all(id, wanted.clone(), tails, self.chain.clone()),
        };
        let (began, asked, came) = (Instant::now(), None, None);
        let flight = FetchInFlight { wanted, filled: 0, blocks, all_of, bytes: 0, wait, began, asked, came, task };
        self.fetches.insert(id, flight);
    }

    fn give_up(&mut self, id: FetchId) {
        self.end(id);
    }

    fn is_reading(&self) -> bool {
        !self.fetches.is_empty() || !self.ended.is_empty()
    }

    fn answer_wait(&self) -> Option<Duration> {
        (self.is_reading() && self.reading.answer(Instant::now()) <= ANSWER_WAIT).then_some(ANSWER_WAIT)
    }

    fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
        let deadline = Instant::now() + wait;
        loop {
            while let Some(done) = self.workers.done(Duration::ZERO) {
                self.take(done, blocks);
            }
            let now = Instant::now();
            let next = self.give_up_slow(now);
            if let Some(ended) = self.ended.pop_front() {
                return Some(ended);
            }
            let left = next?.min(deadline).saturating_duration_since(now);
            if now >= deadline {
                return None;
            }
            if let Some(done) = self.workers.done(left) {
                self.take(done, blocks);
            }
        }
    }

    fn wants(&mut self, key: BlockKey, class: u8) -> bool {
        if self.writing.is_on(Instant::now()) || self.known.contains_key(&key) {
            return false;
        }
        self.gate.offered(class);
        let is_worth = self.gate.is_worth(class);
        self.figures.counts.skipped += u64::from(!is_worth);
        // Some of these blocks are written all the same, so that a class whose habits change is noticed.
        is_worth || self.figures.counts.skipped.is_multiple_of(SAMPLED)
    }

    fn lacks(&self, key: BlockKey) -> bool {
        !self.writing.is_on(Instant::now()) && !self.known.contains_key(&key)
    }

    fn room(&self) -> usize {
        self.buffers - self.figures.queued_blocks
    }

    fn buffers(&self) -> usize {
        self.buffers
    }

    fn stage(&mut self, label: BlockLabel, class: u8, part: BlockPart, blocks: &mut dyn BlockBytes) -> bool {
        let bytes = self.workers.format().len() as u64;
        if self.room() == 0 || !self.budget.take(bytes, Instant::now()) {
            self.figures.refused_blocks += 1;
            return false;
        }
        let format = self.workers.format();
        let mut object = vec![0; format.len()];
        if let Err(reason) = blocks.read(part, &mut object[format.block()]) {
            tracing::warn!("a KV block is not stored: {reason}");
            self.figures.refused_blocks += 1;
            return false;
        }
        self.know(label.key, class);
        self.figures.queued_blocks += 1;
        self.workers.write(label, object);
        true
    }

    fn is_settled(&self) -> bool {
        self.figures.queued_blocks == 0 && !self.is_reading()
    }

    fn last_writes(&self) -> Duration {
        LAST_WRITES
    }

    fn figures(&self) -> TierFigures {
        let now = Instant::now();
        TierFigures {
            paused_until: self.reading.pause.until,
            answer_seconds: self.reading.answer(now).as_secs_f64(),
            read_rate: self.rate(now).unwrap_or(0.0),
            ..self.figures
        }
    }
}

impl RemoteTier {
    /// Returns the bytes per second at which fetches have read. Returns `None` if that was long ago, so that the store
    /// is tried again.
    fn rate(&self, now: Instant) -> Option<f64> {
        self.rate.filter(|&(_, at)| now.saturating_duration_since(at) < MEASURED).map(|(rate, _)| rate)
    }

    /// Returns whether the store should be asked for the next `blocks` blocks of a sequence. Computing them takes
    /// `computing` seconds, if that is known.
    fn is_worth_asking(&self, blocks: usize, computing: Option<f64>) -> bool {
        let now = Instant::now();
        if blocks == 0 || self.reading.pause.is_on(now) {
            return false;
        }
        if self.patience != Patience::Measured {
            return true;
        }
        // A store that was not measured yet is tried.
        let is_slower =
            matches!((self.read_seconds(blocks), computing), (Some(reading), Some(computing)) if reading > computing);
        !is_slower && self.patience.wait(blocks, computing).covers(self.reading.answer(now))
    }

    fn know(&mut self, key: BlockKey, class: u8) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, class);
    }

    /// Ends the fetches that have taken too long. Returns the time at which the next fetch will have taken too long, if
    /// any is left.
    fn give_up_slow(&mut self, now: Instant) -> Option<Instant> {
        let due = |fetch: &FetchInFlight| {
            fetch.asked.unwrap_or(fetch.began).checked_add(fetch.wait.until(fetch.filled)).unwrap_or(now)
        };
        let slow = self.fetches.iter().filter(|(_, fetch)| due(fetch) <= now);
        let slow: Vec<_> = slow.map(|(&id, fetch)| (id, fetch.asked.filter(|_| fetch.filled == 0))).collect();
        for (id, unanswered) in slow {
            self.figures.slow_fetches += 1;
            if let Some(waited) = unanswered.map(|asked| now.duration_since(asked))
                && self.reading.did_not_answer(waited, now)
            {
                let reason = format!("the store of --kv-remote does not answer within {waited:.1?}");
                Self::failed(&mut self.reading.pause, &reason);
            }
            self.end(id);
        }
        self.fetches.values().map(due).min()
    }

    fn take(&mut self, done: Done, blocks: &mut dyn BlockBytes) {
        match done {
            Done::Written { key, written } => {
                self.figures.queued_blocks -= 1;
                match written {
                    Ok(bytes) => {
                        self.writing.succeeded();
                        self.figures.counts.stored += 1;
                        self.figures.written_bytes += bytes as u64;
                    }
                    Err(reason) => {
                        self.known.remove(&key);
                        self.figures.write_errors += 1;
                        let reason = format!("KV could not be written to the store of --kv-remote: {reason}");
                        Self::failed(&mut self.writing, &reason);
                    }
                }
            }
            Done::Asked { fetch, at } => {
                self.fetches.get_mut(&fetch).into_iter().for_each(|fetch| fetch.asked = Some(at));
            }
            Done::Marked { fetch, at } => {
                if let Some(began) = self.fetches.get(&fetch).map(|flight| flight.began) {
                    self.reading.answered(at.duration_since(began), at);
                }
            }
            Done::Chose { fetch, blocks, wanted, missing } => {
                self.notice_losses(&missing);
                if let Some(flight) = self.fetches.get_mut(&fetch) {
                    (flight.wanted, flight.all_of) = (wanted, Some(blocks));
                }
            }
            Done::Lacks { fetch, missing } => {
                self.notice_losses(&missing);
                self.end(fetch);
            }
            Done::Read { fetch, found, at } => self.was_read(fetch, found, at, blocks),
        }
    }

    /// Forgets what is believed to be in the store, if that lacks any of these keys and was believed to have it.
    fn notice_losses(&mut self, missing: &[BlockKey]) {
        if missing.iter().any(|key| self.known.contains_key(key)) {
            self.known.clear();
        }
    }

    fn was_read(&mut self, id: FetchId, found: Found, at: Instant, blocks: &mut dyn BlockBytes) {
        // A fetch that was given up takes no more blocks.
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        if fetch.filled == 0
            && let Some(asked) = fetch.asked.filter(|_| !matches!(found, Found::Failed(_)))
        {
            self.reading.answered(at.duration_since(asked), at);
        }
        let wanted = &fetch.wanted[fetch.filled];
        let (key, into) = (wanted.key, wanted.part);
        self.figures.asked_blocks += 1;
        let mut is_kept = false;
        match found {
            Found::Block(object, permit) => {
                let block = &object[self.workers.format().block()];
                blocks.fill(into, block.len(), &mut |memory| memory.copy_from_slice(block));
                drop(permit);
                fetch.filled += 1;
                fetch.came = Some((fetch.came.map_or(at, |(first, _)| first), at));
                fetch.bytes += object.len() as u64;
                let is_whole = fetch.filled == fetch.wanted.len();
                self.figures.counts.hits += 1;
                self.figures.read_bytes += object.len() as u64;
                self.reading.pause.succeeded();
                if let Some(class) = self.known.get(&key) {
                    self.gate.returned(*class);
                }
                self.know(key, u8::MAX);
                if is_whole {
                    self.end(id);
                }
                return;
            }
            Found::Nothing => {}
            Found::Else(not_it) => {
                self.figures.wrong_objects += 1;
                is_kept = not_it == NotIt::NotOurs;
                match not_it {
                    NotIt::Expired => {}
                    NotIt::NotOurs => tracing::warn!(
                        "the object {} of --kv-remote is not Interbed's, or is of an older version: it is a miss and \
                         is left as it is; remove it if nobody needs it, or name another store",
                        self.workers.name(key)
                    ),
                    NotIt::Damaged | NotIt::Foreign => tracing::warn!(
                        "an object of --kv-remote is {not_it:?}: it counts as a miss, and is written again"
                    ),
                }
            }
            Found::Failed(reason) => {
                self.figures.read_errors += 1;
                Self::failed(&mut self.reading.pause, &format!("the store of --kv-remote cannot be read: {reason}"));
            }
        }
        // The store may have forgotten this block since, and the blocks behind it.
        let gone: Vec<_> = fetch.wanted[fetch.filled..].iter().map(|wanted| wanted.key).collect();
        for key in &gone {
            self.known.remove(key);
        }
        if is_kept {
            // A block that is known to be in the store is not written.
            self.know(key, u8::MAX);
        }
        self.end(id);
    }

    fn end(&mut self, id: FetchId) {
        let Some(fetch) = self.fetches.remove(&id) else { return };
        let FetchInFlight { wanted, filled, blocks, all_of, bytes, began, came, task, .. } = fetch;
        task.abort();
        let seconds = began.elapsed().as_secs_f64();
        if let Some((first, last)) = came.filter(|_| filled > MEASURED_BLOCKS) {
            // The rate covers the blocks behind the first, so that it does not include the time that the store took to
            // answer.
            let behind = bytes as f64 * (filled - 1) as f64 / filled as f64;
            let rate = behind / last.duration_since(first).as_secs_f64().max(1e-6);
            let before = self.rate(last);
            self.rate = Some((before.map_or(rate, |before| before + RATE_SHARE * (rate - before)), last));
        }
        // Without all that a sequence needs to go on, blocks are of no use.
        let filled = all_of.map_or(filled, |blocks| if filled == wanted.len() { blocks } else { 0 });
        self.ended.push_back(FetchEnded { id, filled, wanted: blocks, bytes, seconds });
    }

    fn failed(pause: &mut Pause, reason: &str) {
        match pause.begin(Instant::now()) {
            Some((time, true)) => tracing::warn!("{reason}; it is left alone for {time:?}, or longer if that goes on"),
            Some((time, false)) => tracing::debug!("{reason}; it is left alone for {time:?}"),
            None => tracing::debug!("{reason}"),
        }
    }
}

#[cfg(test)]
mod tests;
