//! Logs each request in one line, without its texts or keys, when all of the request has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::http::HeaderMap;

use crate::holding_body::holding;

/// The facts about a request. The line of the request is written when the last reference is dropped.
pub(crate) struct RequestLog {
    came: Came,
    facts: Mutex<Facts>,
    /// The other listeners that are told about the request.
    told: Arc<[Arc<dyn Listener>]>,
}

/// A listener that is told about ended requests.
pub(crate) trait Listener: Send + Sync {
    /// Notifies the listener that a request has ended. The function must not block.
    fn ended(&self, came: &Came, facts: &Facts);
}

/// Facts about a request that are known when it arrives.
pub(crate) struct Came {
    pub(crate) id: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// The W3C `traceparent` header: the caller's trace that the request is part of.
    pub(crate) traceparent: Option<String>,
    pub(crate) at: Instant,
    pub(crate) at_clock: SystemTime,
}

/// Facts about a request that are known at its end.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Facts {
    pub(crate) status: u16,
    /// The name of the client's key, if it has one.
    pub(crate) client: Option<Arc<str>>,
    pub(crate) asked: Option<AskedFor>,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// The time of submission to the engine.
    pub(crate) submitted: Option<Instant>,
    /// The time in the engine's queue.
    pub(crate) queued: Option<Duration>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
    /// The reason why the request ended, which is the worst reason of its sequences.
    pub(crate) finish: Option<&'static str>,
}

/// Parameters of a request to the engine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AskedFor {
    pub(crate) model: String,
    pub(crate) sequences: usize,
    pub(crate) n: usize,
    pub(crate) max_tokens: usize,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) stream: bool,
}

/// The paths that monitoring requests repeatedly.
const POLLED: [&str; 2] = ["/health", "/metrics"];

impl RequestLog {
    /// Starts the log of a request that has just arrived.
    pub(crate) fn begin(
        id: &str,
        method: &str,
        path: &str,
        headers: &HeaderMap,
        told: Arc<[Arc<dyn Listener>]>,
    ) -> Arc<Self> {
        let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (id, method, path) = (id.to_owned(), method.to_owned(), path.to_owned());
        let came = Came { id, method, path, traceparent, at: Instant::now(), at_clock: SystemTime::now() };
        Arc::new(Self { came, facts: Mutex::default(), told })
    }

    /// Returns the facts so far.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wraps a body so that the log stays alive until the body has been written, or is given up.
    pub(crate) fn around(self: Arc<Self>, body: Body) -> Body {
        holding(body, self)
    }
}

impl Facts {
    /// Records that one of the request's sequences ended for this reason.
    pub(crate) fn finished(&mut self, reason: &'static str) {
        let rank = |reason: &str| ["stop", "length", "abort", "error"].iter().position(|&known| known == reason);
        if self.finish.is_none_or(|before| rank(before) < rank(reason)) {
            self.finish = Some(reason);
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let facts = self.facts.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.told.iter().for_each(|told| told.ended(&self.came, facts));
        let Came { id, method, path, at, .. } = &self.came;
        let Facts { status, client, asked, queued, finish, .. } = &*facts;
        let ms = |duration: Duration| duration.as_micros() as f64 / 1e3;
        let since = |begin: Option<Instant>, end: Option<Instant>| Some(ms(end?.saturating_duration_since(begin?)));
        let of_engine = asked.as_ref().map(|_| &*facts);
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    request_id = id,
                    method,
                    path,
                    status,
                    client = client.as_deref(),
                    prompt_tokens = of_engine.map(|facts| facts.prompt_tokens),
                    cached_tokens = of_engine.map(|facts| facts.cached_tokens),
                    completion_tokens = of_engine.map(|facts| facts.completion_tokens),
                    queued_ms = queued.map(ms),
                    ttft_ms = since(facts.submitted, facts.first_token),
                    duration_ms = ms(at.elapsed()),
                    finish_reason = *finish,
                    "request"
                )
            };
        }
        match status {
            _ if POLLED.contains(&path.as_str()) => line!(debug),
            500.. => line!(warn),
            _ => line!(info),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_the_reasons_counts() {
        let worst = |reasons: &[&'static str]| {
            let mut facts = Facts::default();
            reasons.iter().for_each(|reason| facts.finished(reason));
            facts.finish
        };
        assert_eq!(worst(&[]), None);
        assert_eq!(worst(&["stop", "length", "stop"]), Some("length"));
        assert_eq!(worst(&["abort", "error", "length"]), Some("error"));
    }
}
