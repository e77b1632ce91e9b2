//! Handles paths of other servers. Some mean one of this server's paths, and for others this server has a substitute.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// The paths of llama-server and of clients whose base address lacks `/v1`, each with the path that is meant.
const MEANT: [(&str, &str); 8] = [
    ("/chat/completions", "/v1/chat/completions"),
    ("/completions", "/v1/completions"),
    ("/embeddings", "/v1/embeddings"),
    ("/messages", "/v1/messages"),
    ("/models", "/v1/models"),
    ("/ping", "/health"),
    ("/responses", "/v1/responses"),
    ("/v1/health", "/health"),
];

/// The substitute for filling in between two texts.
const FILL_IN: &str = "send a prompt with the model's own fill-in-the-middle tokens to /v1/completions";

/// The substitute for an endpoint that compares texts.
const COMPARE: &str = "compare the vectors that /v1/embeddings makes";

/// The paths of other servers that this server does not have, each with what to use instead.
const INSTEAD: [(&str, &str); 16] = [
    ("/apply-template", "/tokenize takes messages and answers with the prompt's tokens, /detokenize with their text"),
    ("/completion", "send prompt and max_tokens to /v1/completions"),
    ("/embedding", "send input to /v1/embeddings"),
    ("/generate", "send prompt and max_tokens to /v1/completions"),
    ("/infill", FILL_IN),
    ("/load", "/metrics counts the requests that run and wait"),
    ("/lora-adapters", "no adapters are loaded; merge them into the weights, and serve these"),
    ("/pooling", "send input to /v1/embeddings"),
    ("/props", "/model_info tells the model's limits, /v1/models its names and /api/show its template"),
    ("/rerank", COMPARE),
    ("/reranking", COMPARE),
    ("/score", COMPARE),
    ("/slots", "/metrics and the live page at / tell what runs"),
    ("/v1/rerank", COMPARE),
    ("/v1/reranking", COMPARE),
    ("/v1/score", COMPARE),
];

/// Replaces a path of another server by the path that is meant. The query stays.
pub(crate) fn rename(uri: &mut Uri) {
    let Some((_, meant)) = MEANT.iter().find(|(path, _)| *path == uri.path()) else { return };
    let text = uri.query().map_or_else(|| (*meant).to_owned(), |query| format!("{meant}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = PathAndQuery::from_maybe_shared(text).ok();
    if let Ok(renamed) = Uri::from_parts(parts) {
        *uri = renamed;
    }
}

/// Returns what to use instead of a path that this server does not have, if something does the same.
pub(crate) fn instead(path: &str) -> Option<&'static str> {
    INSTEAD.iter().find(|(known, _)| *known == path).map(|(_, next)| *next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_paths_are_renamed_and_queries_stay() {
        for (uri, meant) in [
            ("/chat/completions", "/v1/chat/completions"),
            ("/models?a=b", "/v1/models?a=b"),
            ("http://localhost:8000/ping", "http://localhost:8000/health"),
            ("/v1/models", "/v1/models"),
            ("/models/a", "/models/a"),
            ("/completion", "/completion"),
            ("*", "*"),
        ] {
            let mut renamed: Uri = uri.parse().expect(uri);
            rename(&mut renamed);
            assert_eq!(renamed.to_string(), meant);
        }
    }

    #[test]
    fn no_path_has_two_meanings() {
        assert!(MEANT.iter().all(|(path, meant)| instead(path).is_none() && instead(meant).is_none()));
    }
}
