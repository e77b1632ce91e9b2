//! A server of several models, of which one is in memory at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use interbed_engine::testing::{EMBEDDING_WIDTH, ScriptedEngine, Step, answer, byte_tokenizer};
use interbed_engine::{EngineHandle, Pooling, SamplingParams};
use interbed_model::chat_template::{ChatTemplate, SpecialTokens};
use interbed_server::{
    ApiKey, ApiKeys, Embeddings, KeepAlive, Library, LibraryError, LibraryModel, LoadProgress, ModelDescription,
    ModelFacts, OpenLibrary, PullStep, ServedModel, ServerConfig,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::fixture::{Reply, Server, TEMPLATE, post_request};

/// Models whose engines answer with their names; `slow` has no end, `damaged` and `large` cannot be loaded, and loading
/// `broken` breaks off.
struct Shelf {
    config: ServerConfig,
    models: Vec<&'static str>,
    /// Engines by model, of the last time that each was loaded.
    engines: Mutex<HashMap<String, EngineHandle>>,
    in_memory: Arc<AtomicUsize>,
    loads: AtomicUsize,
    load_time: Duration,
    /// Whether somebody listens how far a model is fetched.
    listened: Arc<AtomicBool>,
}

/// An engine that counts while it is in memory.
struct Keeper {
    _engine: ScriptedEngine,
    in_memory: Arc<AtomicUsize>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.in_memory.fetch_sub(1, Ordering::SeqCst);
    }
}

fn facts(name: &str) -> ModelFacts {
    ModelFacts {
        format: "gguf",
        family: "llama".into(),
        bytes: name.len() as u64,
        digest: "5a".repeat(32),
        ..ModelFacts::default()
    }
}

fn template() -> Option<Arc<ChatTemplate>> {
    Some(Arc::new(ChatTemplate::new(TEMPLATE, SpecialTokens::default()).expect("a valid template")))
}

impl Library for Shelf {
    fn models(&self) -> Vec<LibraryModel> {
        let named =
            |name: &&str| LibraryModel { names: vec![(*name).into(), format!("short:{name}")], facts: facts(name) };
        self.models.iter().map(named).collect()
    }

    fn find(&self, name: &str) -> Option<String> {
        let name = name.strip_suffix(":latest").unwrap_or(name);
        self.models.iter().find(|known| **known == name || format!("short:{known}") == name).map(|name| (*name).into())
    }

    fn describe(&self, name: &str) -> Result<ModelDescription, LibraryError> {
        if name == "damaged" {
            return Err(LibraryError::Unfit("its header is cut off".into()));
        }
        let (facts, sampling, template) = (facts(name), SamplingParams::default(), template());
        Ok(ModelDescription { facts, context: 99, vocabulary: 7, sampling, template, embeds: false })
    }

    fn pull(&self, name: &str) -> mpsc::Receiver<Result<PullStep, LibraryError>> {
        let (told, steps) = mpsc::channel(4);
        let (name, listened) = (name.to_owned(), self.listened.clone());
        let fetched = |done| Ok(PullStep::Fetched { content: "0123456789abcdef".into(), done, all: 9 });
        tokio::spawn(async move {
            listened.store(true, Ordering::SeqCst);
            for step in match name.as_str() {
                "new" => vec![fetched(2), fetched(3), fetched(9), Ok(PullStep::Done)],
                "here" => vec![Ok(PullStep::Done)],
                "breaks" => vec![fetched(2), Err(LibraryError::Failed("the network is gone".into()))],
                "vanishes" => vec![fetched(2)],
                "endless" => vec![fetched(2)],
                "busy" => vec![Err(LibraryError::Busy("two are being fetched".into()))],
                _ => vec![Err(LibraryError::Unfit("the Hub has no such model".into()))],
            } {
                if told.send(step).await.is_err() {
                    return;
                }
            }
            if name == "endless" {
                told.closed().await;
                listened.store(false, Ordering::SeqCst);
            }
        });
        steps
    }

    fn load(&self, name: &str, progress: Arc<LoadProgress>) -> Result<ServedModel, LibraryError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.in_memory.fetch_add(1, Ordering::SeqCst), 0, "another model is in memory");
        progress.set(3, 12);
        std::thread::sleep(self.load_time);
        let keeper = |engine| Box::new(Keeper { _engine: engine, in_memory: self.in_memory.clone() });
        let script = match name {
            "damaged" | "large" => {
                self.in_memory.fetch_sub(1, Ordering::SeqCst);
                return Err(match name {
                    "large" => LibraryError::Unfit("it needs --memory 9G".into()),
                    _ => LibraryError::Failed("reading it failed".into()),
                });
            }
            "broken" => {
                self.in_memory.fetch_sub(1, Ordering::SeqCst);
                panic!("it is meant to");
            }
            "slow" => Box::new(|_: &_, index: usize| if index < 3 { Step::Token(97) } else { Step::Wait }),
            name => answer(name),
        };
        let engine = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(1), script);
        let handle = engine.handle();
        self.engines.lock().unwrap().insert(name.to_owned(), handle.clone());
        let config = ServerConfig {
            model_names: vec![name.to_owned(), format!("short:{name}")],
            model: facts(name),
            embeddings: Ok(Embeddings { pooling: Pooling::Mean, width: EMBEDDING_WIDTH }),
            ..self.config.clone()
        };
        let (tokenizer, template) = (Arc::new(byte_tokenizer()), template());
        Ok(ServedModel { config, engine: handle, tokenizer, template, keeper: keeper(engine) })
    }
}

/// A server of some models, which it keeps for a minute.
struct Several {
    server: Server,
    shelf: Arc<Shelf>,
    open: OpenLibrary,
}

impl Several {
    async fn of(models: &[&'static str]) -> Self {
        Self::with(ServerConfig::default(), models, Duration::ZERO).await
    }

    async fn with(config: ServerConfig, models: &[&'static str], load_time: Duration) -> Self {
        let unused = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(1), answer("unused"));
        let (server, door) = Server::loading(&config, unused).await;
        let shelf = Arc::new(Shelf {
            config: config.clone(),
            models: models.to_vec(),
            engines: Mutex::default(),
            in_memory: Arc::default(),
            loads: AtomicUsize::default(),
            load_time,
            listened: Arc::default(),
        });
        let open = door.open_library(config, shelf.clone(), KeepAlive::For(Duration::from_secs(60)));
        Self { server, shelf, open }
    }

    /// The names of the models in memory, as Ollama's clients see them.
    async fn present(&self) -> Vec<String> {
        let told = self.server.get("/api/ps").await.ok();
        told["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn ask(&self, model: &str) -> Reply {
        self.server.post("/v1/completions", &json!({"model": model, "prompt": "a"})).await
    }

    async fn answers(&self, model: &str) {
        let told = self.ask(model).await.ok();
        assert_eq!((&told["choices"][0]["text"], &told["model"]), (&json!(model), &json!(model)));
    }

    /// Waits until nothing is in memory.
    async fn emptied(&self) {
        let begun = Instant::now();
        while self.shelf.in_memory.load(Ordering::SeqCst) > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "the model does not leave");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn loads(&self) -> usize {
        self.shelf.loads.load(Ordering::SeqCst)
    }
}

/// A server of several models, for tests of what only such a server has.
pub async fn server_of_several() -> Server {
    Several::of(&["one", "two"]).await.server
}

#[tokio::test]
async fn all_models_are_told_and_none_is_loaded_for_that() {
    let several = Several::of(&["one", "two"]).await;
    let server = &several.server;
    let names = |told: &Value, list: &str, field: &str| -> Vec<String> {
        told[list].as_array().unwrap().iter().map(|model| model[field].as_str().unwrap().to_owned()).collect()
    };
    let tags = server.get("/api/tags").await.ok();
    assert_eq!(names(&tags, "models", "name"), ["one:latest", "short:one", "two:latest", "short:two"]);
    assert_eq!((&tags["models"][0]["size"], &tags["models"][0]["details"]["family"]), (&json!(3), &json!("llama")));
    let listed = server.get("/v1/models").await.ok();
    assert_eq!(names(&listed, "data", "id"), ["one", "short:one", "two", "short:two"]);
    assert_eq!(names(&listed, "data", "root"), ["one", "one", "two", "two"]);
    assert_eq!(server.get("/v1/models/short:two").await.ok()["root"], "two");
    assert_eq!(server.get("/v1/models/three").await.error().0, 404);
    let shown = server.post("/api/show", &json!({"model": "two:latest"})).await.ok();
    assert_eq!((&shown["template"], &shown["capabilities"]), (&json!(TEMPLATE), &json!(["completion"])));
    assert_eq!(
        (&shown["model_info"]["llama.context_length"], &shown["details"]["format"]),
        (&json!(99), &json!("gguf"))
    );
    assert_eq!(server.post("/api/show", &json!({"model": "three"})).await.status, 404);
    assert_eq!(several.present().await, Vec::<String>::new());
    assert_eq!(server.get("/health").await.ok(), json!({"status": "ok"}));
    let info = server.get("/model_info").await;
    assert!(info.status == 404 && info.body.contains("no model is in memory"), "{}", info.body);
    let metrics = server.get("/metrics").await.body;
    for line in [
        r#"interbed:healthy{model_name="",engine="0"} 1"#,
        r#"interbed:loading{model_name="",engine="0"} 0"#,
        r#"interbed:http_responses_total{model_name="",engine="0",status="4xx"} 3"#,
    ] {
        assert!(metrics.lines().any(|candidate| candidate == line), "{line}\n{metrics}");
    }
    assert_eq!(several.loads(), 0);
    assert!(server.get("/").await.body.contains("<html"));
}

#[tokio::test]
async fn a_request_of_any_api_has_its_model_loaded() {
    let several = Several::of(&["one", "two"]).await;
    let server = &several.server;
    let chat = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 9});
    for model in ["one", "two", "one"] {
        several.answers(model).await;
        let told = server.post("/v1/chat/completions", &chat(model)).await.ok();
        assert_eq!(told["choices"][0]["message"]["content"], model);
        let told = server.post("/v1/messages", &chat(model)).await.ok();
        assert_eq!(told["content"][0]["text"], model);
        let told = server.post("/v1/responses", &json!({"model": model, "input": "a"})).await.ok();
        assert_eq!(told["output"][0]["content"][0]["text"], model);
        let ollama = json!({"model": format!("{model}:latest"), "messages": chat(model)["messages"], "stream": false});
        let told = server.post("/api/chat", &ollama).await.ok();
        assert_eq!((&told["message"]["content"], &told["model"]), (&json!(model), &ollama["model"]));
        let told = server.post("/api/generate", &json!({"model": model, "prompt": "a", "raw": true})).await.lines();
        assert_eq!(told.iter().map(|line| line["response"].as_str().unwrap()).collect::<String>(), model);
        let told = server.post("/api/embed", &json!({"model": model, "input": "a"})).await.ok();
        assert_eq!(told["embeddings"].as_array().map(Vec::len), Some(1));
        let told = server.post("/tokenize", &json!({"model": model, "prompt": "ab"})).await.ok();
        assert_eq!(told["count"], 3);
        assert_eq!(several.present().await, [format!("{model}:latest")]);
        let metrics = server.get("/metrics").await.body;
        let success =
            format!(r#"vllm:request_success_total{{model_name="{model}",engine="0",finished_reason="stop"}}"#);
        assert!(metrics.contains(&success), "{metrics}");
        let heads = metrics.lines().filter(|line| line.starts_with("# HELP interbed:http_responses_total")).count();
        assert_eq!(heads, 1);
        assert_eq!(server.get("/model_info").await.ok()["served_model_name"], model);
    }
    assert_eq!(several.loads(), 3);
    // Without a name, it is the one that is there.
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a"})).await.ok()["model"], "one");
}

#[tokio::test]
async fn a_request_without_a_name_gets_the_only_model_and_is_asked_for_one_where_there_are_several() {
    let several = Several::of(&["one", "two"]).await;
    let refused = several.server.post("/v1/completions", &json!({"prompt": "a"})).await.error();
    assert_eq!((refused.0, &refused.1["param"]), (400, &json!("model")));
    assert!(refused.1["message"].as_str().unwrap().contains("one, two"), "{refused:?}");
    let refused = several.ask("three").await.error();
    assert_eq!((refused.0, &refused.1["code"]), (404, &json!("model_not_found")));
    assert!(refused.1["message"].as_str().unwrap().contains("interbed pull"), "{refused:?}");
    let only = Several::of(&["one"]).await;
    assert_eq!(only.server.post("/v1/completions", &json!({"prompt": "a"})).await.ok()["model"], "one");
    let none = Several::of(&[]).await;
    for body in [json!({"prompt": "a"}), json!({"model": "one", "prompt": "a"})] {
        let refused = none.server.post("/v1/completions", &body).await.error();
        assert!(refused.0 == 404 && refused.1["message"].as_str().unwrap().contains("interbed pull"), "{refused:?}");
    }
    assert_eq!((several.loads(), none.loads()), (0, 0));
    // Some clients send names of their own.
    let config = ServerConfig { any_model_name: true, ..ServerConfig::default() };
    let any = Several::with(config, &["one"], Duration::ZERO).await;
    let told = any.ask("gpt-4").await.ok();
    assert_eq!((&told["model"], &told["choices"][0]["text"]), (&json!("gpt-4"), &json!("one")));
}

/// A stream that has begun.
async fn stream(several: &Several, model: &str, path: &str) -> (tokio::net::TcpStream, Vec<u8>) {
    let mut connection = several.server.connect().await;
    let body = json!({"model": model, "prompt": "a", "max_tokens": 400, "stream": true}).to_string();
    connection.write_all(&post_request(path, "", body.as_bytes())).await.unwrap();
    let mut reply = vec![0; 1];
    while !String::from_utf8_lossy(&reply).contains("\"a") {
        connection.read_buf(&mut reply).await.unwrap();
    }
    (connection, reply)
}

#[tokio::test]
async fn an_answer_runs_to_its_end_before_its_model_leaves() {
    let config = ServerConfig { model_wait_max: Duration::from_millis(500), ..ServerConfig::default() };
    let several = Several::with(config, &["slow", "other", "third"], Duration::ZERO).await;
    let (connection, _) = stream(&several, "slow", "/v1/completions").await;
    // Whoever wants another model waits, and is told so in the form of its API; behind them, others wait in turn.
    let begun = Instant::now();
    let (first, second) = tokio::join!(several.ask("other"), several.ask("third"));
    assert!(begun.elapsed() >= Duration::from_millis(500));
    for refused in [first, second] {
        let (status, error) = refused.error();
        assert!(status == 503 && refused.head.contains("retry-after: 10"), "{}", refused.head);
        assert!(error["message"].as_str().unwrap().contains("slow was in use"), "{error:?}");
    }
    let ollama = several.server.post("/api/generate", &json!({"model": "other", "prompt": "a"})).await;
    assert!(ollama.status == 503 && ollama.json()["error"].as_str().unwrap().contains("slow was in use"));
    assert_eq!(several.present().await, ["slow:latest"]);
    // When the client of the stream goes, it is their turn.
    let (told, ()) = tokio::join!(several.ask("other"), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(connection);
    });
    assert_eq!(told.ok()["model"], "other");
    assert_eq!(several.present().await, ["other:latest"]);
}

#[tokio::test]
async fn many_requests_for_many_models_are_all_answered() {
    let several = Several::with(ServerConfig::default(), &["one", "two", "three"], Duration::from_millis(3)).await;
    let several = Arc::new(several);
    let asking = (0..60).map(|number| {
        let several = several.clone();
        tokio::spawn(async move {
            let model = ["one", "two", "three"][number * 7 % 3];
            if number % 5 == 4 {
                // One that is given up.
                let _ = tokio::time::timeout(Duration::from_millis(number as u64), several.ask(model)).await;
            } else {
                several.answers(model).await;
            }
        })
    });
    for asked in asking.collect::<Vec<_>>() {
        asked.await.unwrap();
    }
    assert!(several.loads() >= 3);
}

#[tokio::test]
async fn a_load_that_fails_answers_its_waiters_and_the_server_goes_on() {
    let several =
        Several::with(ServerConfig::default(), &["damaged", "large", "broken", "good"], Duration::from_millis(50))
            .await;
    for (model, status, told) in
        [("damaged", 500, "reading it failed"), ("large", 400, "--memory 9G"), ("broken", 500, "broke off")]
    {
        let (first, second) = tokio::join!(several.ask(model), several.ask(model));
        for refused in [first, second] {
            let (found, error) = refused.error();
            let message = error["message"].as_str().unwrap();
            assert_eq!(found, status, "{message}");
            assert!(message.contains(&format!("{model} cannot be loaded: ")) && message.contains(told), "{message}");
        }
        several.answers("good").await;
    }
    let refused = several.server.post("/v1/messages", &json!({"model": "large", "max_tokens": 1})).await;
    assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("error")));
    let refused = several.server.post("/api/show", &json!({"model": "damaged"})).await;
    assert!(refused.status == 400 && refused.json()["error"].as_str().unwrap().contains("cut off"), "{}", refused.body);
}

#[tokio::test]
async fn a_model_leaves_when_its_time_is_over() {
    let several = Several::of(&["one", "two"]).await;
    let generate = async |more: Value| {
        let mut body = json!({"model": "one", "prompt": "a", "stream": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        several.server.post("/api/generate", &body).await.ok()
    };
    let expires = async || several.server.get("/api/ps").await.ok()["models"][0]["expires_at"].clone();
    // With no time, it goes at once.
    assert_eq!(generate(json!({"keep_alive": 0})).await["response"], "one");
    several.emptied().await;
    assert_eq!(several.present().await, Vec::<String>::new());
    // For ever.
    generate(json!({"keep_alive": -1})).await;
    assert!(expires().await.as_str().unwrap() > "2300");
    // What says nothing leaves it so.
    assert!(generate(json!({})).await["load_duration"].as_u64().is_some_and(|load| load < 1_000_000_000));
    assert!(expires().await.as_str().unwrap() > "2300");
    // A second.
    let begun = Instant::now();
    generate(json!({"keep_alive": "1s"})).await;
    assert!(expires().await.as_str().unwrap() < "2300");
    several.emptied().await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    // A request for nothing else, which loads nothing.
    let loads = several.loads();
    for path in ["/api/generate", "/api/chat"] {
        let told = several.server.post(path, &json!({"model": "two", "keep_alive": 0})).await.ok();
        assert_eq!(
            (&told["done_reason"], &told["done"], &told["model"]),
            (&json!("unload"), &json!(true), &json!("two"))
        );
    }
    assert_eq!(several.loads(), loads);
    generate(json!({"prompt": ""})).await;
    assert_eq!(several.present().await, ["one:latest"]);
    several.server.post("/api/chat", &json!({"model": "short:one", "keep_alive": "0s", "messages": []})).await.ok();
    several.emptied().await;
}

#[tokio::test]
async fn how_long_a_request_waited_for_its_model_is_told() {
    let several = Several::with(ServerConfig::default(), &["one"], Duration::from_millis(200)).await;
    let body = json!({"model": "one", "prompt": "a", "stream": false});
    let load = async || {
        let told = several.server.post("/api/generate", &body).await.ok();
        assert!(told["total_duration"].as_u64() >= told["load_duration"].as_u64(), "{told}");
        told["load_duration"].as_u64().unwrap()
    };
    let (first, loading) = tokio::join!(load(), async {
        loop {
            let health = several.server.get("/health").await.ok();
            if health["total_bytes"] == 12 {
                break (health, several.server.get("/metrics").await.body);
            }
        }
    });
    assert!(first >= 200_000_000, "{first}");
    assert_eq!(loading.0, json!({"status": "ok", "loading": "one", "loaded_bytes": 3, "total_bytes": 12}));
    assert!(loading.1.contains(r#"interbed:load_done_bytes{model_name="one",engine="0"} 3"#), "{}", loading.1);
    assert!(load().await < 100_000_000);
}

#[tokio::test]
async fn nothing_is_loaded_for_whoever_has_no_key_or_sends_no_request() {
    let config = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
    let several = Several::with(config, &["one"], Duration::ZERO).await;
    assert_eq!(several.ask("one").await.status, 401);
    for path in ["/v1/models", "/api/tags", "/api/ps", "/live/events"] {
        assert_eq!(several.server.get(path).await.status, 401, "{path}");
    }
    for body in [&b"{"[..], b"[]", br#"{"model": 7}"#] {
        let refused = several.server.post_bytes("/v1/completions", "Authorization: Bearer key\r\n", body).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    assert_eq!(several.loads(), 0);
    let body = br#"{"model": "one", "prompt": "a"}"#;
    several.server.post_bytes("/v1/completions", "Authorization: Bearer key\r\n", body).await.ok();
    assert_eq!((several.loads(), several.shelf.engines.lock().unwrap().len()), (1, 1));
}

#[tokio::test]
async fn the_page_is_told_which_models_there_are_until_one_comes() {
    let several = Several::of(&["one", "two"]).await;
    let mut viewer = several.server.connect().await;
    viewer.write_all(b"GET /live/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut seen = vec![0; 1];
    while !String::from_utf8_lossy(&seen).contains("\n\n") || !String::from_utf8_lossy(&seen).contains("event: ") {
        viewer.read_buf(&mut seen).await.unwrap();
    }
    let told = String::from_utf8_lossy(&seen).into_owned();
    assert!(told.contains("event: empty\ndata: ") && told.contains(r#""models":["one","two"]"#), "{told}");
    several.answers("one").await;
    viewer.read_to_end(&mut seen).await.unwrap();
    assert!(String::from_utf8_lossy(&seen).contains("event: change"));
    // With a model, the stream is that of the model, until it leaves.
    let mut viewer = several.server.connect().await;
    viewer.write_all(b"GET /live/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let head = viewer.read_buf(&mut seen).await.unwrap();
    assert!(head > 0);
    several.answers("two").await;
    viewer.read_to_end(&mut seen).await.unwrap();
    assert!(String::from_utf8_lossy(&seen).trim_end().ends_with("0"), "the stream ends");
}

#[tokio::test]
async fn the_last_model_leaves_when_the_server_has_ended() {
    let Several { server, shelf, open } = Several::of(&["one"]).await;
    server.post("/v1/completions", &json!({"model": "one", "prompt": "a"})).await.ok();
    assert_eq!(shelf.in_memory.load(Ordering::SeqCst), 1);
    let (_engine, served) = server.stop();
    served.await.unwrap();
    open.close().await;
    assert_eq!(shelf.in_memory.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn models_are_fetched_as_ollamas_clients_ask_for_it() {
    let several = Several::of(&["one"]).await;
    let server = &several.server;
    let line = |done: u64| {
        json!({"status": "pulling 0123456789ab", "digest": "commit:0123456789abcdef", "total": 9,
        "completed": done})
    };
    let status = |status: &str| json!({"status": status});
    let end = ["verifying sha256 digest", "writing manifest", "success"].map(status);
    // What comes within a moment of the line before has none of its own, but for the last.
    let told = server.post("/api/pull", &json!({"model": "new"})).await.lines();
    assert_eq!(told, [&[status("pulling manifest"), line(2), line(9)], &end[..]].concat());
    let told = server.post("/api/pull", &json!({"name": "here"})).await.lines();
    assert_eq!(told, [&[status("pulling manifest")], &end[..]].concat());
    let told = server.post("/api/pull", &json!({"model": "new", "stream": false})).await.ok();
    assert_eq!(told, status("success"));
    // What is refused at once has a status; what breaks off has a last line.
    for (body, status, part) in [
        (json!({"model": "none"}), 400, "none cannot be fetched: the Hub has no such model"),
        (json!({"model": "busy"}), 503, "two are being fetched"),
        (json!({"model": "breaks", "stream": false}), 500, "the network is gone"),
        (json!({"model": "new", "insecure": true}), 400, "insecure"),
        (json!({"model": ""}), 400, "names no model"),
        (json!({}), 400, "names no model"),
        (json!({"model": 7}), 400, "model"),
    ] {
        let refused = server.post("/api/pull", &body).await;
        let told = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(refused.status == status && told.contains(part), "{body} {} {told}", refused.status);
    }
    for (name, part) in [("breaks", "the network is gone"), ("vanishes", "broke off")] {
        let told = server.post("/api/pull", &json!({"model": name})).await.lines();
        assert_eq!(told[..2], [status("pulling manifest"), line(2)]);
        assert!(told[2]["error"].as_str().unwrap().contains(part) && told.len() == 3, "{told:?}");
    }
    assert_eq!(server.get("/api/pull").await.status, 405);
}

#[tokio::test]
async fn fetching_ends_when_its_client_goes_or_the_server_stops() {
    let several = Several::of(&["one"]).await;
    let begin = async || {
        let mut connection = several.server.connect().await;
        connection.write_all(&post_request("/api/pull", "", br#"{"model": "endless"}"#)).await.unwrap();
        let mut reply = vec![0; 1];
        while !String::from_utf8_lossy(&reply).contains("\"completed\":2") {
            connection.read_buf(&mut reply).await.unwrap();
        }
        assert!(several.shelf.listened.load(Ordering::SeqCst));
        (connection, reply)
    };
    let ended = async || {
        let begun = Instant::now();
        while several.shelf.listened.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < Duration::from_secs(10), "it goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (connection, _) = begin().await;
    drop(connection);
    ended().await;
    let (mut connection, mut reply) = begin().await;
    let listened = several.shelf.listened.clone();
    let (_engine, served) = several.server.stop();
    connection.read_to_end(&mut reply).await.unwrap();
    assert!(String::from_utf8_lossy(&reply).contains(r#"{"error":"the server is stopping"#));
    served.await.unwrap();
    assert!(!listened.load(Ordering::SeqCst));
}

#[tokio::test]
async fn fetching_takes_a_key_where_there_are_keys() {
    let config = ServerConfig { api_keys: ApiKeys::new(&[ApiKey::new("key")]), ..ServerConfig::default() };
    let several = Several::with(config, &["one"], Duration::ZERO).await;
    let body = br#"{"model": "new", "stream": false}"#;
    assert_eq!(several.server.post_bytes("/api/pull", "", body).await.status, 401);
    let key = "Authorization: Bearer key\r\nX-Forwarded-For: 10.0.0.7\r\n";
    several.server.post_bytes("/api/pull", key, body).await.ok();
    // Without keys, a proxy on this machine passes nobody on.
    let open = Several::of(&["one"]).await;
    let refused = open.server.post_bytes("/api/pull", "X-Forwarded-For: 10.0.0.7\r\n", body).await;
    assert!(refused.status == 403 && refused.json()["error"].as_str().unwrap().contains("--api-key-file"));
}
