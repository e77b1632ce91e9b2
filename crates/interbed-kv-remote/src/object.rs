//! The bytes of an object.
//!
//! | bytes | of an object |
//! |---|---|
//! | 0..8 | `INTERBKO` |
//! | 8..12 | version of the format, 1 |
//! | 12..16 | tokens in the block |
//! | 16..24 | bytes of the block |
//! | 24..32 | when it was written, in seconds since 1970 |
//! | 32..64 | fingerprint of the model and of how its KV is computed and laid out |
//! | 64..112 | key, parent, owner (16 bytes each) |
//! | 112..144 | keyed hash of all but these bytes, which nobody without the secret can make |
//! | then | tokens (4 bytes each) |
//! | then | the block |
//!
//! All numbers are little-endian.

use std::ops::Range;

use interbed_kv::{BlockLabel, KEY_BYTES, Wanted};

const MAGIC: &[u8; 8] = b"INTERBKO";
const VERSION: u32 = 1;
const FIXED: usize = 144;
const MAC: Range<usize> = 112..FIXED;

/// The context that separates this use of a secret from its use for names.
const CONTEXT: &str = "interbed 2026-11-26 KV objects in a shared store";

/// The properties that all objects of one model have in common.
#[derive(Clone)]
pub(crate) struct ObjectFormat {
    key: [u8; 32],
    fingerprint: [u8; 32],
    block_size: usize,
    block_bytes: usize,
    /// The seconds after which an object is not read any more.
    ttl: Option<u64>,
}

/// The reason why bytes are not the object that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotIt {
    /// The bytes are damaged, or were not signed with this server's secret.
    Damaged,
    /// The object differs from the wanted one in its model, block, format version or length.
    Foreign,
    /// The object has expired: it is too old to be read.
    Expired,
    /// The bytes do not begin with the marker of this program's objects. An older version of the program may have
    /// written them.
    NotOurs,
}

impl ObjectFormat {
    /// Creates the format for blocks of `block_size` tokens and `block_bytes` bytes.
    pub(crate) fn new(
        secret: &[u8; 32],
        fingerprint: [u8; 32],
        (block_size, block_bytes): (usize, usize),
        ttl: Option<u64>,
    ) -> Self {
        Self { key: blake3::derive_key(CONTEXT, secret), fingerprint, block_size, block_bytes, ttl }
    }

    /// Returns the number of bytes in an object.
    pub(crate) fn len(&self) -> usize {
        self.block().end
    }

    /// Returns the range of the block's bytes in an object.
    pub(crate) fn block(&self) -> Range<usize> {
        let begin = FIXED + 4 * self.block_size;
        begin..begin + self.block_bytes
    }

    /// Fills in all of `object` but the block's bytes, which are in place already.
    pub(crate) fn seal(&self, label: &BlockLabel, written_at: u64, object: &mut [u8]) {
        debug_assert!(object.len() == self.len() && label.tokens.len() == self.block_size);
        object[..8].copy_from_slice(MAGIC);
        object[8..12].copy_from_slice(&VERSION.to_le_bytes());
        object[12..16].copy_from_slice(&(self.block_size as u32).to_le_bytes());
        object[16..24].copy_from_slice(&(self.block_bytes as u64).to_le_bytes());
        object[24..32].copy_from_slice(&written_at.to_le_bytes());
        object[32..64].copy_from_slice(&self.fingerprint);
        for (bytes, key) in object[64..].chunks_exact_mut(KEY_BYTES).zip([label.key, label.parent, label.owner]) {
            bytes.copy_from_slice(&key.0);
        }
        for (bytes, token) in object[FIXED..].chunks_exact_mut(4).zip(&label.tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        let mac = self.mac(object);
        object[MAC].copy_from_slice(mac.as_bytes());
    }

    /// Checks that `object` is the one that is wanted.
    pub(crate) fn check(&self, wanted: &Wanted, now: u64, object: &[u8]) -> Result<(), NotIt> {
        if object.len() >= MAGIC.len() && object[..8] != *MAGIC {
            return Err(NotIt::NotOurs);
        }
        if object.len() < FIXED {
            return Err(NotIt::Damaged);
        }
        if object[8..12] != VERSION.to_le_bytes() || object[32..64] != self.fingerprint || object.len() != self.len() {
            return Err(NotIt::Foreign);
        }
        // The hashes are compared in constant time.
        let mut mac = [0; blake3::OUT_LEN];
        mac.copy_from_slice(&object[MAC]);
        if self.mac(object) != mac {
            return Err(NotIt::Damaged);
        }
        let names = [wanted.key, wanted.parent];
        let is_named = object[64..].chunks_exact(KEY_BYTES).zip(names).all(|(bytes, key)| *bytes == key.0);
        let tokens = object[FIXED..].chunks_exact(4).zip(&wanted.tokens);
        let sizes = (self.block_size as u32, self.block_bytes as u64);
        let is_sized = object[12..16] == sizes.0.to_le_bytes() && object[16..24] == sizes.1.to_le_bytes();
        if !is_named || !is_sized || wanted.tokens.len() != self.block_size {
            return Err(NotIt::Foreign);
        }
        if !tokens.into_iter().all(|(bytes, token)| *bytes == token.to_le_bytes()) {
            return Err(NotIt::Foreign);
        }
        let mut written_at = [0; 8];
        written_at.copy_from_slice(&object[24..32]);
        match self.ttl {
            Some(ttl) if u64::from_le_bytes(written_at).saturating_add(ttl) <= now => Err(NotIt::Expired),
            _ => Ok(()),
        }
    }

    fn mac(&self, object: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&object[..MAC.start]).update(&object[MAC.end..]);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use interbed_kv::{BlockId, BlockKey, BlockPart};

    use super::*;

    fn label() -> BlockLabel {
        let key = |byte| BlockKey([byte; KEY_BYTES]);
        BlockLabel { key: key(1), parent: key(2), owner: key(3), tokens: [7, 8, 9, 10].into() }
    }

    fn wanted() -> Wanted {
        let BlockLabel { key, parent, tokens, .. } = label();
        Wanted { key, parent, tokens, part: BlockPart::whole(BlockId(0)) }
    }

    fn sealed(format: &ObjectFormat) -> Vec<u8> {
        let mut object: Vec<u8> = (0..format.len()).map(|at| at as u8).collect();
        format.seal(&label(), 1000, &mut object);
        object
    }

    #[test]
    fn an_object_is_what_was_sealed_and_any_wrong_bit_is_noticed() {
        let format = ObjectFormat::new(&[1; 32], [2; 32], (4, 100), None);
        let object = sealed(&format);
        assert_eq!(format.check(&wanted(), 5000, &object), Ok(()));
        assert!(object[format.block()].iter().zip(160..).all(|(&byte, at)| byte == at as u8));
        for bit in 0..8 * object.len() {
            let mut wrong = object.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(format.check(&wanted(), 5000, &wrong).is_err(), "bit {bit}");
        }
        for len in 0..object.len() {
            assert!(format.check(&wanted(), 5000, &object[..len]).is_err());
        }
        assert!(format.check(&wanted(), 5000, &[&object[..], &[0]].concat()).is_err());
    }

    #[test]
    fn what_is_signed_and_not_wanted_is_a_miss() {
        let format = ObjectFormat::new(&[1; 32], [2; 32], (4, 100), None);
        let object = sealed(&format);
        let key = BlockKey([9; KEY_BYTES]);
        let others = [
            Wanted { key, ..wanted() },
            Wanted { parent: key, ..wanted() },
            Wanted { tokens: [7, 8, 9, 11].into(), ..wanted() },
            Wanted { tokens: [7, 8, 9].into(), ..wanted() },
        ];
        for other in others {
            assert_eq!(format.check(&other, 5000, &object), Err(NotIt::Foreign), "{other:?}");
        }
        for (secret, fingerprint, not_it) in [(9, 2, NotIt::Damaged), (1, 9, NotIt::Foreign)] {
            let other = ObjectFormat::new(&[secret; 32], [fingerprint; 32], (4, 100), None);
            assert_eq!(other.check(&wanted(), 5000, &object), Err(not_it));
        }
    }

    #[test]
    fn an_object_is_read_until_its_time_is_over() {
        let format = ObjectFormat::new(&[1; 32], [2; 32], (4, 100), Some(60));
        let object = sealed(&format);
        assert_eq!(format.check(&wanted(), 1059, &object), Ok(()));
        assert_eq!(format.check(&wanted(), 1060, &object), Err(NotIt::Expired));
    }
}
