//! OpenAI's newer API.

use serde_json::{Value, json};
use strata_engine::testing::Step;
use strata_server::ServerConfig;

use crate::fixture::Server;

fn prompt(server: &Server) -> String {
    server.last_request().prompt.iter().map(|&id| char::from(id as u8)).collect()
}

#[tokio::test]
async fn responses_are_answered() {
    let server = Server::answering("hello there").await;
    let body =
        json!({"input": "hi", "instructions": "be kind", "metadata": {"a": "b"}, "user": "me", "temperature": 0.5});
    let told = server.post("/v1/responses", &body).await.ok();
    assert_eq!(prompt(&server), "<system>be kind<user>hi<assistant>");
    assert_eq!(
        (&told["object"], &told["status"], &told["store"]),
        (&json!("response"), &json!("completed"), &json!(false))
    );
    assert!(told["id"].as_str().unwrap().starts_with("resp_"));
    let item = &told["output"][0];
    let content = json!([{"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []}]);
    let expected =
        json!({"id": item["id"], "type": "message", "status": "completed", "role": "assistant", "content": content});
    assert_eq!(item, &expected);
    let tokens = prompt(&server).len();
    let usage = json!({
        "input_tokens": tokens, "input_tokens_details": {"cached_tokens": tokens / 2}, "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens + 12,
    });
    assert_eq!(told["usage"], usage);
    assert_eq!(
        (&told["metadata"], &told["user"], &told["temperature"]),
        (&json!({"a": "b"}), &json!("me"), &json!(0.5))
    );

    let told = server.post("/v1/responses", &json!({"input": "hi", "max_output_tokens": 3})).await.ok();
    assert_eq!(
        (&told["status"], &told["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
    assert_eq!(told["output"][0]["content"][0]["text"], "hel");
}

#[tokio::test]
async fn items_become_messages() {
    let server = Server::answering("x").await;
    let input = json!([
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]);
    let body = json!({"input": input, "store": false, "previous_response_id": null, "tools": [], "include": [],
        "text": {"format": {"type": "text"}}, "truncation": "disabled", "reasoning": {"effort": "low"}});
    server.post("/v1/responses", &body).await.ok();
    assert_eq!(prompt(&server), "<system>be brief<user>a<assistant>b<user>c<assistant>");
}

#[tokio::test]
async fn responses_stream_what_they_would_answer() {
    let server = Server::answering("héllo").await;
    let reply = server.post("/v1/responses", &json!({"input": "hi", "stream": true})).await;
    let events: Vec<Value> = reply
        .body
        .split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            data
        })
        .collect();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let begin =
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"];
    let end =
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"];
    assert_eq!((&names[..4], &names[names.len() - 4..]), (&begin[..], &end[..]));
    let deltas = &events[4..events.len() - 4];
    assert!(deltas.iter().all(|event| event["type"] == "response.output_text.delta"));
    let text: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "héllo");
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let (created, last) = (&events[0]["response"], &events.last().unwrap()["response"]);
    assert_eq!((&created["status"], &created["output"]), (&json!("in_progress"), &json!([])));
    assert_eq!((&created["id"], &last["output"][0]["content"][0]["text"]), (&last["id"], &json!("héllo")));
    assert_eq!(last["usage"]["output_tokens"], 7);
    let id = &events[2]["item"]["id"];
    assert!(events[3..events.len() - 2].iter().all(|event| event["item_id"] == *id));
}

#[tokio::test]
async fn a_stream_of_a_response_that_fails_says_so() {
    let script = |_: &_, index: usize| if index < 2 { Step::Token(97) } else { Step::Fail("gone".into()) };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let reply = server.post("/v1/responses", &json!({"input": "hi", "stream": true})).await;
    let last = reply.body.split_terminator("\n\n").last().unwrap();
    assert!(last.starts_with("event: response.failed") && last.contains("gone"), "{last}");
}

#[tokio::test]
async fn what_needs_state_or_is_not_supported_is_named() {
    let server = Server::answering("x").await;
    for (param, value) in [
        ("input", json!(null)),
        ("input", json!([])),
        ("input", json!(3)),
        ("input[0].type", json!([{"type": "function_call_output", "call_id": "x", "output": "y"}])),
        ("input[0].role", json!([{"role": "tool", "content": "x"}])),
        ("input[0].content[0].type", json!([{"role": "user", "content": [{"type": "input_image"}]}])),
        ("store", json!(true)),
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("background", json!(true)),
        ("prompt", json!({"id": "pmpt_1"})),
        ("include", json!(["reasoning.encrypted_content"])),
        ("tools", json!([{"type": "web_search"}])),
        ("tool_choice", json!("required")),
        ("truncation", json!("auto")),
        ("text.format.type", json!({"format": {"type": "json_schema"}})),
        ("reasoning.summary", json!({"summary": "auto"})),
        ("top_logprobs", json!(3)),
        ("metadata", json!({"a": 1})),
        ("max_output_tokens", json!("many")),
    ] {
        let mut body = json!({"input": "hi"});
        body[param.split(['.', '[']).next().unwrap()] = value;
        let (status, error) = server.post("/v1/responses", &body).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{body} {error:?}");
    }
    assert!(server.engine.requests().is_empty());
}
