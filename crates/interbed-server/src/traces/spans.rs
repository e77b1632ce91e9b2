//! Converts a request to spans: one for the whole request, and one each for queueing, prefill and decode.

use std::time::{Duration, Instant, UNIX_EPOCH};

use super::otlp::{ArrayValue, KeyValue, OneValue, Span, Status};
use crate::random::random;
use crate::request_log::{AskedFor, Came, Facts};

/// The kind of internal spans.
const INTERNAL: i32 = 1;
/// The kind of a server's spans.
const SERVER: i32 = 2;
/// Status code of an error.
const ERROR: i32 = 2;

/// The caller's span, from W3C's `traceparent` header: `00-TRACE-SPAN-FLAGS` in hexadecimal.
#[derive(Debug, PartialEq)]
struct Parent {
    trace: [u8; 16],
    span: [u8; 8],
    is_sampled: bool,
}

impl Parent {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if version.len() != 2 || version == "ff" || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|&trace| trace != 0)?.to_be_bytes();
        let span = u64::from_str_radix(span, 16).ok().filter(|&span| span != 0)?.to_be_bytes();
        Some(Self { trace, span, is_sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1 })
    }
}

/// Returns the spans of a request. There are none if the request did not reach the engine, or if its caller does not
/// sample traces.
pub(super) fn of(came: &Came, facts: &Facts) -> Vec<Span> {
    let (Some(asked), Some(submitted)) = (&facts.asked, facts.submitted) else { return Vec::new() };
    let parent = came.traceparent.as_deref().and_then(Parent::read);
    if parent.as_ref().is_some_and(|parent| !parent.is_sampled) {
        return Vec::new();
    }
    let fresh = || [random().to_be_bytes(), random().to_be_bytes()].concat();
    let trace_id = parent.as_ref().map_or_else(fresh, |parent| parent.trace.to_vec());
    let nanos = |at: Instant| {
        let clock = came.at_clock + at.saturating_duration_since(came.at);
        clock.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
    };
    let now = Instant::now();
    let span = |name: &str, begin: Instant, end: Instant| Span {
        trace_id: trace_id.clone(),
        span_id: random().to_be_bytes().to_vec(),
        name: name.to_owned(),
        kind: INTERNAL,
        start_time_unix_nano: nanos(begin),
        end_time_unix_nano: nanos(end),
        ..Span::default()
    };
    let failed = facts.status >= 500 || facts.finish == Some("error");
    let whole = Span {
        parent_span_id: parent.map(|parent| parent.span.to_vec()).unwrap_or_default(),
        kind: SERVER,
        attributes: attributes(came, facts, asked, submitted, now),
        status: failed.then(|| Status { code: ERROR, message: String::new() }),
        ..span("llm_request", came.at, now)
    };
    // With several prompts, the longest wait may end after the first token of another prompt.
    let inside =
        |name, begin: Instant, end| Span { parent_span_id: whole.span_id.clone(), ..span(name, begin.min(end), end) };
    let admitted = facts.queued.map(|queued| submitted + queued);
    let mut spans = Vec::with_capacity(4);
    spans.extend(admitted.map(|admitted| inside("queued", submitted, admitted)));
    spans.extend(admitted.zip(facts.first_token).map(|(begin, end)| inside("prefill", begin, end)));
    spans.extend(facts.first_token.zip(facts.last_token).map(|(begin, end)| inside("decode", begin, end)));
    spans.push(whole);
    spans
}

/// Returns attributes with vLLM's names, and with those of OpenTelemetry's conventions for generative AI.
fn attributes(came: &Came, facts: &Facts, asked: &AskedFor, submitted: Instant, now: Instant) -> Vec<KeyValue> {
    let text = |text: &str| OneValue::Text(text.to_owned());
    let number = |number: usize| OneValue::Int(i64::try_from(number).unwrap_or(i64::MAX));
    let seconds = |duration: Duration| OneValue::Double(duration.as_secs_f64());
    let between = |begin: Option<Instant>, end: Option<Instant>| Some(end?.saturating_duration_since(begin?));
    let operation = match came.path.as_str() {
        "/v1/completions" => "text_completion",
        "/v1/embeddings" => "embeddings",
        _ => "chat",
    };
    let admitted = facts.queued.map(|queued| submitted + queued);
    let (first, last) = (facts.first_token, facts.last_token);
    let latencies = [
        ("gen_ai.latency.time_in_queue", facts.queued),
        ("gen_ai.latency.time_to_first_token", between(Some(came.at), first)),
        ("gen_ai.latency.time_in_model_prefill", between(admitted, first)),
        ("gen_ai.latency.time_in_model_decode", between(first, last)),
        ("gen_ai.latency.time_in_model_inference", between(admitted, last)),
        ("gen_ai.latency.e2e", Some(now - came.at)),
    ];
    let reason = facts.finish.map(|reason| ArrayValue { values: vec![text(reason).into()] });
    let mut all = vec![
        KeyValue::new("gen_ai.operation.name", text(operation)),
        KeyValue::new("gen_ai.response.model", text(&asked.model)),
        KeyValue::new("gen_ai.request.id", text(&came.id)),
        KeyValue::new("gen_ai.request.n", number(asked.n)),
        KeyValue::new("gen_ai.request.max_tokens", number(asked.max_tokens)),
        KeyValue::new("gen_ai.request.temperature", OneValue::Double(asked.temperature.into())),
        KeyValue::new("gen_ai.request.top_p", OneValue::Double(asked.top_p.into())),
        KeyValue::new("gen_ai.usage.num_sequences", number(asked.sequences)),
        KeyValue::new("gen_ai.usage.prompt_tokens", number(facts.prompt_tokens)),
        KeyValue::new("gen_ai.usage.completion_tokens", number(facts.completion_tokens)),
        KeyValue::new("gen_ai.usage.input_tokens", number(facts.prompt_tokens)),
        KeyValue::new("gen_ai.usage.output_tokens", number(facts.completion_tokens)),
        KeyValue::new("gen_ai.usage.cached_tokens", number(facts.cached_tokens)),
        KeyValue::new("http.request.method", text(&came.method)),
        KeyValue::new("url.path", text(&came.path)),
        KeyValue::new("http.response.status_code", number(facts.status.into())),
        KeyValue::new("interbed.stream", OneValue::Bool(asked.stream)),
    ];
    all.extend(facts.client.as_deref().map(|client| KeyValue::new("enduser.id", text(client))));
    all.extend(reason.map(|list| KeyValue::new("gen_ai.response.finish_reasons", OneValue::List(list))));
    all.extend(latencies.into_iter().filter_map(|(key, time)| Some(KeyValue::new(key, seconds(time?)))));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_goes_on_where_the_header_is_one() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = Parent::read(good).expect("a parent");
        assert_eq!((parent.trace[0], parent.trace[15], parent.span[7], parent.is_sampled), (0x0a, 0x9c, 0x31, true));
        assert!(!Parent::read(&good.replace("-01", "-00")).expect("a parent").is_sampled);
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-zaf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-\u{e9}\u{e9}-b7ad6b7169203331-01",
        ] {
            assert_eq!(Parent::read(bad), None, "{bad}");
        }
    }
}
