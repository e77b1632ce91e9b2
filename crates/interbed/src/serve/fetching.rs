//! Fetching a model while a server serves: by a process of its own, so that what it takes is none of the server's
//! memory, and nothing of it is left behind.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use interbed_server::{LibraryError, PullStep};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Sender;

use super::configure::own_program;
use crate::failure::BAD_INPUT;

/// Most bytes of what the process says that are looked at.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// Who is told how it goes.
pub type Told = Sender<Result<PullStep, LibraryError>>;

/// Begins to fetch a model by its full name on the Hub, and calls `fetched` when it is there. It ends when nobody
/// listens to `told` any more, and keeps its `place` until then. To be called within a runtime.
///
/// # Errors
/// The system starts no process.
pub fn begin(
    name: &str,
    offline: bool,
    told: Told,
    place: OwnedSemaphorePermit,
    fetched: impl FnOnce() + Send + 'static,
) -> Result<(), LibraryError> {
    let failed = |error: std::io::Error| LibraryError::Failed(format!("no process can be started for it: {error}"));
    let program = own_program().ok_or_else(|| LibraryError::Failed("this program's own file is not known".into()))?;
    let mut command = Command::new(program);
    command.args(["--quiet", "pull", "--json", name]).args(offline.then_some("--offline"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let pipes = child.stdout.take().zip(child.stderr.take());
    let (stdout, stderr) = pipes.ok_or_else(|| LibraryError::Failed("the process has no pipes".into()))?;
    let child = Running(Arc::new(Mutex::new(child)));
    let (listens, ending) = (told.clone(), child.clone());
    tokio::spawn(async move {
        let _ending = ending;
        listens.closed().await;
    });
    let work = move || {
        let _place = place;
        let said = thread::spawn(move || read(stderr));
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let Some(step) = step_of(&line) else { continue };
            if told.blocking_send(Ok(step)).is_err() {
                return;
            }
        }
        let outcome = match child.wait() {
            Ok(status) if status.success() => {
                fetched();
                Ok(PullStep::Done)
            }
            Ok(status) => Err(refusal(status, &said.join().unwrap_or_default())),
            Err(error) => Err(LibraryError::Failed(format!("it is not known how it ended: {error}"))),
        };
        // Who has gone meanwhile needs no word.
        let _ = told.blocking_send(outcome);
    };
    thread::Builder::new().name("fetching".into()).spawn(work).map(drop).map_err(failed)
}

/// The process, which is killed once one of those who have it goes.
#[derive(Clone)]
struct Running(Arc<Mutex<Child>>);

impl Running {
    fn wait(&self) -> std::io::Result<ExitStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended is neither killed nor waited for again.
        let _ = child.kill().and_then(|()| child.wait());
    }
}

fn read(pipe: impl Read) -> String {
    let mut said = Vec::new();
    // What came until it broke off is enough.
    let _ = pipe.take(SAID_BYTES_MAX).read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

/// How far it is, if the line tells that.
fn step_of(line: &str) -> Option<PullStep> {
    let line: Value = serde_json::from_str(line).ok()?;
    let content = line["commit"].as_str()?.to_owned();
    Some(PullStep::Fetched { content, done: line["completed"].as_u64()?, all: line["total"].as_u64()? })
}

/// What a client is told of a process that has failed.
fn refusal(status: ExitStatus, said: &str) -> LibraryError {
    let told = said.rsplit_once("error: ").map_or(said, |(_, told)| told);
    let told = told.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    match status.code() {
        Some(code) if code == i32::from(BAD_INPUT) => LibraryError::Unfit(told),
        Some(_) => LibraryError::Failed(told),
        None => LibraryError::Failed(format!("it was ended ({status}); what came is kept")),
    }
}
