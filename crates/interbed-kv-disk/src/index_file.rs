//! Writes and reads the index of records that an orderly end leaves behind, so that the next start need not read every
//! header.
//!
//! | bytes | of the file |
//! |---|---|
//! | 0..8 | `INTERBIX` |
//! | 8..40 | fingerprint, as in a record's header |
//! | 40..72 | keyed hash of all other bytes |
//! | then | for each record: segment (4), blocks (2), names (2), generation (8), offset (8), when it was written (8) |
//! | | and for each name: which block it is (2), key (16) |
//!
//! All numbers are little-endian. A segment that was used again since has another generation, and its headers are read;
//! so are the headers behind the last record that is named here. The content of a record is checked when it is read,
//! whatever this file says.

use std::collections::HashMap;

use interbed_kv::{BlockKey, KEY_BYTES, RecordPlace, Tier};

use crate::record::Seal;

pub(crate) const MAGIC: &[u8; 8] = b"INTERBIX";
const FIXED: usize = 72;
const MAC: std::ops::Range<usize> = 40..FIXED;

/// A record, and the blocks that are known to be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) record: RecordPlace,
    /// Time when the record was written, in seconds since 1970.
    pub(crate) written_at: u64,
    /// Blocks of the record that can be found: their indices and names.
    pub(crate) keys: Vec<(u16, BlockKey)>,
}

/// Lists all records with blocks that can be read in `tier`. `written_at` returns when a record was written, in seconds
/// since 1970.
pub(crate) fn list(tier: &Tier, written_at: impl Fn(RecordPlace) -> u64) -> Vec<Listed> {
    let mut records: HashMap<RecordPlace, Vec<(u16, BlockKey)>> = HashMap::new();
    for (key, place) in tier.contents() {
        records.entry(place.record).or_default().push((place.index, key));
    }
    let listed = records.into_iter().map(|(record, mut keys)| {
        keys.sort_unstable_by_key(|(index, _)| *index);
        Listed { record, written_at: written_at(record), keys }
    });
    let mut listed: Vec<_> = listed.collect();
    listed.sort_unstable_by_key(|listed| (listed.record.generation, listed.record.offset));
    listed
}

/// Returns the bytes of an index file that names `records`.
pub(crate) fn encode(records: &[Listed], seal: &Seal) -> Vec<u8> {
    let mut bytes = vec![0; FIXED];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..40].copy_from_slice(&seal.fingerprint);
    for Listed { record, written_at, keys } in records {
        bytes.extend(record.segment.to_le_bytes());
        bytes.extend(record.count.to_le_bytes());
        bytes.extend((keys.len() as u16).to_le_bytes());
        bytes.extend(record.generation.to_le_bytes());
        bytes.extend(record.offset.to_le_bytes());
        bytes.extend(written_at.to_le_bytes());
        for (index, key) in keys {
            bytes.extend(index.to_le_bytes());
            bytes.extend(key.0);
        }
    }
    let mac = seal.mac(&bytes, MAC);
    bytes[MAC].copy_from_slice(&mac);
    bytes
}

/// Returns the records that an index file names, in order; `None` if the file is not whole, or of another model.
pub(crate) fn decode(bytes: &[u8], seal: &Seal) -> Option<Vec<Listed>> {
    let is_ours = bytes.len() >= FIXED && bytes[..8] == *MAGIC && bytes[8..40] == seal.fingerprint;
    if !is_ours || bytes[MAC] != seal.mac(bytes, MAC) {
        return None;
    }
    let mut rest = &bytes[FIXED..];
    let mut records = Vec::new();
    while !rest.is_empty() {
        let segment = u32::from_le_bytes(take(&mut rest)?);
        let (count, names) = (u16::from_le_bytes(take(&mut rest)?), u16::from_le_bytes(take(&mut rest)?));
        let (generation, offset) = (u64::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?));
        let written_at = u64::from_le_bytes(take(&mut rest)?);
        let mut key = || Some((u16::from_le_bytes(take(&mut rest)?), BlockKey(take::<KEY_BYTES>(&mut rest)?)));
        let keys: Option<Vec<_>> = (0..names).map(|_| key().filter(|(index, _)| *index < count)).collect();
        let record = RecordPlace { segment, generation, offset, count };
        records.push(Listed { record, written_at, keys: keys? });
    }
    Some(records)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_was_listed_or_nothing() {
        let seal = Seal { secret: [1; 32], fingerprint: [2; 32] };
        let record = |segment, offset, count| RecordPlace { segment, generation: 7, offset, count };
        let key = |number: u8| BlockKey([number; KEY_BYTES]);
        let all = vec![
            Listed { record: record(3, 4096, 2), written_at: 5, keys: vec![(0, key(1)), (1, key(2))] },
            Listed { record: record(3, 8192, 300), written_at: 6, keys: vec![(299, key(3))] },
        ];
        let bytes = encode(&all, &seal);
        assert_eq!(decode(&bytes, &seal), Some(all));
        assert_eq!(decode(&encode(&[], &seal), &seal), Some(Vec::new()));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert_eq!(decode(&changed, &seal), None, "byte {at}");
            assert_eq!(decode(&bytes[..at], &seal), None, "{at} bytes");
        }
        let other = Seal { secret: [1; 32], fingerprint: [3; 32] };
        assert!(decode(&bytes, &other).is_none() && decode(&bytes, &Seal { secret: [3; 32], ..seal }).is_none());
    }
}
