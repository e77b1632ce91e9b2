//! Authenticates clients by their API keys.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::api_keys::{ApiKeys, Owner};
use crate::error::ApiError;
use crate::tenant::Tenant;

/// The header in which Anthropic's clients send their key.
const KEY_HEADER: &str = "x-api-key";

/// Lets a request pass, with its [`Owner`] as an extension, if its key is one of `keys`. This is a middleware.
pub(crate) async fn guard(State(keys): State<ApiKeys>, mut request: Request, next: Next) -> Result<Response, ApiError> {
    let owner = authenticate(&keys, request.headers()).ok_or_else(ApiError::unauthorized)?;
    request.extensions_mut().insert(owner);
    Ok(next.run(request).await)
}

fn authenticate(keys: &ApiKeys, headers: &HeaderMap) -> Option<Owner> {
    if keys.is_empty() {
        return Some(Owner { tenant: Tenant::ANYBODY, name: None });
    }
    // Anthropic's clients send the key in their own header, all others as a bearer token.
    let own = headers.get(KEY_HEADER).and_then(|key| key.to_str().ok());
    bearer(headers).into_iter().chain(own).find_map(|sent| keys.owner(sent))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_keys::ApiKey;
    use crate::tenant::tenant_of_key;

    fn check(keys: &[&str], headers: &[(&'static str, &str)]) -> Option<Tenant> {
        let keys: Vec<_> = keys.iter().map(|&key| ApiKey::new(key)).collect();
        let headers =
            headers.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
        authenticate(&ApiKeys::new(&keys), &headers.collect()).map(|owner| owner.tenant)
    }

    #[test]
    fn keys_are_told_apart() {
        let own = |header: &str| check(&["a", "long key"], &[("authorization", header)]);
        assert_eq!(check(&[], &[]), Some(Tenant::ANYBODY));
        assert_eq!(check(&["a"], &[]), None);
        for wrong in ["a", "Bearer", "Bearer ", "Bearer b", "Bearer aa", "Basic a"] {
            assert_eq!(own(wrong), None, "{wrong}");
        }
        let [a, long] = ["bearer a", "Bearer long key"].map(own);
        assert!(a.is_some() && long.is_some() && a != long);
        // Both headers work, and give the same tenant.
        let both = |pairs: &[(&'static str, &str)]| check(&["a", "long key"], pairs);
        assert_eq!(["a", "b", ""].map(|key| both(&[("x-api-key", key)])), [a, None, None]);
        assert_eq!(both(&[("authorization", "Bearer x"), ("x-api-key", "long key")]), long);
        assert_eq!(both(&[("authorization", "Bearer a"), ("x-api-key", "x")]), a);
        // This number must not change: KV on disk is found under it.
        assert_eq!(tenant_of_key("a"), 66_647_322_333_640_134_540_936_746_497_072_329_823);
    }
}
