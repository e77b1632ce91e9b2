//! Tells what a model's weights are by a hash of their bytes. The threads that read the weights hash the bytes as they
//! pass through, in whatever order and pieces they are read.
//!
//! A tensor is cut into *leaves*, which are the rows of a matrix if the tensor has rows. Each leaf is hashed by itself,
//! with its number as the seed, and the hashes are added up. No read needs to know of another, and nothing is kept but
//! a bit for each leaf. The sum does not depend on whether weights stay in memory or are streamed, in bands of whatever
//! size. XXH3-128 is fast enough to hide behind the reads, and tells whatever happens to weights by accident or by
//! exchange. The hash need not withstand those who search for two models of one sum: who can choose the weights can
//! have them say anything without that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use interbed_io::{IoError, RandomAccessFile};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Maximum number of bytes that one call of [`ContentHash::read_next`] reads, unless a single leaf (a piece that is
/// hashed as a whole) is longer.
const READ_BYTES: u64 = 1 << 20;

/// Files of at least this size are dropped from the page cache as they are read.
const DROP_CACHE_FROM: u64 = 64 << 20;

/// Hashes of the tensors that a model's forward passes use. Bytes are hashed as they are read. Each tensor is hashed in
/// leaves (pieces such as rows), which may come in any order.
pub struct ContentHash {
    files: Vec<Arc<dyn RandomAccessFile>>,
    /// Ranges of bytes that belong to tensors, sorted by file and offset.
    regions: Vec<Region>,
    /// Indices in `regions` of the regions of each file.
    of_files: Vec<std::ops::Range<usize>>,
    /// Type and shape in words of each tensor, by name, and the indices in `regions` of its regions.
    tensors: BTreeMap<String, (String, Vec<usize>)>,
    /// A bit for each leaf, set if the leaf was hashed or is being hashed.
    taken: Vec<AtomicU64>,
    /// Number of leaves that were not hashed yet.
    left: AtomicUsize,
    /// Index of a region before which all leaves are taken.
    searched: AtomicUsize,
    began: Instant,
    /// Milliseconds from `began` to the last read for another purpose than hashing.
    last_read: AtomicU64,
}

/// A range of bytes of a file that belongs to a tensor.
#[derive(Debug)]
struct Region {
    file: usize,
    offset: u64,
    bytes: u64,
    /// Number of bytes of each leaf (a piece that is hashed as a whole) but the last.
    leaf: u64,
    /// Index in `taken` of the first leaf's bit.
    first_bit: usize,
    /// Offset at which the farthest of this region and those before it in the file ends.
    ends_by: u64,
    sum: Mutex<u128>,
}

impl Region {
    fn leaves(&self) -> u64 {
        self.bytes.div_ceil(self.leaf)
    }
}

/// A tensor that is to be hashed.
pub(crate) struct HashedTensor {
    pub(crate) name: String,
    /// Type and shape of the tensor in words.
    pub(crate) described: String,
    /// Places of the tensor's bytes; if its scales are another tensor, they come second.
    pub(crate) parts: Vec<TensorPart>,
}

/// Position of a tensor's bytes in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TensorPart {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Number of bytes of a leaf (a piece that is hashed as a whole); the last leaf may have fewer.
    pub(crate) leaf: u64,
}

impl ContentHash {
    /// Prepares to hash these tensors, which lie in `files`.
    pub(crate) fn new(files: Vec<Arc<dyn RandomAccessFile>>, tensors: Vec<HashedTensor>) -> Self {
        let mut places: Vec<_> = tensors.iter().flat_map(|tensor| &tensor.parts).copied().collect();
        places.sort_unstable();
        // A tied head is the embedding.
        places.dedup();
        let (mut regions, mut of_files) = (Vec::<Region>::with_capacity(places.len()), vec![0..0; files.len()]);
        let mut bits = 0;
        for &TensorPart { file, offset, bytes, leaf } in &places {
            if of_files[file].is_empty() {
                of_files[file] = regions.len()..regions.len();
            }
            let before = regions[of_files[file].clone()].last().map_or(0, |region| region.ends_by);
            of_files[file].end += 1;
            // Sizes were checked when the headers were read.
            let ends_by = before.max(offset + bytes);
            let region = Region { file, offset, bytes, leaf, first_bit: bits, ends_by, sum: Mutex::default() };
            bits += region.leaves() as usize;
            regions.push(region);
        }
        let number_of = |part: &TensorPart| places.binary_search(part).expect("all parts are among the places");
        let numbered =
            |tensor: HashedTensor| (tensor.name, (tensor.described, tensor.parts.iter().map(number_of).collect()));
        Self {
            files,
            tensors: tensors.into_iter().map(numbered).collect(),
            regions,
            of_files,
            taken: (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            left: AtomicUsize::new(bits),
            searched: AtomicUsize::new(0),
            began: Instant::now(),
            last_read: AtomicU64::new(0),
        }
    }

    /// Returns whether all bytes of all tensors have been hashed.
    pub fn is_complete(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Returns each tensor's name, a description of its type and shape, and its hash. Returns `None` until hashing is
    /// [complete](Self::is_complete).
    pub fn tensors(&self) -> Option<impl Iterator<Item = (&str, &str, u128)>> {
        let sum = |&part: &usize| {
            let region = &self.regions[part];
            let sum: u128 = *region.sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.wrapping_add(region.bytes.into())
        };
        let of = move |parts: &[usize]| match parts {
            [part] => sum(part),
            parts => {
                let sums: Vec<_> = parts.iter().map(|part| sum(part).to_le_bytes()).collect();
                xxh3_128_with_seed(sums.as_flattened(), 0)
            }
        };
        let all = self.tensors.iter();
        self.is_complete().then(|| all.map(move |(name, (told, parts))| (name.as_str(), told.as_str(), of(parts))))
    }

    /// Returns the time since the files were last read for a purpose other than hashing. If there was no such read,
    /// returns the time since this value was created. Reads after hashing is [complete](Self::is_complete) do not
    /// count.
    pub fn idle_for(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last_read.load(Ordering::Relaxed)))
    }

    /// Reads bytes that have not been read yet, and hashes them. Uses `buffer` as temporary memory. Returns false if
    /// all bytes have been read or are being hashed. Hashing may then still be [incomplete](Self::is_complete), until
    /// other threads have finished.
    ///
    /// # Errors
    /// Fails if a read fails. The caller can try again.
    pub fn read_next(&self, buffer: &mut Vec<u8>) -> Result<bool, IoError> {
        let Some((file, offset, bytes)) = self.next_missing() else { return Ok(false) };
        buffer.resize(bytes, 0);
        let file_read = &self.files[file];
        file_read.read_exact_at(buffer, offset)?;
        if file_read.len() >= DROP_CACHE_FROM {
            file_read.drop_cache(offset..offset + bytes as u64);
        }
        self.take(file, offset, buffer);
        Ok(true)
    }

    /// Finds the first leaves of one region that nobody has taken yet. Returns the index of their file, their offset
    /// and their length in bytes.
    fn next_missing(&self) -> Option<(usize, u64, usize)> {
        for number in self.searched.load(Ordering::Relaxed)..self.regions.len() {
            let region = &self.regions[number];
            let is_taken = |leaf: u64| self.is_taken(region.first_bit + leaf as usize);
            if let Some(first) = (0..region.leaves()).find(|&leaf| !is_taken(leaf)) {
                let most = first + (READ_BYTES / region.leaf).max(1);
                let end = (first..region.leaves().min(most)).find(|&leaf| is_taken(leaf));
                let end = end.unwrap_or(region.leaves().min(most));
                let begin = first * region.leaf;
                let bytes = (end * region.leaf).min(region.bytes) - begin;
                return Some((region.file, region.offset + begin, bytes as usize));
            }
            self.searched.fetch_max(number + 1, Ordering::Relaxed);
        }
        None
    }

    /// Returns the last offset up to `at` at which no leaf is cut in two.
    pub(crate) fn last_boundary(&self, file: usize, at: u64) -> u64 {
        let regions = &self.regions[self.of_files[file].clone()];
        let first = regions.partition_point(|region| region.ends_by <= at);
        match regions.get(first) {
            Some(region) if region.offset < at => at - (at - region.offset) % region.leaf,
            _ => at,
        }
    }

    /// Reports bytes that were read for another purpose, and hashes them.
    pub(crate) fn was_read(&self, file: usize, offset: u64, bytes: &[u8]) {
        if !self.is_complete() {
            self.take(file, offset, bytes);
            self.last_read.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Hashes all leaves that lie in these bytes, each once.
    fn take(&self, file: usize, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let regions = &self.regions[self.of_files[file].clone()];
        let first = regions.partition_point(|region| region.ends_by <= offset);
        for region in regions[first..].iter().take_while(|region| region.offset < end) {
            let from = offset.saturating_sub(region.offset).div_ceil(region.leaf);
            let to = match end - region.offset {
                all if all >= region.bytes => region.leaves(),
                some => some / region.leaf,
            };
            let (mut sum, mut count) = (0u128, 0);
            for leaf in from..to {
                if self.was_taken(region.first_bit + leaf as usize) {
                    continue;
                }
                let begin = leaf * region.leaf;
                let len = region.leaf.min(region.bytes - begin) as usize;
                let at = (region.offset + begin - offset) as usize;
                sum = sum.wrapping_add(xxh3_128_with_seed(&bytes[at..at + len], leaf));
                count += 1;
            }
            if count > 0 {
                let mut all = region.sum.lock().unwrap_or_else(PoisonError::into_inner);
                *all = all.wrapping_add(sum);
                drop(all);
                self.left.fetch_sub(count, Ordering::AcqRel);
            }
        }
    }

    fn is_taken(&self, bit: usize) -> bool {
        self.taken[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 != 0
    }

    /// Marks a leaf as taken, and returns whether it was taken before.
    fn was_taken(&self, bit: usize) -> bool {
        self.taken[bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed) >> (bit % 64) & 1 != 0
    }
}

impl std::fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let left = self.left.load(Ordering::Relaxed);
        f.debug_struct("ContentHash").field("tensors", &self.tensors.len()).field("left", &left).finish()
    }
}
