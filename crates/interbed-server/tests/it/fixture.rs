//! A server on a free port, and a client that writes and reads raw bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use interbed_engine::testing::{Script, ScriptedEngine, answer, byte_tokenizer};
use interbed_model::chat_template::{ChatTemplate, SpecialTokens};
use interbed_server::{Door, Drained, ServerConfig, listen};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
    {% if tools %}[{{ tools | length }} tools]{% endif %}{% if mood %}({{ mood }}){% endif %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";

pub struct Server {
    pub address: SocketAddr,
    pub engine: ScriptedEngine,
    shutdown: Option<oneshot::Sender<()>>,
    impatience: Option<oneshot::Sender<()>>,
    served: JoinHandle<Drained>,
}

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Server {
    /// Starts a server that answers everything with `text`.
    pub async fn answering(text: &str) -> Self {
        Self::start(ServerConfig::default(), answer(text)).await
    }

    pub async fn start(config: ServerConfig, script: Box<Script>) -> Self {
        let engine = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(1), script);
        Self::over(config, engine).await
    }

    /// Starts a server that renders chats with this template.
    pub async fn with_template(template: &str) -> Self {
        let engine = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(1), answer("x"));
        Self::serving(ServerConfig::default(), engine, template).await
    }

    /// Starts a server that answers everything with `text`, and renders chats with this template.
    pub async fn speaking(config: ServerConfig, text: &str, template: &str) -> Self {
        let engine = ScriptedEngine::start(ScriptedEngine::limits(), Duration::from_millis(1), answer(text));
        Self::serving(config, engine, template).await
    }

    pub async fn over(config: ServerConfig, engine: ScriptedEngine) -> Self {
        Self::serving(config, engine, TEMPLATE).await
    }

    async fn serving(config: ServerConfig, engine: ScriptedEngine, template: &str) -> Self {
        let (server, door) = Self::loading(&config, engine).await;
        server.open(door, config, template);
        server
    }

    /// Starts a server that listens, and has no model yet.
    pub async fn loading(config: &ServerConfig, engine: ScriptedEngine) -> (Self, Door) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (shutdown, told) = oneshot::channel::<()>();
        let (impatience, no_patience) = oneshot::channel::<()>();
        #[expect(clippy::async_yields_async, reason = "impatience comes only after the word to stop")]
        let stop = async {
            let _ = told.await;
            async {
                // If the sender is dropped without a message, patience never ends.
                if no_patience.await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let (door, serving) = listen(config, listener, stop);
        let (shutdown, impatience) = (Some(shutdown), Some(impatience));
        (Self { address, engine, shutdown, impatience, served: tokio::spawn(serving) }, door)
    }

    /// Reports that the model is loaded.
    pub fn open(&self, door: Door, config: ServerConfig, template: &str) {
        let template = ChatTemplate::new(template, SpecialTokens::default()).expect("a valid template");
        door.open(config, self.engine.handle(), Arc::new(byte_tokenizer()), Some(Arc::new(template)));
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, "", body.to_string().as_bytes()).await
    }

    /// Sends a body; `headers` are whole lines, each with its line end.
    pub async fn post_bytes(&self, path: &str, headers: &str, body: &[u8]) -> Reply {
        self.send(&post_request(path, headers, body)).await
    }

    /// Sends bytes and reads until the server closes.
    pub async fn send(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect().await;
        stream.write_all(request).await.expect("the server takes the request");
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.expect("the server answers");
        Reply::parse(&reply)
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the server listens")
    }

    /// The newest request that reached the engine.
    pub fn last_request(&self) -> interbed_engine::Request {
        self.engine.requests().pop().expect("a request reached the engine")
    }

    /// Tells the server to stop; the handle waits for the end.
    pub fn stop(self) -> (ScriptedEngine, JoinHandle<Drained>) {
        let (server, served) = self.begin_stop();
        (server.engine, served)
    }

    /// Tells the server to stop, and then to stop at once.
    pub fn stop_at_once(self) -> (ScriptedEngine, JoinHandle<Drained>) {
        let (mut server, served) = self.begin_stop();
        server.lose_patience();
        (server.engine, served)
    }

    /// Tells the server to stop; returns it for further requests, and the handle.
    pub fn begin_stop(mut self) -> (Self, JoinHandle<Drained>) {
        self.shutdown.take().into_iter().for_each(|shutdown| _ = shutdown.send(()));
        let gone = tokio::spawn(async { Drained::Completely });
        let served = std::mem::replace(&mut self.served, gone);
        (self, served)
    }

    /// Tells the server to stop at once, after [`Server::begin_stop`].
    pub fn lose_patience(&mut self) {
        self.impatience.take().into_iter().for_each(|impatience| _ = impatience.send(()));
    }
}

pub fn post_request(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: \
         application/json\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).expect("answers are text");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { dechunk(body) } else { body.to_owned() };
        Self { status, head: head.to_ascii_lowercase(), body }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// The body of a successful response.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// The status and the `error` object, whose fields are checked.
    pub fn error(&self) -> (u16, Map<String, Value>) {
        let Some(Value::Object(error)) = self.json().get("error").cloned() else { panic!("no error in {}", self.body) };
        let keys: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 10));
        (self.status, error)
    }

    /// The data of all events of a stream.
    pub fn events(&self) -> Vec<String> {
        assert!(self.head.contains("content-type: text/event-stream"), "{}", self.head);
        let events = self.body.split_terminator("\n\n");
        events.map(|event| event.strip_prefix("data: ").expect("an event of data").to_owned()).collect()
    }

    /// The values of a stream of lines of JSON.
    pub fn lines(&self) -> Vec<Value> {
        assert!(self.head.contains("content-type: application/x-ndjson"), "{}", self.head);
        assert!(self.body.ends_with('\n'), "{}", self.body);
        self.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The data of all events of a stream whose events have names, as JSON.
    pub fn named_events(&self) -> Vec<Value> {
        let data = |event: &str| event.split_once("\ndata: ").expect("a name and data").1.to_owned();
        let events = self.body.split_terminator("\n\n").map(data);
        events.map(|data| serde_json::from_str(&data).expect("JSON")).collect()
    }

    /// The data of all events of a stream, as JSON, without the final `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }
}

fn dechunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a chunk's length");
        whole += &rest[..length];
        body = rest[length..].strip_prefix("\r\n").expect("a chunk's end");
    }
    whole
}
