//! Writes a timeline of streamed weights, for ui.perfetto.dev or chrome://tracing.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use interbed_device::Queue;
use interbed_engine::DeviceEvent;
use interbed_io::AtomicWriter;
use interbed_weights::{EVENTS_MAX, EventKind, StreamEvent, StreamMonitor};
use serde_json::{Value, json};

use crate::report::report;
use crate::streaming::Streaming;

/// The number of the timeline's line for the forward pass. The lines for reads follow.
const PASS_LINE: usize = 0;

/// Writes to the file `path` the events of streaming and of the GPU since the last call, in the format of Chrome
/// traces. One line of the trace shows when forward passes compute and when they wait. Reads that are in flight at the
/// same time appear on separate lines. Each GPU queue has its own line.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write(streaming: &Streaming, path: &Path) -> Result<()> {
    let monitor = &*streaming.monitor;
    let mut events = monitor.take_events();
    events.sort_by_key(|event| event.start);
    let batches = streaming.device.as_ref().map(|device| device.take()).unwrap_or_default();
    let starts = events.iter().map(|event| event.start).chain(batches.iter().map(|batch| batch.start));
    let origin = starts.min().unwrap_or_else(Instant::now);
    let count = events.len() + batches.len();
    let failed = || format!("the timeline cannot be written to {}", path.display());
    let mut file = AtomicWriter::create(path).with_context(failed)?;
    let mut lanes = Lanes::default();
    let mut text = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    text.push_str(&name_of_line(PASS_LINE, "pass").to_string());
    let mut named = 0;
    for event in &events {
        let line = match event.kind {
            EventKind::Read => 1 + lanes.take(event.start, event.end),
            EventKind::Stall | EventKind::Compute => PASS_LINE,
        };
        while named < line {
            named += 1;
            text.push_str(&format!(",\n{}", name_of_line(named, &format!("read {named}"))));
        }
        text.push_str(&format!(",\n{}", trace_event(monitor, event, line, origin)));
        if text.len() > 1 << 20 {
            file.append(text.as_bytes()).with_context(failed)?;
            text.clear();
        }
    }
    if !batches.is_empty() {
        for queue in QUEUES {
            let (line, name) = line_of(queue);
            text.push_str(&format!(",\n{}", name_of_line(line, name)));
        }
    }
    for batch in &batches {
        text.push_str(&format!(",\n{}", batch_event(batch, origin)));
    }
    text.push_str("\n]}\n");
    file.append(text.as_bytes()).with_context(failed)?;
    file.commit().with_context(failed)?;
    report!("timeline of {count} events in {}: open it at https://ui.perfetto.dev", path.display());
    if events.len() >= EVENTS_MAX {
        report!("note: only the first {EVENTS_MAX} events are kept");
    }
    Ok(())
}

/// The queues of a GPU, in the order of their lines.
const QUEUES: [Queue; 3] = [Queue::Compute, Queue::Upload, Queue::Download];

/// Returns the number and the name of the line for a GPU queue. The numbers are larger than those of all lines for
/// reads.
fn line_of(queue: Queue) -> (usize, &'static str) {
    match queue {
        Queue::Compute => (1001, "GPU kernels"),
        Queue::Upload => (1002, "GPU copies from the host"),
        Queue::Download => (1003, "GPU copies to the host"),
        // The times of this queue are not recorded.
        Queue::Host => (1004, "products on the host"),
    }
}

/// Returns the trace event for commands that ran together on a GPU.
fn batch_event(batch: &DeviceEvent, origin: Instant) -> Value {
    let (line, _) = line_of(batch.queue);
    let kind = if batch.queue == Queue::Compute { "kernels" } else { "copies" };
    let name = format!("{} {kind}", batch.operations);
    let args = json!({"kind": kind, "operations": batch.operations});
    span((&name, kind), line, [batch.start - origin, batch.end - origin], args)
}

fn trace_event(monitor: &StreamMonitor, event: &StreamEvent, line: usize, origin: Instant) -> Value {
    let (kind, colour) = match event.kind {
        EventKind::Read => ("read", "yellow"),
        EventKind::Stall => ("stall", "terrible"),
        EventKind::Compute => ("compute", "good"),
    };
    let (name, args) = (monitor.group_name(event.group), json!({"kind": kind, "bytes": event.bytes}));
    let mut span = span((name, kind), line, [event.start - origin, event.end - origin], args);
    span["cname"] = colour.into();
    span
}

/// Returns a trace event that lasts from one time to another.
fn span((name, kind): (&str, &str), line: usize, [start, end]: [Duration; 2], args: Value) -> Value {
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    json!({
        "name": name, "cat": kind, "ph": "X", "pid": 1, "tid": line,
        "ts": microseconds(start), "dur": microseconds(end.saturating_sub(start)), "args": args,
    })
}

fn name_of_line(line: usize, name: &str) -> Value {
    json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": line, "args": {"name": name}})
}

/// The times until which the lines for reads are busy. Reads on one line do not overlap.
#[derive(Default)]
struct Lanes(Vec<Instant>);

impl Lanes {
    /// Returns the first line that is free at `start`, and marks it busy until `end`. Events must come in the order of
    /// their starts.
    fn take(&mut self, start: Instant, end: Instant) -> usize {
        let free = self.0.iter().position(|&busy_until| busy_until <= start);
        let lane = free.unwrap_or(self.0.len());
        match free {
            Some(lane) => self.0[lane] = end,
            None => self.0.push(end),
        }
        lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_on_a_line_do_not_overlap() {
        let mut lanes = Lanes::default();
        let begin = Instant::now();
        let ms = |number| begin + Duration::from_millis(number);
        let taken = [(0, 4), (1, 2), (2, 5), (4, 6), (4, 9)].map(|(start, end)| lanes.take(ms(start), ms(end)));
        assert_eq!(taken, [0, 1, 1, 0, 2]);
    }
}
