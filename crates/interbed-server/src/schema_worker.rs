//! Implements the process in which schemas and grammars are compiled for the first time. If compiling one never ends or
//! exhausts memory, only this process is lost.
//!
//! The process reads frames, each of which is a little-endian `u32` length and that many bytes. The first frame is a
//! vocabulary, and each further frame is a schema or grammar. The process answers each frame with a frame. The first
//! byte of the answer says whether the grammar may be used, and the second says whether to use another process from now
//! on. The remaining bytes are the reason for a refusal.

use std::fs;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use interbed_engine::{Binding, GrammarError, Vocabulary};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};

/// The command-line argument that tells a program to call [`run_schema_worker`].
pub const SCHEMA_WORKER: &str = "schema-worker";

/// The maximum processor time for compiling one grammar.
pub(crate) const WORK_MAX: Duration = Duration::from_secs(1);
/// The maximum number of bytes of memory for compiling one grammar.
pub(crate) const BYTES_MAX: usize = 36 << 20;
/// The maximum number of bytes that the process may still hold after an answer. A process that holds more is replaced.
const KEPT_MAX: usize = 8 << 20;
/// The interval at which the processor time is checked.
const LOOK: Duration = Duration::from_millis(20);
/// The nice value of the process, which gives way to others.
const NICE: i32 = 5;
/// The longest frame in bytes, for a vocabulary.
const FRAME_MAX: usize = 256 << 20;

/// The first byte of an answer: the grammar may be used.
pub(crate) const FITS: u8 = b'+';
/// The first byte of an answer: the grammar may not be used.
pub(crate) const REFUSED: u8 = b'-';
/// The second byte of an answer: the process may be used again.
const STAYS: u8 = b' ';
/// The second byte of an answer: the process should not be used again.
pub(crate) const LEAVES: u8 = b'!';

/// Compiles the schemas and grammars that arrive on stdin until the input ends. A program that starts a server must
/// call this function if its only argument is [`SCHEMA_WORKER`], and do nothing else in that case.
pub fn run_schema_worker() -> ExitCode {
    // Messages of panics are not shown to anybody.
    std::panic::set_hook(Box::new(|_| {}));
    let _ = nice(NICE);
    limit(Resource::Core, 0);
    match serve(&mut io::stdin().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(input: &mut impl Read) -> io::Result<()> {
    let Some(bytes) = read_frame(input)? else { return Ok(()) };
    let vocabulary = Vocabulary::from_bytes(&bytes).map(|vocabulary| vocabulary.with_memory(usize::MAX));
    drop(bytes);
    let vocabulary = vocabulary.map_err(io::Error::other)?;
    let watch = Watch::start()?;
    let resident = status("VmRSS:").unwrap_or(0);
    answer(FITS, STAYS, "")?;
    while let Some(text) = read_frame(input)? {
        if let Some(data) = status("VmData:") {
            limit(Resource::Data, (data + BYTES_MAX + Vocabulary::STACK_BYTES) as u64);
        }
        watch.begin();
        let tried = try_out(&vocabulary, &text);
        watch.end();
        let has_grown = status("VmRSS:").is_some_and(|now| now > resident + KEPT_MAX);
        let next = if has_grown { LEAVES } else { STAYS };
        match tried {
            Ok(()) => answer(FITS, next, "")?,
            Err(problem) => answer(REFUSED, next, &problem)?,
        }
    }
    Ok(())
}

/// Compiles one grammar on a stack that is large enough.
fn try_out(vocabulary: &Vocabulary, text: &[u8]) -> Result<(), String> {
    let binding = std::str::from_utf8(text).ok().and_then(Binding::from_text);
    let binding = binding.ok_or("it was sent in a form that is not known")?;
    let compiled = thread::scope(|scope| {
        let work = || vocabulary.bind(&binding).map(drop);
        let thread = thread::Builder::new().stack_size(Vocabulary::STACK_BYTES).spawn_scoped(scope, work);
        thread.map_err(|error| format!("no thread could be started: {error}"))?.join().map_err(|_| crashed())
    })?;
    compiled.map_err(|error: GrammarError| error.to_string())
}

fn crashed() -> String {
    "the schema or grammar cannot be compiled".into()
}

/// Ends the process when a grammar takes too long.
struct Watch {
    /// The total processor time of the process, in milliseconds, at which it is ended. While nothing is compiled, this
    /// is the largest number.
    until: Arc<AtomicU64>,
}

impl Watch {
    fn start() -> io::Result<Self> {
        let until = Arc::new(AtomicU64::new(u64::MAX));
        let watched = until.clone();
        let watch = move || {
            loop {
                thread::sleep(LOOK);
                if processor_time() > watched.load(Ordering::Relaxed) {
                    let _ = answer(REFUSED, LEAVES, &too_long());
                    std::process::abort();
                }
            }
        };
        thread::Builder::new().name("watch".into()).spawn(watch)?;
        Ok(Self { until })
    }

    fn begin(&self) {
        self.until.store(processor_time() + WORK_MAX.as_millis() as u64, Ordering::Relaxed);
    }

    fn end(&self) {
        self.until.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Returns the message for a grammar that takes too long.
fn too_long() -> String {
    format!(
        "compiling it takes more than {} s; simplify it: fewer or shorter patterns, lengths, repetitions and \
         combinations of alternatives",
        WORK_MAX.as_secs_f32()
    )
}

/// Returns the message for a grammar that takes too much memory.
pub(crate) fn too_much() -> String {
    format!(
        "compiling it takes more than {} MiB of memory; simplify it: fewer or shorter patterns, lengths, repetitions \
         and combinations of alternatives",
        BYTES_MAX >> 20
    )
}

/// Returns the processor time of this process in milliseconds, or wall-clock time if the system does not report it.
fn processor_time() -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let ticks = || {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The fields after the process name, which may contain anything: time in user mode and in the kernel.
        let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut time = || times.next()?.parse::<u64>().ok();
        Some(time()? + time()?)
    };
    let elapsed = BEGIN.elapsed().as_millis() as u64;
    ticks().map_or(elapsed, |ticks| ticks * 1000 / clock_ticks_per_second().max(1))
}

/// Sets a limit of this process, as far as the system allows it.
fn limit(resource: Resource, most: u64) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let current = Some(maximum.map_or(most, |maximum| maximum.min(most)));
    // If the system does not know this limit, the other limits still apply.
    let _ = setrlimit(resource, Rlimit { current, maximum });
}

/// Returns a size in bytes that the system reports for this process, or `None` if it reports none.
fn status(name: &str) -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib << 10)
}

/// Reads the next frame. Returns `None` at the end.
fn read_frame(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    let got = input.take(length as u64).read_to_end(&mut bytes)?;
    if got < length { Ok(None) } else { Ok(Some(bytes)) }
}

/// Writes one frame at once, so that frames of several threads do not mix.
fn answer(first: u8, next: u8, text: &str) -> io::Result<()> {
    let mut frame = (text.len() as u32 + 2).to_le_bytes().to_vec();
    frame.extend([first, next]);
    frame.extend(text.as_bytes());
    let mut output = io::stdout().lock();
    output.write_all(&frame)?;
    output.flush()
}
