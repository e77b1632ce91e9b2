//! Fetches a model while a server runs. A process of its own does it, so that its memory is not the server's and is
//! released when it ends.

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

/// The maximum number of bytes of the process's error output that are read.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// The channel that reports the progress of a download to a client.
pub type Told = Sender<Result<PullStep, LibraryError>>;

/// Starts a process that downloads the model with the full name `name` from the Hub. Once the model is complete,
/// `fetched` is called. The download stops when the receiver of `told` is dropped. The permit `place` is held until the
/// download ends. This function must be called within a Tokio runtime.
///
/// # Errors
/// Fails if the system cannot start the process.
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
        // A client that has disconnected meanwhile needs no message.
        let _ = told.blocking_send(outcome);
    };
    thread::Builder::new().name("fetching".into()).spawn(work).map(drop).map_err(failed)
}

/// The process of a download. Dropping any clone kills the process.
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
        // A process that has ended is neither killed nor waited for again.
        let _ = child.kill().and_then(|()| child.wait());
    }
}

fn read(pipe: impl Read) -> String {
    let mut said = Vec::new();
    // If reading fails, the text so far is enough for an error message.
    let _ = pipe.take(SAID_BYTES_MAX).read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

/// Parses a line of progress. Returns `None` for other lines.
fn step_of(line: &str) -> Option<PullStep> {
    let line: Value = serde_json::from_str(line).ok()?;
    let content = line["commit"].as_str()?.to_owned();
    Some(PullStep::Fetched { content, done: line["completed"].as_u64()?, all: line["total"].as_u64()? })
}

/// Returns the error for a client when the process has failed.
fn refusal(status: ExitStatus, said: &str) -> LibraryError {
    let told = said.rsplit_once("error: ").map_or(said, |(_, told)| told);
    let told = told.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    match status.code() {
        Some(code) if code == i32::from(BAD_INPUT) => LibraryError::Unfit(told),
        Some(_) => LibraryError::Failed(told),
        None => LibraryError::Failed(format!("it was ended ({status}); what came is kept")),
    }
}
