//! Compiles the schemas and grammars of requests, apart from tokenization. A bounded number is compiled at a time, with
//! an equal share for each tenant. Each is compiled first in a [process of its own](crate::schema_worker), which is
//! killed if it takes too long or too much memory. So compilations in this process are known to end.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use blake3::Hash;
use interbed_device::give_back_freed;
use interbed_engine::{Binding, Constraint, GrammarError, GrammarSource, Preface, Vocabulary};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::json_cost::bytes_of;
use crate::schema_worker::{BYTES_MAX, FITS, LEAVES, SCHEMA_WORKER, too_much};
use crate::tenant::Tenant;
use crate::turns::Turns;

/// The default for [`ServerConfig::schemas_max`](crate::ServerConfig::schemas_max), the maximum number of schemas and
/// grammars that are compiled at the same time.
pub const COMPILING_MAX: usize = 2;
/// The longest time that a request waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The timeout for a worker's answer: several times its processor time, as the processors may be busy.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The timeout for a worker to read the vocabulary, which takes long for a large one on busy processors.
const START_MAX: Duration = Duration::from_secs(30);
/// The time without progress after which a turn counts as stuck.
const STUCK: Duration = Duration::from_secs(20);
/// The number of schemas that are remembered as compilable, and need not be tried in a worker again.
const KNOWN_MAX: usize = 512;
/// The longest answer of a worker in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The shortest interval at which the allocator returns freed memory to the system. Schemas free a lot of memory, in
/// small pieces.
const TIDY: Duration = Duration::from_millis(100);
/// The number of bytes of a worker's memory, without the schema that it compiles.
const WORKER_BYTES: usize = 10 << 20;

/// The maximum number of bytes of memory for compiling one schema or grammar, in a worker process or in the server's
/// own process.
pub const COMPILING_BYTES: usize = WORKER_BYTES + BYTES_MAX;
/// The maximum number of bytes of memory for all compiled schemas and grammars that are in use.
pub const COMPILED_BYTES: usize = 40 << 20;

/// The constraint on the answers to a request, not yet compiled.
#[derive(Debug)]
pub(crate) struct Bond {
    /// The name of the request field that sets the constraint.
    pub(crate) param: String,
    /// The alternatives, in order of preference. The first alternative that can be enforced applies.
    bindings: Vec<Binding>,
    preface: Option<Preface>,
    heading: Option<GrammarSource>,
}

impl Bond {
    /// Makes a constraint by the first of `bindings` that can be enforced. There is at least one binding. The field
    /// `param` of the request sets the constraint.
    pub(crate) fn new(param: &str, bindings: Vec<Binding>) -> Self {
        Self { param: param.to_owned(), bindings, preface: None, heading: None }
    }

    /// Returns the JSON schema that a whole answer has to satisfy, if the constraint is one.
    pub(crate) fn json(&self) -> Option<Value> {
        match &self.bindings[..] {
            [Binding { source: GrammarSource::JsonSchema(schema), after: None }] => Some(schema.clone()),
            [Binding { source: GrammarSource::JsonObject, after: None }] => Some(json!({"type": "object"})),
            _ => None,
        }
    }

    /// Puts a preface before the constrained text, as [`Constraint::behind`] describes.
    pub(crate) fn behind(self, preface: Preface) -> Self {
        Self { preface: Some(preface), ..self }
    }

    /// Returns the number of bytes that the constraint takes before it is compiled.
    pub(crate) fn bytes(&self) -> usize {
        self.bindings.iter().map(|binding| bytes_of(&binding.to_text())).fold(0, usize::saturating_add)
    }

    /// Puts a heading, which the server itself writes, before the constrained text, as [`Constraint::headed`]
    /// describes.
    pub(crate) fn headed(self, heading: GrammarSource) -> Self {
        Self { heading: Some(heading), ..self }
    }
}

/// Compiles schemas, in turns.
pub(crate) struct Schemas {
    /// The program that acts as a worker with the argument [`SCHEMA_WORKER`].
    program: Mutex<Option<PathBuf>>,
    /// The number of schemas that are compiled at a time, or 0 if there is no memory for any.
    places: usize,
    turns: Mutex<Turns<oneshot::Sender<Turn>>>,
    /// The number of each turn in progress, and the time of its last progress.
    progress: Mutex<Vec<(u64, Instant)>>,
    /// The workers that are idle.
    idle: Mutex<Vec<Worker>>,
    known: Mutex<VecDeque<Hash>>,
    /// The time at which freed memory was last returned to the system.
    tidied: Mutex<Instant>,
}

/// A turn to compile. Dropping the value frees the place.
pub(crate) struct Turn {
    schemas: Arc<Schemas>,
    tenant: Tenant,
    number: u64,
    since: Instant,
}

impl Schemas {
    /// Creates a compiler with `places` turns at a time, and workers that run `program`.
    pub(crate) fn new(places: usize, program: Option<PathBuf>, several_tenants: bool) -> Arc<Self> {
        Arc::new(Self {
            program: Mutex::new(program),
            places,
            turns: Mutex::new(Turns::new(places, several_tenants)),
            progress: Mutex::default(),
            idle: Mutex::default(),
            known: Mutex::default(),
            tidied: Mutex::new(Instant::now()),
        })
    }

    /// Returns the number of turns that make no progress, and the largest number of turns.
    pub(crate) fn stuck(&self) -> (usize, usize) {
        (lock(&self.progress).iter().filter(|(_, last)| last.elapsed() > STUCK).count(), self.places)
    }

    /// Waits for the turn of a request of `tenant`, whose field `param` sets the constraint.
    ///
    /// # Errors
    /// Fails if no place becomes free in time, or there is no memory to compile at all.
    pub(crate) async fn turn(self: &Arc<Self>, tenant: Tenant, param: &str) -> Result<Turn, ApiError> {
        if self.places == 0 {
            let message = format!(
                "{param}: this server has no memory to compile schemas and grammars, which tools need, too; start it \
                 with a larger --memory"
            );
            return Err(ApiError::invalid(param, message));
        }
        let (give, given) = oneshot::channel();
        lock(&self.turns).wait(tenant, give);
        self.give_turns();
        let waited = timeout(WAIT_MAX, given).await;
        waited.ok().and_then(Result::ok).ok_or_else(|| {
            let seconds = WAIT_MAX.as_secs();
            ApiError::overloaded(format!("no schema or grammar could be compiled within {seconds} s; try again later"))
        })
    }

    /// Gives free places to waiting requests.
    fn give_turns(self: &Arc<Self>) {
        loop {
            let next = {
                let mut turns = lock(&self.turns);
                turns.retain(|give| !give.is_closed());
                turns.next()
            };
            let Some((tenant, give)) = next else { return };
            let number = lock(&self.progress).iter().map(|&(number, _)| number + 1).max().unwrap_or(0);
            let turn = Turn { schemas: self.clone(), tenant, number, since: Instant::now() };
            turn.go_on();
            // If the request no longer waits, the turn comes back and goes to the next one.
            drop(give.send(turn));
        }
    }

    /// Lets the allocator return freed memory to the system, if it has not done so recently.
    fn tidy(&self) {
        let is_due = {
            let mut tidied = lock(&self.tidied);
            let is_due = tidied.elapsed() > TIDY;
            if is_due {
                *tidied = Instant::now();
            }
            is_due
        };
        if is_due {
            // If no thread can be started, the memory stays with the allocator.
            drop(std::thread::Builder::new().name("tidy".into()).spawn(give_back_freed));
        }
    }

    /// Keeps a worker for the next schema, or ends it if it should not be used again.
    fn put_back(&self, worker: Worker) {
        if !worker.leaves {
            lock(&self.idle).push(worker);
        }
    }

    /// Returns a worker that has read the vocabulary, or `None` if no program can be a worker.
    async fn worker(&self, vocabulary: &Arc<Vocabulary>) -> Result<Option<Worker>, ApiError> {
        loop {
            let Some(worker) = lock(&self.idle).pop() else { break };
            if worker.is_alive() {
                return Ok(Some(worker));
            }
        }
        let Some(program) = lock(&self.program).clone() else { return Ok(None) };
        match Worker::start(&program) {
            Ok(worker) => worker.taught(vocabulary).await.map(Some),
            Err(error) => {
                tracing::warn!(
                    "{} could not be started: {error}; schemas are compiled without a process of their own from now on",
                    program.display()
                );
                *lock(&self.program) = None;
                Ok(None)
            }
        }
    }
}

impl Turn {
    /// Compiles a constraint, by the first of its bindings that can be enforced. Dropping the future ends the work.
    ///
    /// # Errors
    /// Fails if no binding can be enforced, or if memory or time is lacking now.
    pub(crate) async fn compile(self, bond: &Bond, vocabulary: &Arc<Vocabulary>) -> Result<Constraint, ApiError> {
        let turn = Arc::new(self);
        let mut compiled = Err(failed());
        for binding in &bond.bindings {
            compiled = compile_one(vocabulary, &turn, binding, &bond.param).await;
            // A lack of memory or time does not mean that the binding cannot be enforced, so no alternative is tried.
            if compiled.as_ref().err().is_none_or(|error| error.status != StatusCode::BAD_REQUEST) {
                break;
            }
        }
        let mut constraint = compiled?;
        if let Some(heading) = &bond.heading {
            let heading = bind(vocabulary, &turn, Binding::whole(heading.clone()), &bond.param).await?;
            constraint = constraint.headed(heading);
        }
        if let Some(preface) = &bond.preface {
            constraint = constraint.behind(preface.clone());
        }
        Ok(constraint)
    }

    /// Records that the turn makes progress.
    fn go_on(&self) {
        let mut progress = lock(&self.schemas.progress);
        match progress.iter_mut().find(|(number, _)| *number == self.number) {
            Some((_, last)) => *last = Instant::now(),
            None => progress.push((self.number, Instant::now())),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.schemas.progress).retain(|&(number, _)| number != self.number);
        let had = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        lock(&self.schemas.turns).leave(self.tenant, had);
        self.schemas.tidy();
        self.schemas.give_turns();
    }
}

async fn compile_one(
    vocabulary: &Arc<Vocabulary>,
    turn: &Arc<Turn>,
    binding: &Binding,
    param: &str,
) -> Result<Constraint, ApiError> {
    let schemas = &turn.schemas;
    let text = binding.to_text();
    let name = blake3::hash(text.as_bytes());
    if !lock(&schemas.known).contains(&name)
        && let Some(worker) = schemas.worker(vocabulary).await?
    {
        turn.go_on();
        let problem = match worker.ask(text.into_bytes(), ANSWER_MAX).await {
            Answer::Fits(worker) => {
                schemas.put_back(worker);
                let mut known = lock(&schemas.known);
                known.push_back(name);
                if known.len() > KNOWN_MAX {
                    known.pop_front();
                }
                None
            }
            Answer::Refused(worker, problem) => {
                schemas.put_back(worker);
                Some(problem)
            }
            Answer::Gone => Some(too_much()),
            Answer::Late => return Err(no_time()),
        };
        if let Some(problem) = problem {
            return Err(ApiError::invalid(param, format!("{param}: {problem}")));
        }
    }
    turn.go_on();
    let bound = bind(vocabulary, turn, binding.clone(), param);
    // Without a worker, the schema may take any time. The turn lasts until the compilation ends, which `/health` may
    // report as stuck.
    let bound = timeout(ANSWER_MAX, bound).await;
    bound.map_err(|_| no_time())?
}

/// Compiles in this process, on a stack that is large enough, and holds `turn` during this time.
async fn bind(
    vocabulary: &Arc<Vocabulary>,
    turn: &Arc<Turn>,
    binding: Binding,
    param: &str,
) -> Result<Constraint, ApiError> {
    let (vocabulary, turn) = (vocabulary.clone(), turn.clone());
    let (tell, told) = oneshot::channel();
    let work = move || {
        // The requester may have gone.
        let _ = tell.send(vocabulary.bind(&binding));
        drop(turn);
    };
    let thread = std::thread::Builder::new().name("schema".into()).stack_size(Vocabulary::STACK_BYTES).spawn(work);
    thread.map_err(|error| ApiError::internal(format!("no thread could be started: {error}")))?;
    match told.await.map_err(|_| failed())? {
        Ok(constraint) => Ok(constraint),
        Err(error @ GrammarError::NoMemory) => Err(ApiError::overloaded(error.to_string())),
        Err(error) => Err(ApiError::invalid(param, format!("{param}: {error}"))),
    }
}

/// Returns the error for a schema that took too long on busy processors, though it may need little processor time.
fn no_time() -> ApiError {
    let seconds = ANSWER_MAX.as_secs();
    ApiError::overloaded(format!("the schema or grammar could not be compiled within {seconds} s; try again later"))
}

fn failed() -> ApiError {
    ApiError::internal("compiling the schema or grammar failed")
}

/// A worker's answer.
enum Answer {
    Fits(Worker),
    Refused(Worker, String),
    /// The worker has ended.
    Gone,
    /// The worker did not answer in time, and was killed.
    Late,
}

/// A worker process. Dropping the value ends the process.
struct Worker {
    process: Arc<Process>,
    input: ChildStdin,
    output: ChildStdout,
    /// Whether to use another worker from now on.
    leaves: bool,
}

struct Process(Mutex<Child>);

impl Process {
    /// Kills the process. Pending reads and writes then fail.
    fn end(&self) {
        let mut child = lock(&self.0);
        // The process may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Kills a process when the value is dropped, unless the process was released before.
struct Ending(Option<Arc<Process>>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.iter().for_each(|process| process.end());
    }
}

impl Worker {
    fn start(program: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        // The worker is in its own process group, so that Ctrl-C at a terminal does not stop what requests in flight
        // wait for.
        command.arg(SCHEMA_WORKER).env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Arc::new(Process(Mutex::new(child)));
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { process, input, output, leaves: false })
    }

    /// Sends the vocabulary to the worker, and returns the worker once it has read the vocabulary.
    async fn taught(self, vocabulary: &Arc<Vocabulary>) -> Result<Self, ApiError> {
        let told = vocabulary.clone();
        let bytes = spawn_blocking(move || told.to_bytes()).await.map_err(|_| failed())?;
        match self.ask(bytes, START_MAX).await {
            Answer::Fits(worker) => Ok(worker),
            _ => Err(ApiError::overloaded("the process that compiles schemas could not be started; try again later")),
        }
    }

    /// Sends a frame, and waits up to `most` for the worker's answer. Dropping the future kills the worker.
    async fn ask(mut self, bytes: Vec<u8>, most: Duration) -> Answer {
        let mut ending = Ending(Some(self.process.clone()));
        let asking = spawn_blocking(move || {
            let verdict = self.exchange(&bytes);
            (self, verdict)
        });
        match timeout(most, asking).await {
            Err(_) => Answer::Late,
            Ok(Err(_)) | Ok(Ok((_, None))) => Answer::Gone,
            Ok(Ok((worker, Some(verdict)))) => {
                ending.0 = None;
                match verdict {
                    Ok(()) => Answer::Fits(worker),
                    Err(problem) => Answer::Refused(worker, problem),
                }
            }
        }
    }

    fn exchange(&mut self, bytes: &[u8]) -> Option<Result<(), String>> {
        self.input.write_all(&u32::try_from(bytes.len()).ok()?.to_le_bytes()).ok()?;
        self.input.write_all(bytes).ok()?;
        let mut length = [0; 4];
        self.output.read_exact(&mut length).ok()?;
        let length = u32::from_le_bytes(length) as usize;
        if !(2..=ANSWER_BYTES_MAX).contains(&length) {
            return None;
        }
        let mut answer = vec![0; length];
        self.output.read_exact(&mut answer).ok()?;
        self.leaves = answer[1] == LEAVES;
        let problem = String::from_utf8_lossy(&answer[2..]).into_owned();
        Some(if answer[0] == FITS { Ok(()) } else { Err(problem) })
    }

    fn is_alive(&self) -> bool {
        matches!(lock(&self.process.0).try_wait(), Ok(None))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
