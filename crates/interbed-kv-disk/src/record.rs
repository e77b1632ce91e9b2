//! Writes and reads the bytes of records and of the headers of segments.
//!
//! | bytes | of a record's header |
//! |---|---|
//! | 0..8 | `INTERBKV` |
//! | 8..12 | version of the format, 2 |
//! | 12..14 | blocks in the record |
//! | 14..16 | tokens in a block |
//! | 16..24 | generation of the segment |
//! | 24..32 | when it was written, in seconds since 1970 |
//! | 32..64 | fingerprint of the model and of how its KV is computed and laid out |
//! | 64..96 | keyed hash of the header without these bytes, which nobody without the secret can make |
//! | 96..104 | bytes of the header |
//! | 104..112 | bytes of the record |
//! | 112..128 | zero |
//! | then | for each block: key, parent, owner (16 bytes each), tokens (4 bytes each) |
//! | then | for each layer: xxh3 of its run, 8 bytes |
//!
//! A header's entry whose key is zero stands for a block that no later process can use: it was swapped out without a
//! name, and its parent is the place of its record; or it was [erased](crate::erase), and its entry is zero. An owner
//! of ones is a tenant that was not known. If the runs of a record end within a block of the disk, the rest of that
//! disk block is zero.
//!
//! All numbers are little-endian. A segment begins with one block of [`DIRECT_ALIGN`] bytes that is a header without
//! blocks and layers.

use interbed_io::DIRECT_ALIGN;
use interbed_kv::{BlockKey, BlockLabel, KEY_BYTES, RecordPlace};
use xxhash_rust::xxh3::xxh3_64;

use crate::shape::{HEADER_FIXED, RecordShape, entry_bytes};

pub(crate) const MAGIC: &[u8; 8] = b"INTERBKV";
const VERSION: u32 = 2;

/// Stands for the owner of a block that was swapped out and whose tenant is not known.
pub(crate) const UNKNOWN_OWNER: BlockKey = BlockKey([0xFF; KEY_BYTES]);

/// Returns what the label of a block without a name in `record` has for the key of the block before it. No block of
/// another record is taken for this one, though neither has a name.
pub(crate) fn nameless_parent(record: RecordPlace) -> BlockKey {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&record.offset.to_le_bytes());
    key[8..12].copy_from_slice(&record.segment.to_le_bytes());
    BlockKey(key)
}

/// Maximum number of bytes of a header.
const HEADER_MAX: usize = 64 << 20;

const MAC: std::ops::Range<usize> = 64..96;

/// Values that every header of a store has in common.
#[derive(Clone)]
pub(crate) struct Seal {
    /// Secret of the directory.
    pub(crate) secret: [u8; 32],
    /// Fingerprint of the model and of how its KV is computed and laid out.
    pub(crate) fingerprint: [u8; 32],
}

/// Content of a header that was read, and is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u64,
    /// Time when the record was written, in seconds since 1970.
    pub(crate) written_at: u64,
    /// Labels of the blocks, in order.
    pub(crate) labels: Vec<BlockLabel>,
    /// Hashes of the layers' runs. [layer]
    sums: Vec<u64>,
}

/// Reason why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAHeader {
    /// The bytes were not written by this program, or are damaged.
    Damaged,
    /// The bytes begin with a header of another model, another KV layout or another format version.
    Foreign,
}

/// Generation, number of blocks and sizes of a record, as its first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Described {
    /// Generation of the segment.
    pub(crate) generation: u64,
    pub(crate) count: usize,
    /// Number of tokens in a block.
    pub(crate) block_size: usize,
    pub(crate) header_bytes: usize,
    pub(crate) record_bytes: u64,
}

impl Seal {
    /// Fills `block` with the header of a segment.
    pub(crate) fn segment_header(&self, generation: u64, written_at: u64, block: &mut [u8]) {
        self.fixed(0, 0, generation, written_at, block);
        self.sign(block);
    }

    /// Returns the generation that the header of a segment names.
    pub(crate) fn read_segment_header(&self, block: &[u8]) -> Result<u64, NotAHeader> {
        let count = self.check_fixed(block)?;
        self.check_mac(block)?;
        if count != 0 {
            return Err(NotAHeader::Damaged);
        }
        match block[32..64] == self.fingerprint {
            true => Ok(number(block, 16)),
            false => Err(NotAHeader::Foreign),
        }
    }

    /// Fills in the header of a record whose runs are in place.
    pub(crate) fn write_header(
        &self,
        shape: &RecordShape,
        labels: &[&BlockLabel],
        generation: u64,
        written_at: u64,
        record: &mut [u8],
    ) {
        let count = labels.len();
        let sums: Vec<u64> =
            shape.runs(count).map(|(begin, layer)| xxh3_64(&record[begin..begin + count * layer])).collect();
        let header = &mut record[..shape.header_bytes(count)];
        self.fixed(count as u16, shape.block_size() as u16, generation, written_at, header);
        header[96..104].copy_from_slice(&(shape.header_bytes(count) as u64).to_le_bytes());
        header[104..112].copy_from_slice(&(shape.record_bytes(count) as u64).to_le_bytes());
        let (entries, rest) = header[HEADER_FIXED..].split_at_mut(count * entry_bytes(shape.block_size()));
        for (entry, label) in entries.chunks_exact_mut(entry_bytes(shape.block_size())).zip(labels) {
            entry[..KEY_BYTES].copy_from_slice(&label.key.0);
            entry[KEY_BYTES..2 * KEY_BYTES].copy_from_slice(&label.parent.0);
            entry[2 * KEY_BYTES..3 * KEY_BYTES].copy_from_slice(&label.owner.0);
            for (bytes, token) in entry[3 * KEY_BYTES..].chunks_exact_mut(4).zip(&label.tokens) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
        }
        for (bytes, sum) in rest.chunks_exact_mut(8).zip(&sums) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        self.sign(header);
    }

    /// Returns the number of blocks of the record whose first [`DIRECT_ALIGN`] bytes are `first`. The length of the
    /// header follows from this number. The bytes are not checked against the keyed hash.
    pub(crate) fn count(&self, shape: &RecordShape, first: &[u8]) -> Result<usize, NotAHeader> {
        let count = self.check_fixed(first)?;
        let fits = (1..=shape.blocks_per_record()).contains(&count);
        let sized = usize::from(u16::from_le_bytes([first[14], first[15]])) == shape.block_size();
        if first[32..64] != self.fingerprint || !sized {
            return Err(NotAHeader::Foreign);
        }
        if fits { Ok(count) } else { Err(NotAHeader::Damaged) }
    }

    /// Reads the header of a record from the record's bytes, which may end with the header.
    pub(crate) fn read_header(&self, shape: &RecordShape, record: &[u8]) -> Result<Header, NotAHeader> {
        let count = self.count(shape, record.get(..DIRECT_ALIGN).ok_or(NotAHeader::Damaged)?)?;
        let header = record.get(..shape.header_bytes(count)).ok_or(NotAHeader::Damaged)?;
        self.check_mac(header)?;
        let (entries, rest) = header[HEADER_FIXED..].split_at(count * entry_bytes(shape.block_size()));
        let key = |bytes: &[u8]| {
            let mut key = [0; KEY_BYTES];
            key.copy_from_slice(bytes);
            BlockKey(key)
        };
        let label = |entry: &[u8]| BlockLabel {
            key: key(&entry[..KEY_BYTES]),
            parent: key(&entry[KEY_BYTES..2 * KEY_BYTES]),
            owner: key(&entry[2 * KEY_BYTES..3 * KEY_BYTES]),
            tokens: entry[3 * KEY_BYTES..]
                .chunks_exact(4)
                .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                .collect(),
        };
        Ok(Header {
            generation: number(header, 16),
            written_at: number(header, 24),
            labels: entries.chunks_exact(entry_bytes(shape.block_size())).map(label).collect(),
            sums: rest.chunks_exact(8).take(shape.layers().len()).map(|bytes| number(bytes, 0)).collect(),
        })
    }

    fn fixed(&self, count: u16, block_size: u16, generation: u64, written_at: u64, header: &mut [u8]) {
        header.fill(0);
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..14].copy_from_slice(&count.to_le_bytes());
        header[14..16].copy_from_slice(&block_size.to_le_bytes());
        header[16..24].copy_from_slice(&generation.to_le_bytes());
        header[24..32].copy_from_slice(&written_at.to_le_bytes());
        header[32..64].copy_from_slice(&self.fingerprint);
    }

    fn check_fixed(&self, header: &[u8]) -> Result<usize, NotAHeader> {
        if header.len() < HEADER_FIXED || header[..8] != *MAGIC {
            return Err(NotAHeader::Damaged);
        }
        match header[8..12] == VERSION.to_le_bytes() {
            true => Ok(u16::from_le_bytes([header[12], header[13]]).into()),
            false => Err(NotAHeader::Foreign),
        }
    }

    /// Returns what the first bytes of a record say of it, whatever the record's shape and model. These bytes are not
    /// [signed](Self::is_signed) by themselves. Returns `None` if they are not the beginning of a record.
    pub(crate) fn describe(&self, first: &[u8]) -> Option<Described> {
        let count = self.check_fixed(first).ok().filter(|&count| count > 0)?;
        let block_size = usize::from(u16::from_le_bytes([first[14], first[15]]));
        let (header_bytes, record_bytes) = (usize::try_from(number(first, 96)).ok()?, number(first, 104));
        let least = HEADER_FIXED + count * entry_bytes(block_size);
        let is_whole = header_bytes.is_multiple_of(DIRECT_ALIGN) && record_bytes.is_multiple_of(DIRECT_ALIGN as u64);
        let generation = number(first, 16);
        let described = Described { generation, count, block_size, header_bytes, record_bytes };
        (is_whole && (least..=HEADER_MAX).contains(&header_bytes)).then_some(described)
    }

    /// Returns whether `header` was written with this secret, and is whole.
    pub(crate) fn is_signed(&self, header: &[u8]) -> bool {
        self.check_mac(header).is_ok()
    }

    /// Returns the generation that the header of a segment names, of whatever model. Returns `None` if `block` is not
    /// the header of a segment.
    pub(crate) fn signed_segment(&self, block: &[u8]) -> Option<u64> {
        let is_signed = self.check_fixed(block).is_ok_and(|count| count == 0) && self.is_signed(block);
        is_signed.then(|| number(block, 16))
    }

    pub(crate) fn sign(&self, header: &mut [u8]) {
        let mac = self.mac(header, MAC);
        header[MAC].copy_from_slice(&mac);
    }

    fn check_mac(&self, header: &[u8]) -> Result<(), NotAHeader> {
        match self.mac(header, MAC) == header[MAC] {
            true => Ok(()),
            false => Err(NotAHeader::Damaged),
        }
    }

    /// Computes the keyed hash of `bytes` without those in `range`.
    pub(crate) fn mac(&self, bytes: &[u8], range: std::ops::Range<usize>) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&bytes[..range.start]).update(&bytes[range.end..]);
        *hasher.finalize().as_bytes()
    }
}

impl Header {
    /// Returns the hash of each layer's run.
    pub(crate) fn into_sums(self) -> Box<[u64]> {
        self.sums.into()
    }

    /// Returns whether the runs of the whole `record` are those that were written.
    pub(crate) fn runs_are_whole(&self, shape: &RecordShape, record: &[u8]) -> bool {
        let count = self.labels.len();
        let mut runs = shape.runs(count).zip(&self.sums);
        runs.all(|((begin, layer), sum)| {
            record.get(begin..begin + count * layer).is_some_and(|run| xxh3_64(run) == *sum)
        })
    }
}

/// Copies `block` into the runs of a record of `count` blocks, as block number `index`.
pub(crate) fn pack(shape: &RecordShape, count: usize, index: usize, block: &[u8], record: &mut [u8]) {
    let mut at = 0;
    for (begin, layer) in shape.runs(count) {
        record[begin + index * layer..][..layer].copy_from_slice(&block[at..at + layer]);
        at += layer;
    }
}

/// Clears the bytes behind the runs of a record of `count` blocks, where a buffer may hold KV of other tenants.
pub(crate) fn clear_gaps(shape: &RecordShape, count: usize, record: &mut [u8]) {
    for (begin, layer) in shape.runs(count) {
        let end = begin + count * layer;
        record[end..end.next_multiple_of(DIRECT_ALIGN)].fill(0);
    }
}

/// Copies block number `index` out of the runs of a record of `count` blocks.
pub(crate) fn unpack(shape: &RecordShape, count: usize, index: usize, record: &[u8], block: &mut [u8]) {
    let mut at = 0;
    for (begin, layer) in shape.runs(count) {
        block[at..at + layer].copy_from_slice(&record[begin + index * layer..][..layer]);
        at += layer;
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seal: &Seal, shape: &RecordShape, labels: &[BlockLabel]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let count = labels.len();
        let mut record = vec![0xEE; shape.record_bytes(count)];
        let blocks: Vec<Vec<u8>> =
            (0..count).map(|block| (0..shape.block_bytes()).map(|at| (7 * block + at) as u8).collect()).collect();
        blocks.iter().enumerate().for_each(|(index, block)| pack(shape, count, index, block, &mut record));
        let labels: Vec<_> = labels.iter().collect();
        seal.write_header(shape, &labels, 5, 77, &mut record);
        (record, blocks)
    }

    fn labels(shape: &RecordShape, count: usize) -> Vec<BlockLabel> {
        let key = |number: usize| BlockKey([number as u8; KEY_BYTES]);
        let label = |index: usize| BlockLabel {
            key: key(index + 1),
            parent: key(index),
            owner: key(99),
            tokens: (0..shape.block_size()).map(|token| (token + 1000 * index) as u32).collect(),
        };
        (0..count).map(label).collect()
    }

    #[test]
    fn a_record_comes_back_and_no_flipped_bit_goes_unseen() {
        let seal = Seal { secret: [1; 32], fingerprint: [2; 32] };
        let shape = RecordShape::new(4, vec![96, 5000, 32]);
        let labels = labels(&shape, 3);
        let (mut record, blocks) = record(&seal, &shape, &labels);
        let header = seal.read_header(&shape, &record).expect("it is whole");
        assert_eq!((header.generation, header.written_at, &header.labels), (5, 77, &labels));
        assert!(header.runs_are_whole(&shape, &record));
        for (index, block) in blocks.iter().enumerate() {
            let mut back = vec![0; shape.block_bytes()];
            unpack(&shape, 3, index, &record, &mut back);
            assert_eq!(back, *block);
        }
        let used = |at: usize| {
            let in_run = |(begin, layer): (usize, usize)| (begin..begin + 3 * layer).contains(&at);
            at < shape.header_bytes(3) || shape.runs(3).any(in_run)
        };
        for at in (0..record.len()).filter(|&at| used(at)) {
            record[at] ^= 1 << (at % 8);
            let whole = seal.read_header(&shape, &record).is_ok_and(|header| header.runs_are_whole(&shape, &record));
            assert!(!whole, "a flipped bit at {at}");
            record[at] ^= 1 << (at % 8);
        }
    }

    #[test]
    fn what_another_wrote_is_not_read() {
        let seal = Seal { secret: [1; 32], fingerprint: [2; 32] };
        let shape = RecordShape::new(4, vec![96, 5000]);
        let (record, _) = record(&seal, &shape, &labels(&shape, 2));
        let other_secret = Seal { secret: [9; 32], ..seal.clone() };
        let other_model = Seal { fingerprint: [9; 32], ..seal.clone() };
        assert_eq!(other_secret.read_header(&shape, &record).unwrap_err(), NotAHeader::Damaged);
        assert_eq!(other_model.read_header(&shape, &record).unwrap_err(), NotAHeader::Foreign);
        assert_eq!(seal.read_header(&RecordShape::new(8, vec![96]), &record).unwrap_err(), NotAHeader::Foreign);
        assert_eq!(seal.read_header(&shape, &record[..100]).unwrap_err(), NotAHeader::Damaged);
        let mut block = vec![0; DIRECT_ALIGN];
        seal.segment_header(8, 1, &mut block);
        assert_eq!(seal.read_segment_header(&block), Ok(8));
        assert_eq!(other_model.read_segment_header(&block), Err(NotAHeader::Foreign));
        assert_eq!(seal.read_segment_header(&record[..DIRECT_ALIGN]), Err(NotAHeader::Damaged));
    }
}
