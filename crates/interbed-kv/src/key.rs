//! Computes keys of contents below memory. Keys outlive the process, and tell nothing to those who lack the secret.
//!
//! Memory finds contents by [`BlockHash`](crate::BlockHash), which is cheap, and compares tokens and parents. Below
//! memory, a part is named by its [`BlockKey`] alone, and what is read back is compared with its [`BlockLabel`].

use std::fmt;

use blake3::Hasher;

use crate::{hash::ChainRoot, ids::TokenId};

/// The number of bytes in a [`BlockKey`].
pub const KEY_BYTES: usize = 16;

/// A keyed hash that names what tiers below memory keep: a full trunk block with everything before it in its chain
/// (model, tenant, salt, namespace and tokens), or a part of a tail block. Keys of the same form stand for chain roots
/// and, as [owner marks](KeyChain::owner), for tenants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockKey(pub [u8; KEY_BYTES]);

impl BlockKey {
    /// Stands for the key of a content that is not findable.
    pub const NAMELESS: Self = Self([0; KEY_BYTES]);
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockKey({:032x})", u128::from_be_bytes(self.0))
    }
}

/// What a tier below memory stores beside a part, so that a reader can check that it got the part it wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLabel {
    /// The key of the part itself.
    pub key: BlockKey,
    /// For a trunk block, the key of the content before it in its chain, or of the chain root. For a part of a tail
    /// block, the key of the content that the tail block belongs to.
    pub parent: BlockKey,
    /// The [owner mark](KeyChain::owner) of the tenant that the content belongs to.
    pub owner: BlockKey,
    /// The tokens of the content that the part belongs to, as many as fill a block.
    pub tokens: Box<[TokenId]>,
}

/// Computes the [`BlockKey`]s of one model under one secret. A key is BLAKE3, keyed with the secret, over fields that
/// are each written as type tag, length and bytes, so that different fields never give the same bytes.
#[derive(Clone)]
pub struct KeyChain {
    secret: [u8; 32],
    /// The hash of everything that changes KV for equal tokens and that one process never changes, such as the weights.
    fingerprint: [u8; 32],
    /// The secret from which [owner marks](Self::owner) are computed.
    owners: [u8; 32],
}

const FINGERPRINT: u8 = 1;
const NAMESPACE: u8 = 2;
const TENANT: u8 = 3;
const SALT: u8 = 4;
const PARENT: u8 = 5;
const TOKENS: u8 = 6;
const GROUP: u8 = 7;
const PART: u8 = 8;

impl KeyChain {
    /// Makes the value that computes keys under `secret`, for the KV of the model that `fingerprint` identifies.
    /// `fingerprint` covers the weights, how the model is computed, and the layout and type of its KV.
    pub fn new(secret: [u8; 32], fingerprint: [u8; 32]) -> Self {
        Self { secret, fingerprint, owners: secret }
    }

    /// Returns a value that gives contents the same keys, but computes owner marks from `secret`, which other stores
    /// with the same keys do not know.
    #[must_use]
    pub fn owned_under(self, secret: [u8; 32]) -> Self {
        Self { owners: secret, ..self }
    }

    /// Returns the key of the chain root `root`, from which the key of the chain's first block is computed.
    pub fn root(&self, root: &ChainRoot) -> BlockKey {
        let mut hasher = self.hasher();
        field(&mut hasher, FINGERPRINT, &self.fingerprint);
        field(&mut hasher, NAMESPACE, &root.namespace().to_le_bytes());
        root.tenant().into_iter().for_each(|tenant| field(&mut hasher, TENANT, &tenant.to_le_bytes()));
        root.salt().into_iter().for_each(|salt| field(&mut hasher, SALT, salt.as_bytes()));
        finish(&hasher)
    }

    /// Returns the key of the trunk block that holds `tokens` and continues the content, or the chain root, with the
    /// key `parent`.
    pub fn block(&self, parent: BlockKey, tokens: &[TokenId]) -> BlockKey {
        let mut hasher = self.hasher();
        field(&mut hasher, PARENT, &parent.0);
        hasher.update(&[TOKENS]);
        hasher.update(&(4 * tokens.len() as u64).to_le_bytes());
        // The tokens are hashed in pieces, so that nothing is allocated.
        let mut bytes = [0; 64];
        for tokens in tokens.chunks(16) {
            for (bytes, token) in bytes.chunks_exact_mut(4).zip(tokens) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(&bytes[..4 * tokens.len()]);
        }
        finish(&hasher)
    }

    /// Returns the key of part number `part` of a tail block. The block is that which tail group number `group` of
    /// [`KvConfig::tails`](crate::KvConfig::tails) keeps for the content with the key `content`.
    pub fn part(&self, content: BlockKey, group: u32, part: u32) -> BlockKey {
        let mut hasher = self.hasher();
        field(&mut hasher, PARENT, &content.0);
        field(&mut hasher, GROUP, &group.to_le_bytes());
        field(&mut hasher, PART, &part.to_le_bytes());
        finish(&hasher)
    }

    /// Returns the owner mark of `tenant`: a keyed hash, stored with everything that belongs to the tenant, by which
    /// all of it can be found and erased. `None` stands for all requests without a tenant. The mark does not depend on
    /// the model.
    pub fn owner(&self, tenant: Option<u128>) -> BlockKey {
        let mut hasher = Hasher::new_keyed(&self.owners);
        tenant.into_iter().for_each(|tenant| field(&mut hasher, TENANT, &tenant.to_le_bytes()));
        finish(&hasher)
    }

    fn hasher(&self) -> Hasher {
        Hasher::new_keyed(&self.secret)
    }
}

impl fmt::Debug for KeyChain {
    // The secret must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyChain")
    }
}

fn field(hasher: &mut Hasher, tag: u8, bytes: &[u8]) {
    hasher.update(&[tag]);
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn finish(hasher: &Hasher) -> BlockKey {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&hasher.finalize().as_bytes()[..KEY_BYTES]);
    BlockKey(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_key_is_the_keyed_hash_of_typed_length_prefixed_fields() {
        let parent = BlockKey([7; KEY_BYTES]);
        let tokens: Vec<TokenId> = (0..40).collect();
        let mut bytes = vec![PARENT, 16, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([7; KEY_BYTES]);
        bytes.extend([TOKENS, 160, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        let expected = blake3::keyed_hash(&[3; 32], &bytes);
        assert_eq!(KeyChain::new([3; 32], [0; 32]).block(parent, &tokens).0, expected.as_bytes()[..KEY_BYTES]);
    }

    #[test]
    fn roots_differ_where_anything_differs() {
        let root = |secret, fingerprint, tenant: Option<u128>, salt, namespace| {
            KeyChain::new([secret; 32], [fingerprint; 32]).root(&ChainRoot::new(salt, namespace).of_tenant(tenant))
        };
        let base = root(1, 1, Some(1), Some("a"), 1);
        assert_eq!(base, root(1, 1, Some(1), Some("a"), 1));
        let others = [
            root(2, 1, Some(1), Some("a"), 1),
            root(1, 2, Some(1), Some("a"), 1),
            root(1, 1, Some(2), Some("a"), 1),
            root(1, 1, None, Some("a"), 1),
            root(1, 1, Some(1), Some("b"), 1),
            root(1, 1, Some(1), None, 1),
            root(1, 1, Some(1), Some("a"), 2),
        ];
        assert!(others.iter().all(|other| *other != base), "{others:?}");
    }

    #[test]
    fn parts_have_names_of_their_own() {
        let (chain, content) = (KeyChain::new([1; 32], [2; 32]), BlockKey([7; KEY_BYTES]));
        let mut keys = vec![content, chain.block(content, &[])];
        keys.extend([(0, 0), (0, 1), (1, 0), (0, 256)].map(|(group, part)| chain.part(content, group, part)));
        keys.push(chain.part(BlockKey([8; KEY_BYTES]), 0, 0));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 7);
    }

    #[test]
    fn an_owner_is_its_tenant_alone() {
        let owner = |fingerprint, tenant| KeyChain::new([1; 32], [fingerprint; 32]).owner(tenant);
        assert_eq!(owner(1, Some(5)), owner(2, Some(5)));
        assert_ne!(owner(1, Some(5)), owner(1, Some(6)));
        assert_ne!(owner(1, Some(5)), owner(1, None));
    }

    #[test]
    fn the_secret_is_never_shown() {
        assert_eq!(format!("{:?}", KeyChain::new([9; 32], [9; 32])), "KeyChain");
    }
}
