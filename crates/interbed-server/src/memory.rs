//! The memory that requests hold. The setting `request_bytes_max` limits it; the memory plan reserves that many bytes.
//!
//! # The arithmetic
//!
//! The memory for requests is divided into parts. A request takes shares of the parts in the order of this table, and
//! never waits for a part while it holds a share of a later one. Requests may wait for each other within a part, where
//! a share grows; each wait ends after [`WAIT_MAX`] at the latest:
//!
//! | part | of 128 MiB | holds | charged |
//! |---|---|---|---|
//! | connections | 3/16 = 24 MiB | their buffers and state | [`CONNECTION_BYTES`] each: 1024 of them, or 384 over TLS |
//! | bodies | 1/16 = 8 MiB | bodies until they are parsed | `Content-Length`, once 4 KiB have come: 2 of 4 MiB |
//! | parsed | 3/16 = 24 MiB | parsed requests until they are submitted | see below |
//! | scratch | 5/16 = 40 MiB | memory of the tokenizer | [`Tokenizer::scratch_bytes`] |
//! | held | 2/16 = 16 MiB | sequences, until the last of a request has ended | see below |
//! | answers | 3/32 = 12 MiB | whole answers, until they have been written | as they grow, log-probabilities before |
//! | unread | 1/32 = 4 MiB | tokens of streams that their clients have not read yet | as they come |
//!
//! A text is charged to *scratch* with at most 512 bytes for each byte of the longest piece that is tokenized at a
//! time, and 12 for each byte of text.
//!
//! A request is charged to *parsed* with [`PREPARING_BYTES`], and `5 x bytes + values` for its body. The factor of five
//! covers the parsed strings, two copies that a chat template gets of them, and its output in a buffer that grows by
//! doubling; or the parsed strings and four bytes for each token; or lists of token ids. The output of a template is
//! limited to the size of the body plus [`RENDERED_SLACK`]. No type of a field needs more than that; only messages,
//! tools and a template's own arguments become JSON values, of which a template gets two copies:
//! [`crate::json_cost::JsonCost`] counts those before they are built.
//!
//! A request is charged to *held* ([`crate::charge`]) with twelve bytes for each token of a prompt, once for the
//! answer and once for each of the sequences (which hold it as a list that grows by doubling): the `n` answers,
//! including candidates that `best_of` does not choose, or the beams of a search. The request is also charged for the
//! options that each answer has a copy of; for `echo`, with the text in each answer, and with `logprobs`, with
//! [`ECHO_LOGPROB_BYTES`] for each of the `(top + 1) x prompt tokens` entries of each answer. A beam search also holds
//! `width x max_tokens` tokens, once in its sequences and three times in its hypotheses, with their log-probabilities
//! if these are reported.
//!
//! A stream ends with an error if its client leaves more than a quarter of *unread* unread, or leaves much unread
//! while all of that part is taken ([`UnreadBudget`]). No request waits for that part.
//!
//! A request whose body arrives slowly, or not at all, loses its memory if others wait for it.
//!
//! A request that needs a larger share than there can ever be is refused at once with status 413 and the limit. Other
//! requests wait for up to [`WAIT_MAX`], and are then refused with status 503.
//!
//! # Tenants
//!
//! How much of each part a tenant may have follows from [`crate::shares`]: all of it while the tenant is alone,
//! otherwise an equal part or one request. Memory of *held* and *answers* is not released within seconds, so if the
//! server has several keys, no key gets more than three quarters of these parts: the rest stays free for other
//! tenants.
//!
//! [`Tokenizer::scratch_bytes`]: interbed_model::tokenizer::Tokenizer::scratch_bytes

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use interbed_engine::UnreadBudget;
use tokio::time::timeout;

use crate::api_keys::ApiKeys;
use crate::error::ApiError;
use crate::permits::{Permit, Permits};
use crate::shares::Ask;
use crate::tenant::Tenant;

/// The number of bytes that a connection takes: its read buffer (16 KiB at most), the first 4 KiB of a body, the heads
/// that it writes, its state and its task.
const CONNECTION_BYTES: usize = 24 << 10;
/// The number of bytes that a TLS connection takes in addition: a record that is read and one that is written, data
/// that waits to be encrypted, and its state.
const TLS_BYTES: usize = 40 << 10;
/// The number of bytes for preparing a request, whatever its size.
pub(crate) const PREPARING_BYTES: usize = 256 << 10;
/// The number of bytes that a template may write in addition to the size of its input.
pub(crate) const RENDERED_SLACK: usize = 64 << 10;
/// The number of bytes of one entry of a completion's log-probabilities, as JSON value and as text.
pub(crate) const ECHO_LOGPROB_BYTES: usize = 512;
/// The number of bytes of one log-probability entry of a non-streamed answer. The entry takes some twelve bytes until
/// the answer ends, and then its text is held twice, once by itself and once as part of the answer.
pub(crate) const LOGPROB_BYTES: usize = 320;
/// The maximum time for which a request waits for its share.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The number of bytes of one permit.
const PERMIT_BYTES: usize = 1024;

/// The memory for requests, divided into parts.
pub(crate) struct RequestMemory {
    pub(crate) bodies: Arc<MemoryPart>,
    pub(crate) parsed: Arc<MemoryPart>,
    pub(crate) scratch: Arc<MemoryPart>,
    pub(crate) held: Arc<MemoryPart>,
    pub(crate) answers: Arc<MemoryPart>,
    pub(crate) unread: Arc<UnreadBudget>,
}

/// One part of the memory for requests.
pub(crate) struct MemoryPart {
    permits: Arc<Permits>,
    units: usize,
    wait_max: Duration,
    /// The API keys, if no key may have all of the part: with several keys, each may have at most three quarters.
    keys: Option<ApiKeys>,
    /// The purpose of the memory, for error messages.
    purpose: &'static str,
}

/// A tenant's share of a part. Dropping the value gives the memory back.
pub(crate) struct Share {
    part: Arc<MemoryPart>,
    permit: Permit,
}

impl RequestMemory {
    /// Divides `bytes` among the parts, for clients with `keys`.
    pub(crate) fn new(bytes: usize, keys: &ApiKeys) -> Self {
        let part = |halves, keys, purpose| MemoryPart::new(bytes / 32 * halves, WAIT_MAX, keys, purpose);
        let kept = || Some(keys.clone());
        Self {
            bodies: part(2, None, "the bodies of requests"),
            parsed: part(6, None, "requests that are being prepared"),
            scratch: part(10, None, "tokenizing texts"),
            held: part(4, kept(), "requests in flight"),
            answers: part(3, kept(), "answers that are not streamed"),
            unread: UnreadBudget::new(bytes / 32),
        }
    }

    /// Returns the number of connections for which `bytes` of request memory suffice.
    pub(crate) fn connections(bytes: usize, over_tls: bool) -> usize {
        let each = CONNECTION_BYTES + if over_tls { TLS_BYTES } else { 0 };
        (bytes / 16 * 3 / each).max(1)
    }
}

impl MemoryPart {
    fn new(bytes: usize, wait_max: Duration, keys: Option<ApiKeys>, purpose: &'static str) -> Arc<Self> {
        let units = (bytes / PERMIT_BYTES).max(1);
        Arc::new(Self { permits: Permits::new(units), units, wait_max, keys, purpose })
    }

    /// Returns the maximum number of bytes that all requests of a tenant together may hold, which also limits each of
    /// them.
    pub(crate) fn bytes(&self) -> usize {
        self.most() * PERMIT_BYTES
    }

    fn most(&self) -> usize {
        let is_shared = self.keys.as_ref().is_some_and(|keys| keys.len() > 1);
        if is_shared { self.units - self.units / 4 } else { self.units }
    }

    /// Waits for a share of `bytes` bytes.
    ///
    /// # Errors
    /// Fails with status 413 if the part is smaller than the share, and with status 503 if the memory does not become
    /// free in time.
    pub(crate) async fn take(self: &Arc<Self>, tenant: Tenant, bytes: usize) -> Result<Share, ApiError> {
        let permit = self.more(tenant, 0, self.units(bytes)?).await?;
        Ok(Share { part: self.clone(), permit })
    }

    /// Waits for `amount` more permits for a request that holds `has`.
    async fn more(&self, tenant: Tenant, has: usize, amount: usize) -> Result<Permit, ApiError> {
        let more = self.permits.take_many(tenant, Ask { amount, has, most: self.most() });
        let late = |_| {
            let mib = (self.units * PERMIT_BYTES) >> 20;
            let purpose = self.purpose;
            ApiError::overloaded(format!(
                "the {mib} MiB for {purpose}, or the client's share, are taken; try again later"
            ))
        };
        timeout(self.wait_max, more).await.map_err(late)
    }

    fn units(&self, bytes: usize) -> Result<usize, ApiError> {
        if bytes > self.bytes() {
            return Err(ApiError::needs_too_much(bytes, self.bytes(), self.purpose));
        }
        Ok(bytes.div_ceil(PERMIT_BYTES))
    }
}

impl Share {
    /// Returns the tenant that holds the share.
    pub(crate) fn tenant(&self) -> Tenant {
        self.permit.tenant()
    }

    /// Returns whether another request waits for memory of this part.
    pub(crate) fn is_wanted(&self) -> bool {
        self.part.permits.are_wanted()
    }

    /// Grows the share to at least `bytes` bytes, and waits if the memory is not free.
    ///
    /// # Errors
    /// Fails like [`MemoryPart::take`]. The share is then unchanged.
    pub(crate) async fn ensure(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.permit.amount() * PERMIT_BYTES { self.resize(bytes).await } else { Ok(()) }
    }

    /// Grows the share by `bytes`.
    ///
    /// # Errors
    /// Fails like [`Share::resize`].
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.resize((self.permit.amount() * PERMIT_BYTES).saturating_add(bytes)).await
    }

    /// Resizes the share to `bytes` bytes, and waits if the share grows and the memory is not free.
    ///
    /// # Errors
    /// Fails like [`MemoryPart::take`]. The share is then unchanged.
    pub(crate) async fn resize(&mut self, bytes: usize) -> Result<(), ApiError> {
        let (wanted, has) = (self.part.units(bytes)?, self.permit.amount());
        if wanted > has {
            self.permit.merge(self.part.more(self.tenant(), has, wanted - has).await?);
        }
        self.shrink(bytes);
        Ok(())
    }

    /// Shrinks the share to at most `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.permit.keep(bytes.div_ceil(PERMIT_BYTES));
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} KiB for {}", self.permit.amount(), self.part.purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_keys::ApiKey;
    use crate::tenant::digest;

    const A: Tenant = Tenant::ANYBODY;

    #[test]
    fn connections_are_as_many_as_memory_allows() {
        assert_eq!([false, true].map(|tls| RequestMemory::connections(128 << 20, tls)), [1024, 384]);
        assert_eq!(RequestMemory::connections(0, true), 1);
    }

    #[tokio::test]
    async fn shares_come_back_and_what_never_fits_is_refused() {
        let memory = RequestMemory::new(16 << 20, &ApiKeys::default());
        let held = &memory.held;
        assert_eq!(held.bytes(), 2 << 20);
        let refused = held.take(A, (2 << 20) + 1).await.expect_err("a refusal");
        assert_eq!(refused.status, 413);
        let mut share = held.take(A, 1 << 20).await.expect("room");
        share.resize(2 << 20).await.expect("room");
        assert_eq!(share.resize(3 << 20).await.expect_err("a refusal").status, 413);
        share.resize(1 << 10).await.expect("smaller");
        let mut other = held.take(A, (2 << 20) - (1 << 10)).await.expect("the rest");
        drop(share);
        other.grow(1 << 10).await.expect("all of it");
        assert_eq!(held.permits.free(), 0);
        drop(other);
        assert_eq!(held.permits.free(), 2 << 10);
    }

    #[tokio::test]
    async fn waiting_has_an_end() {
        let part = MemoryPart::new(1 << 20, Duration::from_millis(20), None, "tests");
        let mut all = part.take(A, 1 << 20).await.expect("room");
        assert_eq!(part.take(A, 1).await.expect_err("a refusal").status, 503);
        all.shrink(1 << 19);
        let mut half = part.take(A, 1 << 19).await.expect("what was given back");
        assert_eq!(half.grow(1).await.expect_err("a refusal").status, 503);
    }

    #[tokio::test]
    async fn no_key_has_all_that_requests_in_flight_hold() {
        let keys = ApiKeys::new(&["a", "b"].map(ApiKey::new));
        let memory = RequestMemory::new(128 << 20, &keys);
        let [a, b] = ["a", "b"].map(|key| Tenant::of_digest(&digest(key)));
        for part in [&memory.held, &memory.answers] {
            let mut of_b = Vec::new();
            let wait = Duration::from_millis(20);
            while let Ok(share) = timeout(wait, part.take(b, 1 << 20)).await {
                of_b.push(share.expect("room"));
            }
            assert_eq!(of_b.len(), part.bytes() >> 20);
            timeout(wait, part.take(a, 1 << 20)).await.expect("no wait").expect("room");
            // From now on the other tenant is limited to half of the part.
            of_b.truncate(part.bytes() >> 21);
            let both = [timeout(wait, part.take(b, 3 << 20)).await, timeout(wait, part.take(a, 6 << 20)).await];
            assert!(both[0].is_err() && both[1].is_ok(), "{both:?}");
        }
        // Requests soon release memory of this part, so none of it is reserved for other tenants.
        assert_eq!(memory.parsed.bytes(), 24 << 20);
    }
}
