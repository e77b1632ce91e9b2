//! Computes the chain of hashes that names a block by all the tokens up to its end.
//!
//! A hash only says where to look. [`crate::BlockManager`] believes a hit only if the tokens and the parent compare
//! equal.

use std::{fmt, sync::Arc};

use xxhash_rust::xxh64::xxh64;

use crate::ids::{BLOCK_SIZE_MAX, TokenId};

/// The hash of a full block's tokens and of everything before them in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockHash(pub u64);

/// Names the start of a chain by tenant, salt and namespace. Chains with different roots share nothing, even for equal
/// tokens.
///
/// A root is cheap to clone. Roots compare by their fields, never by their hash.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ChainRoot(Arc<RootFields>);

#[derive(PartialEq, Eq, Hash)]
struct RootFields {
    tenant: Option<u128>,
    salt: Option<Box<str>>,
    namespace: u64,
    shared: bool,
}

impl ChainRoot {
    /// Makes a shared root without a tenant. Chains of different `salt`s share nothing. A salt that clients choose
    /// isolates no one, because one client may choose that of another; to separate clients, the caller derives the salt
    /// from the client's identity, or adds a [tenant](Self::of_tenant). `namespace` stands for everything else that
    /// changes KV for equal tokens (model, adapter, rope scale).
    pub fn new(salt: Option<&str>, namespace: u64) -> Self {
        Self(Arc::new(RootFields { tenant: None, salt: salt.map(Box::from), namespace, shared: true }))
    }

    /// Returns this root as one of `tenant`, whose chains share nothing with those of other tenants. `None` stands for
    /// no tenant.
    pub fn of_tenant(self, tenant: Option<u128>) -> Self {
        let RootFields { salt, namespace, shared, .. } = &*self.0;
        Self(Arc::new(RootFields { tenant, salt: salt.clone(), namespace: *namespace, shared: *shared }))
    }

    /// Makes a root for a sequence whose every token must be computed: the sequence finds nothing in the cache and
    /// publishes nothing, so that its blocks are free again once it has ended.
    pub fn unshared() -> Self {
        Self(Arc::new(RootFields { tenant: None, salt: None, namespace: 0, shared: false }))
    }

    /// Returns whether sequences under this root publish blocks and find those of others.
    pub fn is_shared(&self) -> bool {
        self.0.shared
    }

    /// Returns the tenant that the root belongs to, if it belongs to one.
    pub(crate) fn tenant(&self) -> Option<u128> {
        self.0.tenant
    }

    pub(crate) fn salt(&self) -> Option<&str> {
        self.0.salt.as_deref()
    }

    pub(crate) fn namespace(&self) -> u64 {
        self.0.namespace
    }
}

impl Default for ChainRoot {
    fn default() -> Self {
        Self::new(None, 0)
    }
}

impl fmt::Debug for ChainRoot {
    // The salt may come from a secret and must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let salt = if self.0.salt.is_some() { "salted" } else { "unsalted" };
        write!(f, "ChainRoot({salt}, namespace {})", self.0.namespace)
    }
}

/// Computes [`BlockHash`]es under one seed.
#[derive(Debug, Clone)]
pub struct ChainHasher {
    seed: u64,
    mask: u64,
}

impl ChainHasher {
    /// Makes a hasher that gives full 64-bit hashes.
    pub fn new(seed: u64) -> Self {
        Self { seed, mask: u64::MAX }
    }

    /// Makes a hasher that keeps only the lowest `bits` of each hash, 0 to 64, for tests. Forced collisions may cost
    /// time, but do no other harm.
    pub fn truncated(seed: u64, bits: u32) -> Self {
        Self { seed, mask: 1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1) }
    }

    /// Returns the hash of a chain root, from which the first block's hash is computed. The hash is xxh64 over the
    /// root's fields, each as type tag, length and bytes, so that different fields never give the same bytes.
    pub fn root(&self, root: &ChainRoot) -> BlockHash {
        const SALT: u8 = 1;
        const NAMESPACE: u8 = 2;
        const TENANT: u8 = 3;
        const NAMESPACE_BYTES: usize = 1 + 8 + 8;
        let mut namespace = [NAMESPACE; NAMESPACE_BYTES];
        namespace[1..9].copy_from_slice(&8u64.to_le_bytes());
        namespace[9..].copy_from_slice(&root.0.namespace.to_le_bytes());
        let mut bytes = Vec::new();
        if let Some(tenant) = root.0.tenant {
            bytes.extend([&[TENANT], &16u64.to_le_bytes()[..], &tenant.to_le_bytes()].concat());
        }
        if let Some(salt) = root.0.salt.as_deref() {
            bytes.extend([&[SALT], &(salt.len() as u64).to_le_bytes()[..], salt.as_bytes()].concat());
        }
        bytes.extend(namespace);
        self.finish(&bytes)
    }

    /// Returns the hash of a full block, from the hash `previous` of the block before it, or of the chain root, and
    /// from its `tokens`. The hash is xxh64 over `previous` as 8 little-endian bytes, then `tokens` as 4 little-endian
    /// bytes each.
    ///
    /// # Panics
    /// Panics if `tokens` is longer than [`BLOCK_SIZE_MAX`].
    pub fn block(&self, previous: BlockHash, tokens: &[TokenId]) -> BlockHash {
        // Clearing a buffer for the largest block would take longer than hashing a block of usual size.
        match tokens.len() {
            0..=16 => self.block_in(&mut [0; 8 + 4 * 16], previous, tokens),
            _ => self.block_in(&mut [0; 8 + 4 * BLOCK_SIZE_MAX], previous, tokens),
        }
    }

    /// Appends the hashes of the full blocks of `tokens`, with `block_size` tokens each, to `hashes`. `last` is the
    /// hash before the first of these blocks.
    ///
    /// # Panics
    /// Panics if `block_size` is above [`BLOCK_SIZE_MAX`].
    pub(crate) fn chain(
        &self,
        mut last: BlockHash,
        tokens: &[TokenId],
        block_size: usize,
        hashes: &mut Vec<BlockHash>,
    ) {
        let blocks = tokens.chunks_exact(block_size);
        hashes.reserve_exact(blocks.len());
        // The buffer is cleared once for all blocks.
        let mut room = [0; 8 + 4 * BLOCK_SIZE_MAX];
        hashes.extend(blocks.map(|block| {
            last = self.block_in(&mut room, last, block);
            last
        }));
    }

    #[inline]
    fn block_in(&self, room: &mut [u8], previous: BlockHash, tokens: &[TokenId]) -> BlockHash {
        let bytes = &mut room[..8 + 4 * tokens.len()];
        let (head, body) = bytes.split_at_mut(8);
        head.copy_from_slice(&previous.0.to_le_bytes());
        for (bytes, token) in body.chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        self.finish(bytes)
    }

    fn finish(&self, bytes: &[u8]) -> BlockHash {
        BlockHash(xxh64(bytes, self.seed) & self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_hash_is_xxh64_of_previous_hash_and_tokens() {
        let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 1, 0, 0, 0, 0x78, 0x56, 0x34, 0x12];
        let hash = ChainHasher::new(42).block(BlockHash(0x0102_0304_0506_0708), &[1, 0x1234_5678]);
        assert_eq!(hash.0, xxh64(&bytes, 42));
    }

    #[test]
    fn a_root_hash_is_xxh64_of_typed_length_prefixed_fields() {
        let namespace = [2, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        let salt = [1, 2, 0, 0, 0, 0, 0, 0, 0, b'h', b'i'];
        let hasher = ChainHasher::new(42);
        assert_eq!(hasher.root(&ChainRoot::new(None, 7)).0, xxh64(&namespace, 42));
        let salted = ChainRoot::new(Some("hi"), 7);
        assert_eq!(hasher.root(&salted).0, xxh64(&[&salt[..], &namespace].concat(), 42));
        let tenant = [&[3, 16, 0, 0, 0, 0, 0, 0, 0][..], &5u128.to_le_bytes()].concat();
        let owned = xxh64(&[&tenant[..], &salt, &namespace].concat(), 42);
        assert_eq!(hasher.root(&salted.of_tenant(Some(5))).0, owned);
    }

    #[test]
    fn hashes_depend_on_seed_previous_hash_and_every_token() {
        let hasher = ChainHasher::new(1);
        let base = hasher.block(BlockHash(5), &[1, 2]);
        assert_eq!(base, ChainHasher::new(1).block(BlockHash(5), &[1, 2]));
        assert_ne!(base, ChainHasher::new(2).block(BlockHash(5), &[1, 2]));
        assert_ne!(base, hasher.block(BlockHash(6), &[1, 2]));
        assert_ne!(base, hasher.block(BlockHash(5), &[1, 3]));
        assert_ne!(base, hasher.block(BlockHash(5), &[1, 2, 0]));
    }

    #[test]
    fn truncation_keeps_the_lowest_bits() {
        let full = ChainHasher::new(7).block(BlockHash(0), &[1]).0;
        assert_eq!(ChainHasher::truncated(7, 4).block(BlockHash(0), &[1]).0, full & 15);
        assert_eq!(ChainHasher::truncated(7, 0).block(BlockHash(0), &[1]).0, 0);
        assert_eq!(ChainHasher::truncated(7, 64).block(BlockHash(0), &[1]).0, full);
    }

    #[test]
    fn roots_never_show_their_salt() {
        assert_eq!(format!("{:?}", ChainRoot::new(Some("secret"), 3)), "ChainRoot(salted, namespace 3)");
    }
}
