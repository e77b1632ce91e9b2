//! Compares the description of the API with what the server does.

use serde_json::{Value, json};

use crate::fixture::Server;
use crate::library::server_of_several;

const PROBES: [(&str, &str); 6] = [
    ("boolean", "true"),
    ("integer", "1"),
    ("number", "0.5"),
    ("string", r#""\u0000""#),
    ("array", "[]"),
    ("object", "{}"),
];

/// Whether `kind` is one of the types of a field; a field without types allows all.
fn allows(field: &Value, kind: &str) -> bool {
    let named = |name: &Value| name == kind || (name == "number" && kind == "integer");
    match &field["type"] {
        Value::Null => true,
        Value::Array(names) => names.iter().any(named),
        name => named(name),
    }
}

#[tokio::test]
async fn fields_are_read_as_they_are_described() {
    let (one, several) = (Server::answering("x").await, server_of_several().await);
    let document = one.get("/openapi.json").await.ok();
    assert_eq!(document, several.get("/openapi.json").await.ok());
    assert_eq!(document["openapi"], "3.1.0");
    let mut refused = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(schema) =
            methods["post"].get("requestBody").map(|body| &body["content"]["application/json"]["schema"])
        else {
            continue;
        };
        // A server of one model fetches none.
        let server = if path == "/api/pull" { &several } else { &one };
        let fields = schema["properties"].as_object().unwrap();
        assert!(!fields.is_empty());
        for (name, field) in fields {
            assert!(field["description"].as_str().is_some_and(|text| !text.is_empty()), "{path} {name}");
            // A value of a type that is not described is refused, and the error names the field, so it is read.
            for (_, probe) in PROBES.iter().filter(|(kind, _)| !allows(field, kind)) {
                let required = if path == "/v1/messages" && name != "max_tokens" { r#", "max_tokens": 1"# } else { "" };
                let body = format!(r#"{{"{name}": {probe}{required}}}"#);
                let reply = server.post_bytes(path, "", body.as_bytes()).await;
                let error = &reply.json()["error"];
                let message = error.as_str().or(error["message"].as_str()).unwrap().to_owned();
                assert!(reply.status == 400 && message.contains(name.as_str()), "{path} {body}: {}", reply.body);
                refused += 1;
            }
        }
        // Requests without a required field are refused.
        for name in schema["required"].as_array().unwrap() {
            let mut body =
                json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "prompt": "a", "input": "a"});
            if path == "/v1/completions" || path.starts_with("/v1/responses") {
                body.as_object_mut().unwrap().retain(|key, _| *key == "prompt" || *key == "input");
            }
            if path == "/v1/chat/completions" || path.starts_with("/v1/responses") {
                body.as_object_mut().unwrap().remove("prompt");
            }
            if path == "/v1/completions" {
                body.as_object_mut().unwrap().remove("input");
            }
            body.as_object_mut().unwrap().remove(name.as_str().unwrap());
            let reply = server.post(path, &body).await;
            let told = reply.status == 400 && reply.body.contains(name.as_str().unwrap());
            let no_embeddings = reply.body.contains("no embeddings");
            assert!(told || no_embeddings, "{path} without {name}: {}", reply.body);
        }
    }
    assert!(refused > 200, "{refused}");
    let chat =
        &document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(chat["properties"]["temperature"]["type"], "number");
    assert_eq!(chat["properties"]["n"]["minimum"], 0);
    assert!(one.engine.requests().is_empty());
}
