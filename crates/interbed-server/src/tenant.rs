//! Defines tenants, among whom memory and caches are divided.

use blake3::Hash;
use interbed_engine::TenantId;

/// The sender of a request: a fingerprint of the API key, or one anonymous tenant for all clients if no keys are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tenant(Option<u128>);

impl Tenant {
    /// The tenant for all clients of a server without keys.
    pub(crate) const ANYBODY: Self = Self(None);

    /// Returns the tenant of the key with this digest.
    pub(crate) fn of_digest(digest: &Hash) -> Self {
        Self(Some(digest.as_bytes().iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte))))
    }

    /// Returns the tenant with this id in the engine.
    pub(crate) fn of_id(id: TenantId) -> Self {
        Self(Some(id.0))
    }

    /// Returns the tenant's id in the engine, which divides its memory by tenants.
    pub(crate) fn id(self) -> Option<TenantId> {
        self.0.map(TenantId)
    }

    /// Returns the salt of cached KV. Clients with different keys never share cached KV, whatever salts they choose:
    /// the tenant's part has a fixed length, so no `client_salt` can imitate another tenant's.
    pub(crate) fn cache_salt(self, client_salt: Option<String>) -> Option<String> {
        match self.0 {
            None => client_salt,
            Some(key) => Some(format!("{key:032x}:{}", client_salt.unwrap_or_default())),
        }
    }
}

/// Returns the engine's id for the tenant whose clients send this API key.
pub fn tenant_of_key(key: &str) -> u128 {
    Tenant::of_digest(&digest(key.trim())).0.unwrap_or_default()
}

/// Returns the digest of a key, which identifies the key without storing it. KV on disk is stored under the first half
/// of the digest, so the digest must never change.
pub(crate) fn digest(key: &str) -> Hash {
    Hash::from_bytes(blake3::derive_key("Interbed 2026-11 tenant of an API key", key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_of_tenants_never_meet() {
        let [a, b] = ["a", "b"].map(|key| Tenant::of_digest(&digest(key)));
        let forged = b.cache_salt(None);
        assert_ne!(a.cache_salt(forged.clone()), forged);
        assert_ne!(a.cache_salt(None), b.cache_salt(None));
        assert_ne!(a.cache_salt(None), a.cache_salt(Some("x".into())));
        assert_eq!(Tenant(None).cache_salt(None), None);
    }
}
