//! A timeline of streamed weights, for ui.perfetto.dev or chrome://tracing.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use strata_io::AtomicWriter;
use strata_weights::{EVENTS_MAX, EventKind, StreamEvent, StreamMonitor};

use crate::report::report;

/// The line of the forward pass; those of reads follow.
const PASS_LINE: usize = 0;

/// Writes what has happened since the last call as Chrome trace events: one line for the pass, which computes or waits,
/// and as many for reads as were in flight at once.
///
/// # Errors
/// The file cannot be written.
pub fn write(monitor: &StreamMonitor, path: &Path) -> Result<()> {
    let mut events = monitor.take_events();
    events.sort_by_key(|event| event.start);
    let count = events.len();
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
        text.push_str(&format!(",\n{}", trace_event(monitor, event, line)));
        if text.len() > 1 << 20 {
            file.append(text.as_bytes()).with_context(failed)?;
            text.clear();
        }
    }
    text.push_str("\n]}\n");
    file.append(text.as_bytes()).with_context(failed)?;
    file.commit().with_context(failed)?;
    report!("timeline of {count} events in {}: open it at https://ui.perfetto.dev", path.display());
    if count >= EVENTS_MAX {
        report!("note: only the first {EVENTS_MAX} events are kept");
    }
    Ok(())
}

fn trace_event(monitor: &StreamMonitor, event: &StreamEvent, line: usize) -> serde_json::Value {
    let kind = match event.kind {
        EventKind::Read => "read",
        EventKind::Stall => "stall",
        EventKind::Compute => "compute",
    };
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    json!({
        "name": monitor.group_name(event.group), "cat": kind, "ph": "X", "pid": 1, "tid": line,
        "ts": microseconds(event.start), "dur": microseconds(event.end.saturating_sub(event.start)),
        "args": {"kind": kind, "bytes": event.bytes},
        "cname": match event.kind {
                EventKind::Stall => "terrible",
                EventKind::Compute => "good",
                EventKind::Read => "yellow",
            },
    })
}

fn name_of_line(line: usize, name: &str) -> serde_json::Value {
    json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": line, "args": {"name": name}})
}

/// Lines on which events do not overlap.
#[derive(Default)]
struct Lanes(Vec<Duration>);

impl Lanes {
    /// The first line that is free at `start`, which events come in the order of.
    fn take(&mut self, start: Duration, end: Duration) -> usize {
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
        let ms = Duration::from_millis;
        let taken = [(0, 4), (1, 2), (2, 5), (4, 6), (4, 9)].map(|(start, end)| lanes.take(ms(start), ms(end)));
        assert_eq!(taken, [0, 1, 1, 0, 2]);
    }
}
