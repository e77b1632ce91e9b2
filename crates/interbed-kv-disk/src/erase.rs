//! Erases the blocks of one tenant in a directory that no server uses, for all models.
//!
//! A record that holds any block of the tenant is overwritten with zeros, and its header with one that names nothing;
//! blocks of other tenants in the record are forgotten. Blocks that were swapped out and whose tenant is not known are
//! overwritten in any case. The bytes behind the last record of each segment, or
//! behind a gap, are overwritten too, and so is all of a segment that cannot be read: what lies there may be anybody's.

use std::sync::Arc;

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, IoError, SegmentWrite};
use interbed_kv::{KEY_BYTES, KeyChain};

use crate::directory::{Directory, SegmentSpace};
use crate::record::{Described, Seal, UNKNOWN_OWNER};
use crate::shape::{HEADER_FIXED, entry_bytes};

/// Number of bytes that are written at a time.
const PIECE: usize = 1 << 20;

/// Counts of the blocks and records that one call to [`erase`] has erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Erased {
    /// Number of erased blocks that belong to the tenant, plus the number of erased swapped blocks whose tenant is
    /// unknown.
    pub blocks: usize,
    /// Number of erased blocks that belong to other tenants. A record is erased as a whole, even if it also holds
    /// blocks of other tenants.
    pub others: usize,
    /// Number of records that were overwritten.
    pub records: usize,
}

/// Erases all blocks of `tenant`, or all blocks without a tenant if `tenant` is `None`. Also erases all swapped blocks
/// whose tenant is unknown. Before each segment and at the end, `erase` calls `progress` with the number of finished
/// segments and the total number of segments. If a call to `erase` is interrupted, another call completes the work.
///
/// # Errors
/// Fails if a system call fails or memory is short. Erasing then stops, and later segments are unchanged. Blocks of the
/// segment that failed may have been erased already, and the index is gone, so the next server reads all headers.
pub fn erase(
    directory: &Directory,
    tenant: Option<u128>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Erased, IoError> {
    // An index names blocks by hashes; without one, the next server reads all headers.
    directory.take_index();
    let secret = directory.secret();
    let owner = KeyChain::new(secret, [0; 32]).owner(tenant).0;
    let seal = Seal { secret, fingerprint: [0; 32] };
    let mut segments = directory.existing()?;
    segments.sort_unstable();
    let mut erased = Erased::default();
    let no_memory =
        || IoError::Open { path: directory.path().to_owned(), source: std::io::ErrorKind::OutOfMemory.into() };
    let zeros = AlignedBuffer::new_zeroed(PIECE).ok_or_else(no_memory)?;
    for (done, &number) in segments.iter().enumerate() {
        progress(done, segments.len());
        let file = directory.open(number)?;
        erase_in(&file, &seal, owner, zeros.as_slice(), &mut erased)?;
    }
    progress(segments.len(), segments.len());
    Ok(erased)
}

fn erase_in(
    file: &Arc<dyn SegmentWrite>,
    seal: &Seal,
    owner: [u8; KEY_BYTES],
    zeros: &[u8],
    erased: &mut Erased,
) -> Result<(), IoError> {
    let len = file.len();
    let clear = |range: std::ops::Range<u64>| -> Result<(), IoError> {
        let mut at = range.start;
        while at < range.end {
            let bytes = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(zeros.len());
            file.write_aligned_at(&zeros[..bytes], at)?;
            at += bytes as u64;
        }
        Ok(())
    };
    let block = DIRECT_ALIGN as u64;
    let segment = if len >= block { seal.signed_segment(&read(file, 0, DIRECT_ALIGN)?) } else { None };
    let mut end = if segment.is_some() { block } else { 0 };
    while end > 0 && end + block <= len {
        let Some(Described { generation, count, block_size, header_bytes, record_bytes }) =
            seal.describe(&read(file, end, DIRECT_ALIGN)?)
        else {
            break;
        };
        // A record may be missing. What lay there earlier says nothing of what lies behind it now.
        if segment != Some(generation) || record_bytes > len - end || header_bytes as u64 > record_bytes {
            break;
        }
        let mut header = read(file, end, header_bytes)?;
        if !seal.is_signed(&header) {
            break;
        }
        let entry_bytes = entry_bytes(block_size);
        let entries = header[HEADER_FIXED..].chunks_exact(entry_bytes).take(count);
        // Blocks that were swapped out and whose tenant is not known may be theirs.
        let is_theirs = |entry: &&[u8]| {
            let named = &entry[2 * KEY_BYTES..3 * KEY_BYTES];
            named == owner || named == UNKNOWN_OWNER.0
        };
        let theirs = entries.clone().filter(is_theirs).count();
        if theirs > 0 {
            let is_others = |entry: &&[u8]| entry[..KEY_BYTES] != [0; KEY_BYTES] && !is_theirs(entry);
            erased.others += entries.filter(is_others).count();
            erased.blocks += theirs;
            erased.records += 1;
            // As long as the header names the tenant, its blocks are found when this is repeated.
            clear(end + header_bytes as u64..end + record_bytes)?;
            file.sync()?;
            header[HEADER_FIXED..].fill(0);
            seal.sign(&mut header);
            let mut aligned = AlignedBuffer::new_zeroed(header_bytes).ok_or_else(|| no_memory(file))?;
            aligned.as_mut().copy_from_slice(&header);
            file.write_aligned_at(aligned.as_slice(), end)?;
        }
        end += record_bytes;
    }
    clear(end..len)?;
    file.sync()
}

fn read(file: &Arc<dyn SegmentWrite>, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let mut buffer = AlignedBuffer::new_zeroed(len).ok_or_else(|| no_memory(file))?;
    file.read_aligned_at(buffer.as_mut(), offset, len)?;
    Ok(buffer.as_slice().to_vec())
}

fn no_memory(file: &Arc<dyn SegmentWrite>) -> IoError {
    IoError::Open { path: file.path().to_owned(), source: std::io::ErrorKind::OutOfMemory.into() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use interbed_kv::{BlockBytes, BlockId, BlockKey, BlockLabel, BlockPart, FrameTier, Gate, LowerTier, MissingKeys};

    use super::*;
    use crate::{DiskOptions, DiskTier, RecordShape, SlotRoom};

    const TENANTS: [Option<u128>; 3] = [None, Some(1), Some(2)];

    fn shape() -> RecordShape {
        RecordShape::new(4, vec![300_000, 5_000, 400_000])
    }

    /// A block that holds one number only.
    struct Of(u8);

    impl BlockBytes for Of {
        fn read(&mut self, _: BlockPart, into: &mut [u8]) -> Result<(), String> {
            into.fill(self.0);
            Ok(())
        }

        fn fill(&mut self, _: BlockPart, _: usize, _: &mut dyn FnMut(&mut [u8])) {
            unreachable!("nothing is fetched");
        }
    }

    fn open(path: &Path, names: Option<KeyChain>) -> DiskTier {
        let directory = Directory::open(path).unwrap();
        let (secret, gate) = (directory.secret(), Gate::new(0.0));
        let options = DiskOptions {
            bytes: 64 << 20,
            buffer_bytes: 0,
            writes_per_day: None,
            ttl: None,
            gate,
            frames: (0, 0),
            names,
            turns: Arc::default(),
            slots: SlotRoom::default(),
        };
        DiskTier::open(Arc::new(directory), secret, [2; 32], shape(), options).unwrap()
    }

    /// Returns a byte and a token that only the blocks of this tenant have, for their KV and their tokens.
    fn mark(tenant: usize) -> (u8, u32) {
        (0xA0 + tenant as u8, 0x5EC2_E700 + tenant as u32)
    }

    fn settle(tier: &mut DiskTier) {
        for _ in 0..2000 {
            tier.flush();
            tier.poll(&mut Of(0), Duration::ZERO);
            if tier.is_settled() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it never settles");
    }

    /// Stores `count` blocks of a tenant, which get the next numbers.
    fn store(tier: &mut DiskTier, number: &mut u8, tenant: usize, count: usize) {
        let (byte, token) = mark(tenant);
        for _ in 0..count {
            *number += 1;
            let (key, parent) = (BlockKey([*number; KEY_BYTES]), BlockKey([*number + 100; KEY_BYTES]));
            let owner = tier.key_chain().owner(TENANTS[tenant]);
            let label = BlockLabel { key, parent, owner, tokens: [token; 4].into() };
            assert!(tier.stage(label, 0, BlockPart::whole(BlockId(0)), &mut Of(byte)));
        }
    }

    /// Returns how many blocks of the files hold KV of a tenant, and how many hold the tenant's tokens.
    fn traces(path: &Path, tenant: usize) -> (usize, usize) {
        let (byte, token) = mark(tenant);
        let (mut kv, mut tokens) = (0, 0);
        for entry in std::fs::read_dir(path).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            kv += bytes.chunks(DIRECT_ALIGN).filter(|block| block.windows(16).any(|some| some == [byte; 16])).count();
            let token = token.to_le_bytes();
            tokens += bytes.chunks(DIRECT_ALIGN).filter(|block| block.windows(4).any(|some| some == token)).count();
        }
        (kv, tokens)
    }

    #[test]
    fn nothing_of_a_tenant_is_left_and_others_lose_what_lay_beside_it_only() {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = parent.path().join("kv");
        let (mut tier, mut number) = (open(&path, None), 0);
        // A record of the first tenant, one of two tenants, one of the last; then one of the second that is shorter.
        for (tenant, count, ends) in [(0, 5, true), (0, 2, false), (1, 3, true), (2, 5, true), (1, 2, true)] {
            store(&mut tier, &mut number, tenant, count);
            if ends {
                settle(&mut tier);
            }
        }
        tier.leave_index();
        drop(tier);
        // What an earlier generation has left behind the last record.
        let segment = path.join("segment-000000");
        let mut bytes = std::fs::read(&segment).unwrap();
        let len = bytes.len();
        bytes[len - DIRECT_ALIGN..].fill(mark(1).0);
        std::fs::write(&segment, &bytes).unwrap();
        // And what nobody can read.
        let mut damaged = vec![mark(1).0; 5 * DIRECT_ALIGN];
        damaged[..8].copy_from_slice(crate::record::MAGIC);
        std::fs::write(path.join("segment-000003"), damaged).unwrap();
        let before = TENANTS.iter().enumerate().map(|(tenant, _)| traces(&path, tenant)).collect::<Vec<_>>();
        assert!(before.iter().all(|&(kv, tokens)| kv > 0 && tokens > 0), "{before:?}");

        let mut told = Vec::new();
        let erased = erase(&Directory::open(&path).unwrap(), TENANTS[1], &mut |done, all| told.push((done, all)));
        assert_eq!(erased.unwrap(), Erased { blocks: 5, others: 2, records: 2 });
        assert_eq!(told.last(), Some(&(told.len() - 1, told.len() - 1)));
        assert_eq!((traces(&path, 1), traces(&path, 2)), ((0, 0), before[2]));
        assert!(traces(&path, 0).0 > 0 && traces(&path, 0).0 < before[0].0);
        let again = erase(&Directory::open(&path).unwrap(), TENANTS[1], &mut |_, _| {});
        assert_eq!(again.unwrap(), Erased::default());
        let mut tier = open(&path, None);
        assert_eq!(tier.recovered().blocks, 10);
        let found = |tier: &mut DiskTier, number: u8| {
            tier.look_up(&MissingKeys::of_trunk(vec![BlockKey([number; KEY_BYTES])], 0), None)
        };
        let there: Vec<_> = (1..=number).filter(|&number| found(&mut tier, number) > 0).collect();
        assert_eq!(there, (1..=5).chain(11..=15).collect::<Vec<_>>());
        assert!(!tier.has(BlockKey::default()));
    }

    #[test]
    fn a_header_that_is_left_in_a_gap_hides_nothing() {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = parent.path().join("kv");
        let (mut tier, mut number) = (open(&path, None), 0);
        for (tenant, count) in [(0, 2), (2, 5)] {
            store(&mut tier, &mut number, tenant, count);
            settle(&mut tier);
        }
        drop(tier);
        let secret = Directory::open(&path).unwrap().secret();
        let seal = Seal { secret, fingerprint: [2; 32] };
        let segment = path.join("segment-000000");
        let mut bytes = std::fs::read(&segment).unwrap();
        // As if the segment were used again, the first record written, the second not, and a third that begins where
        // the second of the earlier generation has its blocks.
        seal.segment_header(2, 1, &mut bytes[..DIRECT_ALIGN]);
        let header = seal.read_header(&shape(), &bytes[DIRECT_ALIGN..]).unwrap();
        let labels: Vec<_> = header.labels.iter().collect();
        seal.write_header(&shape(), &labels, 2, header.written_at, &mut bytes[DIRECT_ALIGN..]);
        let second = DIRECT_ALIGN + shape().record_bytes(2);
        let begin = second + shape().header_bytes(5) + 40 * DIRECT_ALIGN;
        bytes[begin..begin + 20 * DIRECT_ALIGN].fill(mark(1).0);
        std::fs::write(&segment, &bytes).unwrap();
        assert!(seal.read_header(&shape(), &bytes[second..]).is_ok(), "the earlier header is there");
        let kept = traces(&path, 0);

        let erased = erase(&Directory::open(&path).unwrap(), TENANTS[1], &mut |_, _| {}).unwrap();
        assert_eq!(erased, Erased::default());
        assert_eq!((traces(&path, 0), traces(&path, 1).0, traces(&path, 2)), (kept, 0, (0, 0)));
    }

    #[test]
    fn what_was_interrupted_is_finished_the_next_time() {
        let parent = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = parent.path().join("kv");
        // Though others name its contents, whose they are is known.
        let (mut tier, mut number) = (open(&path, Some(KeyChain::new([9; 32], [2; 32]))), 0);
        store(&mut tier, &mut number, 1, 5);
        settle(&mut tier);
        drop(tier);
        // As after a crash between the KV and the header.
        let segment = path.join("segment-000000");
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes[DIRECT_ALIGN + shape().header_bytes(5)..].fill(0);
        std::fs::write(&segment, &bytes).unwrap();
        assert_eq!(traces(&path, 1), (0, 1));
        let erased = erase(&Directory::open(&path).unwrap(), TENANTS[1], &mut |_, _| {}).unwrap();
        assert_eq!((erased.blocks, traces(&path, 1)), (5, (0, 0)));
    }
}
