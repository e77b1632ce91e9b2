//! The driver of a store that servers share: what the engine's thread calls between passes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_kv::{
    BlockBytes, BlockId, BlockKey, BlockLabel, FetchEnded, FetchId, Gate, KeyChain, Wanted, WriteBudget,
};
use thiserror::Error;
use tokio::task::AbortHandle;

use crate::blob_store::BlobStore;
use crate::health::Health;
use crate::object::{NotIt, ObjectFormat};
use crate::patience::{Patience, Wait};
use crate::workers::{Done, Found, Workers, push_hex};

/// Bytes of a fingerprint that the names of objects show, so that one model's can be told from another's.
const SHOWN_BYTES: usize = 8;

/// Contents that are remembered to be in the store; when there are more, all are forgotten, and some written again.
const KNOWN_MAX: usize = 1 << 16;

/// Of the blocks that are not worth a write, one in so many is written.
const SAMPLED: u64 = 8;

/// Share of a new measurement in the rate at which blocks are read, how long it is believed, and how many blocks must
/// have come behind the first.
const RATE_SHARE: f64 = 0.2;
const MEASURED: Duration = Duration::from_secs(60);
const MEASURED_BLOCKS: usize = 4;

/// How a store is used.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// Bytes of memory for blocks that are read, and as much for those that are written; each has room for one block at
    /// least.
    pub buffer_bytes: usize,
    /// Bytes that may be written in a day.
    pub writes_per_day: Option<u64>,
    /// How long after it was written a block may be read.
    pub ttl: Option<Duration>,
    /// How long sequences wait.
    pub patience: Patience,
    /// Which blocks are worth a write.
    pub gate: Gate,
}

/// Why a store cannot be used.
#[derive(Debug, Error)]
pub enum RemoteTierError {
    /// The system refused a thread.
    #[error("the threads that speak with the store could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Figures since the start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RemoteStats {
    /// Blocks that were asked for, up to the first of each fetch that was missing; and those that came.
    pub asked_blocks: u64,
    /// See [`asked_blocks`](Self::asked_blocks).
    pub hit_blocks: u64,
    /// Fetches that were given up since the store was too slow.
    pub slow_fetches: u64,
    /// Blocks that were written.
    pub stored_blocks: u64,
    /// Blocks that were not written for want of a buffer or of budget.
    pub refused_blocks: u64,
    /// Blocks that were not worth a write; some of them were written all the same.
    pub skipped_blocks: u64,
    /// Bytes that came.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Objects that were not what their name says, or too old.
    pub wrong_objects: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks that wait to be written, or are being written.
    pub queued_blocks: usize,
    /// Until when the store is not asked since it has failed.
    pub paused_until: Option<Instant>,
    /// Bytes a second at which fetches have read.
    pub read_rate: f64,
    /// Seconds in which the first block of a fetch came lately.
    pub answer_seconds: f64,
}

/// A fetch in flight.
struct FetchInFlight {
    wanted: Vec<Wanted>,
    filled: usize,
    bytes: u64,
    wait: Wait,
    began: Instant,
    /// When the store was asked for the first block, once there was memory for it.
    asked: Option<Instant>,
    /// When the first block came, and the last so far.
    came: Option<(Instant, Instant)>,
    task: AbortHandle,
}

/// Writes blocks to a store, and brings them back. One thread calls it; others speak with the store.
pub struct RemoteTier {
    chain: KeyChain,
    workers: Workers,
    patience: Patience,
    gate: Gate,
    budget: WriteBudget,
    /// Whether the store answers, and whether it takes what is written: one may be so without the other.
    reading: Health,
    writing: Health,
    /// Bytes a second at which fetches have read lately, and when that was measured.
    rate: Option<(f64, Instant)>,
    /// What is in the store for all that is known, with its class.
    known: HashMap<BlockKey, u8>,
    fetches: HashMap<FetchId, FetchInFlight>,
    ended: VecDeque<FetchEnded>,
    /// Blocks that may be written at a time.
    buffers: usize,
    stats: RemoteStats,
}

impl RemoteTier {
    /// KV in `store` for blocks of `shape`, tokens and bytes, of the model that `fingerprint` identifies. Servers share
    /// what they sign and name with the same `secret`.
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
            writing: Health::default(),
            rate: None,
            known: HashMap::new(),
            fetches: HashMap::new(),
            ended: VecDeque::new(),
            buffers,
            stats: RemoteStats::default(),
        })
    }

    /// Memory that is taken for blocks under way, and to remember what the store has, where about `wanted` bytes are
    /// wished for each direction.
    pub fn memory_bytes((block_size, block_bytes): (usize, usize), wanted: usize) -> usize {
        let object = ObjectFormat::new(&[0; 32], [0; 32], (block_size, block_bytes), None).len();
        // A hash map's entry of 24 bytes, which doubles when it grows.
        2 * (wanted / object).max(1) * object + Workers::library_bytes(object) + KNOWN_MAX * 2 * 24
    }

    /// The names of what it holds.
    pub fn key_chain(&self) -> &KeyChain {
        &self.chain
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.workers.format().block().len()
    }

    /// Bytes a second at which fetches have read; `None` if that was long ago, so that the store is tried again.
    fn rate(&self, now: Instant) -> Option<f64> {
        self.rate.filter(|&(_, at)| now.saturating_duration_since(at) < MEASURED).map(|(rate, _)| rate)
    }

    /// In what time the store is expected to say whether it has the first block of a fetch; zero if that is not known.
    pub fn answer(&self) -> Duration {
        self.reading.answer(Instant::now())
    }

    /// Returns whether the store should be asked for the next `blocks` blocks of a sequence, which would be computed in
    /// so many seconds, as far as that is known.
    pub fn is_worth_asking(&self, blocks: usize, computing: Option<f64>) -> bool {
        let now = Instant::now();
        if blocks == 0 || self.reading.is_paused(now) {
            return false;
        }
        if self.patience != Patience::Measured {
            return true;
        }
        let reading = self.rate(now).map(|rate| (blocks * self.block_bytes()) as f64 / rate);
        // What was not measured yet is tried.
        let is_slower = matches!((reading, computing), (Some(reading), Some(computing)) if reading > computing);
        !is_slower && self.patience.wait(blocks, computing).covers(self.reading.answer(now))
    }

    /// Begins to bring `wanted`, which would be computed in so many seconds, into their blocks, up to the first that
    /// the store does not have. Its end is reported by [`poll`](Self::poll).
    pub fn fetch(&mut self, id: FetchId, wanted: Vec<Wanted>, computing: Option<f64>) {
        let wait = self.patience.wait(wanted.len(), computing);
        let task = self.workers.read(id, wanted.clone());
        let began = Instant::now();
        let flight = FetchInFlight { wanted, filled: 0, bytes: 0, wait, began, asked: None, came: None, task };
        self.fetches.insert(id, flight);
    }

    /// Returns whether a block of this name should be [staged](Self::stage) now; `class` is what memory knows of its
    /// use.
    pub fn wants(&mut self, key: BlockKey, class: u8) -> bool {
        if self.writing.is_paused(Instant::now()) || self.known.contains_key(&key) {
            return false;
        }
        self.gate.offered(class);
        let is_worth = self.gate.is_worth(class);
        self.stats.skipped_blocks += u64::from(!is_worth);
        // Some are written all the same, so that a class whose habits change is noticed.
        is_worth || self.stats.skipped_blocks.is_multiple_of(SAMPLED)
    }

    /// Returns how many blocks can be staged now.
    pub fn room(&self) -> usize {
        self.buffers - self.stats.queued_blocks
    }

    /// Returns how many blocks can be staged while nothing is being written.
    pub fn buffers(&self) -> usize {
        self.buffers
    }

    /// Copies `block` of `blocks`, whose name is `label`, and has it written. Nothing waits for that: where there is no
    /// room, or the budget of writes is used up, it is not stored.
    pub fn stage(&mut self, label: BlockLabel, class: u8, block: BlockId, blocks: &mut dyn BlockBytes) {
        let bytes = self.workers.format().len() as u64;
        if self.room() == 0 || !self.budget.take(bytes, Instant::now()) {
            self.stats.refused_blocks += 1;
            return;
        }
        let format = self.workers.format();
        let mut object = vec![0; format.len()];
        if let Err(reason) = blocks.read(block, &mut object[format.block()]) {
            tracing::warn!("a KV block is not stored: {reason}");
            self.stats.refused_blocks += 1;
            return;
        }
        self.know(label.key, class);
        self.stats.queued_blocks += 1;
        self.workers.write(label, object);
    }

    fn know(&mut self, key: BlockKey, class: u8) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, class);
    }

    /// Goes on with what is in flight; `blocks` are filled here. Returns a fetch that has ended, if there is one. Waits
    /// for one up to `wait` while any is in flight.
    pub fn poll(&mut self, blocks: &mut dyn BlockBytes, wait: Duration) -> Option<FetchEnded> {
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

    /// Ends the fetches that have taken too long. Returns when the next one will have, if any is left.
    fn give_up_slow(&mut self, now: Instant) -> Option<Instant> {
        let due = |fetch: &FetchInFlight| {
            fetch.asked.unwrap_or(fetch.began).checked_add(fetch.wait.until(fetch.filled)).unwrap_or(now)
        };
        let slow = self.fetches.iter().filter(|(_, fetch)| due(fetch) <= now);
        let slow: Vec<_> = slow.map(|(&id, fetch)| (id, fetch.asked.filter(|_| fetch.filled == 0))).collect();
        for (id, unanswered) in slow {
            self.stats.slow_fetches += 1;
            if let Some(waited) = unanswered.map(|asked| now.duration_since(asked))
                && self.reading.did_not_answer(waited, now)
            {
                let reason = format!("the store of --kv-remote does not answer within {waited:.1?}");
                Self::failed(&mut self.reading, &reason);
            }
            self.end(id);
        }
        self.fetches.values().map(due).min()
    }

    fn take(&mut self, done: Done, blocks: &mut dyn BlockBytes) {
        match done {
            Done::Written { key, written } => {
                self.stats.queued_blocks -= 1;
                match written {
                    Ok(bytes) => {
                        self.writing.did_well();
                        self.stats.stored_blocks += 1;
                        self.stats.written_bytes += bytes as u64;
                    }
                    Err(reason) => {
                        self.known.remove(&key);
                        self.stats.write_errors += 1;
                        let reason = format!("KV could not be written to the store of --kv-remote: {reason}");
                        Self::failed(&mut self.writing, &reason);
                    }
                }
            }
            Done::Asked { fetch, at } => {
                self.fetches.get_mut(&fetch).into_iter().for_each(|fetch| fetch.asked = Some(at));
            }
            Done::Read { fetch, found, at } => self.was_read(fetch, found, at, blocks),
        }
    }

    fn was_read(&mut self, id: FetchId, found: Found, at: Instant, blocks: &mut dyn BlockBytes) {
        // One that was given up is over.
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        if fetch.filled == 0
            && let Some(asked) = fetch.asked.filter(|_| !matches!(found, Found::Failed(_)))
        {
            self.reading.answered(at.duration_since(asked), at);
        }
        let wanted = &fetch.wanted[fetch.filled];
        let (key, into) = (wanted.key, wanted.block);
        self.stats.asked_blocks += 1;
        let mut is_kept = false;
        let reason = match found {
            Found::Block(object, permit) => {
                let block = &object[self.workers.format().block()];
                blocks.fill(into, &mut |memory| memory.copy_from_slice(block));
                drop(permit);
                fetch.filled += 1;
                fetch.came = Some((fetch.came.map_or(at, |(first, _)| first), at));
                fetch.bytes += object.len() as u64;
                let is_whole = fetch.filled == fetch.wanted.len();
                self.stats.hit_blocks += 1;
                self.stats.read_bytes += object.len() as u64;
                self.reading.did_well();
                if let Some(class) = self.known.get(&key) {
                    self.gate.returned(*class);
                }
                self.know(key, u8::MAX);
                if is_whole {
                    self.end(id);
                }
                return;
            }
            Found::Nothing => None,
            Found::Else(NotIt::Expired) => {
                self.stats.wrong_objects += 1;
                None
            }
            Found::Else(NotIt::NotOurs) => {
                self.stats.wrong_objects += 1;
                let name = self.workers.name(key);
                tracing::warn!(
                    "the object {name} of --kv-remote is not Interbed's, or is of an older version: it is a miss and \
                     is left as it is; remove it if nobody needs it, or name another store"
                );
                is_kept = true;
                None
            }
            Found::Else(not_it) => {
                self.stats.wrong_objects += 1;
                tracing::warn!("an object of --kv-remote is {not_it:?}: it counts as a miss, and is written again");
                None
            }
            Found::Failed(reason) => {
                self.stats.read_errors += 1;
                Some(format!("the store of --kv-remote cannot be read: {reason}"))
            }
        };
        // The store may have forgotten it since, and what continues it.
        let gone: Vec<_> = fetch.wanted[fetch.filled..].iter().map(|wanted| wanted.key).collect();
        for key in &gone {
            self.known.remove(key);
        }
        if is_kept {
            // What is known to be there is not written.
            self.know(key, u8::MAX);
        }
        reason.iter().for_each(|reason| Self::failed(&mut self.reading, reason));
        self.end(id);
    }

    /// Ends a fetch with what has come, if it is still in flight.
    pub fn give_up(&mut self, id: FetchId) {
        self.end(id);
    }

    fn end(&mut self, id: FetchId) {
        let Some(fetch) = self.fetches.remove(&id) else { return };
        let FetchInFlight { wanted, filled, bytes, began, came, task, .. } = fetch;
        task.abort();
        let seconds = began.elapsed().as_secs_f64();
        if let Some((first, last)) = came.filter(|_| filled > MEASURED_BLOCKS) {
            // What came behind the first, without what the store took to answer.
            let behind = bytes as f64 * (filled - 1) as f64 / filled as f64;
            let rate = behind / last.duration_since(first).as_secs_f64().max(1e-6);
            let before = self.rate(last);
            self.rate = Some((before.map_or(rate, |before| before + RATE_SHARE * (rate - before)), last));
        }
        self.ended.push_back(FetchEnded { id, filled, wanted: wanted.len(), bytes, seconds });
    }

    fn failed(health: &mut Health, reason: &str) {
        match health.failed(Instant::now()) {
            Some((pause, true)) => {
                tracing::warn!("{reason}; it is left alone for {pause:?}, or longer if that goes on");
            }
            Some((pause, false)) => tracing::debug!("{reason}; it is left alone for {pause:?}"),
            None => tracing::debug!("{reason}"),
        }
    }

    /// Returns whether nothing is in flight.
    pub fn is_settled(&self) -> bool {
        self.stats.queued_blocks == 0 && self.fetches.is_empty() && self.ended.is_empty()
    }

    /// Fetches in flight, or ended and not told.
    pub fn num_fetches(&self) -> usize {
        self.fetches.len() + self.ended.len()
    }

    /// Figures since the start.
    pub fn stats(&self) -> RemoteStats {
        let now = Instant::now();
        RemoteStats {
            paused_until: self.reading.paused_until(),
            answer_seconds: self.reading.answer(now).as_secs_f64(),
            read_rate: self.rate(now).unwrap_or(0.0),
            ..self.stats
        }
    }
}

impl RemoteStats {
    /// Returns whether the store is left alone now.
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests;
