//! Tests Ollama's API: chats and prompts, whole and streamed.

use interbed_engine::testing::{BOS, Step, answer};
use interbed_server::ServerConfig;
use serde_json::{Value, json};

use crate::fixture::{Reply, Server};
use crate::streaming::slow_server;

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

/// A chat that is answered in one piece, unless `more` says otherwise.
fn chat(more: Value) -> Value {
    with(json!({"model": "interbed", "messages": [{"role": "user", "content": "hi"}], "stream": false}), more)
}

fn prompt(more: Value) -> Value {
    with(json!({"model": "interbed", "prompt": "hi", "stream": false}), more)
}

fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// The prompt that reached the engine, as text; `^` is the beginning-of-sequence token.
fn asked(server: &Server) -> String {
    let text = |&id: &u32| if id == BOS { '^' } else { char::from(id as u8) };
    server.last_request().prompt.iter().map(text).collect()
}

/// Status and text of an error response, which has no other fields.
fn refused(reply: &Reply) -> (u16, String) {
    let told = reply.json();
    assert_eq!(told.as_object().unwrap().keys().collect::<Vec<_>>(), ["error"], "{told}");
    (reply.status, told["error"].as_str().expect("a text").to_owned())
}

/// Checks and removes the fields that differ from run to run.
fn settled(mut answer: Value, done: bool) -> Value {
    let fields = answer.as_object_mut().unwrap();
    let at = fields.shift_remove("created_at").expect("a time");
    let at = at.as_str().unwrap().to_owned();
    assert!(at.len() == 27 && at.starts_with("20") && at.ends_with('Z'), "{at}");
    for name in ["total_duration", "prompt_eval_duration", "eval_duration"].into_iter().filter(|_| done) {
        let nanoseconds = fields.shift_remove(name).and_then(|value| value.as_u64()).expect(name);
        assert!((1..60_000_000_000).contains(&nanoseconds), "{name} {nanoseconds}");
    }
    answer
}

#[tokio::test]
async fn chats_and_prompts_are_answered() {
    let server = Server::answering("hello there").await;
    let told = server.post(CHAT, &chat(json!({}))).await.ok();
    let expected = json!({
        "model": "interbed", "message": {"role": "assistant", "content": "hello there"},
        "done": true, "done_reason": "stop", "load_duration": 0, "prompt_eval_count": 19, "eval_count": 12,
    });
    assert_eq!(settled(told, true), expected);
    assert_eq!(asked(&server), "<user>hi<assistant>");
    let told = server.post(GENERATE, &prompt(json!({"system": "be kind"}))).await.ok();
    let expected = json!({
        "model": "interbed", "response": "hello there",
        "done": true, "done_reason": "stop", "load_duration": 0, "prompt_eval_count": 34, "eval_count": 12,
    });
    assert_eq!(settled(told, true), expected);
    assert_eq!(asked(&server), "<system>be kind<user>hi<assistant>");
    // A raw prompt follows the beginning-of-sequence token unchanged.
    let told = server.post(GENERATE, &prompt(json!({"raw": true, "template": "", "context": []}))).await.ok();
    assert_eq!((&told["response"], asked(&server).as_str()), (&json!("hello there"), "^hi"));
    // The assistant's last message is continued.
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "So"}]);
    server.post(CHAT, &chat(json!({"messages": messages}))).await.ok();
    assert_eq!(asked(&server), "<user>a<assistant>So");
}

#[tokio::test]
async fn answers_stream_in_lines_unless_they_are_not_to() {
    let server = Server::answering("héllo").await;
    for (path, body, text_at) in [
        (CHAT, json!({"messages": [{"role": "user", "content": "hi"}]}), "/message/content"),
        (GENERATE, json!({"prompt": "hi", "stream": true}), "/response"),
    ] {
        let mut lines = server.post(path, &body).await.lines();
        let last = settled(lines.pop().unwrap(), true);
        let mut text = String::new();
        for line in lines {
            assert_eq!(line["done"], json!(false));
            let line = settled(line, false);
            assert_eq!(line["model"], "interbed:latest");
            text += line.pointer(text_at).and_then(Value::as_str).unwrap();
        }
        assert_eq!(text, "héllo");
        assert_eq!(last.pointer(text_at), Some(&json!("")));
        let end = json!([last["done"], last["done_reason"], last["prompt_eval_count"], last["eval_count"]]);
        assert_eq!(end, json!([true, "stop", 19, 7]), "{last}");
    }
    // While no tokens arrive, empty lines are sent.
    let lines = slow_server().await.post(GENERATE, &json!({"prompt": "a"})).await.lines();
    let said: Vec<&str> = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert!(said.len() > 6 && said.concat() == "ab" && said[0].is_empty(), "{said:?}");
}

#[tokio::test]
async fn without_a_prompt_the_model_is_there() {
    let server = Server::answering("x").await;
    for body in [json!({"model": "interbed"}), json!({"messages": [], "keep_alive": "10m", "stream": true})] {
        let told = settled(server.post(CHAT, &body).await.ok(), false);
        let message = json!({"role": "assistant", "content": ""});
        assert_eq!((&told["message"], &told["done"], &told["done_reason"]), (&message, &json!(true), &json!("load")));
    }
    let told = settled(server.post(GENERATE, &json!({"model": "interbed:latest", "keep_alive": -1})).await.ok(), false);
    assert_eq!(told, json!({"model": "interbed:latest", "response": "", "done": true, "done_reason": "load"}));
    for (path, keep_alive) in [(CHAT, json!(0)), (GENERATE, json!("0s"))] {
        let (status, told) = refused(&server.post(path, &json!({"keep_alive": keep_alive})).await);
        assert!(status == 400 && told.contains("keep_alive asks for nothing but to unload"), "{told}");
        assert!(told.contains("start it without a MODEL"), "{told}");
    }
    assert!(server.engine.requests().is_empty());
    // A request that asks to unload the model is answered, and the model stays.
    server.post(GENERATE, &prompt(json!({"keep_alive": 0}))).await.ok();
}

#[tokio::test]
async fn options_are_kept_to() {
    let server = Server::answering("one two three").await;
    let options = json!({"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 42, "num_predict": 50,
        "repeat_penalty": 1.2, "repeat_last_n": -1, "presence_penalty": 0.3, "frequency_penalty": 0.4, "stop": ["tw"],
        // Options that change no answer.
        "num_thread": 8, "num_gpu": 1, "main_gpu": 0, "num_batch": 2, "num_keep": 5, "numa": false, "use_mmap": true,
        "mirostat": 0, "mirostat_tau": 0.8, "typical_p": 1.0, "tfs_z": 1, "penalize_newline": true, "num_ctx": 4096});
    for (path, body, text_at) in
        [(CHAT, chat(json!({})), "/message/content"), (GENERATE, prompt(json!({"raw": true})), "/response")]
    {
        let told = server.post(path, &with(body, json!({"options": options}))).await.ok();
        assert_eq!((told.pointer(text_at), &told["done_reason"]), (Some(&json!("one ")), &json!("stop")));
        let params = server.last_request().params;
        assert_eq!((params.temperature, params.top_k, params.top_p, params.min_p), (0.5, Some(7), 0.9, 0.1));
        assert_eq!((params.seed, params.max_tokens, params.repetition_penalty), (42, 50, 1.2));
        assert_eq!((params.presence_penalty, params.frequency_penalty), (0.3, 0.4));
    }
    let ask = async |options: Value| {
        let told = server.post(CHAT, &chat(json!({"options": options}))).await.ok();
        (told["done_reason"].clone(), server.last_request().params)
    };
    let prompt_tokens = "<user>hi<assistant>".len();
    for most in [-2, -1, 0] {
        assert_eq!(ask(json!({"num_predict": most})).await.1.max_tokens, 4096 - prompt_tokens);
    }
    // The requested context limits prompt and answer together.
    let (reason, params) = ask(json!({"num_ctx": prompt_tokens + 3})).await;
    assert_eq!((reason, params.max_tokens), (json!("length"), 3));
    assert_eq!(ask(json!({"num_ctx": 0})).await.1.max_tokens, 4096 - prompt_tokens);
    assert_eq!(ask(json!({"num_ctx": 100_000, "num_predict": 100_000})).await.1.max_tokens, 4096 - prompt_tokens);
    assert_eq!(ask(json!({"num_predict": 3})).await.0, "length");
    // The window of a penalty is all tokens, or none.
    assert_eq!(ask(json!({"repeat_penalty": 1.3, "repeat_last_n": 0})).await.1.repetition_penalty, 1.0);
    assert_eq!(ask(json!({"repeat_penalty": 1.0, "repeat_last_n": 64})).await.1.repetition_penalty, 1.0);
    let seeds = [ask(json!({"seed": -1})).await.1.seed, ask(json!({"seed": -1})).await.1.seed];
    assert_ne!(seeds[0], seeds[1]);
}

#[tokio::test]
async fn what_is_not_done_is_named() {
    let server = Server::answering("x").await;
    let picture = json!([{"role": "user", "content": "a", "images": ["aGk="]}]);
    for (path, more, told) in [
        (
            GENERATE,
            json!({"suffix": "b"}),
            "suffix is \"b\", which is not supported; send a prompt with the model's own fill-in-the-middle tokens",
        ),
        (GENERATE, json!({"images": ["aGk="]}), "images is [\"aGk=\"], but this model reads text alone"),
        (GENERATE, json!({"template": "{{ .Prompt }}"}), "template is \"{{ .Prompt }}\", but the model has its own"),
        (GENERATE, json!({"context": [1, 2]}), "context is [1,2], but this server keeps no contexts"),
        (GENERATE, json!({"raw": true, "system": "b"}), "system is b, but raw says that the prompt is all there is"),
        (GENERATE, json!({"messages": [{}]}), "messages is a field of /api/chat"),
        (GENERATE, json!({"_debug_render_only": true}), "_debug_render_only is true, which is not supported"),
        (CHAT, json!({"messages": picture}), "messages[0].images has pictures"),
        (CHAT, json!({"prompt": "a"}), "prompt is a field of /api/generate"),
        (CHAT, json!({"temperature": 0.5}), "temperature is a field of options"),
        (CHAT, json!({"tool_choice": "required"}), "tool_choice is a field of /v1/chat/completions"),
        (CHAT, json!({"messages": [{"content": "a"}]}), "messages[0].role must be a string"),
        (CHAT, json!({"tools": [{"type": "function"}]}), "tools[0].function must be an object"),
        (CHAT, json!({"think": true}), "think is true, but interbed does not support thinking"),
        (CHAT, json!({"think": "hard"}), "think is \"hard\", but must be true, false, \"low\""),
        (CHAT, json!({"format": "xml"}), "format is \"xml\", but must be \"json\" or a JSON schema"),
        (CHAT, json!({"format": {"type": "strange"}}), "format: "),
        (CHAT, json!({"keep_alive": "soon"}), "keep_alive must be a number of seconds"),
        (CHAT, json!({"top_logprobs": 2}), "top_logprobs needs logprobs to be true"),
        (CHAT, json!({"options": {"typical_p": 0.7}}), "options.typical_p is 0.7, which is not supported"),
        (CHAT, json!({"options": {"mirostat": 1}}), "options.mirostat is 1, which is not supported"),
        (CHAT, json!({"options": {"top_k": "x"}}), "options.top_k must be a whole number"),
        (CHAT, json!({"options": {"top_k": -5}}), "options.top_k is -5"),
        (CHAT, json!({"options": {"temperature": -1}}), "temperature"),
        (CHAT, json!({"options": {"stop": [""]}}), "options.stop has an empty string"),
        (CHAT, json!({"options": [1]}), "options must be an object"),
        (CHAT, json!({"options": {"num_ctx": 19}}), "options.num_ctx is 19, but the prompt alone has 19 tokens"),
        (
            CHAT,
            json!({"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}),
            "options.repeat_last_n is 64, but a repeat_penalty goes by all tokens here",
        ),
    ] {
        let body = if path == CHAT { chat(more) } else { prompt(more) };
        let (status, message) = refused(&server.post(path, &body).await);
        assert!(status == 400 && message.starts_with(told), "{body}\n{message}");
    }
    let (status, message) = refused(&server.post(CHAT, &chat(json!({"model": "other"}))).await);
    assert!(status == 404 && message.contains("\"other\" is not served here"), "{message}");
    assert_eq!(refused(&server.post_bytes(CHAT, "", b"{").await).0, 400);
    let (status, message) = refused(&server.get(CHAT).await);
    assert!(status == 405 && message.contains("send POST"), "{message}");
    let (status, message) = refused(&server.get("/api/nothing").await);
    assert!(status == 404 && message.contains("/api/generate"), "{message}");
    assert!(server.engine.requests().is_empty());
}

const CALLS: &str = "Let me see. \
    <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}}\n</tool_call>\n\
    <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";

#[tokio::test]
async fn calls_have_objects_as_arguments() {
    let config = ServerConfig { tool_parser: Some("hermes".into()), ..ServerConfig::default() };
    let server = Server::start(config, answer(CALLS)).await;
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    // Ollama's clients may omit the type.
    let tools = ["weather", "time"]
        .map(|name| json!({"function": {"name": name, "parameters": {"type": "object", "properties": properties}}}));
    let body = chat(json!({"tools": tools}));
    let told = server.post(CHAT, &body).await.ok();
    assert_eq!(told["done_reason"], "stop");
    let check = |message: &Value| {
        assert_eq!(message["content"].as_str().map(str::trim), Some("Let me see."));
        let calls = message["tool_calls"].as_array().unwrap();
        let functions: Vec<_> = calls.iter().map(|call| call["function"].clone()).collect();
        let expected = [
            json!({"index": 0, "name": "weather", "arguments": {"city": "Rome", "days": 2}}),
            json!({"index": 1, "name": "time", "arguments": {}}),
        ];
        assert_eq!(functions, expected);
        assert!(calls.iter().all(|call| call["id"].as_str().is_some_and(|id| id.starts_with("call_"))));
    };
    check(&told["message"]);
    let lines = server.post(CHAT, &with(body, json!({"stream": true}))).await.lines();
    let mut message = json!({"content": "", "tool_calls": []});
    for line in &lines {
        let text = message["content"].as_str().unwrap().to_owned() + line["message"]["content"].as_str().unwrap();
        message["content"] = text.into();
        let calls = line["message"]["tool_calls"].as_array().into_iter().flatten().cloned();
        message["tool_calls"].as_array_mut().unwrap().extend(calls);
    }
    check(&message);
    assert_eq!(lines.last().unwrap()["done_reason"], "stop");
    // A call that is cut off is not reported.
    let cut = server.post(CHAT, &chat(json!({"tools": tools, "options": {"num_predict": 64}}))).await.ok();
    assert_eq!((&cut["done_reason"], &cut["message"]["tool_calls"]), (&json!("length"), &Value::Null));
}

#[tokio::test]
async fn results_reach_the_template_behind_their_calls() {
    const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}{% if m.name %}:{{ m.name }}{% endif %}>\
        {{ m.content }}{% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments | tojson }})\
        {% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let server = Server::with_template(TEMPLATE).await;
    let call = |name: &str, city: &str| json!({"function": {"name": name, "arguments": {"city": city}}});
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call("f", "Rome"), call("g", "Oslo")]},
        {"role": "tool", "tool_name": "g", "content": "cold"},
        {"role": "tool", "tool_name": "f", "content": "warm"},
    ]);
    server.post(CHAT, &chat(json!({"messages": messages}))).await.ok();
    let expected =
        "<user>a<assistant>(f {\"city\": \"Rome\"})(g {\"city\": \"Oslo\"})<tool:f>warm<tool:g>cold<assistant>";
    assert_eq!(asked(&server), expected);
}

#[tokio::test]
async fn thinking_is_told_by_itself() {
    const OPENS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}\
        <assistant><think>\n{% if enable_thinking is false %}\n</think>\n{% endif %}{% endif %}";
    let server = Server::speaking(ServerConfig::default(), "I add.</think>\n\nFour.", OPENS).await;
    for think in [json!(true), json!("high"), json!(null)] {
        let told = server.post(CHAT, &chat(json!({"think": think}))).await.ok();
        let expected = json!({"role": "assistant", "content": "Four.", "thinking": "I add."});
        assert_eq!(told["message"], expected, "{think}");
        let told = server.post(GENERATE, &prompt(json!({"think": think}))).await.ok();
        assert_eq!((&told["response"], &told["thinking"]), (&json!("Four."), &json!("I add.")));
        let lines = server.post(GENERATE, &prompt(json!({"think": think, "stream": true}))).await.lines();
        let of = |field: &str| lines.iter().filter_map(|line| line[field].as_str()).collect::<String>();
        assert_eq!((of("thinking").as_str(), of("response").as_str()), ("I add.", "Four."));
    }
    server.post(CHAT, &chat(json!({"think": false}))).await.ok();
    assert!(asked(&server).ends_with("<think>\n</think>\n"), "{}", asked(&server));
}

/// The length of the longest prefix of `text` that the newest request allows, and whether the answer may end there.
fn allowed(server: &Server, text: &str) -> (usize, bool) {
    let mut constraint = server.last_request().constraint.expect("a constraint");
    let taken = text.bytes().take_while(|&byte| constraint.advance(u32::from(byte)).is_ok()).count();
    (taken, constraint.may_end())
}

#[tokio::test]
async fn answers_keep_to_a_format() {
    let server = Server::answering("x").await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    for (format, good, bad) in
        [(json!("json"), "{\"x\": [1]}", "[1]"), (schema.clone(), "{\"a\": 1}", "{\"a\": \"1\"}")]
    {
        for (path, body) in [
            (CHAT, chat(json!({"format": format}))),
            (GENERATE, prompt(json!({"format": format}))),
            (GENERATE, prompt(json!({"format": format, "raw": true}))),
        ] {
            server.post(path, &body).await.ok();
            assert_eq!(allowed(&server, good), (good.len(), true), "{body}");
            assert!(allowed(&server, bad).0 < bad.len(), "{body}");
        }
    }
    for none in [json!(""), json!(null)] {
        server.post(CHAT, &chat(json!({"format": none}))).await.ok();
        assert!(server.last_request().constraint.is_none());
    }
}

#[tokio::test]
async fn logprobs_are_told_as_chats_tell_them() {
    let server = Server::answering("ab").await;
    let more = json!({"logprobs": true, "top_logprobs": 2});
    for (path, body) in [(CHAT, chat(more.clone())), (GENERATE, prompt(more))] {
        let told = server.post(path, &body).await.ok();
        let whole = told["logprobs"].as_array().unwrap().clone();
        assert_eq!(whole.len(), 3);
        assert_eq!((&whole[0]["token"], &whole[0]["bytes"]), (&json!("a"), &json!([97])));
        assert!(whole[0]["logprob"].is_number() && whole[0]["top_logprobs"].as_array().unwrap().len() == 2);
        let lines = server.post(path, &with(body, json!({"stream": true}))).await.lines();
        let streamed: Vec<Value> =
            lines.iter().flat_map(|line| line["logprobs"].as_array().cloned().unwrap_or_default()).collect();
        assert_eq!(streamed, whole);
    }
}

#[tokio::test]
async fn a_stream_that_fails_says_so_in_its_last_line() {
    let script = |_: &_, index: usize| if index < 2 { Step::Token(97) } else { Step::Fail("it broke".into()) };
    let server = Server::start(ServerConfig::default(), Box::new(script)).await;
    let lines = server.post(GENERATE, &json!({"prompt": "a"})).await.lines();
    assert_eq!(lines[0]["response"], "a");
    let last = lines.last().unwrap();
    assert!(last["error"].is_string() && last.as_object().unwrap().len() == 1, "{last}");
}
