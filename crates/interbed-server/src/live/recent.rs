//! The most recently ended requests, and the average time of a prompt token, for the web page.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::request_log::{Came, Facts, Listener};

/// The number of requests that are kept.
const KEPT: usize = 12;

/// The minimum number of computed prompt tokens for a measurement: a pass with fewer takes about as long as a pass with
/// one.
const MEASURED_LEAST: usize = 16;

/// Requests that reached the engine and have ended.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The requests, newest first.
    requests: VecDeque<Ended>,
    /// The number of requests that have ended since the start.
    count: u64,
    /// The sums over all measured requests: the time from admission to the first token, and the number of prompt tokens
    /// that were computed in this time.
    measured: (Duration, usize),
}

/// Facts about an ended request, without texts or keys.
struct Ended {
    at: Instant,
    took: Duration,
    facts: Facts,
}

impl Recent {
    /// Returns the number of requests that have ended since the start.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// Returns the requests as JSON for the page. Times are in seconds, and a request's end counts from `begin`.
    pub(super) fn told(&self, begin: Instant) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (time, tokens) = kept.measured;
        let row = |ended: &Ended| {
            let Ended { at, took, facts } = ended;
            json!({
                "at": rounded(at.saturating_duration_since(begin)),
                "took": rounded(*took),
                "queued": facts.queued.map(rounded),
                "first": waited(facts).map(rounded),
                "decoding": facts.first_token.zip(facts.last_token).map(|(first, last)| rounded(last - first)),
                "key": facts.client.as_deref(),
                "prompt": facts.prompt_tokens,
                "cached": facts.cached_tokens,
                "generated": facts.completion_tokens,
                "finish": facts.finish,
                "status": facts.status,
            })
        };
        json!({
            "requests": kept.requests.iter().map(row).collect::<Value>(),
            "prompt_token_s": (tokens > 0).then(|| time.as_secs_f64() / tokens as f64),
        })
    }
}

impl Listener for Recent {
    fn ended(&self, came: &Came, facts: &Facts) {
        let Some(asked) = &facts.asked else { return };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.count += 1;
        let computed = facts.prompt_tokens.saturating_sub(facts.cached_tokens);
        // With several sequences, it is unknown to which of them the first token belongs.
        let (is_one, waited) = (asked.sequences == 1, waited(facts));
        if let (true, Some(waited)) = (is_one && computed >= MEASURED_LEAST, waited) {
            kept.measured.0 += waited.saturating_sub(facts.queued.unwrap_or_default());
            kept.measured.1 += computed;
        }
        kept.requests.push_front(Ended { at: Instant::now(), took: came.at.elapsed(), facts: facts.clone() });
        kept.requests.truncate(KEPT);
    }
}

/// Returns the time from the submission of the request to the engine to its first token.
fn waited(facts: &Facts) -> Option<Duration> {
    facts.first_token.zip(facts.submitted).map(|(first, submitted)| first.saturating_duration_since(submitted))
}

/// Returns a time in seconds, rounded to milliseconds.
pub(super) fn rounded(time: Duration) -> f64 {
    (1000.0 * time.as_secs_f64()).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::request_log::AskedFor;

    /// Records an ended request with this number of prompt tokens, some of them cached, and with these times in the
    /// queue and for the prefill, in seconds.
    fn end(recent: &Recent, prompt_tokens: usize, cached_tokens: usize, queued_s: u64, prefill_s: u64) {
        let at = Instant::now();
        let came = Came {
            id: "x".into(),
            method: "POST".into(),
            path: "/v1/completions".into(),
            traceparent: None,
            at,
            at_clock: SystemTime::now(),
        };
        let asked = AskedFor {
            model: "m".into(),
            sequences: 1,
            n: 1,
            max_tokens: 9,
            temperature: 0.0,
            top_p: 1.0,
            stream: false,
        };
        let first = at + Duration::from_secs(queued_s + prefill_s);
        let facts = Facts {
            status: 200,
            client: Some("alice".into()),
            asked: Some(asked),
            prompt_tokens,
            cached_tokens,
            completion_tokens: 11,
            submitted: Some(at),
            queued: Some(Duration::from_secs(queued_s)),
            first_token: Some(first),
            last_token: Some(first + Duration::from_secs(5)),
            finish: Some("stop"),
        };
        recent.ended(&came, &facts);
    }

    #[test]
    fn a_prompt_token_takes_what_was_measured_without_the_queue_and_what_was_found() {
        let recent = Recent::default();
        let begin = Instant::now();
        assert!(recent.told(begin)["prompt_token_s"].is_null());
        end(&recent, 10, 0, 0, 50);
        assert!(recent.told(begin)["prompt_token_s"].is_null(), "ten tokens say little");
        end(&recent, 100, 0, 7, 20);
        end(&recent, 400, 300, 0, 40);
        let told = recent.told(begin);
        assert_eq!(told["prompt_token_s"], 0.3);
        let newest = &told["requests"][0];
        for (name, expect) in [("prompt", 400.0), ("cached", 300.0), ("first", 40.0), ("decoding", 5.0)] {
            assert_eq!(newest[name].as_f64(), Some(expect), "{name}");
        }
        assert_eq!((&newest["key"], &newest["finish"]), (&json!("alice"), &json!("stop")));
    }

    #[test]
    fn the_last_are_kept_and_all_are_counted() {
        let recent = Recent::default();
        (0..KEPT + 5).for_each(|number| end(&recent, 100 + number, 0, 0, 1));
        let told = recent.told(Instant::now());
        let prompts: Vec<_> = told["requests"].as_array().unwrap().iter().map(|row| row["prompt"].as_u64()).collect();
        assert_eq!(prompts.len(), KEPT);
        assert_eq!((prompts[0], recent.count()), (Some(116), 17));
    }
}
