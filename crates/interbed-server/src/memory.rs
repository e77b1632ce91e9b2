//! The memory that requests hold, bounded by one figure: `request_bytes_max`, which the memory plan sets aside.
//!
//! # The arithmetic
//!
//! The memory for requests is divided into parts. A request takes shares of them in this order, and never waits for a
//! part while it holds a later one. Requests may wait for each other within a part, where a share grows; a wait ends
//! after [`WAIT_MAX`] at the latest:
//!
//! | part | of 128 MiB | holds | charged |
//! |---|---|---|---|
//! | connections | 3/16 = 24 MiB | their buffers and state | [`CONNECTION_BYTES`] each: 1024 of them, or 384 over TLS |
//! | bodies | 1/16 = 8 MiB | bodies until they are parsed | `Content-Length`, once 4 KiB have come: 2 of 4 MiB |
//! | parsed | 3/16 = 24 MiB | what is made of bodies until it is submitted | see below |
//! | scratch | 5/16 = 40 MiB | the tokenizer at work | [`Tokenizer::scratch_bytes`] |
//! | held | 2/16 = 16 MiB | sequences, until the last of a request has ended | see below |
//! | answers | 3/32 = 12 MiB | whole answers, until they have been written | as they grow, log-probabilities before |
//! | unread | 1/32 = 4 MiB | tokens of streams that their clients have not read yet | as they come |
//!
//! Of *scratch*, a text is charged at most 512 bytes for each byte of the longest piece that is tokenized at a time,
//! and 12 for each byte of text.
//!
//! Of *parsed*, a request is charged [`PREPARING_BYTES`], and `5 x bytes + values` for its body. Five are the parsed
//! strings, two copies that a template gets of them, and its output in a buffer that doubles; or the parsed strings,
//! and four bytes for a token of each; or lists of token ids. The output of a template is cut off at the size of the
//! body and [`RENDERED_SLACK`]. Fields have types of which none takes more than that; only messages, tools and a
//! template's own arguments become JSON values, of which a template gets two copies: those are counted before they are
//! built, by [`crate::json_cost::JsonCost`].
//!
//! Of *held* ([`crate::charge`]), it is charged twelve bytes for each token of a prompt, once for the answer and once
//! for each of the sequences (which hold it as a list that doubles): the `n` answers, including candidates that
//! `best_of` does not choose, or the beams of a search; the options that each answer has a copy of; and for `echo`, the
//! text in each answer, and with `logprobs` [`ECHO_LOGPROB_BYTES`] for each of the `(top + 1) x prompt tokens` entries
//! of each answer. A beam search also holds `width x max_tokens` tokens, once in its sequences and three times in its
//! hypotheses, with their log-probabilities if these are reported.
//!
//! A stream whose client leaves more than a quarter of *unread* behind it, or much while all of it is taken, ends with
//! an error ([`UnreadBudget`]); nobody waits for that part.
//!
//! A body's memory is given up again when others wait for it and the body arrives slowly, or not at all.
//!
//! A request that could never get its share is refused at once (413), with the limit; others wait for up to
//! [`WAIT_MAX`], and are then asked to try again (503).
//!
//! # Tenants
//!
//! Of each part, a tenant may have as much as [`crate::shares`] says: all of it while it is alone, otherwise an equal
//! part or one request. What *held* and *answers* hold is not given back within seconds, so with several keys, no key
//! has more than three quarters of them: whoever comes finds the rest.
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

/// A connection's read buffer (16 KiB at most), the first 4 KiB of a body, the heads that it writes, and its state and
/// task.
const CONNECTION_BYTES: usize = 24 << 10;
/// What TLS takes besides: a record that is read and one that is written, what waits to be encrypted, and its state.
const TLS_BYTES: usize = 40 << 10;
/// What preparing a request takes, however small it is.
pub(crate) const PREPARING_BYTES: usize = 256 << 10;
/// Bytes that a template may write in addition to its input.
pub(crate) const RENDERED_SLACK: usize = 64 << 10;
/// One entry of a completion's log-probabilities, as JSON value and as text.
pub(crate) const ECHO_LOGPROB_BYTES: usize = 512;
/// One entry of an answer that is not streamed: some twelve bytes until it ends, then text, once by itself and once as
/// part of the answer.
pub(crate) const LOGPROB_BYTES: usize = 320;
/// Time for which a request waits for its share.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Bytes of one permit.
const UNIT: usize = 1024;

/// All parts.
pub(crate) struct RequestMemory {
    pub(crate) bodies: Arc<MemoryPart>,
    pub(crate) parsed: Arc<MemoryPart>,
    pub(crate) scratch: Arc<MemoryPart>,
    pub(crate) held: Arc<MemoryPart>,
    pub(crate) answers: Arc<MemoryPart>,
    pub(crate) unread: Arc<UnreadBudget>,
}

/// One part of the memory.
pub(crate) struct MemoryPart {
    permits: Arc<Permits>,
    units: usize,
    wait_max: Duration,
    /// If a part of it is kept for tenants that have little: the keys, of which each is a tenant.
    keys: Option<ApiKeys>,
    /// For messages.
    purpose: &'static str,
}

/// A tenant's share of a part, given back when this is dropped.
pub(crate) struct Share {
    part: Arc<MemoryPart>,
    permit: Permit,
}

impl RequestMemory {
    /// Divides `bytes` among clients that send `keys`.
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

    /// How many connections `bytes` allow.
    pub(crate) fn connections(bytes: usize, over_tls: bool) -> usize {
        let each = CONNECTION_BYTES + if over_tls { TLS_BYTES } else { 0 };
        (bytes / 16 * 3 / each).max(1)
    }
}

impl MemoryPart {
    fn new(bytes: usize, wait_max: Duration, keys: Option<ApiKeys>, purpose: &'static str) -> Arc<Self> {
        let units = (bytes / UNIT).max(1);
        Arc::new(Self { permits: Permits::new(units), units, wait_max, keys, purpose })
    }

    /// The bytes that all requests of a tenant may have at the most, and so each of them.
    pub(crate) fn bytes(&self) -> usize {
        self.most() * UNIT
    }

    fn most(&self) -> usize {
        let is_shared = self.keys.as_ref().is_some_and(|keys| keys.len() > 1);
        if is_shared { self.units - self.units / 4 } else { self.units }
    }

    /// Waits for a share.
    ///
    /// # Errors
    /// 413 if the part is smaller than that, 503 if it does not become free in time.
    pub(crate) async fn take(self: &Arc<Self>, tenant: Tenant, bytes: usize) -> Result<Share, ApiError> {
        let permit = self.more(tenant, 0, self.units(bytes)?).await?;
        Ok(Share { part: self.clone(), permit })
    }

    /// Waits for what a request that has so much needs besides.
    async fn more(&self, tenant: Tenant, has: usize, amount: usize) -> Result<Permit, ApiError> {
        let more = self.permits.take_many(tenant, Ask { amount, has, most: self.most() });
        let late = |_| {
            let mib = (self.units * UNIT) >> 20;
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
        Ok(bytes.div_ceil(UNIT))
    }
}

impl Share {
    /// Whose it is.
    pub(crate) fn tenant(&self) -> Tenant {
        self.permit.tenant()
    }

    /// Whether anybody waits for a share of the same part.
    pub(crate) fn is_wanted(&self) -> bool {
        self.part.permits.are_wanted()
    }

    /// Makes it at least so large; waits if that is more.
    ///
    /// # Errors
    /// As [`MemoryPart::take`]; the share stays as it was.
    pub(crate) async fn ensure(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.permit.amount() * UNIT { self.resize(bytes).await } else { Ok(()) }
    }

    /// Makes it larger by `bytes`.
    ///
    /// # Errors
    /// As [`Share::resize`].
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.resize((self.permit.amount() * UNIT).saturating_add(bytes)).await
    }

    /// Makes it a share of `bytes`; waits if that is more than now.
    ///
    /// # Errors
    /// As [`MemoryPart::take`]; the share stays as it was.
    pub(crate) async fn resize(&mut self, bytes: usize) -> Result<(), ApiError> {
        let (wanted, has) = (self.part.units(bytes)?, self.permit.amount());
        if wanted > has {
            self.permit.merge(self.part.more(self.tenant(), has, wanted - has).await?);
        }
        self.shrink(bytes);
        Ok(())
    }

    /// Makes it a share of at most `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.permit.keep(bytes.div_ceil(UNIT));
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
            // From now on the other keeps to its half.
            of_b.truncate(part.bytes() >> 21);
            let both = [timeout(wait, part.take(b, 3 << 20)).await, timeout(wait, part.take(a, 6 << 20)).await];
            assert!(both[0].is_err() && both[1].is_ok(), "{both:?}");
        }
        // Nobody else has shares of what is given back soon.
        assert_eq!(memory.parsed.bytes(), 24 << 20);
    }
}
