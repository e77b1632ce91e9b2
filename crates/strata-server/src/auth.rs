//! API keys, and the tenant that each identifies.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use strata_engine::TenantId;

use crate::app::App;
use crate::error::ApiError;

/// Where Anthropic's clients send their key.
const KEY_HEADER: &str = "x-api-key";

/// Who sent a request: a fingerprint of the API key, or one anonymous client for all if no keys are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tenant(Option<u128>);

impl Tenant {
    /// By whom the engine divides its memory.
    pub(crate) fn id(self) -> Option<TenantId> {
        self.0.map(TenantId)
    }

    /// The salt of cached KV. Clients with different keys never share it, whatever salts they choose: the
    /// tenant's part has a fixed length, so no choice of `client_salt` can imitate another tenant's.
    pub(crate) fn cache_salt(self, client_salt: Option<String>) -> Option<String> {
        match self.0 {
            None => client_salt,
            Some(key) => Some(format!("{key:032x}:{}", client_salt.unwrap_or_default())),
        }
    }
}

/// Lets a request pass, with its [`Tenant`] as an extension, if its key is known.
pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Result<Response, ApiError> {
    let tenant = authenticate(&app.config.api_keys, request.headers()).ok_or_else(ApiError::unauthorized)?;
    request.extensions_mut().insert(tenant);
    Ok(next.run(request).await)
}

fn authenticate(keys: &[String], headers: &HeaderMap) -> Option<Tenant> {
    if keys.is_empty() {
        return Some(Tenant(None));
    }
    // Anthropic's clients send the one, and all others the other.
    let own = headers.get(KEY_HEADER).and_then(|key| key.to_str().ok());
    bearer(headers).into_iter().chain(own).find_map(|sent| known(keys, sent))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key)
}

/// The tenant of a key, if it is known.
fn known(keys: &[String], sent: &str) -> Option<Tenant> {
    // All keys are compared, and each to its end, so that the time taken says nothing of where they differ.
    let matching = keys.iter().filter(|key| same(key.as_bytes(), sent.trim().as_bytes())).count();
    (matching > 0).then(|| Tenant(Some(fingerprint(sent.trim()))))
}

/// Equality in time that depends on the length of `sent` alone.
fn same(key: &[u8], sent: &[u8]) -> bool {
    let mut difference = usize::from(key.len() != sent.len());
    for (index, byte) in sent.iter().enumerate() {
        let expected = key.get(index).copied().unwrap_or(!byte);
        difference |= usize::from(std::hint::black_box(expected ^ byte));
    }
    difference == 0 && !sent.is_empty()
}

/// The tenant of the clients that send this API key, as the engine knows it.
pub fn tenant_of_key(key: &str) -> u128 {
    fingerprint(key.trim())
}

/// Tells keys apart without carrying them into the engine. KV on disk is kept under it, so it must never change, and no
/// two keys may have the same.
fn fingerprint(key: &str) -> u128 {
    let hash = blake3::derive_key("Strata 2026-11 tenant of an API key", key.as_bytes());
    hash.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[&str], header: Option<&str>) -> Option<Tenant> {
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        let headers = header.map(|value| (header::AUTHORIZATION, value.parse().expect("a header")));
        authenticate(&keys, &headers.into_iter().collect())
    }

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(check(&[], None), Some(Tenant(None)));
        assert_eq!(check(&["a"], None), None);
        for wrong in ["a", "Bearer", "Bearer ", "Bearer b", "Bearer aa", "Basic a"] {
            assert_eq!(check(&["a", "long key"], Some(wrong)), None, "{wrong}");
        }
        let [a, long] = ["bearer a", "Bearer long key"].map(|header| check(&["a", "long key"], Some(header)));
        assert!(a.is_some() && long.is_some() && a != long);
        // The other header is as good, and the tenant is the same.
        let own = |pairs: &[(&'static str, &str)]| {
            let headers =
                pairs.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
            authenticate(&["a".into(), "long key".into()], &headers.collect())
        };
        assert_eq!(
            (own(&[("x-api-key", "a")]), own(&[("x-api-key", "b")]), own(&[("x-api-key", "")])),
            (a, None, None)
        );
        assert_eq!(own(&[("authorization", "Bearer x"), ("x-api-key", "long key")]), long);
        assert_eq!(own(&[("authorization", "Bearer a"), ("x-api-key", "x")]), a);
        // What is on disk is found under this.
        assert_eq!(fingerprint("a"), 315_301_231_358_023_649_590_211_598_813_610_621_338);
    }

    #[test]
    fn salts_of_tenants_never_meet() {
        let [a, b] = ["a", "b"].map(|key| Tenant(Some(fingerprint(key))));
        let forged = b.cache_salt(None);
        assert_ne!(a.cache_salt(forged.clone()), forged);
        assert_ne!(a.cache_salt(None), b.cache_salt(None));
        assert_ne!(a.cache_salt(None), a.cache_salt(Some("x".into())));
        assert_eq!(Tenant(None).cache_salt(None), None);
    }
}
