//! Holds the state that the web page shows, and writes the whole state or changes to it as JSON.

use std::sync::Arc;
use std::time::Instant;

use interbed_engine::{
    BlockUse, DeviceStats, EngineStatus, Health, LivePlace, LiveSequence, LiveState, StreamStats, TierStatus,
    UnitSight, Watcher, WindowSight,
};
use serde_json::{Value, json};

use super::recent::{Recent, rounded};
use super::runs::{changes, runs};
use crate::api_keys::ApiKeys;
use crate::tenant::Tenant;

/// The JSON of figures that have not been read yet.
const UNKNOWN: &str = "null";

/// The state that viewers have been shown last.
pub(super) struct Scene {
    begin: Instant,
    keys: ApiKeys,
    source: Arc<Recent>,
    /// Facts that never change.
    about: Value,
    /// The division of the weights into groups, once it is known.
    groups: Value,
    figures: String,
    sequences: String,
    /// The most recently ended requests as JSON, with the number of ended requests at that time.
    recent: (u64, String),
    blocks: Vec<BlockUse>,
    window: WindowSight,
    /// The buffer into which the next state is read.
    state: LiveState,
    next_window: WindowSight,
}

impl Scene {
    pub(super) fn new(about: Value, keys: ApiKeys, source: Arc<Recent>) -> Self {
        Self {
            begin: Instant::now(),
            keys,
            source,
            about,
            groups: Value::Null,
            figures: UNKNOWN.into(),
            sequences: "[]".into(),
            recent: (0, UNKNOWN.into()),
            blocks: Vec::new(),
            window: WindowSight::default(),
            state: LiveState::default(),
            next_window: WindowSight::default(),
        }
    }

    /// Forgets the state that was shown, except for facts that never change.
    pub(super) fn clear(&mut self) {
        let (about, keys, source) = (self.about.take(), self.keys.clone(), self.source.clone());
        *self = Self { begin: self.begin, ..Self::new(about, keys, source) };
    }

    /// Returns whether a state has been read.
    pub(super) fn is_known(&self) -> bool {
        self.figures != UNKNOWN
    }

    /// Reads the present state, and returns an event with the changes, if there are any. The first event, and one
    /// after a change of sizes, has the whole state.
    pub(super) fn renew(&mut self, watcher: &mut Watcher, status: &EngineStatus) -> Option<String> {
        let is_first = !self.is_known();
        if let (true, Some(groups)) = (is_first, watcher.weight_groups()) {
            self.groups = groups.iter().map(|group| json!([group.name, group.units, group.bytes])).collect();
        }
        let mut event = String::new();
        let (has_state, has_window) = (watcher.read(&mut self.state), watcher.read_weights(&mut self.next_window));
        let is_resized = has_state && self.state.blocks.len() != self.blocks.len()
            || has_window && self.next_window.units.len() != self.window.units.len();
        let stream = watcher.stream_stats();
        if has_window {
            (self.window.host_bytes, self.window.device_bytes) =
                (self.next_window.host_bytes, self.next_window.device_bytes);
        }
        let figures = figures(status, stream.as_ref(), &self.window).to_string();
        if figures != self.figures {
            event += &format!(",\"figures\":{figures}");
            self.figures = figures;
        }
        if has_state {
            let sequences = self.sequences();
            if sequences != self.sequences {
                event += &format!(",\"sequences\":{sequences}");
                self.sequences = sequences;
            }
        }
        let ended = self.source.count();
        if is_first || ended != self.recent.0 {
            self.recent = (ended, self.source.told(self.begin).to_string());
            event += &format!(",\"recent\":{}", self.recent.1);
        }
        if is_first || is_resized {
            if has_state {
                std::mem::swap(&mut self.blocks, &mut self.state.blocks);
            }
            if has_window {
                std::mem::swap(&mut self.window.units, &mut self.next_window.units);
            }
            return Some(self.whole());
        }
        let before = event.len();
        if has_state {
            event += ",\"blocks\":";
            if changes(&self.blocks, &self.state.blocks, BlockUse::code, &mut event) {
                std::mem::swap(&mut self.blocks, &mut self.state.blocks);
            } else {
                event.truncate(before);
            }
        }
        let before = event.len();
        if has_window {
            event += ",\"units\":";
            let code = |unit: UnitSight| unit.code().into();
            if changes(&self.window.units, &self.next_window.units, code, &mut event) {
                std::mem::swap(&mut self.window.units, &mut self.next_window.units);
            } else {
                event.truncate(before);
            }
        }
        (!event.is_empty()).then(|| format!("event: step\ndata: {{\"at\":{:.3}{event}}}\n\n", self.at()))
    }

    /// Returns the event with the whole state.
    pub(super) fn whole(&self) -> String {
        let Self { about, groups, figures, sequences, recent: (_, recent), .. } = self;
        let mut event = format!(
            "event: whole\ndata: {{\"at\":{:.3},\"about\":{about},\"groups\":{groups},\"figures\":{figures},\
             \"sequences\":{sequences},\"recent\":{recent},\"blocks\":",
            self.at()
        );
        runs(&self.blocks, BlockUse::code, &mut event);
        event += ",\"units\":";
        runs(&self.window.units, |unit| unit.code().into(), &mut event);
        event += "}\n\n";
        event
    }

    /// Returns the sequences as JSON: an array for each, in the order of the fields below.
    fn sequences(&self) -> String {
        let row = |sequence: &LiveSequence| {
            let LiveSequence { id, number, place, prompt, computed, generated, blocks, below, cached, tenant, came } =
                *sequence;
            let key = tenant.and_then(|tenant| self.keys.name_of(Tenant::of_id(tenant)));
            let came = rounded(came.saturating_duration_since(self.begin));
            json!([
                id,
                number,
                name_of(place),
                prompt,
                computed,
                generated,
                blocks,
                below,
                cached,
                key.as_deref(),
                came
            ])
        };
        self.state.sequences.iter().map(row).collect::<Value>().to_string()
    }

    /// Returns the seconds since the stream was created.
    fn at(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
}

fn name_of(place: LivePlace) -> &'static str {
    match place {
        LivePlace::Running => "running",
        LivePlace::Long => "long",
        LivePlace::Fetching => "fetching",
        LivePlace::Arriving => "arriving",
        LivePlace::Leaving => "leaving",
        LivePlace::Swapped => "swapped",
        LivePlace::Waiting => "waiting",
    }
}

/// Returns the engine's figures. Counters are totals since the start, from which the page computes rates.
fn figures(status: &EngineStatus, stream: Option<&StreamStats>, window: &WindowSight) -> Value {
    let EngineStatus { kv, finished, .. } = status;
    let health = match &status.health {
        Health::Ok => "ok",
        Health::Stalled(reason) | Health::Dead(reason) => reason,
    };
    json!({
        "health": health,
        "steps": status.steps,
        "running": status.running,
        "waiting": status.waiting,
        "swapped": status.swapped,
        "prompt_tokens": status.prompt_tokens,
        "cached_tokens": status.cached_tokens,
        "generated_tokens": status.generation_tokens,
        "finished": finished.stop + finished.length,
        "cancelled": finished.cancelled,
        "failed": finished.failed,
        "preemptions": status.preemptions,
        "preemptions_swap": status.preemptions_swap,
        "weights_bytes": status.memory.weights.0,
        "kv": {
            "total": kv.blocks_total,
            "used": kv.blocks_used,
            "cached": kv.blocks_cached,
            "free": kv.blocks_free,
            "withdrawn": kv.blocks_withdrawn,
            "bytes": status.kv_bytes(),
            "block_bytes": status.memory.kv_block.0,
            // The bytes of windows and states, which layers keep beside the KV of all tokens.
            "tails": {
                "used": status.tails.bytes(|group| group.blocks_held),
                "cached": status.tails.bytes(|group| group.blocks_cached),
                "free": status.tails.bytes(|group| group.blocks_free),
            },
            "evictions": kv.evictions,
            "merged": kv.blocks_merged,
            "copied": kv.copy_on_writes,
        },
        "swap": (kv.swap_slots_total > 0).then(|| json!({
            "total": kv.swap_slots_total,
            "used": kv.swap_slots_used,
            "out": kv.swapped_out_blocks,
            "in": kv.swapped_in_blocks,
        })),
        "stream": stream.map(|stream| self::stream(stream, window)),
        "device": status.memory.device.as_ref().map(device),
        "disk": status.tier("disk").map(|tier| disk(tier, status.longer_than_memory)),
        "remote": status.tier("remote").map(remote),
    })
}

fn stream(stream: &StreamStats, window: &WindowSight) -> Value {
    json!({
        "passes": stream.passes,
        "bytes_read": stream.bytes_read,
        "bytes_copied": stream.bytes_copied,
        "bytes_on_host": stream.bytes_on_host,
        "waits_for_copies": stream.waits_for_copies,
        "reads_failed": stream.reads_failed,
        "stall_s": stream.stall.as_secs_f64(),
        "io_s": stream.io.as_secs_f64(),
        "compute_s": stream.compute.as_secs_f64(),
        "disk_bytes_per_s": stream.disk_bytes_per_s,
        "host_bytes": window.host_bytes,
        "device_bytes": window.device_bytes,
    })
}

fn device(device: &DeviceStats) -> Value {
    json!({
        "name": &*device.name,
        "used": device.memory_used.0,
        "budget": device.memory_budget.0,
        "bytes_to_device": device.bytes_to_device,
        "bytes_to_host": device.bytes_to_host,
        "waits_for_room": device.waits_for_room,
    })
}

fn remote(remote: &TierStatus) -> Value {
    json!({
        "asked_tokens": remote.asked_tokens,
        "fetched_tokens": remote.fetched_tokens,
        "fetch_s": remote.fetch_seconds,
        "paused": remote.store.is_paused(),
    })
}

fn disk(disk: &TierStatus, longer_than_memory: usize) -> Value {
    let store = &disk.store;
    json!({
        "used": store.bytes_used,
        "total": store.bytes_total,
        "blocks": store.blocks,
        "queued": store.queued_blocks,
        "written_bytes": store.written_bytes,
        "read_bytes": store.read_bytes,
        "fetched_tokens": disk.fetched_tokens,
        "fetches": disk.fetches,
        "fetch_s": disk.fetch_seconds,
        "frame_s": store.frame_seconds,
        "long": longer_than_memory,
    })
}
